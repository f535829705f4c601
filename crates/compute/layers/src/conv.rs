//! Convolution, group norm and upsampling of pictures, `(batch, channels, height, width)`.

use candle_core::{DType, Result, Tensor, bail};
use weights::Weights;

use crate::{Activation, cpu};

/// Where zeros are put around a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    /// That many rows and columns on every side.
    Same(usize),
    /// One row below and one column to the right, as in front of the halving convolutions of an encoder.
    BottomRight,
}

/// 2D convolution with a bias.
pub struct Conv2d {
    weight: Tensor,
    bias: Tensor,
    stride: usize,
    padding: Padding,
}

impl Conv2d {
    /// Reads `weight` `(outputs, inputs, kernel, kernel)` and `bias` `(outputs)`.
    ///
    /// # Errors
    /// A tensor is missing or has another shape.
    pub fn new(
        weights: &Weights,
        inputs: usize,
        outputs: usize,
        kernel: usize,
        stride: usize,
        padding: Padding,
    ) -> weights::Result<Self> {
        // Candle convolves f32 only on the CPU.
        let dtype = if weights.device().is_cpu() { DType::F32 } else { weights.dtype() };
        let weight = weights.get_dtype(&[outputs, inputs, kernel, kernel], "weight", dtype)?;
        Ok(Self { weight, bias: weights.get_dtype(&[outputs], "bias", dtype)?, stride, padding })
    }

    /// A convolution that keeps the size: an odd `kernel`, zeros all around.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn same(weights: &Weights, inputs: usize, outputs: usize, kernel: usize) -> weights::Result<Self> {
        Self::new(weights, inputs, outputs, kernel, 1, Padding::Same(kernel / 2))
    }

    /// `(batch, inputs, height, width)` to `(batch, outputs, …)`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        cpu::note("conv2d", x);
        let (x, padding) = match self.padding {
            Padding::Same(padding) => (x.clone(), padding),
            Padding::BottomRight => (x.pad_with_zeros(2, 0, 1)?.pad_with_zeros(3, 0, 1)?, 0),
        };
        let dtype = x.dtype();
        let x = x.to_dtype(self.weight.dtype())?.contiguous()?;
        let y = x.conv2d(&self.weight, padding, self.stride, 1, 1)?;
        y.broadcast_add(&self.bias.reshape((1, self.bias.elem_count(), 1, 1))?)?.to_dtype(dtype)
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

    /// Normalises `(batch, channels, …)` over each group's channels and places, then applies the activation if given.
    pub fn forward(&self, x: &Tensor, activation: Option<Activation>) -> Result<Tensor> {
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
        activation.map_or(Ok(y.clone()), |activation| activation.forward(&y))
    }
}

/// Doubles the sides of a picture by repeating each pixel.
pub fn upsample_nearest_2x(x: &Tensor) -> Result<Tensor> {
    let (_, _, height, width) = x.dims4()?;
    x.upsample_nearest2d(2 * height, 2 * width)
}
