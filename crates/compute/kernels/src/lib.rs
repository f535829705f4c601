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
//! Several weights on one input (q, k, v) are one layer: push their rows one after the other.

pub mod attention;
pub mod conv;
mod ctx;
pub mod elementwise;
mod error;
pub mod isa;
pub mod linear;
mod math;
mod memory;
pub mod norm;
pub mod pool;
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
pub use values::{Values, ValuesMut};
