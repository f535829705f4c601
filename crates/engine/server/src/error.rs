//! Errors as clients get them.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use engine_graph::GraphError;
use engine_runs::picture::PictureError;
use engine_runs::{StoreError, SubmitError};
use serde_json::{Value, json};

/// An error body with its status. The message says what to change and holds no host path.
#[derive(Debug, Clone)]
pub struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    node_id: Option<String>,
    port: Option<String>,
}

impl ApiError {
    /// An error of that status and code.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), node_id: None, port: None }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// The body.
    pub(crate) fn to_json(&self) -> Value {
        let mut error = json!({"code": self.code, "message": self.message});
        if let Some(node_id) = &self.node_id {
            error["nodeId"] = json!(node_id);
        }
        if let Some(port) = &self.port {
            error["port"] = json!(port);
        }
        json!({ "error": error })
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// 422 about the request as a whole.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request", message)
    }
}

/// The body of every refusal.
#[derive(utoipa::ToSchema)]
#[schema(as = Error)]
#[allow(dead_code)] // for the document; `ApiError::to_json` writes it
pub(crate) struct ErrorBody {
    error: ErrorDetail,
}

/// What is wrong and what to change.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "camelCase")]
#[allow(dead_code)] // see `ErrorBody`
struct ErrorDetail {
    /// Stable name of the kind of error.
    code: String,
    /// For people.
    message: String,
    /// The node of the graph that it is about.
    node_id: Option<String>,
    /// The port of that node.
    port: Option<String>,
    /// On OpenAI's routes: `invalid_request_error` or `server_error`.
    r#type: Option<String>,
    /// On OpenAI's routes: the field that it is about.
    param: Option<String>,
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, axum::Json(self.to_json())).into_response()
    }
}

impl From<GraphError> for ApiError {
    fn from(error: GraphError) -> Self {
        Self {
            node_id: error.node_id,
            port: error.port,
            ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_graph", error.message)
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        tracing::error!(%error, "store");
        let message = "the engine's storage failed; free disk space or see the engine's log";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "storage_failed", message)
    }
}

impl From<PictureError> for ApiError {
    fn from(error: PictureError) -> Self {
        match error {
            PictureError::TooLarge { .. } => Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", error.to_string()),
            PictureError::Unreadable(_) => Self::invalid(error.to_string()),
        }
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Graph(error) => error.into(),
            SubmitError::Conflict => Self::new(StatusCode::CONFLICT, "conflict", error.to_string()),
            SubmitError::Store(error) => error.into(),
        }
    }
}
