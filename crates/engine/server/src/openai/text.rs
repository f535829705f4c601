//! What the text routes share: an answer in the making on a thread of its own, which stops when its client goes.

use super::OpenAiError;
use crate::{ApiError, AppState};
use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use core_llm::{CancelFlag, Error, StreamEvent, TextLlmOutput, TextLlmRequest, Usage};
use serde_json::{Value, json};
use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// What a stream is made of.
pub(crate) enum Streamed {
    Event(StreamEvent),
}

enum Told {
    Event(StreamEvent),
    End(Box<Result<TextLlmOutput, Error>>),
}

/// Cancels when it is dropped: with the request of a client that has gone.
struct Held(CancelFlag);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// An answer in the making.
pub(crate) struct Work {
    /// The model's name.
    pub(crate) model: String,
    first: Option<Told>,
    told: UnboundedReceiver<Told>,
    held: Held,
}

pub(crate) fn text_id(kind: &str) -> String {
    format!("{kind}-{:016x}", random_seed())
}

pub(crate) fn random_seed() -> u64 {
    RandomState::new().hash_one(0)
}

/// Seconds since 1970.
pub(crate) fn epoch() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

pub(crate) fn usage(usage: Usage) -> Value {
    let total = usage.prompt_tokens + usage.completion_tokens;
    json!({"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens, "total_tokens": total})
}

/// An error of a model as clients get it.
pub(crate) fn refusal(error: Error) -> OpenAiError {
    match error {
        Error::InvalidRequest { field, message } => {
            let field = match field {
                "max_new_tokens" => "max_tokens",
                "constraint" => "response_format",
                other => other,
            };
            if field == "model" && message.contains("there is no") {
                let error = ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message);
                return OpenAiError { error, param: Some(field.to_owned()) };
            }
            OpenAiError::field(field, format!("{field}: {message}"))
        }
        Error::Unsupported(_) | Error::Weights { .. } | Error::MissingComponent { .. } => {
            ApiError::invalid(error.to_string()).into()
        }
        other => {
            tracing::error!(error = %other, "text");
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", other.to_string()).into()
        }
    }
}

impl Work {
    /// Starts an answer; gives it once it has something to say, so that a refusal is one.
    pub(crate) async fn start(state: &AppState, model: String, request: TextLlmRequest) -> Result<Self, OpenAiError> {
        let held = Held(request.cancel.clone());
        let engine = state.engine();
        let (tell, mut told) = unbounded_channel();
        let found = tokio::task::spawn_blocking(move || {
            engine.refresh_models();
            let language = engine.nodes().language();
            let name = language.find(&model).map(|file| file.name)?;
            let loaded = language.language(&model, &request.cancel)?;
            Ok((loaded, request, if model.is_empty() { name } else { model }))
        });
        let (loaded, request, model) = found.await.map_err(|_| gone())?.map_err(refusal)?;
        tokio::task::spawn_blocking(move || {
            let output = loaded.generate(&request, &mut |event| {
                if tell.send(Told::Event(event)).is_err() {
                    request.cancel.cancel();
                }
            });
            let _ = tell.send(Told::End(Box::new(output)));
        });
        match told.recv().await {
            None => Err(gone()),
            Some(Told::End(end)) if end.is_err() => Err(end.err().map_or_else(gone, refusal)),
            first => Ok(Self { model, first, told, held }),
        }
    }

    /// The whole answer.
    pub(crate) async fn output(mut self) -> Result<TextLlmOutput, OpenAiError> {
        loop {
            let next = match self.first.take() {
                Some(first) => Some(first),
                None => self.told.recv().await,
            };
            match next {
                Some(Told::Event(_)) => {}
                Some(Told::End(output)) => return output.map_err(refusal),
                None => return Err(gone()),
            }
        }
    }

    /// The answer as server-sent events: `chunks` of each event, and `[DONE]` at the end.
    pub(crate) fn stream(self, chunks: impl FnMut(Streamed) -> Vec<Value> + Send + 'static) -> Response {
        let Self { first, told, held, .. } = self;
        let begin = (first, told, held, chunks, false);
        let stream = futures::stream::unfold(begin, |(mut first, mut told, held, mut chunks, ended)| async move {
            if ended {
                return None;
            }
            let next = match first.take() {
                Some(first) => Some(first),
                None => told.recv().await,
            };
            let (text, ended) = match next {
                Some(Told::Event(event)) => {
                    let lines = chunks(Streamed::Event(event)).into_iter().map(|chunk| format!("data: {chunk}\n\n"));
                    (lines.collect::<String>(), false)
                }
                Some(Told::End(output)) => match *output {
                    Ok(_) => ("data: [DONE]\n\n".to_owned(), true),
                    Err(error) => (format!("data: {}\n\n", refusal(error).error.to_json()), true),
                },
                None => return None,
            };
            Some((Ok::<_, std::convert::Infallible>(Bytes::from(text)), (first, told, held, chunks, ended)))
        });
        let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
        (headers, Body::from_stream(stream)).into_response()
    }
}

fn gone() -> OpenAiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the model failed; the engine's log has the details")
        .into()
}
