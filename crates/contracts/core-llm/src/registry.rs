//! Language models by id.

use crate::{Error, LoadSpec, Result, StreamEvent, TextLlmDescriptor, TextLlmOutput, TextLlmRequest};
use runtime_base::{by_unique_id, unknown_id};
use std::collections::BTreeMap;

const KIND: &str = "language model";

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

/// Collects providers; duplicate ids are refused by [`Self::build`].
#[derive(Default)]
pub struct TextLlmRegistryBuilder {
    entries: Vec<TextLlmEntry>,
}

impl TextLlmRegistryBuilder {
    /// An empty builder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a provider.
    #[must_use]
    pub fn register_textllm(mut self, entry: TextLlmEntry) -> Self {
        self.entries.push(entry);
        self
    }

    /// Freezes the registry.
    ///
    /// # Errors
    /// An id stands twice.
    pub fn build(self) -> Result<TextLlmRegistry> {
        Ok(TextLlmRegistry { entries: by_unique_id(KIND, self.entries, |e| &e.descriptor.id)? })
    }
}

/// Providers of language models, by id.
pub struct TextLlmRegistry {
    entries: BTreeMap<String, TextLlmEntry>,
}

impl TextLlmRegistry {
    /// Descriptors, ordered by id.
    pub fn descriptors(&self) -> impl Iterator<Item = &TextLlmDescriptor> {
        self.entries.values().map(|entry| &entry.descriptor)
    }

    /// Loads a snapshot with the provider named `id`.
    ///
    /// # Errors
    /// There is no such provider, or it can't load the snapshot.
    pub fn load_textllm(&self, id: &str, spec: &LoadSpec) -> Result<Box<dyn TextLlm>> {
        let entry = self.entries.get(id).ok_or_else(|| unknown_id(KIND, id, self.entries.keys()))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TextCapabilities;

    fn entry(id: &str, can_load: fn(&LoadSpec) -> std::result::Result<(), String>) -> TextLlmEntry {
        let descriptor = TextLlmDescriptor {
            id: id.into(),
            name: id.into(),
            backend: "candle".into(),
            model_types: vec!["llama".into()],
            capabilities: TextCapabilities::default(),
        };
        // Says who was asked to load.
        TextLlmEntry { descriptor, can_load, load: |descriptor, _| Err(Error::Backend(descriptor.id.clone())) }
    }

    fn registry(entries: Vec<TextLlmEntry>) -> Result<TextLlmRegistry> {
        entries.into_iter().fold(TextLlmRegistryBuilder::new(), TextLlmRegistryBuilder::register_textllm).build()
    }

    #[test]
    fn the_provider_that_recognises_a_snapshot_loads_it() {
        let spec = LoadSpec::dense("nowhere");
        let both = registry(vec![entry("b", |_| Ok(())), entry("a", |_| Err("saw a cat".into()))]).unwrap();
        assert_eq!(both.load_for_model(&spec).err(), Some(Error::Backend("b".into())));
        assert_eq!(both.load_textllm("a", &spec).err(), Some(Error::Backend("a".into())));
        assert_eq!(both.descriptors().map(|d| d.id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn what_was_seen_is_said() {
        let spec = LoadSpec::dense("nowhere");
        let none = registry(vec![entry("a", |_| Err("saw a cat".into()))]).unwrap();
        let message = none.load_for_model(&spec).err().unwrap().to_string();
        assert!(message.contains("a: saw a cat"), "{message}");
        let message = none.load_textllm("b", &spec).err().unwrap().to_string();
        assert!(message.contains("'b'") && message.contains("this build has: a"), "{message}");
        assert!(registry(vec![]).unwrap().load_for_model(&spec).is_err());
    }

    #[test]
    fn an_id_is_given_once() {
        let twice = registry(vec![entry("a", |_| Ok(())), entry("a", |_| Ok(()))]);
        assert!(twice.err().unwrap().to_string().contains("'a' is registered twice"));
    }
}
