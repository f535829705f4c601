//! What a run does: order, events, seeds, cache, cancelling, failing.

#![allow(clippy::unwrap_used)] // helpers of tests, outside test functions

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::run::*;
use common::*;
use engine_graph::*;
use gen_core::CancelFlag;
use serde_json::json;

fn valid(graph: &Graph, target: &str) -> ValidGraph {
    validate(graph, &registry(), target).unwrap()
}

fn chain() -> Graph {
    Graph::new([
        text("p", "a red apple"),
        paint("a", "p"),
        paint("b", "p").input("image", "a", "image"),
        text("unused", "never"),
    ])
}

fn message(error: RunError) -> (String, String) {
    match error {
        RunError::Node { node_id, error } => (node_id, error.to_string()),
        RunError::Cancelled => panic!("cancelled"),
    }
}

#[test]
fn the_closure_runs_in_order_and_tells_every_step() {
    let (log, runners) = (Log::default(), tellers());
    let outcome = Execution::new(&runners).observer(&log).sink(&log).run(&valid(&chain(), "b")).unwrap();
    assert_eq!(outcome.executed, 3);
    let story = tell(outcome.target.get("image").unwrap());
    assert!(story.contains("<image:test/paint") && story.contains("a red apple"), "{story}");
    let expected = [
        "start p",
        "preparing p 0.5",
        "done p",
        "start a",
        "preparing a 0.5",
        "save a 0.5",
        "take a image image cached=false",
        "done a",
        "start b",
        "preparing b 0.5",
        "save b 0.5",
        "take b image image cached=false",
        "done b",
    ];
    assert_eq!(log.lines(), expected);
}

#[test]
fn lists_arrive_flattened_in_edge_order() {
    let graph = Graph::new([
        text("p", ""),
        paint("a", "p").param("seed", 1),
        paint("b", "p").param("seed", 2),
        Node::new("s", "test/split").input("image", "a", "image"),
        Node::new("c", "test/collage").input_list(
            "images",
            [Edge::new("b", "image"), Edge::new("s", "parts"), Edge::new("a", "image"), Edge::new("b", "image")],
        ),
    ]);
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let note = Arc::clone(&seen);
    let runners = tellers().with(
        "test/collage",
        With(move |context: &NodeContext<'_>| {
            *note.lock().unwrap() = context.inputs().list("images").iter().map(tell).collect();
            assert!(context.inputs().get("control").is_none());
            Ok(Outputs::of("image", value(PortKind::Image, String::new())))
        }),
    );
    Execution::new(&runners).run(&valid(&graph, "c")).unwrap();
    let seen = seen.lock().unwrap();
    let shape: Vec<_> = seen
        .iter()
        .map(|story| match story {
            split if split.starts_with("test/split") => &split[split.len() - 1..],
            one if one.contains("\"seed\":1") => "a",
            _ => "b",
        })
        .collect();
    assert_eq!(shape, ["b", "0", "1", "a", "b"]);
}

#[test]
fn random_seeds_are_drawn_cut_to_53_bits_and_handed_to_the_sink() {
    struct Params(std::sync::Mutex<Vec<serde_json::Value>>);
    impl OutputSink for Params {
        fn save(&self, output: &NodeOutput<'_>) -> Result<(), NodeError> {
            assert!(output.key.is_none() && !output.cached);
            self.0.lock().unwrap().push(output.params.to_json()["seed"].clone());
            Ok(())
        }
    }
    let saved = Params(Default::default());
    let runners = tellers().with(
        "test/paint",
        With(|context: &NodeContext<'_>| {
            let seed = context.params().seed("seed")?;
            Ok(Outputs::of("image", value(PortKind::Image, seed.to_string())))
        }),
    );
    for written in [json!(-1), json!("-1")] {
        let graph = painted_with("seed", written);
        let execution = Execution::new(&runners).sink(&saved).seeds(&|| u64::MAX);
        let outcome = execution.run(&valid(&graph, "m")).unwrap();
        assert_eq!(tell(outcome.target.get("image").unwrap()), ((1u64 << 53) - 1).to_string());
    }
    assert_eq!(*saved.0.lock().unwrap(), [json!((1u64 << 53) - 1), json!(((1u64 << 53) - 1).to_string())]);
    let seeds: std::collections::HashSet<u64> = (0..1000).map(|_| random_seed()).collect();
    assert_eq!(seeds.len(), 1000);
    assert!(seeds.iter().all(|&seed| seed < 1 << 53) && seeds.iter().any(|&seed| seed > 1 << 50));
}

