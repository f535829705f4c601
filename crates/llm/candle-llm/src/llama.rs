//! `candle-llama`: language models of the Llama shape.

use crate::choose::Chooser;
use crate::stream::{Detokenizer, Splitter};
use candle_core::{DType, Device};
use core_llm::{
    Error, FinishReason, LoadSpec, Message, Precision, Result, StreamEvent, TextCapabilities, TextLlm,
    TextLlmDescriptor, TextLlmEntry, TextLlmOutput, TextLlmRequest, Thinking, Usage, WeightsSource,
};
use layers::decoder::{Decoder, DecoderConfig, KvCache, Part};
use layers::text::{ChatTemplate, TemplateOptions, Tokenizer};
use serde_json::{Value, json};
use std::sync::Arc;
use weights::{Checkpoint, Weights, identify, load_config, plans};

const MODEL_TYPES: &[&str] = &["llama", "mistral", "qwen2", "qwen3"];
/// Tokens that end a turn in the chat formats of these families.
const TURN_ENDS: &[&str] = &["<|im_end|>", "<|eot_id|>", "<|endoftext|>", "</s>"];

pub(crate) fn entry() -> TextLlmEntry {
    let descriptor = TextLlmDescriptor {
        id: "candle-llama".into(),
        name: "Llama-shaped language models".into(),
        backend: crate::BACKEND.into(),
        model_types: MODEL_TYPES.iter().map(|t| (*t).to_owned()).collect(),
        capabilities: TextCapabilities { thinking: true, ..TextCapabilities::default() },
    };
    TextLlmEntry {
        descriptor,
        can_load,
        load: |descriptor, spec| Llama::load(descriptor.clone(), spec).map(|model| Box::new(model) as Box<dyn TextLlm>),
    }
}

fn model_type(source: &WeightsSource) -> Result<Option<String>> {
    let config = load_config(source, "config.json")?;
    Ok(config.and_then(|c| c.get("model_type")?.as_str().map(str::to_owned)))
}

fn can_load(spec: &LoadSpec) -> std::result::Result<(), String> {
    let described = model_type(&spec.source).map_err(|e| e.to_string())?;
    let described = described.ok_or("there is no config.json with a model_type")?;
    if !MODEL_TYPES.contains(&described.as_str()) {
        return Err(format!("its model_type is '{described}'; known are {}", MODEL_TYPES.join(", ")));
    }
    let checkpoint = Checkpoint::from_source(&spec.source, None).map_err(|e| e.to_string())?;
    let decoder = identify(&checkpoint).iter().any(|found| ["qwen3", "llama"].contains(&found.family));
    if decoder { Ok(()) } else { Err(weights::describe_unknown(&checkpoint)) }
}

struct Llama {
    descriptor: TextLlmDescriptor,
    decoder: Decoder,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    turn_ends: Vec<u32>,
}

impl Llama {
    fn load(descriptor: TextLlmDescriptor, spec: &LoadSpec) -> Result<Self> {
        if let Some(quant) = spec.quant {
            return Err(Error::Unsupported(format!("{} can't quantize to {quant:?} while loading", descriptor.id)));
        }
        can_load(spec).map_err(|what| Error::weights(spec.source.path(), format!("can't be loaded: {what}")))?;
        let config = load_config(&spec.source, "config.json")?;
        let checkpoint = Arc::new(Checkpoint::from_source(&spec.source, None)?);
        let dtype = match spec.precision {
            Some(Precision::Bf16) => DType::BF16,
            Some(Precision::F16) => {
                return Err(Error::Unsupported("f16 is not computed on CPUs; use bf16 or f32".into()));
            }
            Some(Precision::F32) => DType::F32,
            None if layers::best_cpu_precision() == Precision::Bf16 => DType::BF16,
            None => DType::F32,
        };
        let weights = Weights::new(checkpoint, &plans::decoder(), dtype, Device::Cpu)?;
        let config = DecoderConfig::new(&weights, config.as_ref())?;
        let tokenizer = Tokenizer::load(&spec.source, None)?;
        let template = ChatTemplate::load(&spec.source, None)?;
        let mut turn_ends = config.eos.clone();
        turn_ends.extend(TURN_ENDS.iter().filter_map(|token| tokenizer.token_id(token)));
        let decoder = Decoder::new(&weights, config, Part::Whole)?;
        Ok(Self { descriptor, decoder, tokenizer, template, turn_ends })
    }

