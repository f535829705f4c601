//! `GET /metrics` for Prometheus. The engine counts through the `metrics` facade; what is a level and no count is asked
//! for when it is scraped.

use crate::AppState;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Upper bounds of the histograms, in seconds: from a poll to a long render.
const BUCKETS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];
/// Samples wait in memory until they are put into buckets.
const UPKEEP: Duration = Duration::from_secs(5);

/// The process's recorder, installed by the first server. Where the program has one of its own, that one counts and this
/// page stays short.
fn recorder() -> &'static PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE.get_or_init(|| {
        // Only an empty list of buckets is refused.
        let recorder = PrometheusBuilder::new().set_buckets(BUCKETS).unwrap_or_default().build_recorder();
        let handle = recorder.handle();
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::warn!("the program has a metrics recorder already; /metrics shows levels only");
        }
        describe();
        handle
    })
}

fn describe() {
    metrics::describe_counter!("inline_http_requests_total", "Requests by method, route and status.");
    metrics::describe_histogram!("inline_http_request_duration_seconds", "Time to the head of the answer, by route.");
    metrics::describe_gauge!("inline_websocket_clients", "Open event streams.");
    metrics::describe_gauge!("inline_queue_depth", "Runs that wait.");
    metrics::describe_gauge!("inline_runs", "Live runs by status.");
    metrics::describe_counter!("inline_runs_ended_total", "Ended runs by status.");
    metrics::describe_histogram!("inline_run_queue_seconds", "Time that runs waited in the queue.");
    metrics::describe_histogram!("inline_run_duration_seconds", "Time that runs were in work, by status.");
    metrics::describe_histogram!("inline_node_duration_seconds", "Time of nodes that weren't cached, by type.");
    metrics::describe_counter!("inline_cache_lookups_total", "Looks for a node's outputs: memory, disk or miss.");
    metrics::describe_gauge!("inline_cache_bytes", "Bytes of cached outputs, by tier.");
    metrics::describe_counter!("inline_takes_total", "Listed takes.");
    metrics::describe_counter!("inline_take_bytes_total", "Bytes of listed takes.");
    metrics::describe_counter!("inline_model_loads_total", "Loaded model components.");
    metrics::describe_histogram!("inline_model_load_seconds", "Time to load a model component.");
    metrics::describe_gauge!("inline_text_answers", "Texts in the making.");
    metrics::describe_counter!("inline_text_answers_ended_total", "Ended texts: done, cancelled, refused or error.");
    metrics::describe_counter!("inline_text_tokens_total", "Tokens of texts that were made to their end.");
    metrics::describe_gauge!("inline_model_bytes", "Bytes of weights in memory.");
}

/// Installs the recorder and keeps its memory bounded while the server runs. To be called within a tokio runtime.
pub(crate) fn install() {
    let handle = recorder();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            handle.run_upkeep();
        }
    });
}

/// What the engine counts, for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "engine",
    responses((status = 200, body = String, content_type = "text/plain")))]
pub(crate) async fn page(State(state): State<AppState>) -> Response {
    let load = state.engine.load();
    metrics::gauge!("inline_queue_depth").set(load.queued as f64);
    metrics::gauge!("inline_runs", "status" => "queued").set(load.queued as f64);
    metrics::gauge!("inline_runs", "status" => "running").set(load.running as f64);
    metrics::gauge!("inline_cache_bytes", "tier" => "memory").set(load.memory_cache_bytes as f64);
    metrics::gauge!("inline_cache_bytes", "tier" => "disk").set(load.disk_cache_bytes as f64);
    metrics::gauge!("inline_model_bytes").set(state.engine.nodes().host().resident_bytes() as f64);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], recorder().render()).into_response()
}

/// Counts and times requests. Routes are named by their pattern, so that ids don't become labels.
pub(crate) async fn count(request: Request, next: Next) -> Response {
    let start = Instant::now();
    let route = request.extensions().get::<MatchedPath>().map_or("other".to_owned(), |path| path.as_str().to_owned());
    let method = request.method().as_str();
    // Anybody can make methods up.
    let known = ["GET", "POST", "DELETE", "HEAD", "OPTIONS"].into_iter().find(|name| *name == method);
    let method = known.unwrap_or("other");
    let response = next.run(request).await;
    let status = response.status().as_u16().to_string();
    metrics::histogram!("inline_http_request_duration_seconds", "method" => method, "route" => route.clone())
        .record(start.elapsed());
    metrics::counter!("inline_http_requests_total", "method" => method, "route" => route, "status" => status)
        .increment(1);
    response
}

/// An open event stream, counted until dropped.
pub(crate) struct Watcher(());

impl Watcher {
    pub(crate) fn new() -> Self {
        metrics::gauge!("inline_websocket_clients").increment(1.0);
        Self(())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        metrics::gauge!("inline_websocket_clients").decrement(1.0);
    }
}
