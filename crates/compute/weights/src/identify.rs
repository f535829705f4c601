//! What a checkpoint is, from tensor names and shapes and never from its file name.

use crate::{Checkpoint, StoredDtype, plans};
use runtime_base::{Precision, Role};
use serde::Serialize;
use std::collections::BTreeMap;

/// How a checkpoint names its tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// As diffusers or transformers write it.
    Diffusers,
    /// As the model's authors wrote it, and as single files for ComfyUI have it.
    Original,
}

/// What one component of a checkpoint is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// Model family: `z_image`, `qwen3`, `autoencoder_kl`, …
    pub family: &'static str,
    /// The part that it plays; `None` for adapters.
    pub role: Option<Role>,
    /// The variant, where tensors or metadata tell.
    pub variant: Option<String>,
    /// How its tensors are named.
    pub layout: Layout,
    /// What stands before every name.
    pub prefix: &'static str,
    /// Number of parameters.
    pub parameters: u64,
    /// Parameters by number format on disk.
    pub dtypes: BTreeMap<String, u64>,
    /// Bytes on disk.
    pub bytes: u64,
    /// Sizes read from shapes, such as `dim`, `layers`, `heads`.
    pub geometry: BTreeMap<&'static str, u64>,
}

impl Identity {
    /// Bytes in memory when held in `precision`, without quantization.
    pub fn resident_bytes(&self, precision: Precision) -> u64 {
        self.parameters * precision.bytes()
    }
}

type Geometry = fn(&Checkpoint, &str) -> BTreeMap<&'static str, u64>;

/// How to recognise a family: tensors that must be there and tensors that mustn't, below one of some prefixes.
struct Signature {
    family: &'static str,
    role: Option<Role>,
    layout: Layout,
    prefixes: &'static [&'static str],
    all: &'static [&'static str],
    none: &'static [&'static str],
    geometry: Geometry,
}

const NETWORK: &[&str] = &["", "model.diffusion_model.", "diffusion_model.", "transformer."];
const TEXT: &[&str] = &[
    "",
    "model.",
    "bert.",
    "transformer.",
    "transformer.model.",
    "model.language_model.",
    "language_model.model.",
    // As ComfyUI saves a whole model in one file.
    "text_encoders.qwen3_4b.transformer.model.",
    "text_encoders.qwen3_4b.model.",
];
const VAE: &[&str] = &["", "first_stage_model.", "vae."];

const fn denoiser(family: &'static str, layout: Layout, all: &'static [&'static str], geometry: Geometry) -> Signature {
    Signature { family, role: Some(Role::Denoiser), layout, prefixes: NETWORK, all, none: &[], geometry }
}

const fn text(
    family: &'static str,
    all: &'static [&'static str],
    none: &'static [&'static str],
    geometry: Geometry,
) -> Signature {
    let role = Some(Role::TextEncoder);
    Signature { family, role, layout: Layout::Diffusers, prefixes: TEXT, all, none, geometry }
}

