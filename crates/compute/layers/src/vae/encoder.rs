//! Pictures to moments.

use runtime_base::CancelFlag;
use weights::Weights;

use super::VaeConfig;
use super::blocks::{EPS, MidBlock, ResnetBlock};
use crate::{Activation, Conv2d, ConvKind, GroupNorm, Maps, Result};

struct DownBlock {
    resnets: Vec<ResnetBlock>,
    downsample: Option<Conv2d>,
}

pub(super) struct Encoder {
    conv_in: Conv2d,
    down: Vec<DownBlock>,
    mid: MidBlock,
    norm_out: GroupNorm,
    conv_out: Conv2d,
}

impl Encoder {
    pub(super) fn new(weights: &Weights, config: &VaeConfig) -> weights::Result<Self> {
        let (channels, groups) = (&config.block_out_channels, config.norm_groups);
        let mut width = channels[0];
        let conv_in = Conv2d::new(&weights.pp("conv_in"), config.in_channels, width, ConvKind::Same(3))?;
        let mut down = Vec::new();
        for (level, &outputs) in channels.iter().enumerate() {
            let block = weights.pp("down_blocks").pp(level);
            let mut resnets = Vec::new();
            for i in 0..config.layers_per_block {
                resnets.push(ResnetBlock::new(&block.pp("resnets").pp(i), width, outputs, groups)?);
                width = outputs;
            }
            let halve = || Conv2d::new(&block.pp("downsamplers.0.conv"), width, width, ConvKind::Halve);
            let downsample = (level + 1 < channels.len()).then(halve).transpose()?;
            down.push(DownBlock { resnets, downsample });
        }
        Ok(Self {
            conv_in,
            down,
            mid: MidBlock::new(&weights.pp("mid_block"), width, config)?,
            norm_out: GroupNorm::new(&weights.pp("conv_norm_out"), groups, width, EPS)?,
            conv_out: Conv2d::new(&weights.pp("conv_out"), width, 2 * config.latent_channels, ConvKind::Same(3))?,
        })
    }

    /// `(batch, 3, height, width)` to `(batch, 2 latent_channels, height / factor, width / factor)`.
    pub(super) fn forward(&self, pixels: &Maps, cancel: &CancelFlag) -> Result<Maps> {
        let mut x = self.conv_in.forward(pixels)?;
        for block in &self.down {
            for resnet in &block.resnets {
                x = resnet.forward(x, cancel)?;
            }
            if let Some(conv) = &block.downsample {
                x = conv.forward(&x)?;
            }
        }
        let x = self.mid.forward(x, cancel)?;
        Ok(self.conv_out.forward(&self.norm_out.forward(&x, Some(Activation::Silu))?)?)
    }
}
