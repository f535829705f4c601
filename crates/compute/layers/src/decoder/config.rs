//! Geometry of a decoder: sizes from the tensors, the rest from a `config.json` or the family's table.

use runtime_base::Error;
use serde_json::Value;
use weights::{Result, Weights};

use crate::HeadGeometry;

/// Everything that a decoder of the Llama shape varies in.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Width of the feed-forward blocks.
    pub ffn: usize,
    /// Number of layers in the checkpoint.
    pub layers: usize,
    /// Sizes of the attention blocks.
    pub heads: HeadGeometry,
    /// Whether the projections to queries, keys and values have a bias.
    pub qkv_bias: bool,
    /// Whether heads of queries and keys are normalised.
    pub qk_norm: bool,
    /// Epsilon of the norms.
    pub rms_eps: f64,
    /// Rotary frequency of each pair of a head, scaling applied.
    pub rope: Vec<f64>,
    /// Keys that a query sees at most.
    pub window: Option<usize>,
    /// Longest sequence that the model was trained for.
    pub max_positions: usize,
    /// Whether the output layer is the embedding table.
    pub tied: bool,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
}

impl DecoderConfig {
    /// The configuration of the decoder in `weights` (names without `model.`). `config` is its `config.json`; without one,
    /// what shapes can't tell are Qwen3's constants, whose head size stands in its query norm.
    ///
    /// # Errors
    /// A tensor or a setting is missing, or the settings contradict the tensors.
    pub fn new(weights: &Weights, config: Option<&Value>) -> Result<Self> {
        let file = weights.checkpoint().path().to_owned();
        let bad = |message: String| Error::weights(&file, message);
        let shape = |name: &str| {
            let shape = weights.shape(name).filter(|s| s.len() == 2);
            shape.map(|s| [s[0], s[1]]).ok_or_else(|| bad(format!("is not a decoder: {name} is missing")))
        };
        let first = "layers.0";
        let [vocabulary, dim] = shape("embed_tokens.weight")?;
        let [ffn, _] = shape(&format!("{first}.mlp.gate_proj.weight"))?;
        let [q_rows, _] = shape(&format!("{first}.self_attn.q_proj.weight"))?;
        let [kv_rows, _] = shape(&format!("{first}.self_attn.k_proj.weight"))?;
        let norm = weights.shape(&format!("{first}.self_attn.q_norm.weight")).and_then(|s| s.first().copied());
        let number = |key: &str| config.and_then(|c| c.get(key)).and_then(Value::as_f64);
        let count = |key: &str| number(key).filter(|n| *n >= 1.0).map(|n| n as usize);
        let head_dim = norm
            .or_else(|| count("head_dim"))
            .or_else(|| count("num_attention_heads").map(|heads| dim / heads))
            .ok_or_else(|| bad("needs its config.json beside it: the number of heads can't be told".into()))?;
        if head_dim == 0 || !q_rows.is_multiple_of(head_dim) || !kv_rows.is_multiple_of(head_dim) || kv_rows == 0 {
            return Err(bad(format!(
                "has {q_rows} and {kv_rows} rows of heads, which are not multiples of {head_dim}"
            )));
        }
        let heads = HeadGeometry { dim, heads: q_rows / head_dim, kv_heads: kv_rows / head_dim, head_dim };
        if !heads.heads.is_multiple_of(heads.kv_heads) {
            return Err(bad(format!("has {} query heads for {} key heads", heads.heads, heads.kv_heads)));
        }
        let windowed = config.is_none_or(|c| c.get("use_sliding_window").is_none_or(|v| v.as_bool() != Some(false)));
        let eos = match config.and_then(|c| c.get("eos_token_id")) {
            Some(Value::Array(ids)) => ids.iter().filter_map(Value::as_u64).map(|id| id as u32).collect(),
            Some(id) => id.as_u64().map(|id| id as u32).into_iter().collect(),
            None => Vec::new(),
        };
        Ok(Self {
            vocabulary,
            ffn,
            layers: weights.count("layers"),
            heads,
            qkv_bias: weights.contains(&format!("{first}.self_attn.q_proj.bias")),
            qk_norm: norm.is_some(),
            rms_eps: number("rms_norm_eps").unwrap_or(1e-6),
            rope: frequencies(head_dim, config).map_err(bad)?,
            window: count("sliding_window").filter(|_| windowed),
            max_positions: count("max_position_embeddings").unwrap_or(40_960),
            tied: !weights.contains("lm_head.weight"),
            eos,
        })
    }
}

/// Rotary frequencies with the scaling that the config asks for, written in the old or the new way.
fn frequencies(head_dim: usize, config: Option<&Value>) -> std::result::Result<Vec<f64>, String> {
    let nested = |key: &str| config.and_then(|c| c.get(key)).filter(|v| v.is_object());
    let scaling = nested("rope_parameters").or_else(|| nested("rope_scaling"));
    let setting = |key: &str| scaling.and_then(|s| s.get(key)).and_then(Value::as_f64);
    let theta = setting("rope_theta").or_else(|| config.and_then(|c| c.get("rope_theta")).and_then(Value::as_f64));
    let base = crate::RopeTable::frequencies(head_dim, theta.unwrap_or(1e6));
    let kind = scaling.and_then(|s| s.get("rope_type").or_else(|| s.get("type"))).and_then(Value::as_str);
    let need = |key: &str| setting(key).filter(|v| *v > 0.0).ok_or_else(|| format!("has rope scaling without {key}"));
    match kind {
        None | Some("default") => Ok(base),
        Some("linear") => {
            let factor = need("factor")?;
            Ok(base.into_iter().map(|f| f / factor).collect())
        }
        // Llama 3.1: low frequencies are divided, high ones kept, those between blended.
        Some("llama3") => {
            let (factor, low, high) = (need("factor")?, need("low_freq_factor")?, need("high_freq_factor")?);
            let context = need("original_max_position_embeddings")?;
            let scale = |frequency: f64| {
                let turns = context * frequency / std::f64::consts::TAU;
                let blend = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                frequency * (blend + (1.0 - blend) / factor)
            };
            Ok(base.into_iter().map(scale).collect())
        }
        Some(other) => Err(format!("uses rope scaling '{other}', which is not supported")),
    }
}
