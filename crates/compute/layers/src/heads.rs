//! Queries, keys and values of a self-attention block, from one product.

use candle_core::{Result, Tensor};
use kernels::linear::Epilogue;
use kernels::rope::Heads;
use weights::Weights;

use crate::rope::{in_place, norm_rope};
use crate::{Linear, RmsNorm, RopeTable, cpu};

/// Sizes of an attention block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadGeometry {
    /// Width of the hidden states.
    pub dim: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

/// The projections to queries, keys and values, the norms of query and key heads, and their rotation.
pub struct QkvHeads {
    projection: Linear,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    geometry: HeadGeometry,
}

impl QkvHeads {
    /// Reads the projections, each from its own view; `norms` are those of query and key heads, where a model has them.
    ///
    /// # Errors
    /// A tensor is missing or has another shape.
    pub fn new(
        [q, k, v]: [&Weights; 3],
        bias: bool,
        norms: Option<(RmsNorm, RmsNorm)>,
        geometry: HeadGeometry,
    ) -> weights::Result<Self> {
        let HeadGeometry { dim, heads, kv_heads, head_dim } = geometry;
        let parts = [(q, heads * head_dim), (k, kv_heads * head_dim), (v, kv_heads * head_dim)];
        let (q_norm, k_norm) = norms.unzip();
        Ok(Self { projection: Linear::fused(&parts, dim, bias)?, q_norm, k_norm, geometry })
    }

    /// `(batch, tokens, dim)` to queries `(batch, tokens, heads, head_dim)`, keys and values `(batch, tokens, kv_heads,
    /// head_dim)`. All three are views of one tensor.
    pub fn forward(&self, x: &Tensor, rope: Option<&RopeTable>) -> Result<[Tensor; 3]> {
        let HeadGeometry { heads, kv_heads, head_dim, .. } = self.geometry;
        let (batch, tokens, _) = x.dims3()?;
        let all = heads + 2 * kv_heads;
        let split = |qkv: &Tensor| -> Result<[Tensor; 3]> {
            let part = |first, count| qkv.narrow(2, first, count);
            Ok([part(0, heads)?, part(heads, kv_heads)?, part(heads + kv_heads, kv_heads)?])
        };
        let fits = rope.is_none_or(|rope| rope.fits(tokens, head_dim));
        let Some(layer) = self.projection.packed().filter(|_| fits && cpu::serves(x.device(), x.dtype())) else {
            let qkv = self.projection.forward(x)?.reshape((batch, tokens, all, head_dim))?;
            let [q, k, v] = split(&qkv)?;
            return Ok([norm_rope(&q, self.q_norm.as_ref(), rope)?, norm_rope(&k, self.k_norm.as_ref(), rope)?, v]);
        };
        let rows = batch * tokens;
        let qkv = cpu::compute(&[x], (batch, tokens, all, head_dim), x.dtype(), |v, mut out| {
            layer.forward(kernels::Ctx::global(), v[0], rows, cpu::reborrow(&mut out), &Epilogue::default())?;
            let part = |first: usize, heads: usize| Heads {
                rows,
                heads,
                head_dim,
                row_stride: all * head_dim,
                offset: first * head_dim,
            };
            in_place(cpu::reborrow(&mut out), part(0, heads), self.q_norm.as_ref(), rope)?;
            in_place(out, part(heads, kv_heads), self.k_norm.as_ref(), rope)
        })?;
        split(&qkv)
    }
}
