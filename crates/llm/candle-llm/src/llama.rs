//! `candle-llama`: language models of the Llama shape.

use crate::answer::{Answer, Next};
use crate::snapshot::{MODEL_TYPES, Snapshot, recognise};
use candle_core::DType;
use core_llm::{
    CancelFlag, Error, LoadSpec, Precision, Quant, Result, StreamEvent, TextCapabilities, TextLlm, TextLlmDescriptor,
    TextLlmEntry, TextLlmOutput, TextLlmRequest, ThinkingSupport,
};
use layers::decoder::{Decoder, KvCache, Piece};

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

    /// The logits after `tokens`.
    fn logits(&self, tokens: &[u32], cache: &mut KvCache, cancel: &CancelFlag) -> Result<Vec<f32>> {
        Ok(self.decoder.forward(&mut [Piece { tokens, cache, keep: 1 }], cancel)?)
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
        let prompt = self.snapshot.words.prompt(request, self.decoder.config().max_positions)?;
        let mut answer = Answer::new(self.snapshot.words.clone(), request, &prompt)?;
        let mut cache = self.decoder.sequence(prompt.tokens.len() + request.max_new_tokens);
        let (before, last) = prompt.tokens.split_at((prompt.tokens.len() - 1) / PROMPT_CHUNK * PROMPT_CHUNK);
        for chunk in before.chunks(PROMPT_CHUNK) {
            self.decoder.forward(&mut [Piece { tokens: chunk, cache: &mut cache, keep: 0 }], &request.cancel)?;
        }
        let mut logits = self.logits(last, &mut cache, &request.cancel)?;
        while let Next::Token(token) = answer.take(logits, on_event)? {
            logits = self.logits(&[token], &mut cache, &request.cancel)?;
        }
        answer.finish(on_event)
    }
}
