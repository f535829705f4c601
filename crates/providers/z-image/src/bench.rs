//! Networks of the released widths with random weights, and what their work amounts to: speed is measured without a
//! download.

use candle_core::{Device, Tensor};
use gen_core::{CancelFlag, Conditioning, Denoiser, Error, Latents, Precision, Quant, Result, StepContext, Vae};
use layers::backend;
use layers::vae::{AutoencoderKl, VaeConfig};
use weights::Weights;

use crate::model::{VAE_DEFAULTS, dtype_of};
use crate::transformer::{ZImageTransformer, stream_tokens};
use crate::{Caption, ZImageConfig, ZImageDenoiser, ZImageVae};

/// Geometry of the released networks, with as many blocks over image and caption as wanted (30 in the released ones).
pub fn released(layers: usize) -> ZImageConfig {
    ZImageConfig {
        dim: 3840,
        layers,
        refiner_layers: 2,
        heads: 30,
        kv_heads: 30,
        head_dim: 128,
        ffn_dim: 10240,
        caption_dim: 2560,
        modulation_dim: 256,
        time_frequencies: 256,
        time_hidden: 1024,
        patch: 2,
        latent_channels: 16,
        axes: [32, 48, 48],
        rope_theta: 256.0,
        time_scale: 1000.0,
        norm_eps: 1e-5,
    }
}

/// Geometry of the released autoencoder, which is FLUX's.
pub fn released_vae() -> VaeConfig {
    VaeConfig {
        in_channels: 3,
        out_channels: 3,
        latent_channels: 16,
        block_out_channels: vec![128, 256, 512, 512],
        layers_per_block: 2,
        mid_attention: true,
        encoder: true,
        quant_conv: false,
        post_quant_conv: false,
        norm_groups: VAE_DEFAULTS.norm_groups,
        scaling_factor: VAE_DEFAULTS.scaling_factor,
        shift_factor: VAE_DEFAULTS.shift_factor,
    }
}

/// A denoiser of random weights with everything that one step needs.
pub struct DenoiseBench {
    denoiser: ZImageDenoiser,
    caption: Conditioning,
    latents: Latents,
    flops: u64,
}

impl DenoiseBench {
    /// For pictures of `width` by `height` pixels, multiples of 16, with a caption of `caption_tokens`; the matrices of
    /// its blocks held in `quant`.
    ///
    /// # Errors
    /// Sizes that don't fit, or too little memory.
    pub fn new(
        config: ZImageConfig,
        precision: Precision,
        quant: Option<Quant>,
        [width, height]: [usize; 2],
        caption_tokens: usize,
    ) -> Result<Self> {
        let dtype = dtype_of(precision);
        let size = [height / 8, width / 8];
        let embeddings = Tensor::randn(0f32, 1f32, (caption_tokens, config.caption_dim), &Device::Cpu);
        let embeddings = embeddings.and_then(|e| e.to_dtype(dtype)).map_err(backend)?;
        let elements = config.latent_channels * size[0] * size[1];
        let values = (0..elements).map(|i| (i as f32 * 0.7).sin()).collect();
        let latents = Latents::new(vec![1, config.latent_channels, size[0], size[1]], values)?;
        let flops = step_flops(&config, caption_tokens, size);
        let matrices = [
            config.dim * config.ffn_dim.max(config.caption_dim),
            4 * config.dim * config.modulation_dim,
            config.time_hidden * config.time_frequencies.max(config.modulation_dim),
        ];
        let largest = matrices.into_iter().max().unwrap_or(0);
        let weights = Weights::random(largest, dtype, Device::Cpu).with_quant(quant);
        let network = ZImageTransformer::new(&weights, config)?;
        let caption = Conditioning::new("random", caption_tokens, Caption(embeddings));
        Ok(Self { denoiser: ZImageDenoiser::new(network, 0), caption, latents, flops })
    }

    /// One forward pass. The first one also refines the caption, as the first step of a render does.
    ///
    /// # Errors
    /// Cancelled, or values that are not finite.
    pub fn step(&self, cancel: &CancelFlag) -> Result<()> {
        let context = StepContext { cancel, step: 1 };
        let velocity = self.denoiser.predict(&self.latents, 0.5, &[&self.caption], &context)?;
        if velocity.is_finite() { Ok(()) } else { Err(Error::NonFinite { stage: "denoiser", step: Some(1) }) }
    }

    /// Floating-point operations of a step after the first: products of matrices, two for each multiplication.
    pub fn flops(&self) -> u64 {
        self.flops
    }
}

