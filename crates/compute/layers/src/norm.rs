//! RMS, layer and group norm. Statistics are taken in f32 whatever the type of the input.

use candle_core::{D, DType, Result, Tensor};
use kernels::norm::{Modulation, Norm as Kernel, NormKind};
use weights::Weights;

use crate::cpu;

/// `y = (norm(x) * weight + bias) * (1 + scale) + shift` over the last dimension.
struct Norm {
    kind: NormKind,
    dim: usize,
    eps: f32,
    weight: Option<Vec<f32>>,
    bias: Option<Vec<f32>>,
    dtype: DType,
}

impl Norm {
    /// `scale` and `shift` are `(batch, dim)` or `(batch, 1, dim)`, for an `x` of `(batch, …, dim)`.
    fn forward(&self, x: &Tensor, scale: Option<&Tensor>, shift: Option<&Tensor>) -> Result<Tensor> {
        if !cpu::serves_tensor("norm", x) || !matches!(self.dtype, DType::F32 | DType::BF16) {
            return self.forward_candle(x, scale, shift);
        }
        let host = |t: Option<&Tensor>| t.map(cpu::vector).transpose();
        let (scale, shift) = (host(scale)?, host(shift)?);
        let groups = scale.as_ref().or(shift.as_ref()).map_or(1, |v| v.len() / self.dim.max(1)).max(1);
        let rows = (x.elem_count() / self.dim.max(1)).div_ceil(groups).max(1);
        let modulation = (scale.is_some() || shift.is_some()).then_some(Modulation {
            scale: scale.as_deref(),
            shift: shift.as_deref(),
            rows,
        });
        let kernel = Kernel {
            kind: self.kind,
            eps: self.eps,
            weight: self.weight.as_deref(),
            bias: self.bias.as_deref(),
            modulation,
        };
        cpu::compute(&[x], x.shape(), self.dtype, |v, out| kernel.forward(kernels::Ctx::global(), v[0], self.dim, out))
    }

    fn forward_candle(&self, x: &Tensor, scale: Option<&Tensor>, shift: Option<&Tensor>) -> Result<Tensor> {
        let vector = |v: &[f32]| Tensor::new(v, x.device());
        let mut y = x.to_dtype(DType::F32)?;
        if self.kind == NormKind::Layer {
            y = y.broadcast_sub(&y.mean_keepdim(D::Minus1)?)?;
        }
        let variance = y.sqr()?.mean_keepdim(D::Minus1)?;
        y = y.broadcast_div(&(variance + f64::from(self.eps))?.sqrt()?)?;
        if let Some(weight) = &self.weight {
            y = y.broadcast_mul(&vector(weight)?)?;
        }
        if let Some(bias) = &self.bias {
            y = y.broadcast_add(&vector(bias)?)?;
        }
        // (batch, dim) to (batch, 1, …, dim)
        let spread = |t: &Tensor| {
            let mut shape = vec![1; x.rank()];
            (shape[0], shape[x.rank() - 1]) = (t.elem_count() / self.dim, self.dim);
            t.to_dtype(DType::F32)?.reshape(shape)
        };
        if let Some(scale) = scale {
            y = y.broadcast_mul(&(spread(scale)? + 1.0)?)?;
        }
        if let Some(shift) = shift {
            y = y.broadcast_add(&spread(shift)?)?;
        }
        y.to_dtype(self.dtype)
    }
}

/// RMS norm over the last dimension (Zhang and Sennrich 2019). Its output has the type that the weights compute in, so a
/// residual stream may be kept in f32.
pub struct RmsNorm(Norm);

impl RmsNorm {
    /// Reads `weight`, of `dim` elements.
    ///
    /// # Errors
    /// The tensor is missing or has another shape.
    pub fn new(weights: &Weights, dim: usize, eps: f64) -> weights::Result<Self> {
        let weight = Some(weights.get_f32_vec(&[dim], "weight")?);
        let kind = NormKind::Rms;
        Ok(Self(Norm { kind, dim, eps: eps as f32, weight, bias: None, dtype: weights.dtype() }))
    }

    /// Normalises `(…, dim)`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.forward(x, None, None)
    }

    /// `norm(x) * (1 + scale)` for `x` of `(batch, …, dim)` and `scale` of `(batch, dim)`.
    pub fn forward_scaled(&self, x: &Tensor, scale: &Tensor) -> Result<Tensor> {
        self.0.forward(x, Some(scale), None)
    }

    pub(crate) fn weight(&self) -> &[f32] {
        self.0.weight.as_deref().unwrap_or_default()
    }

    pub(crate) fn eps(&self) -> f32 {
        self.0.eps
    }
}

/// Layer norm over the last dimension (Ba, Kiros and Hinton 2016), with the output's type as for [`RmsNorm`].
pub struct LayerNorm(Norm);

impl LayerNorm {
    /// Reads `weight` and `bias`, of `dim` elements each.
    ///
    /// # Errors
    /// A tensor is missing or has another shape.
    pub fn new(weights: &Weights, dim: usize, eps: f64) -> weights::Result<Self> {
        let weight = Some(weights.get_f32_vec(&[dim], "weight")?);
        let bias = Some(weights.get_f32_vec(&[dim], "bias")?);
        Ok(Self(Norm { kind: NormKind::Layer, dim, eps: eps as f32, weight, bias, dtype: weights.dtype() }))
    }

    /// Without weights, as in front of a modulation.
    pub fn plain(dim: usize, eps: f64, dtype: DType) -> Self {
        Self(Norm { kind: NormKind::Layer, dim, eps: eps as f32, weight: None, bias: None, dtype })
    }

    /// Normalises `(…, dim)`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.forward(x, None, None)
    }

    /// `norm(x) * (1 + scale) + shift` for `x` of `(batch, …, dim)`; `scale` and `shift` are `(batch, dim)`.
    pub fn forward_modulated(&self, x: &Tensor, scale: &Tensor, shift: Option<&Tensor>) -> Result<Tensor> {
        self.0.forward(x, Some(scale), shift)
    }
}
