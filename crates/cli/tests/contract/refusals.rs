//! What no client should send.

use crate::common::demo_graph;
use crate::{api, refusal};
use serde_json::json;

#[test]
fn bodies_that_are_no_run_are_refused() {
    let api = api();
    let typed = [("content-type", "application/json")];
    for body in ["", "{", "{\"a\":1,\"a\":2}", &"[".repeat(100_000)] {
        refusal(&api.send("POST", "/v1/runs", &typed, body.as_bytes()), 400, "invalid_json");
    }
    let graph = demo_graph(json!({}));
    for body in [
        json!([]),
        json!({"graph": graph}),
        json!({"target": "m1"}),
        json!({"graph": graph, "target": 1}),
        json!({"graph": graph, "target": "m1", "meta": []}),
        json!({"graph": graph, "target": "m1", "clientRunId": ""}),
        json!({"graph": graph, "target": "m1", "colour": 1}),
    ] {
        refusal(&api.post("/v1/runs", &body), 422, "invalid_request");
    }
}

#[test]
fn ids_are_never_paths() {
    let api = api();
    for id in ["..%2f..%2fruns.db", "%2fetc%2fpasswd", "..", "%00", "sha256-..%2f..%2fruns.db"] {
        for path in ["takes", "runs", "assets"] {
            let path = format!("/v1/{path}/{id}{}", if path == "runs" { "" } else { "/bytes" });
            let answer = api.get(&path);
            assert!([400, 404].contains(&answer.status), "{path}: {}", answer.status);
            // A message may repeat the id, so only its presence is checked.
            assert!(answer.json()["error"]["message"].is_string(), "{path}");
        }
    }
}

#[test]
fn pages_of_other_origins_are_refused() {
    let api = api();
    let foreign = [("origin", "https://evil.example")];
    refusal(&api.send("GET", "/v1/health", &foreign, b""), 403, "forbidden_origin");
    refusal(&api.send("GET", "/v1/runs/run_x/events", &foreign, b""), 403, "forbidden_origin");
}
