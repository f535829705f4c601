//! `POST /v1/completions`: texts continued as they stand, without a chat template.

use super::OpenAiError;
use super::answers::{UsageBody, reason};
use super::options::{MAX_ANSWERS, Options, Texts};
use super::text::{Streamed, Work, epoch, text_id};
use crate::AppState;
use crate::error::ErrorBody;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use core_llm::{StreamEvent, TextLlmRequest, TokenLogprob};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Longest answer when nothing is asked for, as OpenAI has it.
const MAX_TOKENS: usize = 16;

/// Texts to continue.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CompletionBody {
    /// A text, or several that are continued each by itself.
    prompt: Texts,
    /// Whether the answer begins with the prompt.
    echo: Option<bool>,
    /// Gives the probability of every token, and of so many of the likeliest beside it, 0 to 20.
    logprobs: Option<usize>,
}

/// The body as the document shows it.
#[derive(ToSchema)]
#[schema(as = CompletionRequest)]
#[allow(dead_code)] // for the document
pub(crate) struct CompletionRequest {
    #[serde(flatten)]
    options: Options,
    #[serde(flatten)]
    body: CompletionBody,
}

/// Continued texts.
#[derive(Serialize, ToSchema)]
pub(crate) struct Completion {
    id: String,
    /// `text_completion`.
    object: &'static str,
    /// Unix seconds.
    created: u64,
    model: String,
    /// All of the first text, then all of the next one.
    choices: Vec<CompletionChoice>,
    usage: UsageBody,
}

/// A continued text.
#[derive(Serialize, ToSchema)]
struct CompletionChoice {
    index: usize,
    text: String,
    /// `stop` or `length`; null in mid-stream.
    finish_reason: Option<&'static str>,
    logprobs: Option<TokenLists>,
}

/// The tokens of a text.
#[derive(Serialize, ToSchema)]
struct TokenLists {
    tokens: Vec<String>,
    /// Natural logarithms of their probabilities.
    token_logprobs: Vec<f64>,
    /// The likeliest tokens of each place.
    top_logprobs: Vec<BTreeMap<String, f64>>,
    /// Where each token begins, in characters from the beginning of the choice's text.
    text_offset: Vec<usize>,
}

impl TokenLists {
    /// Lists of tokens, the first of which begins at `offset`; moves that behind the last.
    fn of(tokens: &[TokenLogprob], offset: &mut usize) -> Self {
        let mut lists =
            Self { tokens: Vec::new(), token_logprobs: Vec::new(), top_logprobs: Vec::new(), text_offset: Vec::new() };
        for token in tokens {
            // JSON has no infinity.
            let finite = |logprob: f32| f64::from(logprob.max(-9999.0));
            let top = token.top.iter().map(|choice| (choice.text.clone(), finite(choice.logprob)));
            lists.top_logprobs.push(top.collect());
            lists.text_offset.push(*offset);
            *offset += token.token.text.chars().count();
            lists.tokens.push(token.token.text.clone());
            lists.token_logprobs.push(finite(token.token.logprob));
        }
        lists
    }
}

/// Continues texts, whole or as server-sent events. The work stops when the client goes.
#[utoipa::path(post, path = "/v1/completions", tag = "openai", request_body = CompletionRequest,
    responses((status = 200, content((Completion = "application/json"), (String = "text/event-stream"))),
        (status = 404, body = ErrorBody), (status = 422, body = ErrorBody)))]
pub(crate) async fn completions(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, OpenAiError> {
    let (mut options, body) = Options::read::<CompletionBody>(&state, &headers, body).await?;
    let prompts = body.prompt.texts();
    if prompts.is_empty() || prompts.len() > MAX_ANSWERS {
        return Err(OpenAiError::field("prompt", format!("prompt must be 1 to {MAX_ANSWERS} texts")));
    }
    let echo = body.echo == Some(true);
    if echo && body.logprobs.is_some() {
        return Err(OpenAiError::field("echo", "echo can't be given with logprobs: those of a prompt aren't computed"));
    }
    let n = options.count(prompts.len())?;
    let mut requests = Vec::new();
    for prompt in &prompts {
        let base = TextLlmRequest::continuing(prompt, options.max_tokens.unwrap_or(MAX_TOKENS));
        requests.extend(options.apply(&TextLlmRequest { logprobs: body.logprobs, ..base }, n)?);
    }
    // What each answer begins with.
    let begins = prompts.into_iter().map(|prompt| if echo { prompt } else { String::new() });
    let begins: Vec<String> = begins.flat_map(|begin| std::iter::repeat_n(begin, n)).collect();
    let work = Work::start(&state, options.model.take().unwrap_or_default(), requests).await?;
    if options.streams() {
        return Ok(stream(work, n, begins, body.logprobs.is_some(), options.includes_usage()));
    }
    let model = work.model.clone();
    let outputs = work.outputs().await?;
    let usage = UsageBody::of(outputs.iter().map(|output| output.usage).enumerate(), n);
    let choices = outputs.into_iter().zip(begins).enumerate().map(|(index, (output, begin))| CompletionChoice {
        index,
        text: begin + &output.text,
        finish_reason: Some(reason(output.finish_reason)),
        logprobs: body.logprobs.map(|_| TokenLists::of(&output.logprobs, &mut 0)),
    });
    let (id, object, created, choices) = (text_id("cmpl"), "text_completion", epoch(), choices.collect());
    Ok(Json(Completion { id, object, created, model, choices, usage }).into_response())
}

fn stream(work: Work, n: usize, mut begins: Vec<String>, with_logprobs: bool, include_usage: bool) -> Response {
    let mut head = json!({"id": text_id("cmpl"), "object": "text_completion", "created": epoch(),
        "model": work.model, "choices": []});
    if include_usage {
        head["usage"] = Value::Null;
    }
    let (mut offsets, mut usages) = (vec![0; begins.len()], Vec::new());
    work.stream(move |streamed| {
        let mut chunk = head.clone();
        let choice = match streamed {
            Streamed::End => {
                chunk["usage"] = json!(UsageBody::of(usages.iter().copied(), n));
                return if include_usage { vec![chunk] } else { Vec::new() };
            }
            Streamed::Event(index, StreamEvent::Token { text, logprobs, .. }) => CompletionChoice {
                index,
                text: std::mem::take(&mut begins[index]) + &text,
                finish_reason: None,
                logprobs: with_logprobs.then(|| TokenLists::of(&logprobs, &mut offsets[index])),
            },
            Streamed::Event(index, StreamEvent::Done { finish_reason, usage }) => {
                usages.push((index, usage));
                let text = std::mem::take(&mut begins[index]);
                CompletionChoice { index, text, finish_reason: Some(reason(finish_reason)), logprobs: None }
            }
            // No tools are offered.
            Streamed::Event(_, StreamEvent::ToolCall(_)) => return Vec::new(),
        };
        chunk["choices"] = json!([choice]);
        vec![chunk]
    })
}
