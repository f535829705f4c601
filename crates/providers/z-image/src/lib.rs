//! The Z-Image family: descriptor, model, pipeline data and registration.

pub mod bench;
mod block;
mod config;
mod denoiser;
mod descriptor;
mod locate;
mod model;
mod recent;
pub mod sequence;
mod text;
pub mod transformer;
mod vae;

pub use block::Block;
pub use config::ZImageConfig;
pub use denoiser::{Caption, ZImageDenoiser};
pub use descriptor::{FAMILY, provider_registry, register_providers, z_image, z_image_turbo};
pub use model::ZImageModel;
pub use text::{Chat, MAX_TOKENS, ZImageTextEncoder};
pub use vae::ZImageVae;
