//! Texts that a language model writes within a graph, with a tiny model of random weights.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

mod common;

use common::{nodes, picture, run_graph};
use conformance::recipe;
use engine_graph::{
    Event, Execution, Graph, Limits, NodeError, Observer, Phase, RunError, ValidGraph, node_keys, validate,
};
use engine_nodes::Nodes;
use gen_core::CancelFlag;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Mutex;

fn write(models: &Path, name: &str, family: &str) {
    let fixture = recipe::fixtures().join("llm-tiny").join(family);
    recipe::write_folder(&fixture, &models.join("llm").join(name), recipe::Format::F32, 1).unwrap();
}

fn tiny() -> (tempfile::TempDir, Nodes) {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "tiny", "qwen3");
    let nodes = nodes(dir.path());
    (dir, nodes)
}

fn graph(params: Value) -> Value {
    json!({"schemaVersion": 1, "nodes": [
        {"id": "p1", "type": "input/text", "params": {"text": "a red apple"}},
        {"id": "t1", "type": "text/generate", "params": params, "inputs": {"prompt": {"from": "p1", "output": "text"}}}]})
}

fn with_node(mut graph: Value, node: Value) -> Value {
    graph["nodes"].as_array_mut().unwrap().push(node);
    graph
}

fn text(nodes: &Nodes, graph: &Value) -> String {
    let outcome = run_graph(nodes, graph).unwrap_or_else(|error| panic!("{error}"));
    outcome.target.get("text").unwrap().as_text().unwrap().to_owned()
}

fn failure(nodes: &Nodes, graph: &Value) -> (String, Option<String>) {
    match run_graph(nodes, graph) {
        Err(RunError::Node { node_id, error: NodeError::Failed { message, port } }) => {
            assert_eq!(node_id, "t1");
            (message, port)
        }
        other => panic!("{other:?}"),
    }
}

fn valid(nodes: &Nodes, graph: &Value) -> ValidGraph {
    validate(&Graph::from_value(graph, &Limits::default()).unwrap(), &nodes.registry(), "t1").unwrap()
}

#[test]
fn a_picture_is_painted_of_what_was_written() {
    let (_dir, nodes) = tiny();
    let params = json!({"seed": 3, "max_tokens": 12, "instructions": "Say it in better words."});
    let written = text(&nodes, &graph(params.clone()));
    assert!(!written.is_empty() && written == written.trim());
    let edge = |from: &str| json!({"prompt": {"from": from, "output": "text"}});
    let painter = |from: &str| json!({"id": "m1", "type": "inline/demo", "params": {"seed": 1, "steps": 2}, "inputs": edge(from)});
    let outcome = run_graph(&nodes, &with_node(graph(params), painter("t1"))).unwrap();
    assert_eq!(outcome.target.record()["prompt"], written);
    assert_eq!(outcome.executed, 3);
    let by_hand = json!({"schemaVersion": 1, "nodes": [{"id": "p1", "type": "input/text", "params": {"text": written}}, painter("p1")]});
    assert_eq!(picture(&outcome), picture(&run_graph(&nodes, &by_hand).unwrap()));
}

#[test]
fn the_seed_and_the_params_decide() {
    let (_dir, nodes) = tiny();
    let of = |params: Value| text(&nodes, &graph(params));
    let first = of(json!({"seed": 3, "max_tokens": 12}));
    assert_eq!(first, of(json!({"seed": 3, "max_tokens": 12, "model": "tiny"})));
    assert_ne!(first, of(json!({"seed": 4, "max_tokens": 12})));
    assert_ne!(first, of(json!({"seed": 3, "max_tokens": 12, "instructions": "Shout."})));
    let greedy = of(json!({"seed": 3, "max_tokens": 12, "temperature": 0}));
    assert_eq!(greedy, of(json!({"seed": 4, "max_tokens": 12, "temperature": 0})));
}

#[test]
fn the_cache_key_holds_the_model_and_random_seeds_have_none() {
    let (dir, nodes) = tiny();
    let key = |params: Value| {
        nodes.library().rescan();
        node_keys(&valid(&nodes, &graph(params)), &nodes).unwrap().last().cloned().unwrap()
    };
    let first = key(json!({"seed": 3}));
    assert!(first.is_some() && first == key(json!({"seed": 3})));
    assert_ne!(first, key(json!({"seed": 3, "temperature": 0.5})));
    assert_eq!(key(json!({})), None);
    std::fs::remove_dir_all(dir.path().join("llm/tiny")).unwrap();
    write(dir.path(), "tiny", "llama3");
    assert_ne!(first, key(json!({"seed": 3})));
}

#[test]
fn what_cannot_be_written_is_said() {
    let (dir, nodes) = tiny();
    let picture = json!({"id": "i1", "type": "input/image", "params": {"asset": "gradient-32x32"}});
    let mut looking = with_node(graph(json!({"seed": 1})), picture);
    looking["nodes"][1]["inputs"]["image"] = json!({"from": "i1", "output": "image"});
    let target = looking["nodes"].as_array_mut().unwrap().remove(1);
    looking["nodes"].as_array_mut().unwrap().push(target);
    let (message, port) = failure(&nodes, &looking);
    assert!(message.contains("tiny reads no pictures") && port.as_deref() == Some("image"), "{message}");

    let (message, _) = failure(&nodes, &graph(json!({"seed": 1, "max_tokens": 5000})));
    assert!(message.contains("2048"), "{message}");
    write(dir.path(), "other", "llama3");
    nodes.library().rescan();
    let (message, _) = failure(&nodes, &graph(json!({"seed": 1})));
    assert!(message.contains("other") && message.contains("tiny"), "{message}");
    for name in ["tiny", "other"] {
        std::fs::remove_dir_all(dir.path().join("llm").join(name)).unwrap();
    }
    nodes.library().rescan();
    let (message, _) = failure(&nodes, &graph(json!({"seed": 1})));
    assert!(message.contains("llm/") && !message.contains(dir.path().to_str().unwrap()), "{message}");
}

/// Notes phases, and cancels with the first token.
struct Watcher {
    phases: Mutex<Vec<Phase>>,
    cancel: Option<CancelFlag>,
}

impl Observer for Watcher {
    fn event(&self, event: Event<'_>) {
        let Event::Progress { node_id: "t1", progress } = event else { return };
        let mut phases = self.phases.lock().unwrap();
        if phases.last() != Some(&progress.phase) {
            phases.push(progress.phase);
        }
        if let (Phase::Sample, Some(cancel)) = (progress.phase, &self.cancel) {
            cancel.cancel();
        }
    }
}

#[test]
fn progress_is_told_and_a_cancelled_text_ends() {
    let (_dir, nodes) = tiny();
    let graph = valid(&nodes, &graph(json!({"seed": 3, "max_tokens": 1500})));
    let watcher = |cancel| Watcher { phases: Mutex::default(), cancel };
    let watching = watcher(None);
    Execution::new(nodes.runners()).observer(&watching).run(&graph).unwrap();
    assert_eq!(*watching.phases.lock().unwrap(), [Phase::Loading, Phase::Encode, Phase::Sample]);
    let cancel = CancelFlag::new();
    let watching = watcher(Some(cancel.clone()));
    let outcome = Execution::new(nodes.runners()).observer(&watching).cancel(cancel).run(&graph);
    assert!(matches!(outcome, Err(RunError::Cancelled)), "{outcome:?}");
}
