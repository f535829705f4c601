//! The /v1 contract over real sockets.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

mod common;

use common::{Server, demo_graph, drain, inline};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn server() -> (tempfile::TempDir, Server) {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"), &dir.path().join("models"), &[]);
    (dir, server)
}

fn error(answer: &common::Answer) -> (u16, String) {
    let body = answer.json();
    assert!(body["error"]["message"].as_str().is_some_and(|m| !m.is_empty()), "{body}");
    (answer.status, body["error"]["code"].as_str().unwrap().to_owned())
}

#[test]
fn health_comes_at_once_and_models_have_an_etag() {
    let start = Instant::now();
    let (dir, server) = server();
    let health = server.get("/v1/health").json();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!((&health["ok"], &health["apiVersion"]), (&json!(true), &json!("v1")));
    assert_eq!(health["device"]["kind"], "cpu");

    let models = server.get("/v1/models");
    let etag = models.header("etag").to_owned();
    assert!(etag.starts_with("\"r_"), "{etag}");
    assert_eq!(models.json()["object"], "list");
    assert_eq!(server.send("GET", "/v1/models", &[("if-none-match", &etag)], b"").status, 304);
    let node = server.get("/v1/models/alibaba/z-image-turbo").json();
    let keys: Vec<&str> = node["params"].as_array().unwrap().iter().map(|p| p["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["negative_prompt", "width", "height", "steps", "guidance", "strength", "seed", "model"]);
    assert_eq!(error(&server.get("/v1/models/no/such")), (404, "not_found".into()));

    // A file that comes changes the version and shows among the options.
    std::fs::create_dir_all(dir.path().join("models/diffusion_models")).unwrap();
    std::fs::write(dir.path().join("models/diffusion_models/new.safetensors"), b"not a model").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_ne!(server.get("/v1/health").json()["registryVersion"], health["registryVersion"]);
    let node = server.get("/v1/models/alibaba/z-image-turbo").json();
    assert_eq!(node["params"][7]["options"][0]["value"], "new.safetensors");
}

#[test]
fn a_run_gives_events_in_order_and_a_take_that_run_gives_too() {
    let (dir, server) = server();
    let graph = demo_graph(json!({"steps": 8, "seed": 7}));
    let run = server.submit(graph.clone());
    let (events, code) = drain(server.events(&run, ""));
    assert_eq!(code, Some(1000));
    let types: Vec<&str> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
    assert_eq!((types[0], *types.last().unwrap()), ("snapshot", "run_done"), "{types:?}");
    assert!(types.iter().filter(|t| **t == "node_done").count() >= 1);
    let numbers: Vec<u64> = events.iter().map(|e| e["seq"].as_u64().unwrap()).collect();
    assert!(numbers.windows(2).all(|w| w[0] < w[1]), "{numbers:?}");

    let state = server.wait(&run);
    assert_eq!((&state["status"], &state["fraction"]), (&json!("done"), &json!(1.0)));
    let take = &state["takes"][0];
    assert_eq!((&take["nodeId"], &take["kind"], &take["params"]["seed"]), (&json!("m1"), &json!("image"), &json!(7)));
    assert!(!take["uri"].as_str().unwrap().starts_with('/'));
    let path = format!("/v1/takes/{}/bytes", take["id"].as_str().unwrap());
    let bytes = server.get(&path);
    assert_eq!((bytes.status, bytes.header("content-type")), (200, "image/png"));
    assert_eq!(bytes.header("etag"), format!("\"{}\"", take["hash"].as_str().unwrap()));
    let part = server.send("GET", &path, &[("range", "bytes=0-7")], b"");
    assert_eq!((part.status, &part.body[..]), (206, &b"\x89PNG\r\n\x1a\n"[..]));
    assert_eq!(server.send("GET", &path, &[("range", "bytes=99999999-")], b"").status, 416);

    std::fs::write(dir.path().join("g.json"), graph.to_string()).unwrap();
    let ran = inline().current_dir(&dir).args(["run", "g.json", "--target", "m1", "--out", "takes"]).output().unwrap();
    assert!(ran.status.success());
    assert_eq!(std::fs::read(dir.path().join("takes/m1.png")).unwrap(), bytes.body);

    // Again: a new take of the same bytes, from the cache.
    let again = server.wait(&server.submit(graph));
    assert_eq!(again["nodes"]["m1"]["state"], "cached");
    assert_eq!(again["takes"][0]["hash"], take["hash"]);
    assert_ne!(again["takes"][0]["id"], take["id"]);
    assert_eq!(server.get("/v1/takes?nodeId=m1").json()["takes"].as_array().unwrap().len(), 2);

    let (events, _) = drain(server.events(&run, "?after=2"));
    assert!(events[1..].iter().all(|e| e["seq"].as_u64().unwrap() > 2));
    assert_eq!(drain(server.events("run_nope", "")).1, Some(4404));
}

#[test]
fn large_seeds_are_echoed_exactly_and_random_ones_recorded() {
    let (_dir, server) = server();
    for seed in [json!(9_007_199_254_740_993u64), json!(u64::MAX), json!("18446744073709551615")] {
        let state = server.wait(&server.submit(demo_graph(json!({"steps": 1, "seed": seed}))));
        assert_eq!(state["takes"][0]["params"]["seed"], seed);
    }
    let state = server.wait(&server.submit(demo_graph(json!({"steps": 1, "seed": -1}))));
    assert!(state["takes"][0]["params"]["seed"].as_u64().is_some(), "{state}");
    assert_eq!(state["nodes"]["m1"]["state"], "done");
}

#[test]
fn client_ids_dedupe_and_survive_a_kill() {
    let (dir, mut server) = server();
    let graph = demo_graph(json!({"steps": 1, "seed": 1}));
    let body = json!({"graph": graph, "target": "m1", "clientRunId": "mine", "meta": {"shot": 3}});
    let first = server.post("/v1/runs", &body);
    assert_eq!(first.status, 201);
    let run = first.json()["runId"].as_str().unwrap().to_owned();
    assert_eq!(server.post("/v1/runs", &body).status, 200);
    let other = json!({"graph": demo_graph(json!({"seed": 2})), "target": "m1", "clientRunId": "mine"});
    assert_eq!(error(&server.post("/v1/runs", &other)), (409, "conflict".into()));
    let done = server.wait(&run);
    let queued: Vec<String> =
        (0..20).map(|seed| server.submit(demo_graph(json!({"steps": 20, "seed": seed})))).collect();
    server.child.kill().unwrap();
    server.child.wait().unwrap();

    let server = Server::start(&dir.path().join("data"), &dir.path().join("models"), &[]);
    let after = server.get(&format!("/v1/runs/{run}")).json();
    assert_eq!(
        (&after["status"], &after["takes"], &after["meta"]),
        (&json!("done"), &done["takes"], &json!({"shot": 3}))
    );
    assert_eq!(server.post("/v1/runs", &body).json()["runId"], json!(run));
    for run in queued {
        let state = server.wait(&run);
        assert_eq!(state["status"], "done");
        assert_eq!(state["takes"].as_array().unwrap().len(), 1, "{state}");
    }
}

#[test]
fn cancelling_stops_that_run_only() {
    let (_dir, server) = server();
    let long = server.submit(demo_graph(json!({"steps": 100, "seed": 1, "width": 512, "height": 512})));
    let waiting = server.submit(demo_graph(json!({"steps": 100, "seed": 2, "width": 512, "height": 512})));
    let kept = server.submit(demo_graph(json!({"steps": 1, "seed": 3})));
    let listed = server.get("/v1/runs").json();
    assert_eq!(listed["runs"].as_array().unwrap().len(), 3);
    assert_eq!(listed["runs"][2]["runId"], json!(kept));
    assert_eq!(server.send("DELETE", &format!("/v1/runs/{waiting}"), &[], b"").json()["status"], "cancelled");
    while server.get(&format!("/v1/runs/{long}")).json()["status"] != "running" {
        std::thread::sleep(Duration::from_millis(5));
    }
    server.send("DELETE", &format!("/v1/runs/{long}"), &[], b"");
    let asked = Instant::now();
    assert_eq!(server.wait(&long)["status"], "cancelled");
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    assert_eq!(server.wait(&kept)["status"], "done");
    let again = server.send("DELETE", &format!("/v1/runs/{kept}"), &[], b"");
    assert_eq!(again.json()["status"], "done");
    assert_eq!(error(&server.send("DELETE", "/v1/runs/nope", &[], b"")), (404, "not_found".into()));
}

#[test]
fn assets_are_content_addressed_and_feed_image_to_image() {
    let (_dir, server) = server();
    let picture = std::fs::read(conformance::recipe::fixtures().join("demo-golden/golden_0.png")).unwrap();
    let upload = |bytes: &[u8], mime: &str| server.send("POST", "/v1/assets", &[("content-type", mime)], bytes);
    let asset = upload(&picture, "image/png").json();
    assert_eq!((&asset["kind"], &asset["bytes"]), (&json!("image"), &json!(picture.len())));
    let id = asset["id"].as_str().unwrap();
    assert!(id.starts_with("sha256-") && upload(&picture, "image/png").json()["id"] == asset["id"]);
    assert_eq!(server.get(&format!("/v1/assets/{id}/bytes")).body, picture);
    assert_eq!(upload(b"not a picture", "image/png").status, 422);
    assert_eq!(upload(b"x", "text/plain").status, 415);

    let graph = |reference: Value| {
        json!({"schemaVersion": 1, "nodes": [
            {"id": "p1", "type": "input/text", "params": {"text": "a red apple"}},
            {"id": "i1", "type": "input/image", "params": {"asset": reference}},
            {"id": "m1", "type": "inline/demo", "params": {"seed": 1, "strength": 0.5},
             "inputs": {"prompt": {"from": "p1", "output": "text"}, "image": {"from": "i1", "output": "image"}}}]})
    };
    let state = server.wait(&server.submit(graph(json!(id))));
    assert_eq!(state["status"], "done", "{state}");
    let take = state["takes"][0]["id"].clone();
    assert_eq!(server.wait(&server.submit(graph(take)))["status"], "done");
    let missing = server.wait(&server.submit(graph(json!(format!("sha256-{}", "0".repeat(64))))));
    assert_eq!((&missing["status"], &missing["error"]["nodeId"]), (&json!("error"), &json!("i1")));
    let path = server.wait(&server.submit(graph(json!({"ref": "path", "path": "/etc/hostname"}))));
    assert!(path["error"]["message"].as_str().unwrap().contains("not allowed"), "{path}");
}

#[test]
fn what_is_wrong_is_refused_with_its_code() {
    let (_dir, server) = server();
    let bad = server.send("POST", "/v1/runs", &[], b"{");
    assert_eq!(error(&bad), (400, "invalid_json".into()));
    assert_eq!(error(&server.send("POST", "/v1/runs", &[], br#"{"target":"a","target":"b"}"#)).0, 400);
    assert_eq!(
        error(&server.post("/v1/runs", &json!({"graph": demo_graph(json!({}))}))),
        (422, "invalid_request".into())
    );
    let graph = |graph: Value| server.post("/v1/runs", &json!({"graph": graph, "target": "m1"}));
    let answer = graph(json!({"schemaVersion": 1, "nodes": [{"id": "m1", "type": "inline/demo"}]}));
    assert_eq!(error(&answer), (422, "invalid_graph".into()));
    assert_eq!((&answer.json()["error"]["nodeId"], &answer.json()["error"]["port"]), (&json!("m1"), &json!("prompt")));
    assert_eq!(graph(json!({"schemaVersion": 2, "nodes": []})).status, 422);
    assert_eq!(error(&server.get("/v1/nothing")), (404, "not_found".into()));
    assert_eq!(error(&server.send("PUT", "/v1/runs", &[], b"")), (405, "method_not_allowed".into()));
    assert_eq!(error(&server.get("/v1/takes/..%2f..%2fruns.db")), (404, "not_found".into()));
    assert_eq!(error(&server.send("GET", "/v1/health", &[("origin", "https://evil.example")], b"")).0, 403);
    let huge = server.send("POST", "/v1/runs", &[], &vec![b' '; (8 << 20) + 1]);
    assert_eq!(error(&huge), (413, "too_large".into()));
    assert_eq!(server.get("/v1/health").status, 200);
}

#[test]
fn a_token_is_asked_for_and_other_machines_need_one() {
    let dir = tempfile::tempdir().unwrap();
    let (data, models) = (dir.path().join("data"), dir.path().join("models"));
    let mut server = Server::start(&data, &models, &["--token", "secret"]);
    assert_eq!(error(&server.get("/v1/health")), (401, "unauthorized".into()));
    server.token = Some("wrong".into());
    assert_eq!(server.get("/v1/health").status, 401);
    server.token = Some("secret".into());
    assert_eq!(server.get("/v1/health").status, 200);
    let exposed = inline().args(["serve", "--host", "0.0.0.0", "--port", "0"]).current_dir(&dir).output().unwrap();
    assert_eq!(exposed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&exposed.stderr).contains("INLINE_TOKEN"));
}
