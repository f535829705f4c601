//! Composing a catalog, and why a composition is refused.

use std::collections::BTreeSet;

use crate::RuntimeCatalog;
use core_llm::{DescriptorProblem, SnapshotPreparerRegistryBuilder, TextLlmRegistryBuilder};
#[cfg(feature = "media")]
use gen_core::ProviderRegistryBuilder;

/// Why a bundle's composition is refused.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// A provider runs on another backend than the bundle.
    #[error("the {kind} '{id}' runs on the backend '{backend}', and this bundle's is '{expected}'")]
    Backend {
        /// The kind of provider.
        kind: &'static str,
        /// The provider.
        id: String,
        /// Its backend.
        backend: String,
        /// The bundle's.
        expected: &'static str,
    },
    /// A descriptor is not well-formed, or its name is another's.
    #[error(transparent)]
    Descriptor(#[from] DescriptorProblem),
    /// Nothing can prepare snapshots.
    #[error("the bundle has no snapshot preparer")]
    NoPreparer,
    /// A registry refused an entry: a duplicate id.
    #[error(transparent)]
    Registry(#[from] core_llm::Error),
}

/// Collects a bundle's providers.
pub struct RuntimeCatalogBuilder {
    platform: &'static str,
    backend: &'static str,
    #[cfg(feature = "media")]
    media: ProviderRegistryBuilder,
    text: TextLlmRegistryBuilder,
    preparers: SnapshotPreparerRegistryBuilder,
}

impl RuntimeCatalogBuilder {
    /// An empty bundle.
    pub fn new(platform: &'static str, backend: &'static str) -> Self {
        Self {
            platform,
            backend,
            #[cfg(feature = "media")]
            media: ProviderRegistryBuilder::new(),
            text: TextLlmRegistryBuilder::new(),
            preparers: SnapshotPreparerRegistryBuilder::new(),
        }
    }

    /// Adds media providers: `register` is a family's `register_providers`.
    #[cfg(feature = "media")]
    #[must_use]
    pub fn media(mut self, register: impl FnOnce(ProviderRegistryBuilder) -> ProviderRegistryBuilder) -> Self {
        self.media = register(self.media);
        self
    }

    /// Adds language model providers.
    #[must_use]
    pub fn text(mut self, register: impl FnOnce(TextLlmRegistryBuilder) -> TextLlmRegistryBuilder) -> Self {
        self.text = register(self.text);
        self
    }

    /// Adds snapshot preparers.
    #[must_use]
    pub fn preparers(
        mut self,
        register: impl FnOnce(SnapshotPreparerRegistryBuilder) -> SnapshotPreparerRegistryBuilder,
    ) -> Self {
        self.preparers = register(self.preparers);
        self
    }

    /// Checks the composition.
    ///
    /// # Errors
    /// A duplicate id or name within a kind, a foreign backend, a malformed descriptor, or no snapshot preparer.
    pub fn build(self) -> Result<RuntimeCatalog, CatalogError> {
        let (platform, backend) = (self.platform, self.backend);
        let text = self.text.build()?;
        let preparers = self.preparers.build()?;
        let mut sweep = Sweep { backend, names: BTreeSet::new() };
        #[cfg(feature = "media")]
        let media = self.media.build()?;
        #[cfg(feature = "media")]
        for (kind, d) in media.descriptors() {
            d.check()?;
            sweep.provider(kind.label(), &d.id, &d.name, &d.backend)?;
        }
        for d in text.descriptors() {
            d.check()?;
            sweep.provider("language model", &d.id, &d.name, &d.backend)?;
        }
        if preparers.is_empty() {
            return Err(CatalogError::NoPreparer);
        }
        for theirs in preparers.backends() {
            sweep.backend("snapshot preparer", theirs, theirs)?;
        }
        Ok(RuntimeCatalog {
            platform,
            backend,
            #[cfg(feature = "media")]
            media,
            text,
            preparers,
        })
    }
}

/// What descriptors must have in common, and what they mustn't.
struct Sweep {
    backend: &'static str,
    names: BTreeSet<(&'static str, String)>,
}

impl Sweep {
    fn provider(&mut self, kind: &'static str, id: &str, name: &str, backend: &str) -> Result<(), CatalogError> {
        self.backend(kind, id, backend)?;
        if self.names.insert((kind, name.to_owned())) {
            return Ok(());
        }
        let problem = format!("another {kind} has the name '{name}'");
        Err(DescriptorProblem { id: id.to_owned(), problem }.into())
    }

    fn backend(&self, kind: &'static str, id: &str, backend: &str) -> Result<(), CatalogError> {
        if backend == self.backend {
            return Ok(());
        }
        Err(CatalogError::Backend { kind, id: id.to_owned(), backend: backend.to_owned(), expected: self.backend })
    }
}
