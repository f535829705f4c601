//! `POST /v1/chat/completions`.

use super::OpenAiError;
use super::answers::{UsageBody, reason};
use super::chat_body::ChatBody;
use super::options::Options;
use super::text::{Streamed, Work, epoch, text_id};
use crate::AppState;
use crate::error::ErrorBody;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use core_llm::{Channel, StreamEvent, TextLlmOutput, TokenChoice, TokenLogprob, ToolCall};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

/// The body as the document shows it.
#[derive(ToSchema)]
#[schema(as = ChatRequest)]
#[allow(dead_code)] // for the document
pub(crate) struct ChatRequest {
    #[serde(flatten)]
    options: Options,
    #[serde(flatten)]
    body: ChatBody,
}

/// Answers to a conversation.
#[derive(Serialize, ToSchema)]
pub(crate) struct ChatCompletion {
    id: String,
    /// `chat.completion`.
    object: &'static str,
    /// Unix seconds.
    created: u64,
    model: String,
    choices: Vec<ChatChoice>,
    usage: UsageBody,
}

/// An answer.
#[derive(Serialize, ToSchema)]
struct ChatChoice {
    index: usize,
    message: AnswerMessage,
    /// `stop`, `length` or `tool_calls`.
    finish_reason: &'static str,
    logprobs: Option<Logprobs>,
}

#[derive(Serialize, ToSchema)]
struct AnswerMessage {
    /// `assistant`.
    role: &'static str,
    /// Null where there are only calls.
    content: Option<String>,
    /// Always null.
    #[schema(value_type = Option<String>)]
    refusal: Value,
    /// What the model thought before (not OpenAI's).
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<MadeCall>,
}

/// A call that the model wants made.
#[derive(Serialize, ToSchema)]
struct MadeCall {
    /// Which of the answer's calls it is; in streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    id: String,
    /// `function`.
    r#type: &'static str,
    function: MadeFunction,
}

#[derive(Serialize, ToSchema)]
struct MadeFunction {
    name: String,
    /// A JSON object, as a text.
    arguments: String,
}

/// The tokens of an answer.
#[derive(Serialize, ToSchema)]
struct Logprobs {
    content: Vec<TokenBody>,
    /// Always null.
    #[schema(value_type = Option<String>)]
    refusal: Value,
}

#[derive(Serialize, ToSchema)]
struct TokenBody {
    #[serde(flatten)]
    token: ChoiceBody,
    top_logprobs: Vec<ChoiceBody>,
}

#[derive(Serialize, ToSchema)]
struct ChoiceBody {
    token: String,
    /// Natural logarithm of its probability.
    logprob: f64,
    bytes: Vec<u8>,
}

impl ChoiceBody {
    fn of(choice: &TokenChoice) -> Self {
        let (token, bytes) = (choice.text.clone(), choice.text.clone().into_bytes());
        // JSON has no infinity.
        Self { token, logprob: f64::from(choice.logprob.max(-9999.0)), bytes }
    }
}

impl Logprobs {
    fn of(tokens: &[TokenLogprob]) -> Self {
        let token = |token: &TokenLogprob| TokenBody {
            token: ChoiceBody::of(&token.token),
            top_logprobs: token.top.iter().map(ChoiceBody::of).collect(),
        };
        Self { content: tokens.iter().map(token).collect(), refusal: Value::Null }
    }
}

impl MadeCall {
    fn of(call: &ToolCall, index: Option<usize>) -> Self {
        let function = MadeFunction { name: call.name.clone(), arguments: call.arguments.to_string() };
        Self { index, id: call.id.clone(), r#type: "function", function }
    }
}

impl ChatChoice {
    fn of(index: usize, output: TextLlmOutput, with_logprobs: bool) -> Self {
        let calls: Vec<MadeCall> = output.tool_calls.iter().map(|call| MadeCall::of(call, None)).collect();
        let nothing_said = !calls.is_empty() && output.text.trim().is_empty();
        let message = AnswerMessage {
            role: "assistant",
            content: (!nothing_said).then_some(output.text),
            refusal: Value::Null,
            reasoning_content: output.thinking,
            tool_calls: calls,
        };
        let logprobs = with_logprobs.then(|| Logprobs::of(&output.logprobs));
        Self { index, message, finish_reason: reason(output.finish_reason), logprobs }
    }
}

/// Answers a conversation, whole or as server-sent events. The work stops when the client goes.
#[utoipa::path(post, path = "/v1/chat/completions", tag = "openai", request_body = ChatRequest,
    responses((status = 200, content((ChatCompletion = "application/json"), (String = "text/event-stream"))),
        (status = 404, body = ErrorBody), (status = 422, body = ErrorBody)))]
pub(crate) async fn completions(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, OpenAiError> {
    let (mut options, body) = Options::read::<ChatBody>(&state, &headers, body).await?;
    let n = options.count(1)?;
    let base = body.request(options.max_tokens)?;
    let with_logprobs = base.logprobs.is_some();
    let requests = options.apply(&base, n)?;
    let work = Work::start(&state, options.model.take().unwrap_or_default(), requests).await?;
    if options.streams() {
        return Ok(stream(work, n, with_logprobs, options.includes_usage()));
    }
    let model = work.model.clone();
    let outputs = work.outputs().await?;
    let usage = UsageBody::of(outputs.iter().map(|output| output.usage).enumerate(), n);
    let choices = outputs.into_iter().enumerate();
    let choices = choices.map(|(index, output)| ChatChoice::of(index, output, with_logprobs)).collect();
    let (id, object, created) = (text_id("chatcmpl"), "chat.completion", epoch());
    Ok(Json(ChatCompletion { id, object, created, model, choices, usage }).into_response())
}

fn stream(work: Work, n: usize, with_logprobs: bool, include_usage: bool) -> Response {
    let mut head = json!({"id": text_id("chatcmpl"), "object": "chat.completion.chunk", "created": epoch(),
        "model": work.model, "choices": []});
    if include_usage {
        head["usage"] = Value::Null;
    }
    let chunk = {
        let head = head.clone();
        move |index: usize, delta: Value, finish: Option<&str>, logprobs: Option<Logprobs>| {
            let mut chunk = head.clone();
            chunk["choices"] = json!([{"index": index, "delta": delta, "finish_reason": finish, "logprobs": logprobs}]);
            chunk
        }
    };
    let (mut silent, mut calls, mut usages) = (vec![true; n], vec![0; n], Vec::new());
    work.stream(move |streamed| {
        let mut chunks = Vec::new();
        let Streamed::Event(index, event) = streamed else {
            if include_usage {
                head["usage"] = json!(UsageBody::of(usages.iter().copied(), n));
                chunks.push(head.clone());
            }
            return chunks;
        };
        if std::mem::take(&mut silent[index]) {
            chunks.push(chunk(index, json!({"role": "assistant", "content": ""}), None, None));
        }
        chunks.push(match event {
            StreamEvent::Token { text, channel, logprobs } => {
                let key = if channel == Channel::Content { "content" } else { "reasoning_content" };
                chunk(index, json!({ key: text }), None, with_logprobs.then(|| Logprobs::of(&logprobs)))
            }
            StreamEvent::ToolCall(call) => {
                let call = MadeCall::of(&call, Some(calls[index]));
                calls[index] += 1;
                chunk(index, json!({ "tool_calls": [call] }), None, None)
            }
            StreamEvent::Done { finish_reason, usage } => {
                usages.push((index, usage));
                chunk(index, json!({}), Some(reason(finish_reason)), None)
            }
        });
        chunks
    })
}
