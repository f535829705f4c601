//! What must hold for any graph.

#![allow(clippy::unwrap_used)] // helpers of tests, outside test functions

mod common;

use std::collections::HashMap;

use common::run::*;
use common::*;
use engine_graph::*;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

/// JSON that resembles a graph closely enough to get past some of the checks.
fn any_json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<f64>().prop_map(|float| json!(float)),
        prop_oneof!["[a-d]", "test/(text|paint|join|collage)", "image|text|parts|prompt|from", "NaN|-1|[0-9]{1,21}"]
            .prop_map(Json::from),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        let key = "schemaVersion|nodes|id|type|params|inputs|from|output|seed|prompt|text|steps|width";
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
            prop::collection::vec((key, inner), 0..5).prop_map(|fields| Json::Object(fields.into_iter().collect())),
        ]
    })
}

fn any_param() -> impl Strategy<Value = (String, Json)> {
    prop_oneof![
        6 => prop_oneof![
            prop::sample::select(vec!["", "apple", "pear"]).prop_map(|text| ("text".to_owned(), json!(text))),
            (1..4i64).prop_map(|steps| ("steps".to_owned(), json!(steps))),
            (4..6i64).prop_map(|width| ("width".to_owned(), json!(width * 64))),
            (0..3i64).prop_map(|guidance| ("guidance".to_owned(), json!(guidance as f64 / 2.0))),
            (-1..2i64).prop_map(|seed| ("seed".to_owned(), json!(seed))),
            (-1..2i64).prop_map(|seed| ("seed".to_owned(), json!(seed.to_string()))),
            prop::sample::select(vec!["euler", "heun"]).prop_map(|sampler| ("sampler".to_owned(), json!(sampler))),
        ],
        1 => ("[a-z]{0,9}", any_json()),
    ]
}

/// Nodes of the test types with edges to earlier, later, own or absent nodes, mostly fitting.
fn any_graph() -> impl Strategy<Value = Graph> {
    let types: Vec<_> = registry().iter().map(|node| node.node_type.clone()).chain(["no/type".to_owned()]).collect();
    let kinds = types.len();
    let node =
        (0..kinds * 8, prop::collection::vec(any_param(), 0..3), prop::collection::vec((0..12usize, 0..40u8), 6));
    prop::collection::vec(node, 2..14).prop_map(move |nodes| {
        let registry = registry();
        let mut graph = Graph::default();
        let mut outputs: Vec<(Edge, PortKind)> = Vec::new();
        for (index, (kind, params, wires)) in nodes.into_iter().enumerate() {
            // The unknown type once in eight times as often as each of the others.
            let name = if kind % 8 == 0 { &types[kind / 8] } else { &types[kind % (kinds - 1)] };
            let mut node = Node::new(format!("n{index}"), name.as_str());
            let fits = |port: &PortDescriptor| outputs.iter().any(|(_, kind)| port.kind.accepts(*kind));
            let unfed = |descriptor: &NodeDescriptor| descriptor.inputs.iter().any(|port| port.required && !fits(port));
            if registry.get(name).is_some_and(|descriptor| unfed(descriptor)) && wires[0].1 > 0 {
                // Nothing there yet to feed it: a source stands in its place.
                node.node_type = "test/text".to_owned();
            }
            let Some(descriptor) = registry.get(&node.node_type) else {
                graph.nodes.push(node);
                continue;
            };
            for (key, value) in params {
                // Mostly params that the type has.
                if descriptor.find_param(&key).is_some() || value.is_null() {
                    node.params.insert(key, value);
                }
            }
            for (port, &(pick, chance)) in descriptor.inputs.iter().zip(&wires) {
                let fitting: Vec<_> = outputs.iter().filter(|(_, kind)| port.kind.accepts(*kind)).collect();
                let edge = match (chance, fitting.is_empty()) {
                    (0, _) => Edge::new(format!("n{pick}"), "image"),
                    (1, _) => continue,
                    (_, false) => fitting[pick % fitting.len()].0.clone(),
                    (_, true) => continue,
                };
                let input = match chance {
                    20.. if port.kind.is_list() => Input::Many(vec![edge; usize::from(chance) - 19]),
                    2 => Input::Many(vec![edge]),
                    _ => Input::One(edge),
                };
                node.inputs.insert(port.id.clone(), input);
            }
            for port in &descriptor.outputs {
                outputs.push((Edge::new(node.id.as_str(), port.id.as_str()), port.kind));
            }
            graph.nodes.push(node);
        }
        graph
    })
}

