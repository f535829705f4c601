//! Fast CPU kernels over plain slices, chosen at run time by instruction set; knows shapes, not models.

mod ctx;
mod error;
pub mod isa;
pub mod linear;
mod math;
mod memory;
pub mod pool;
mod simd;
mod values;

pub use ctx::Ctx;
pub use error::{KernelError, Result};
pub use isa::Isa;
pub use pool::Pool;
pub use values::{Values, ValuesMut};
