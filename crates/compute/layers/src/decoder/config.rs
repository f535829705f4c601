//! Geometry of a decoder: sizes from the tensors, the rest from a `config.json` or the family's table.

use runtime_base::Error;
use serde_json::Value;
use weights::{Result, Weights};

use super::rope::{self, Rotation};
use crate::{Activation, HeadGeometry, RopeStyle};

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
    /// Whether the projection out of attention has one.
    pub output_bias: bool,
    /// Whether heads of queries and keys are normalised.
    pub qk_norm: bool,
    /// Whether the checkpoint holds queries, keys and values as one matrix, and gate and up as one.
    pub fused: bool,
    /// Whether the outputs of attention and feed-forward are normalised too.
    pub four_norms: bool,
    /// Added to the weights of every norm.
    pub norm_offset: f32,
    /// Epsilon of the norms.
    pub rms_eps: f64,
    /// Activation of the feed-forward blocks.
    pub activation: Activation,
    /// Multiplies the embeddings.
    pub embedding_scale: f32,
    /// Multiplies the scores of attention.
    pub attention_scale: f32,
    /// Soft limit of the scores.
    pub attention_cap: Option<f32>,
    /// Soft limit of the logits.
    pub logit_cap: Option<f32>,
    /// Rotation of queries and keys.
    pub rope: Rotation,
    /// The one of sequences beyond `stretched_from` tokens.
    pub stretched_rope: Option<Rotation>,
    /// Tokens up to which sequences are not stretched.
    pub stretched_from: usize,
    /// The one of layers with a window, where it is another.
    pub local_rope: Option<Rotation>,
    /// Which elements of a head are rotated together.
    pub rope_style: RopeStyle,
    /// Keys that a query sees at most, layer by layer; `None` is all of them.
    pub windows: Vec<Option<usize>>,
    /// Experts of sparse layers, and how they are chosen.
    pub experts: Option<Experts>,
    /// Longest sequence that the model was trained for.
    pub max_positions: usize,
    /// Whether the output layer is the embedding table.
    pub tied: bool,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
}

