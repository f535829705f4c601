//! Keys and values of the tokens so far.

use candle_core::{Result, Tensor};

/// Room for this many tokens is made at first; it doubles from there.
const FIRST_CAPACITY: usize = 128;

/// Keys and values of one sequence, layer by layer.
#[derive(Debug, Clone, Default)]
pub struct KvCache {
    layers: Vec<LayerCache>,
}

impl KvCache {
    /// An empty sequence.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tokens in the sequence.
    pub fn len(&self) -> usize {
        self.layers.first().map_or(0, |layer| layer.len)
    }

    /// Whether the sequence is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn grow_to(&mut self, layers: usize) {
        self.layers.resize_with(layers, LayerCache::default);
    }

    pub(super) fn layers_mut(&mut self) -> impl Iterator<Item = &mut LayerCache> {
        self.layers.iter_mut()
    }
}

/// Keys and values of one layer, `(1, capacity, kv_heads, head_dim)` each, of which `len` tokens are used.
#[derive(Debug, Clone, Default)]
pub(super) struct LayerCache {
    buffers: Option<(Tensor, Tensor)>,
    len: usize,
}

impl LayerCache {
    /// Adds tokens and gives views of all keys and values.
    pub(super) fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let tokens = k.dim(1)?;
        let len = self.len + tokens;
        let capacity = self.buffers.as_ref().map_or(Ok(0), |(k, _)| k.dim(1))?;
        if len > capacity {
            let capacity = len.next_power_of_two().max(FIRST_CAPACITY);
            let grow = |old: Option<&Tensor>, new: &Tensor| -> Result<Tensor> {
                let (batch, _, heads, dim) = new.dims4()?;
                let buffer = Tensor::zeros((batch, capacity, heads, dim), new.dtype(), new.device())?;
                if let Some(old) = old.filter(|_| self.len > 0) {
                    buffer.slice_set(&old.narrow(1, 0, self.len)?.contiguous()?, 1, 0)?;
                }
                Ok(buffer)
            };
            let old = self.buffers.as_ref();
            self.buffers = Some((grow(old.map(|b| &b.0), k)?, grow(old.map(|b| &b.1), v)?));
        }
        let Some((keys, values)) = &self.buffers else {
            return Ok((k.clone(), v.clone()));
        };
        keys.slice_set(&k.contiguous()?, 1, self.len)?;
        values.slice_set(&v.contiguous()?, 1, self.len)?;
        self.len = len;
        Ok((keys.narrow(1, 0, len)?, values.narrow(1, 0, len)?))
    }
}
