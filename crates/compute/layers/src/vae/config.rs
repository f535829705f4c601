//! Geometry of an autoencoder, from its tensors.

use runtime_base::Error;
use serde_json::Value;
use weights::Weights;

/// What shapes can't tell, and what a family's released checkpoint has there; a `config.json` overrides it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VaeDefaults {
    /// Groups of the group norms.
    pub norm_groups: usize,
    /// `latent = (raw - shift) * scale`.
    pub scaling_factor: f64,
    /// `latent = (raw - shift) * scale`.
    pub shift_factor: f64,
}

/// Geometry of an [`AutoencoderKl`](super::AutoencoderKl).
#[derive(Debug, Clone, PartialEq)]
pub struct VaeConfig {
    /// Channels of pictures.
    pub in_channels: usize,
    /// Channels of decoded pictures.
    pub out_channels: usize,
    /// Channels of latents.
    pub latent_channels: usize,
    /// Channels of each resolution, from pictures to latents.
    pub block_out_channels: Vec<usize>,
    /// Residual blocks of a resolution in the encoder; the decoder has one more.
    pub layers_per_block: usize,
    /// Whether there is attention at the lowest resolution.
    pub mid_attention: bool,
    /// Whether the checkpoint has an encoder at all.
    pub encoder: bool,
    /// Whether a 1x1 convolution follows the encoder.
    pub quant_conv: bool,
    /// Whether a 1x1 convolution precedes the decoder.
    pub post_quant_conv: bool,
    /// Groups of the group norms.
    pub norm_groups: usize,
    /// `latent = (raw - shift) * scale`.
    pub scaling_factor: f64,
    /// `latent = (raw - shift) * scale`.
    pub shift_factor: f64,
}

impl VaeConfig {
    /// Reads the geometry off the tensors of `weights` (canonical names), and the rest off `config`, else `defaults`.
    ///
    /// # Errors
    /// A tensor that tells something is missing, or the rest makes no sense.
    pub fn new(weights: &Weights, config: Option<&Value>, defaults: VaeDefaults) -> weights::Result<Self> {
        let path = weights.checkpoint().path();
        let dim = |name: &str, axis: usize| {
            let size = weights.shape(name).and_then(|shape| shape.get(axis).copied());
            size.ok_or_else(|| Error::tensor(path, name, "is missing; this is no AutoencoderKL"))
        };
        // The decoder's blocks count from the latents outwards.
        let levels = weights.count("decoder.up_blocks");
        let mut block_out_channels = (0..levels)
            .map(|level| dim(&format!("decoder.up_blocks.{level}.resnets.0.conv1.weight"), 0))
            .collect::<weights::Result<Vec<_>>>()?;
        block_out_channels.reverse();
        let resnets = weights.count("decoder.up_blocks.0.resnets");
        if levels == 0 || resnets < 2 {
            return Err(Error::tensor(path, "decoder.up_blocks.0.resnets.1", "is missing; this is no AutoencoderKL"));
        }
        let number = |key: &str| config.and_then(|c| c.get(key)).and_then(Value::as_f64);
        // A config that says null has no shift.
        let no_shift = config.and_then(|c| c.get("shift_factor")).is_some_and(Value::is_null);
        let read = Self {
            in_channels: if weights.contains("encoder.conv_in.weight") { dim("encoder.conv_in.weight", 1)? } else { 3 },
            out_channels: dim("decoder.conv_out.weight", 0)?,
            latent_channels: dim("decoder.conv_in.weight", 1)?,
            block_out_channels,
            layers_per_block: resnets - 1,
            mid_attention: weights.contains("decoder.mid_block.attentions.0.to_q.weight"),
            encoder: weights.contains("encoder.conv_in.weight"),
            quant_conv: weights.contains("quant_conv.weight"),
            post_quant_conv: weights.contains("post_quant_conv.weight"),
            norm_groups: number("norm_num_groups").map_or(defaults.norm_groups, |n| n as usize),
            scaling_factor: number("scaling_factor").unwrap_or(defaults.scaling_factor),
            shift_factor: number("shift_factor").unwrap_or(if no_shift { 0.0 } else { defaults.shift_factor }),
        };
        let groups_fit = read.norm_groups > 0 && read.block_out_channels.iter().all(|c| c % read.norm_groups == 0);
        if !groups_fit || read.scaling_factor == 0.0 {
            let message = format!(
                "{} norm groups and scaling factor {} don't fit channels {:?}; put the model's config.json beside it",
                read.norm_groups, read.scaling_factor, read.block_out_channels
            );
            return Err(Error::weights(path, message));
        }
        Ok(read)
    }

    /// Channels, height and width of the largest feature maps that decoding latents of that size needs.
    pub(super) fn largest_maps(&self, height: usize, width: usize) -> [usize; 3] {
        let outwards: Vec<usize> = self.block_out_channels.iter().rev().copied().collect();
        // A level's first block still has the channels of the level before.
        let widest = |level: usize| outwards[level].max(outwards[level.saturating_sub(1)]);
        let sizes = (0..outwards.len()).map(|level| [widest(level), height << level, width << level]);
        sizes.max_by_key(|size| size.iter().product::<usize>()).unwrap_or([1, height, width])
    }

    /// Pixels that a latent cell covers, per side.
    pub fn factor(&self) -> usize {
        1 << (self.block_out_channels.len() - 1)
    }
}
