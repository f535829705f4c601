//! What is asked of `POST /v1/chat/completions`, as a request to a model.

use super::{OpenAiError, parse_part};
use core_llm::{Constraint, MAX_TOP_LOGPROBS, Message, MessageRole, TextLlmRequest, Thinking, ToolCall, ToolChoice};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

/// A conversation to answer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChatBody {
    /// At least one.
    messages: Vec<ChatMessage>,
    /// The same as `max_tokens`, by its newer name.
    pub(crate) max_completion_tokens: Option<usize>,
    /// Functions that the model may call.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Vec<Value>>,
    /// `auto`, `none`, `required`, or `{"type": "function", "function": {"name": …}}`.
    #[schema(value_type = Option<Object>)]
    tool_choice: Option<Value>,
    /// `{"type": "text"}`, `{"type": "json_object"}`, or a schema.
    response_format: Option<AnswerFormat>,
    /// Gives the probability of every token.
    logprobs: Option<bool>,
    /// And of so many of the likeliest beside it, 0 to 20.
    top_logprobs: Option<usize>,
    /// For models that can think before they answer: whether to (not OpenAI's).
    thinking: Option<bool>,
}

/// Who says what.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ChatMessage {
    role: Role,
    /// A text, or a list of parts `{"type": "text", "text": …}`.
    #[schema(value_type = Option<Object>)]
    content: Option<Value>,
    /// What the assistant thought (not OpenAI's).
    reasoning_content: Option<String>,
    /// Calls that the assistant made.
    tool_calls: Option<Vec<Call>>,
    /// The call that a tool answers.
    tool_call_id: Option<String>,
    /// Read and of no effect here.
    #[allow(dead_code)] // reading it checks it
    name: Option<String>,
    /// As clients send an answer back.
    #[allow(dead_code)] // reading it checks it
    refusal: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    #[allow(dead_code)] // read before
    r#type: String,
    text: String,
}

/// A call of a function.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Call {
    id: String,
    #[allow(dead_code)] // reading it checks it
    r#type: Option<CallKind>,
    function: Called,
}

#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum CallKind {
    Function,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Called {
    name: String,
    /// A JSON object, as a text.
    arguments: String,
}

