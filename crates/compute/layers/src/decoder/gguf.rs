//! The settings of a language model in a GGUF file, in the words of a `config.json`.

use runtime_base::{Error, Result};
use serde_json::{Map, Value, json};
use weights::{Checkpoint, GgufMetadata, GgufValue};

/// Architectures by their names in GGUF files and in configs.
const ARCHITECTURES: &[(&str, &str)] = &[
    ("llama", "llama"),
    ("mistral3", "mistral"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("qwen3moe", "qwen3_moe"),
    ("gemma2", "gemma2"),
    ("gemma3", "gemma3_text"),
    ("phi3", "phi3"),
];

/// What a model's `config.json` would say, from the metadata of its GGUF file.
///
/// # Errors
/// It is no GGUF file, or one of an architecture that isn't known here.
pub fn gguf_settings(checkpoint: &Checkpoint) -> Result<Value> {
    let bad = |message: String| Error::weights(checkpoint.path(), message);
    let metadata = checkpoint.gguf().ok_or_else(|| bad("is not a GGUF file".into()))?;
    let architecture = metadata.text("general.architecture").unwrap_or_default();
    let known = ARCHITECTURES.iter().find(|(name, _)| *name == architecture);
    let (_, model_type) = known.ok_or_else(|| {
        let names: Vec<&str> = ARCHITECTURES.iter().map(|(name, _)| *name).collect();
        bad(format!("is of the architecture '{architecture}'; known here are {}", names.join(", ")))
    })?;
    let mut config = Map::from_iter([("model_type".to_owned(), json!(model_type))]);
    let key = |name: &str| format!("{architecture}.{name}");
    for (from, to) in [
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("block_count", "num_hidden_layers"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.key_length", "head_dim"),
        ("context_length", "max_position_embeddings"),
        ("attention.sliding_window", "sliding_window"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_count", "num_experts"),
    ] {
        config.extend(metadata.count(&key(from)).map(|count| (to.to_owned(), json!(count))));
    }
    for (from, to) in [
        ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        ("rope.freq_base", "rope_theta"),
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
    ] {
        config.extend(metadata.number(&key(from)).map(|number| (to.to_owned(), json!(number))));
    }
    let heads = metadata.count(&key("attention.head_count")).filter(|heads| *heads > 0);
    let width = metadata.count(&key("embedding_length")).zip(heads).map(|(width, heads)| width / heads);
    let head_dim = metadata.count(&key("attention.key_length")).or(width).filter(|dim| *dim > 0);
    let head_dim = head_dim.ok_or_else(|| bad("does not say how many attention heads it has".into()))?;
    config.insert("head_dim".into(), json!(head_dim));
    if let Some(rotated) = metadata.count(&key("rope.dimension_count")).filter(|rotated| *rotated < head_dim) {
        config.insert("partial_rotary_factor".into(), json!(rotated as f64 / head_dim as f64));
    }
    if let Some(scaling) = scaling(checkpoint, metadata, &key, config.get("max_position_embeddings")) {
        config.insert("rope_scaling".into(), scaling);
    }
    match *model_type {
        // Rows of queries and keys are ordered for neighbours to be rotated together.
        "llama" | "mistral" => drop(config.insert("rope_style".into(), json!("interleaved"))),
        "gemma2" => {
            // The scale of the largest one is by its width, all others' by the head.
            let large = metadata.count(&key("block_count")) == Some(46);
            config.insert(
                "query_pre_attn_scalar".into(),
                json!(if large { width.unwrap_or(head_dim) } else { head_dim }),
            );
        }
        "gemma3_text" => {
            let large = metadata.count(&key("block_count")) == Some(62);
            config.insert(
                "query_pre_attn_scalar".into(),
                json!(if large { width.unwrap_or(head_dim) } else { head_dim }),
            );
            config.insert("rope_local_base_freq".into(), json!(1e4));
            config.entry("rope_theta").or_insert(json!(1e6));
        }
        "qwen3_moe" => drop(config.insert("norm_topk_prob".into(), json!(true))),
        _ => {}
    }
    config.insert("tie_word_embeddings".into(), json!(!checkpoint.contains("output.weight")));
    let ends: Vec<usize> = ["eos_token_id", "eot_token_id", "eom_token_id"]
        .iter()
        .filter_map(|name| metadata.count(&format!("tokenizer.ggml.{name}")))
        .collect();
    config.insert("eos_token_id".into(), json!(ends));
    config.extend(metadata.count("tokenizer.ggml.bos_token_id").map(|id| ("bos_token_id".to_owned(), json!(id))));
    Ok(Value::Object(config))
}

/// The scaling of rope: from the metadata, or from tensors of factors.
fn scaling(
    checkpoint: &Checkpoint,
    metadata: &GgufMetadata,
    key: &dyn Fn(&str) -> String,
    context: Option<&Value>,
) -> Option<Value> {
    let factors = |name: &str| -> Option<Vec<f64>> {
        let bytes = checkpoint.raw(name).ok()?;
        let float = |b: &[u8]| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        Some(bytes.chunks_exact(4).map(float).collect())
    };
    let original = metadata.count(&key("rope.scaling.original_context_length"));
    if let (Some(short), Some(long)) = (factors("rope_factors_short.weight"), factors("rope_factors_long.weight")) {
        let given = metadata.number(&key("rope.scaling.attn_factor"));
        return Some(json!({"rope_type": "longrope", "short_factor": short, "long_factor": long,
            "original_max_position_embeddings": original.map_or(context.cloned(), |n| Some(json!(n))),
            "attention_factor": given}));
    }
    if let Some(list) = factors("rope_freqs.weight") {
        return Some(json!({"rope_type": "factors", "factors": list}));
    }
    let factor = metadata.number(&key("rope.scaling.factor"));
    match metadata.get(&key("rope.scaling.type")) {
        Some(GgufValue::Text(kind)) if kind != "none" => {
            Some(json!({"rope_type": kind, "factor": factor, "original_max_position_embeddings": original}))
        }
        _ => None,
    }
}
