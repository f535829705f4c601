//! Node types, health, and assets.

use crate::body::read;
use crate::error::ErrorBody;
use crate::files;
use crate::{ApiError, AppState};
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine_device::DeviceInfo;
use engine_graph::{MAX_SCHEMA_VERSION, MIN_SCHEMA_VERSION, NodeDescriptor, NodeRegistry};
use engine_runs::picture;
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

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

/// That the server is there, and on what it works.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Health {
    ok: bool,
    /// `v1`.
    api_version: &'static str,
    schema_versions: SchemaVersions,
    /// Changes with node types and model files.
    registry_version: String,
    device: DeviceInfo,
    engine_version: &'static str,
}

/// Versions of the graph that are read.
#[derive(Serialize, ToSchema)]
struct SchemaVersions {
    min: u64,
    max: u64,
}

/// Whether the server works, and on which device.
#[utoipa::path(get, path = "/v1/health", tag = "engine", responses((status = 200, body = Health)))]
pub(crate) async fn health(State(state): State<AppState>) -> Json<Health> {
    let (_, version) = registry(&state).await;
    Json(Health {
        ok: true,
        api_version: "v1",
        schema_versions: SchemaVersions { min: MIN_SCHEMA_VERSION, max: MAX_SCHEMA_VERSION },
        registry_version: version,
        device: state.engine.nodes().host().policy().info(),
        engine_version: env!("CARGO_PKG_VERSION"),
    })
}

/// Node types, for both kinds of client.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Models {
    registry_version: String,
    #[schema(value_type = Vec<NodeDescriptor>)]
    models: Vec<Arc<NodeDescriptor>>,
    /// `list`, for OpenAI's clients.
    object: &'static str,
    data: Vec<OpenAiModel>,
}

/// A model as OpenAI's clients read it.
#[derive(Serialize, ToSchema)]
pub(crate) struct OpenAiModel {
    id: String,
    /// `model`.
    object: &'static str,
    created: i64,
    owned_by: String,
}

/// Every node type with its ports and params, and the same as OpenAI's clients read it.
#[utoipa::path(get, path = "/v1/models", tag = "engine", responses(
    (status = 200, body = Models, headers(("ETag" = String, description = "The registry's version"))),
    (status = 304, description = "`If-None-Match` names the version"),
))]
pub(crate) async fn list(State(state): State<AppState>, headers: HeaderMap) -> Response {
    let (registry, version) = registry(&state).await;
    let etag = format!("\"{version}\"");
    let tag = [(header::ETAG, etag.clone())];
    if matches(&headers, &etag) {
        return (StatusCode::NOT_MODIFIED, tag).into_response();
    }
    let models = registry.iter().cloned().collect();
    let language = state.engine().nodes().language().clone();
    let texts = language.speakers().into_iter().chain(language.embedders());
    let texts = texts.map(|id| OpenAiModel { id, object: "model", created: 0, owned_by: "local".to_owned() });
    let data = registry
        .iter()
        .filter(|node| !node.hidden && node.output_kind.is_some())
        .map(|node| {
            let owner = node.node_type.split('/').next().unwrap_or_default();
            OpenAiModel { id: node.node_type.clone(), object: "model", created: 0, owned_by: owner.to_owned() }
        })
        .chain(texts)
        .collect();
    (tag, Json(Models { registry_version: version, models, object: "list", data })).into_response()
}

/// One node type. Its name has a slash in it.
#[utoipa::path(get, path = "/v1/models/{type}", tag = "engine",
    params(("type" = String, Path, description = "Such as alibaba/z-image-turbo")),
    responses((status = 200, body = NodeDescriptor), (status = 404, body = ErrorBody)))]
pub(crate) async fn get(State(state): State<AppState>, Path(node_type): Path<String>) -> Result<Response, ApiError> {
    let (registry, _) = registry(&state).await;
    match registry.get(&node_type) {
        Some(node) => Ok(Json(Arc::clone(node)).into_response()),
        None => Err(ApiError::not_found("there is no node type of that name; GET /v1/models lists them")),
    }
}

/// An upload.
#[derive(Serialize, ToSchema)]
pub(crate) struct AssetBody {
    /// `sha256-` and the hash of the bytes.
    id: String,
    /// `image`, `video` or `audio`.
    kind: String,
    /// Number of bytes.
    bytes: i64,
}

/// Keeps an upload; the same bytes give the same id. A picture is looked at first: one that can't be decoded, or has too many pixels, is refused.
#[utoipa::path(post, path = "/v1/assets", tag = "assets",
    request_body(content = Vec<u8>, content_type = "application/octet-stream",
        description = "The file, with its own Content-Type: image/*, video/* or audio/*"),
    responses((status = 200, body = AssetBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody),
        (status = 422, body = ErrorBody)))]
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
    Ok(Json(AssetBody { id: asset.id, kind: asset.kind, bytes: asset.bytes }).into_response())
}

/// The size of a picture that can be decoded and has few enough pixels. Blocking.
pub(crate) fn checked_picture(bytes: &[u8]) -> Result<(u32, u32), ApiError> {
    let image = picture::decode(bytes)?;
    Ok((image.width(), image.height()))
}

/// The bytes of an upload, with ETag and ranges.
#[utoipa::path(get, path = "/v1/assets/{id}/bytes", tag = "assets", params(("id" = String, Path)),
    responses((status = 200, content_type = "*/*", body = Vec<u8>), (status = 206, description = "The range asked for"),
        (status = 304, description = "`If-None-Match` names the hash"), (status = 404, body = ErrorBody),
        (status = 416, body = ErrorBody)))]
pub(crate) async fn asset_bytes(
    State(state): State<AppState>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let found = state.engine().asset(&id).await?;
    let (asset, path) = found.ok_or_else(|| ApiError::not_found("there is no such asset"))?;
    files::serve(&path, &asset.mime, &asset.id, &headers).await
}