#[test]
fn a_second_run_comes_from_the_cache_and_shows_its_takes() {
    let (log, memory, runners) = (Log::default(), Memory::default(), tellers());
    let graph = valid(&chain(), "b");
    let run = || Execution::new(&runners).observer(&log).sink(&log).cache(&memory, &NoContents).run(&graph).unwrap();
    let first = run();
    log.lines();
    let second = run();
    assert_eq!((first.executed, second.executed), (3, 0));
    let pictures = [first, second].map(|outcome| tell(outcome.target.get("image").unwrap()));
    assert_eq!(pictures[0], pictures[1]);
    let expected =
        ["cached p", "take a image image cached=true", "cached a", "take b image image cached=true", "cached b"];
    assert_eq!(log.lines(), expected);
}

#[test]
fn what_only_a_cached_node_reads_is_not_run_even_if_forgotten() {
    let (log, memory, runners) = (Log::default(), Memory::default(), tellers());
    let graph = valid(&chain(), "b");
    let run = || Execution::new(&runners).observer(&log).sink(&log).cache(&memory, &NoContents).run(&graph).unwrap();
    run();
    let keys = node_keys(&graph, &NoContents).unwrap();
    let target = keys[2].unwrap();
    memory.kept.lock().unwrap().retain(|key, _| *key == target);
    log.lines();
    assert_eq!(run().executed, 0);
    assert_eq!(log.lines(), ["cached p", "cached a", "take b image image cached=true", "cached b"]);
    // With the target gone everything that it needs runs again.
    memory.kept.lock().unwrap().clear();
    assert_eq!(run().executed, 3);
}

#[test]
fn equal_nodes_run_once_but_each_is_shown() {
    let graph = Graph::new([
        text("p", ""),
        text("q", ""),
        paint("a", "p"),
        paint("b", "q"),
        Node::new("c", "test/collage").input_list("images", [Edge::new("a", "image"), Edge::new("b", "image")]),
    ]);
    let (log, runners) = (Log::default(), tellers());
    let outcome = Execution::new(&runners).observer(&log).sink(&log).run(&valid(&graph, "c")).unwrap();
    assert_eq!(outcome.executed, 3);
    let lines = log.lines();
    assert!(lines.contains(&"cached q".to_owned()) && lines.contains(&"cached b".to_owned()), "{lines:?}");
    assert!(lines.contains(&"take b image image cached=true".to_owned()), "{lines:?}");
    let story = tell(outcome.target.get("image").unwrap());
    assert_eq!(story.matches("test/paint").count(), 2, "both edges carry a picture: {story}");
}

#[test]
fn a_twin_that_nothing_else_needs_runs_for_its_equal() {
    // a is read by s alone, which the cache holds; b is equal to a and has to be made.
    let graph = Graph::new([
        text("p", ""),
        paint("a", "p"),
        Node::new("s", "test/split").input("image", "a", "image"),
        paint("b", "p"),
        Node::new("c", "test/collage").input_list("images", [Edge::new("s", "parts"), Edge::new("b", "image")]),
    ]);
    let (memory, runners) = (Memory::default(), tellers());
    let graph = valid(&graph, "c");
    let run = || Execution::new(&runners).cache(&memory, &NoContents).run(&graph).unwrap();
    let first = run();
    let split = graph.nodes().iter().position(|node| node.id() == "s").unwrap();
    let split = node_keys(&graph, &NoContents).unwrap()[split].unwrap();
    memory.kept.lock().unwrap().retain(|key, _| *key == split);
    let second = run();
    assert_eq!((first.executed, second.executed), (4, 3));
    let stories = [first, second].map(|outcome| tell(outcome.target.get("image").unwrap()));
    assert_eq!(stories[0], stories[1]);
}

#[test]
fn what_is_only_shown_is_freed_at_once() {
    /// As a cache on disk does, gives a copy of its own each time.
    struct Disk(std::sync::Mutex<Vec<std::sync::Weak<Outputs>>>);
    impl NodeCache for Disk {
        fn get(&self, _: &NodeKey, _: &ValidNode) -> Option<Arc<Outputs>> {
            let outputs = Arc::new(Outputs::of("image", value(PortKind::Image, String::new())));
            let mut given = self.0.lock().unwrap();
            given.push(Arc::downgrade(&outputs));
            assert!(given.iter().filter(|outputs| outputs.strong_count() > 0).count() <= 2, "the target and one more");
            Some(outputs)
        }

        fn put(&self, _: &NodeKey, _: &ValidNode, _: &Arc<Outputs>) {}
    }
    let mut graph = chain();
    graph.nodes.extend((0..8).map(|i| {
        let before = if i == 0 { "b".to_owned() } else { format!("x{}", i - 1) };
        paint(&format!("x{i}"), "p").input("image", before, "image")
    }));
    let disk = Disk(Default::default());
    let outcome = Execution::new(&tellers()).cache(&disk, &NoContents).run(&valid(&graph, "x7")).unwrap();
    assert_eq!((outcome.executed, disk.0.lock().unwrap().len()), (0, 10));
}

