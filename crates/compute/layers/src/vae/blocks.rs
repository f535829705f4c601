//! Blocks that encoder and decoder share.

use runtime_base::CancelFlag;
use weights::Weights;

use super::VaeConfig;
use crate::{Activation, Conv2d, ConvKind, GroupNorm, HeadGeometry, Linear, Maps, Mask, QkvHeads, Result, attention};

/// Epsilon of every group norm of these networks.
pub(super) const EPS: f64 = 1e-6;

/// Two convolutions around a shortcut.
pub(super) struct ResnetBlock {
    norm1: GroupNorm,
    conv1: Conv2d,
    norm2: GroupNorm,
    conv2: Conv2d,
    shortcut: Option<Conv2d>,
}

impl ResnetBlock {
    pub(super) fn new(weights: &Weights, inputs: usize, outputs: usize, groups: usize) -> weights::Result<Self> {
        let shortcut = || Conv2d::new(&weights.pp("conv_shortcut"), inputs, outputs, ConvKind::Same(1));
        Ok(Self {
            norm1: GroupNorm::new(&weights.pp("norm1"), groups, inputs, EPS)?,
            conv1: Conv2d::new(&weights.pp("conv1"), inputs, outputs, ConvKind::Same(3))?,
            norm2: GroupNorm::new(&weights.pp("norm2"), groups, outputs, EPS)?,
            conv2: Conv2d::new(&weights.pp("conv2"), outputs, outputs, ConvKind::Same(3))?,
            shortcut: (inputs != outputs).then(shortcut).transpose()?,
        })
    }

    /// Takes its input, whose memory it writes to again.
    pub(super) fn forward(&self, mut x: Maps, cancel: &CancelFlag) -> Result<Maps> {
        cancel.check()?;
        let mut h = self.conv1.forward(&self.norm1.forward(&x, Some(Activation::Silu))?)?;
        cancel.check()?;
        h = self.norm2.forward(&h, Some(Activation::Silu))?;
        if let Some(conv) = &self.shortcut {
            x = conv.forward(&x)?;
        }
        Ok(self.conv2.forward_onto(&h, &x)?)
    }
}

/// Attention of every place to every other, with one head.
struct AttentionBlock {
    norm: GroupNorm,
    qkv: QkvHeads,
    out: Linear,
    channels: usize,
}

impl AttentionBlock {
    fn new(weights: &Weights, channels: usize, groups: usize) -> weights::Result<Self> {
        let views = ["to_q", "to_k", "to_v"].map(|name| weights.pp(name));
        let geometry = HeadGeometry { dim: channels, heads: 1, kv_heads: 1, head_dim: channels };
        Ok(Self {
            norm: GroupNorm::new(&weights.pp("group_norm"), groups, channels, EPS)?,
            qkv: QkvHeads::new([&views[0], &views[1], &views[2]], true, None, geometry)?,
            out: Linear::new(&weights.pp("to_out.0"), channels, channels, true)?,
            channels,
        })
    }

    fn forward(&self, x: &Maps, cancel: &CancelFlag) -> Result<Maps> {
        cancel.check()?;
        // (batch, channels, height, width) to (batch, tokens, channels) and back
        let tokens = self.norm.forward(x, None)?.to_tensor()?.flatten_from(2)?.transpose(1, 2)?.contiguous()?;
        let [q, k, v] = self.qkv.forward(&tokens, None)?;
        let h = attention(&q, &k, &v, 1.0 / (self.channels as f32).sqrt(), Mask::None)?;
        let h = self.out.forward(&h.flatten_from(2)?)?;
        let h = h.transpose(1, 2)?.reshape(&x.dims()?[..])?;
        Ok(x.like(&(x.to_tensor()? + h)?)?)
    }
}

/// The blocks at the lowest resolution.
pub(super) struct MidBlock {
    first: ResnetBlock,
    attention: Option<AttentionBlock>,
    second: ResnetBlock,
}

impl MidBlock {
    pub(super) fn new(weights: &Weights, channels: usize, config: &VaeConfig) -> weights::Result<Self> {
        let resnet = |i: usize| ResnetBlock::new(&weights.pp("resnets").pp(i), channels, channels, config.norm_groups);
        let attention = || AttentionBlock::new(&weights.pp("attentions.0"), channels, config.norm_groups);
        Ok(Self { first: resnet(0)?, attention: config.mid_attention.then(attention).transpose()?, second: resnet(1)? })
    }

    pub(super) fn forward(&self, x: Maps, cancel: &CancelFlag) -> Result<Maps> {
        let mut x = self.first.forward(x, cancel)?;
        if let Some(attention) = &self.attention {
            x = attention.forward(&x, cancel)?;
        }
        self.second.forward(x, cancel)
    }
}
