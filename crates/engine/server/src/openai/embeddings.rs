//! `POST /v1/embeddings`.

use super::text::refusal;
use super::{OpenAiError, read};
use crate::{ApiError, AppState};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use base64::Engine as _;
use core_llm::CancelFlag;
use serde::Deserialize;
use serde_json::{Value, json};

/// Texts of one request at most, as OpenAI has it.
const MAX_TEXTS: usize = 2048;

/// Texts to turn into vectors.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EmbeddingBody {
    input: Input,
    model: Option<String>,
    encoding_format: Option<Encoding>,
    dimensions: Option<usize>,
    /// Read and of no effect here.
    #[allow(dead_code)]
    user: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Input {
    One(String),
    Several(Vec<String>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    Float,
    Base64,
}

pub(crate) async fn embeddings(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, OpenAiError> {
    let body: EmbeddingBody = read(&state, &headers, body).await?;
    let texts = match body.input {
        Input::One(text) => vec![text],
        Input::Several(texts) => texts,
    };
    if texts.is_empty() || texts.len() > MAX_TEXTS {
        return Err(OpenAiError::field("input", format!("give 1 to {MAX_TEXTS} texts")));
    }
    let (engine, model) = (state.engine(), body.model.unwrap_or_default());
    let (dimensions, name) = (body.dimensions, model.clone());
    let work = move || -> Result<_, core_llm::Error> {
        engine.refresh_models();
        let embedder = engine.nodes().language().embedder(&model, &CancelFlag::new())?;
        let (mut vectors, mut tokens) = (Vec::new(), 0);
        for text in &texts {
            tokens += embedder.tokens(text)?;
            let vector = embedder.embed(text)?;
            vectors.push(match dimensions {
                Some(wanted) => shortened(vector, wanted)?,
                None => vector,
            });
        }
        Ok((vectors, tokens))
    };
    let failed = |_| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the model failed");
    let (vectors, tokens) = tokio::task::spawn_blocking(work).await.map_err(failed)?.map_err(refusal)?;
    let encode = |vector: &[f32]| match body.encoding_format {
        Some(Encoding::Base64) => {
            let bytes: Vec<u8> = vector.iter().flat_map(|v| v.to_le_bytes()).collect();
            json!(base64::engine::general_purpose::STANDARD.encode(bytes))
        }
        _ => json!(vector),
    };
    let data: Vec<Value> = vectors
        .iter()
        .enumerate()
        .map(|(index, vector)| json!({"object": "embedding", "index": index, "embedding": encode(vector)}))
        .collect();
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    Ok(Json(json!({"object": "list", "data": data, "model": name, "usage": usage})))
}

/// The first numbers of a vector, of length one again.
fn shortened(mut vector: Vec<f32>, wanted: usize) -> Result<Vec<f32>, core_llm::Error> {
    if wanted == 0 || wanted > vector.len() {
        let message = format!("this model's vectors have {} numbers; ask for 1 to that many", vector.len());
        return Err(core_llm::Error::invalid("dimensions", message));
    }
    vector.truncate(wanted);
    let length = vector.iter().map(|v| v * v).sum::<f32>().sqrt().max(1e-12);
    vector.iter_mut().for_each(|v| *v /= length);
    Ok(vector)
}
