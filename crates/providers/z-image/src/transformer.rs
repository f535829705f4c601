//! The diffusion network of Z-Image (Z-Image team 2025, "Z-Image: An Efficient Image Generation Foundation Model with
//! Single-Stream Diffusion Transformer"), as diffusers' `ZImageTransformer2DModel` computes it.

use candle_core::{DType, Device, Tensor};
use gen_core::CancelFlag;
use layers::{Activation, LayerNorm, Linear, Result, RmsNorm, RopeTable, timestep_embedding};
use weights::Weights;

use crate::ZImageConfig;
use crate::block::Block;
use crate::sequence::{pad, padded, patchify, unpatchify};

/// Epsilon of the last norm.
const FINAL_EPS: f64 = 1e-6;
const MAX_PERIOD: f64 = 10_000.0;

/// Image tokens and caption tokens, refined apart, then one stream of blocks over both.
pub struct ZImageTransformer {
    config: ZImageConfig,
    time_in: Linear,
    time_out: Linear,
    caption_norm: RmsNorm,
    caption_embedder: Linear,
    caption_pad: Tensor,
    context_refiner: Vec<Block>,
    image_embedder: Linear,
    image_pad: Tensor,
    noise_refiner: Vec<Block>,
    layers: Vec<Block>,
    final_norm: LayerNorm,
    final_modulation: Linear,
    final_linear: Linear,
    device: Device,
}

impl ZImageTransformer {
    /// Reads every tensor that `config` tells of, under diffusers' names.
    ///
    /// # Errors
    /// A tensor is missing or has another shape, or the load was cancelled.
    pub fn new(weights: &Weights, config: ZImageConfig) -> gen_core::Result<Self> {
        let ZImageConfig { dim, caption_dim, modulation_dim, time_hidden, .. } = config;
        let blocks = |name: &str, count: usize, modulated: bool| {
            let block = |i| Block::new(&weights.blocks().pp(name).pp(i), &config, modulated);
            (0..count).map(block).collect::<gen_core::Result<Vec<_>>>()
        };
        let patch_key = format!("{}-1", config.patch);
        let last = weights.pp("all_final_layer").pp(&patch_key);
        Ok(Self {
            time_in: Linear::new(&weights.pp("t_embedder.mlp.0"), config.time_frequencies, time_hidden, true)?,
            time_out: Linear::new(&weights.pp("t_embedder.mlp.2"), time_hidden, modulation_dim, true)?,
            caption_norm: RmsNorm::new(&weights.pp("cap_embedder.0"), caption_dim, config.norm_eps)?,
            caption_embedder: Linear::new(&weights.pp("cap_embedder.1"), caption_dim, dim, true)?,
            caption_pad: weights.get(&[1, dim], "cap_pad_token")?,
            context_refiner: blocks("context_refiner", config.refiner_layers, false)?,
            image_embedder: Linear::new(&weights.pp("all_x_embedder").pp(&patch_key), config.patch_dim(), dim, true)?,
            image_pad: weights.get(&[1, dim], "x_pad_token")?,
            noise_refiner: blocks("noise_refiner", config.refiner_layers, true)?,
            layers: blocks("layers", config.layers, true)?,
            final_norm: LayerNorm::plain(dim, FINAL_EPS, weights.dtype()),
            final_modulation: Linear::new(&last.pp("adaLN_modulation.1"), modulation_dim, dim, true)?,
            final_linear: Linear::new(&last.pp("linear"), dim, config.patch_dim(), true)?,
            device: weights.device().clone(),
            config,
        })
    }

    /// Its geometry.
    pub fn config(&self) -> &ZImageConfig {
        &self.config
    }

