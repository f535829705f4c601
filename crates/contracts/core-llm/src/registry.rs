//! Language models by id.

use crate::{Error, LoadSpec, Result, StreamEvent, TextLlmDescriptor, TextLlmOutput, TextLlmRequest};
use std::collections::BTreeMap;

/// A loaded language model.
pub trait TextLlm: Send + Sync {
    /// What it is and can.
    fn descriptor(&self) -> &TextLlmDescriptor;
    /// Refuses a request that it can't serve, before any work.
    ///
    /// # Errors
    /// The first field that is wrong.
    fn validate(&self, request: &TextLlmRequest) -> Result<()>;
    /// Answers, giving text to `on_event` as it comes and the whole answer at the end. Stops within one layer when
    /// cancelled.
    ///
    /// # Errors
    /// What [`Self::validate`] refuses, a conversation longer than the model's context, cancellation, or a failure of the
    /// backend.
    fn generate(&self, request: &TextLlmRequest, on_event: &mut dyn FnMut(StreamEvent)) -> Result<TextLlmOutput>;
    /// Answers at once.
    ///
    /// # Errors
    /// As [`Self::generate`].
    fn complete(&self, request: &TextLlmRequest) -> Result<TextLlmOutput> {
        self.generate(request, &mut |_| {})
    }
}

/// A provider of language models.
#[derive(Clone)]
pub struct TextLlmEntry {
    /// What it is, without loading.
    pub descriptor: TextLlmDescriptor,
    /// Whether it can load a snapshot, from headers and configs; `Err` says what was seen instead.
    pub can_load: fn(&LoadSpec) -> std::result::Result<(), String>,
    /// Loads a snapshot.
    pub load: fn(&TextLlmDescriptor, &LoadSpec) -> Result<Box<dyn TextLlm>>,
}

/// Providers of language models, by id.
#[derive(Default)]
pub struct TextLlmRegistry {
    entries: BTreeMap<String, TextLlmEntry>,
}

impl TextLlmRegistry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a provider.
    ///
    /// # Errors
    /// The id is taken.
    pub fn register(mut self, entry: TextLlmEntry) -> Result<Self> {
        let id = entry.descriptor.id.clone();
        match self.entries.insert(id.clone(), entry) {
            None => Ok(self),
            Some(_) => Err(Error::Unsupported(format!("the language model id '{id}' is registered twice"))),
        }
    }

    /// Descriptors, ordered by id.
    pub fn descriptors(&self) -> impl Iterator<Item = &TextLlmDescriptor> {
        self.entries.values().map(|entry| &entry.descriptor)
    }

    /// Loads a snapshot with the provider named `id`.
    ///
    /// # Errors
    /// There is no such provider, or it can't load the snapshot.
    pub fn load_textllm(&self, id: &str, spec: &LoadSpec) -> Result<Box<dyn TextLlm>> {
        let entry = self.entries.get(id).ok_or_else(|| {
            let known: Vec<_> = self.entries.keys().map(String::as_str).collect();
            Error::Unsupported(format!(
                "no language model provider is called '{id}'; this build has: {}",
                known.join(", ")
            ))
        })?;
        (entry.load)(&entry.descriptor, spec)
    }

    /// Loads a snapshot with the first provider that recognises it.
    ///
    /// # Errors
    /// None does; the message says what each of them saw.
    pub fn load_for_model(&self, spec: &LoadSpec) -> Result<Box<dyn TextLlm>> {
        let mut seen = Vec::new();
        for (id, entry) in &self.entries {
            match (entry.can_load)(spec) {
                Ok(()) => return (entry.load)(&entry.descriptor, spec),
                Err(what) => seen.push(format!("{id}: {what}")),
            }
        }
        let seen = if seen.is_empty() { "this build has no language models".to_owned() } else { seen.join("; ") };
        Err(Error::weights(spec.source.path(), format!("is no language model that can be loaded here ({seen})")))
    }
}
