//! Geometry of a BERT encoder: sizes from its tensors, the rest from its `config.json`.

use gen_core::{Error, Result};
use layers::Activation;
use serde_json::Value;
use weights::Weights;

/// Geometry of a BERT encoder.
#[derive(Debug, Clone, PartialEq)]
pub struct BertConfig {
    /// Width of the hidden states.
    pub dim: usize,
    /// Width within the feed-forward part.
    pub inner: usize,
    /// Attention heads; divides `dim`.
    pub heads: usize,
    /// Blocks.
    pub layers: usize,
    /// Tokens of a text at most.
    pub positions: usize,
    /// Words of the vocabulary.
    pub vocabulary: usize,
    /// Kinds of segments.
    pub segments: usize,
    /// Summand of the variance in layer norms.
    pub eps: f64,
    /// Between the two layers of the feed-forward part.
    pub activation: Activation,
}

impl BertConfig {
    /// Reads sizes from `weights`, whose names have no prefix, and from `config.json` what they can't tell.
    ///
    /// # Errors
    /// A tensor is missing, or the config contradicts the tensors or asks for what isn't built here.
    pub fn new(weights: &Weights, settings: &Value) -> Result<Self> {
        let file = weights.checkpoint().path().to_owned();
        let sizes = |name: &str| match weights.shape(name) {
            Some([rows, columns]) => Ok([*rows, *columns]),
            _ => Err(Error::tensor(&file, name, "is missing or no matrix")),
        };
        let [vocabulary, dim] = sizes("embeddings.word_embeddings.weight")?;
        let [positions, _] = sizes("embeddings.position_embeddings.weight")?;
        let [segments, _] = sizes("embeddings.token_type_embeddings.weight")?;
        let [inner, _] = sizes("encoder.layer.0.intermediate.dense.weight")?;
        let heads = settings.get("num_attention_heads").and_then(Value::as_u64).unwrap_or(0) as usize;
        if heads == 0 || !dim.is_multiple_of(heads) {
            let message = format!("has no num_attention_heads in its config.json that divides the width {dim}");
            return Err(Error::weights(file, message));
        }
        let kind = settings.get("position_embedding_type").and_then(Value::as_str).unwrap_or("absolute");
        if kind != "absolute" {
            return Err(Error::weights(file, format!("has positions of the kind '{kind}'; only 'absolute' is built")));
        }
        let activation = match settings.get("hidden_act").and_then(Value::as_str).unwrap_or("gelu") {
            "gelu" => Activation::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
            other => return Err(Error::weights(file, format!("has the activation '{other}', which is not built"))),
        };
        let layers = weights.count("encoder.layer");
        let eps = settings.get("layer_norm_eps").and_then(Value::as_f64).unwrap_or(1e-12);
        Ok(Self { dim, inner, heads, layers, positions, vocabulary, segments, eps, activation })
    }
}