    /// Where its weights are.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its parts, for comparing them with a reference one by one.
    pub fn stages(&self) -> Stages<'_> {
        Stages {
            image_embedder: &self.image_embedder,
            image_pad: &self.image_pad,
            noise_refiner: &self.noise_refiner,
            context_refiner: &self.context_refiner,
            layers: &self.layers,
        }
    }

    /// The embedding `(1, modulation_dim)`, in f32, of a time from 0 (noise) to 1 (picture).
    pub fn embed_time(&self, time: f32) -> Result<Tensor> {
        let waves =
            timestep_embedding(time * self.config.time_scale, self.config.time_frequencies, MAX_PERIOD, &self.device)?;
        Ok(self.time_out.forward(&Activation::Silu.forward(&self.time_in.forward(&waves)?)?)?)
    }

    /// Caption embeddings `(tokens, caption_dim)` to hidden states `(1, padded tokens, dim)`. The time has no part in
    /// it, so a caption needs this once. `rope` is [`caption_rope`](crate::sequence::caption_rope).
    pub fn refine_caption(&self, embeddings: &Tensor, rope: &RopeTable, cancel: &CancelFlag) -> Result<Tensor> {
        let mut hidden = self.embed_caption(embeddings)?;
        for block in &self.context_refiner {
            cancel.check()?;
            hidden = block.forward(&hidden, rope, None)?;
        }
        Ok(hidden)
    }

    /// The first step of [`Self::refine_caption`]: embedded and padded.
    pub fn embed_caption(&self, embeddings: &Tensor) -> Result<Tensor> {
        pad(&self.caption_embedder.forward(&self.caption_norm.forward(embeddings)?)?, &self.caption_pad)
    }

    /// The network's output, which is `picture - noise`, for latents `(channels, height, width)` at `time`, with a
    /// caption from [`Self::refine_caption`]. `ropes` are those of the image and of image and caption together.
    /// Cancel is honoured between blocks.
    pub fn forward(
        &self,
        latents: &Tensor,
        time: f32,
        caption: &Tensor,
        ropes: &Ropes,
        cancel: &CancelFlag,
    ) -> Result<Tensor> {
        let (_, height, width) = latents.dims3()?;
        let time = self.embed_time(time)?;
        let patches = patchify(&latents.to_dtype(DType::F32)?, self.config.patch)?;
        let image_tokens = patches.dim(0)?;
        let mut image = pad(&self.image_embedder.forward(&patches)?, &self.image_pad)?;
        for block in &self.noise_refiner {
            cancel.check()?;
            image = block.forward(&image, &ropes.image, Some(&time))?;
        }
        let mut hidden = Tensor::cat(&[&image, caption], 1)?;
        for block in &self.layers {
            cancel.check()?;
            hidden = block.forward(&hidden, &ropes.all, Some(&time))?;
        }
        let scale = self.final_modulation.forward(&Activation::Silu.forward(&time)?)?;
        let image = hidden.narrow(1, 0, image_tokens)?.contiguous()?;
        let image = self.final_linear.forward(&self.final_norm.forward_modulated(&image, &scale, None)?)?;
        unpatchify(&image.squeeze(0)?.to_dtype(DType::F32)?, self.config.patch, [height, width])
    }
}

/// Parts of a [`ZImageTransformer`].
#[derive(Clone, Copy)]
pub struct Stages<'a> {
    /// Patches to hidden states.
    pub image_embedder: &'a Linear,
    /// What an image is padded with, `(1, dim)`.
    pub image_pad: &'a Tensor,
    /// Blocks over the image alone.
    pub noise_refiner: &'a [Block],
    /// Blocks over the caption alone.
    pub context_refiner: &'a [Block],
    /// Blocks over both.
    pub layers: &'a [Block],
}

/// Rotations of a picture's tokens, and of those followed by its caption's.
#[derive(Debug, Clone, PartialEq)]
pub struct Ropes {
    image: RopeTable,
    all: RopeTable,
}

impl Ropes {
    /// For a picture of `size` (height, width in latent cells) and a caption of `caption_tokens`.
    pub fn new(config: &ZImageConfig, caption_tokens: usize, [height, width]: [usize; 2]) -> Self {
        let grid = [height / config.patch, width / config.patch];
        let image = crate::sequence::image_rope(config, caption_tokens, grid);
        let all = image.concat(&crate::sequence::caption_rope(config, caption_tokens));
        Self { image, all }
    }
}

/// Tokens of the stream of blocks for a picture of `[height, width]` latent cells with a caption: both padded.
pub fn stream_tokens(config: &ZImageConfig, caption_tokens: usize, [height, width]: [usize; 2]) -> usize {
    padded(height / config.patch * (width / config.patch)) + padded(caption_tokens)
}
