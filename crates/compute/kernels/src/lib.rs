//! Fast CPU kernels over plain slices, chosen at run time by instruction set; knows shapes, not models.
//!
//! # What everything has in common
//!
//! - A [`Ctx`] says what to run with: an [`Isa`] and a [`Pool`]. [`Ctx::global`] is the process's own, from the CPU, from
//!   `INLINE_CPU_ISA` (`amx`, `avx512bf16`, `avx512`, `avx2`, `neon`, `scalar`) and from `INLINE_THREADS`; [`Ctx::new`]
//!   is an explicit choice.
//! - Inputs are [`Values`], outputs [`ValuesMut`]: row-major slices of f32 or bf16, made by `into()`. Sums are f32.
//! - Sizes are checked first; what does not fit is a [`KernelError`], and nothing has been written then.
//! - Results are the same for any number of threads, and a row's result does not depend on the other rows of a call, bit
//!   for bit. They differ between instruction sets, within rounding.
//! - Scratch is kept per thread and reused, so a loop of equal calls allocates once.
//!
//! # Linear layers
//!
//! ```
//! use kernels::linear::{Activation, Epilogue, Gate, PackedLinear, PackedLinearBuilder, Residual, WeightFormat};
//! # fn main() -> kernels::Result<()> {
//! let ctx = kernels::Ctx::global();
//! let (outputs, inputs, rows) = (64, 96, 3);
//!
//! // Weights are (outputs, inputs), pushed in pieces of whole rows as they are read, and packed at once.
//! let mut builder = PackedLinearBuilder::new(WeightFormat::Bf16, outputs, inputs)?;
//! for piece in vec![0.5f32; outputs * inputs].chunks(16 * inputs) {
//!     builder.push(ctx, piece.into())?;
//! }
//! let layer = builder.finish()?.with_bias((&vec![1f32; outputs]).into())?;
//!
//! // y = residual + gate * activation(x W^T + b), one gate row per `rows` consecutive rows.
//! let (x, gate) = (vec![1f32; rows * inputs], vec![2f32; outputs]);
//! let mut y = vec![10f32; rows * outputs];
//! let epilogue = Epilogue {
//!     gate: Some(Gate { values: &gate, rows }),
//!     residual: Residual::InPlace,
//!     ..Epilogue::default()
//! };
//! layer.forward(ctx, (&x).into(), rows, (&mut y).into(), &epilogue)?;
//! assert_eq!(y[0], 10.0 + 2.0 * (48.0 + 1.0));
//!
//! // SwiGLU's first two matrices as one layer: silu(x W1^T) * (x W3^T).
//! let w = vec![0.25f32; outputs * inputs];
//! let pair = PackedLinear::gated(ctx, WeightFormat::Bf16, (&w).into(), (&w).into(), outputs, inputs)?;
//! pair.forward(ctx, (&x).into(), rows, (&mut y).into(), &Epilogue::activation(Activation::Silu))?;
//! # Ok(())
//! # }
//! ```
//!
//! Several weights on one input (q, k, v) are one layer: push their rows one after the other. Weights are kept as
//! [`linear::WeightFormat`] says: f32, bf16, int8 (rounded as they are pushed), or blocks of a GGUF file, which
//! [`PackedLinearBuilder::push_blocks`](linear::PackedLinearBuilder::push_blocks) takes as they are in the file.
//! [`PackedLinear::copy_row`](linear::PackedLinear::copy_row) reads a row back, for embeddings tied to an output layer.
//!
//! # Attention, norms, rotary embedding
//!
//! ```
//! use kernels::attention::{Attention, View};
//! use kernels::norm::Norm;
//! use kernels::rope::{HeadNorm, Heads, Rope, RopeStyle, norm_rope};
//! # fn main() -> kernels::Result<()> {
//! let ctx = kernels::Ctx::global();
//! let (tokens, heads, head_dim) = (5, 2, 8);
//! let dim = heads * head_dim;
//!
//! let mut x = vec![2f32; tokens * dim];
//! Norm::rms(1e-6).weight(&vec![1f32; dim]).in_place(ctx, (&mut x).into(), dim)?;
//!
//! // One buffer of (tokens, 3, heads, head_dim) as a fused layer writes it; q is normalised and rotated within it.
//! let mut qkv: Vec<f32> = (0..3).flat_map(|_| x.clone()).collect();
//! let q = Heads { rows: tokens, heads, head_dim, row_stride: 3 * dim, offset: 0 };
//! let (cos, sin) = (vec![1f32; tokens * head_dim / 2], vec![0f32; tokens * head_dim / 2]);
//! let style = RopeStyle::Interleaved;
//! let rope = Rope { cos: &cos, sin: &sin, positions: tokens, rotated: head_dim, style };
//! let norm = HeadNorm { weight: &vec![1f32; head_dim], eps: 1e-6 };
//! norm_rope(ctx, (&mut qkv).into(), q, Some(norm), Some(rope))?;
//!
//! // Attention reads q, k and v where they are; strides say how.
//! let view = |part: usize| View { offset: part * dim, batch: 0, head: head_dim, token: 3 * dim };
//! let mut out = vec![0f32; tokens * dim];
//! let to = View::tokens_first(heads, tokens, head_dim);
//! let from = |part| ((&qkv).into(), view(part));
//! Attention::full(1, heads, tokens, head_dim).forward(ctx, from(0), from(1), from(2), ((&mut out).into(), to))?;
//! assert!((out[0] - 1.0).abs() < 1e-5);
//! # Ok(())
//! # }
//! ```
//!
//! [`attention::Attention`] also has grouped heads, a causal cut and masks; bf16 on AMX and AVX512-BF16 multiplies bf16, all else f32.
//! [`norm::Norm`] has bias, scale and shift by groups of rows; [`elementwise`] has activations, softmax, gated sums and
//! conversions.
//!
//! # Convolution
//!
//! ```
//! use kernels::conv::{Conv2d, ConvEpilogue, ConvShape, GroupNorm, Image, ImageShape};
//! use kernels::linear::{Activation, WeightFormat};
//! # fn main() -> kernels::Result<()> {
//! let ctx = kernels::Ctx::global();
//! let shape = ImageShape { batch: 1, height: 6, width: 5, channels: 4 };
//! let image = Image::from_nchw(ctx, (&vec![1f32; shape.elements()]).into(), shape, true)?;
//!
//! // Images stay in one layout, bf16 or f32, through a network; outputs take the shape they need and keep their memory.
//! let (mut a, mut b) = (Image::empty(true), Image::empty(true));
//! let (ones, zeros) = (vec![1f32; 4], vec![0f32; 4]);
//! let norm = GroupNorm { groups: 2, eps: 1e-6, weight: &ones, bias: &zeros, activation: Activation::Silu };
//! norm.forward(ctx, &image, &mut a)?;
//! let weights = vec![0.1f32; 4 * 4 * 9];
//! let conv = Conv2d::new(ctx, WeightFormat::Bf16, ConvShape::same3(4, 4), (&weights).into(), None)?;
//! conv.forward(ctx, &a, &mut b, ConvEpilogue { residual: Some(&image), ..ConvEpilogue::default() })?;
//! let up = Conv2d::upsampled(ctx, WeightFormat::Bf16, 4, 4, (&weights).into(), None)?;
//! up.forward(ctx, &b, &mut a, ConvEpilogue::default())?;
//! let mut pixels = vec![0f32; a.shape().elements()];
//! a.to_nchw(ctx, (&mut pixels).into())?;
//! assert_eq!((a.shape().height, a.shape().width), (12, 10));
//! # Ok(())
//! # }
//! ```

// Elsewhere than on x86-64 parts that only its kernels use lie idle.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_imports))]

pub mod attention;
pub mod bench;
pub mod conv;
mod ctx;
#[cfg(target_arch = "x86_64")]
mod dots;
pub mod elementwise;
mod error;
pub mod isa;
pub mod linear;
mod math;
mod memory;
pub mod norm;
pub mod pool;
mod recycle;
pub mod rope;
mod simd;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod transpose;
mod values;

pub use ctx::Ctx;
pub use error::{KernelError, Result};
pub use isa::Isa;
pub use pool::Pool;
pub use recycle::{Recycler, unwritten};
pub use values::{Values, ValuesMut};
