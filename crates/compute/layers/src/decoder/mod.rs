//! One decoder for every language model of the Llama shape: Llama, SmolLM, Mistral, Qwen2, Qwen3 (dense and sparse), Gemma,
//! Phi-3. It generates text and is the text encoder of image models.
//!
//! It computes on the CPU, on plain values: a step of generation is so little work that making tensors would show.
//! Activations are f32. Several sequences advance in one pass, and what a sequence gets does not depend on its neighbours
//! or on how its tokens are cut into passes, bit for bit.

mod cache;
mod config;
mod experts;
mod gguf;
mod layer;
mod rope;

use candle_core::{Device, Tensor};
use kernels::Ctx;
use kernels::attention::paged::PageFormat;
use kernels::linear::Epilogue;
use runtime_base::CancelFlag;
use weights::Weights;

pub use cache::{BLOCK, KvBlock, KvCache};
pub use config::{DecoderConfig, Experts};
pub use gguf::gguf_settings;
pub use rope::Rotation;

use crate::{Linear, Result, RopeTable, backend};
use cache::Shape;
use layer::{DecoderLayer, Norm, Pass, Rotations};

/// How much of a decoder is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Everything, to generate text.
    Whole,
    /// The embedding table and the first layers, to encode text.
    Layers(usize),
}

/// A decoder of the Llama shape (Touvron et al. 2023) with the variations of [`DecoderConfig`].
pub struct Decoder {
    config: DecoderConfig,
    /// Rows are read from the mapped file as tokens need them, so the table takes no memory of its own.
    embedding: Weights,
    layers: Vec<DecoderLayer>,
    output: Option<(Norm, Linear)>,
    format: PageFormat,
    /// Where results that are tensors go.
    device: Device,
}

/// The next tokens of one sequence, in a pass that may have others.
pub struct Piece<'a> {
    /// The tokens.
    pub tokens: &'a [u32],
    /// What came before them; they are appended to it.
    pub cache: &'a mut KvCache,
    /// How many of the last tokens' logits are wanted.
    pub keep: usize,
}

impl Decoder {
    /// Reads `part` of the decoder in `weights`, whose names have no `model.` in front.
    ///
    /// # Errors
    /// A tensor is missing or has another shape, or the load was cancelled.
    pub fn new(weights: &Weights, config: DecoderConfig, part: Part) -> weights::Result<Self> {
        let device = weights.device().clone();
        let half = weights.dtype() == candle_core::DType::BF16;
        let weights = weights.to_device(&Device::Cpu);
        // Kernels know no other formats; the sums are f32 anyway.
        let weights = if half { weights } else { weights.to_dtype(candle_core::DType::F32) };
        let count = match part {
            Part::Whole => config.layers,
            Part::Layers(count) => count.min(config.layers),
        };
        let layer = |index| DecoderLayer::new(&weights.blocks().pp("layers").pp(index), &config, index);
        let layers = (0..count).map(layer).collect::<weights::Result<Vec<_>>>()?;
        let output = match part {
            Part::Layers(_) => None,
            Part::Whole => {
                let dim = config.heads.dim;
                let head = if config.tied { "embed_tokens" } else { "lm_head" };
                let norm = Norm::new(&weights.pp("norm"), dim, &config)?;
                Some((norm, Linear::new(&weights.pp(head), dim, config.vocabulary, false)?))
            }
        };
        // Rounded weights gain nothing from exact keys.
        let rounded = half || weights.stored_blocks("layers.0.mlp.down_proj.weight").is_some();
        let format = if rounded { PageFormat::F16 } else { PageFormat::F32 };
        // A flag that stopped this load must not stop later reads.
        let embedding = weights.clone().with_cancel(&CancelFlag::new()).pp("embed_tokens");
        Ok(Self { embedding, layers, output, format, device, config })
    }

    /// The configuration.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// An empty sequence that will not grow beyond `tokens`.
    pub fn sequence(&self, tokens: usize) -> KvCache {
        let stretched = self.config.stretched_rope.is_some() && tokens > self.config.stretched_from;
        let mut cache = KvCache::new();
        cache.stretched = stretched;
        cache
    }