/// A mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many each token goes to.
    pub chosen: usize,
    /// Width of each.
    pub ffn: usize,
    /// Whether the weights of those chosen are made to sum to 1.
    pub normalised: bool,
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
        let rows = |name: &str| weights.shape(name).filter(|s| s.len() == 2).map(|s| [s[0], s[1]]);
        let shape = |name: &str| rows(name).ok_or_else(|| bad(format!("is not a decoder: {name} is missing")));
        let first = "layers.0";
        let [vocabulary, dim] = shape("embed_tokens.weight")?;
        let number = |key: &str| config.and_then(|c| c.get(key)).and_then(Value::as_f64);
        let text = |key: &str| config.and_then(|c| c.get(key)).and_then(Value::as_str);
        let truth = |key: &str| config.and_then(|c| c.get(key)).and_then(Value::as_bool);
        let count = |key: &str| number(key).filter(|n| *n >= 1.0 && *n < 1e9).map(|n| n as usize);
        let model_type = text("model_type").unwrap_or("qwen3");
        let gemma = model_type.starts_with("gemma");
        let norm = weights.shape(&format!("{first}.self_attn.q_norm.weight")).and_then(|s| s.first().copied());
        let head_dim = norm
            .or_else(|| count("head_dim"))
            .or_else(|| count("num_attention_heads").map(|heads| dim / heads))
            .ok_or_else(|| bad("needs its config.json beside it: the number of heads can't be told".into()))?;
        let fused = rows(&format!("{first}.self_attn.qkv_proj.weight"));
        let (q_rows, kv_rows) = match fused {
            Some([all, _]) => {
                let heads = count("num_attention_heads").ok_or_else(|| bad("has no num_attention_heads".into()))?;
                let q_rows = heads.saturating_mul(head_dim);
                (q_rows, all.saturating_sub(q_rows) / 2)
            }
            None => {
                let [q_rows, _] = shape(&format!("{first}.self_attn.q_proj.weight"))?;
                (q_rows, shape(&format!("{first}.self_attn.k_proj.weight"))?[0])
            }
        };
        if head_dim == 0 || !q_rows.is_multiple_of(head_dim) || !kv_rows.is_multiple_of(head_dim) || kv_rows == 0 {
            return Err(bad(format!(
                "has {q_rows} and {kv_rows} rows of heads, which are not multiples of {head_dim}"
            )));
        }
        let heads = HeadGeometry { dim, heads: q_rows / head_dim, kv_heads: kv_rows / head_dim, head_dim };
        if heads.heads == 0 || !heads.heads.is_multiple_of(heads.kv_heads) {
            return Err(bad(format!("has {} query heads for {} key heads", heads.heads, heads.kv_heads)));
        }
        let activation = match text("hidden_activation").or_else(|| text("hidden_act")) {
            None if gemma => Activation::GeluTanh,
            None | Some("silu" | "swish") => Activation::Silu,
            // Gemma's first configs say `gelu` and mean this one.
            Some("gelu_pytorch_tanh" | "gelu_new") => Activation::GeluTanh,
            Some("gelu") if gemma => Activation::GeluTanh,
            Some(other) => return Err(bad(format!("uses the activation '{other}', which is not supported"))),
        };
        let layers = weights.count("layers");
        let ffn = rows(&format!("{first}.mlp.gate_proj.weight")).map(|[ffn, _]| ffn);
        let both = rows(&format!("{first}.mlp.gate_up_proj.weight")).map(|[both, _]| both / 2);
        let (experts_in, expert_ffn) = sparse(weights, layers);
        let experts = match (experts_in, expert_ffn) {
            (Some(all), Some(ffn)) => {
                let chosen = count("num_experts_per_tok").filter(|chosen| *chosen <= all);
                let chosen = chosen.ok_or_else(|| bad(format!("does not say how many of {all} experts are chosen")))?;
                Some(Experts { count: all, chosen, ffn, normalised: truth("norm_topk_prob").unwrap_or(false) })
            }
            _ => None,
        };
        let ffn = ffn.or(both).or(expert_ffn).or_else(|| count("intermediate_size"));
        let ffn = ffn.ok_or_else(|| bad(format!("is not a decoder: {first}.mlp.gate_proj.weight is missing")))?;
        let max_positions = count("max_position_embeddings").unwrap_or(40_960);
        let ropes = ropes(head_dim, max_positions, config).map_err(bad)?;
        let eos = match config.and_then(|c| c.get("eos_token_id")) {
            Some(Value::Array(ids)) => ids.iter().filter_map(Value::as_u64).map(|id| id as u32).collect(),
            Some(id) => id.as_u64().map(|id| id as u32).into_iter().collect(),
            None => Vec::new(),
        };
        let from_gguf = weights.checkpoint().gguf().is_some();
        let cap = |key: &str| number(key).filter(|cap| *cap > 0.0).map(|cap| cap as f32);
        Ok(Self {
            vocabulary,
            ffn,
            layers,
            heads,
            qkv_bias: weights.contains(&format!("{first}.self_attn.q_proj.bias")),
            output_bias: weights.contains(&format!("{first}.self_attn.o_proj.bias")),
            qk_norm: norm.is_some(),
            fused: fused.is_some(),
            four_norms: weights.contains(&format!("{first}.post_feedforward_layernorm.weight")),
            // GGUF files hold the sum already.
            norm_offset: if gemma && !from_gguf { 1.0 } else { 0.0 },
            rms_eps: number("rms_norm_eps").unwrap_or(1e-6),
            activation,
            embedding_scale: if gemma { (dim as f32).sqrt() } else { 1.0 },
            attention_scale: number("query_pre_attn_scalar").unwrap_or(head_dim as f64).powf(-0.5) as f32,
            attention_cap: cap("attn_logit_softcapping"),
            logit_cap: cap("final_logit_softcapping"),
            rope: ropes.whole.0,
            stretched_from: ropes.original,
            stretched_rope: ropes.whole.1,
            local_rope: ropes.local,
            rope_style: match text("rope_style") {
                Some("interleaved") => RopeStyle::Interleaved,
                _ => RopeStyle::HalfSplit,
            },
            windows: config.map_or_else(|| vec![None; layers], |config| windows(config, layers)),
            experts,
            max_positions,
            tied: !weights.contains("lm_head.weight"),
            eos,
        })
    }
}

/// The number of experts and their width, from the first layer that has some.
fn sparse(weights: &Weights, layers: usize) -> (Option<usize>, Option<usize>) {
    let first = |name: &str, axis: usize| {
        (0..layers).find_map(|layer| weights.shape(&format!("layers.{layer}.mlp.{name}.weight"))?.get(axis).copied())
    };
    (first("gate", 0), first("experts.0.gate_proj", 0))
}

struct Ropes {
    whole: (Rotation, Option<Rotation>),
    local: Option<Rotation>,
    original: usize,
}

