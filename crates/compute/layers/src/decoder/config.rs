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
    /// Keys that a query sees at most, layer by layer; `None` is all of them.
    pub windows: Vec<Option<usize>>,
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
        let text = |key: &str| config.and_then(|c| c.get(key)).and_then(Value::as_str);
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
        if let Some(other) = text("hidden_act").filter(|name| !["silu", "swish"].contains(name)) {
            return Err(bad(format!("uses the activation '{other}', which is not supported")));
        }
        if let Some(part) = number("partial_rotary_factor").filter(|part| *part != 1.0) {
            return Err(bad(format!("rotates {part} of each head; only whole heads are supported")));
        }
        let layers = weights.count("layers");
        let eos = match config.and_then(|c| c.get("eos_token_id")) {
            Some(Value::Array(ids)) => ids.iter().filter_map(Value::as_u64).map(|id| id as u32).collect(),
            Some(id) => id.as_u64().map(|id| id as u32).into_iter().collect(),
            None => Vec::new(),
        };
        Ok(Self {
            vocabulary,
            ffn,
            layers,
            heads,
            qkv_bias: weights.contains(&format!("{first}.self_attn.q_proj.bias")),
            qk_norm: norm.is_some(),
            rms_eps: number("rms_norm_eps").unwrap_or(1e-6),
            rope: frequencies(head_dim, config).map_err(bad)?,
            windows: config.map_or_else(|| vec![None; layers], |config| windows(config, layers)),
            max_positions: count("max_position_embeddings").unwrap_or(40_960),
            tied: !weights.contains("lm_head.weight"),
            eos,
        })
    }
}

/// The attention window of each layer. Qwen's configs carry a window that only counts when it is switched on, and then from
/// a certain layer; newer configs list every layer's kind; Mistral's window is for all.
fn windows(config: &Value, layers: usize) -> Vec<Option<usize>> {
    let number = |key: &str| config.get(key).and_then(Value::as_u64).map(|n| n as usize);
    let switch = config.get("use_sliding_window").and_then(Value::as_bool);
    let mistral = config.get("model_type").and_then(Value::as_str) == Some("mistral");
    let size = number("sliding_window").filter(|n| *n > 0 && switch.unwrap_or(mistral));
    let kinds = config.get("layer_types").and_then(Value::as_array);
    let first = if mistral { 0 } else { number("max_window_layers").unwrap_or(28) };
    let windowed = |layer: usize| match kinds.and_then(|kinds| kinds.get(layer)) {
        Some(kind) => kind.as_str() == Some("sliding_attention"),
        None => layer >= first,
    };
    (0..layers).map(|layer| size.filter(|_| windowed(layer))).collect()
}

/// Rotary frequencies with the scaling that the config asks for, written in the old or the new way.
fn frequencies(head_dim: usize, config: Option<&Value>) -> std::result::Result<Vec<f64>, String> {
    let nested = |key: &str| config.and_then(|c| c.get(key)).filter(|v| v.is_object());
    let scaling = nested("rope_parameters").or_else(|| nested("rope_scaling"));
    let setting = |key: &str| scaling.and_then(|s| s.get(key)).and_then(Value::as_f64);
    let theta = setting("rope_theta").or_else(|| config.and_then(|c| c.get("rope_theta")).and_then(Value::as_f64));
    // Without a config it is Qwen3's; a config that is silent means what transformers takes then.
    let theta = theta.unwrap_or(if config.is_some() { 1e4 } else { 1e6 });
    let base = crate::RopeTable::frequencies(head_dim, theta);
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_window_counts_only_where_the_model_uses_it() {
        let qwen = json!({"model_type": "qwen2", "sliding_window": 8});
        assert_eq!(windows(&qwen, 2), [None, None]);
        let qwen =
            json!({"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": true, "max_window_layers": 1});
        assert_eq!(windows(&qwen, 3), [None, Some(8), Some(8)]);
        let listed = json!({"model_type": "qwen3", "sliding_window": 8, "use_sliding_window": true,
            "layer_types": ["sliding_attention", "full_attention"]});
        assert_eq!(windows(&listed, 2), [Some(8), None]);
        let mistral = json!({"model_type": "mistral", "sliding_window": 8});
        assert_eq!(windows(&mistral, 2), [Some(8), Some(8)]);
        assert_eq!(windows(&json!({"model_type": "mistral", "sliding_window": null}), 1), [None]);
    }

    #[test]
    fn frequencies_follow_the_config() {
        let plain = frequencies(4, Some(&json!({}))).unwrap();
        assert_eq!(plain, [1.0, 1e-2]);
        assert_eq!(frequencies(4, None).unwrap(), [1.0, 1e-3]);
        let linear = json!({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 4.0}});
        assert_eq!(frequencies(4, Some(&linear)).unwrap(), [0.25, 0.25e-2]);
        let unknown = json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}});
        assert!(frequencies(4, Some(&unknown)).unwrap_err().contains("yarn"));
        let incomplete = json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}});
        assert!(frequencies(4, Some(&incomplete)).unwrap_err().contains("low_freq_factor"));
    }
}
