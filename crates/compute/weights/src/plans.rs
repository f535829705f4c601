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

/// The same from a GGUF file. There the norms of Gemma have names of their own, and Phi's matrices are fused.
pub fn gguf_decoder(checkpoint: &Checkpoint) -> KeyPlan {
    let four_norms = checkpoint.contains("blk.0.post_attention_norm.weight");
    let fused = checkpoint.contains("blk.0.attn_qkv.weight");
    let mlp_norm = if four_norms { "pre_feedforward_layernorm" } else { "post_attention_layernorm" };
    let up = if fused { "mlp.gate_up_proj" } else { "mlp.up_proj" };
    let mut rules = vec![
        Rule::rename("token_embd.weight", "embed_tokens.weight"),
        Rule::rename("output_norm.weight", "norm.weight"),
        Rule::rename("output.weight", "lm_head.weight"),
    ];
    let block =
        |from: &str, to: &str| Rule::rename(format!("blk.{{n}}.{from}.{{}}"), format!("layers.{{n}}.{to}.{{}}"));
    rules.extend([
        block("attn_norm", "input_layernorm"),
        block("attn_q", "self_attn.q_proj"),
        block("attn_k", "self_attn.k_proj"),
        block("attn_v", "self_attn.v_proj"),
        block("attn_qkv", "self_attn.qkv_proj"),
        block("attn_output", "self_attn.o_proj"),
        block("attn_q_norm", "self_attn.q_norm"),
        block("attn_k_norm", "self_attn.k_norm"),
        block("post_attention_norm", "post_attention_layernorm"),
        block("post_ffw_norm", "post_feedforward_layernorm"),
        block("ffn_norm", mlp_norm),
        block("ffn_gate", "mlp.gate_proj"),
        block("ffn_up", up),
        block("ffn_down", "mlp.down_proj"),
        block("ffn_gate_inp", "mlp.gate"),
    ]);
    let experts = checkpoint.names().find(|name| name.ends_with("ffn_gate_exps.weight"));
    let experts = experts.and_then(|name| checkpoint.info(name)?.shape.first().copied()).unwrap_or(0);
    for (from, to) in [("ffn_gate_exps", "gate_proj"), ("ffn_up_exps", "up_proj"), ("ffn_down_exps", "down_proj")] {
        let to = (0..experts).map(|expert| format!("layers.{{n}}.mlp.experts.{expert}.{to}.weight").into());
        rules.push(Rule::SplitRows(format!("blk.{{n}}.{from}.weight").into(), to.collect()));
    }
    KeyPlan::new(rules)
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
