//! A snapshot on disk, checked from headers and configs before any weights are read.

use crate::words::Words;
use candle_core::{DType, Device};
use core_llm::{CancelFlag, Error, Quant, Result, TextCapabilities, WeightsSource};
use layers::decoder::{Decoder, DecoderConfig, Part, gguf_settings};
use layers::text::{ChatTemplate, Tokenizer};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use weights::{Checkpoint, Weights, describe_unknown, load_config, plans};

/// Model types, as a `config.json` names them, whose decoder has the Llama shape.
pub(crate) const MODEL_TYPES: &[&str] =
    &["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "phi3"];
/// Buffers of old checkpoints that are computed from the config instead, and factors that became part of it.
const COMPUTED: &[&str] =
    &["rotary_emb.inv_freq", "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];

/// Everything of a language model but its weights, which are known to be complete.
pub(crate) struct Snapshot {
    pub(crate) words: Arc<Words>,
    config: DecoderConfig,
    weights: Weights,
}

impl Snapshot {
    /// Opens a snapshot to be held in `dtype`, its big weights in `quant`.
    ///
    /// # Errors
    /// What keeps it from being loaded.
    pub(crate) fn open(
        source: &WeightsSource,
        dtype: DType,
        quant: Option<Quant>,
        cancel: &CancelFlag,
    ) -> Result<Self> {
        let (checkpoint, settings) = recognise(source)?;
        let plan = match checkpoint.gguf() {
            Some(_) => plans::gguf_decoder(&checkpoint),
            None => plans::decoder(),
        };
        let weights = Weights::new(Arc::new(checkpoint), &plan, dtype, Device::Cpu)?;
        let weights = weights.with_cancel(cancel).with_quant(quant);
        let config = DecoderConfig::new(&weights, Some(&settings))?;
        let file = weights.checkpoint().path();
        if config.tied && settings.get("tie_word_embeddings").and_then(Value::as_bool) == Some(false) {
            return Err(Error::tensor(file, "lm_head.weight", "is missing, and config.json says the model has one"));
        }
        let dry = weights.dry_run();
        Decoder::new(&dry, config.clone(), Part::Whole)?;
        dry.get(&[config.vocabulary, config.heads.dim], "embed_tokens.weight")?;
        if let Some(unknown) = dry.unused().iter().find(|name| !COMPUTED.iter().any(|end| name.ends_with(end))) {
            let message = "is no part of a decoder of the Llama shape; this is another kind of model";
            return Err(Error::tensor(file, unknown, message));
        }
        if let Some(metadata) = weights.checkpoint().gguf() {
            let tokenizer = Tokenizer::from_gguf(weights.checkpoint())?;
            let template = ChatTemplate::from_gguf(metadata)?;
            let ends = gguf_end_tokens(&config, &tokenizer);
            return Ok(Self { words: Arc::new(Words::new(tokenizer, template, ends)), config, weights });
        }
        let place = tokenizer_place(source);
        let tokenizer = Tokenizer::load(&place, None)?;
        let template = ChatTemplate::load(&place, None)?;
        let ends = end_tokens(source, &place, &config, &tokenizer)?;
        Ok(Self { words: Arc::new(Words::new(tokenizer, template, ends)), config, weights })
    }

    /// Reads the weights.
    ///
    /// # Errors
    /// A weight can't be read, or the load was cancelled.
    pub(crate) fn decoder(&self) -> Result<Decoder> {
        Decoder::new(&self.weights, self.config.clone(), Part::Whole)
    }

    /// `of_provider`, narrowed to this model.
    pub(crate) fn capabilities(&self, of_provider: &TextCapabilities) -> TextCapabilities {
        let (thinking, context) = (self.words.thinking(), Some(self.config.max_positions));
        TextCapabilities { thinking, context, ..of_provider.clone() }
    }
}

/// The checkpoint and config of a language model of the Llama shape.
///
/// # Errors
/// It is something else; the message says what.
pub(crate) fn recognise(source: &WeightsSource) -> Result<(Checkpoint, Value)> {
    let checkpoint = Checkpoint::from_source(source, None)?;
    if checkpoint.gguf().is_some() {
        let settings = gguf_settings(&checkpoint)?;
        return Ok((checkpoint, settings));
    }
    let refuse = |message: String| Error::weights(checkpoint.path(), message);
    let config = load_config(source, "config.json")?;
    let config = config.ok_or_else(|| refuse("needs the model's config.json beside it".into()))?;
    let model_type = config.get("model_type").and_then(Value::as_str);
    let model_type = model_type.ok_or_else(|| refuse("has a config.json without a model_type".into()))?;
    if !MODEL_TYPES.contains(&model_type) {
        return Err(refuse(format!("is of the type '{model_type}'; known here are {}", MODEL_TYPES.join(", "))));
    }
    if !checkpoint.names().any(|name| name.ends_with("embed_tokens.weight")) {
        return Err(refuse(format!("is no language model: {}", describe_unknown(&checkpoint))));
    }
    Ok((checkpoint, config))
}

/// End tokens of a GGUF file: those that it names, and the ends of turns that files forget to.
fn gguf_end_tokens(config: &DecoderConfig, tokenizer: &Tokenizer) -> Vec<u32> {
    let known = ["<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "</s>"];
    let known = known.iter().filter_map(|token| tokenizer.token_id(token));
    let mut ends: Vec<u32> = config.eos.iter().copied().chain(known).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// Where the tokenizer is: with the weights or, in a diffusers pipeline, in a folder beside theirs.
pub(crate) fn tokenizer_place(source: &WeightsSource) -> WeightsSource {
    let folder = match source {
        WeightsSource::Dir(folder) => folder.as_path(),
        WeightsSource::File(file) => file.parent().unwrap_or(Path::new("")),
        WeightsSource::Embedded(_) => return source.clone(),
    };
    let beside = folder.parent().map(|parent| parent.join("tokenizer"));
    match beside {
        Some(beside) if !folder.join("tokenizer.json").exists() && beside.join("tokenizer.json").exists() => {
            WeightsSource::Dir(beside)
        }
        _ => source.clone(),
    }
}

/// End tokens of the model's config, its generation config and its tokenizer: chat models name the end of a turn in only
/// one of them.
fn end_tokens(
    source: &WeightsSource,
    place: &WeightsSource,
    config: &DecoderConfig,
    tokenizer: &Tokenizer,
) -> Result<Vec<u32>> {
    let mut ends = config.eos.clone();
    let generation = load_config(source, "generation_config.json")?;
    match generation.as_ref().and_then(|config| config.get("eos_token_id")) {
        Some(Value::Array(ids)) => ends.extend(ids.iter().filter_map(Value::as_u64).map(|id| id as u32)),
        Some(id) => ends.extend(id.as_u64().map(|id| id as u32)),
        None => {}
    }
    let settings = load_config(place, "tokenizer_config.json")?;
    let token = settings.as_ref().and_then(|settings| settings.get("eos_token"));
    let token = token.and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
    ends.extend(token.and_then(|token| tokenizer.token_id(token)));
    ends.sort_unstable();
    ends.dedup();
    Ok(ends)
}