/// What the answer must be.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum AnswerFormat {
    /// Any text.
    Text {},
    /// A JSON object.
    JsonObject {},
    /// A document of a JSON schema.
    JsonSchema { json_schema: NamedSchema },
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NamedSchema {
    #[allow(dead_code)] // reading it checks it
    name: Option<String>,
    #[allow(dead_code)] // reading it checks it
    description: Option<String>,
    #[schema(value_type = Object)]
    schema: Value,
    /// It always is.
    #[allow(dead_code)] // reading it checks it
    strict: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedChoice {
    #[allow(dead_code)] // reading it checks it
    r#type: CallKind,
    function: ChosenName,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChosenName {
    name: String,
}

impl ChatBody {
    /// The request, but for the options that all text routes share.
    ///
    /// # Errors
    /// The first field that can't be followed, by name.
    pub(crate) fn request(self, max_tokens: Option<usize>) -> Result<TextLlmRequest, OpenAiError> {
        if self.top_logprobs.is_some() && self.logprobs != Some(true) {
            return Err(OpenAiError::field("top_logprobs", "top_logprobs needs logprobs to be true"));
        }
        if max_tokens.is_some() && self.max_completion_tokens.is_some() {
            return Err(OpenAiError::field(
                "max_tokens",
                "give max_tokens or max_completion_tokens, which mean the same",
            ));
        }
        if self.top_logprobs.is_some_and(|top| top > MAX_TOP_LOGPROBS) {
            let message = format!("top_logprobs must be at most {MAX_TOP_LOGPROBS}");
            return Err(OpenAiError::field("top_logprobs", message));
        }
        if self.max_completion_tokens == Some(0) {
            return Err(OpenAiError::field("max_completion_tokens", "max_completion_tokens must be at least 1"));
        }
        let messages: Result<Vec<_>, _> = self.messages.into_iter().enumerate().map(|(i, m)| message(i, m)).collect();
        let most = self.max_completion_tokens.or(max_tokens).unwrap_or(TextLlmRequest::AS_MANY_AS_FIT);
        Ok(TextLlmRequest {
            constraint: match self.response_format {
                None | Some(AnswerFormat::Text {}) => None,
                Some(AnswerFormat::JsonObject {}) => Some(Constraint::JsonSchema(json!({"type": "object"}))),
                Some(AnswerFormat::JsonSchema { json_schema }) => Some(Constraint::JsonSchema(json_schema.schema)),
            },
            tools: self.tools.unwrap_or_default(),
            tool_choice: tool_choice(self.tool_choice)?,
            logprobs: (self.logprobs == Some(true)).then(|| self.top_logprobs.unwrap_or(0)),
            thinking: match self.thinking {
                None => Thinking::Auto,
                Some(true) => Thinking::Enabled,
                Some(false) => Thinking::Disabled,
            },
            ..TextLlmRequest::new(messages?, most)
        })
    }
}

fn message(index: usize, message: ChatMessage) -> Result<Message, OpenAiError> {
    let place = |field: &str| format!("messages[{index}].{field}");
    let about = |field: &str, what: &str| OpenAiError::field(place(field), format!("{}: {what}", place(field)));
    let role = match message.role {
        Role::System | Role::Developer => MessageRole::System,
        Role::User => MessageRole::User,
        Role::Assistant => MessageRole::Assistant,
        Role::Tool => MessageRole::Tool,
    };
    let assistant = role == MessageRole::Assistant;
    if message.tool_calls.is_some() && !assistant {
        return Err(about("tool_calls", "only the assistant calls tools"));
    }
    if message.tool_call_id.is_some() != (role == MessageRole::Tool) {
        return Err(about("tool_call_id", "a message of the role tool has one, and no other has"));
    }
    let text = match message.content {
        None | Some(Value::Null) if assistant => String::new(),
        None | Some(Value::Null) => return Err(about("content", "only an answer of the assistant may lack it")),
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => {
            let parts = parts.into_iter().enumerate();
            parts.map(|(at, part)| part_text(&format!("{}[{at}]", place("content")), part)).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(about("content", "must be a text or a list of parts")),
    };
    let calls = message.tool_calls.unwrap_or_default().into_iter().enumerate().map(|(at, call)| {
        let arguments = if call.function.arguments.trim().is_empty() { "{}" } else { &call.function.arguments };
        let arguments = serde_json::from_str(arguments).ok().filter(Value::is_object).ok_or_else(|| {
            about(&format!("tool_calls[{at}].function.arguments"), "must be a JSON object, written as a text")
        })?;
        Ok(ToolCall { id: call.id, name: call.function.name, arguments })
    });
    Ok(Message {
        thinking: message.reasoning_content,
        tool_calls: calls.collect::<Result<_, OpenAiError>>()?,
        tool_call_id: message.tool_call_id,
        ..Message::new(role, text)
    })
}

fn part_text(place: &str, part: Value) -> Result<String, OpenAiError> {
    match part["type"].as_str() {
        Some(kind) if kind != "text" => {
            let message =
                format!("{place}: only parts of the type text are supported, not '{}'", crate::runs::short(kind));
            Err(OpenAiError::field(format!("{place}.type"), message))
        }
        _ => parse_part::<Part>(place, part).map(|part| part.text),
    }
}

fn tool_choice(choice: Option<Value>) -> Result<ToolChoice, OpenAiError> {
    match choice {
        None => Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" => Ok(ToolChoice::Required),
            _ => Err(OpenAiError::field("tool_choice", "tool_choice must be auto, none, required, or name a function")),
        },
        Some(named) => {
            parse_part::<NamedChoice>("tool_choice", named).map(|choice| ToolChoice::Named(choice.function.name))
        }
    }
}
