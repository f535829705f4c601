//! `candle-llama`: language models of the Llama shape.

use crate::answer::{Answer, Next};
use crate::batch::Batch;
use crate::lookup::Lookup;
use crate::snapshot::{MODEL_TYPES, Snapshot, recognise};
use candle_core::DType;
use core_llm::{
    Error, LoadSpec, Precision, Quant, Result, StreamEvent, TextCapabilities, TextLlm, TextLlmDescriptor, TextLlmEntry,
    TextLlmOutput, TextLlmRequest, ThinkingSupport,
};
use std::sync::Arc;

pub(crate) fn entry() -> TextLlmEntry {
    let descriptor = TextLlmDescriptor {
        id: "candle-llama".into(),
        name: "Llama-shaped language models".into(),
        backend: crate::BACKEND.into(),
        model_types: MODEL_TYPES.iter().map(|t| (*t).to_owned()).collect(),
        capabilities: TextCapabilities {
            thinking: ThinkingSupport::Optional,
            tools: true,
            constraints: true,
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
    batch: Arc<Batch>,
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
        Ok(Self { descriptor, batch: Batch::new(snapshot.decoder()?), snapshot })
    }
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
        let prompt = self.snapshot.words.prompt(request, self.batch.decoder().config().max_positions)?;
        let mut answer = Answer::new(self.snapshot.words.clone(), request, &prompt)?;
        let room = prompt.tokens.len() + request.max_new_tokens.min(prompt.room);
        let mut session = self.batch.open(room, &request.cancel);
        let mut lookup = Lookup::new(&prompt.tokens);
        let vocabulary = self.batch.decoder().config().vocabulary;
        let mut next = answer.take(session.prompt(&prompt.tokens)?, on_event)?;
        while let Next::Token(token) = next {
            let mut tokens = vec![token];
            let guess = lookup.guess(token);
            // In company a pass is busy enough without guesses.
            if session.is_alone() {
                let room = room - session.len() - 1;
                tokens.extend(guess.iter().take(room));
            }
            let guess = &tokens[1..];
            let logits = session.advance(&tokens, tokens.len())?;
            let mut right = 0;
            for (index, logits) in logits.chunks_exact(vocabulary).enumerate() {
                next = answer.take(logits.to_vec(), on_event)?;
                match next {
                    Next::Token(token) if guess.get(index) == Some(&token) => right += 1,
                    _ => break,
                }
            }
            lookup.learn(guess.len(), &guess[..right]);
            session.take_back(guess.len() - right);
        }
        answer.finish(on_event)
    }
}
