//! `POST /v1/embeddings`.

use super::options::Texts;
use super::text::{Held, refusal};
use super::{OpenAiError, read};
use crate::error::ErrorBody;
use crate::{ApiError, AppState};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use base64::Engine as _;
use core_llm::CancelFlag;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Texts of one request at most, as OpenAI has it.
const MAX_TEXTS: usize = 2048;

/// Texts to turn into vectors.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EmbeddingBody {
    /// A text, or up to 2048.
    input: Texts,
    /// A text embedder of `GET /v1/models`; the only one when left out.
    model: Option<String>,
    /// How vectors are given back.
    encoding_format: Option<Encoding>,
    /// Keeps so many numbers of each vector, scaled to length one again.
    dimensions: Option<usize>,
    /// Read and of no effect here.
    #[allow(dead_code)] // reading it checks it
    user: Option<String>,
}

/// The vectors of the texts.
#[derive(Serialize, ToSchema)]
pub(crate) struct Embeddings {
    /// `list`.
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: EmbeddingUsage,
}

#[derive(Serialize, ToSchema)]
struct Embedding {
    /// `embedding`.
    object: &'static str,
    index: usize,
    embedding: Vector,
}

/// Numbers, or their bytes as little-endian 32-bit floats in base64.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum Vector {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Serialize, ToSchema)]
struct EmbeddingUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    Float,
    Base64,
}

/// Turns texts into vectors. The work stops when the client goes.
#[utoipa::path(post, path = "/v1/embeddings", tag = "openai", request_body = EmbeddingBody,
    responses((status = 200, body = Embeddings), (status = 404, body = ErrorBody), (status = 422, body = ErrorBody)))]
pub(crate) async fn embeddings(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Embeddings>, OpenAiError> {
    let body: EmbeddingBody = read(&state, &headers, body).await?;
    let texts = body.input.texts();
    if texts.is_empty() || texts.len() > MAX_TEXTS {
        return Err(OpenAiError::field("input", format!("give 1 to {MAX_TEXTS} texts")));
    }
    let held = Held(CancelFlag::new());
    let (engine, cancel) = (state.engine(), held.0.clone());
    let (wanted, dimensions) = (body.model.unwrap_or_default(), body.dimensions);
    let work = move || -> Result<_, core_llm::Error> {
        engine.refresh_models();
        let language = engine.nodes().language();
        let file = language.find_embedder(&wanted)?;
        let embedder = language.embedder(&file, &cancel)?;
        let (mut vectors, mut tokens) = (Vec::new(), 0);
        for text in &texts {
            cancel.check()?;
            tokens += embedder.tokens(text)?;
            let vector = embedder.embed(text)?;
            vectors.push(match dimensions {
                Some(wanted) => shortened(vector, wanted)?,
                None => vector,
            });
        }
        Ok((vectors, tokens, if wanted.is_empty() { file.id().to_owned() } else { wanted }))
    };
    let failed = |_| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the model failed");
    let (vectors, tokens, model) = tokio::task::spawn_blocking(work).await.map_err(failed)?.map_err(refusal)?;
    let encode = |vector: Vec<f32>| match body.encoding_format {
        Some(Encoding::Base64) => {
            let bytes: Vec<u8> = vector.iter().flat_map(|v| v.to_le_bytes()).collect();
            Vector::Base64(base64::engine::general_purpose::STANDARD.encode(bytes))
        }
        _ => Vector::Float(vector),
    };
    let data = vectors.into_iter().enumerate();
    let data = data.map(|(index, vector)| Embedding { object: "embedding", index, embedding: encode(vector) });
    let usage = EmbeddingUsage { prompt_tokens: tokens, total_tokens: tokens };
    Ok(Json(Embeddings { object: "list", data: data.collect(), model, usage }))
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
