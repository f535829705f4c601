//! Activation functions.

use candle_core::{Result, Tensor};

use crate::cpu;

/// A function applied to every element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)` (Elfwing, Uchibe and Doya 2018).
    Silu,
    /// GELU with the error function (Hendrycks and Gimpel 2016).
    Gelu,
    /// GELU in its tanh form.
    GeluTanh,
    /// `x * sigmoid(1.702 x)`, as CLIP has it.
    QuickGelu,
}

impl Activation {
    /// Applies it.
    pub fn forward(self, x: &Tensor) -> Result<Tensor> {
        if !cpu::serves_tensor("activation", x) {
            return self.forward_candle(x);
        }
        cpu::compute(&[x], x.shape(), x.dtype(), |v, mut out| {
            let ctx = kernels::Ctx::global();
            kernels::elementwise::convert(ctx, v[0], cpu::reborrow(&mut out))?;
            kernels::elementwise::activate(ctx, out, self.into());
            Ok(())
        })
    }

    pub(crate) fn forward_candle(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Silu => x.silu(),
            Self::Gelu => x.gelu_erf(),
            Self::GeluTanh => x.gelu(),
            Self::QuickGelu => x * candle_nn::ops::sigmoid(&(x * 1.702)?)?,
        }
    }
}

impl From<Activation> for kernels::linear::Activation {
    fn from(activation: Activation) -> Self {
        match activation {
            Activation::Silu => Self::Silu,
            Activation::Gelu => Self::GeluErf,
            Activation::GeluTanh => Self::GeluTanh,
            Activation::QuickGelu => Self::QuickGelu,
        }
    }
}
