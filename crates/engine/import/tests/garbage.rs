//! Input from anywhere: large, long, deep, and broken at random. Nothing here may panic or take long.

mod common;

use std::time::{Duration, Instant};

use common::*;
use engine_graph::{GraphRule, validate};
use engine_import::{ImportError, import};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Far above what a linear algorithm needs in a debug build, far below what a quadratic one does.
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn long_chains_are_followed_without_recursion() {
    let start = Instant::now();
    let mut workflow = z_image();
    // 10,000 samplers, each on the latents of the one before.
    for place in 0..10_000 {
        let mut sampler = workflow["6"].clone();
        let before = if place == 0 { "5".to_owned() } else { format!("{}", 999 + place) };
        sampler["inputs"]["latent_image"] = json!([before, 0]);
        workflow[(1000 + place).to_string()] = sampler;
    }
    workflow["7"]["inputs"]["samples"] = json!(["10999", 0]);
    let imported = imported_value(&workflow);
    assert!(imported.graph.nodes.len() > 10_000);
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
}

#[test]
fn long_reroutes_with_many_readers_are_followed_once() {
    let start = Instant::now();
    let count = 10_000;
    let mut workflow = z_image();
    for place in 0..count {
        let before = if place == 0 { "5".to_owned() } else { format!("{}", 9_999 + place) };
        workflow[(10_000 + place).to_string()] = json!({"class_type": "Reroute", "inputs": {"": [before, 0]}});
        let mut sampler = workflow["6"].clone();
        sampler["inputs"]["latent_image"] = json!([(9_999 + count).to_string(), 0]);
        let sampler_id = (100_000 + place).to_string();
        workflow[(200_000 + place).to_string()] =
            json!({"class_type": "VAEDecode", "inputs": {"samples": [sampler_id.clone(), 0], "vae": ["3", 0]}});
        workflow[sampler_id] = sampler;
        workflow[(300_000 + place).to_string()] =
            json!({"class_type": "SaveImage", "inputs": {"images": [(200_000 + place).to_string(), 0]}});
    }
    let imported = import(workflow.to_string().as_bytes()).unwrap();
    assert_eq!(imported.targets.len(), count + 1);
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
}

#[test]
fn a_chain_of_bypassed_nodes_and_a_chain_of_unknown_ones() {
    let start = Instant::now();
    let count = 10_000;
    for (mode, mapped) in [(4, true), (0, false)] {
        let mut document = ui_fixture();
        let nodes = document["nodes"].as_array_mut().unwrap();
        let lora = nodes.iter().position(|node| node["id"] == 4).unwrap();
        let template = nodes.remove(lora);
        let mut links = Vec::new();
        for place in 0..count {
            let mut node = template.clone();
            node["id"] = json!(if place + 1 == count { 4 } else { 1000 + place });
            node["mode"] = json!(mode);
            if place > 0 {
                node["inputs"][0]["link"] = json!(1000 + place);
                links.push(json!([1000 + place, 999 + place, 0, 0, 0, "MODEL"]));
            }
            nodes.push(node);
        }
        document["links"].as_array_mut().unwrap().extend(links);
        match import(document.to_string().as_bytes()) {
            Ok(imported) => assert!(mapped && imported.targets == ["13"]),
            Err(error) => assert!(!mapped && error.unmapped().len() == count, "{error}"),
        }
    }
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
}

#[test]
fn limits_hold() {
    let too_many: Map<String, Value> =
        (0..60_000).map(|id| (id.to_string(), json!({"class_type": "Note", "inputs": {}}))).collect();
    assert!(matches!(refused(&Value::Object(too_many)), ImportError::TooLarge(_)));
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(matches!(import(deep.as_bytes()), Err(ImportError::Json(_))));
    let deep = format!("{{\"1\":{}1{}}}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    assert!(matches!(import(deep.as_bytes()), Err(ImportError::Json(_))));
    // A text of a megabyte is fine once, not in each of a hundred instances.
    let mut document = subgraph_fixture();
    let inner = &mut document["definitions"]["subgraphs"][0]["nodes"];
    inner[2]["widgets_values"] = json!(["x".repeat(1 << 20)]);
    document["nodes"][1]["widgets_values"] = json!([]);
    assert!(import(document.to_string().as_bytes()).is_ok());
    for id in 100..200 {
        let (mut instance, mut save) = (document["nodes"][1].clone(), document["nodes"][0].clone());
        instance["id"] = json!(id);
        save["id"] = json!(id + 100);
        save["inputs"][0]["link"] = json!(id);
        document["nodes"].as_array_mut().unwrap().extend([instance, save]);
        document["links"].as_array_mut().unwrap().push(json!([id, id, 0, id + 100, 0, "IMAGE"]));
    }
    assert!(matches!(refused(&document), ImportError::TooLarge(_)));
}

#[test]
fn huge_names_are_cut_in_messages() {
    let name = "n".repeat(1 << 20);
    let error = refused(&z_image_with("6", "sampler_name", name.as_str()));
    assert!(error.to_string().len() < 1000);
    let mut workflow = z_image();
    workflow["6"]["class_type"] = json!(name);
    workflow["6"]["_meta"] = json!({"title": name});
    assert!(refused(&workflow).to_string().len() < 1000);
}

/// All places in a document, as JSON pointers.
fn places(document: &Value) -> Vec<String> {
    let mut places = Vec::new();
    let mut stack = vec![(String::new(), document)];
    while let Some((place, value)) = stack.pop() {
        match value {
            Value::Object(fields) => {
                stack
                    .extend(fields.iter().map(|(name, value)| (format!("{place}/{}", name.replace('/', "~1")), value)));
            }
            Value::Array(items) => {
                stack.extend(items.iter().enumerate().map(|(index, value)| (format!("{place}/{index}"), value)));
            }
            _ => {}
        }
        places.push(place);
    }
    places
}

fn junk() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-30i64..70).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-zA-Z0-9:\\-]{0,4}".prop_map(Value::from),
        prop::sample::select(vec!["Reroute", "KSampler", "PrimitiveNode", "VAEDecode", "Exotic", "*", "MODEL", "-10"])
            .prop_map(Value::from),
        (0u64..20, 0u64..3).prop_map(|(node, slot)| json!([node.to_string(), slot])),
        Just(json!([])),
        Just(json!({})),
        (0i64..20, 0i64..20).prop_map(|(from, to)| json!([3, from, 0, to, 0, "MODEL"])),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    /// A workflow damaged in a few places gives a typed error, or a graph that is sound but for values out of range.
    #[test]
    fn damaged_workflows_never_panic(
        which in 0usize..3,
        damage in prop::collection::vec((any::<prop::sample::Index>(), junk()), 1..4),
    ) {
        let mut document = match which {
            0 => z_image(),
            1 => ui_fixture(),
            _ => subgraph_fixture(),
        };
        for (place, value) in damage {
            let places = places(&document);
            *document.pointer_mut(&places[place.index(places.len())]).unwrap() = value;
        }
        if let Ok(imported) = import(document.to_string().as_bytes()) {
            prop_assert!(!imported.targets.is_empty());
            for target in &imported.targets {
                if let Err(error) = validate(&imported.graph, &registry(), target) {
                    prop_assert_eq!(error.rule, GraphRule::ParamRange, "{}", error);
                }
            }
        }
    }

    #[test]
    fn bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(import(&bytes).is_err());
    }
}
