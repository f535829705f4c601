//! Convolution and group norm of feature maps.

use candle_core::{DType, Result, Tensor, bail};
use kernels::Ctx;
use kernels::conv::{Conv2d as Kernel, ConvEpilogue, ConvShape, GroupNorm as GroupNormKernel};
use kernels::linear::WeightFormat;
use weights::Weights;

use crate::error::backend;
use crate::{Activation, Maps, cpu};

/// Size and step of a convolution. Zeros are put around maps as far as each kind says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConvKind {
    /// An odd kernel of that size that keeps the size of the maps: zeros on every side.
    Same(usize),
    /// 3x3 in steps of two, with zeros below and to the right, as encoders halve maps.
    Halve,
    /// 3x3 on maps whose sides were doubled by repeating each value, as decoders double them.
    Double,
}

/// 2D convolution with a bias.
pub struct Conv2d {
    storage: Storage,
    kind: ConvKind,
}

enum Storage {
    /// Packed for the CPU kernels.
    Packed(Kernel),
    /// Weights `(outputs, inputs, kernel, kernel)` and bias for Candle.
    Plain(Tensor, Tensor),
}

impl Conv2d {
    /// Reads `weight` `(outputs, inputs, kernel, kernel)` and `bias` `(outputs)`.
    ///
    /// # Errors
    /// A tensor is missing or has another shape.
    pub fn new(weights: &Weights, inputs: usize, outputs: usize, kind: ConvKind) -> weights::Result<Self> {
        let size = if let ConvKind::Same(size) = kind { size } else { 3 };
        let (shape, dtype) = ([outputs, inputs, size, size], weights.dtype());
        let packs = cpu::serves(weights.device(), dtype) && matches!(size, 1 | 3) && !weights.is_dry_run();
        if !packs {
            // Candle convolves f32 only on the CPU.
            let dtype = if weights.device().is_cpu() { DType::F32 } else { dtype };
            let read = |shape: &[usize], name| weights.get_dtype(shape, name, dtype);
            let storage = Storage::Plain(read(&shape, "weight")?, read(&[outputs], "bias")?);
            return Ok(Self { storage, kind });
        }
        let format = if dtype == DType::BF16 { WeightFormat::Bf16 } else { WeightFormat::F32 };
        let (weight, bias) = (weights.get_f32_vec(&shape, "weight")?, weights.get_f32_vec(&[outputs], "bias")?);
        let (weight, bias) = ((&weight).into(), Some((&bias).into()));
        let geometry = |stride, before, after| ConvShape { inputs, outputs, kernel: size, stride, before, after };
        let layer = match kind {
            ConvKind::Same(_) => Kernel::new(Ctx::global(), format, geometry(1, size / 2, size / 2), weight, bias),
            ConvKind::Halve => Kernel::new(Ctx::global(), format, geometry(2, 0, 1), weight, bias),
            ConvKind::Double => Kernel::upsampled(Ctx::global(), format, inputs, outputs, weight, bias),
        };
        Ok(Self { storage: Storage::Packed(layer.map_err(backend)?), kind })
    }

    /// Convolves maps of `inputs` channels to maps of `outputs` channels.
    pub fn forward(&self, x: &Maps) -> Result<Maps> {
        self.run(x, None)
    }

    /// `onto + forward(x)`.
    pub fn forward_onto(&self, x: &Maps, onto: &Maps) -> Result<Maps> {
        self.run(x, Some(onto))
    }

    fn run(&self, x: &Maps, onto: Option<&Maps>) -> Result<Maps> {
        if let Storage::Packed(layer) = &self.storage {
            let residual = onto.and_then(Maps::image);
            let epilogue = ConvEpilogue { residual, ..ConvEpilogue::default() };
            if let Some(done) = x.compute(|x, out| layer.forward(Ctx::global(), x, out, epilogue)) {
                return done;
            }
        }
        let Storage::Plain(weight, bias) = &self.storage else {
            bail!(
                "feature maps on {:?} on a convolution that was packed for the CPU",
                x.to_tensor()?.device().location()
            );
        };
        let y = self.forward_candle(&x.to_tensor()?, weight, bias)?;
        match onto {
            Some(onto) => x.like(&(onto.to_tensor()? + y)?),
            None => x.like(&y),
        }
    }

    fn forward_candle(&self, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
        cpu::note("conv2d", x);
        let dtype = x.dtype();
        let x = x.to_dtype(weight.dtype())?;
        let (_, _, height, width) = x.dims4()?;
        let (x, padding, stride) = match self.kind {
            ConvKind::Same(size) => (x, size / 2, 1),
            ConvKind::Halve => (x.pad_with_zeros(2, 0, 1)?.pad_with_zeros(3, 0, 1)?, 0, 2),
            ConvKind::Double => (x.upsample_nearest2d(2 * height, 2 * width)?, 1, 1),
        };
        let y = x.contiguous()?.conv2d(weight, padding, stride, 1, 1)?;
        y.broadcast_add(&bias.reshape((1, bias.elem_count(), 1, 1))?)?.to_dtype(dtype)
    }
}

/// Group norm (Wu and He 2018); statistics in f32.
pub struct GroupNorm {
    weight: Vec<f32>,
    bias: Vec<f32>,
    groups: usize,
    eps: f64,
}