/// The rotations that a config asks for, written in the old or the new way.
fn ropes(head_dim: usize, max_positions: usize, config: Option<&Value>) -> std::result::Result<Ropes, String> {
    let get = |key: &str| config.and_then(|c| c.get(key));
    let nested = |key: &str| get(key).filter(|v| v.is_object());
    let number = |key: &str| get(key).and_then(Value::as_f64);
    let scaling = nested("rope_parameters").or_else(|| nested("rope_scaling"));
    // Newer configs have one object for each kind of layer.
    let kind = |kind: &str| scaling.and_then(|s| s.get(kind)).filter(|v| v.is_object());
    let whole = kind("full_attention").or(scaling);
    let inside = |s: Option<&Value>, key: &str| s.and_then(|s| s.get(key)).and_then(Value::as_f64);
    // Without a config it is Qwen3's; a config that is silent means what transformers takes then.
    let silent = if config.is_some() { 1e4 } else { 1e6 };
    let theta = inside(whole, "rope_theta").or_else(|| number("rope_theta")).unwrap_or(silent);
    let part = inside(whole, "partial_rotary_factor").or_else(|| number("partial_rotary_factor")).unwrap_or(1.0);
    let dim = (head_dim as f64 * part) as usize / 2 * 2;
    let original = number("original_max_position_embeddings");
    let settings =
        |theta: f64, scaling| rope::Settings { dim, theta, scaling, max_positions: max_positions as f64, original };
    let whole_theta = settings(theta, whole);
    let local = match kind("sliding_attention") {
        Some(local) => Some((inside(Some(local), "rope_theta").unwrap_or(silent), Some(local))),
        None => number("rope_local_base_freq").map(|theta| (theta, None)),
    };
    let local = local.map(|(theta, scaling)| settings(theta, scaling).rotations()).transpose()?;
    let original = inside(whole, "original_max_position_embeddings").or(original).unwrap_or(max_positions as f64);
    Ok(Ropes { whole: whole_theta.rotations()?, local: local.map(|(plain, _)| plain), original: original as usize })
}

/// The attention window of each layer. Qwen's configs carry a window that only counts when it is switched on, and then from
/// a certain layer; newer configs list every layer's kind; Gemma alternates; Mistral's and Phi's window is for all.
fn windows(config: &Value, layers: usize) -> Vec<Option<usize>> {
    let number = |key: &str| config.get(key).and_then(Value::as_u64).map(|n| n as usize);
    let switch = config.get("use_sliding_window").and_then(Value::as_bool);
    let model_type = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let every_layer = ["mistral", "phi3"].contains(&model_type);
    let gemma = ["gemma2", "gemma3", "gemma3_text"].contains(&model_type);
    let size = number("sliding_window").filter(|n| *n > 0 && switch.unwrap_or(every_layer || gemma));
    let kinds = config.get("layer_types").and_then(Value::as_array);
    let first = if every_layer { 0 } else { number("max_window_layers").unwrap_or(28) };
    let pattern = number("sliding_window_pattern").unwrap_or(if model_type == "gemma2" { 2 } else { 6 }).max(1);
    let windowed = |layer: usize| match kinds.and_then(|kinds| kinds.get(layer)) {
        Some(kind) => kind.as_str() == Some("sliding_attention"),
        None if gemma => !(layer + 1).is_multiple_of(pattern),
        None => layer >= first,
    };
    (0..layers).map(|layer| size.filter(|_| windowed(layer))).collect()
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
        let gemma = json!({"model_type": "gemma2", "sliding_window": 8});
        assert_eq!(windows(&gemma, 3), [Some(8), None, Some(8)]);
    }

    #[test]
    fn frequencies_follow_the_config() {
        let frequencies =
            |dim: usize, config: Option<&Value>| ropes(dim, 2048, config).map(|ropes| ropes.whole.0.frequencies);
        let plain = frequencies(4, Some(&json!({}))).unwrap();
        assert_eq!(plain, [1.0, 1e-2]);
        assert_eq!(frequencies(4, None).unwrap(), [1.0, 1e-3]);
        let linear = json!({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 4.0}});
        assert_eq!(frequencies(4, Some(&linear)).unwrap(), [0.25, 0.25e-2]);
        let unknown = json!({"rope_scaling": {"rope_type": "other", "factor": 4.0}});
        assert!(frequencies(4, Some(&unknown)).unwrap_err().contains("other"));
        let incomplete = json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}});
        assert!(frequencies(4, Some(&incomplete)).unwrap_err().contains("low_freq_factor"));
    }
}
