//! Key plans from the layouts that checkpoints come in to the canonical names, which are those of diffusers and transformers.

use crate::{Checkpoint, KeyPlan, Rule};

/// Prefixes under which checkpoints nest a diffusion network.
pub const DENOISER_PREFIXES: &[&str] = &["model.diffusion_model.", "diffusion_model.", "transformer."];
/// Prefixes under which checkpoints nest a VAE.
pub const VAE_PREFIXES: &[&str] = &["first_stage_model.", "vae."];

fn strip(prefixes: &'static [&'static str]) -> impl Iterator<Item = Rule> {
    prefixes.iter().map(|prefix| Rule::strip(*prefix))
}

/// Z-Image, in diffusers' naming or the original one with fused `qkv`, with or without a prefix.
pub fn z_image() -> KeyPlan {
    KeyPlan::new(strip(DENOISER_PREFIXES)).then([
        Rule::rename("x_embedder.{}", "all_x_embedder.2-1.{}"),
        Rule::rename("final_layer.{}", "all_final_layer.2-1.{}"),
        Rule::rename("{}.attention.q_norm.weight", "{}.attention.norm_q.weight"),
        Rule::rename("{}.attention.k_norm.weight", "{}.attention.norm_k.weight"),
        Rule::rename("{}.attention.out.weight", "{}.attention.to_out.0.weight"),
        Rule::split(
            "{}.attention.qkv.weight",
            ["{}.attention.to_q.weight", "{}.attention.to_k.weight", "{}.attention.to_v.weight"],
        ),
        // A leftover of training that the network never applies.
        Rule::drop("norm_final.weight"),
    ])
}

/// A decoder-only language model: names as in transformers, without the `model.` that some files carry.
pub fn decoder() -> KeyPlan {
    KeyPlan::new(strip(&["transformer.", "model."]))
}

/// `AutoencoderKL`, in diffusers' naming or the original one, whose up blocks count from the other end.
pub fn autoencoder_kl(checkpoint: &Checkpoint) -> KeyPlan {
    let mut plan = KeyPlan::new(strip(VAE_PREFIXES));
    let up_block = |name: &str| {
        let tail = name.split_once("decoder.up.")?.1;
        tail.split('.').next()?.parse::<usize>().ok()
    };
    if let Some(last) = checkpoint.names().filter_map(up_block).max() {
        // Two passes, as the ranges of old and new numbers overlap.
        plan = plan.then(
            (0..=last)
                .map(|n| Rule::rename(format!("decoder.up.{n}.{{}}"), format!("decoder.up_blocks.{}.{{}}", last - n))),
        );
    }
    let mut rules = vec![
        Rule::rename("decoder.up_blocks.{n}.block.{n}.{}", "decoder.up_blocks.{n}.resnets.{n}.{}"),
        Rule::rename("decoder.up_blocks.{n}.upsample.conv.{}", "decoder.up_blocks.{n}.upsamplers.0.conv.{}"),
        Rule::rename("encoder.down.{n}.block.{n}.{}", "encoder.down_blocks.{n}.resnets.{n}.{}"),
        Rule::rename("encoder.down.{n}.downsample.conv.{}", "encoder.down_blocks.{n}.downsamplers.0.conv.{}"),
        Rule::rename("{}.mid.block_1.{}", "{}.mid_block.resnets.0.{}"),
        Rule::rename("{}.mid.block_2.{}", "{}.mid_block.resnets.1.{}"),
        Rule::rename("{}.mid.attn_1.norm.{}", "{}.mid_block.attentions.0.group_norm.{}"),
        Rule::rename("{}.mid.attn_1.q.{}", "{}.mid_block.attentions.0.to_q.{}"),
        Rule::rename("{}.mid.attn_1.k.{}", "{}.mid_block.attentions.0.to_k.{}"),
        Rule::rename("{}.mid.attn_1.v.{}", "{}.mid_block.attentions.0.to_v.{}"),
        Rule::rename("{}.mid.attn_1.proj_out.{}", "{}.mid_block.attentions.0.to_out.0.{}"),
        Rule::rename("{}.nin_shortcut.{}", "{}.conv_shortcut.{}"),
        Rule::rename("{}coder.norm_out.{}", "{}coder.conv_norm_out.{}"),
    ];
    // The attention's projections are 1x1 convolutions in the original layout.
    rules.push(Rule::squeeze("{}.mid_block.attentions.0.to_{}.weight"));
    plan.then(rules)
}
