//! The Z-Image family: descriptor, model, pipeline data and registration.

mod block;
mod config;
mod denoiser;
mod recent;
pub mod sequence;
pub mod transformer;
mod vae;

pub use block::Block;
pub use config::ZImageConfig;
pub use denoiser::{Caption, ZImageDenoiser};
pub use vae::ZImageVae;
