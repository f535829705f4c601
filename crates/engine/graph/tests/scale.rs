//! Large graphs: no deep recursion, and time that grows with the graph. The limits are far above what is measured,
//! so that only another order of growth breaks them.

#![allow(clippy::unwrap_used)] // helpers of tests, outside test functions

mod common;

use std::time::{Duration, Instant};

use common::run::*;
use common::*;
use engine_graph::*;

fn chain(length: usize) -> Graph {
    let join = |i: usize| Node::new(format!("n{i}"), "test/join").input("a", format!("n{}", i - 1), "text");
    // Written backwards, the worst order for anything that walks up from the first node.
    Graph::new((1..length).rev().map(join).chain([text("n0", "")]))
}

/// On a small stack, as server threads have, or smaller.
fn on_a_small_stack(work: impl FnOnce() + Send + 'static) -> Duration {
    let start = Instant::now();
    std::thread::Builder::new().stack_size(128 * 1024).spawn(work).unwrap().join().unwrap();
    start.elapsed()
}

#[test]
fn a_chain_of_20_000_nodes_is_read_checked_keyed_and_run() {
    let json = chain(20_000).to_value().to_string();
    let took = on_a_small_stack(move || {
        let graph = parse(&json).unwrap();
        let valid = validate(&graph, &registry(), "n19999").unwrap();
        assert_eq!(valid.nodes().len(), 20_000);
        assert!(node_keys(&valid, &NoContents).unwrap().iter().all(Option::is_some));
        let runners = tellers().with(
            "test/join",
            With(|_: &NodeContext<'_>| Ok(Outputs::of("text", Value::text("")).with("reversed", Value::text("")))),
        );
        let memory = Memory::default();
        for executed in [20_000, 0] {
            let outcome = Execution::new(&runners).cache(&memory, &NoContents).run(&valid).unwrap();
            assert_eq!(outcome.executed, executed);
        }
    });
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn a_cycle_of_20_000_nodes_is_found() {
    let mut graph = chain(20_000);
    let last = graph.nodes.len() - 1;
    graph.nodes[last] = Node::new("n0", "test/join").input("b", "n19999", "text");
    let took = on_a_small_stack(move || {
        assert_eq!(validate(&graph, &registry(), "n0").unwrap_err().rule, GraphRule::Cycle);
    });
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn ten_thousand_nodes_side_by_side_are_quick() {
    let pictures = (0..10_000).map(|i| paint(&format!("m{i}"), "p").param("seed", i));
    let edges = (0..10_000).map(|i| Edge::new(format!("m{i}"), "image"));
    let collage = Node::new("c", "test/collage").input_list("images", edges);
    let json = Graph::new(pictures.chain([text("p", ""), collage])).to_value().to_string();
    let took = on_a_small_stack(move || {
        let valid = validate(&parse(&json).unwrap(), &registry(), "c").unwrap();
        assert_eq!(valid.nodes().len(), 10_002);
        assert_eq!(node_keys(&valid, &NoContents).unwrap().len(), 10_002);
    });
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn edges_may_outnumber_nodes_by_far() {
    let edges = (0..200_000).map(|i| Edge::new(format!("m{}", i % 50), "image"));
    let collage = Node::new("c", "test/collage").input_list("images", edges);
    let pictures = (0..50).map(|i| paint(&format!("m{i}"), "p"));
    let graph = Graph::new(pictures.chain([text("p", ""), collage]));
    let start = Instant::now();
    let outcome = Execution::new(&tellers()).run(&validate(&graph, &registry(), "c").unwrap()).unwrap();
    // The 50 pictures are equal, so one is made.
    assert_eq!(outcome.executed, 3);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}
