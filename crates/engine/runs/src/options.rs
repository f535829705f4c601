//! What an operator can set.

/// How an engine works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// Runs in work at a time.
    pub workers: usize,
    /// Bytes of node outputs kept in memory.
    pub memory_cache: usize,
    /// Bytes of node outputs kept on disk; 0 for none.
    pub disk_cache: u64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { workers: 2, memory_cache: 256 << 20, disk_cache: 2 << 30 }
    }
}
