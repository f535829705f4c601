//! Routes that OpenAI's clients know, on top of the same engine.
//!
//! A body is a struct with `deny_unknown_fields`: what isn't supported is refused by name, never ignored, and the struct
//! is also what the API's document shows. Refusals are the contract's error object with the two fields that OpenAI's
//! clients read besides, `type` and `param`.

mod answers;
pub(crate) mod chat;
mod chat_body;
pub(crate) mod completions;
pub(crate) mod edits;
pub(crate) mod embeddings;
pub(crate) mod images;
mod options;
mod pictures;
mod text;

use crate::body::{json_object, read_json};
use crate::{ApiError, AppState};
use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The routes.
pub(crate) fn routes() -> Router<AppState> {
    Router::new()
        .route("/v1/chat/completions", post(chat::completions))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/v1/images/generations", post(images::generations))
        .route("/v1/images/edits", post(edits::edits))
}

/// An error as OpenAI's clients read it.
#[derive(Debug)]
pub(crate) struct OpenAiError {
    error: ApiError,
    param: Option<String>,
}

impl OpenAiError {
    /// 422 about one field of the body.
    pub(crate) fn field(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self { error: ApiError::invalid(message), param: Some(name.into()) }
    }

    /// 404 for a model that there isn't.
    pub(crate) fn unknown_model(name: &str) -> Self {
        let message = format!("there is no model '{}'; GET /v1/models lists them", crate::runs::short(name));
        let error = ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message);
        Self { error, param: Some("model".to_owned()) }
    }
}

impl<E: Into<ApiError>> From<E> for OpenAiError {
    fn from(error: E) -> Self {
        Self { error: error.into(), param: None }
    }
}

impl OpenAiError {
    /// The body.
    pub(crate) fn to_json(&self) -> Value {
        let mut body = self.error.to_json();
        let server = self.error.status().is_server_error();
        body["error"]["type"] = if server { "server_error" } else { "invalid_request_error" }.into();
        body["error"]["param"] = self.param.clone().into();
        body
    }
}

impl IntoResponse for OpenAiError {
    fn into_response(self) -> Response {
        (self.error.status(), axum::Json(self.to_json())).into_response()
    }
}

/// A JSON body as `T`.
///
/// # Errors
/// Too large, no JSON, a key twice, or a field that `T` doesn't have or that has another type, by name.
pub(crate) async fn read<T: DeserializeOwned>(
    state: &AppState,
    headers: &HeaderMap,
    body: axum::body::Body,
) -> Result<T, OpenAiError> {
    parse(json_object(&read_json(headers, body, &state.limits).await?)?)
}

/// Fields as `T`, whose derive denies unknown ones.
///
/// # Errors
/// The first field that is unknown, missing or of another type, by name.
pub(crate) fn parse<T: DeserializeOwned>(fields: Map<String, Value>) -> Result<T, OpenAiError> {
    parse_part("", Value::Object(fields))
}

/// The value at `place` of a body, such as `messages[0]`, as `T`; the place is empty for the body itself.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_part<T: DeserializeOwned>(place: &str, value: Value) -> Result<T, OpenAiError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let path = joined(place, if path == "." { "" } else { &path });
        let message = error.into_inner().to_string();
        // Serde's words; they name the field between backticks when it is unknown or missing.
        if let Some(rest) = message.strip_prefix("unknown field `") {
            let name = rest.split('`').next().unwrap_or_default();
            // The path leads to the unknown field.
            let parent = path.strip_suffix(name).map_or("", |parent| parent.trim_end_matches('.'));
            let field = joined(parent, name);
            let message = format!("the field '{field}' is not supported; leave it out");
            return OpenAiError::field(field, message);
        }
        if let Some(rest) = message.strip_prefix("missing field `") {
            let field = joined(&path, rest.split('`').next().unwrap_or_default());
            let message = format!("the field '{field}' is missing");
            return OpenAiError::field(field, message);
        }
        OpenAiError::field(path.clone(), format!("the field '{path}' is not as it should be: {message}"))
    })
}

/// A path and what is within it.
fn joined(place: &str, within: &str) -> String {
    let dot = if place.is_empty() || within.is_empty() || within.starts_with('[') { "" } else { "." };
    format!("{place}{dot}{within}")
}

/// Where the client sees this server, from its own request: `http://host:port`, or nothing without a `Host`.
pub(crate) fn base_url(headers: &HeaderMap) -> String {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let plain = |host: &&str| host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_:[]".contains(&b));
    let Some(host) = text(header::HOST.as_str()).filter(plain) else { return String::new() };
    // Set by a proxy that speaks TLS for this server.
    let scheme = if text("x-forwarded-proto") == Some("https") { "https" } else { "http" };
    format!("{scheme}://{host}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)] // only read by the derive
    struct Outer {
        name: String,
        count: Option<u32>,
        inner: Option<Vec<Inner>>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)] // only read by the derive
    struct Inner {
        text: String,
    }

    fn param(body: Value) -> String {
        let Value::Object(fields) = body else { unreachable!() };
        let error = parse::<Outer>(fields).unwrap_err();
        assert_eq!(error.error.status(), StatusCode::UNPROCESSABLE_ENTITY);
        error.param.unwrap()
    }

    #[test]
    fn the_field_that_is_wrong_is_named() {
        assert_eq!(param(json!({"name": "a", "style": "vivid"})), "style");
        assert_eq!(param(json!({"name": "a", "style": null})), "style");
        assert_eq!(param(json!({"name": "a", "inner": [{"text": "x"}, {"text": "y", "z": 1}]})), "inner[1].z");
        assert_eq!(param(json!({"name": "a", "count": "two"})), "count");
        assert_eq!(param(json!({"count": 1})), "name");
        assert_eq!(param(json!({"name": "a", "inner": [{}]})), "inner[0].text");
        let part = |value: Value| parse_part::<Inner>("a[2]", value).unwrap_err().param.unwrap();
        assert_eq!(part(json!({"text": 1})), "a[2].text");
        assert_eq!(part(json!({"text": "x", "z": 1})), "a[2].z");
        assert_eq!(part(json!({})), "a[2].text");
        assert_eq!(part(json!(1)), "a[2]");
    }

    #[test]
    fn the_base_url_is_what_the_client_sees() {
        let url = |pairs: &[(&'static str, &str)]| {
            base_url(&pairs.iter().map(|(k, v)| (k.parse().unwrap(), v.parse().unwrap())).collect())
        };
        assert_eq!(url(&[("host", "127.0.0.1:8848")]), "http://127.0.0.1:8848");
        assert_eq!(url(&[("host", "a.example"), ("x-forwarded-proto", "https")]), "https://a.example");
        assert_eq!(url(&[("host", "a.example/\"><script>")]), "");
        assert_eq!(url(&[]), "");
    }
}
