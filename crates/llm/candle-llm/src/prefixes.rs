//! Beginnings of conversations that were computed already, block by block.

use layers::decoder::{BLOCK, KvBlock};
use std::collections::HashMap;
use std::sync::Arc;

/// Blocks that are kept: a few long conversations.
const MOST: usize = 256;
/// Parents of the first blocks, by whether positions are stretched.
const ROOTS: [u64; 2] = [0, 1];

/// Blocks of keys and values by the tokens that they stand for and the block before them.
pub(crate) struct Prefixes {
    blocks: HashMap<(u64, Vec<u32>), Entry>,
    next_id: u64,
    clock: u64,
}

struct Entry {
    id: u64,
    block: Arc<KvBlock>,
    used: u64,
}

impl Default for Prefixes {
    fn default() -> Self {
        Self { blocks: HashMap::new(), next_id: 2, clock: 0 }
    }
}

impl Prefixes {
    /// The blocks that `tokens` begin with; at least one token is left over, whose logits are wanted.
    pub(crate) fn find(&mut self, tokens: &[u32], stretched: bool) -> Vec<Arc<KvBlock>> {
        self.clock += 1;
        let mut parent = ROOTS[usize::from(stretched)];
        let mut found = Vec::new();
        for tokens in tokens[..tokens.len().saturating_sub(1)].chunks_exact(BLOCK) {
            let Some(entry) = self.blocks.get_mut(&(parent, tokens.to_vec())) else { break };
            entry.used = self.clock;
            parent = entry.id;
            found.push(Arc::clone(&entry.block));
        }
        found
    }

    /// Keeps full blocks of `tokens`; those that were not used for longest make room.
    pub(crate) fn keep(&mut self, tokens: &[u32], stretched: bool, blocks: &[Arc<KvBlock>]) {
        self.clock += 1;
        let mut parent = ROOTS[usize::from(stretched)];
        for (tokens, block) in tokens.chunks_exact(BLOCK).zip(blocks).take(MOST) {
            let (next, used) = (self.next_id, self.clock);
            let new = || Entry { id: next, block: Arc::clone(block), used };
            let entry = self.blocks.entry((parent, tokens.to_vec())).or_insert_with(new);
            entry.used = used;
            parent = entry.id;
            self.next_id += u64::from(parent == next);
        }
        if self.blocks.len() > MOST {
            let mut used: Vec<u64> = self.blocks.values().map(|entry| entry.used).collect();
            used.sort_unstable();
            let oldest_kept = used[self.blocks.len() - MOST];
            self.blocks.retain(|_, entry| entry.used >= oldest_kept);
        }
    }
}
