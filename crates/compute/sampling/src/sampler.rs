//! Samplers: how a prediction moves the latents from one sigma to the next.

use gen_core::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A sampler by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SamplerKind {
    /// First-order steps along the probability flow (Liu et al. 2022 for rectified flow).
    #[default]
    Euler,
}

impl SamplerKind {
    /// Every sampler.
    pub const ALL: [Self; 1] = [Self::Euler];

    /// The name used in requests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Euler => "euler",
        }
    }

    /// Moves `sample` from `sigma` to `next` along `velocity`, in `f32` as the reference scheduler does.
    pub(crate) fn step(self, sample: &mut [f32], velocity: &[f32], sigma: f32, next: f32) {
        match self {
            Self::Euler => {
                let dt = next - sigma;
                for (x, v) in sample.iter_mut().zip(velocity) {
                    *x += dt * v;
                }
            }
        }
    }
}

impl fmt::Display for SamplerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SamplerKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|kind| kind.as_str()).collect();
            Error::invalid("sampler", format!("'{name}' is not a sampler; use one of {}", known.join(", ")))
        })
    }
}
