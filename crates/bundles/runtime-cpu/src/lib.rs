//! The CPU bundle: every provider that runs on Candle's CPU backend.
//!
//! ```no_run
//! use runtime_cpu as runtime;
//! # #[cfg(feature = "media")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use runtime::gen_core::{GenerationRequest, LoadSpec, WeightsSource};
//! let catalog = runtime::catalog()?;
//! let generator = catalog.media().load("z_image_turbo", &LoadSpec::new(WeightsSource::Dir("model".into())))?;
//! let request = GenerationRequest { prompt: "a red apple".into(), ..Default::default() };
//! let output = generator.generate(&request, &mut |_| {})?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "media"))]
//! # fn main() {}
//! ```

pub use candle_llm as llm;
pub use core_llm;
#[cfg(feature = "media")]
pub use gen_core;
pub use runtime_catalog::{CatalogError, RuntimeCatalog, RuntimeCatalogBuilder, RuntimeCatalogSnapshot};

/// The tensor backend.
pub const BACKEND: &str = "candle";
/// The platform.
pub const PLATFORM: &str = "cpu";
/// Targets that the bundle is built and tested for.
pub const SUPPORTED_TARGET_TRIPLES: &[&str] =
    &["x86_64-unknown-linux-gnu", "aarch64-apple-darwin", "x86_64-pc-windows-msvc"];
/// What must be installed on the machine beside the program.
pub const NATIVE_PREREQUISITES: &[&str] = &[];

/// The media providers of this bundle, family by family.
#[cfg(feature = "media")]
pub mod providers {
    pub use bert;
    pub use z_image;
}

/// The media half of the catalog.
#[cfg(feature = "media")]
pub mod media {
    use gen_core::{ProviderRegistry, ProviderRegistryBuilder, Result};

    /// Adds every media provider of this bundle: one line a family.
    pub fn register_providers(builder: ProviderRegistryBuilder) -> ProviderRegistryBuilder {
        bert::register_providers(z_image::register_providers(builder))
    }

    /// The media providers of this bundle alone.
    ///
    /// # Errors
    /// Two providers share an id.
    pub fn provider_registry() -> Result<ProviderRegistry> {
        register_providers(ProviderRegistryBuilder::new()).build()
    }
}

/// The language models of this bundle alone.
///
/// # Errors
/// Two providers share an id.
pub fn text_registry() -> core_llm::Result<core_llm::TextLlmRegistry> {
    candle_llm::provider_registry()
}

/// The validated catalog of this bundle.
///
/// # Errors
/// The composition is wrong: a mistake in the bundle, found by its tests.
pub fn catalog() -> Result<RuntimeCatalog, CatalogError> {
    let bundle = RuntimeCatalogBuilder::new(PLATFORM, BACKEND)
        .text(candle_llm::register_providers)
        .preparers(candle_llm::register_preparers);
    #[cfg(feature = "media")]
    let bundle = bundle.media(media::register_providers);
    bundle.build()
}
