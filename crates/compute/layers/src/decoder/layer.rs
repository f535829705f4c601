//! A layer of the decoder, on the rows of all sequences of a pass.

use kernels::attention::paged::{PagedAttention, Sequence};
use kernels::linear::{Epilogue, PackedLinear, Residual};
use kernels::rope::{HeadNorm, Heads, norm_rope};
use kernels::{Ctx, KernelError, Result};
use weights::Weights;

use super::config::DecoderConfig;
use super::experts::SparseMlp;
use super::{KvCache, Piece};
use crate::{GatedMlp, HeadGeometry, Linear, RopeTable};

/// What the layers of a pass share.
pub(super) struct Pass<'a, 'b> {
    pub(super) pieces: &'a mut [Piece<'b>],
    pub(super) rotations: Rotations,
    pub(super) rows: usize,
    pub(super) dim: usize,
}

/// Rotations of every row of a pass.
pub(super) struct Rotations {
    pub(super) whole: RopeTable,
    /// Those of layers with a window, where they differ.
    pub(super) local: Option<RopeTable>,
}

/// RMS norm.
pub(super) struct Norm {
    weight: Vec<f32>,
    eps: f32,
}

impl Norm {
    pub(super) fn new(weights: &Weights, dim: usize, config: &DecoderConfig) -> weights::Result<Self> {
        let mut weight = weights.get_f32_vec(&[dim], "weight")?;
        weight.iter_mut().for_each(|weight| *weight += config.norm_offset);
        Ok(Self { weight, eps: config.rms_eps as f32 })
    }

    pub(super) fn forward(&self, x: &[f32]) -> Result<Vec<f32>> {
        let mut y = vec![0f32; x.len()];
        let norm = kernels::norm::Norm::rms(self.eps).weight(&self.weight);
        norm.forward(Ctx::global(), x.into(), self.weight.len(), (&mut y).into())?;
        Ok(y)
    }

    fn of_heads(&self) -> HeadNorm<'_> {
        HeadNorm { weight: &self.weight, eps: self.eps }
    }
}

/// The packed weights of a layer, which there are but for a rehearsal.
pub(super) fn packed(linear: &Linear) -> Result<&PackedLinear> {
    linear.packed().ok_or_else(unpacked)
}

pub(super) fn unpacked() -> KernelError {
    KernelError::Shape { what: "decoder", why: "it was only rehearsed, not loaded".into() }
}

/// Runs a linear layer on rows, and adds to `out` or writes it.
pub(super) fn multiply(layer: &PackedLinear, x: &[f32], rows: usize, out: &mut [f32], onto: bool) -> Result<()> {
    let residual = if onto { Residual::InPlace } else { Residual::None };
    layer.forward(Ctx::global(), x.into(), rows, out.into(), &Epilogue { residual, ..Epilogue::default() })
}

/// Queries, keys and values: one matrix where they are held alike, else one each.
struct Qkv {
    parts: Vec<Linear>,
    outputs: usize,
}

impl Qkv {
    fn new(attention: &Weights, config: &DecoderConfig) -> weights::Result<Self> {
        let HeadGeometry { dim, heads, kv_heads, head_dim } = config.heads;
        let outputs = (heads + 2 * kv_heads) * head_dim;
        if config.fused {
            let all = Linear::new(&attention.pp("qkv_proj"), dim, outputs, config.qkv_bias)?;
            return Ok(Self { parts: vec![all], outputs });
        }
        let views = ["q_proj", "k_proj", "v_proj"].map(|name| attention.pp(name));
        let rows = [heads, kv_heads, kv_heads].map(|heads| heads * head_dim);
        let stored: Vec<_> = views.iter().map(|view| view.stored_blocks("weight")).collect();
        let parts: Vec<_> = views.iter().zip(rows).collect();
        let parts = if stored.iter().all(|format| *format == stored[0]) {
            vec![Linear::fused(&parts, dim, config.qkv_bias)?]
        } else {
            let each = |(view, rows)| Linear::new(view, dim, rows, config.qkv_bias);
            parts.into_iter().map(each).collect::<weights::Result<_>>()?
        };
        Ok(Self { parts, outputs })
    }

    fn forward(&self, x: &[f32], rows: usize) -> Result<Vec<f32>> {
        let mut out = vec![0f32; rows * self.outputs];
        if let [all] = self.parts.as_slice() {
            multiply(packed(all)?, x, rows, &mut out, false)?;
            return Ok(out);
        }
        let mut start = 0;
        for part in &self.parts {
            let width = part.outputs();
            let mut own = vec![0f32; rows * width];
            multiply(packed(part)?, x, rows, &mut own, false)?;
            for (to, from) in out.chunks_exact_mut(self.outputs).zip(own.chunks_exact(width)) {
                to[start..start + width].copy_from_slice(from);
            }
            start += width;
        }
        Ok(out)
    }
}

enum Mlp {
    Dense(GatedMlp),
    Sparse(SparseMlp),
}

/// A layer.
pub(super) struct DecoderLayer {
    attention_norm: Norm,
    qkv: Qkv,
    head_norms: Option<(Norm, Norm)>,
    attention_output: Linear,
    after_attention: Option<Norm>,
    mlp_norm: Norm,
    mlp: Mlp,
    after_mlp: Option<Norm>,
    attention: PagedAttention,
}

