//! `POST /v1/chat/completions`.

use super::text::{self, Streamed, Work, epoch, text_id};
use super::{OpenAiError, read};
use crate::AppState;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use core_llm::{
    Channel, Constraint, FinishReason, Message, MessageRole, SamplingParams, StreamEvent, TextLlmOutput,
    TextLlmRequest, Thinking, TokenChoice, TokenLogprob, ToolCall, ToolChoice,
};
use serde::Deserialize;
use serde_json::{Value, json};

/// A conversation to answer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChatBody {
    model: Option<String>,
    messages: Vec<ChatMessage>,
    #[serde(default)]
    stream: bool,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    /// Not OpenAI's, as `min_p` and `thinking`.
    top_k: Option<usize>,
    min_p: Option<f32>,
    thinking: Option<bool>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    seed: Option<i64>,
    stop: Option<Stop>,
    n: Option<u32>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    response_format: Option<Value>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    /// Read and of no effect here.
    #[allow(dead_code)]
    user: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Stop {
    One(String),
    Several(Vec<String>),
}

impl Stop {
    pub(crate) fn texts(stop: Option<Self>) -> Vec<String> {
        match stop {
            None => Vec::new(),
            Some(Self::One(text)) => vec![text],
            Some(Self::Several(texts)) => texts,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChatMessage {
    role: String,
    content: Option<Value>,
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<Value>>,
    tool_call_id: Option<String>,
    /// Read and of no effect here.
    #[allow(dead_code)]
    name: Option<String>,
    /// As clients send an answer back.
    #[allow(dead_code)]
    refusal: Option<String>,
}

fn message(index: usize, message: ChatMessage) -> Result<Message, OpenAiError> {
    let about = |field: &str, what: &str| OpenAiError::field(format!("messages[{index}].{field}"), what.to_owned());
    let role = match message.role.as_str() {
        "system" | "developer" => MessageRole::System,
        "user" => MessageRole::User,
        "assistant" => MessageRole::Assistant,
        "tool" => MessageRole::Tool,
        _ => return Err(about("role", "a role is system, developer, user, assistant or tool")),
    };
    let text = match message.content {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => {
            let texts = parts.iter().map(|part| part["text"].as_str().filter(|_| part["type"] == "text"));
            texts.collect::<Option<Vec<_>>>().ok_or_else(|| about("content", "only text parts are supported"))?.concat()
        }
        Some(_) => return Err(about("content", "content is a text or a list of parts")),
    };
    let call = |call: Value| {
        let arguments = serde_json::from_str(call["function"]["arguments"].as_str()?).ok()?;
        let (id, name) = (call["id"].as_str()?.to_owned(), call["function"]["name"].as_str()?.to_owned());
        Some(ToolCall { id, name, arguments })
    };
    let calls = message.tool_calls.unwrap_or_default().into_iter().map(call).collect::<Option<Vec<_>>>();
    Ok(Message {
        thinking: message.reasoning_content,
        tool_calls: calls.ok_or_else(|| about("tool_calls", "a call has an id, a name and arguments in JSON"))?,
        tool_call_id: message.tool_call_id,
        ..Message::new(role, text)
    })
}

fn constraint(format: Option<Value>) -> Result<Option<Constraint>, OpenAiError> {
    let Some(format) = format else { return Ok(None) };
    match format["type"].as_str() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Constraint::JsonSchema(json!({"type": "object"})))),
        Some("json_schema") if format["json_schema"]["schema"].is_object() => {
            Ok(Some(Constraint::JsonSchema(format["json_schema"]["schema"].clone())))
        }
        _ => Err(OpenAiError::field("response_format", "give text, json_object, or json_schema with its schema")),
    }
}

fn tool_choice(choice: Option<Value>) -> Result<ToolChoice, OpenAiError> {
    match choice {
        None => Ok(ToolChoice::Auto),
        Some(choice) => match (choice.as_str(), choice["function"]["name"].as_str()) {
            (Some("auto"), _) => Ok(ToolChoice::Auto),
            (Some("none"), _) => Ok(ToolChoice::None),
            (Some("required"), _) => Ok(ToolChoice::Required),
            (None, Some(name)) => Ok(ToolChoice::Named(name.to_owned())),
            _ => Err(OpenAiError::field("tool_choice", "give auto, none, required, or a function by name")),
        },
    }
}

