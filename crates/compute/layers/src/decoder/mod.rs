//! One decoder for every language model of the Llama shape: Llama, SmolLM, Mistral, Qwen2, Qwen3. It generates text and is the
//! text encoder of image models.

mod cache;
mod config;

use candle_core::{DType, Tensor};
use runtime_base::CancelFlag;
use weights::Weights;

pub use cache::KvCache;
pub use config::DecoderConfig;

use crate::{
    Activation, GatedMlp, HeadGeometry, Linear, Mask, QkvHeads, Result, RmsNorm, RopeStyle, RopeTable, attention,
};
use cache::LayerCache;

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
    output: Option<(RmsNorm, Linear)>,
}

struct DecoderLayer {
    attention_norm: RmsNorm,
    qkv: QkvHeads,
    attention_output: Linear,
    mlp_norm: RmsNorm,
    mlp: GatedMlp,
    geometry: HeadGeometry,
    window: Option<usize>,
}

impl Decoder {
    /// Reads `part` of the decoder in `weights`, whose names have no `model.` in front.
    ///
    /// # Errors
    /// A tensor is missing or has another shape, or the load was cancelled.
    pub fn new(weights: &Weights, config: DecoderConfig, part: Part) -> weights::Result<Self> {
        let count = match part {
            Part::Whole => config.layers,
            Part::Layers(count) => count.min(config.layers),
        };
        let windows = config.windows.iter().copied().chain(std::iter::repeat(None));
        let layer = |(index, window)| DecoderLayer::new(&weights.blocks().pp("layers").pp(index), &config, window);
        let layers = (0..count).zip(windows).map(layer).collect::<weights::Result<Vec<_>>>()?;
        let output = match part {
            Part::Layers(_) => None,
            Part::Whole => {
                let dim = config.heads.dim;
                let head = if config.tied { "embed_tokens" } else { "lm_head" };
                let norm = RmsNorm::new(&weights.pp("norm"), dim, config.rms_eps)?;
                Some((norm, Linear::new(&weights.pp(head), dim, config.vocabulary, false)?))
            }
        };
        // A flag that stopped this load must not stop later reads.
        let embedding = weights.clone().with_cancel(&CancelFlag::new()).pp("embed_tokens");
        Ok(Self { embedding, layers, output, config })
    }

    /// The configuration.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Hidden states `(1, tokens, dim)` in f32 after every loaded layer, without the final norm: `hidden_states[n]` of
    /// transformers for `n` loaded layers of more.
    ///
    /// # Errors
    /// An unknown token, cancellation between layers, or a failure of the backend.
    pub fn encode(&self, tokens: &[u32], cancel: &CancelFlag) -> Result<Tensor> {
        let rope = self.rope(0, tokens.len());
        let mut hidden = self.embed(tokens)?;
        for layer in &self.layers {
            cancel.check()?;
            hidden = layer.forward(&hidden, &rope, None)?;
        }
        Ok(hidden)
    }

    /// Appends `tokens` to the sequence in `cache` and gives the logits `(tokens, vocabulary)` of the last `keep` of them,
    /// in f32.
    ///
    /// # Errors
    /// As [`Self::encode`], and when the decoder was loaded without its output layer.
    pub fn forward(&self, tokens: &[u32], cache: &mut KvCache, keep: usize, cancel: &CancelFlag) -> Result<Tensor> {
        let Some((norm, head)) = &self.output else {
            return Err(crate::backend("this decoder was loaded without its output layer").into());
        };
        let rope = self.rope(cache.len(), tokens.len());
        let mut hidden = self.embed(tokens)?;
        cache.grow_to(self.layers.len());
        for (layer, cache) in self.layers.iter().zip(cache.layers_mut()) {
            cancel.check()?;
            hidden = layer.forward(&hidden, &rope, Some(cache))?;
        }
        let keep = keep.min(tokens.len());
        if keep == 0 {
            return Ok(Tensor::zeros((0, self.config.vocabulary), DType::F32, hidden.device())?);
        }
        let last = hidden.squeeze(0)?.narrow(0, tokens.len() - keep, keep)?.contiguous()?;
        Ok(head.forward(&norm.forward(&last)?)?.to_dtype(DType::F32)?)
    }

    fn rope(&self, start: usize, tokens: usize) -> RopeTable {
        RopeTable::new(RopeStyle::HalfSplit, &self.config.rope, start..start + tokens)
    }

    fn embed(&self, tokens: &[u32]) -> Result<Tensor> {
        let shape = [self.config.vocabulary, self.config.heads.dim];
        let rows = tokens.iter().map(|token| *token as usize);
        let values = self.embedding.get_rows_f32(shape, "weight", rows)?;
        Ok(Tensor::from_vec(values, (1, tokens.len(), shape[1]), self.embedding.device())?)
    }
}

impl DecoderLayer {
    fn new(weights: &Weights, config: &DecoderConfig, window: Option<usize>) -> weights::Result<Self> {
        let geometry @ HeadGeometry { dim, heads, head_dim, .. } = config.heads;
        let attention = weights.pp("self_attn");
        let norm = |weights: &Weights, dim| RmsNorm::new(weights, dim, config.rms_eps);
        let norms = match config.qk_norm {
            true => Some((norm(&attention.pp("q_norm"), head_dim)?, norm(&attention.pp("k_norm"), head_dim)?)),
            false => None,
        };
        let [q, k, v] = ["q_proj", "k_proj", "v_proj"].map(|name| attention.pp(name));
        let mlp = weights.pp("mlp");
        let [gate, up, down] = ["gate_proj", "up_proj", "down_proj"].map(|name| mlp.pp(name));
        Ok(Self {
            attention_norm: norm(&weights.pp("input_layernorm"), dim)?,
            qkv: QkvHeads::new([&q, &k, &v], config.qkv_bias, norms, geometry)?,
            attention_output: Linear::new(&attention.pp("o_proj"), heads * head_dim, dim, false)?,
            mlp_norm: norm(&weights.pp("post_attention_layernorm"), dim)?,
            mlp: GatedMlp::new(&gate, &up, &down, [dim, config.ffn], Activation::Silu)?,
            geometry,
            window,
        })
    }

    /// `hidden` is `(1, tokens, dim)`; with a cache, the tokens continue its sequence.
    fn forward(&self, hidden: &Tensor, rope: &RopeTable, cache: Option<&mut LayerCache>) -> Result<Tensor> {
        let [q, k, v] = self.qkv.forward(&self.attention_norm.forward(hidden)?, Some(rope))?;
        let (k, v) = match cache {
            Some(cache) => cache.append(&k, &v)?,
            None => (k, v),
        };
        let scale = (self.geometry.head_dim as f32).powf(-0.5);
        let mixed = attention(&q, &k, &v, scale, Mask::Causal { window: self.window })?;
        let hidden = self.attention_output.forward_onto(&mixed.flatten_from(2)?, hidden)?;
        Ok(self.mlp.forward_onto(&self.mlp_norm.forward(&hidden)?, &hidden)?)
    }
}
