//! `candle-llama`: language models of the Llama shape.

use crate::choose::Chooser;
use crate::snapshot::{MODEL_TYPES, Snapshot, opens_thought, recognise};
use crate::stream::{Detokenizer, Splitter};
use candle_core::DType;
use core_llm::{
    Error, FinishReason, LoadSpec, Message, Precision, Quant, Result, StreamEvent, TextCapabilities, TextLlm,
    TextLlmDescriptor, TextLlmEntry, TextLlmOutput, TextLlmRequest, Thinking, ThinkingSupport, Usage,
};
use layers::decoder::{Decoder, KvCache};
use layers::text::TemplateOptions;
use serde_json::{Value, json};

/// Tokens of a prompt that are computed at once, so that a long one needs no more memory than this many.
const PROMPT_CHUNK: usize = 512;

pub(crate) fn entry() -> TextLlmEntry {
    let descriptor = TextLlmDescriptor {
        id: "candle-llama".into(),
        name: "Llama-shaped language models".into(),
        backend: crate::BACKEND.into(),
        model_types: MODEL_TYPES.iter().map(|t| (*t).to_owned()).collect(),
        capabilities: TextCapabilities {
            thinking: ThinkingSupport::Optional,
            quants: vec![Quant::Q8],
            ..TextCapabilities::default()
        },
    };
    TextLlmEntry {
        descriptor,
        can_load: |spec| recognise(&spec.source).map(drop).map_err(|e| e.to_string()),
        load: |descriptor, spec| Llama::load(descriptor.clone(), spec).map(|model| Box::new(model) as Box<dyn TextLlm>),
    }
}

/// A loaded model.
struct Llama {
    descriptor: TextLlmDescriptor,
    decoder: Decoder,
    snapshot: Snapshot,
}

impl Llama {
    fn load(mut descriptor: TextLlmDescriptor, spec: &LoadSpec) -> Result<Self> {
        if let Some(quant) = spec.quant.filter(|quant| !descriptor.capabilities.quants.contains(quant)) {
            return Err(Error::Unsupported(format!("{} can't quantize to {quant:?} while loading", descriptor.id)));
        }
        let dtype = match spec.precision.unwrap_or_else(layers::best_cpu_precision) {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::BF16,
            Precision::F16 => return Err(Error::Unsupported("f16 is not computed on CPUs; use bf16 or f32".into())),
        };
        let snapshot = Snapshot::open(&spec.source, dtype, spec.quant, &spec.cancel)?;
        descriptor.capabilities = snapshot.capabilities(&descriptor.capabilities);
        Ok(Self { descriptor, decoder: snapshot.decoder()?, snapshot })
    }

    /// The prompt as text.
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
        self.snapshot.template.render(&messages, options)
    }

    /// The prompt's tokens, which leave room for the answer.
    fn tokens(&self, prompt: &str, max_new_tokens: usize) -> Result<Vec<u32>> {
        let tokens = self.snapshot.tokenizer.encode(prompt)?;
        let (count, context) = (tokens.len(), self.decoder.config().max_positions);
        if count == 0 {
            return Err(Error::Unsupported("the model's chat template makes an empty prompt of these messages".into()));
        }
        match context.saturating_sub(count) {
            0 => {
                let message = format!("have {count} tokens and the model's context is {context}; shorten them");
                Err(Error::invalid("messages", message))
            }
            room if room < max_new_tokens => {
                let message = format!("after {count} tokens of messages the context of {context} has room for {room}");
                Err(Error::invalid("max_new_tokens", message))
            }
            _ => Ok(tokens),
        }
    }

    /// Feeds the prompt and gives token after token to `on_token` until that says stop or the model ends. Gives the number
    /// of tokens made and whether the length was not what ended them.
    fn run(
        &self,
        prompt: &[u32],
        request: &TextLlmRequest,
        on_token: &mut dyn FnMut(u32) -> Result<bool>,
    ) -> Result<(usize, bool)> {
        let mut cache = KvCache::new();
        let last_chunk = (prompt.len() - 1) / PROMPT_CHUNK * PROMPT_CHUNK;
        for chunk in prompt[..last_chunk].chunks(PROMPT_CHUNK) {
            self.decoder.forward(chunk, &mut cache, 0, &request.cancel)?;
        }
        let mut chooser = Chooser::new(&request.sampling, request.seed);
        chooser.see(prompt);
        let mut next = prompt[last_chunk..].to_vec();
        for made in 1..=request.max_new_tokens {
            let logits = self.decoder.forward(&next, &mut cache, 1, &request.cancel)?;
            let logits = logits.flatten_all().and_then(|l| l.to_vec1::<f32>());
            let token = chooser.choose(logits.map_err(|e| Error::Backend(e.to_string()))?)?;
            if self.snapshot.ends.contains(&token) || on_token(token)? {
                return Ok((made, true));
            }
            next = vec![token];
        }
        Ok((request.max_new_tokens, false))
    }
}

fn message_json(message: &Message) -> Value {
    let mut json = json!({ "role": message.role, "content": message.text() });
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
        let prompt = self.tokens(&text, request.max_new_tokens)?;
        let mut splitter = Splitter::new(request.stop.clone(), opens_thought(&text));
        let mut detokenizer = Detokenizer::new(&self.snapshot.tokenizer);
        let mut stopped = false;
        let (made, ended) = self.run(&prompt, request, &mut |token| {
            stopped = splitter.push(&detokenizer.push(token)?, on_event);
            Ok(stopped)
        })?;
        if !stopped {
            stopped = splitter.push(&detokenizer.finish()?, on_event);
        }
        if !stopped {
            splitter.finish(on_event);
        }
        let finish_reason = if ended || stopped { FinishReason::Stop } else { FinishReason::Length };
        let usage = Usage { prompt_tokens: prompt.len(), completion_tokens: made };
        on_event(StreamEvent::Done { finish_reason, usage });
        let thinking = Some(splitter.thinking).filter(|t| !t.is_empty());
        Ok(TextLlmOutput { text: splitter.content, thinking, tool_calls: Vec::new(), finish_reason, usage })
    }
}
