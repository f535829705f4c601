//! From runs to the answer that OpenAI's clients read.

use super::images::ResponseFormat;
use super::{OpenAiError, base_url};
use crate::{ApiError, AppState};
use axum::http::{HeaderMap, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use engine_runs::{RunState, RunStatus, Take};
use serde::Serialize;
use serde_json::Value;

/// The pictures of a request.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Images)]
pub(crate) struct Answer {
    /// Unix seconds.
    pub created: i64,
    /// One entry a picture.
    pub data: Vec<Picture>,
}

/// A picture: its address or its bytes.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Picture {
    /// Where the bytes are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The bytes in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub b64_json: Option<String>,
    /// The run that painted it (not OpenAI's).
    #[serde(rename = "runId")]
    pub run_id: String,
    /// The take that it is (not OpenAI's).
    #[serde(rename = "takeId")]
    pub take_id: String,
    /// The seed that gives it again (not OpenAI's).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<Value>,
}

/// Waits for the runs and gives their pictures. A client that goes away meanwhile stops the waiting, not the runs.
pub(crate) async fn answer(
    state: &AppState,
    headers: &HeaderMap,
    runs: Vec<String>,
    format: ResponseFormat,
) -> Result<Answer, OpenAiError> {
    let base = base_url(headers);
    let mut data = Vec::new();
    let mut created = 0;
    for id in runs {
        let run = state.engine.wait(&id).await?.ok_or_else(|| crate::runs::unknown_run(&id))?;
        for take in ended(&run)? {
            created = created.max(take.created_at / 1000);
            data.push(picture(state, take, format, &base).await?);
        }
    }
    Ok(Answer { created, data })
}

/// The takes of a run that ended well.
fn ended(run: &RunState) -> Result<&[Take], OpenAiError> {
    let (code, message) = match run.status {
        RunStatus::Done => return Ok(&run.takes),
        RunStatus::Cancelled => ("cancelled", format!("run {} was cancelled", run.run_id)),
        _ => ("run_failed", run.error.as_ref().map_or_else(String::new, |error| error.message.clone())),
    };
    // Not a server error: clients would repeat it by themselves, and it would fail again.
    Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, code, message).into())
}

async fn picture(state: &AppState, take: &Take, format: ResponseFormat, base: &str) -> Result<Picture, OpenAiError> {
    let (url, b64_json) = match format {
        ResponseFormat::Url => (Some(format!("{base}/v1/takes/{}/bytes", take.id)), None),
        ResponseFormat::B64Json => {
            let path = state.engine.media().takes().path(&take.uri);
            let bytes = tokio::fs::read(path).await.map_err(engine_runs::StoreError::from)?;
            (None, Some(STANDARD.encode(bytes)))
        }
    };
    let seed = take.params.get("seed").cloned();
    Ok(Picture { url, b64_json, run_id: take.run_id.clone(), take_id: take.id.clone(), seed })
}
