//! From a text to its vector.

use crate::{BertConfig, BertEncoder};
use candle_core::{DType, Device};
use gen_core::{CancelFlag, Error, LoadSpec, ModelDescriptor, Result, TextEmbedder};
use layers::text::Tokenizer;
use serde_json::Value;
use std::sync::Arc;
use weights::{Checkpoint, KeyPlan, Rule, Weights, load_config};

/// How the hidden states of a text's tokens become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pooling {
    /// Their mean.
    Mean,
    /// That of the first token.
    First,
}

/// A sentence embedder: encoder, pooling and a vector of length one.
pub struct SentenceEmbedder {
    descriptor: ModelDescriptor,
    tokenizer: Tokenizer,
    encoder: BertEncoder,
    pooling: Pooling,
    longest: usize,
}

impl SentenceEmbedder {
    /// Loads a snapshot as transformers or sentence-transformers writes it. It is computed in f32: the models are small.
    ///
    /// # Errors
    /// A file is missing or damaged, or asks for what isn't built here.
    pub fn load(descriptor: ModelDescriptor, spec: &LoadSpec) -> Result<Self> {
        if spec.quant.is_some() {
            return Err(Error::Unsupported(format!("{} can't be quantized; load it as it is", descriptor.id)));
        }
        let source = &spec.source;
        let checkpoint = Arc::new(Checkpoint::from_source(source, None)?);
        let plan = KeyPlan::new([Rule::strip("bert."), Rule::strip("model.")]);
        let weights = Weights::new(Arc::clone(&checkpoint), &plan, DType::F32, Device::Cpu)?;
        let settings = load_config(source, "config.json")?
            .ok_or_else(|| Error::weights(checkpoint.path(), "needs the model's config.json beside it"))?;
        let config = BertConfig::new(&weights, &settings)?;
        let number = |file: &str, key: &str| -> Result<Option<usize>> {
            let settings = load_config(source, file)?;
            Ok(settings.and_then(|s| s.get(key).and_then(Value::as_u64)).map(|n| n as usize))
        };
        let trained = number("sentence_bert_config.json", "max_seq_length")?;
        Ok(Self {
            descriptor,
            tokenizer: Tokenizer::load(source, None)?,
            encoder: BertEncoder::new(&weights, &config)?,
            pooling: pooling(source, &checkpoint)?,
            longest: trained.unwrap_or(config.positions).min(config.positions),
        })
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        // No word has this many bytes, and tokenizing what can't fit takes long.
        let most = self.longest * 64;
        let tokens = if text.len() > most { None } else { Some(self.tokenizer.encode_whole(text)?) };
        let count = tokens.as_ref().map_or(most, Vec::len);
        match tokens.filter(|tokens| tokens.len() <= self.longest) {
            Some(tokens) if !text.is_empty() => Ok(tokens),
            Some(_) => Err(Error::invalid("input", "there must be a text")),
            None => {
                let message =
                    format!("a text has {count} tokens or more and this model takes {}; cut it", self.longest);
                Err(Error::invalid("input", message))
            }
        }
    }
}

/// The pooling that sentence-transformers' modules ask for; the mean without them.
fn pooling(source: &gen_core::WeightsSource, checkpoint: &Checkpoint) -> Result<Pooling> {
    let Some(settings) = load_config(source, "1_Pooling/config.json")? else { return Ok(Pooling::Mean) };
    let asked: Vec<&str> = settings
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, value)| key.starts_with("pooling_mode_") && **value == Value::Bool(true))
        .map(|(key, _)| key.as_str())
        .collect();
    match asked.as_slice() {
        [] | ["pooling_mode_mean_tokens"] => Ok(Pooling::Mean),
        ["pooling_mode_cls_token"] => Ok(Pooling::First),
        other => {
            let message = format!("is pooled by {}, which is not built", other.join(" and "));
            Err(Error::weights(checkpoint.path(), message))
        }
    }
}

impl TextEmbedder for SentenceEmbedder {
    fn descriptor(&self) -> &ModelDescriptor {
        &self.descriptor
    }

    fn validate(&self, text: &str) -> Result<()> {
        self.encode(text).map(drop)
    }

    fn tokens(&self, text: &str) -> Result<usize> {
        self.encode(text).map(|tokens| tokens.len())
    }

    fn embed(&self, text: &str) -> Result<Vec<f32>> {
        let tokens = self.encode(text)?;
        let states = self.encoder.forward(&tokens, &CancelFlag::new())?;
        let pooled = match self.pooling {
            Pooling::Mean => states.mean(1),
            Pooling::First => states.narrow(1, 0, 1).and_then(|first| first.squeeze(1)),
        };
        let pooled = pooled.and_then(|p| p.flatten_all()).and_then(|p| p.to_vec1::<f32>());
        let mut vector = pooled.map_err(|e| Error::Backend(e.to_string()))?;
        let length = vector.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        if !length.is_finite() {
            return Err(Error::NonFinite { stage: "text embedder", step: None });
        }
        // As sentence-transformers: a vector of nothing stays one.
        let scale = 1.0 / length.max(1e-12);
        vector.iter_mut().for_each(|v| *v = (f64::from(*v) * scale) as f32);
        Ok(vector)
    }
}
