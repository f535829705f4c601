//! What lies between a model's tokens and text that people read: tokenizer, chat template and end tokens.

use core_llm::{Error, Message, Result, TextLlmRequest, Thinking, ThinkingSupport};
use layers::text::{ChatTemplate, TemplateOptions, Tokenizer};
use serde_json::{Value, json};

/// Tokenizer, chat template and end tokens of a model.
pub(crate) struct Words {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: ChatTemplate,
    /// Tokens that end an answer.
    pub(crate) ends: Vec<u32>,
}

/// A conversation as a model reads it.
#[derive(Debug)]
pub(crate) struct Prompt {
    /// At least one token, with room for the answer after them.
    pub(crate) tokens: Vec<u32>,
    /// Whether it ends within a thought that the model is to continue.
    pub(crate) opens_thought: bool,
}

impl Words {
    /// The prompt of a request to a model of `context` tokens.
    ///
    /// # Errors
    /// The template refuses the messages, or they leave no room for the answer.
    pub(crate) fn prompt(&self, request: &TextLlmRequest, context: usize) -> Result<Prompt> {
        let text = self.render(request)?;
        let tokens = self.tokenizer.encode(&text)?;
        let count = tokens.len();
        if count == 0 {
            return Err(Error::Unsupported("the model's chat template makes an empty prompt of these messages".into()));
        }
        match context.saturating_sub(count) {
            0 => {
                let message = format!("have {count} tokens and the model's context is {context}; shorten them");
                Err(Error::invalid("messages", message))
            }
            room if room < request.max_new_tokens => {
                let message = format!("after {count} tokens of messages the context of {context} has room for {room}");
                Err(Error::invalid("max_new_tokens", message))
            }
            _ => Ok(Prompt { tokens, opens_thought: opens_thought(&text) }),
        }
    }

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

    /// Whether the model thinks before it answers, as its template tells.
    pub(crate) fn thinking(&self) -> ThinkingSupport {
        let options = TemplateOptions { add_generation_prompt: true, ..TemplateOptions::default() };
        let prompt = self.template.render(&[json!({"role": "user", "content": "?"})], options);
        if self.template.mentions("enable_thinking") {
            ThinkingSupport::Optional
        } else if prompt.is_ok_and(|prompt| opens_thought(&prompt)) {
            ThinkingSupport::Always
        } else {
            ThinkingSupport::None
        }
    }
}

/// Whether a prompt ends within a thought that the model is to continue.
fn opens_thought(prompt: &str) -> bool {
    prompt.trim_end().ends_with("<think>")
}

fn message_json(message: &Message) -> Value {
    let mut json = json!({ "role": message.role, "content": message.text() });
    if let Some(thinking) = &message.thinking {
        json["reasoning_content"] = json!(thinking);
    }
    json
}

#[cfg(test)]
impl Words {
    /// Those of the demo model.
    pub(crate) fn demo() -> std::sync::Arc<Self> {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../assets/demo/tokenizer");
        let source = core_llm::WeightsSource::Dir(folder);
        let tokenizer = Tokenizer::load(&source, None).unwrap();
        let ends = tokenizer.token_id("<|im_end|>").into_iter().collect();
        Self { tokenizer, template: ChatTemplate::load(&source, None).unwrap(), ends }.into()
    }
}
