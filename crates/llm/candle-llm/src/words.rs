//! What lies between a model's tokens and text that people read: tokenizer, chat template and end tokens.

use crate::constraint::Matchers;
use crate::tools::{ToolStyle, in_plain_words, message_json};
use core_llm::{Error, Result, TextLlmRequest, Thinking, ThinkingSupport};
use layers::text::{ChatTemplate, TemplateOptions, Tokenizer};
use serde_json::{Value, json};
use std::sync::OnceLock;

/// Bytes of a token at the most generous: tokens of long runs of spaces are the longest.
const MAX_TOKEN_BYTES: usize = 256;

/// Tokenizer, chat template and end tokens of a model.
pub(crate) struct Words {
    pub(crate) tokenizer: Tokenizer,
    /// `None` of a model that was never taught to chat.
    pub(crate) template: Option<ChatTemplate>,
    /// Tokens that end an answer.
    pub(crate) ends: Vec<u32>,
    pub(crate) tool_style: ToolStyle,
    /// Made when a constraint first needs it.
    matchers: OnceLock<Result<Matchers, String>>,
}

/// A conversation as a model reads it.
#[derive(Debug)]
pub(crate) struct Prompt {
    /// At least one token, with room for the answer after them.
    pub(crate) tokens: Vec<u32>,
    /// Tokens that fit behind it.
    pub(crate) room: usize,
    /// Whether it ends within a thought that the model is to continue.
    pub(crate) opens_thought: bool,
}

impl Words {
    pub(crate) fn new(tokenizer: Tokenizer, template: Option<ChatTemplate>, ends: Vec<u32>) -> Self {
        let tool_style = ToolStyle::of_template(|text| template.as_ref().is_some_and(|t| t.mentions(text)));
        Self { tokenizer, template, ends, tool_style, matchers: OnceLock::new() }
    }

    /// What matches this model's tokens.
    ///
    /// # Errors
    /// Its tokenizer is of a kind that can't be matched.
    pub(crate) fn matchers(&self) -> Result<&Matchers> {
        let made = self.matchers.get_or_init(|| Matchers::new(&self.tokenizer, &self.ends));
        made.as_ref().map_err(|problem| {
            Error::invalid("constraint", format!("can't be followed with this model's tokenizer: {problem}"))
        })
    }

    /// The prompt of a request to a model of `context` tokens.
    ///
    /// # Errors
    /// The template refuses the messages, or they leave no room for the answer.
    pub(crate) fn prompt(&self, request: &TextLlmRequest, context: usize) -> Result<Prompt> {
        let (text, field) = match &request.prompt {
            Some(prompt) => (prompt.clone(), "prompt"),
            None => (self.render(request)?, "messages"),
        };
        // Encoding what can't fit would take seconds; no real text has this many bytes a token.
        let longest = MAX_TOKEN_BYTES * context;
        if text.len() > longest {
            return Err(Error::invalid(field, format!("have {} bytes, far more than {context} tokens", text.len())));
        }
        let tokens = match &request.prompt {
            Some(_) => self.tokenizer.encode_whole(&text)?,
            None => self.tokenizer.encode(&text)?,
        };
        let count = tokens.len();
        if count == 0 {
            return Err(Error::invalid(field, "the model makes an empty prompt of this"));
        }
        match context.saturating_sub(count) {
            0 => {
                let message = format!("{count} tokens and the model's context is {context}; shorten the {field}");
                Err(Error::invalid(field, message))
            }
            room if room < request.max_new_tokens && request.max_new_tokens != TextLlmRequest::AS_MANY_AS_FIT => {
                let message = format!("after {count} tokens of {field} the context of {context} has room for {room}");
                Err(Error::invalid("max_new_tokens", message))
            }
            room => Ok(Prompt { tokens, room, opens_thought: request.prompt.is_none() && opens_thought(&text) }),
        }
    }

    fn render(&self, request: &TextLlmRequest) -> Result<String> {
        let template = self.template.as_ref().ok_or_else(|| {
            let message =
                "this model has no chat template, so it was not taught to chat; have it continue a text instead";
            Error::invalid("messages", message)
        })?;
        let tools = request.offered_tools();
        let knows_tools = template.mentions("tools");
        let messages: Vec<Value> = if knows_tools {
            request.messages.iter().map(message_json).collect()
        } else {
            in_plain_words(&request.messages, tools, &request.tool_choice).iter().map(message_json).collect()
        };
        let options = TemplateOptions {
            add_generation_prompt: true,
            enable_thinking: match request.thinking {
                Thinking::Auto => None,
                Thinking::Enabled => Some(true),
                Thinking::Disabled => Some(false),
            },
            tools: (knows_tools && !tools.is_empty()).then_some(tools),
        };
        template.render(&messages, options)
    }

    /// Whether the model thinks before it answers, as its template tells.
    pub(crate) fn thinking(&self) -> ThinkingSupport {
        let options = TemplateOptions { add_generation_prompt: true, ..TemplateOptions::default() };
        let Some(template) = &self.template else { return ThinkingSupport::None };
        let prompt = template.render(&[json!({"role": "user", "content": "?"})], options);
        if template.mentions("enable_thinking") {
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

#[cfg(test)]
impl Words {
    /// Those of the demo model.
    pub(crate) fn demo() -> std::sync::Arc<Self> {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../assets/demo/tokenizer");
        let source = core_llm::WeightsSource::Dir(folder);
        let tokenizer = Tokenizer::load(&source, None).unwrap();
        let ends = tokenizer.token_id("<|im_end|>").into_iter().collect();
        Self::new(tokenizer, ChatTemplate::load(&source, None).unwrap(), ends).into()
    }
}
