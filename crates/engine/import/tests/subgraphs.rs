//! Subgraphs: unfolded with the values that their instances set.

mod common;

use common::*;
use engine_import::ImportError;
use serde_json::{Value, json};

fn instance(document: &mut Value) -> &mut Value {
    &mut document["nodes"][1]
}

fn prompt_and_width(document: &Value) -> (Value, Value) {
    let imported = imported_value(document);
    let text = node(&imported, "57:3-text")["params"]["text"].clone();
    (text, node(&imported, "57:5")["params"]["width"].clone())
}

#[test]
fn an_instance_is_unfolded() {
    let imported = imported_value(&subgraph_fixture());
    assert_eq!(imported.targets, ["57:8"]);
    assert!(imported.unmapped.is_empty());
    let edge = |from: &str, output: &str| json!({"from": from, "output": output});
    assert_eq!(node(&imported, "57:8")["inputs"], json!({"vae": edge("60", "vae"), "latent": edge("57:6", "latent")}));
    assert_eq!(node(&imported, "57:6")["params"]["cfg"], 0.0);
    assert_eq!(node(&imported, "57:5")["params"], json!({"width": 640, "height": 1024, "batch": 1}));
    assert_eq!(node(&imported, "57:3-text")["params"]["text"], "a green pear");
}

#[test]
fn values_come_from_the_instance_else_from_inside() {
    let own = (json!("the subgraph's own prompt"), json!(1024));
    let mut document = subgraph_fixture();
    instance(&mut document)["widgets_values"] = json!([]);
    assert_eq!(prompt_and_width(&document), own);
    instance(&mut document)["widgets_values"] = json!([null, 512]);
    assert_eq!(prompt_and_width(&document), (own.0.clone(), json!(512)));
    // More values than widgets can't be told apart.
    instance(&mut document)["widgets_values"] = json!(["a", 1, 2]);
    assert_eq!(prompt_and_width(&document), own);
    assert!(has_note(&imported_value(&document), &["57", "told apart"]));
}

#[test]
fn proxy_widgets_name_the_order_and_reach_inside() {
    let mut document = subgraph_fixture();
    instance(&mut document)["properties"] = json!({"proxyWidgets": [["-1", "width"], ["6", "steps"], ["-1", "text"]]});
    instance(&mut document)["widgets_values"] = json!([768, 20, "a plum"]);
    assert_eq!(prompt_and_width(&document), (json!("a plum"), json!(768)));
    assert_eq!(node(&imported_value(&document), "57:6")["params"]["steps"], 20);
    instance(&mut document)["properties"] = json!({"proxyWidgets": [["99", "width"], [], ["-1", "text"]]});
    let imported = imported_value(&document);
    assert!(has_note(&imported, &["told apart"]));
}

#[test]
fn a_linked_input_beats_the_instances_value() {
    let mut document = subgraph_fixture();
    instance(&mut document)["inputs"][2]["link"] = json!(52);
    document["nodes"]
        .as_array_mut()
        .unwrap()
        .push(json!({"id": 61, "type": "PrimitiveInt", "widgets_values": [896, "fixed"],
        "outputs": [{"name": "INT", "type": "INT", "links": [52]}]}));
    document["links"].as_array_mut().unwrap().push(json!([52, 61, 0, 57, 2, "INT"]));
    assert_eq!(prompt_and_width(&document).1, json!(896));
}

#[test]
fn two_instances_are_two_sets_of_nodes() {
    let mut document = subgraph_fixture();
    let mut second = document["nodes"][1].clone();
    second["id"] = json!(58);
    second["widgets_values"] = json!(["a plum", 512]);
    let mut save = document["nodes"][0].clone();
    save["id"] = json!(41);
    save["inputs"][0]["link"] = json!(53);
    document["nodes"].as_array_mut().unwrap().extend([second, save]);
    document["links"].as_array_mut().unwrap().push(json!([53, 58, 0, 41, 0, "IMAGE"]));
    let imported = imported_value(&document);
    assert_eq!(imported.targets, ["57:8", "58:8"]);
    assert_eq!(node(&imported, "58:3-text")["params"]["text"], "a plum");
    assert_eq!(node(&imported, "57:3-text")["params"]["text"], "a green pear");
}

#[test]
fn subgraphs_nest() {
    let mut document = subgraph_fixture();
    // A shell around the instance, with the same inputs and output.
    let mut inner = document["nodes"][1].clone();
    inner["id"] = json!(1);
    for (slot, input) in inner["inputs"].as_array_mut().unwrap().iter_mut().enumerate() {
        input["link"] = json!(slot);
    }
    let definition = document["definitions"]["subgraphs"][0].clone();
    let mut shell = json!({"id": "shell", "name": "Shell", "nodes": [inner], "links": [
        {"id": 9, "origin_id": 1, "origin_slot": 0, "target_id": -20, "target_slot": 0, "type": "IMAGE"}]});
    for slot in 0..3 {
        shell["links"].as_array_mut().unwrap().push(json!([slot, -10, slot, 1, slot, "*"]));
    }
    shell["inputs"] = definition["inputs"].clone();
    shell["outputs"] = definition["outputs"].clone();
    document["definitions"]["subgraphs"].as_array_mut().unwrap().push(shell);
    instance(&mut document)["type"] = json!("shell");
    let imported = imported_value(&document);
    assert_eq!(imported.targets, ["57:1:8"]);
    assert_eq!(node(&imported, "57:1:5")["params"]["width"], 640);
    assert_eq!(node(&imported, "57:1:8")["inputs"]["vae"]["from"], "60");
    assert_eq!(node(&imported, "57:1:3-text")["params"]["text"], "a green pear");
}

#[test]
fn a_muted_or_unwired_instance_is_told() {
    let mut document = subgraph_fixture();
    instance(&mut document)["mode"] = json!(2);
    let error = refused(&document);
    assert!(matches!(reasons(&error)[..], [("40", "SaveImage", reason)] if reason.contains("muted")), "{error}");
    let mut document = subgraph_fixture();
    instance(&mut document)["inputs"][1]["link"] = json!(null);
    let error = refused(&document);
    assert!(matches!(reasons(&error)[..], [("57:8", "VAEDecode", reason)] if reason.contains("vae of subgraph 57")));
    let mut document = subgraph_fixture();
    document["definitions"]["subgraphs"] = json!([]);
    let error = refused(&document);
    assert!(matches!(reasons(&error)[..], [("57", _, _)]), "{error}");
}

#[test]
fn a_subgraph_in_itself_and_one_that_explodes_are_refused() {
    let mut document = subgraph_fixture();
    let own = json!({"id": 99, "type": document["definitions"]["subgraphs"][0]["id"]});
    document["definitions"]["subgraphs"][0]["nodes"].as_array_mut().unwrap().push(own);
    assert!(matches!(refused(&document), ImportError::TooLarge(_)));

    // Each level holds ten of the next: 10^15 nodes, were they unfolded.
    let level = |depth: u32| {
        let nodes: Vec<_> = (0..10).map(|id| json!({"id": id, "type": format!("level{}", depth + 1)})).collect();
        json!({"id": format!("level{depth}"), "nodes": nodes})
    };
    let document = json!({
        "nodes": [{"id": 1, "type": "level0"}],
        "definitions": {"subgraphs": (0..15).map(level).collect::<Vec<_>>()}});
    assert!(matches!(refused(&document), ImportError::TooLarge(_)));
}
