//! The network.

use crate::BertConfig;
use candle_core::{DType, Tensor};
use gen_core::{CancelFlag, Error, Result};
use layers::{Activation, LayerNorm, Linear, Mask, attention};
use weights::Weights;

/// A BERT encoder: hidden states of one text at a time, so that they don't depend on its neighbours.
pub struct BertEncoder {
    words: Tensor,
    /// `(positions, dim)`, with the first segment's embedding added.
    places: Tensor,
    norm: LayerNorm,
    blocks: Vec<Block>,
}

struct Block {
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    attention_norm: LayerNorm,
    up: Linear,
    down: Linear,
    norm: LayerNorm,
    heads: usize,
    activation: Activation,
}

fn failed(error: candle_core::Error) -> Error {
    Error::Backend(error.to_string())
}

impl BertEncoder {
    /// Reads the weights.
    ///
    /// # Errors
    /// A tensor is missing or has another shape.
    pub fn new(weights: &Weights, config: &BertConfig) -> Result<Self> {
        let BertConfig { dim, positions, vocabulary, segments, eps, .. } = *config;
        let embeddings = weights.pp("embeddings");
        let words = embeddings.get_dtype(&[vocabulary, dim], "word_embeddings.weight", DType::F32)?;
        let places = embeddings.get_dtype(&[positions, dim], "position_embeddings.weight", DType::F32)?;
        let segments = embeddings.get_dtype(&[segments, dim], "token_type_embeddings.weight", DType::F32)?;
        let places = segments.narrow(0, 0, 1).and_then(|first| places.broadcast_add(&first)).map_err(failed)?;
        let norm = LayerNorm::new(&embeddings.pp("LayerNorm"), dim, eps)?;
        let block = |index| Block::new(&weights.pp("encoder.layer").pp(index), config);
        let blocks: Result<Vec<_>> = (0..config.layers).map(block).collect();
        Ok(Self { words, places, norm, blocks: blocks? })
    }

    /// The hidden states `(1, tokens, dim)` after the last block.
    ///
    /// # Errors
    /// A token is unknown, there are more than positions, or cancelled.
    pub fn forward(&self, tokens: &[u32], cancel: &CancelFlag) -> Result<Tensor> {
        let embed = || {
            let ids = Tensor::new(tokens, self.words.device())?;
            let words = self.words.index_select(&ids, 0)?;
            let x = (words + self.places.narrow(0, 0, tokens.len())?)?.unsqueeze(0)?;
            self.norm.forward(&x)
        };
        let mut x = embed().map_err(failed)?;
        for block in &self.blocks {
            cancel.check()?;
            x = block.forward(&x).map_err(failed)?;
        }
        Ok(x)
    }
}

impl Block {
    fn new(weights: &Weights, config: &BertConfig) -> Result<Self> {
        let BertConfig { dim, inner, heads, eps, activation, .. } = *config;
        let attention = weights.pp("attention");
        let part = |name: &str| Linear::new(&attention.pp(name), dim, dim, true);
        Ok(Self {
            query: part("self.query")?,
            key: part("self.key")?,
            value: part("self.value")?,
            out: part("output.dense")?,
            attention_norm: LayerNorm::new(&attention.pp("output.LayerNorm"), dim, eps)?,
            up: Linear::new(&weights.pp("intermediate.dense"), dim, inner, true)?,
            down: Linear::new(&weights.pp("output.dense"), inner, dim, true)?,
            norm: LayerNorm::new(&weights.pp("output.LayerNorm"), dim, eps)?,
            heads,
            activation,
        })
    }

    /// Norms come after each part, as the first transformers had them.
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let (batch, tokens, dim) = x.dims3()?;
        let head_dim = dim / self.heads;
        let heads = |linear: &Linear| linear.forward(x)?.reshape((batch, tokens, self.heads, head_dim));
        let (q, k, v) = (heads(&self.query)?, heads(&self.key)?, heads(&self.value)?);
        let mixed = attention(&q, &k, &v, 1.0 / (head_dim as f32).sqrt(), Mask::None)?.reshape((batch, tokens, dim))?;
        let x = self.attention_norm.forward(&(self.out.forward(&mixed)? + x)?)?;
        let inner = self.activation.forward(&self.up.forward(&x)?)?;
        self.norm.forward(&(self.down.forward(&inner)? + &x)?)
    }
}