    /// Hidden states `(1, tokens, dim)` in f32 after every loaded layer, without the final norm: `hidden_states[n]` of
    /// transformers for `n` loaded layers of more.
    ///
    /// # Errors
    /// An unknown token, cancellation between layers, or a failure of the backend.
    pub fn encode(&self, tokens: &[u32], cancel: &CancelFlag) -> Result<Tensor> {
        let mut cache = self.sequence(tokens.len());
        let hidden = self.pass(&mut [Piece { tokens, cache: &mut cache, keep: 0 }], cancel)?;
        let hidden = Tensor::from_vec(hidden, (1, tokens.len(), self.config.heads.dim), &Device::Cpu)?;
        Ok(hidden.to_device(&self.device)?)
    }

    /// Appends tokens to sequences and gives the logits of the last ones of each, `(sum of keep, vocabulary)`.
    ///
    /// # Errors
    /// As [`Self::encode`], and when the decoder was loaded without its output layer. The sequences can't be continued
    /// then.
    pub fn forward(&self, pieces: &mut [Piece<'_>], cancel: &CancelFlag) -> Result<Vec<f32>> {
        let Some((norm, head)) = &self.output else {
            return Err(backend("this decoder was loaded without its output layer").into());
        };
        let hidden = self.pass(pieces, cancel)?;
        let dim = self.config.heads.dim;
        let mut last = Vec::new();
        let mut end = 0;
        for piece in pieces.iter() {
            end += piece.tokens.len();
            last.extend_from_slice(&hidden[(end - piece.keep.min(piece.tokens.len())) * dim..end * dim]);
        }
        let rows = last.len() / dim;
        let mut logits = vec![0f32; rows * self.config.vocabulary];
        if rows == 0 {
            return Ok(logits);
        }
        let normed = norm.forward(&last).map_err(backend)?;
        let head = layer::packed(head).map_err(backend)?;
        let epilogue = Epilogue::default();
        head.forward(Ctx::global(), (&normed).into(), rows, (&mut logits).into(), &epilogue).map_err(backend)?;
        if let Some(cap) = self.config.logit_cap {
            logits.iter_mut().for_each(|logit| *logit = cap * (*logit / cap).tanh());
        }
        Ok(logits)
    }

    /// Hidden states of all tokens after the last layer, row after row.
    fn pass(&self, pieces: &mut [Piece<'_>], cancel: &CancelFlag) -> Result<Vec<f32>> {
        let (heads, dim) = (self.config.heads, self.config.heads.dim);
        let layers = self.layers.len();
        let shape = Shape { layers, kv_heads: heads.kv_heads, head_dim: heads.head_dim, format: self.format };
        let tokens: Vec<u32> = pieces.iter().flat_map(|piece| piece.tokens.iter().copied()).collect();
        let rotations = self.rotations(pieces);
        for piece in pieces.iter_mut() {
            piece.cache.grow(piece.tokens.len(), shape).map_err(backend)?;
        }
        let mut hidden = self.embed(&tokens)?;
        let mut pass = Pass { pieces, rotations, rows: tokens.len(), dim };
        for (index, layer) in self.layers.iter().enumerate() {
            cancel.check()?;
            layer.forward(index, &mut hidden, &mut pass).map_err(backend)?;
        }
        Ok(hidden)
    }

    /// The tables of a pass: each token at its own position of its own sequence.
    fn rotations(&self, pieces: &[Piece<'_>]) -> Rotations {
        let table = |stretchable: bool, plain: &Rotation| {
            let mut whole: Option<RopeTable> = None;
            for piece in pieces {
                let stretched = self.config.stretched_rope.as_ref().filter(|_| stretchable && piece.cache.stretched);
                let rotation = stretched.unwrap_or(plain);
                let positions = piece.cache.len()..piece.cache.len() + piece.tokens.len();
                let table = RopeTable::scaled(self.config.rope_style, rotation, positions);
                whole = Some(whole.map_or_else(|| table.clone(), |whole| whole.concat(&table)));
            }
            whole.unwrap_or_else(|| RopeTable::new(self.config.rope_style, &[], 0..0))
        };
        Rotations {
            whole: table(true, &self.config.rope),
            local: self.config.local_rope.as_ref().map(|local| table(false, local)),
        }
    }

    fn embed(&self, tokens: &[u32]) -> Result<Vec<f32>> {
        let shape = [self.config.vocabulary, self.config.heads.dim];
        let rows = tokens.iter().map(|token| *token as usize);
        let mut values = self.embedding.get_rows_f32(shape, "weight", rows)?;
        if self.config.embedding_scale != 1.0 {
            values.iter_mut().for_each(|value| *value *= self.config.embedding_scale);
        }
        Ok(values)
    }
}
