//! RMS, layer and group norm. Statistics are taken in f32 whatever the type of the input.

use candle_core::{D, DType, Result, Tensor, bail};
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
        if let Some(scale) = scale {
            y = y.broadcast_mul(&(self.spread(scale, x.rank())? + 1.0)?)?;
        }
        if let Some(shift) = shift {
            y = y.broadcast_add(&self.spread(shift, x.rank())?)?;
        }
        y.to_dtype(self.dtype)
    }

    /// `(batch, dim)` to `(batch, 1, …, dim)`.
    fn spread(&self, t: &Tensor, rank: usize) -> Result<Tensor> {
        let mut shape = vec![1; rank];
        (shape[0], shape[rank - 1]) = (t.elem_count() / self.dim, self.dim);
        t.to_dtype(DType::F32)?.reshape(shape)
    }
}

fn product((a, b): (&f32, &f32)) -> f32 {
    a * b
}

/// RMS norm over the last dimension (Zhang and Sennrich 2019). Its output has the type that the weights compute in,
/// so a residual stream may be kept in f32.
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

    /// `onto + gate * norm(x)`, in the type of `onto`; `x` and `onto` are `(batch, …, dim)`, `gate` is `(batch, dim)`
    /// or 1.
    pub fn forward_onto(&self, x: &Tensor, gate: Option<&Tensor>, onto: &Tensor) -> Result<Tensor> {
        if x.dims() != onto.dims() {
            bail!("a norm gives {:?}, which can't be added to {:?}", x.shape(), onto.shape());
        }
        let kernels = [x, onto].iter().all(|x| cpu::serves_tensor("norm", x));
        if kernels { self.add_kernel(x, gate, onto) } else { self.add_candle(x, gate, onto) }
    }

    fn add_kernel(&self, x: &Tensor, gate: Option<&Tensor>, onto: &Tensor) -> Result<Tensor> {
        let dim = self.0.dim.max(1);
        // The gate goes into the weight, a row of the batch at a time.
        let weights: Vec<f32> = match gate {
            None => self.weight().to_vec(),
            Some(gate) => {
                cpu::vector(gate)?.chunks(dim).flat_map(|g| g.iter().zip(self.weight()).map(product)).collect()
            }
        };
        let groups = weights.len() / dim;
        let rows = (x.elem_count() / dim).div_ceil(groups.max(1));
        cpu::compute(&[x, onto], onto.shape(), onto.dtype(), |v, mut out| {
            let ctx = kernels::Ctx::global();
            for (group, weight) in weights.chunks(dim).enumerate() {
                let range = group * rows * dim..(group + 1) * rows * dim;
                let norm =
                    Kernel { kind: NormKind::Rms, eps: self.0.eps, weight: Some(weight), bias: None, modulation: None };
                norm.forward(ctx, cpu::slice(v[0], range.clone()), dim, cpu::slice_mut(&mut out, range))?;
            }
            kernels::elementwise::add(ctx, v[1], None, dim, out)
        })
    }

    fn add_candle(&self, x: &Tensor, gate: Option<&Tensor>, onto: &Tensor) -> Result<Tensor> {
        let mut y = self.0.forward_candle(x, None, None)?.to_dtype(DType::F32)?;
        if let Some(gate) = gate {
            y = y.broadcast_mul(&self.0.spread(gate, x.rank())?)?;
        }
        onto + y.to_dtype(onto.dtype())?
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{noise, relative_error};
    use candle_core::Device;

    fn rms(dim: usize, dtype: DType) -> RmsNorm {
        let weight = Some(noise(&[dim], 9).to_vec1().unwrap());
        RmsNorm(Norm { kind: NormKind::Rms, dim, eps: 1e-5, weight, bias: None, dtype })
    }

    #[test]
    fn kernels_and_candle_agree_for_each_row_of_a_batch() {
        let (x, scale, shift) = (noise(&[3, 5, 24], 1), noise(&[3, 24], 2), noise(&[3, 1, 24], 3));
        let (norm, layer) = (rms(24, DType::F32), LayerNorm::plain(24, 1e-6, DType::F32));
        for (norm, scale, shift) in
            [(&norm.0, None, None), (&norm.0, Some(&scale), None), (&layer.0, Some(&scale), Some(&shift))]
        {
            let got = norm.forward(&x, scale, shift).unwrap();
            let want = norm.forward_candle(&x, scale, shift).unwrap();
            assert!(relative_error(&got, &want) < 1e-6);
        }
        let onto = noise(&[3, 5, 24], 4);
        for gate in [None, Some(&scale)] {
            let got = norm.add_kernel(&x, gate, &onto).unwrap();
            let want = norm.add_candle(&x, gate, &onto).unwrap();
            assert!(relative_error(&got, &want) < 1e-6);
        }
        assert!(norm.forward_onto(&x, None, &noise(&[3, 4, 24], 4)).is_err());
    }

    #[test]
    fn the_output_has_the_compute_type_and_a_residual_keeps_its_own() {
        let (x, onto) = (noise(&[1, 2, 8], 1), noise(&[1, 2, 8], 2));
        let norm = rms(8, DType::BF16);
        let y = norm.forward(&x).unwrap();
        assert_eq!(y.dtype(), DType::BF16);
        assert_eq!(norm.forward_onto(&y, None, &onto).unwrap().dtype(), DType::F32);
        let half = rms(8, DType::F16).forward(&x.to_dtype(DType::F16).unwrap()).unwrap();
        assert_eq!(half.dtype(), DType::F16);
        assert!(relative_error(&half, &rms(8, DType::F32).forward(&x).unwrap()) < 2e-3);
        let empty = Tensor::zeros((1, 0, 8), DType::F32, &Device::Cpu).unwrap();
        assert_eq!(norm.forward(&empty).unwrap().dims(), [1, 0, 8]);
    }
}
