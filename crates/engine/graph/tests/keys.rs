//! What changes a cache key and what doesn't.

#![allow(clippy::unwrap_used)] // helpers of tests, outside test functions

mod common;

use common::*;
use engine_graph::*;
use serde_json::json;

fn key_of(graph: &Graph, target: &str, hasher: &dyn ContentHasher) -> Option<NodeKey> {
    let valid = validate(graph, &registry(), target).unwrap();
    *node_keys(&valid, hasher).unwrap().last().unwrap()
}

fn key(graph: &Graph) -> NodeKey {
    key_of(graph, "m", &NoContents).unwrap()
}

#[test]
fn spelling_does_not_change_a_key() {
    let plain = key(&Graph::new([text("p", "a"), paint("m", "p")]));
    // Ids, the order of nodes, defaults written out, and other spellings of one number.
    let other_ids = Graph::new([paint("m", "zz"), text("other", "x"), text("zz", "a")]);
    assert_eq!(key(&other_ids), plain);
    for (name, value) in [
        ("steps", json!(8)),
        ("steps", json!(8.0)),
        ("guidance", json!(0)),
        ("guidance", json!(-0.0)),
        ("sampler", json!("euler")),
        ("model", json!("")),
        ("seed", json!("7")),
        ("seed", json!(7.0)),
    ] {
        let graph = Graph::new([text("p", "a"), paint("m", "p").param(name, value.clone())]);
        assert_eq!(key(&graph), plain, "{name} {value}");
    }
    let list = |input: Input| {
        let mut collage = Node::new("m", "test/collage");
        collage.inputs.insert("images".to_owned(), input);
        collage.inputs.insert("control".to_owned(), Input::One(Edge::new("i", "image")));
        key(&Graph::new([text("p", "a"), paint("i", "p"), collage]))
    };
    assert_eq!(list(Input::One(Edge::new("i", "image"))), list(Input::Many(vec![Edge::new("i", "image")])));
}

#[test]
fn meaning_does() {
    let mut keys = vec![key(&Graph::new([text("p", "a"), paint("m", "p")]))];
    for (name, value) in [
        ("steps", json!(9)),
        ("width", json!(512)),
        ("height", json!(512)),
        ("guidance", json!(0.5)),
        ("tiled", json!(true)),
        ("sampler", json!("heun")),
        ("seed", json!(8)),
        ("seed", json!(u64::MAX)),
        ("seed", json!(9007199254740992u64)),
        ("seed", json!("9007199254740993")),
    ] {
        keys.push(key(&Graph::new([text("p", "a"), paint("m", "p").param(name, value)])));
    }
    keys.push(key(&Graph::new([text("p", "b"), paint("m", "p")])));
    keys.push(key(&Graph::new([text("p", "a"), paint("i", "p"), paint("m", "p").input("image", "i", "image")])));
    // The same edges at other ports, from other outputs, in another order.
    let join = |a: &str, b: &str, output: &str| {
        let inner = Node::new("j", "test/join").input("a", "p", "text");
        Graph::new([text("p", "a"), inner, Node::new("m", "test/join").input("a", a, "text").input("b", b, output)])
    };
    keys.extend([join("p", "j", "text"), join("j", "p", "text"), join("p", "j", "reversed")].map(|graph| key(&graph)));
    let one_port = |port: &str| Graph::new([text("p", "a"), Node::new("m", "test/join").input(port, "p", "text")]);
    keys.extend(["a", "b"].map(|port| key(&one_port(port))));
    let collage = |edges: &[&str]| {
        let edges = edges.iter().map(|from| Edge::new(*from, "image"));
        let collage = Node::new("m", "test/collage").input_list("images", edges);
        key(&Graph::new([text("p", "a"), paint("x", "p"), paint("y", "p").param("seed", 8), collage]))
    };
    keys.extend([collage(&["x", "y"]), collage(&["y", "x"]), collage(&["x"]), collage(&["x", "x"])]);
    let load = |file: serde_json::Value| key(&Graph::new([Node::new("m", "test/load").param("file", file)]));
    keys.extend([load(json!("")), load(json!("x")), load(json!({"ref": "path", "path": "x"}))]);
    let count = keys.len();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), count);
}

#[test]
fn both_forms_of_an_asset_id_are_one() {
    let load = |file: serde_json::Value| key(&Graph::new([Node::new("m", "test/load").param("file", file)]));
    assert_eq!(load(json!("sha256-ab")), load(json!({"ref": "asset", "id": "sha256-ab"})));
}

#[test]
fn random_seeds_and_all_that_depends_on_them_have_no_key() {
    for seed in [json!(-1), json!("-1")] {
        let graph = Graph::new([
            text("p", "a"),
            paint("r", "p").param("seed", seed),
            paint("m", "p").input("image", "r", "image"),
            Node::new("c", "test/collage").input("images", "m", "image"),
        ]);
        let valid = validate(&graph, &registry(), "c").unwrap();
        let keys: Vec<_> = node_keys(&valid, &NoContents).unwrap().iter().map(Option::is_some).collect();
        assert_eq!(keys, [true, false, false, false]);
    }
}

#[test]
fn contents_count_in_any_order_and_can_forbid_a_key() {
    struct Files(&'static [(&'static str, &'static str)], bool);
    impl ContentHasher for Files {
        fn add_contents(&self, node: &ValidNode, contents: &mut Contents) -> Result<(), NodeError> {
            if node.node_type() == "test/load" {
                self.0.iter().for_each(|(name, content)| contents.add(*name, content));
                if self.1 {
                    contents.mark_uncacheable();
                }
            }
            Ok(())
        }
    }
    let graph = Graph::new([Node::new("l", "test/load"), Node::new("m", "test/use").input("model", "l", "model")]);
    let with = |files: &'static [_]| key_of(&graph, "m", &Files(files, false)).unwrap();
    let one = with(&[("a", "1"), ("b", "2")]);
    assert_eq!(one, with(&[("b", "2"), ("a", "1")]));
    for other in [
        with(&[]),
        with(&[("a", "1")]),
        with(&[("a", "2"), ("b", "1")]),
        with(&[("a", "1b"), ("", "2")]),
        with(&[("a1", ""), ("b", "2")]),
    ] {
        assert_ne!(one, other);
    }
    assert_eq!(key_of(&graph, "m", &Files(&[], true)), None);
}

#[test]
fn keys_are_stable_across_releases_and_print_as_hex() {
    let key = key(&Graph::new([text("m", "a red apple")]));
    assert_eq!(key.to_string().parse::<NodeKey>().unwrap(), key);
    assert_eq!(key.to_string(), "ac9621e9180a6ec28995e47c7d839703ef7979c10b3d0c216160910ffd600e75");
    for text in ["", "12", "zz", &"g".repeat(64), &"0".repeat(65)] {
        assert!(text.parse::<NodeKey>().is_err(), "{text}");
    }
}