const fn vae(family: &'static str, layout: Layout, all: &'static [&'static str]) -> Signature {
    let role = Some(Role::Vae);
    Signature { family, role, layout, prefixes: VAE, all, none: &[], geometry: vae_geometry }
}

/// The first that fits wins, so the more specific come first.
static SIGNATURES: &[Signature] = &[
    denoiser(
        "z_image",
        Layout::Diffusers,
        &["all_x_embedder.2-1.weight", "cap_pad_token", "context_refiner.0.attention.to_q.weight"],
        z_image_geometry,
    ),
    denoiser(
        "z_image",
        Layout::Original,
        &["x_embedder.weight", "cap_pad_token", "context_refiner.0.attention.qkv.weight"],
        z_image_geometry,
    ),
    denoiser(
        "flux1",
        Layout::Original,
        &["double_blocks.0.img_attn.qkv.weight", "single_blocks.0.linear1.weight", "img_in.weight"],
        no_geometry,
    ),
    denoiser(
        "qwen_image",
        Layout::Diffusers,
        &["transformer_blocks.0.img_mod.1.weight", "transformer_blocks.0.attn.add_q_proj.weight"],
        no_geometry,
    ),
    denoiser(
        "flux1",
        Layout::Diffusers,
        &["transformer_blocks.0.attn.add_q_proj.weight", "single_transformer_blocks.0.attn.to_q.weight"],
        no_geometry,
    ),
    denoiser("sd3", Layout::Original, &["joint_blocks.0.x_block.attn.qkv.weight"], no_geometry),
    denoiser("sdxl", Layout::Original, &["input_blocks.0.0.weight", "label_emb.0.0.weight"], no_geometry),
    denoiser(
        "sdxl",
        Layout::Diffusers,
        &["down_blocks.0.resnets.0.conv1.weight", "add_embedding.linear_1.weight"],
        no_geometry,
    ),
    text(
        "qwen3",
        &["embed_tokens.weight", "layers.0.self_attn.q_norm.weight", "layers.0.mlp.gate_proj.weight"],
        &["layers.0.pre_feedforward_layernorm.weight"],
        decoder_geometry,
    ),
    text(
        "llama",
        &["embed_tokens.weight", "layers.0.self_attn.q_proj.weight", "layers.0.mlp.gate_proj.weight"],
        &["layers.0.self_attn.q_norm.weight", "layers.0.pre_feedforward_layernorm.weight"],
        decoder_geometry,
    ),
    text(
        "bert",
        &["embeddings.word_embeddings.weight", "encoder.layer.0.attention.self.query.weight"],
        &[],
        no_geometry,
    ),
    text("llama", &["token_embd.weight", "output_norm.weight", "blk.0.attn_norm.weight"], &[], gguf_geometry),
    text("t5", &["encoder.block.0.layer.0.SelfAttention.q.weight"], &[], no_geometry),
    text("clip", &["text_model.encoder.layers.0.self_attn.q_proj.weight"], &[], no_geometry),
    vae("autoencoder_kl", Layout::Diffusers, &["decoder.conv_in.weight", "decoder.up_blocks.0.resnets.0.conv1.weight"]),
    vae("autoencoder_kl", Layout::Original, &["decoder.conv_in.weight", "decoder.up.0.block.0.conv1.weight"]),
];

/// What `checkpoint` is: one entry a component, so several for a file that bundles a model. Empty when nothing known is in
/// it; [`describe_unknown`] then says what was seen.
pub fn identify(checkpoint: &Checkpoint) -> Vec<Identity> {
    let mut found: Vec<Identity> = Vec::new();
    if let Some(adapter) = adapter(checkpoint) {
        return vec![adapter];
    }
    for signature in SIGNATURES {
        if found.iter().any(|f| f.role == signature.role) {
            continue;
        }
        let fits = |prefix: &&&str| {
            let has = |name: &&str| checkpoint.contains(&format!("{prefix}{name}"));
            signature.all.iter().all(has) && !signature.none.iter().any(has)
        };
        if let Some(prefix) = signature.prefixes.iter().find(fits) {
            found.push(count(checkpoint, signature, prefix));
        }
    }
    // A prefix that is empty would count the other components of a bundle too.
    if found.len() > 1 {
        found.retain(|f| !f.prefix.is_empty());
    }
    found
}

fn count(checkpoint: &Checkpoint, signature: &Signature, prefix: &'static str) -> Identity {
    let mut identity = Identity {
        family: signature.family,
        role: signature.role,
        variant: variant(checkpoint, signature, prefix),
        layout: signature.layout,
        prefix,
        parameters: 0,
        dtypes: BTreeMap::new(),
        bytes: 0,
        geometry: (signature.geometry)(checkpoint, prefix),
    };
    for info in checkpoint.tensors().filter(|info| info.name.starts_with(prefix)) {
        identity.parameters += info.elements() as u64;
        identity.bytes += info.bytes() as u64;
        *identity.dtypes.entry(info.dtype.to_string()).or_default() += info.elements() as u64;
    }
    if identity.family == "qwen3" && checkpoint.names().any(|name| name.contains("visual.")) {
        identity.family = "qwen3_vl";
    }
    identity
}

/// Turbo and base Z-Image have the same tensors; only metadata can tell.
fn variant(checkpoint: &Checkpoint, signature: &Signature, prefix: &str) -> Option<String> {
    match signature.family {
        "z_image" => {
            let said = checkpoint.metadata().values().map(|v| v.to_ascii_lowercase()).collect::<String>();
            said.contains("turbo").then(|| "turbo".to_owned())
        }
        "qwen3" | "llama" => {
            let hidden = dim(checkpoint, &format!("{prefix}embed_tokens.weight"), 1)?;
            let layers = layers(checkpoint, &format!("{prefix}layers."));
            let known = [((2560, 36), "4b"), ((4096, 36), "8b"), ((1024, 28), "0.6b"), ((2048, 28), "1.7b")];
            known.iter().find(|(size, _)| *size == (hidden, layers)).map(|(_, name)| (*name).to_owned())
        }
        "autoencoder_kl" => {
            let channels = dim(checkpoint, &format!("{prefix}decoder.conv_in.weight"), 1)?;
            let bn = checkpoint.names().any(|name| name.ends_with("bn.running_mean"));
            let name = match (channels, bn) {
                (_, true) => "flux2",
                (16, false) => "flux",
                (4, false) => "sd",
                _ => return None,
            };
            Some(name.to_owned())
        }
        _ => None,
    }
}

fn adapter(checkpoint: &Checkpoint) -> Option<Identity> {
    let marks = [".lora_A.", ".lora_down.", ".lokr_w1", ".hada_w1_a"];
    let is_part = |name: &str| marks.iter().any(|mark| name.contains(mark));
    checkpoint.names().any(is_part).then(|| {
        let signature = Signature {
            family: "adapter",
            role: None,
            layout: Layout::Original,
            prefixes: &[],
            all: &[],
            none: &[],
            geometry: no_geometry,
        };
        count(checkpoint, &signature, "")
    })
}

/// For a checkpoint that isn't known: what its tensors look like.
pub fn describe_unknown(checkpoint: &Checkpoint) -> String {
    let names: Vec<&str> = checkpoint.names().take(3).collect();
    let total = checkpoint.names().count();
    if total == 0 {
        return "it holds no tensors".to_owned();
    }
    format!("its {total} tensors, such as {}, belong to no family that is known here", names.join(", "))
}

fn dim(checkpoint: &Checkpoint, name: &str, axis: usize) -> Option<u64> {
    checkpoint.info(name).and_then(|info| info.shape.get(axis)).map(|d| *d as u64)
}

/// Highest number after `start`, plus one.
fn layers(checkpoint: &Checkpoint, start: &str) -> u64 {
    let number = |name: &str| name.strip_prefix(start)?.split('.').next()?.parse::<u64>().ok();
    checkpoint.names().filter_map(number).max().map_or(0, |n| n + 1)
}

fn no_geometry(_: &Checkpoint, _: &str) -> BTreeMap<&'static str, u64> {
    BTreeMap::new()
}

