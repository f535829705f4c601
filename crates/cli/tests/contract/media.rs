//! Node types, takes and assets.

use crate::common::demo_graph;
use crate::{api, refusal};
use serde_json::json;

#[test]
fn health_and_models_agree_on_the_registry() {
    let api = api();
    let health = api.get("/v1/health").json();
    assert_eq!((&health["ok"], &health["apiVersion"]), (&json!(true), &json!("v1")));
    assert_eq!(health["schemaVersions"], json!({"min": 1, "max": 1}));
    assert!(health["device"]["ramFreeMb"].is_u64(), "{health}");
    let models = api.get("/v1/models");
    let tag = models.header("etag");
    assert_eq!(json!(tag.trim_matches('"')), health["registryVersion"]);
    assert_eq!(api.send("GET", "/v1/models", &[("if-none-match", tag)], b"").status, 304);
    for node in models.json()["models"].as_array().unwrap() {
        assert_eq!(&api.get(&format!("/v1/models/{}", node["type"].as_str().unwrap())).json(), node);
    }
    refusal(&api.get("/v1/models/no/such"), 404, "not_found");
}

#[test]
fn takes_answer_tags_and_ranges() {
    let api = api();
    let state = api.wait(&api.submit(demo_graph(json!({"steps": 1, "seed": 11}))));
    let take = &state["takes"][0];
    let path = format!("/v1/takes/{}", take["id"].as_str().unwrap());
    assert_eq!(&api.get(&path).json(), take);
    let path = path + "/bytes";
    let whole = api.get(&path);
    let tag = format!("\"{}\"", take["hash"].as_str().unwrap());
    assert_eq!((whole.header("content-type"), whole.header("etag")), ("image/png", tag.as_str()));
    assert_eq!(api.send("GET", &path, &[("if-none-match", &tag)], b"").status, 304);
    let size = whole.body.len();
    for (range, expected) in [("bytes=0-7", 0..8), ("bytes=10-", 10..size), ("bytes=-5", size - 5..size)] {
        let part = api.send("GET", &path, &[("range", range)], b"");
        assert_eq!((part.status, &part.body[..]), (206, &whole.body[expected]), "{range}");
    }
    refusal(&api.send("GET", &path, &[("range", "bytes=99999999-")], b""), 416, "invalid_range");
    refusal(&api.get("/v1/takes/take_unknown"), 404, "not_found");
    refusal(&api.get("/v1/takes/take_unknown/bytes"), 404, "not_found");
}

#[test]
fn pages_come_newest_first_and_hold_each_run_once() {
    let api = api();
    let runs: Vec<String> = (0..3).map(|seed| api.submit(demo_graph(json!({"steps": 1, "seed": seed})))).collect();
    let (mut seen, mut query) = (Vec::new(), "?limit=2".to_owned());
    while !runs.iter().all(|run| seen.contains(run)) {
        let page = api.get(&format!("/v1/runs{query}")).json();
        seen.extend(page["runs"].as_array().unwrap().iter().map(|run| run["runId"].as_str().unwrap().to_owned()));
        query = format!("?limit=2&cursor={}", page["nextCursor"]);
    }
    let place = |run: &String| seen.iter().position(|other| other == run);
    assert!(place(&runs[2]) < place(&runs[1]) && place(&runs[1]) < place(&runs[0]), "{seen:?}");
    let mut once = seen.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), seen.len());
    refusal(&api.get("/v1/runs?limit=0"), 422, "invalid_request");
    refusal(&api.get("/v1/runs?status=lost"), 422, "invalid_request");
}
