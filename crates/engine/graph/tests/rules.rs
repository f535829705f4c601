//! Every rule of the graph contract, each with graphs that break it alone.

#![allow(clippy::unwrap_used)] // helpers of tests, outside test functions

mod common;

use common::*;
use engine_graph::*;
use serde_json::{Value as Json, json};

/// The rule, node and port that a document breaks, after the message was checked for substance.
fn broken(document: Json) -> (GraphRule, Option<String>, Option<String>) {
    let error = parse(&document.to_string())
        .and_then(|graph| validate(&graph, &registry(), "m"))
        .expect_err(&format!("accepted {document}"));
    assert!(error.message.len() > 20, "{}", error.message);
    (error.rule, error.node_id, error.port)
}

fn at(rule: GraphRule, node: &str, port: Option<&str>) -> (GraphRule, Option<String>, Option<String>) {
    (rule, Some(node.to_owned()), port.map(str::to_owned))
}

fn nowhere(rule: GraphRule) -> (GraphRule, Option<String>, Option<String>) {
    (rule, None, None)
}

/// A graph of `m` (the target) with these fields beside its id, and the text `p`.
fn with_m(fields: Json) -> Json {
    let mut m = json!({"id": "m"});
    m.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({"schemaVersion": 1, "nodes": [{"id": "p", "type": "test/text"}, m]})
}

fn painter(params: Json) -> Json {
    with_m(json!({"type": "test/paint", "params": params, "inputs": {"prompt": {"from": "p", "output": "text"}}}))
}

fn painter_error(params: Json) -> GraphError {
    let graph = parse(&painter(params.clone()).to_string()).unwrap();
    validate(&graph, &registry(), "m").expect_err(&format!("accepted {params}"))
}

#[test]
fn the_contract_graph_is_accepted_and_comes_back_as_written() {
    let document = json!({"schemaVersion": 1, "nodes": [
        {"id": "p1", "type": "test/text", "params": {"text": "a red apple"}},
        {"id": "m", "type": "test/paint", "params": {"steps": 8, "seed": 7, "guidance": 1},
         "inputs": {"prompt": {"from": "p1", "output": "text"}}},
        {"id": "c", "type": "test/collage", "inputs": {"images": [{"from": "m", "output": "image"}]}}]});
    let graph = parse(&document.to_string()).unwrap();
    assert_eq!(graph.to_value(), document);
    let valid = validate(&graph, &registry(), "m").unwrap();
    let ids: Vec<_> = valid.nodes().iter().map(ValidNode::id).collect();
    assert_eq!(ids, ["p1", "m"], "only the target's upstream closure is kept");
    assert_eq!(valid.target().id(), "m");
    let params = valid.target().params();
    assert_eq!((params.integer("steps").unwrap(), params.integer("width").unwrap()), (8, 1024));
    assert_eq!((params.float("guidance").unwrap(), params.text("sampler").unwrap()), (1.0, "euler"));
    assert_eq!((params.seed("seed").unwrap(), params.boolean("tiled").unwrap()), (7, false));
}

