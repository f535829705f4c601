//! `text/generate`: a language model's answer as a text in the graph, such as a prompt in better words.

use crate::language::{LANGUAGE_CATEGORY, LanguageModels, TextModelFile};
use crate::scrub;
use core_llm::{
    Channel, ContentPart, FinishReason, Message, SamplingParams, StreamEvent, TextLlmOutput, TextLlmRequest, Thinking,
};
use engine_graph::{
    Contents, NodeContext, NodeDescriptor, NodeError, NodeRunner, Outputs, ParamDescriptor, Params, Phase,
    PortDescriptor, PortKind, Progress, Value,
};
use gen_core::Image;
use std::sync::Arc;

/// The node's type.
pub(crate) const TYPE: &str = "text/generate";
/// Share of the node's progress before the first token.
const BEFORE_WRITING: f32 = 0.1;

/// The node's descriptor.
pub(crate) fn descriptor() -> NodeDescriptor {
    let thinking = [("auto", "As the model has it"), ("on", "On"), ("off", "Off")];
    NodeDescriptor::new(TYPE, "Write text")
        .category("text")
        .icon("text")
        .input(PortDescriptor::required("prompt", "Prompt", PortKind::Text))
        .input(PortDescriptor::optional("image", "Image", PortKind::Image))
        .output(PortDescriptor::output("text", "Text", PortKind::Text))
        .param(ParamDescriptor::textarea("instructions", "Instructions", ""))
        .param(ParamDescriptor::integer("max_tokens", "Longest text in tokens", 256, 1..=32_768, 1))
        .param(ParamDescriptor::float("temperature", "Temperature", 0.7, 0.0..=2.0, 0.05))
        .param(ParamDescriptor::seed("seed", "Seed"))
        .param(ParamDescriptor::model("model", "Model", LANGUAGE_CATEGORY))
        .param(ParamDescriptor::float("top_p", "Top p", 0.95, 0.01..=1.0, 0.01).advanced())
        .param(ParamDescriptor::select("thinking", "Thinking", "auto", thinking).advanced())
}

pub(crate) struct TextRunner {
    pub(crate) language: Arc<LanguageModels>,
}

impl TextRunner {
    fn choose(&self, params: &Params) -> Result<TextModelFile, NodeError> {
        self.language.find(params.text("model")?).map_err(|e| scrub(e, self.language.dir()))
    }

    /// Adds what the text depends on beside params and inputs.
    pub(crate) fn add_contents(&self, params: &Params, contents: &mut Contents) -> Result<(), NodeError> {
        let file = self.choose(params)?;
        contents.add("checkpoint", file.fingerprint());
        contents.add("placement", self.language.placement(&file).map_err(|e| scrub(e, self.language.dir()))?);
        contents.add("engine", env!("CARGO_PKG_VERSION"));
        Ok(())
    }

    fn write(
        &self,
        context: &NodeContext<'_>,
        file: &TextModelFile,
        request: &TextLlmRequest,
    ) -> Result<TextLlmOutput, NodeError> {
        let model = self.language.language(file, context.cancel()).map_err(|e| scrub(e, self.language.dir()))?;
        if !model.descriptor().capabilities.images && request.messages.iter().any(|message| !message.is_text()) {
            let message = format!("{} reads no pictures; choose a model that does, or leave the image out", file.id());
            return Err(NodeError::new(message).on_port("image"));
        }
        context.phase(Phase::Encode, BEFORE_WRITING / 2.0, "reading the prompt");
        let (total, mut pieces) = (request.max_new_tokens as u32, 0u32);
        let written = model.generate(request, &mut |event| {
            let StreamEvent::Token { channel, .. } = event else { return };
            // A piece is a token or a few that make a whole character.
            pieces = (pieces + 1).min(total);
            let fraction = BEFORE_WRITING + (0.99 - BEFORE_WRITING) * pieces as f32 / total as f32;
            let status = if channel == Channel::Thinking { "thinking" } else { "writing" };
            context.progress(Progress::new(Phase::Sample, fraction, status).step(pieces, total));
        });
        written.map_err(|e| scrub(e, self.language.dir()))
    }
}

fn request(context: &NodeContext<'_>) -> Result<TextLlmRequest, NodeError> {
    let params = context.params();
    let instructions = params.text("instructions")?;
    let mut question = Message::user(context.inputs().text("prompt")?);
    if let Some(image) = context.inputs().optional::<Image>("image")? {
        question.content.push(ContentPart::Image(image));
    }
    let system = (!instructions.trim().is_empty()).then(|| Message::system(instructions));
    let messages = system.into_iter().chain([question]).collect();
    let sampling = SamplingParams {
        temperature: params.float("temperature")? as f32,
        top_p: params.float("top_p")? as f32,
        ..SamplingParams::default()
    };
    Ok(TextLlmRequest {
        sampling,
        seed: params.seed("seed")?,
        thinking: match params.text("thinking")? {
            "on" => Thinking::Enabled,
            "off" => Thinking::Disabled,
            _ => Thinking::Auto,
        },
        cancel: context.cancel().clone(),
        ..TextLlmRequest::new(messages, params.count("max_tokens")? as usize)
    })
}

impl NodeRunner for TextRunner {
    fn run(&self, context: &NodeContext<'_>) -> Result<Outputs, NodeError> {
        context.phase(Phase::Loading, 0.0, "loading the language model");
        let file = self.choose(context.params())?;
        let request = request(context)?;
        let written = self.write(context, &file, &request)?;
        let text = written.text.trim();
        if text.is_empty() {
            let reason = match written.finish_reason {
                FinishReason::Length => "the model came to no answer within max_tokens; raise it, or turn thinking off",
                _ => "the model answered with nothing; ask in other words, or take another seed",
            };
            return Err(NodeError::new(reason));
        }
        Ok(Outputs::of("text", Value::text(text))
            .recording("text", text)
            .recording("model", file.id())
            .recording("modelFingerprint", file.fingerprint())
            .recording("tokens", written.usage.completion_tokens))
    }
}
