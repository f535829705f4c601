//! The convolutional autoencoder of latent diffusion (Rombach et al. 2022), in the diffusers layout `AutoencoderKL`.

mod blocks;
mod config;
mod decoder;
mod encoder;

pub use config::{VaeConfig, VaeDefaults};

use candle_core::{D, DType, Tensor};
use runtime_base::CancelFlag;
use weights::Weights;

use crate::{Conv2d, ConvKind, Maps, Result};
use decoder::Decoder;
use encoder::Encoder;

/// Mean and logarithm of the variance of a latent distribution, each `(batch, latent_channels, height, width)`.
#[derive(Debug, Clone)]
pub struct Moments {
    /// Means.
    pub mean: Tensor,
    /// Logarithms of variances, within `[-30, 20]`.
    pub log_variance: Tensor,
}

/// Pictures to latents and back. Latents are the network's own, without scale and shift.
pub struct AutoencoderKl {
    config: VaeConfig,
    encoder: Option<Encoder>,
    quant: Option<Conv2d>,
    decoder: Decoder,
    post_quant: Option<Conv2d>,
}

impl AutoencoderKl {
    /// Reads every tensor that `config` tells of.
    ///
    /// # Errors
    /// A tensor is missing or has another shape.
    pub fn new(weights: &Weights, config: VaeConfig) -> weights::Result<Self> {
        let latent = config.latent_channels;
        let conv = |there: bool, name: &str, channels| {
            there.then(|| Conv2d::new(&weights.pp(name), channels, channels, ConvKind::Same(1))).transpose()
        };
        Ok(Self {
            encoder: config.encoder.then(|| Encoder::new(&weights.pp("encoder"), &config)).transpose()?,
            quant: conv(config.quant_conv, "quant_conv", 2 * latent)?,
            decoder: Decoder::new(&weights.pp("decoder"), &config)?,
            post_quant: conv(config.post_quant_conv, "post_quant_conv", latent)?,
            config,
        })
    }

    /// Its geometry.
    pub fn config(&self) -> &VaeConfig {
        &self.config
    }

    /// Pictures `(batch, 3, height, width)` in `[-1, 1]` to their latent distributions, or `None` if the checkpoint
    /// holds a decoder only. Cancel is honoured between blocks.
    ///
    /// # Errors
    /// It was cancelled, or the backend failed.
    pub fn encode(&self, pixels: &Tensor, cancel: &CancelFlag) -> Result<Option<Moments>> {
        let Some(encoder) = &self.encoder else { return Ok(None) };
        let mut moments = encoder.forward(&Maps::from_tensor(pixels)?, cancel)?;
        if let Some(quant) = &self.quant {
            moments = quant.forward(&moments)?;
        }
        let moments = moments.to_tensor()?.to_dtype(DType::F32)?.chunk(2, D::Minus(3))?;
        Ok(Some(Moments { mean: moments[0].contiguous()?, log_variance: moments[1].clamp(-30f32, 20f32)? }))
    }

    /// Latents `(batch, latent_channels, height, width)` to pictures, around `[-1, 1]` and not clamped. Cancel is
    /// honoured between blocks.
    ///
    /// # Errors
    /// It was cancelled, or the backend failed.
    pub fn decode(&self, latents: &Tensor, cancel: &CancelFlag) -> Result<Tensor> {
        let (_, _, height, width) = latents.dims4()?;
        let mut latents = Maps::with_room(latents, self.config.largest_maps(height, width))?;
        if let Some(conv) = &self.post_quant {
            latents = conv.forward(&latents)?;
        }
        Ok(self.decoder.forward(&latents, cancel)?.to_tensor()?)
    }
}