#[test]
fn json_must_be_json_without_repeated_keys() {
    for text in ["", "{", "nodes", "{\"schemaVersion\":1,\"nodes\":[]} x", r#"{"schemaVersion":NaN,"nodes":[]}"#] {
        assert_eq!(parse(text).unwrap_err().rule, GraphRule::Json, "{text}");
    }
    let twice = r#"{"schemaVersion":1,"nodes":[{"id":"m","type":"test/text","params":{"text":"a","text":"b"}}]}"#;
    let error = parse(twice).unwrap_err();
    assert_eq!((error.rule, error.node_id.as_deref()), (GraphRule::Json, Some("m")));
    assert!(error.message.contains("nodes[0].params.text"), "{}", error.message);
    let deep = format!("{{\"schemaVersion\":1,\"nodes\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(parse(&deep).unwrap_err().message.contains("nested"));
}

#[test]
fn the_schema_version_must_be_known() {
    for document in [
        json!({"nodes": []}),
        json!({"schemaVersion": null, "nodes": []}),
        json!({"schemaVersion": "1", "nodes": []}),
        json!({"schemaVersion": 0, "nodes": []}),
        json!({"schemaVersion": 2, "nodes": []}),
        json!({"schemaVersion": -1, "nodes": []}),
        json!({"schemaVersion": 1.5, "nodes": []}),
        json!({"schemaVersion": 2, "nodes": 7, "other": true}),
    ] {
        assert_eq!(broken(document), nowhere(GraphRule::SchemaVersion));
    }
    let built = Graph { schema_version: 2, nodes: vec![text("m", "")] };
    assert_eq!(validate(&built, &registry(), "m").unwrap_err().rule, GraphRule::SchemaVersion);
}

#[test]
fn graphs_and_nodes_must_have_their_shape() {
    for document in [
        json!([]),
        json!(null),
        json!("graph"),
        json!({"schemaVersion": 1}),
        json!({"schemaVersion": 1, "nodes": {}}),
        json!({"schemaVersion": 1, "nodes": null}),
        json!({"schemaVersion": 1, "nodes": [], "edges": []}),
        json!({"schemaVersion": 1, "nodes": [7]}),
        json!({"schemaVersion": 1, "nodes": [[]]}),
        json!({"schemaVersion": 1, "nodes": [{"type": "test/text"}]}),
        json!({"schemaVersion": 1, "nodes": [{"id": 7, "type": "test/text"}]}),
        json!({"schemaVersion": 1, "nodes": [{"id": "", "type": "test/text"}]}),
        json!({"schemaVersion": 1, "nodes": [{"id": "a\nb", "type": "test/text"}]}),
        json!({"schemaVersion": 1, "nodes": [{"id": "x".repeat(257), "type": "test/text"}]}),
    ] {
        let error = parse(&document.to_string()).unwrap_err();
        assert_eq!((error.rule, error.node_id), (GraphRule::Shape, None), "{document}");
    }
    for fields in [
        json!({}),
        json!({"type": 7}),
        json!({"type": null}),
        json!({"type": "test/text", "params": []}),
        json!({"type": "test/text", "params": null}),
        json!({"type": "test/text", "inputs": []}),
        json!({"type": "test/text", "inputs": null}),
        json!({"type": "test/text", "position": [1, 2]}),
    ] {
        assert_eq!(broken(with_m(fields)), at(GraphRule::Shape, "m", None));
    }
    let error = parse(&with_m(json!({"type": "test/text", "colour": "red"})).to_string()).unwrap_err();
    assert!(error.message.contains("\"colour\""), "unknown fields are named: {}", error.message);
}

#[test]
fn edges_must_have_their_shape() {
    for edge in [
        json!(null),
        json!("p"),
        json!(7),
        json!({}),
        json!({"from": "p"}),
        json!({"output": "text"}),
        json!({"from": 7, "output": "text"}),
        json!({"from": "p", "output": null}),
        json!({"from": "p", "output": "text", "kind": "text"}),
        json!(["p"]),
        json!([{"from": "p", "output": "text"}, 7]),
        json!([[{"from": "p", "output": "text"}]]),
    ] {
        let document = with_m(json!({"type": "test/paint", "inputs": {"prompt": edge}}));
        assert_eq!(broken(document), at(GraphRule::Shape, "m", Some("prompt")));
    }
}

#[test]
fn the_number_of_nodes_is_limited() {
    let nodes: Vec<_> = (0..4).map(|i| json!({"id": format!("n{i}"), "type": "test/text"})).collect();
    let document = json!({"schemaVersion": 1, "nodes": nodes});
    let limits = Limits { max_nodes: 3, ..Limits::default() };
    assert_eq!(Graph::from_value(&document, &limits).unwrap_err().rule, GraphRule::TooLarge);
    assert!(Graph::from_value(&document, &Limits { max_nodes: 4, ..limits }).is_ok());
}

#[test]
fn ids_must_differ() {
    let document = json!({"schemaVersion": 1, "nodes": [
        {"id": "m", "type": "test/text"}, {"id": "x", "type": "test/text"}, {"id": "x", "type": "test/text"}]});
    assert_eq!(broken(document), at(GraphRule::DuplicateId, "x", None));
}

#[test]
fn types_must_be_known() {
    for name in ["", "test/unknown", "TEST/text", "../../etc"] {
        assert_eq!(broken(with_m(json!({"type": name}))), at(GraphRule::UnknownType, "m", None));
    }
}

#[test]
fn ports_must_exist_at_both_ends() {
    let wired = |port: &str, from: &str, output: &str| {
        broken(with_m(json!({"type": "test/join", "inputs": {port: {"from": from, "output": output}}})))
    };
    assert_eq!(wired("c", "p", "text"), at(GraphRule::UnknownPort, "m", Some("c")));
    assert_eq!(wired("a", "p", "image"), at(GraphRule::UnknownPort, "m", Some("a")));
    assert_eq!(wired("b", "q", "text"), at(GraphRule::UnknownSource, "m", Some("b")));
}

#[test]
fn required_ports_must_be_wired() {
    assert_eq!(broken(with_m(json!({"type": "test/paint"}))), at(GraphRule::RequiredPort, "m", Some("prompt")));
    let empty = with_m(json!({"type": "test/collage", "inputs": {"images": []}}));
    assert_eq!(broken(empty), at(GraphRule::RequiredPort, "m", Some("images")));
}

#[test]
fn a_list_of_edges_needs_a_list_port() {
    let edge = json!({"from": "p", "output": "text"});
    for edges in [json!([edge, edge]), json!([edge])] {
        let document = with_m(json!({"type": "test/paint", "inputs": {"prompt": edges}}));
        assert_eq!(broken(document), at(GraphRule::SeveralEdges, "m", Some("prompt")));
    }
}

#[test]
fn kinds_must_match() {
    let graph = |reader: Node| Graph::new([text("p", ""), paint("i", "p"), Node::new("l", "test/load"), reader]);
    let error = |reader: Node| validate(&graph(reader), &registry(), "m").unwrap_err();
    let mismatch = |reader: Node, port: &str| {
        let error = error(reader);
        assert_eq!((error.rule, error.port.as_deref()), (GraphRule::KindMismatch, Some(port)));
        assert_eq!(error.node_id.as_deref(), Some("m"));
    };
    mismatch(Node::new("m", "test/paint").input("prompt", "i", "image"), "prompt");
    mismatch(Node::new("m", "test/use").input("model", "i", "image"), "model");
    mismatch(Node::new("m", "test/split").input("image", "l", "model"), "image");
    let images = [Edge::new("i", "image"), Edge::new("p", "text")];
    mismatch(Node::new("m", "test/collage").input_list("images", images), "images");
    // One image serves lists and controls, one edge serves a list port, and a list never serves a single port.
    let collage = Node::new("m", "test/collage").input("images", "i", "image").input("control", "i", "image");
    assert!(validate(&graph(collage), &registry(), "m").is_ok());
    let split = Node::new("s", "test/split").input("image", "i", "image");
    let list = Node::new("m", "test/paint").input("prompt", "p", "text").input("image", "s", "parts");
    let graph = Graph::new([text("p", ""), paint("i", "p"), split, list]);
    assert_eq!(validate(&graph, &registry(), "m").unwrap_err().rule, GraphRule::KindMismatch);
}

#[test]
fn cycles_are_reported_at_a_node_of_the_cycle() {
    let join = |id: &str, a: &str| Node::new(id, "test/join").input("a", a, "text");
    let itself = Graph::new([join("m", "m")]);
    let error = validate(&itself, &registry(), "m").unwrap_err();
    assert_eq!((error.rule, error.node_id.as_deref()), (GraphRule::Cycle, Some("m")));
    // m reads x, x and y read each other, and t feeds the cycle.
    let graph = Graph::new([join("m", "x"), join("x", "y").input("b", "t", "text"), join("y", "x"), text("t", "")]);
    let error = validate(&graph, &registry(), "m").unwrap_err();
    assert_eq!(error.rule, GraphRule::Cycle);
    assert!(["x", "y"].contains(&error.node_id.as_deref().unwrap()), "{error}");
    // Also where the target doesn't depend on it.
    assert_eq!(validate(&graph, &registry(), "t").unwrap_err().rule, GraphRule::Cycle);
}

#[test]
fn the_target_must_be_a_node() {
    for target in ["", "n", "M"] {
        let error = validate(&Graph::new([text("m", "")]), &registry(), target).unwrap_err();
        assert_eq!((error.rule, error.node_id.as_deref()), (GraphRule::UnknownTarget, Some(target)));
    }
    assert_eq!(validate(&Graph::default(), &registry(), "m").unwrap_err().rule, GraphRule::UnknownTarget);
}

#[test]
fn params_must_have_their_type() {
    for params in [
        json!({"steps": "8"}),
        json!({"steps": "NaN"}),
        json!({"steps": null}),
        json!({"steps": 8.5}),
        json!({"steps": [8]}),
        json!({"guidance": "NaN"}),
        json!({"guidance": "Infinity"}),
        json!({"guidance": true}),
        json!({"tiled": 1}),
        json!({"tiled": "true"}),
        json!({"sampler": 1}),
        json!({"model": null}),
        json!({"seed": "NaN"}),
        json!({"seed": ""}),
        json!({"seed": "7.0"}),
        json!({"seed": " 7"}),
        json!({"seed": "+7"}),
        json!({"seed": true}),
        json!({"seed": null}),
        json!({"seed": {"value": 7}}),
    ] {
        let error = painter_error(params.clone());
        assert_eq!((error.rule, error.node_id.as_deref()), (GraphRule::ParamType, Some("m")), "{params}");
        let key = params.as_object().unwrap().keys().next().unwrap();
        assert!(error.message.contains(&format!("{key:?}")), "{}", error.message);
    }
    assert!(painter_error(json!({"guidance": "NaN"})).message.contains("the text \"NaN\""));
    let number = with_m(json!({"type": "test/text", "params": {"text": 7}}));
    assert_eq!(broken(number), at(GraphRule::ParamType, "m", None));
}

#[test]
fn params_must_be_in_range_and_on_their_step() {
    for params in [
        json!({"width": 0}),
        json!({"width": 15}),
        json!({"width": 255}),
        json!({"width": 2049}),
        json!({"width": 65536}),
        json!({"width": -256}),
        json!({"width": 1000}),
        json!({"width": 1040}),
        json!({"height": 1544}),
        json!({"height": 1000}),
        json!({"steps": 0}),
        json!({"steps": 101}),
        json!({"steps": u64::MAX}),
        json!({"steps": 1e300}),
        json!({"guidance": -0.5}),
        json!({"guidance": 20.5}),
        json!({"guidance": 1e308}),
        json!({"seed": -2}),
        json!({"seed": 0.5}),
        json!({"seed": 9007199254740992.0}),
        json!({"seed": 1.8446744073709552e19}),
    ] {
        let error = painter_error(params.clone());
        assert_eq!((error.rule, error.node_id.as_deref()), (GraphRule::ParamRange, Some("m")), "{params}");
    }
    let error = painter_error(json!({"width": 1000}));
    assert!(error.message.contains("960 and 1024"), "the nearest values are given: {}", error.message);
    // What clients increment by doesn't bind where a finer multiple is declared, nor for fractions.
    for (key, value) in
        [("height", json!(1040)), ("guidance", json!(1.3)), ("width", json!(512.0)), ("steps", json!(1e1))]
    {
        assert!(validate(&painted_with(key, value), &registry(), "m").is_ok(), "{key}");
    }
    // 1e999 isn't a number of JSON's usual readers; it never arrives as infinity.
    let text = painter(json!({"guidance": 7.25})).to_string().replace("7.25", "1e999");
    assert_eq!(parse(&text).unwrap_err().rule, GraphRule::Json);
}

#[test]
fn seeds_are_kept_and_echoed_digit_for_digit() {
    let written = [
        (json!(0), Some(0)),
        (json!(9007199254740993u64), Some(9007199254740993)),
        (json!(u64::MAX), Some(u64::MAX)),
        (json!("9007199254740993"), Some(9007199254740993)),
        (json!("18446744073709551615"), Some(u64::MAX)),
        (json!(-1), None),
        (json!("-1"), None),
    ];
    for (seed, value) in written {
        let graph = parse(&painter(json!({"seed": seed})).to_string()).unwrap();
        assert_eq!(graph.nodes[1].params["seed"], seed);
        let valid = validate(&graph, &registry(), "m").unwrap();
        assert_eq!(valid.target().params().to_json()["seed"], seed);
        assert_eq!(valid.target().params().has_random_seed(), value.is_none());
        assert_eq!(valid.target().params().seed("seed").ok(), value);
    }
    for seed in ["18446744073709551616", "-2", "99999999999999999999999999"] {
        let graph = parse(&painter(json!({"seed": seed})).to_string()).unwrap();
        assert!(validate(&graph, &registry(), "m").is_err(), "{seed}");
        let graph = parse(&painter(json!({"seed": 7.25})).to_string().replace("7.25", seed)).unwrap();
        assert!(validate(&graph, &registry(), "m").is_err(), "{seed}");
    }
}

#[test]
fn param_names_must_be_known() {
    let error = painter_error(json!({"stepz": 8}));
    assert_eq!((error.rule, error.node_id.as_deref()), (GraphRule::UnknownParam, Some("m")));
    assert!(error.message.contains("\"stepz\"") && error.message.contains("\"steps\""), "{}", error.message);
}

#[test]
fn selects_must_hold_what_is_offered() {
    let error = painter_error(json!({"sampler": "eulr"}));
    assert_eq!((error.rule, error.node_id.as_deref()), (GraphRule::UnknownOption, Some("m")));
    assert!(error.message.contains("\"euler\", \"heun\""), "{}", error.message);
    assert_eq!(painter_error(json!({"sampler": ""})).rule, GraphRule::UnknownOption);

    let chosen = painted_with("model", "a.safetensors");
    let error = validate(&chosen, &registry(), "m").unwrap_err();
    assert_eq!(error.rule, GraphRule::UnknownOption);
    assert!(error.message.contains("diffusion_models"), "{}", error.message);
    let served = registry().with_options(|_, category| {
        let name = "a.safetensors".to_owned();
        if category == "diffusion_models" { vec![SelectOption { value: name.clone(), label: name }] } else { vec![] }
    });
    assert!(validate(&chosen, &served, "m").is_ok());
    assert!(validate(&painted_with("model", ""), &served, "m").is_ok(), "the empty default stays allowed");
    assert!(validate(&painted_with("model", "../a.safetensors"), &served, "m").is_err());
}

#[test]
fn assets_are_ids_or_references_and_ids_never_paths() {
    let resolve = |file: Json| {
        let graph = Graph::new([Node::new("m", "test/load").param("file", file)]);
        validate(&graph, &registry(), "m").map(|valid| valid.target().params().asset("file").unwrap().clone())
    };
    let id = format!("sha256-{}", "ab".repeat(32));
    assert_eq!(resolve(json!(id)).unwrap(), AssetRef::Id(id.clone()));
    assert_eq!(resolve(json!({"ref": "asset", "id": id})).unwrap(), AssetRef::Id(id));
    assert_eq!(resolve(json!("take_1f")).unwrap(), AssetRef::Id("take_1f".to_owned()));
    assert_eq!(resolve(json!("")).unwrap(), AssetRef::None);
    let path = resolve(json!({"ref": "path", "path": "a/b.png"})).unwrap();
    assert_eq!(path, AssetRef::Path("a/b.png".to_owned()));
    for bad in [
        json!("../../etc/passwd"),
        json!("a/b"),
        json!("a\\b"),
        json!("a.png"),
        json!("x".repeat(129)),
        json!(7),
        json!(null),
        json!({"ref": "asset", "id": "../x"}),
        json!({"ref": "asset"}),
        json!({"ref": "asset", "id": "x", "path": "y"}),
        json!({"ref": "url", "id": "x"}),
        json!({"ref": "path", "path": ""}),
        json!({"ref": "path", "path": "a\0b"}),
        json!({"id": "x"}),
    ] {
        let error = resolve(bad.clone()).expect_err(&bad.to_string());
        assert_eq!((error.rule, error.node_id.as_deref()), (GraphRule::ParamType, Some("m")), "{bad}");
    }
}

#[test]
fn the_rules_are_checked_in_the_order_of_the_contract() {
    // Each graph breaks two neighbouring rules, the later one in an earlier node.
    let loose = |id: &str| Node::new(id, "test/join");
    let cases = [
        (vec![Node::new("a", "no/type"), text("m", ""), text("m", "")], GraphRule::DuplicateId),
        (vec![loose("a").input("x", "m", "text"), Node::new("m", "no/type")], GraphRule::UnknownType),
        (vec![Node::new("a", "test/paint"), loose("m").input("x", "a", "image")], GraphRule::UnknownPort),
        (
            vec![
                loose("a").input_list("a", [Edge::new("t", "text"), Edge::new("t", "text")]),
                text("t", ""),
                Node::new("m", "test/paint"),
            ],
            GraphRule::RequiredPort,
        ),
        (
            vec![
                Node::new("l", "test/load"),
                loose("a").input("a", "l", "model"),
                loose("m").input_list("a", [Edge::new("a", "text"), Edge::new("a", "text")]),
            ],
            GraphRule::SeveralEdges,
        ),
        (
            vec![loose("a").input("a", "a", "text"), Node::new("l", "test/load"), loose("m").input("a", "l", "model")],
            GraphRule::KindMismatch,
        ),
        (vec![loose("a").input("a", "a", "text")], GraphRule::Cycle),
        (vec![text("a", "").param("text", 7)], GraphRule::UnknownTarget),
        (vec![text("a", "").param("x", 7), text("m", "").param("text", 7)], GraphRule::ParamType),
        (
            vec![text("p", ""), paint("a", "p").param("sampler", "x"), paint("m", "p").param("x", 1)],
            GraphRule::UnknownParam,
        ),
    ];
    for (nodes, rule) in cases {
        let error = validate(&Graph::new(nodes), &registry(), "m").unwrap_err();
        assert_eq!(error.rule, rule, "{error}");
    }
}

#[test]
fn messages_stay_short_whatever_the_names() {
    let huge = "x".repeat(1_000_000);
    let many = (0..10_000).map(|i| text(&format!("n{i}"), ""));
    for graph in [
        Graph::new([Node::new("m", huge.as_str())]),
        Graph::new([text("m", "").param(huge.as_str(), 1)]),
        Graph::new([Node::new("m", "test/join").input("a", huge.as_str(), "text")]),
        Graph::new(many.chain([Node::new("m", "test/join").input("a", "nobody", "text")])),
        painted_with("sampler", huge.as_str()),
        painted_with("steps", huge.as_str()),
    ] {
        let error = validate(&graph, &registry(), "m").unwrap_err();
        assert!(error.message.len() < 1_000, "{} bytes", error.message.len());
    }
}
