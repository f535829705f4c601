//! The validated catalog that every bundle hands out.
//!
//! A bundle names its platform and backend, registers its providers with a [`RuntimeCatalogBuilder`], and gets a
//! [`RuntimeCatalog`] or the reason why its composition is wrong. No weight file is touched on the way.

mod builder;
mod snapshot;

use core_llm::{SnapshotPreparerRegistry, TextLlmRegistry};
#[cfg(feature = "media")]
use gen_core::ProviderRegistry;

pub use builder::{CatalogError, RuntimeCatalogBuilder};
pub use snapshot::RuntimeCatalogSnapshot;

/// Everything that a bundle can load, by kind and id.
pub struct RuntimeCatalog {
    platform: &'static str,
    backend: &'static str,
    #[cfg(feature = "media")]
    media: ProviderRegistry,
    text: TextLlmRegistry,
    preparers: SnapshotPreparerRegistry,
}

impl RuntimeCatalog {
    /// The bundle's platform.
    pub fn platform(&self) -> &'static str {
        self.platform
    }

    /// The bundle's tensor backend.
    pub fn backend(&self) -> &'static str {
        self.backend
    }

    /// Media providers.
    #[cfg(feature = "media")]
    pub fn media(&self) -> &ProviderRegistry {
        &self.media
    }

    /// Language models.
    pub fn text(&self) -> &TextLlmRegistry {
        &self.text
    }

    /// Snapshot preparers.
    pub fn preparers(&self) -> &SnapshotPreparerRegistry {
        &self.preparers
    }

    /// The ids of everything, ordered.
    pub fn snapshot(&self) -> RuntimeCatalogSnapshot {
        RuntimeCatalogSnapshot::of(self)
    }
}
