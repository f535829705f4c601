//! Building blocks that models are written in: linear, norms, rope, attention, convolution, VAE blocks, text encoders.
//!
//! A model is written once, on Candle tensors, in the words of this crate. On the CPU the blocks run on the kernels of
//! `kernels`; where none serves, on Candle's own operations, which is counted by [`fallbacks`] and logged with target
//! `kernels` at debug level. Elsewhere they are Candle's.
//!
//! # Number formats
//!
//! Weights have one compute type, [`Weights::dtype`](weights::Weights::dtype). [`Linear`] gives its input's type, norms
//! give the compute type whatever their input. So a residual stream may be f32 while everything between a norm and the
//! sum is bf16: `x = linear.forward_onto(&norm.forward(&x)?, &x)?`.

mod activation;
mod attention;
mod conv;
mod cpu;
pub mod decoder;
mod embedding;
mod error;
mod heads;
mod linear;
mod maps;
mod norm;
mod rope;
#[cfg(test)]
mod testing;
pub mod text;
pub mod vae;
mod wide_attention;

pub use activation::Activation;
pub use attention::{Mask, attention};
pub use conv::{Conv2d, ConvKind, GroupNorm};
pub use cpu::{best_cpu_precision, fallbacks};
pub use embedding::timestep_embedding;
pub use error::{Error, Result, backend};
pub use heads::{HeadGeometry, QkvHeads};
pub use linear::{GatedMlp, Linear};
pub use maps::Maps;
pub use norm::{LayerNorm, RmsNorm};
pub use rope::{RopeStyle, RopeTable, norm_rope};