#[test]
fn random_nodes_run_every_time_with_all_that_reads_them() {
    let (memory, runners) = (Memory::default(), tellers());
    let mut graph = chain();
    graph.nodes[1] = paint("a", "p").param("seed", -1);
    let graph = valid(&graph, "b");
    let run = || Execution::new(&runners).cache(&memory, &NoContents).run(&graph).unwrap();
    let stories = [run(), run()].map(|outcome| (outcome.executed, tell(outcome.target.get("image").unwrap())));
    assert_eq!((stories[0].0, stories[1].0), (3, 2));
    assert_ne!(stories[0].1, stories[1].1, "two different seeds were drawn");
    assert_eq!(memory.kept.lock().unwrap().len(), 1, "only the text is kept");
}

#[test]
fn cached_outputs_that_no_longer_fit_the_type_are_not_used() {
    let (memory, runners) = (Memory::default(), tellers());
    let graph = valid(&chain(), "p");
    let key = node_keys(&graph, &NoContents).unwrap()[0].unwrap();
    let stale = Outputs::of("text", value(PortKind::Latent, String::new()));
    memory.kept.lock().unwrap().insert(key, Arc::new(stale));
    let outcome = Execution::new(&runners).cache(&memory, &NoContents).run(&graph).unwrap();
    assert_eq!(outcome.executed, 1);
}

#[test]
fn a_missing_runner_fails_at_its_node_before_anything_runs() {
    let log = Log::default();
    let runners = RunnerSet::new().with("test/text", Teller);
    let error = Execution::new(&runners).observer(&log).run(&valid(&chain(), "b")).unwrap_err();
    let (node, message) = message(error);
    assert_eq!(node, "a");
    assert!(message.contains("test/paint"), "{message}");
    assert_eq!(log.lines(), [format!("failed a: {message}")]);
}

