//! The engine over the demo model: several runs at a time, restarts, cancelling, previews.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

use engine_device::{DevicePolicy, Machine, Settings};
use engine_graph::{Graph, Ignore, Limits};
use engine_nodes::{ModelLibrary, Nodes, NodesConfig};
use engine_runs::{Engine, EngineOptions, Media, PageQuery, PathAccess, RunState, RunStatus, Store, Watch, run_once};
use gen_core::CancelFlag;
use sampling::BatchingSampler;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn nodes(media: Arc<Media>) -> Nodes {
    Nodes::new(NodesConfig {
        providers: Arc::new(z_image::provider_registry().unwrap()),
        text: Arc::new(core_llm::TextLlmRegistryBuilder::new().build().unwrap()),
        policy: DevicePolicy::new(Machine::host(false), Settings::default()).unwrap(),
        library: Arc::new(ModelLibrary::new("/nonexistent", Vec::new())),
        assets: media,
        sampler: Arc::new(BatchingSampler::new(8).unwrap()),
    })
    .unwrap()
}

async fn engine_with(dir: &Path, options: EngineOptions) -> Arc<Engine> {
    let store = Store::open(dir).await.unwrap();
    let media = Arc::new(Media::new(dir, store.clone(), tokio::runtime::Handle::current(), PathAccess::None));
    let nodes = Arc::new(nodes(Arc::clone(&media)));
    Engine::start(store, media, nodes, options).await.unwrap()
}

async fn engine(dir: &Path, workers: usize) -> Arc<Engine> {
    engine_with(dir, EngineOptions { workers, ..EngineOptions::default() }).await
}

fn graph(params: Value) -> Value {
    json!({"schemaVersion": 1, "nodes": [
        {"id": "p1", "type": "input/text", "params": {"text": "a red apple"}},
        {"id": "m1", "type": "inline/demo", "params": params, "inputs": {"prompt": {"from": "p1", "output": "text"}}}]})
}

async fn submit(engine: &Engine, params: Value) -> String {
    engine.submit(&graph(params), "m1", None, None).await.unwrap().run_id
}