/// The whole meaning of a node, written out: what two equal keys must agree on. Seeds are compared by value.
fn meaning(graph: &ValidGraph) -> Vec<Option<String>> {
    let mut meanings: Vec<Option<String>> = Vec::new();
    for node in graph.nodes() {
        let mut params = node.params().to_json();
        if let Some(Json::String(seed)) = params.get("seed").cloned() {
            params.insert("seed".to_owned(), serde_json::from_str(&seed).unwrap());
        }
        let random = params.get("seed") == Some(&json!(-1));
        let sources: Option<Vec<_>> = node
            .inputs()
            .iter()
            .map(|input| {
                let edges: Option<Vec<_>> = input
                    .sources
                    .iter()
                    .map(|source| Some(json!([meanings[source.node].clone()?, source.output])))
                    .collect();
                Some(json!([input.port, edges?]))
            })
            .collect();
        meanings.push(match (random, sources) {
            (false, Some(sources)) => Some(json!([node.node_type(), params, sources]).to_string()),
            _ => None,
        });
    }
    meanings
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Graph::from_slice(&bytes, &Limits::default());
    }

    #[test]
    fn no_json_makes_parser_or_checks_panic(nodes in prop::collection::vec(any_json(), 0..4), document in any_json()) {
        for document in [document, json!({"schemaVersion": 1, "nodes": nodes})] {
            if let Ok(graph) = parse(&document.to_string()) {
                let _ = validate(&graph, &registry(), "a");
            }
        }
    }

    #[test]
    fn graphs_survive_being_written_and_read(graph in any_graph()) {
        prop_assert_eq!(Graph::from_value(&graph.to_value(), &Limits::default()).unwrap(), graph.clone());
        prop_assert_eq!(parse(&graph.to_value().to_string()).unwrap().to_value(), graph.to_value());
    }

    #[test]
    fn what_is_accepted_runs_and_what_is_refused_says_where(graph in any_graph(), target in 0..14usize) {
        let runners = tellers();
        match validate(&graph, &registry(), &format!("n{target}")) {
            Ok(valid) => {
                let places: HashMap<_, _> = valid.nodes().iter().enumerate().map(|(i, node)| (node.id(), i)).collect();
                prop_assert_eq!(places.len(), valid.nodes().len());
                for (index, node) in valid.nodes().iter().enumerate() {
                    prop_assert!(node.sources().all(|source| source.node < index));
                }
                let outcome = Execution::new(&runners).run(&valid);
                prop_assert!(outcome.is_ok(), "{:?}", outcome);
            }
            Err(error) => {
                prop_assert!(!error.message.is_empty());
                prop_assert!(error.node_id.is_some(), "{:?}", error);
            }
        }
    }

    #[test]
    fn keys_are_equal_exactly_when_type_params_and_inputs_are(graph in any_graph()) {
        let mut by_key: HashMap<NodeKey, String> = HashMap::new();
        let mut by_meaning: HashMap<String, NodeKey> = HashMap::new();
        for node in &graph.nodes {
            let Ok(valid) = validate(&graph, &registry(), &node.id) else { continue };
            for (key, meaning) in node_keys(&valid, &NoContents).unwrap().into_iter().zip(meaning(&valid)) {
                prop_assert_eq!(key.is_some(), meaning.is_some());
                if let (Some(key), Some(meaning)) = (key, meaning) {
                    prop_assert_eq!(by_key.entry(key).or_insert_with(|| meaning.clone()), &meaning);
                    prop_assert_eq!(*by_meaning.entry(meaning).or_insert(key), key);
                }
            }
        }
    }

    #[test]
    fn a_cache_never_changes_what_comes_out(graph in any_graph(), target in 0..14usize, forget in any::<u64>()) {
        let Ok(valid) = validate(&graph, &registry(), &format!("n{target}")) else { return Ok(()) };
        let (runners, memory) = (tellers(), Memory::default());
        let story = |outcome: RunOutcome| outcome.target.iter().map(|(_, value)| tell(value)).collect::<Vec<_>>();
        let fixed = || 7;
        let plain = story(Execution::new(&runners).seeds(&fixed).run(&valid).unwrap());
        for _ in 0..2 {
            let cached = Execution::new(&runners).seeds(&fixed).cache(&memory, &NoContents).run(&valid).unwrap();
            prop_assert_eq!(&story(cached), &plain);
            // Any part of the cache may have been evicted.
            memory.kept.lock().unwrap().retain(|key, _| forget >> (key.as_bytes()[0] % 64) & 1 == 1);
        }
    }
}

#[test]
fn the_random_graphs_reach_what_they_are_for() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (mut accepted, mut shared, mut long) = (0, 0, 0);
    let mut refused = std::collections::HashSet::new();
    for _ in 0..500 {
        let graph = any_graph().new_tree(&mut runner).unwrap().current();
        for node in &graph.nodes {
            match validate(&graph, &registry(), &node.id) {
                Ok(valid) => {
                    accepted += 1;
                    long += usize::from(valid.nodes().len() > 3);
                    let mut keys: Vec<_> = node_keys(&valid, &NoContents).unwrap().into_iter().flatten().collect();
                    let count = keys.len();
                    keys.sort_unstable();
                    keys.dedup();
                    shared += usize::from(keys.len() < count);
                }
                Err(error) => {
                    refused.insert(error.rule);
                }
            }
        }
    }
    assert!(accepted > 200 && shared > 20 && long > 50, "{accepted} {shared} {long}");
    assert!(refused.len() >= 7, "{refused:?}");
}
