//! Every rule of a graph, with the node and port that a refusal names.

use crate::{api, refusal};
use serde_json::{Value, json};

fn prompt() -> Value {
    json!({"id": "p1", "type": "input/text", "params": {"text": "a red apple"}})
}

fn model(params: Value, inputs: Value) -> Value {
    json!({"id": "m1", "type": "inline/demo", "params": params, "inputs": inputs})
}

fn wired() -> Value {
    json!({"prompt": {"from": "p1", "output": "text"}})
}

fn check(case: &str, nodes: Value, node: Option<&str>, port: Option<&str>) {
    let graph = json!({"schemaVersion": 1, "nodes": nodes});
    let error = refusal(&api().post("/v1/runs", &json!({"graph": graph, "target": "m1"})), 422, "invalid_graph");
    assert_eq!((error["nodeId"].as_str(), error["port"].as_str()), (node, port), "{case}: {error}");
}

#[test]
fn versions_and_shapes() {
    let api = api();
    for graph in [
        json!({"schemaVersion": 2, "nodes": [prompt()]}),
        json!({"schemaVersion": "1", "nodes": [prompt()]}),
        json!({"nodes": [prompt()]}),
        json!({"schemaVersion": 1}),
        json!({"schemaVersion": 1, "nodes": {}}),
        json!({"schemaVersion": 1, "nodes": [7]}),
        json!({"schemaVersion": 1, "nodes": [{"type": "input/text"}]}),
        json!([]),
    ] {
        refusal(&api.post("/v1/runs", &json!({"graph": graph, "target": "p1"})), 422, "invalid_graph");
    }
    check("no type", json!([{"id": "m1"}]), Some("m1"), None);
    check("edge", json!([prompt(), model(json!({}), json!({"prompt": "p1"}))]), Some("m1"), Some("prompt"));
    check("half", json!([prompt(), model(json!({}), json!({"prompt": {"from": "p1"}}))]), Some("m1"), Some("prompt"));
}

#[test]
fn wiring() {
    let image = json!({"id": "i1", "type": "input/image", "params": {"asset": ""}});
    let edge = |from: &str, output: &str| json!({"prompt": {"from": from, "output": output}});
    let with = |inputs: Value| json!([prompt(), image, model(json!({}), inputs)]);
    let several = json!({"prompt": [{"from": "p1", "output": "text"}, {"from": "p1", "output": "text"}]});
    let extra = json!({"prompt": {"from": "p1", "output": "text"}, "nope": {"from": "p1", "output": "text"}});
    check("required", with(json!({})), Some("m1"), Some("prompt"));
    check("unknown port", with(extra), Some("m1"), Some("nope"));
    check("unknown source", with(edge("zz", "text")), Some("m1"), Some("prompt"));
    check("unknown output", with(edge("p1", "zz")), Some("m1"), Some("prompt"));
    check("kinds", with(edge("i1", "image")), Some("m1"), Some("prompt"));
    check("several", with(several), Some("m1"), Some("prompt"));
    check("twice", json!([prompt(), prompt(), model(json!({}), wired())]), Some("p1"), None);
    check("type", json!([{"id": "m1", "type": "no/such"}]), Some("m1"), None);
    check("target", json!([prompt()]), Some("m1"), None);
    let mut own = wired();
    own["image"] = json!({"from": "m1", "output": "image"});
    check("cycle", with(own), Some("m1"), None);
}

#[test]
fn params() {
    for params in [
        json!({"steps": "eight"}),
        json!({"steps": 0}),
        json!({"steps": 1.5}),
        json!({"width": 100_000}),
        json!({"strength": 2}),
        json!({"seed": "x"}),
        json!({"negative_prompt": 1}),
        json!({"no_such": 1}),
        json!({"steps": null}),
    ] {
        check(&params.to_string(), json!([prompt(), model(params.clone(), wired())]), Some("m1"), None);
    }
    let load = json!([{"id": "m1", "type": "load/vae", "params": {"file": "../../secret.safetensors"}}]);
    check("select", load, Some("m1"), None);
}