async fn end(engine: &Engine, id: &str) -> RunState {
    for _ in 0..6000 {
        let state = engine.run(id).await.unwrap().unwrap();
        if state.status.is_final() {
            return state;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("run {id} doesn't end");
}

fn bytes(engine: &Engine, state: &RunState) -> Vec<u8> {
    engine.media().takes().read(&state.takes[0].uri).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_side_by_side_give_the_bits_of_runs_alone() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path(), 4).await;
    let params: Vec<Value> = (0..6)
        .map(|seed| json!({"seed": seed, "steps": 3 + seed % 3, "guidance": f64::from(seed % 2), "width": 96, "height": 64}))
        .collect();
    let mut ids = Vec::new();
    for params in &params {
        ids.push(submit(&engine, params.clone()).await);
    }
    let alone = nodes(Arc::new(Media::without_store(dir.path(), PathAccess::None)));
    for (id, params) in ids.iter().zip(&params) {
        let state = end(&engine, id).await;
        assert_eq!(state.status, RunStatus::Done, "{:?}", state.error);
        let graph = Graph::from_value(&graph(params.clone()), &Limits::default()).unwrap();
        let takes = run_once(&alone, &graph, "m1", &Ignore, CancelFlag::new()).unwrap();
        assert!(takes[0].1.bytes == bytes(&engine, &state), "{params}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_run_does_not_keep_short_ones_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path(), 2).await;
    let long = submit(&engine, json!({"seed": 1, "steps": 100, "width": 256, "height": 256})).await;
    for seed in 0..3 {
        let short = submit(&engine, json!({"seed": seed, "steps": 1, "width": 64, "height": 64})).await;
        assert_eq!(end(&engine, &short).await.status, RunStatus::Done);
    }
    assert_eq!(engine.run(&long).await.unwrap().unwrap().status, RunStatus::Running);
    engine.cancel(&long).await.unwrap();
    assert_eq!(end(&engine, &long).await.status, RunStatus::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_works_in_every_phase_and_for_that_run_only() {
    let dir = tempfile::tempdir().unwrap();
    for phase in ["preparing", "loading", "encode", "sample", "decode"] {
        // A new engine has nothing loaded.
        let engine = engine_with(dir.path(), EngineOptions { workers: 2, disk_cache: 0, memory_cache: 0 }).await;
        let other = submit(&engine, json!({"seed": 2, "steps": 12})).await;
        let id = submit(&engine, json!({"seed": 1, "steps": 12, "width": 256, "height": 256})).await;
        let Watch::Live(mut watch) = engine.watch(&id, Some(0), false).await.unwrap().unwrap() else {
            panic!("the run is gone")
        };
        let is_phase = |json: &str| {
            let event: Value = serde_json::from_str(json).unwrap();
            event["type"] == "progress" && event["phase"] == phase
        };
        let mut found = watch.missed.iter().any(|event| is_phase(&event.json));
        while !found {
            let event = watch.receiver.recv().await.unwrap();
            assert!(!event.terminal, "{phase}: {}", event.json);
            found = is_phase(&event.json);
        }
        let asked = Instant::now();
        engine.cancel(&id).await.unwrap();
        let state = end(&engine, &id).await;
        // The contract says 200 ms; a machine that also compiles may take its time.
        assert!(asked.elapsed() < Duration::from_secs(1), "{phase}: {:?}", asked.elapsed());
        assert_eq!(state.status, RunStatus::Cancelled, "{phase}");
        assert!(state.takes.is_empty(), "{phase}");
        assert_eq!(end(&engine, &other).await.status, RunStatus::Done, "{phase}");
        engine.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn results_outlive_the_process_and_are_never_made_twice() {
    let dir = tempfile::tempdir().unwrap();
    let params = json!({"seed": 3, "steps": 2});
    let first = {
        let engine = engine(dir.path(), 1).await;
        let state = end(&engine, &submit(&engine, params.clone()).await).await;
        engine.stop().await.unwrap();
        state
    };
    let engine = engine(dir.path(), 1).await;
    let again = end(&engine, &submit(&engine, params.clone()).await).await;
    assert_eq!(again.takes[0].hash, first.takes[0].hash);
    assert_ne!(again.takes[0].id, first.takes[0].id);
    assert_eq!(again.takes[0].params, first.takes[0].params);
    assert_eq!(serde_json::to_value(&again.nodes["m1"]).unwrap()["state"], "cached");
    let other = end(&engine, &submit(&engine, json!({"seed": 4, "steps": 2})).await).await;
    assert_eq!(serde_json::to_value(&other.nodes["m1"]).unwrap()["state"], "done");
    let takes = engine.list_takes(&PageQuery { limit: 10, ..PageQuery::default() }).await.unwrap();
    assert_eq!(takes.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_tried_again_draws_the_same_seeds() {
    let dir = tempfile::tempdir().unwrap();
    let params = json!({"seed": -1, "steps": 1, "width": 64, "height": 64});
    let (id, first) = {
        let engine = engine(dir.path(), 1).await;
        let id = submit(&engine, params.clone()).await;
        let first = end(&engine, &id).await;
        engine.stop().await.unwrap();
        (id, first)
    };
    // As if the process had died, or been stopped, between the take and the end.
    for left in ["UPDATE runs SET status = 'running'", "UPDATE runs SET status = 'queued', attempts = 0"] {
        let path = format!("sqlite:{}", dir.path().join("runs.db").display());
        let pool = sqlx::SqlitePool::connect(&path).await.unwrap();
        sqlx::query(left).execute(&pool).await.unwrap();
        pool.close().await;
        let engine = engine(dir.path(), 1).await;
        let again = end(&engine, &id).await;
        assert_eq!((again.status, &again.takes), (RunStatus::Done, &first.takes), "{left}");
        engine.stop().await.unwrap();
    }
    let engine = engine(dir.path(), 1).await;
    let another = end(&engine, &submit(&engine, params).await).await;
    assert_ne!(another.takes[0].params["seed"], first.takes[0].params["seed"]);
    // The take's own graph, embedded in the picture, has the seed that was drawn.
    let png = String::from_utf8_lossy(&bytes(&engine, &first)).into_owned();
    assert!(png.contains(&format!("\"seed\":{}", first.takes[0].params["seed"])));
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_is_no_attempt_and_dying_twice_is_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let id = {
        let engine = engine(dir.path(), 2).await;
        let id = submit(&engine, json!({"seed": 1, "steps": 100, "width": 512, "height": 512})).await;
        while engine.run(&id).await.unwrap().unwrap().status != RunStatus::Running {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        engine.stop().await.unwrap();
        id
    };
    let path = format!("sqlite:{}", dir.path().join("runs.db").display());
    let attempts = |pool: sqlx::SqlitePool| async move {
        let row: (String, i64) = sqlx::query_as("SELECT status, attempts FROM runs").fetch_one(&pool).await.unwrap();
        pool.close().await;
        row
    };
    let (status, count) = attempts(sqlx::SqlitePool::connect(&path).await.unwrap()).await;
    assert_eq!((status.as_str(), count), ("queued", 0));
    let pool = sqlx::SqlitePool::connect(&path).await.unwrap();
    sqlx::query("UPDATE runs SET status = 'running', attempts = 2").execute(&pool).await.unwrap();
    pool.close().await;
    let engine = engine(dir.path(), 2).await;
    let state = end(&engine, &id).await;
    assert_eq!(state.status, RunStatus::Error);
    assert_eq!(state.error.unwrap().message, "interrupted by a restart");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_have_killed_the_process_runs_alone() {
    let dir = tempfile::tempdir().unwrap();
    {
        let engine = engine_with(dir.path(), EngineOptions { workers: 1, ..EngineOptions::default() }).await;
        for seed in 0..4 {
            submit(&engine, json!({"seed": seed, "steps": 40})).await;
        }
        engine.stop().await.unwrap();
    }
    let pool = sqlx::SqlitePool::connect(&format!("sqlite:{}", dir.path().join("runs.db").display())).await.unwrap();
    sqlx::query("UPDATE runs SET status = 'running', attempts = 1 WHERE seq <= 2").execute(&pool).await.unwrap();
    pool.close().await;
    let engine = engine(dir.path(), 4).await;
    let mut alone = 0;
    loop {
        let live = engine.live_runs();
        let working: Vec<_> = live.iter().filter(|e| e.status == RunStatus::Running).collect();
        // Four are left until the first two, which were in work before, have ended.
        if live.len() > 2 && !working.is_empty() {
            assert_eq!(working.len(), 1);
            alone += 1;
        }
        if live.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(alone > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_served_state_is_never_older_than_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path(), 1).await;
    let id = submit(&engine, json!({"seed": 1, "steps": 4})).await;
    let served = async || -> Value { serde_json::from_str(&engine.run_json(&id).await.unwrap().unwrap()).unwrap() };
    let mut fractions = vec![served().await["fraction"].as_f64().unwrap()];
    loop {
        let state = engine.run(&id).await.unwrap().unwrap();
        let seen = served().await;
        fractions.push(seen["fraction"].as_f64().unwrap());
        if state.status.is_final() {
            assert_eq!(seen, json!(state));
            break;
        }
    }
    assert!(fractions.is_sorted() && fractions.iter().any(|f| *f > 0.0 && *f < 1.0), "{fractions:?}");
    assert!(engine.run_json("run_none").await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn previews_are_small_jpegs_for_those_who_ask() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path(), 1).await;
    let id = submit(&engine, json!({"seed": 1, "steps": 30})).await;
    let Some(Watch::Live(watch)) = engine.watch(&id, None, true).await.unwrap() else { panic!("the run is gone") };
    let mut previews = watch.previews.unwrap();
    let mut count = 0;
    let watching = async {
        while previews.changed().await.is_ok() {
            let preview = previews.borrow_and_update().clone().unwrap();
            let announced: Value = serde_json::from_str(&preview.json).unwrap();
            assert_eq!((&announced["type"], &announced["nodeId"]), (&json!("preview"), &json!("m1")));
            assert_eq!(announced["bytes"], preview.jpeg.len());
            let picture = engine_runs::picture::decode(&preview.jpeg).unwrap();
            assert_eq!((picture.width(), picture.height()), (16, 16));
            count += 1;
        }
    };
    tokio::select! { () = watching => {}, _ = end(&engine, &id) => {} }
    assert!(count > 0);
    let Some(Watch::Live(watch)) = engine.watch(&id, None, false).await.unwrap() else { panic!("the run is gone") };
    assert!(watch.previews.is_none());
}
