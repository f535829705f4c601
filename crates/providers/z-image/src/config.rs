//! Geometry of the network, from its tensors.

use gen_core::{Error, Result};
use serde_json::Value;
use weights::Weights;

/// Rope axes (caption or frame, row, column) by head dim; they add up to it. Shapes can't tell them.
const AXES: &[(usize, [usize; 3])] = &[(128, [32, 48, 48]), (64, [16, 24, 24])];

/// Geometry of a [`ZImageTransformer`](crate::transformer::ZImageTransformer).
#[derive(Debug, Clone, PartialEq)]
pub struct ZImageConfig {
    /// Width of the hidden states.
    pub dim: usize,
    /// Blocks over image and caption.
    pub layers: usize,
    /// Blocks over the image alone, and over the caption alone.
    pub refiner_layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Hidden width of the feed-forward blocks.
    pub ffn_dim: usize,
    /// Width of caption embeddings.
    pub caption_dim: usize,
    /// Width of the time embedding that modulates.
    pub modulation_dim: usize,
    /// Cosines and sines that the time embedding is made from.
    pub time_frequencies: usize,
    /// Hidden width of the time embedding.
    pub time_hidden: usize,
    /// Latent cells that a token covers, per side.
    pub patch: usize,
    /// Channels of the latents.
    pub latent_channels: usize,
    /// Elements of a head that each rope axis turns.
    pub axes: [usize; 3],
    /// Base of the rope frequencies.
    pub rope_theta: f64,
    /// Multiplies the time, which runs from 0 to 1.
    pub time_scale: f32,
    /// Epsilon of the norms around blocks.
    pub norm_eps: f64,
}

impl ZImageConfig {
    /// Reads the geometry off the tensors, and what they can't tell off `config`, else the released models' values.
    ///
    /// # Errors
    /// A tensor that tells something is missing, or sizes contradict each other.
    pub fn new(weights: &Weights, config: Option<&Value>) -> Result<Self> {
        let path = weights.checkpoint().path();
        let size = |name: &str, axis: usize| {
            let size = weights.shape(name).and_then(|shape| shape.get(axis).copied()).filter(|size| *size > 0);
            size.ok_or_else(|| Error::tensor(path, name, "is missing; this is not a whole Z-Image transformer"))
        };
        let patch_key = weights.names().find_map(|name| name.strip_prefix("all_x_embedder.")?.split_once('.'));
        let patch = patch_key.and_then(|(key, _)| key.strip_suffix("-1")?.parse().ok()).filter(|patch| *patch > 0);
        let patch: usize = patch.ok_or_else(|| {
            Error::tensor(path, "all_x_embedder.2-1.weight", "is missing; this is not a whole Z-Image transformer")
        })?;
        let head_dim = size("layers.0.attention.norm_q.weight", 0)?;
        let patch_dim = size(&format!("all_x_embedder.{patch}-1.weight"), 1)?;
        let number = |key: &str| config.and_then(|c| c.get(key)).and_then(Value::as_f64);
        let read = Self {
            dim: size("layers.0.attention.to_q.weight", 1)?,
            layers: weights.count("layers"),
            refiner_layers: weights.count("noise_refiner"),
            heads: size("layers.0.attention.to_q.weight", 0)? / head_dim,
            kv_heads: size("layers.0.attention.to_k.weight", 0)? / head_dim,
            head_dim,
            ffn_dim: size("layers.0.feed_forward.w1.weight", 0)?,
            caption_dim: size("cap_embedder.1.weight", 1)?,
            modulation_dim: size("layers.0.adaLN_modulation.0.weight", 1)?,
            time_frequencies: size("t_embedder.mlp.0.weight", 1)?,
            time_hidden: size("t_embedder.mlp.0.weight", 0)?,
            patch,
            latent_channels: patch_dim / (patch * patch),
            axes: axes(config, head_dim).ok_or_else(|| {
                Error::weights(
                    path,
                    format!("no rope axes are known for heads of {head_dim}; put the model's config.json beside it"),
                )
            })?,
            rope_theta: number("rope_theta").unwrap_or(256.0),
            time_scale: number("t_scale").unwrap_or(1000.0) as f32,
            norm_eps: number("norm_eps").unwrap_or(1e-5),
        };
        read.check().map_err(|problem| Error::weights(path, problem))?;
        Ok(read)
    }

    fn check(&self) -> Result<(), String> {
        if self.heads == 0 || self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            return Err(format!("{} heads can't share {} key heads", self.heads, self.kv_heads));
        }
        if self.latent_channels == 0 || self.axes.iter().sum::<usize>() != self.head_dim {
            return Err(format!("rope axes {:?} don't add up to heads of {}", self.axes, self.head_dim));
        }
        Ok(())
    }

    /// Values of a token: `patch * patch * latent_channels`.
    pub fn patch_dim(&self) -> usize {
        self.patch * self.patch * self.latent_channels
    }
}

fn axes(config: Option<&Value>, head_dim: usize) -> Option<[usize; 3]> {
    let listed = config.and_then(|c| c.get("axes_dims")).and_then(Value::as_array);
    match listed {
        Some(list) => list.iter().map(|v| v.as_u64().map(|v| v as usize)).collect::<Option<Vec<_>>>()?.try_into().ok(),
        None => AXES.iter().find(|(dim, _)| *dim == head_dim).map(|(_, axes)| *axes),
    }
}
