//! The transformer block: attention and feed-forward, each between two norms, with or without modulation by the time.

use candle_core::{D, Tensor};
use layers::{Activation, GatedMlp, HeadGeometry, Linear, Mask, QkvHeads, Result, RmsNorm, RopeTable, attention};
use weights::Weights;

use crate::ZImageConfig;

/// Epsilon of the norms of query and key heads.
const HEAD_EPS: f64 = 1e-5;

/// One block. Its input and output is the residual stream, `(batch, tokens, dim)` in f32.
pub struct Block {
    attention_norm1: RmsNorm,
    qkv: QkvHeads,
    out: Linear,
    attention_norm2: RmsNorm,
    ffn_norm1: RmsNorm,
    feed_forward: GatedMlp,
    ffn_norm2: RmsNorm,
    modulation: Option<Linear>,
    scale: f32,
}

/// What the time makes of a block: scales in front of attention and feed-forward, gates behind them.
struct Modulation {
    attention_scale: Tensor,
    attention_gate: Tensor,
    ffn_scale: Tensor,
    ffn_gate: Tensor,
}

impl Block {
    /// Reads a block; `modulated` says whether the time has a say in it.
    pub(crate) fn new(weights: &Weights, config: &ZImageConfig, modulated: bool) -> gen_core::Result<Self> {
        let (dim, eps) = (config.dim, config.norm_eps);
        let attention = weights.pp("attention");
        let norm = |name: &str| RmsNorm::new(&weights.pp(name), dim, eps);
        let head_norm = |name: &str| RmsNorm::new(&attention.pp(name), config.head_dim, HEAD_EPS);
        let [q, k, v] = ["to_q", "to_k", "to_v"].map(|name| attention.pp(name));
        let [w1, w2, w3] = ["w1", "w2", "w3"].map(|name| weights.pp("feed_forward").pp(name));
        let geometry = HeadGeometry { dim, heads: config.heads, kv_heads: config.kv_heads, head_dim: config.head_dim };
        let modulation = || Linear::new(&weights.pp("adaLN_modulation.0"), config.modulation_dim, 4 * dim, true);
        Ok(Self {
            attention_norm1: norm("attention_norm1")?,
            qkv: QkvHeads::new([&q, &k, &v], false, Some((head_norm("norm_q")?, head_norm("norm_k")?)), geometry)?,
            out: Linear::new(&attention.pp("to_out.0"), config.heads * config.head_dim, dim, false)?,
            attention_norm2: norm("attention_norm2")?,
            ffn_norm1: norm("ffn_norm1")?,
            feed_forward: GatedMlp::new(&w1, &w3, &w2, [dim, config.ffn_dim], Activation::Silu)?,
            ffn_norm2: norm("ffn_norm2")?,
            modulation: modulated.then(modulation).transpose()?,
            scale: 1.0 / (config.head_dim as f32).sqrt(),
        })
    }

    /// `x` is `(batch, tokens, dim)`, `time` the time embedding `(batch, modulation_dim)` for a modulated block.
    pub fn forward(&self, x: &Tensor, rope: &RopeTable, time: Option<&Tensor>) -> Result<Tensor> {
        let modulation = match (&self.modulation, time) {
            (Some(linear), Some(time)) => Some(Modulation::new(&linear.forward(time)?)?),
            _ => None,
        };
        let scale = |x: &Tensor, norm: &RmsNorm, scale: Option<&Tensor>| match scale {
            Some(scale) => norm.forward_scaled(x, scale),
            None => norm.forward(x),
        };
        let m = modulation.as_ref();
        let h = scale(x, &self.attention_norm1, m.map(|m| &m.attention_scale))?;
        let h = self.attend(&h, rope)?;
        let x = self.attention_norm2.forward_onto(&h, m.map(|m| &m.attention_gate), x)?;
        let h = scale(&x, &self.ffn_norm1, m.map(|m| &m.ffn_scale))?;
        let h = self.feed_forward.forward(&h)?;
        Ok(self.ffn_norm2.forward_onto(&h, m.map(|m| &m.ffn_gate), &x)?)
    }

    /// The attention alone, on normalised hidden states.
    pub fn attend(&self, h: &Tensor, rope: &RopeTable) -> Result<Tensor> {
        let [q, k, v] = self.qkv.forward(h, Some(rope))?;
        Ok(self.out.forward(&attention(&q, &k, &v, self.scale, Mask::None)?.flatten_from(D::Minus2)?)?)
    }
}

impl Modulation {
    /// `all` is `(batch, 4 dim)`.
    fn new(all: &Tensor) -> Result<Self> {
        let parts = all.chunk(4, D::Minus1)?;
        Ok(Self {
            attention_scale: parts[0].clone(),
            attention_gate: parts[1].tanh()?,
            ffn_scale: parts[2].clone(),
            ffn_gate: parts[3].tanh()?,
        })
    }
}
