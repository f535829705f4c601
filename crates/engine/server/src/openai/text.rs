//! What the text routes share: answers in the making, each on a thread of its own, which stop when their client goes.

use super::OpenAiError;
use super::options::random_seed;
use crate::{ApiError, AppState};
use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use core_llm::{CancelFlag, Error, StreamEvent, TextLlm, TextLlmOutput, TextLlmRequest};
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// What a stream is made of.
pub(crate) enum Streamed {
    /// Something of the answer of that number.
    Event(usize, StreamEvent),
    /// All answers have ended well.
    End,
}

enum Told {
    Event(StreamEvent),
    End(Box<Result<TextLlmOutput, Error>>),
}

/// Cancels when it is dropped: with the request of a client that has gone.
pub(crate) struct Held(pub(crate) CancelFlag);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Answers in the making.
pub(crate) struct Work {
    /// The model's name.
    pub(crate) model: String,
    /// What was told before anything could be given out.
    early: VecDeque<(usize, Told)>,
    told: UnboundedReceiver<(usize, Told)>,
    answers: usize,
    _held: Held,
}

/// Unique name of an answer.
pub(crate) fn text_id(kind: &str) -> String {
    format!("{kind}-{:016x}", random_seed())
}

/// Seconds since 1970.
pub(crate) fn epoch() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// An error of a model as clients get it.
pub(crate) fn refusal(error: Error) -> OpenAiError {
    match error {
        Error::InvalidRequest { field: "model", message } => {
            let error = ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message);
            OpenAiError { error, param: Some("model".to_owned()) }
        }
        Error::InvalidRequest { field, message } => {
            let field = match field {
                "max_new_tokens" => "max_tokens",
                "constraint" => "response_format",
                other => other,
            };
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
    /// Starts an answer to each request; gives them once each has something to say, so that a refusal is one.
    ///
    /// # Errors
    /// There is no such model, or it refuses a request.
    pub(crate) async fn start(
        state: &AppState,
        model: String,
        requests: Vec<TextLlmRequest>,
    ) -> Result<Self, OpenAiError> {
        let held = Held(CancelFlag::new());
        let (engine, cancel) = (state.engine(), held.0.clone());
        let found = tokio::task::spawn_blocking(move || -> core_llm::Result<_> {
            engine.refresh_models();
            let language = engine.nodes().language();
            let file = language.find(&model)?;
            Ok((language.language(&file, &cancel)?, if model.is_empty() { file.id().to_owned() } else { model }))
        });
        let (loaded, model) = found.await.map_err(|_| gone())?.map_err(refusal)?;
        let (tell, told) = unbounded_channel();
        let answers = requests.len();
        for (index, request) in requests.into_iter().enumerate() {
            let request = TextLlmRequest { cancel: held.0.clone(), ..request };
            let (loaded, tell) = (Arc::clone(&loaded), tell.clone());
            tokio::task::spawn_blocking(move || answer(&*loaded, &request, index, &tell));
        }
        drop(tell);
        let mut work = Self { model, early: VecDeque::new(), told, answers, _held: held };
        let mut silent: Vec<bool> = vec![true; answers];
        while silent.contains(&true) {
            let (index, told) = work.told.recv().await.ok_or_else(gone)?;
            silent[index] = false;
            match told {
                Told::End(end) if end.is_err() => return Err(end.err().map_or_else(gone, refusal)),
                told => work.early.push_back((index, told)),
            }
        }
        Ok(work)
    }

    async fn next(&mut self) -> Option<(usize, Told)> {
        match self.early.pop_front() {
            Some(early) => Some(early),
            None => self.told.recv().await,
        }
    }

    /// The whole answers, in the order of their requests.
    ///
    /// # Errors
    /// A model failed in mid-answer.
    pub(crate) async fn outputs(mut self) -> Result<Vec<TextLlmOutput>, OpenAiError> {
        let mut outputs: Vec<Option<TextLlmOutput>> = vec![None; self.answers];
        while outputs.iter().any(Option::is_none) {
            let (index, told) = self.next().await.ok_or_else(gone)?;
            if let Told::End(output) = told {
                outputs[index] = Some((*output).map_err(refusal)?);
            }
        }
        Ok(outputs.into_iter().flatten().collect())
    }

    /// The answers as server-sent events: `chunks` of each event and of the end, and then `[DONE]`. An error in
    /// mid-answer is the last event.
    pub(crate) fn stream(self, chunks: impl FnMut(Streamed) -> Vec<Value> + Send + 'static) -> Response {
        let open = self.answers;
        let stream = futures::stream::unfold((self, chunks, open), |(mut work, mut chunks, mut open)| async move {
            if open == 0 {
                return None;
            }
            let mut text = String::new();
            let mut give = |streamed: Streamed| {
                chunks(streamed).iter().for_each(|chunk| text.push_str(&format!("data: {chunk}\n\n")));
            };
            match work.next().await {
                Some((index, Told::Event(event))) => give(Streamed::Event(index, event)),
                Some((_, Told::End(end))) => match *end {
                    Ok(_) => {
                        open -= 1;
                        if open == 0 {
                            give(Streamed::End);
                            text.push_str("data: [DONE]\n\n");
                        }
                    }
                    Err(error) => {
                        open = 0;
                        text = format!("data: {}\n\n", refusal(error).to_json());
                    }
                },
                None => {
                    open = 0;
                    text = format!("data: {}\n\n", gone().to_json());
                }
            }
            Some((Ok::<_, std::convert::Infallible>(Bytes::from(text)), (work, chunks, open)))
        });
        let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
        (headers, Body::from_stream(stream)).into_response()
    }
}

/// An answer in the making, counted until dropped.
struct Open(());

impl Open {
    fn new() -> Self {
        metrics::gauge!("inline_text_answers").increment(1.0);
        Self(())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        metrics::gauge!("inline_text_answers").decrement(1.0);
    }
}

/// Makes an answer and tells of it. Blocking.
fn answer(model: &dyn TextLlm, request: &TextLlmRequest, index: usize, tell: &UnboundedSender<(usize, Told)>) {
    let _open = Open::new();
    let output = model.generate(request, &mut |event| {
        if tell.send((index, Told::Event(event))).is_err() {
            request.cancel.cancel();
        }
    });
    let outcome = match &output {
        Ok(output) => {
            metrics::counter!("inline_text_tokens_total").increment(output.usage.completion_tokens as u64);
            "done"
        }
        Err(Error::Cancelled) => "cancelled",
        Err(Error::InvalidRequest { .. } | Error::Unsupported(_)) => "refused",
        Err(_) => "error",
    };
    metrics::counter!("inline_text_answers_ended_total", "outcome" => outcome).increment(1);
    // Nobody may listen any more.
    let _ = tell.send((index, Told::End(Box::new(output))));
}

fn gone() -> OpenAiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the model failed; the engine's log has the details")
        .into()
}
