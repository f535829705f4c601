//! Outputs of nodes, kept in memory within a budget.

use engine_graph::{NodeCache, NodeKey, Outputs, ValidNode, Value};
use gen_core::Image;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What a value without a known size counts as.
const SMALL: usize = 4 << 10;

struct Entry {
    outputs: Arc<Outputs>,
    bytes: usize,
    used: u64,
}

#[derive(Default)]
struct Inner {
    entries: HashMap<NodeKey, Entry>,
    bytes: usize,
    clock: u64,
}

/// Keeps the outputs that were used last. Engine handles are not kept: they would hold models in memory.
pub struct MemoryCache {
    budget: usize,
    inner: Mutex<Inner>,
}

impl MemoryCache {
    /// A cache of at most `budget` bytes.
    pub fn new(budget: usize) -> Self {
        Self { budget, inner: Mutex::default() }
    }
}

/// Bytes of a value, or `None` for one that isn't kept.
fn size(value: &Value) -> Option<usize> {
    match value {
        Value::Text(text) => Some(text.len() + SMALL),
        Value::Images(images) => images.iter().map(size).sum(),
        Value::Object { .. } => value.downcast::<Image>().map(|image| image.pixels().len() + SMALL),
    }
}

impl NodeCache for MemoryCache {
    fn get(&self, key: &NodeKey, _: &ValidNode) -> Option<Arc<Outputs>> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.clock += 1;
        let clock = inner.clock;
        let entry = inner.entries.get_mut(key)?;
        entry.used = clock;
        Some(Arc::clone(&entry.outputs))
    }

    fn put(&self, key: &NodeKey, _: &ValidNode, outputs: &Arc<Outputs>) {
        let Some(bytes) = outputs.iter().map(|(_, value)| size(value)).sum::<Option<usize>>() else { return };
        if bytes > self.budget {
            return;
        }
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.clock += 1;
        let entry = Entry { outputs: Arc::clone(outputs), bytes, used: inner.clock };
        inner.bytes += bytes;
        if let Some(old) = inner.entries.insert(*key, entry) {
            inner.bytes -= old.bytes;
        }
        while inner.bytes > self.budget {
            let Some(oldest) = inner.entries.iter().min_by_key(|(_, e)| e.used).map(|(key, _)| *key) else { break };
            if let Some(entry) = inner.entries.remove(&oldest) {
                inner.bytes -= entry.bytes;
            }
        }
    }
}
