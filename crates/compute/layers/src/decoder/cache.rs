//! Keys and values of the tokens so far, in blocks that sequences can share.

use std::sync::Arc;

use kernels::Result;
use kernels::attention::paged::{PAGE, Page, PageFormat};

/// Tokens of a block.
pub const BLOCK: usize = PAGE;

/// Keys and values of [`BLOCK`] tokens in every layer. Never written to while it is shared.
#[derive(Clone)]
pub struct KvBlock {
    layers: Vec<Page>,
}

/// Sizes of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) layers: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) format: PageFormat,
}

/// Keys and values of one sequence.
#[derive(Clone, Default)]
pub struct KvCache {
    blocks: Vec<Arc<KvBlock>>,
    len: usize,
    /// Whether its positions are stretched for a context longer than the model was first trained for.
    pub(super) stretched: bool,
}

impl KvCache {
    /// An empty sequence.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tokens in the sequence.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the sequence is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether its positions are those of sequences beyond the context that the model was first trained for.
    pub fn is_stretched(&self) -> bool {
        self.stretched
    }

    /// Forgets all tokens from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.blocks.truncate(self.len.div_ceil(BLOCK));
    }

    /// The blocks that are full, in order.
    pub fn full_blocks(&self) -> &[Arc<KvBlock>] {
        &self.blocks[..self.len / BLOCK]
    }

    /// Continues a sequence that is empty so far from full blocks of another one with the same beginning.
    pub fn reuse(&mut self, blocks: Vec<Arc<KvBlock>>) {
        if self.is_empty() {
            self.len = blocks.len() * BLOCK;
            self.blocks = blocks;
        }
    }

    /// Makes room for `tokens` more and makes sure that nobody else sees what is written there.
    pub(super) fn grow(&mut self, tokens: usize, shape: Shape) -> Result<()> {
        let len = self.len + tokens;
        if tokens > 0
            && !self.len.is_multiple_of(BLOCK)
            && let Some(last) = self.blocks.last_mut()
        {
            Arc::make_mut(last);
        }
        while self.blocks.len() < len.div_ceil(BLOCK) {
            let page = || Page::new(shape.format, shape.kv_heads, shape.head_dim);
            let layers = (0..shape.layers).map(|_| page()).collect::<Result<_>>()?;
            self.blocks.push(Arc::new(KvBlock { layers }));
        }
        self.len = len;
        Ok(())
    }

    /// Writes one layer's keys and values of the last tokens: `kv` gives those of each of them.
    pub(super) fn write<'a>(
        &mut self,
        layer: usize,
        tokens: usize,
        kv: impl Fn(usize) -> (&'a [f32], &'a [f32]),
    ) -> Result<()> {
        for token in 0..tokens {
            let at = self.len - tokens + token;
            let (k, v) = kv(token);
            // `grow` has made the block this sequence's own.
            let block = self.blocks.get_mut(at / BLOCK).and_then(Arc::get_mut);
            if let Some(page) = block.and_then(|block| block.layers.get_mut(layer)) {
                page.put(at % BLOCK, k, v)?;
            }
        }
        Ok(())
    }

    pub(super) fn pages(&self, layer: usize) -> Vec<&Page> {
        self.blocks.iter().filter_map(|block| block.layers.get(layer)).collect()
    }
}