fn z_image_geometry(checkpoint: &Checkpoint, prefix: &str) -> BTreeMap<&'static str, u64> {
    let mut geometry = BTreeMap::new();
    let get = |name: &str, axis| dim(checkpoint, &format!("{prefix}{name}"), axis);
    let model_dim = get("cap_pad_token", 1);
    let head = get("layers.0.attention.norm_q.weight", 0).or_else(|| get("layers.0.attention.q_norm.weight", 0));
    geometry.extend(model_dim.map(|d| ("dim", d)));
    geometry.extend(model_dim.zip(head).filter(|(_, h)| *h > 0).map(|(d, h)| ("heads", d / h)));
    geometry.extend(head.map(|h| ("headDim", h)));
    geometry.extend(get("cap_embedder.1.weight", 1).map(|d| ("captionDim", d)));
    for (key, list) in
        [("layers", "layers."), ("noiseRefiners", "noise_refiner."), ("contextRefiners", "context_refiner.")]
    {
        geometry.insert(key, layers(checkpoint, &format!("{prefix}{list}")));
    }
    geometry
}

fn decoder_geometry(checkpoint: &Checkpoint, prefix: &str) -> BTreeMap<&'static str, u64> {
    let get = |name: &str, axis| dim(checkpoint, &format!("{prefix}{name}"), axis);
    let mut geometry = BTreeMap::from([("layers", layers(checkpoint, &format!("{prefix}layers.")))]);
    geometry.extend(get("embed_tokens.weight", 0).map(|d| ("vocabulary", d)));
    geometry.extend(get("embed_tokens.weight", 1).map(|d| ("hidden", d)));
    geometry.extend(get("layers.0.mlp.gate_proj.weight", 0).map(|d| ("ffn", d)));
    geometry
}

fn gguf_geometry(checkpoint: &Checkpoint, _: &str) -> BTreeMap<&'static str, u64> {
    let mut geometry = BTreeMap::from([("layers", layers(checkpoint, "blk."))]);
    geometry.extend(dim(checkpoint, "token_embd.weight", 0).map(|d| ("vocabulary", d)));
    geometry.extend(dim(checkpoint, "token_embd.weight", 1).map(|d| ("hidden", d)));
    geometry
}

fn vae_geometry(checkpoint: &Checkpoint, prefix: &str) -> BTreeMap<&'static str, u64> {
    let get = |name: &str, axis| dim(checkpoint, &format!("{prefix}{name}"), axis);
    let mut geometry = BTreeMap::new();
    geometry.extend(get("decoder.conv_in.weight", 1).map(|d| ("latentChannels", d)));
    let blocks = ["decoder.up.", "decoder.up_blocks."].map(|list| layers(checkpoint, &format!("{prefix}{list}")));
    let blocks = blocks.into_iter().max().unwrap_or(0);
    geometry.insert("blocks", blocks);
    if let Some(doublings) = blocks.checked_sub(1).filter(|n| *n < 16) {
        geometry.insert("factor", 1 << doublings);
    }
    geometry
}

/// Whether any of the checkpoint's weights are quantized on disk.
pub fn ships_quantized(checkpoint: &Checkpoint) -> bool {
    let small = |d: StoredDtype| d.is_blocks() || d.block() == (1, 1) && d != StoredDtype::Bool;
    checkpoint.tensors().any(|info| info.shape.len() == 2 && small(info.dtype))
}

/// The key plan of an identified component.
pub fn plan_for(identity: &Identity, checkpoint: &Checkpoint) -> Option<crate::KeyPlan> {
    match identity.family {
        "z_image" => Some(plans::z_image()),
        "qwen3" | "llama" if checkpoint.gguf().is_some() => Some(plans::gguf_decoder(checkpoint)),
        "qwen3" | "llama" => Some(plans::decoder()),
        "autoencoder_kl" => Some(plans::autoencoder_kl(checkpoint)),
        _ => None,
    }
}