impl ChatBody {
    fn request(self) -> Result<TextLlmRequest, OpenAiError> {
        if self.n.is_some_and(|n| n != 1) {
            return Err(OpenAiError::field("n", "one answer is given at a time; ask again for another"));
        }
        if self.top_logprobs.is_some() && self.logprobs != Some(true) {
            return Err(OpenAiError::field("top_logprobs", "needs logprobs to be true"));
        }
        let messages: Result<Vec<_>, _> = self.messages.into_iter().enumerate().map(|(i, m)| message(i, m)).collect();
        let most = self.max_completion_tokens.or(self.max_tokens).unwrap_or(TextLlmRequest::AS_MANY_AS_FIT);
        let of = SamplingParams::default();
        Ok(TextLlmRequest {
            sampling: SamplingParams {
                temperature: self.temperature.unwrap_or(1.0),
                top_p: self.top_p.unwrap_or(1.0),
                top_k: self.top_k.unwrap_or(of.top_k),
                min_p: self.min_p.unwrap_or(of.min_p),
                presence_penalty: self.presence_penalty.unwrap_or(0.0),
                frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
                ..of
            },
            seed: self.seed.map_or_else(text::random_seed, |seed| seed as u64),
            stop: Stop::texts(self.stop),
            constraint: constraint(self.response_format)?,
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

fn reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
    }
}

fn choice_json(choice: &TokenChoice) -> Value {
    json!({"token": choice.text, "logprob": choice.logprob.max(-9999.0), "bytes": choice.text.as_bytes()})
}

fn logprobs_json(tokens: &[TokenLogprob]) -> Value {
    let token = |token: &TokenLogprob| {
        let mut json = choice_json(&token.token);
        json["top_logprobs"] = token.top.iter().map(choice_json).collect();
        json
    };
    json!({"content": tokens.iter().map(token).collect::<Vec<_>>(), "refusal": null})
}

fn call_json(call: &ToolCall) -> Value {
    let function = json!({"name": call.name, "arguments": call.arguments.to_string()});
    json!({"id": call.id, "type": "function", "function": function})
}

fn answer(output: &TextLlmOutput, model: &str, with_logprobs: bool) -> Value {
    let mut message = json!({"role": "assistant", "content": output.text, "refusal": null});
    if let Some(thinking) = &output.thinking {
        message["reasoning_content"] = json!(thinking);
    }
    if !output.tool_calls.is_empty() {
        message["tool_calls"] = output.tool_calls.iter().map(call_json).collect();
        if output.text.trim().is_empty() {
            message["content"] = Value::Null;
        }
    }
    let logprobs = if with_logprobs { logprobs_json(&output.logprobs) } else { Value::Null };
    let choice =
        json!({"index": 0, "message": message, "finish_reason": reason(output.finish_reason), "logprobs": logprobs});
    json!({
        "id": text_id("chatcmpl"), "object": "chat.completion", "created": epoch(), "model": model,
        "choices": [choice], "usage": text::usage(output.usage),
    })
}

pub(crate) async fn completions(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, OpenAiError> {
    let mut body: ChatBody = read(&state, &headers, body).await?;
    let model = body.model.take().unwrap_or_default();
    let (stream, options) = (body.stream, body.stream_options.take());
    if options.is_some() && !stream {
        return Err(OpenAiError::field("stream_options", "needs stream to be true"));
    }
    let request = body.request()?;
    let with_logprobs = request.logprobs.is_some();
    let work = Work::start(&state, model, request).await?;
    let name = work.model.clone();
    if !stream {
        return Ok(Json(answer(&work.output().await?, &name, with_logprobs)).into_response());
    }
    let head = json!({"id": text_id("chatcmpl"), "object": "chat.completion.chunk", "created": epoch(), "model": name});
    let chunk = move |delta: Value, finish: Option<&str>, logprobs: Value| {
        let mut chunk = head.clone();
        chunk["choices"] = json!([{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}]);
        chunk
    };
    let include_usage = options.is_some_and(|options| options.include_usage);
    let (mut calls, mut first) = (0, true);
    Ok(work.stream(move |event| {
        let mut chunks = Vec::new();
        if std::mem::take(&mut first) {
            chunks.push(chunk(json!({"role": "assistant", "content": ""}), None, Value::Null));
        }
        match event {
            Streamed::Event(StreamEvent::Token { text, channel, logprobs }) => {
                let key = if channel == Channel::Content { "content" } else { "reasoning_content" };
                let logprobs = if with_logprobs { logprobs_json(&logprobs) } else { Value::Null };
                chunks.push(chunk(json!({ key: text }), None, logprobs));
            }
            Streamed::Event(StreamEvent::ToolCall(call)) => {
                let mut json = call_json(&call);
                json["index"] = json!(calls);
                calls += 1;
                chunks.push(chunk(json!({ "tool_calls": [json] }), None, Value::Null));
            }
            Streamed::Event(StreamEvent::Done { finish_reason, usage }) => {
                chunks.push(chunk(json!({}), Some(reason(finish_reason)), Value::Null));
                if include_usage {
                    let mut last = chunk(json!({}), None, Value::Null);
                    last["choices"] = json!([]);
                    last["usage"] = text::usage(usage);
                    chunks.push(last);
                }
            }
        }
        chunks
    }))
}
