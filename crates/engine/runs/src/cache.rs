//! Outputs of nodes, kept in memory within a budget, and on disk beyond it.

use crate::disk_cache::DiskCache;
use crate::meter;
use engine_graph::{NodeCache, NodeKey, Outputs, ValidNode};
use engine_nodes::value_bytes;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a value counts as beside its bytes.
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

/// Keeps the outputs that were used last. Loaded models are not kept: they have a host of their own.
pub struct Cache {
    budget: usize,
    inner: Mutex<Inner>,
    disk: Option<DiskCache>,
}

impl Cache {
    /// A cache of at most `budget` bytes of memory, before one on disk.
    pub fn new(budget: usize, disk: Option<DiskCache>) -> Self {
        Self { budget, inner: Mutex::default(), disk }
    }

    /// Bytes in memory and on disk.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.lock().bytes as u64, self.disk.as_ref().map_or(0, DiskCache::bytes))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get_from_memory(&self, key: &NodeKey) -> Option<Arc<Outputs>> {
        let mut inner = self.lock();
        inner.clock += 1;
        let clock = inner.clock;
        let entry = inner.entries.get_mut(key)?;
        entry.used = clock;
        Some(Arc::clone(&entry.outputs))
    }

    fn put_into_memory(&self, key: &NodeKey, outputs: &Arc<Outputs>) {
        let Some(bytes) = size(outputs).filter(|bytes| *bytes <= self.budget) else { return };
        let mut inner = self.lock();
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

/// Bytes of outputs, or `None` for those that aren't kept.
fn size(outputs: &Outputs) -> Option<usize> {
    outputs.iter().map(|(_, value)| Some(value_bytes(value)? + SMALL)).sum()
}

impl NodeCache for Cache {
    fn get(&self, key: &NodeKey, node: &ValidNode) -> Option<Arc<Outputs>> {
        if let Some(outputs) = self.get_from_memory(key) {
            meter::cache_lookup("memory");
            return Some(outputs);
        }
        let disk = self.disk.as_ref().filter(|_| is_worth_a_file(node));
        let Some(outputs) = disk.and_then(|disk| disk.get(key)).map(Arc::new) else {
            meter::cache_lookup("miss");
            return None;
        };
        meter::cache_lookup("disk");
        self.put_into_memory(key, &outputs);
        Some(outputs)
    }

    fn put(&self, key: &NodeKey, node: &ValidNode, outputs: &Arc<Outputs>) {
        self.put_into_memory(key, outputs);
        if let Some(disk) = self.disk.as_ref().filter(|_| is_worth_a_file(node)) {
            disk.put(key, outputs);
        }
    }
}

/// A node without inputs only repeats what its params or a file say.
fn is_worth_a_file(node: &ValidNode) -> bool {
    !node.inputs().is_empty()
}