    /// The prompt's text.
    fn render(&self, request: &TextLlmRequest) -> Result<String> {
        let messages: Vec<Value> = request.messages.iter().map(message_json).collect();
        let options = TemplateOptions {
            add_generation_prompt: true,
            enable_thinking: match request.thinking {
                Thinking::Auto => None,
                Thinking::Enabled => Some(true),
                Thinking::Disabled => Some(false),
            },
            tools: None,
        };
        self.template.render(&messages, options)
    }

    /// Feeds the prompt and gives token after token to `on_token` until it says stop; true if it did.
    fn run(
        &self,
        prompt: &[u32],
        request: &TextLlmRequest,
        on_token: &mut dyn FnMut(u32) -> Result<bool>,
    ) -> Result<(usize, bool)> {
        let mut chooser = Chooser::new(request.sampling.clone(), request.seed);
        let mut cache = KvCache::new();
        let mut seen = prompt.to_vec();
        let mut next = prompt.to_vec();
        for made in 0..request.max_new_tokens {
            request.cancel.check()?;
            let logits = self.decoder.forward(&next, &mut cache, 1, &request.cancel)?;
            let logits = logits.flatten_all().and_then(|l| l.to_vec1::<f32>());
            let mut logits = logits.map_err(|e| Error::Backend(e.to_string()))?;
            let token = chooser.choose(&mut logits, &seen)?;
            if self.turn_ends.contains(&token) {
                return Ok((made + 1, true));
            }
            seen.push(token);
            if on_token(token)? {
                return Ok((made + 1, true));
            }
            next = vec![token];
        }
        Ok((request.max_new_tokens, false))
    }
}

fn message_json(message: &Message) -> Value {
    let role = serde_json::to_value(message.role).unwrap_or_default();
    let mut json = json!({ "role": role, "content": message.text() });
    if let Some(thinking) = &message.thinking {
        json["reasoning_content"] = json!(thinking);
    }
    json
}

impl TextLlm for Llama {
    fn descriptor(&self) -> &TextLlmDescriptor {
        &self.descriptor
    }

    fn validate(&self, request: &TextLlmRequest) -> Result<()> {
        self.descriptor.validate(request)
    }

    fn generate(&self, request: &TextLlmRequest, on_event: &mut dyn FnMut(StreamEvent)) -> Result<TextLlmOutput> {
        self.validate(request)?;
        let text = self.render(request)?;
        let prompt = self.tokenizer.encode(&text)?;
        let limit = self.decoder.config().max_positions;
        if prompt.len() >= limit {
            let message = format!("the conversation has {} tokens and the model takes {}", prompt.len(), limit - 1);
            return Err(Error::invalid("messages", message));
        }
        let room = limit - prompt.len();
        let request = &TextLlmRequest { max_new_tokens: request.max_new_tokens.min(room), ..request.clone() };
        let thinks = text.trim_end().ends_with("<think>");
        let mut splitter = Splitter::new(request.stop.clone(), thinks);
        let mut detokenizer = Detokenizer::new(&self.tokenizer);
        let mut stopped = false;
        let (made, ended) = self.run(&prompt, request, &mut |token| {
            stopped = splitter.push(&detokenizer.push(token)?, on_event);
            Ok(stopped)
        })?;
        if !stopped {
            let rest = detokenizer.finish()?;
            if !splitter.push(&rest, on_event) {
                splitter.finish(on_event);
            }
        }
        let finish_reason = if ended { FinishReason::Stop } else { FinishReason::Length };
        let usage = Usage { prompt_tokens: prompt.len(), completion_tokens: made };
        on_event(StreamEvent::Done { finish_reason, usage });
        let thinking = Some(splitter.thinking).filter(|t| !t.is_empty());
        Ok(TextLlmOutput { text: splitter.content, thinking, tool_calls: Vec::new(), finish_reason, usage })
    }
}
