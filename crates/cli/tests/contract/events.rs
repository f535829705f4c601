//! Runs and the websocket.

use crate::common::{demo_graph, drain};
use crate::{api, refusal};
use serde_json::{Value, json};

fn numbers(events: &[Value]) -> Vec<u64> {
    events.iter().map(|event| event["seq"].as_u64().unwrap()).collect()
}

#[test]
fn events_come_in_order_and_a_reconnecting_client_misses_nothing_lasting() {
    let api = api();
    let run = api.submit(demo_graph(json!({"steps": 6, "seed": -1})));
    let (events, code) = drain(api.events(&run, ""));
    assert_eq!(code, Some(1000));
    assert_eq!((&events[0]["type"], &events[0]["state"]["runId"]), (&json!("snapshot"), &json!(run)));
    assert_eq!(events.last().unwrap()["type"], "run_done");
    assert!(events.iter().all(|event| event["runId"] == json!(run)), "{events:?}");
    assert!(numbers(&events).windows(2).all(|pair| pair[0] < pair[1]), "{events:?}");
    let phases = "queued preparing loading encode sample decode save";
    for event in events.iter().filter(|event| event["type"] == "progress") {
        assert!(phases.split(' ').any(|phase| event["phase"] == phase), "{event}");
        assert!((0.0..=1.0).contains(&event["fraction"].as_f64().unwrap()), "{event}");
    }
    let lasting = |event: &&Value| ["node_done", "run_done"].iter().any(|name| event["type"] == *name);
    let all: Vec<&Value> = events.iter().filter(lasting).collect();
    for &after in &numbers(&events) {
        let (again, _) = drain(api.events(&run, &format!("?after={after}")));
        let missed: Vec<&Value> = again.iter().filter(lasting).collect();
        let expected: Vec<&Value> = all.iter().copied().filter(|event| event["seq"].as_u64() > Some(after)).collect();
        // The end is told again to one who had it.
        assert!(missed.ends_with(&expected), "after {after}: {again:?}");
    }
    assert_eq!(drain(api.events("run_unknown", "")).1, Some(4404));
}

#[test]
fn client_ids_give_the_first_run_or_a_conflict() {
    let api = api();
    let id = format!("contract-{}", api.submit(demo_graph(json!({"steps": 1, "seed": 1}))));
    let body =
        |seed: i32| json!({"graph": demo_graph(json!({"steps": 1, "seed": seed})), "target": "m1", "clientRunId": id});
    let first = api.post("/v1/runs", &body(1));
    let again = api.post("/v1/runs", &body(1));
    assert_eq!((first.status, again.status), (201, 200));
    assert_eq!(first.json()["runId"], again.json()["runId"]);
    refusal(&api.post("/v1/runs", &body(2)), 409, "conflict");
}

#[test]
fn runs_side_by_side_give_the_bytes_that_each_gives_alone() {
    let api = api();
    let graph = |seed: i32, steps: i32| demo_graph(json!({"steps": steps, "seed": seed, "guidance": 1.5}));
    let hash = |run: &str| api.wait(run)["takes"][0]["hash"].as_str().unwrap().to_owned();
    // Another server, so that no result comes from the cache.
    let other = crate::start();
    let alone: Vec<String> = (1..5)
        .map(|seed| {
            let run = other.server.submit(graph(seed, 7));
            other.server.wait(&run)["takes"][0]["hash"].as_str().unwrap().to_owned()
        })
        .collect();
    let runs: Vec<String> = (1..5).map(|seed| api.submit(graph(seed, 7))).collect();
    let together: Vec<String> = runs.iter().map(|run| hash(run)).collect();
    assert_eq!(alone, together);
}

#[test]
fn cancelling_ends_a_run_once() {
    let api = api();
    let run = api.submit(demo_graph(json!({"steps": 100, "seed": -1, "width": 512, "height": 512})));
    let path = format!("/v1/runs/{run}");
    assert_eq!(api.send("DELETE", &path, &[], b"").status, 200);
    assert_eq!(api.wait(&run)["status"], "cancelled");
    assert_eq!(api.send("DELETE", &path, &[], b"").json(), json!({"runId": run, "status": "cancelled"}));
    assert_eq!(drain(api.events(&run, "")).0.last().unwrap()["type"], "cancelled");
    refusal(&api.send("DELETE", "/v1/runs/run_unknown", &[], b""), 404, "not_found");
}
