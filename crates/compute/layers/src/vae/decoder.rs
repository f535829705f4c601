//! Latents to pictures.

use runtime_base::CancelFlag;
use weights::Weights;

use super::VaeConfig;
use super::blocks::{EPS, MidBlock, ResnetBlock};
use crate::{Activation, Conv2d, ConvKind, GroupNorm, Maps, Result};

struct UpBlock {
    resnets: Vec<ResnetBlock>,
    upsample: Option<Conv2d>,
}

pub(super) struct Decoder {
    conv_in: Conv2d,
    mid: MidBlock,
    up: Vec<UpBlock>,
    norm_out: GroupNorm,
    conv_out: Conv2d,
}

impl Decoder {
    pub(super) fn new(weights: &Weights, config: &VaeConfig) -> weights::Result<Self> {
        let (channels, groups) = (&config.block_out_channels, config.norm_groups);
        let mut width = channels[channels.len() - 1];
        let conv_in = Conv2d::new(&weights.pp("conv_in"), config.latent_channels, width, ConvKind::Same(3))?;
        let mid = MidBlock::new(&weights.pp("mid_block"), width, config)?;
        let mut up = Vec::new();
        for (level, &outputs) in channels.iter().rev().enumerate() {
            let block = weights.pp("up_blocks").pp(level);
            let mut resnets = Vec::new();
            for i in 0..=config.layers_per_block {
                resnets.push(ResnetBlock::new(&block.pp("resnets").pp(i), width, outputs, groups)?);
                width = outputs;
            }
            let smooth = || Conv2d::new(&block.pp("upsamplers.0.conv"), width, width, ConvKind::Double);
            let upsample = (level + 1 < channels.len()).then(smooth).transpose()?;
            up.push(UpBlock { resnets, upsample });
        }
        Ok(Self {
            conv_in,
            mid,
            up,
            norm_out: GroupNorm::new(&weights.pp("conv_norm_out"), groups, width, EPS)?,
            conv_out: Conv2d::new(&weights.pp("conv_out"), width, config.out_channels, ConvKind::Same(3))?,
        })
    }

    /// `(batch, latent_channels, height, width)` to `(batch, 3, factor height, factor width)`.
    pub(super) fn forward(&self, latents: &Maps, cancel: &CancelFlag) -> Result<Maps> {
        let x = self.conv_in.forward(latents)?;
        let mut x = self.mid.forward(x, cancel)?;
        for block in &self.up {
            for resnet in &block.resnets {
                x = resnet.forward(x, cancel)?;
            }
            if let Some(conv) = &block.upsample {
                x = conv.forward(&x)?;
            }
        }
        Ok(self.conv_out.forward(&self.norm_out.forward(&x, Some(Activation::Silu))?)?)
    }
}
