//! What a catalog holds, as plain ordered lists.

use crate::RuntimeCatalog;
use serde::{Deserialize, Serialize};

/// Ids by kind, ordered. The JSON is the same byte for byte for the same catalog.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeCatalogSnapshot {
    /// The bundle's platform.
    pub platform: String,
    /// The bundle's tensor backend.
    pub backend: String,
    /// Generators.
    pub generator_ids: Vec<String>,
    /// Upscalers and restorers.
    pub transform_ids: Vec<String>,
    /// Adapter trainers.
    pub trainer_ids: Vec<String>,
    /// Captioners.
    pub captioner_ids: Vec<String>,
    /// Picture embedders.
    pub image_embedder_ids: Vec<String>,
    /// Text embedders of picture models.
    pub text_embedder_ids: Vec<String>,
    /// Language models.
    pub text_llm_ids: Vec<String>,
    /// Backends with a snapshot preparer.
    pub snapshot_preparer_backends: Vec<String>,
}

impl RuntimeCatalogSnapshot {
    pub(crate) fn of(catalog: &RuntimeCatalog) -> Self {
        let mut snapshot = Self {
            platform: catalog.platform().to_owned(),
            backend: catalog.backend().to_owned(),
            generator_ids: Vec::new(),
            transform_ids: Vec::new(),
            trainer_ids: Vec::new(),
            captioner_ids: Vec::new(),
            image_embedder_ids: Vec::new(),
            text_embedder_ids: Vec::new(),
            text_llm_ids: catalog.text().descriptors().map(|d| d.id.clone()).collect(),
            snapshot_preparer_backends: catalog.preparers().backends().map(str::to_owned).collect(),
        };
        snapshot.add_media(catalog);
        snapshot
    }

    #[cfg(feature = "media")]
    fn add_media(&mut self, catalog: &RuntimeCatalog) {
        use gen_core::ProviderKind as K;
        for (kind, descriptor) in catalog.media().descriptors() {
            let list = match kind {
                K::Generator => &mut self.generator_ids,
                K::Transform => &mut self.transform_ids,
                K::Trainer => &mut self.trainer_ids,
                K::Captioner => &mut self.captioner_ids,
                K::ImageEmbedder => &mut self.image_embedder_ids,
                K::TextEmbedder => &mut self.text_embedder_ids,
            };
            list.push(descriptor.id.clone());
        }
    }

    #[cfg(not(feature = "media"))]
    fn add_media(&mut self, _: &RuntimeCatalog) {}

    /// The snapshot as JSON, its fields in declaration order.
    pub fn to_json(&self) -> String {
        // Strings and lists of strings always serialize.
        serde_json::to_string(self).unwrap_or_default()
    }
}