impl DecoderLayer {
    pub(super) fn new(weights: &Weights, config: &DecoderConfig, index: usize) -> weights::Result<Self> {
        let HeadGeometry { dim, heads, kv_heads, head_dim } = config.heads;
        let attention = weights.pp("self_attn");
        let norm = |weights: &Weights, dim| Norm::new(weights, dim, config);
        let head_norms = match config.qk_norm {
            true => Some((norm(&attention.pp("q_norm"), head_dim)?, norm(&attention.pp("k_norm"), head_dim)?)),
            false => None,
        };
        let (after_attention, before_mlp, after_mlp) = if config.four_norms {
            let after = norm(&weights.pp("post_attention_layernorm"), dim)?;
            (Some(after), "pre_feedforward_layernorm", Some(norm(&weights.pp("post_feedforward_layernorm"), dim)?))
        } else {
            (None, "post_attention_layernorm", None)
        };
        let window = config.windows.get(index).copied().flatten();
        let (scale, soft_cap) = (config.attention_scale, config.attention_cap);
        Ok(Self {
            attention_norm: norm(&weights.pp("input_layernorm"), dim)?,
            qkv: Qkv::new(&attention, config)?,
            head_norms,
            attention_output: Linear::new(&attention.pp("o_proj"), heads * head_dim, dim, config.output_bias)?,
            after_attention,
            mlp_norm: norm(&weights.pp(before_mlp), dim)?,
            mlp: Self::mlp(&weights.pp("mlp"), config)?,
            after_mlp,
            attention: PagedAttention { heads, kv_heads, head_dim, scale, window, soft_cap },
        })
    }

    fn mlp(mlp: &Weights, config: &DecoderConfig) -> weights::Result<Mlp> {
        let (sizes, activation) = ([config.heads.dim, config.ffn], config.activation);
        if let Some(experts) = config.experts.filter(|_| mlp.contains("gate.weight")) {
            return SparseMlp::new(mlp, config.heads.dim, experts, activation).map(Mlp::Sparse);
        }
        let down = mlp.pp("down_proj");
        let dense = if mlp.contains("gate_up_proj.weight") {
            GatedMlp::fused(&mlp.pp("gate_up_proj"), &down, sizes, activation)
        } else {
            GatedMlp::new(&mlp.pp("gate_proj"), &mlp.pp("up_proj"), &down, sizes, activation)
        };
        dense.map(Mlp::Dense)
    }

    /// Advances every row of `hidden`; `index` is the layer's place in the caches.
    pub(super) fn forward(&self, index: usize, hidden: &mut [f32], pass: &mut Pass<'_, '_>) -> Result<()> {
        let rows = pass.rows;
        let mixed = self.mix(index, &self.attention_norm.forward(hidden)?, pass)?;
        add(packed(&self.attention_output)?, &mixed, rows, hidden, self.after_attention.as_ref())?;
        let normed = self.mlp_norm.forward(hidden)?;
        match &self.mlp {
            Mlp::Dense(mlp) => {
                let (pair, down, activation) = mlp.packed().ok_or_else(unpacked)?;
                let mut inner = vec![0f32; rows * pair.outputs()];
                let epilogue = Epilogue::activation(activation.into());
                pair.forward(Ctx::global(), (&normed).into(), rows, (&mut inner).into(), &epilogue)?;
                add(down, &inner, rows, hidden, self.after_mlp.as_ref())
            }
            Mlp::Sparse(mlp) => mlp.add_to(&normed, pass.dim, hidden),
        }
    }

    /// Attention of the rows with what their sequences hold.
    fn mix(&self, index: usize, x: &[f32], pass: &mut Pass<'_, '_>) -> Result<Vec<f32>> {
        let PagedAttention { heads, kv_heads, head_dim, .. } = self.attention;
        let (rows, stride) = (pass.rows, self.qkv.outputs);
        let mut qkv = self.qkv.forward(x, rows)?;
        let local = pass.rotations.local.as_ref().filter(|_| self.attention.window.is_some());
        let rope = local.unwrap_or(&pass.rotations.whole);
        let (q_norm, k_norm) = self.head_norms.as_ref().map(|(q, k)| (q.of_heads(), k.of_heads())).unzip();
        for (first, heads, norm) in [(0, heads, q_norm), (heads, kv_heads, k_norm)] {
            let part = Heads { rows, heads, head_dim, row_stride: stride, offset: first * head_dim };
            norm_rope(Ctx::global(), (&mut qkv).into(), part, norm, Some(rope.kernel()))?;
        }
        let (keys, width) = (heads * head_dim, kv_heads * head_dim);
        let mut first = 0;
        for piece in pass.pieces.iter_mut() {
            let tokens = piece.tokens.len();
            piece.cache.write(index, tokens, |token| {
                let row = &qkv[(first + token) * stride..][..stride];
                (&row[keys..keys + width], &row[keys + width..])
            })?;
            first += tokens;
        }
        let mut first = 0;
        let sequence = |piece: &Piece<'_>| {
            let (cache, rows): (&KvCache, usize) = (piece.cache, piece.tokens.len());
            first += rows;
            (cache.len(), first - rows, rows)
        };
        let places: Vec<_> = pass.pieces.iter().map(sequence).collect();
        let sequences: Vec<Sequence<'_>> = pass
            .pieces
            .iter()
            .zip(places)
            .map(|(piece, (tokens, first, rows))| Sequence { pages: piece.cache.pages(index), tokens, first, rows })
            .collect();
        let mut out = vec![0f32; rows * keys];
        self.attention.forward(Ctx::global(), &qkv, stride, &sequences, &mut out)?;
        Ok(out)
    }
}

/// `hidden += norm(layer(x))`.
fn add(layer: &PackedLinear, x: &[f32], rows: usize, hidden: &mut [f32], norm: Option<&Norm>) -> Result<()> {
    let Some(norm) = norm else { return multiply(layer, x, rows, hidden, true) };
    let mut out = vec![0f32; hidden.len()];
    multiply(layer, x, rows, &mut out, false)?;
    hidden.iter_mut().zip(norm.forward(&out)?).for_each(|(hidden, out)| *hidden += out);
    Ok(())
}
