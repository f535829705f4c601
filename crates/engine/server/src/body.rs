//! Request bodies within their limits.

use crate::ApiError;
use axum::body::Body;
use axum::http::StatusCode;
use bytes::Bytes;
use futures::StreamExt;
use serde_json::{Map, Value};
use std::time::Duration;

/// A sender that gives nothing for this long is given up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Reads a body of at most `limit` bytes.
pub(crate) async fn read(body: Body, limit: usize) -> Result<Bytes, ApiError> {
    let mut stream = body.into_data_stream();
    let mut bytes = Vec::new();
    loop {
        let piece = tokio::time::timeout(PATIENCE, stream.next()).await.map_err(|_| {
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

/// A JSON object, no key twice.
pub(crate) fn json_object(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match engine_graph::json::parse(bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(ApiError::invalid("the body must be a JSON object")),
        Err(error) => Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", error.message)),
    }
}