/// Operations of one step for latents of `size` (height, width), the caption being refined already.
pub fn step_flops(config: &ZImageConfig, caption_tokens: usize, size: [usize; 2]) -> u64 {
    let block = |tokens: usize| {
        let heads = config.heads * config.head_dim;
        let attention = config.dim * (heads + 2 * config.kv_heads * config.head_dim) + heads * config.dim;
        let linear = attention + 3 * config.dim * config.ffn_dim;
        2 * tokens * linear + 4 * heads * tokens * tokens
    };
    let image = stream_tokens(config, 0, size);
    let all = stream_tokens(config, caption_tokens, size);
    let ends = 4 * image * config.dim * config.patch_dim();
    (config.refiner_layers * block(image) + config.layers * block(all) + ends) as u64
}

/// A VAE of random weights with latents to decode.
pub struct DecodeBench {
    vae: ZImageVae,
    latents: Latents,
    flops: u64,
}

impl DecodeBench {
    /// For pictures of `width` by `height` pixels, multiples of 8.
    ///
    /// # Errors
    /// Sizes that don't fit, or too little memory.
    pub fn new(config: VaeConfig, precision: Precision, [width, height]: [usize; 2]) -> Result<Self> {
        let dtype = dtype_of(precision);
        let size = [height / config.factor(), width / config.factor()];
        let elements = config.latent_channels * size[0] * size[1];
        let values = (0..elements).map(|i| (i as f32 * 0.7).sin()).collect();
        let latents = Latents::new(vec![1, config.latent_channels, size[0], size[1]], values)?;
        let widest = config.block_out_channels.iter().max().copied().unwrap_or(0);
        let (flops, largest) = (decode_flops(&config, size), 9 * widest * widest);
        let network = AutoencoderKl::new(&Weights::random(largest, dtype, Device::Cpu), config)?;
        Ok(Self { vae: ZImageVae::new(network, dtype, Device::Cpu, 0), latents, flops })
    }

    /// One picture.
    ///
    /// # Errors
    /// Cancelled, or values that are not finite.
    pub fn decode(&self, cancel: &CancelFlag) -> Result<()> {
        self.vae.decode(&self.latents, cancel).map(|_| ())
    }

    /// Floating-point operations of a picture, as the network is written: convolutions of doubled maps in full.
    pub fn flops(&self) -> u64 {
        self.flops
    }
}

/// Operations of decoding latents of `size` (height, width).
pub fn decode_flops(config: &VaeConfig, size: [usize; 2]) -> u64 {
    let mut cells = size[0] * size[1];
    let conv =
        |cells: usize, kernel: usize, inputs: usize, outputs: usize| 2 * cells * kernel * kernel * inputs * outputs;
    let resnet = |cells: usize, inputs: usize, outputs: usize| {
        let shortcut = if inputs == outputs { 0 } else { conv(cells, 1, inputs, outputs) };
        conv(cells, 3, inputs, outputs) + conv(cells, 3, outputs, outputs) + shortcut
    };
    let mut width = config.block_out_channels.last().copied().unwrap_or(0);
    let mut total = conv(cells, 3, config.latent_channels, width) + 2 * resnet(cells, width, width);
    if config.mid_attention {
        total += 4 * conv(cells, 1, width, width) + 4 * cells * cells * width;
    }
    for (level, &outputs) in config.block_out_channels.iter().rev().enumerate() {
        for _ in 0..=config.layers_per_block {
            total += resnet(cells, width, outputs);
            width = outputs;
        }
        if level + 1 < config.block_out_channels.len() {
            cells *= 4;
            total += conv(cells, 3, width, width);
        }
    }
    (total + conv(cells, 3, width, config.out_channels)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_released_sizes_give_the_known_counts() {
        // 177 M parameters in the matrices of a block, two operations each and token; 512x512 with 64 caption tokens.
        let (one, two) = (step_flops(&released(1), 64, [64, 64]), step_flops(&released(2), 64, [64, 64]));
        let matrices = 4 * 3840 * 3840 + 3 * 3840 * 10240;
        assert_eq!(two - one, 2 * 1088 * matrices + 4 * 3840 * 1088 * 1088);
        // about 2.5 TFLOP for 512x512
        let decode = decode_flops(&released_vae(), [64, 64]) as f64 / 1e12;
        assert!((2.0..3.0).contains(&decode), "{decode}");
    }

    #[test]
    fn a_small_network_runs_and_is_finite() {
        let config = ZImageConfig { dim: 256, heads: 2, kv_heads: 2, ffn_dim: 512, caption_dim: 64, ..released(1) };
        let cancel = CancelFlag::new();
        for (precision, quant) in [(Precision::F32, None), (Precision::Bf16, None), (Precision::Bf16, Some(Quant::Q8))]
        {
            let bench = DenoiseBench::new(config.clone(), precision, quant, [64, 32], 10).unwrap();
            bench.step(&cancel).unwrap();
            let vae = VaeConfig { block_out_channels: vec![32, 32], layers_per_block: 1, ..released_vae() };
            DecodeBench::new(vae, precision, [16, 16]).unwrap().decode(&cancel).unwrap();
        }
    }
}
