//! The /v1 API: routes, websocket and safety rules.

mod body;
mod connections;
mod error;
mod events;
mod files;
mod guard;
mod metrics;
mod models;
mod openai;
mod openapi;
mod runs;

use axum::Router;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use engine_runs::Engine;
use futures::FutureExt;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tower_http::cors::{AllowOrigin, CorsLayer};

pub use error::ApiError;

/// What a client may ask of the server.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Largest JSON body, in bytes.
    pub json: usize,
    /// Largest uploaded file, in bytes.
    pub asset: usize,
    /// A sender that gives nothing for this long is given up.
    pub patience: Duration,
    /// Open connections at most; further ones wait.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { json: 8 << 20, asset: 256 << 20, patience: Duration::from_secs(30), connections: 4096 }
    }
}

/// Where to listen and whom to answer.
#[derive(Debug, Clone, Default)]
pub struct ServerConfig {
    /// Bearer token that requests must carry.
    pub token: Option<String>,
    /// Listen beyond this machine without a token.
    pub insecure: bool,
    /// Origins whose pages may use the engine, such as `https://studio.example`, beside those of this machine.
    pub origins: Vec<String>,
    /// What a client may ask.
    pub limits: Limits,
}

/// Why the server doesn't start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address would open the engine to others without a token.
    #[error("{0} can be reached from other machines: set INLINE_TOKEN, or give --insecure if that is meant")]
    Exposed(SocketAddr),
    /// The address can't be listened on.
    #[error("can't listen on {address}: {error}; choose another --port")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        error: std::io::Error,
    },
    /// A page's origin can't be one.
    #[error("'{0}' is not an origin; write scheme and host, such as https://studio.example")]
    Origin(String),
}

/// What handlers share.
#[derive(Clone)]
pub(crate) struct AppState {
    engine: Arc<Engine>,
    token: Option<Arc<str>>,
    /// Origins whose pages may use the engine, beside those of this machine.
    origins: Arc<[String]>,
    /// Whether only addresses and this machine's own names are answered to.
    local_names_only: bool,
    limits: Limits,
}

impl AppState {
    fn engine(&self) -> Arc<Engine> {
        Arc::clone(&self.engine)
    }
}

/// Binds the address.
///
/// # Errors
/// The address is taken, or would expose the engine without a token; or an origin is none.
pub async fn bind(address: SocketAddr, config: &ServerConfig) -> Result<TcpListener, ServeError> {
    if !address.ip().is_loopback() && config.token.is_none() && !config.insecure {
        return Err(ServeError::Exposed(address));
    }
    if let Some(origin) = config.origins.iter().find(|origin| !is_origin(origin)) {
        return Err(ServeError::Origin(origin.clone()));
    }
    TcpListener::bind(address).await.map_err(|error| ServeError::Bind { address, error })
}

/// Scheme and host, perhaps a port, and nothing else: as browsers send it.
fn is_origin(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, host)| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
        !scheme.is_empty() && !host.is_empty() && host.bytes().all(plain)
    })
}

/// Serves until `stop` resolves.
pub async fn serve(listener: TcpListener, config: ServerConfig, engine: Arc<Engine>, stop: impl Future<Output = ()>) {
    metrics::install();
    let limits = config.limits;
    connections::serve(listener, router(config, engine), limits, stop).await;
}

/// The routes, within the safety rules.
pub fn router(config: ServerConfig, engine: Arc<Engine>) -> Router {
    let state = AppState {
        engine,
        local_names_only: config.token.is_none() && !config.insecure,
        token: config.token.map(Into::into),
        origins: config.origins.into(),
        limits: config.limits,
    };
    routes()
        .fallback(|| async { ApiError::not_found("there is no such route; the API is below /v1") })
        .method_not_allowed_fallback(|| async {
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "this route doesn't take that method")
        })
        .layer(middleware::from_fn_with_state(state.clone(), guard::guard))
        .layer(middleware::from_fn(tidy))
        // Outside the guard: a browser asks before it sends a token.
        .layer(cors(Arc::clone(&state.origins)))
        .layer(middleware::from_fn(metrics::count))
        .with_state(state)
}

fn routes() -> Router<AppState> {
    Router::new()
        .route("/openapi.json", get(openapi::document))
        .route(openapi::PAGE, get(openapi::page))
        .route("/metrics", get(metrics::page))
        .route("/v1/health", get(models::health))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*node_type}", get(models::get))
        .route("/v1/runs", get(runs::list).post(runs::submit))
        .route("/v1/runs/{id}", get(runs::get).delete(runs::cancel))
        .route("/v1/runs/{id}/events", get(events::events))
        .route("/v1/takes", get(runs::list_takes))
        .route("/v1/takes/{id}", get(runs::get_take))
        .route("/v1/takes/{id}/bytes", get(runs::take_bytes))
        .route("/v1/assets", post(models::upload))
        .route("/v1/assets/{id}/bytes", get(models::asset_bytes))
        .merge(openai::routes())
}

/// Lets pages read answers that the guard lets them have; no other origin is named, and never `*`.
fn cors(allowed: Arc<[String]>) -> CorsLayer {
    let trusted = move |origin: &HeaderValue, parts: &Parts| guard::is_trusted(origin, &parts.headers, &allowed);
    let name = HeaderName::from_static;
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(trusted))
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        .allow_headers([
            header::AUTHORIZATION,
            header::CONTENT_TYPE,
            header::IF_NONE_MATCH,
            header::RANGE,
            name("idempotency-key"),
        ])
        .expose_headers([header::ETAG, header::CONTENT_RANGE, header::CONTENT_LENGTH])
        .max_age(Duration::from_secs(3600))
}

/// Turns a handler's panic and the framework's own refusals into JSON errors.
async fn tidy(request: Request, next: Next) -> Response {
    let Ok(response) = AssertUnwindSafe(next.run(request)).catch_unwind().await else {
        let message = "internal error; the engine's log has the details";
        return ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message).into_response();
    };
    let is_json = response.headers().get("content-type").is_some_and(|v| v.as_bytes().starts_with(b"application/json"));
    let status = response.status();
    if is_json || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let text = axum::body::to_bytes(response.into_body(), 4096).await.unwrap_or_default();
    let message = String::from_utf8_lossy(&text).trim().to_owned();
    let message = if message.is_empty() { status.canonical_reason().unwrap_or("refused").to_owned() } else { message };
    let code = if status.is_client_error() { "invalid_request" } else { "internal" };
    ApiError::new(status, code, message).into_response()
}
