//! The text engine on Candle: decoder models and snapshot preparers.
//!
//! [`register_providers`] adds the language model provider `candle-llama`, [`register_preparers`] the preparer of its
//! snapshots.

mod answer;
mod batch;
pub mod bench;
mod choose;
mod constraint;
mod llama;
mod lookup;
mod prefixes;
mod prepare;
mod schema;
mod snapshot;
mod stream;
mod tools;
mod words;

use core_llm::{
    PreparerEntry, Result, SnapshotPreparerRegistry, SnapshotPreparerRegistryBuilder, TextLlmRegistry,
    TextLlmRegistryBuilder,
};

/// The tensor backend of everything here.
pub const BACKEND: &str = "candle";

/// Adds every language model provider of this crate to a bundle.
pub fn register_providers(builder: TextLlmRegistryBuilder) -> TextLlmRegistryBuilder {
    builder.register_textllm(llama::entry())
}

/// Adds every snapshot preparer of this crate to a bundle.
pub fn register_preparers(builder: SnapshotPreparerRegistryBuilder) -> SnapshotPreparerRegistryBuilder {
    let preparer = Box::new(prepare::SafetensorsPreparer);
    builder.register_preparer(PreparerEntry { backend: BACKEND.to_owned(), preparer })
}

/// The language model providers of this crate alone.
///
/// # Errors
/// Two ids are the same.
pub fn provider_registry() -> Result<TextLlmRegistry> {
    register_providers(TextLlmRegistryBuilder::new()).build()
}

/// The snapshot preparers of this crate alone.
///
/// # Errors
/// Two are for the same backend.
pub fn preparer_registry() -> Result<SnapshotPreparerRegistry> {
    register_preparers(SnapshotPreparerRegistryBuilder::new()).build()
}
