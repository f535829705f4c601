//! What the media and the text contract share: errors, cancellation, pictures, and where weights come from. No
//! tensor library.
//!
//! `gen-core` re-exports all of it, so media code needs no second import; checkpoint reading, layers and the text contract
//! use it directly and so build without a media crate.

mod cancel;
mod descriptor;
mod error;
mod image;
mod source;

pub use cancel::CancelFlag;
pub use descriptor::{DescriptorProblem, by_unique_id, unknown_id};
pub use error::{Error, Result};
pub use image::Image;
pub use source::{OffloadPolicy, Precision, Quant, Role, WeightsSource};