#[test]
fn failures_and_panics_end_the_run_at_their_node() {
    let log = Log::default();
    let failing = tellers().with("test/paint", With(|_: &NodeContext<'_>| Err(NodeError::new("no such checkpoint"))));
    let error = Execution::new(&failing).observer(&log).run(&valid(&chain(), "b")).unwrap_err();
    assert_eq!(message(error), ("a".to_owned(), "no such checkpoint".to_owned()));
    assert_eq!(log.lines()[3..], ["start a", "failed a: no such checkpoint"]);

    let panicking = tellers()
        .with("test/paint", With(|_: &NodeContext<'_>| -> Result<Outputs, NodeError> { panic!("at /home/x") }));
    let (node, text) = message(Execution::new(&panicking).run(&valid(&chain(), "b")).unwrap_err());
    assert_eq!(node, "a");
    assert!(text.contains("internal error") && !text.contains("/home"), "{text}");
    assert!(Execution::new(&tellers()).run(&valid(&chain(), "b")).is_ok(), "the process goes on");
}

#[test]
fn outputs_that_break_the_descriptor_are_refused() {
    for outputs in [
        Outputs::new(),
        Outputs::of("picture", value(PortKind::Image, String::new())),
        Outputs::of("image", Value::text("not an image")),
        Outputs::of("image", Value::Images(Vec::new())),
    ] {
        let runners = tellers().with("test/paint", With(move |_: &NodeContext<'_>| Ok(outputs.clone())));
        let (node, text) = message(Execution::new(&runners).run(&valid(&chain(), "b")).unwrap_err());
        assert_eq!(node, "a");
        assert!(text.contains("\"image\""), "{text}");
    }
}

#[test]
fn a_failed_save_fails_the_node_but_keeps_the_work() {
    struct Full;
    impl OutputSink for Full {
        fn save(&self, _: &NodeOutput<'_>) -> Result<(), NodeError> {
            Err(NodeError::new("the disk is full; free some space"))
        }
    }
    let (log, memory, runners) = (Log::default(), Memory::default(), tellers());
    let graph = valid(&chain(), "a");
    let run = || Execution::new(&runners).cache(&memory, &NoContents).observer(&log);
    let (node, text) = message(run().sink(&Full).run(&graph).unwrap_err());
    assert_eq!((node.as_str(), text.as_str()), ("a", "the disk is full; free some space"));
    assert!(!log.lines().contains(&"done a".to_owned()));
    assert_eq!(run().run(&graph).unwrap().executed, 0, "after freeing space nothing is rendered again");
}

#[test]
fn cancelling_ends_the_run_before_between_and_within_nodes() {
    let graph = valid(&chain(), "b");
    let cancel = CancelFlag::new();
    cancel.cancel();
    let log = Log::default();
    let run = Execution::new(&tellers()).observer(&log).cancel(cancel).run(&graph);
    assert_eq!((run.unwrap_err(), log.lines().len()), (RunError::Cancelled, 0));

    // The node ends well, fails, or notices; the run is cancelled either way, nothing is saved, no failure is told.
    type Ending = fn(&NodeContext<'_>) -> Result<Outputs, NodeError>;
    let endings: [Ending; 3] = [
        |_| Ok(Outputs::of("image", value(PortKind::Image, String::new()))),
        |_| Err(NodeError::new("the worker went away")),
        |context| context.check_cancelled().map(|()| Outputs::new()),
    ];
    for ending in endings {
        let (cancel, log, memory) = (CancelFlag::new(), Log::default(), Memory::default());
        let flag = cancel.clone();
        let runners = tellers().with(
            "test/paint",
            With(move |context: &NodeContext<'_>| {
                assert!(!context.cancel().is_cancelled());
                flag.cancel();
                ending(context)
            }),
        );
        let execution = Execution::new(&runners).observer(&log).sink(&log).cache(&memory, &NoContents).cancel(cancel);
        assert_eq!(execution.run(&graph).unwrap_err(), RunError::Cancelled);
        assert_eq!(log.lines(), ["start p", "preparing p 0.5", "done p", "start a"]);
        assert_eq!(memory.kept.lock().unwrap().len(), 1);
    }
    // A runner that gives up by itself counts as cancelled too.
    let runners = tellers().with("test/paint", With(|_: &NodeContext<'_>| Err(NodeError::Cancelled)));
    assert_eq!(Execution::new(&runners).run(&graph).unwrap_err(), RunError::Cancelled);
}

#[test]
fn progress_never_goes_back_nor_out_of_range() {
    let log = Log::default();
    let runners = tellers().with(
        "test/text",
        With(|context: &NodeContext<'_>| {
            for fraction in [-1.0, 0.25, 0.1, f32::NAN, 0.5, 7.0, f32::NEG_INFINITY, -0.0] {
                context.phase(Phase::Sample, fraction, "");
            }
            Ok(Outputs::of("text", Value::text("")))
        }),
    );
    Execution::new(&runners).observer(&log).run(&valid(&chain(), "p")).unwrap();
    let fractions: Vec<_> =
        log.lines().iter().filter_map(|line| line.strip_prefix("sample p ").map(str::to_owned)).collect();
    assert_eq!(fractions, ["0", "0.25", "0.25", "0.25", "0.5", "1", "1", "1"]);
}

#[test]
fn outputs_are_freed_after_their_last_reader() {
    static ALIVE: AtomicUsize = AtomicUsize::new(0);
    struct Weights;
    impl Drop for Weights {
        fn drop(&mut self) {
            ALIVE.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let runners = tellers()
        .with(
            "test/load",
            With(|_: &NodeContext<'_>| {
                ALIVE.fetch_add(1, Ordering::SeqCst);
                Ok(Outputs::of("model", Value::object(PortKind::Model, Weights)))
            }),
        )
        .with(
            "test/use",
            With(|context: &NodeContext<'_>| {
                context.inputs().object::<Weights>("model")?;
                assert_eq!(ALIVE.load(Ordering::SeqCst), 1, "one model at a time");
                Ok(Outputs::of("image", value(PortKind::Image, String::new())))
            }),
        );
    // Written so that loading everything first would be the natural order.
    let loads = (0..3).map(|i| Node::new(format!("l{i}"), "test/load").param("file", format!("f{i}")));
    let uses = (0..3).map(|i| Node::new(format!("u{i}"), "test/use").input("model", format!("l{i}"), "model"));
    let edges = (0..3).map(|i| Edge::new(format!("u{i}"), "image"));
    let graph = Graph::new(loads.chain(uses).chain([Node::new("c", "test/collage").input_list("images", edges)]));
    Execution::new(&runners).run(&valid(&graph, "c")).unwrap();
    assert_eq!(ALIVE.load(Ordering::SeqCst), 0);
}

#[test]
fn what_a_node_reads_must_be_there_before_anything_runs() {
    struct Gone;
    impl ContentHasher for Gone {
        fn add_contents(&self, node: &ValidNode, _: &mut Contents) -> Result<(), NodeError> {
            if node.id() == "b" { Err(NodeError::new("asset sha256-00 isn't stored here")) } else { Ok(()) }
        }
    }
    let log = Log::default();
    let execution = Execution::new(&tellers()).observer(&log).cache(&Ignore, &Gone).run(&valid(&chain(), "b"));
    assert_eq!(message(execution.unwrap_err()), ("b".to_owned(), "asset sha256-00 isn't stored here".to_owned()));
    assert_eq!(log.lines(), ["failed b: asset sha256-00 isn't stored here"]);
}
