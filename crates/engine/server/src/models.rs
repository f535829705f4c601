//! Node types, health, and assets.

use crate::body::read;
use crate::files;
use crate::{ApiError, AppState};
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine_graph::{MAX_SCHEMA_VERSION, MIN_SCHEMA_VERSION, NodeRegistry};
use engine_runs::picture;
use serde_json::{Value, json};
use std::sync::Arc;

/// Whether `If-None-Match` names the tag.
pub(crate) fn matches(headers: &HeaderMap, etag: &str) -> bool {
    let Some(asked) = headers.get(header::IF_NONE_MATCH).and_then(|v| v.to_str().ok()) else { return false };
    asked.split(',').map(|tag| tag.trim().trim_start_matches("W/")).any(|tag| tag == etag || tag == "*")
}

/// The registry as of now, and its version.
pub(crate) async fn registry(state: &AppState) -> (NodeRegistry, String) {
    let engine = state.engine();
    let work = move || {
        engine.refresh_models();
        (engine.registry(), engine.nodes().registry_version())
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(found) => found,
        // The scan panicked; what was known before still stands.
        Err(_) => (state.engine().registry(), state.engine().nodes().registry_version()),
    }
}

pub(crate) async fn health(State(state): State<AppState>) -> Json<Value> {
    let (_, version) = registry(&state).await;
    Json(json!({
        "ok": true,
        "apiVersion": "v1",
        "schemaVersions": {"min": MIN_SCHEMA_VERSION, "max": MAX_SCHEMA_VERSION},
        "registryVersion": version,
        "device": state.engine().nodes().host().policy().info(),
        "engineVersion": env!("CARGO_PKG_VERSION"),
    }))
}

pub(crate) async fn list(State(state): State<AppState>, headers: HeaderMap) -> Response {
    let (registry, version) = registry(&state).await;
    let etag = format!("\"{version}\"");
    let tag = [(header::ETAG, etag.clone())];
    if matches(&headers, &etag) {
        return (StatusCode::NOT_MODIFIED, tag).into_response();
    }
    let models: Vec<_> = registry.iter().collect();
    let data: Vec<Value> = registry
        .iter()
        .filter(|node| !node.hidden)
        .map(|node| {
            let owner = node.node_type.split('/').next().unwrap_or_default();
            json!({"id": node.node_type, "object": "model", "created": 0, "owned_by": owner})
        })
        .collect();
    let body = json!({"registryVersion": version, "models": models, "object": "list", "data": data});
    (tag, Json(body)).into_response()
}

pub(crate) async fn get(State(state): State<AppState>, Path(node_type): Path<String>) -> Result<Response, ApiError> {
    let (registry, _) = registry(&state).await;
    match registry.get(&node_type) {
        Some(node) => Ok(Json(Arc::clone(node)).into_response()),
        None => Err(ApiError::not_found("there is no node type of that name; GET /v1/models lists them")),
    }
}

/// Keeps an upload. A picture is looked at first: one that can't be decoded, or has too many pixels, is refused.
pub(crate) async fn upload(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let mime = headers
        .get(header::CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .map(|v| v.split(';').next().unwrap_or(v).trim().to_ascii_lowercase());
    let mime = mime.filter(|m| m.contains('/')).ok_or_else(|| {
        ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "send the file's type as Content-Type, such as image/png",
        )
    })?;
    if !["image/", "video/", "audio/"].iter().any(|kind| mime.starts_with(kind)) {
        let message = format!("'{mime}' is no picture, video or sound");
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message));
    }
    let bytes = read(body, state.limits.asset, &state.limits).await?.to_vec();
    if bytes.is_empty() {
        return Err(ApiError::invalid("the body is empty; send the file's bytes"));
    }
    let bytes = match mime.starts_with("image/") {
        false => bytes,
        true => {
            let checked = tokio::task::spawn_blocking(move || checked_picture(&bytes).map(|_| bytes)).await;
            checked.map_err(|_| ApiError::invalid("the picture can't be read"))??
        }
    };
    let asset = state.engine().add_asset(bytes, &mime).await?;
    Ok(Json(json!({"id": asset.id, "kind": asset.kind, "bytes": asset.bytes})).into_response())
}

/// The size of a picture that can be decoded and has few enough pixels. Blocking.
pub(crate) fn checked_picture(bytes: &[u8]) -> Result<(u32, u32), ApiError> {
    let image = picture::decode(bytes)?;
    Ok((image.width(), image.height()))
}

pub(crate) async fn asset_bytes(
    State(state): State<AppState>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let found = state.engine().asset(&id).await?;
    let (asset, path) = found.ok_or_else(|| ApiError::not_found("there is no such asset"))?;
    files::serve(&path, &asset.mime, &asset.id, &headers).await
}
