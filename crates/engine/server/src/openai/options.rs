//! What every text route takes beside what is to be answered.

use super::{OpenAiError, parse};
use crate::AppState;
use crate::body::{json_object, read_json};
use axum::body::Body;
use axum::http::HeaderMap;
use core_llm::{SamplingParams, TextLlmRequest};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::hash::{BuildHasher, RandomState};
use utoipa::ToSchema;

/// Answers of one request at most: each has a thread.
pub(crate) const MAX_ANSWERS: usize = 16;
/// Stop texts of one request at most, and their longest in bytes: each is looked for behind every token.
const MAX_STOPS: (usize, usize) = (16, 1024);

/// Model, length and choice of tokens.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Options {
    /// A language model of `GET /v1/models`; the only one when left out.
    pub(crate) model: Option<String>,
    /// Number of answers, 1 to 16; answer i uses seed + i.
    n: Option<usize>,
    /// Whether the answer comes piece by piece as server-sent events.
    stream: Option<bool>,
    /// Only with `stream`.
    stream_options: Option<StreamOptions>,
    /// Longest answer in tokens.
    pub(crate) max_tokens: Option<usize>,
    /// 0 takes the likeliest token; 1 when left out.
    temperature: Option<f32>,
    /// Keeps the likeliest tokens that together reach this probability.
    top_p: Option<f32>,
    /// Keeps this many of the likeliest tokens, 0 all (not OpenAI's).
    top_k: Option<usize>,
    /// Keeps tokens of at least this fraction of the likeliest one's probability (not OpenAI's).
    min_p: Option<f32>,
    /// Makes tokens less likely that the text has already; 1 is off (not OpenAI's).
    repetition_penalty: Option<f32>,
    /// -2 to 2.
    presence_penalty: Option<f32>,
    /// -2 to 2.
    frequency_penalty: Option<f32>,
    /// Equal requests with equal seeds get equal answers; random when left out.
    seed: Option<i64>,
    /// The answer ends before the first of these.
    stop: Option<Texts>,
    /// Read and of no effect here.
    #[allow(dead_code)] // reading it checks it
    user: Option<String>,
}

/// What a stream holds beside the text.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    /// A last event with the tokens of prompt and answer.
    include_usage: Option<bool>,
}

/// One text or several.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a text or a list of texts")]
pub(crate) enum Texts {
    One(String),
    Several(Vec<String>),
}

impl Texts {
    pub(crate) fn texts(&self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text.clone()],
            Self::Several(texts) => texts.clone(),
        }
    }
}

impl Options {
    /// Names of the fields above.
    const FIELDS: [&str; 15] = [
        "model",
        "n",
        "stream",
        "stream_options",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "seed",
        "stop",
        "user",
    ];

    /// A JSON body: these fields, and those of `T`.
    ///
    /// # Errors
    /// As [`super::read`].
    pub(crate) async fn read<T: DeserializeOwned>(
        state: &AppState,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<(Self, T), OpenAiError> {
        let mut rest = json_object(&read_json(headers, body, &state.limits).await?)?;
        let own = Self::FIELDS.iter().filter_map(|field| rest.remove_entry(*field)).collect();
        let options: Self = parse(own)?;
        if options.stream_options.is_some() && !options.streams() {
            return Err(OpenAiError::field("stream_options", "stream_options needs stream to be true"));
        }
        Ok((options, parse(rest)?))
    }

    pub(crate) fn streams(&self) -> bool {
        self.stream == Some(true)
    }

    pub(crate) fn includes_usage(&self) -> bool {
        self.stream_options.as_ref().is_some_and(|options| options.include_usage == Some(true))
    }

    /// Answers that are asked for.
    ///
    /// # Errors
    /// There are none, or too many for so many texts.
    pub(crate) fn count(&self, texts: usize) -> Result<usize, OpenAiError> {
        let n = self.n.unwrap_or(1);
        if n == 0 || n.saturating_mul(texts) > MAX_ANSWERS {
            let message = format!("n must be from 1 to {MAX_ANSWERS}, for all texts of a request together");
            return Err(OpenAiError::field("n", message));
        }
        Ok(n)
    }

    /// `base` with these options, as often as `n` says; each with a seed of its own.
    ///
    /// # Errors
    /// A field that no model could follow.
    pub(crate) fn apply(&self, base: &TextLlmRequest, n: usize) -> Result<Vec<TextLlmRequest>, OpenAiError> {
        let stop = self.stop.as_ref().map_or_else(Vec::new, Texts::texts);
        if stop.len() > MAX_STOPS.0 || stop.iter().any(|text| text.len() > MAX_STOPS.1) {
            let message = format!("at most {} stop texts of at most {} bytes can be given", MAX_STOPS.0, MAX_STOPS.1);
            return Err(OpenAiError::field("stop", message));
        }
        let of = SamplingParams::default();
        let sampling = SamplingParams {
            temperature: self.temperature.unwrap_or(1.0),
            top_p: self.top_p.unwrap_or(1.0),
            top_k: self.top_k.unwrap_or(of.top_k),
            min_p: self.min_p.unwrap_or(of.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(of.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
        };
        let first = self.seed.map_or_else(random_seed, |seed| seed as u64);
        let one = |index: usize| TextLlmRequest {
            sampling: sampling.clone(),
            seed: first.wrapping_add(index as u64),
            stop: stop.clone(),
            ..base.clone()
        };
        Ok((0..n).map(one).collect())
    }
}

/// From the randomness that hash maps are seeded with.
pub(crate) fn random_seed() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use utoipa::PartialSchema;

    #[test]
    fn the_names_are_those_of_the_fields() {
        let schema = serde_json::to_value(Options::schema()).unwrap();
        let mut fields: Vec<&str> = schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        let mut names = Options::FIELDS.to_vec();
        fields.sort_unstable();
        names.sort_unstable();
        assert_eq!(fields, names);
    }
}
