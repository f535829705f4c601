//! Request bodies within their limits.

use crate::{ApiError, Limits};
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use futures::StreamExt;
use serde_json::{Map, Value};
use std::time::Duration;
use tokio::time::Instant;

/// Bytes a second that a sender must reach on the whole, once its first patience is used up.
const SLOWEST: usize = 16 << 10;

/// Reads a body of at most `limit` bytes. A sender that pauses for too long is given up, and so is one that trickles.
pub(crate) async fn read(body: Body, limit: usize, limits: &Limits) -> Result<Bytes, ApiError> {
    let mut stream = body.into_data_stream();
    let (start, mut bytes) = (Instant::now(), Vec::new());
    loop {
        let earned = Duration::from_secs((bytes.len() / SLOWEST) as u64);
        let deadline = (start + limits.patience + earned).min(Instant::now() + limits.patience);
        let piece = tokio::time::timeout_at(deadline, stream.next()).await.map_err(|_| {
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the body came too slowly; send it again")
        })?;
        let Some(piece) = piece else { return Ok(bytes.into()) };
        let piece = piece.map_err(|_| ApiError::new(StatusCode::BAD_REQUEST, "invalid_body", "the body broke off"))?;
        if bytes.len() + piece.len() > limit {
            let message = format!("the body is larger than {limit} bytes");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message));
        }
        bytes.extend_from_slice(&piece);
    }
}

/// Reads a body that is JSON, or says nothing of what it is.
pub(crate) async fn read_json(headers: &HeaderMap, body: Body, limits: &Limits) -> Result<Bytes, ApiError> {
    if let Some(kind) = headers.get(header::CONTENT_TYPE) {
        let kind = kind.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if kind != "application/json" && !kind.ends_with("+json") {
            let message = "send the body as Content-Type: application/json";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message));
        }
    }
    read(body, limits.json, limits).await
}

/// A JSON object, no key twice.
pub(crate) fn json_object(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match engine_graph::json::parse(bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(ApiError::invalid("the body must be a JSON object")),
        Err(error) => Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", error.message)),
    }
}
