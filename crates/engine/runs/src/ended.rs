//! Ended runs as they are served: their state never changes again, and clients go on asking.

use hashlink::LruCache;
use std::sync::{Arc, Mutex, PoisonError};

/// States of ended runs as JSON. Those that were asked for last stay, within a budget.
pub(crate) struct EndedStates {
    budget: usize,
    kept: Mutex<Kept>,
}

struct Kept {
    states: LruCache<String, Arc<str>>,
    bytes: usize,
}

impl EndedStates {
    /// Keeps at most `budget` bytes of JSON.
    pub(crate) fn new(budget: usize) -> Self {
        Self { budget, kept: Mutex::new(Kept { states: LruCache::new_unbounded(), bytes: 0 }) }
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<str>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.states.get(id).cloned()
    }

    pub(crate) fn put(&self, id: &str, state: &Arc<str>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes += state.len();
        if let Some(before) = kept.states.insert(id.to_owned(), Arc::clone(state)) {
            kept.bytes -= before.len();
        }
        while kept.bytes > self.budget
            && let Some((_, oldest)) = kept.states.remove_lru()
        {
            kept.bytes -= oldest.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_holds_and_what_was_asked_for_last_stays() {
        let (states, json) = (EndedStates::new(25), Arc::from("0123456789"));
        for id in ["a", "b", "a"] {
            states.put(id, &json);
        }
        assert!(states.get("a").is_some());
        states.put("c", &json);
        assert_eq!(["a", "b", "c"].map(|id| states.get(id).is_some()), [true, false, true]);
        states.put("huge", &"x".repeat(26).into());
        assert_eq!(["a", "c", "huge"].map(|id| states.get(id).is_some()), [false; 3]);
    }
}
