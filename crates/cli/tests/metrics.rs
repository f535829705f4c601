//! `GET /metrics` of the real binary.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

mod common;

use common::{Server, demo_graph};
use serde_json::json;
use std::collections::HashMap;

/// The samples of the page, by name with labels.
fn samples(server: &Server) -> HashMap<String, f64> {
    let page = server.get("/metrics");
    assert!(page.header("content-type").starts_with("text/plain; version=0.0.4"));
    let text = String::from_utf8(page.body).unwrap();
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(sample).collect()
}

#[test]
fn what_happens_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"), &dir.path().join("models"), &[]);
    let run = |seed: u32| server.wait(&server.submit(demo_graph(json!({"steps": 1, "seed": seed}))));
    run(1);
    run(1);
    run(2);
    assert_eq!(server.get("/v1/runs/nope").status, 404);
    assert_eq!(server.get("/v1/nothing/at/all").status, 404);
    let socket = server.events(&server.submit(demo_graph(json!({"steps": 100, "width": 512, "height": 512}))), "");
    let found = samples(&server);
    let count = |name: &str| found.get(name).copied().unwrap_or_else(|| panic!("{name} is not in {found:#?}"));
    assert_eq!(count(r#"inline_runs_ended_total{status="done"}"#), 3.0);
    assert_eq!(count(r#"inline_run_duration_seconds_count{status="done"}"#), 3.0);
    assert_eq!(count(r#"inline_run_queue_seconds_count"#), 4.0);
    assert_eq!(count(r#"inline_node_duration_seconds_count{type="inline/demo"}"#), 2.0);
    assert_eq!(count("inline_takes_total"), 3.0);
    assert!(count("inline_take_bytes_total") > 1000.0);
    assert!(count(r#"inline_cache_lookups_total{result="memory"}"#) >= 1.0);
    assert!(count(r#"inline_cache_lookups_total{result="miss"}"#) >= 2.0);
    assert!(count(r#"inline_cache_bytes{tier="memory"}"#) > 0.0 && count(r#"inline_cache_bytes{tier="disk"}"#) > 0.0);
    assert!(count("inline_model_loads_total") >= 3.0 && count("inline_model_bytes") > 0.0);
    assert_eq!((count("inline_queue_depth"), count(r#"inline_runs{status="running"}"#)), (0.0, 1.0));
    assert_eq!(count("inline_websocket_clients"), 1.0);
    assert_eq!(count(r#"inline_http_requests_total{method="POST",route="/v1/runs",status="201"}"#), 4.0);
    assert_eq!(count(r#"inline_http_requests_total{method="GET",route="/v1/runs/{id}",status="404"}"#), 1.0);
    assert_eq!(count(r#"inline_http_requests_total{method="GET",route="other",status="404"}"#), 1.0);
    assert!(count(r#"inline_http_request_duration_seconds_count{method="GET",route="/v1/runs/{id}"}"#) >= 4.0);
    drop(socket);
}
