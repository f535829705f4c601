//! Prompts that were encoded lately, so that changing a seed doesn't read a text encoder again.

use crate::lock;
use gen_core::Conditioning;
use std::collections::VecDeque;
use std::sync::Mutex;

/// Tokens of all remembered prompts: some hundred megabytes with the widest encoders.
const MAX_TOKENS: usize = 16_384;

struct Entry {
    encoder: String,
    prompt: String,
    conditioning: Conditioning,
}

/// The conditioning of prompts by text encoder, least recently used first.
#[derive(Default)]
pub(crate) struct PromptMemory(Mutex<VecDeque<Entry>>);

impl PromptMemory {
    /// What the text encoder of that fingerprint made of `prompt`.
    pub(crate) fn get(&self, encoder: &str, prompt: &str) -> Option<Conditioning> {
        let mut entries = lock(&self.0);
        let index = entries.iter().position(|e| e.encoder == encoder && e.prompt == prompt)?;
        let entry = entries.remove(index)?;
        let conditioning = entry.conditioning.clone();
        entries.push_back(entry);
        Some(conditioning)
    }

    pub(crate) fn put(&self, encoder: &str, prompt: &str, conditioning: &Conditioning) {
        let (encoder, prompt, conditioning) = (encoder.to_owned(), prompt.to_owned(), conditioning.clone());
        let mut entries = lock(&self.0);
        entries.retain(|e| e.encoder != encoder || e.prompt != prompt);
        entries.push_back(Entry { encoder, prompt, conditioning });
        // An empty prompt costs a little, too.
        let cost = |entries: &VecDeque<Entry>| entries.iter().map(|e| e.conditioning.tokens() + 1).sum::<usize>();
        while entries.len() > 1 && cost(&entries) > MAX_TOKENS {
            entries.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_last_is_remembered() {
        let memory = PromptMemory::default();
        let conditioning = |name: &str| Conditioning::new(name, MAX_TOKENS / 3, ());
        let found = |encoder: &str, prompt: &str| memory.get(encoder, prompt).map(|c| c.fingerprint().to_owned());
        memory.put("e", "a", &conditioning("a"));
        memory.put("other", "a", &conditioning("another"));
        assert_eq!(found("e", "a").as_deref(), Some("a"));
        memory.put("e", "b", &conditioning("b"));
        assert_eq!([found("other", "a"), found("e", "a"), found("e", "b")], [None, Some("a".into()), Some("b".into())]);
    }
}
