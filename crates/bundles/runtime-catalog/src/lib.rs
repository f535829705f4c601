//! The validated catalog that every bundle hands out.
//!
//! A bundle names its backend and platform, registers its providers, and gets a [`RuntimeCatalog`] or the reason why its
//! composition is wrong. No weight file is touched on the way.

mod snapshot;

use core_llm::{SnapshotPreparerRegistry, TextLlmRegistry};
#[cfg(feature = "media")]
use gen_core::ProviderRegistry;

pub use snapshot::RuntimeCatalogSnapshot;

/// Why a bundle's composition is refused.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// A provider runs on another backend than the bundle.
    #[error("'{id}' runs on the backend '{backend}', and this bundle's is '{expected}'")]
    Backend {
        /// The provider.
        id: String,
        /// Its backend.
        backend: String,
        /// The bundle's.
        expected: &'static str,
    },
    /// A descriptor is not well-formed.
    #[error("descriptor '{id}': {problem}")]
    Descriptor {
        /// The provider.
        id: String,
        /// What is wrong.
        problem: String,
    },
    /// Nothing can prepare snapshots.
    #[error("the bundle has no snapshot preparer")]
    NoPreparer,
    /// A registry refused an entry, such as a duplicate id.
    #[error(transparent)]
    Registry(#[from] core_llm::Error),
}

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
    /// Checks a bundle's composition.
    ///
    /// # Errors
    /// A foreign backend, a malformed descriptor, or no snapshot preparer. Duplicate ids are refused by the registries.
    pub fn new(
        platform: &'static str,
        backend: &'static str,
        #[cfg(feature = "media")] media: ProviderRegistry,
        text: TextLlmRegistry,
        preparers: SnapshotPreparerRegistry,
    ) -> Result<Self, CatalogError> {
        let same = |id: &str, theirs: &str| match theirs == backend {
            true => Ok(()),
            false => Err(CatalogError::Backend { id: id.to_owned(), backend: theirs.to_owned(), expected: backend }),
        };
        #[cfg(feature = "media")]
        for (_, descriptor) in media.descriptors() {
            same(&descriptor.id, &descriptor.backend)?;
            let checked = descriptor.check();
            checked.map_err(|p| CatalogError::Descriptor { id: p.id, problem: p.problem })?;
        }
        for descriptor in text.descriptors() {
            same(&descriptor.id, &descriptor.backend)?;
            let checked = descriptor.check();
            checked.map_err(|p| CatalogError::Descriptor { id: p.id, problem: p.problem })?;
        }
        if preparers.is_empty() {
            return Err(CatalogError::NoPreparer);
        }
        preparers.backends().try_for_each(|theirs| same("snapshot preparer", theirs))?;
        Ok(Self {
            platform,
            backend,
            #[cfg(feature = "media")]
            media,
            text,
            preparers,
        })
    }

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
