//! The text engine on Candle: decoder models and snapshot preparers.
//!
//! [`register_providers`] adds the language model provider `candle-llama`, [`preparers`] the preparer of its snapshots.

mod choose;
mod llama;
mod prepare;
mod snapshot;
mod stream;

use core_llm::{PreparerEntry, Result, SnapshotPreparerRegistry, TextLlmRegistry};

/// The tensor backend of everything here.
pub const BACKEND: &str = "candle";

/// Adds every language model provider of this crate.
///
/// # Errors
/// An id is taken.
pub fn register_providers(registry: TextLlmRegistry) -> Result<TextLlmRegistry> {
    registry.register(llama::entry())
}

/// The snapshot preparers of this crate.
///
/// # Errors
/// None here; a bundle that adds its own may clash.
pub fn preparers() -> Result<SnapshotPreparerRegistry> {
    let entry = PreparerEntry { backend: BACKEND.to_owned(), preparer: Box::new(prepare::SafetensorsPreparer) };
    SnapshotPreparerRegistry::new().register(entry)
}