impl GroupNorm {
    /// Reads `weight` and `bias`, of `channels` elements each.
    ///
    /// # Errors
    /// A tensor is missing or has another shape, or the channels can't be grouped.
    pub fn new(weights: &Weights, groups: usize, channels: usize, eps: f64) -> weights::Result<Self> {
        if groups == 0 || !channels.is_multiple_of(groups) {
            let message = format!("{channels} channels can't be normalised in {groups} groups");
            return Err(runtime_base::Error::weights(weights.checkpoint().path(), message));
        }
        let (weight, bias) = (weights.get_f32_vec(&[channels], "weight")?, weights.get_f32_vec(&[channels], "bias")?);
        Ok(Self { weight, bias, groups, eps })
    }

    /// Normalises over each group's channels and places, then applies the activation if given.
    pub fn forward(&self, x: &Maps, activation: Option<Activation>) -> Result<Maps> {
        let kernel = GroupNormKernel {
            groups: self.groups,
            eps: self.eps as f32,
            weight: &self.weight,
            bias: &self.bias,
            activation: activation.map(Into::into).unwrap_or_default(),
        };
        if let Some(done) = x.compute(|x, out| kernel.forward(Ctx::global(), x, out)) {
            return done;
        }
        x.like(&self.forward_candle(&x.to_tensor()?, activation)?)
    }

    fn forward_candle(&self, x: &Tensor, activation: Option<Activation>) -> Result<Tensor> {
        cpu::note("group norm", x);
        let (batch, channels) = (x.dim(0)?, x.dim(1)?);
        if channels != self.weight.len() {
            bail!("a group norm of {} channels got {:?}", self.weight.len(), x.shape());
        }
        let grouped = x.to_dtype(DType::F32)?.reshape((batch, self.groups, ()))?;
        let centred = grouped.broadcast_sub(&grouped.mean_keepdim(2)?)?;
        let scale = (centred.sqr()?.mean_keepdim(2)? + self.eps)?.sqrt()?;
        let y = centred.broadcast_div(&scale)?.reshape((batch, channels, ()))?;
        let column = |values: &[f32]| Tensor::from_slice(values, (1, channels, 1), x.device());
        let y = y.broadcast_mul(&column(&self.weight)?)?.broadcast_add(&column(&self.bias)?)?;
        let y = y.to_dtype(x.dtype())?.reshape(x.shape())?;
        activation.map_or(Ok(y.clone()), |activation| activation.forward_candle(&y))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{noise, relative_error};

    fn kernel_and_plain(kind: ConvKind, size: usize, inputs: usize, outputs: usize) -> [Conv2d; 2] {
        let (weight, bias) = (noise(&[outputs, inputs, size, size], 1), noise(&[outputs], 2));
        let values = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let (w, b) = (values(&weight), values(&bias));
        let (w, b, ctx, format) = ((&w).into(), Some((&b).into()), Ctx::global(), WeightFormat::F32);
        let geometry = |stride, before, after| ConvShape { inputs, outputs, kernel: size, stride, before, after };
        let layer = match kind {
            ConvKind::Same(_) => Kernel::new(ctx, format, geometry(1, size / 2, size / 2), w, b),
            ConvKind::Halve => Kernel::new(ctx, format, geometry(2, 0, 1), w, b),
            ConvKind::Double => Kernel::upsampled(ctx, format, inputs, outputs, w, b),
        };
        [Storage::Packed(layer.unwrap()), Storage::Plain(weight, bias)].map(|storage| Conv2d { storage, kind })
    }

    #[test]
    fn kernel_and_candle_convolve_alike() {
        let x = noise(&[2, 5, 6, 8], 3);
        for (kind, size) in
            [(ConvKind::Same(1), 1), (ConvKind::Same(3), 3), (ConvKind::Halve, 3), (ConvKind::Double, 3)]
        {
            let [kernel, plain] = kernel_and_plain(kind, size, 5, 7);
            let maps = Maps::from_tensor(&x).unwrap();
            let (got, want) = (kernel.forward(&maps).unwrap(), plain.forward(&maps).unwrap());
            assert_eq!(got.dims().unwrap(), want.dims().unwrap());
            assert!(relative_error(&got.to_tensor().unwrap(), &want.to_tensor().unwrap()) < 1e-5, "{kind:?}");
            let onto = Maps::from_tensor(&noise(&got.dims().unwrap(), 4)).unwrap();
            let got = kernel.forward_onto(&maps, &onto).unwrap().to_tensor().unwrap();
            let want = plain.forward_onto(&maps, &onto).unwrap().to_tensor().unwrap();
            assert!(relative_error(&got, &want) < 1e-5, "{kind:?} with a sum");
        }
    }

    #[test]
    fn kernel_and_candle_normalise_alike() {
        let x = noise(&[2, 6, 3, 5], 1).affine(3.0, 2.0).unwrap();
        let vector = |seed| noise(&[6], seed).to_vec1().unwrap();
        let norm = GroupNorm { weight: vector(2), bias: vector(3), groups: 2, eps: 1e-6 };
        for activation in [None, Some(Activation::Silu)] {
            let got = norm.forward(&Maps::from_tensor(&x).unwrap(), activation).unwrap().to_tensor().unwrap();
            assert!(relative_error(&got, &norm.forward_candle(&x, activation).unwrap()) < 1e-5);
        }
        let wrong = Maps::from_tensor(&noise(&[1, 4, 2, 2], 1)).unwrap();
        assert!(norm.forward(&wrong, None).is_err());
    }
}
