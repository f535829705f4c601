//! The primitives against the model node: the same settings, the same pixels.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

mod common;

use common::{Pictures, nodes, picture, run_graph};
use engine_graph::{RunError, RunOutcome};
use engine_nodes::Nodes;
use gen_core::Image;
use serde_json::{Value, json};
use std::path::Path;

/// The demo's model node as a graph.
fn model_node(params: Value, image: Option<&str>, mask: Option<&str>) -> Value {
    let mut inputs = json!({"prompt": {"from": "p", "output": "text"}});
    let mut nodes = vec![json!({"id": "p", "type": "input/text", "params": {"text": "a red apple"}})];
    for (port, asset) in [("image", image), ("mask", mask)] {
        if let Some(asset) = asset {
            nodes.push(json!({"id": port, "type": format!("input/{port}"), "params": {"asset": asset}}));
            inputs[port] = json!({"from": port, "output": port});
        }
    }
    nodes.push(json!({"id": "m", "type": "inline/demo", "params": params, "inputs": inputs}));
    json!({"schemaVersion": 1, "nodes": nodes})
}

/// Settings of a graph made of primitives.
struct Parts<'a> {
    file: &'a str,
    sample: Value,
    batch: u32,
    size: (u32, u32),
    image: Option<&'a str>,
    mask: Option<&'a str>,
    negative: Option<&'a str>,
}

impl Default for Parts<'_> {
    fn default() -> Self {
        let sample = json!({"steps": 4, "seed": 5});
        Self { file: "inline-demo", sample, batch: 1, size: (96, 64), image: None, mask: None, negative: None }
    }
}

fn primitives(parts: &Parts<'_>) -> Value {
    let edge = |from: &str, output: &str| json!({"from": from, "output": output});
    let load = |id: &str, node_type: &str| json!({"id": id, "type": format!("load/{node_type}"), "params": {"file": parts.file}});
    let text = |id: &str, text: &str| json!({"id": id, "type": "input/text", "params": {"text": text}});
    let encode = |id: &str, prompt: &str| {
        json!({"id": id, "type": "encode/text",
            "inputs": {"text_encoder": edge("te", "text_encoder"), "prompt": edge(prompt, "text")}})
    };
    let mut inputs = json!({"model": edge("dm", "model"), "positive": edge("pos", "conditioning"),
        "latent": edge("l", "latent")});
    let mut nodes = vec![
        load("dm", "diffusion-model"),
        load("te", "text-encoder"),
        load("vae", "vae"),
        text("p", "a red apple"),
        encode("pos", "p"),
    ];
    if let Some(prompt) = parts.negative {
        nodes.extend([text("n", prompt), encode("neg", "n")]);
        inputs["negative"] = edge("neg", "conditioning");
    }
    match parts.image {
        None => nodes.push(json!({"id": "l", "type": "latent/empty",
            "params": {"width": parts.size.0, "height": parts.size.1, "batch": parts.batch}})),
        Some(asset) => nodes.extend([
            json!({"id": "i", "type": "input/image", "params": {"asset": asset}}),
            json!({"id": "l", "type": "vae/encode", "inputs": {"vae": edge("vae", "vae"), "image": edge("i", "image")}}),
        ]),
    }
    if let Some(asset) = parts.mask {
        nodes.push(json!({"id": "mask", "type": "input/mask", "params": {"asset": asset}}));
        inputs["mask"] = edge("mask", "mask");
    }
    nodes.push(json!({"id": "s", "type": "sample", "params": parts.sample, "inputs": inputs}));
    nodes.push(json!({"id": "d", "type": "vae/decode",
        "inputs": {"vae": edge("vae", "vae"), "latent": edge("s", "latent")}}));
    json!({"schemaVersion": 1, "nodes": nodes})
}

fn demo() -> Nodes {
    nodes(Path::new("/nonexistent"))
}

fn run(nodes: &Nodes, graph: &Value) -> RunOutcome {
    run_graph(nodes, graph).unwrap_or_else(|error| panic!("{error}"))
}

fn failure(nodes: &Nodes, graph: &Value) -> String {
    match run_graph(nodes, graph) {
        Err(RunError::Node { node_id, error }) => format!("{node_id}: {error}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn text_to_image_gives_the_pixels_of_the_model_node() {
    let nodes = demo();
    let plain = json!({"steps": 4, "seed": 5, "width": 96, "height": 64});
    let by_node = run(&nodes, &model_node(plain.clone(), None, None));
    let by_parts = run(&nodes, &primitives(&Parts::default()));
    assert_eq!(picture(&by_node), picture(&by_parts));
    // A take of either says how to make it again.
    for key in ["seed", "steps", "width", "height"] {
        assert_eq!(by_parts.target.record()[key], plain[key], "{key}");
    }
    for key in ["sigmas", "sampler", "scheduler", "dtype", "quantization", "engineVersion"] {
        assert_eq!(by_parts.target.record()[key], by_node.target.record()[key], "{key}");
    }
    assert_eq!(by_parts.target.record()["checkpoint"]["name"], "inline-demo");

    let mut guided = plain;
    guided["guidance"] = json!(2.5);
    guided["negative_prompt"] = json!("green");
    let by_node = picture(&run(&nodes, &model_node(guided, None, None)));
    let sample = json!({"steps": 4, "seed": 5, "cfg": 2.5});
    let by_parts = run(&nodes, &primitives(&Parts { sample, negative: Some("green"), ..Parts::default() }));
    assert_eq!(by_node, picture(&by_parts));
    assert_ne!(by_node, picture(&run(&nodes, &primitives(&Parts::default()))));
}

#[test]
fn every_sampler_and_schedule_runs_to_a_picture_of_its_own() {
    let nodes = demo();
    let default = picture(&run(&nodes, &primitives(&Parts::default())));
    let choices = gen_core::KNOWN_SAMPLERS.iter().map(|name| ("sampler", *name));
    for (key, name) in choices.chain(gen_core::KNOWN_SCHEDULERS.iter().map(|name| ("scheduler", *name))) {
        let mut parts = Parts::default();
        parts.sample[key] = json!(name);
        let outcome = run(&nodes, &primitives(&parts));
        assert_eq!(outcome.target.record()[key], name);
        let is_default = [gen_core::KNOWN_SAMPLERS[0], gen_core::KNOWN_SCHEDULERS[0]].contains(&name);
        // DDIM's step is Euler's for flow matching, and sgm_uniform's sigmas are simple's.
        if !is_default && !["ddim", "sgm_uniform", "normal"].contains(&name) {
            assert_ne!(picture(&outcome), default, "{name}");
        }
    }
}

#[test]
fn a_batch_is_its_single_pictures() {
    let nodes = demo();
    let outcome = run(&nodes, &primitives(&Parts { batch: 3, ..Parts::default() }));
    let images = outcome.target.get("images").unwrap().items();
    assert_eq!(images.len(), 3);
    for (index, image) in images.iter().enumerate() {
        let sample = json!({"steps": 4, "seed": 5 + index});
        let alone = picture(&run(&nodes, &primitives(&Parts { sample, ..Parts::default() })));
        assert_eq!(image.downcast::<Image>().unwrap(), alone, "row {index}");
    }
}

#[test]
fn image_to_image_and_masks_give_the_pixels_of_the_model_node() {
    let nodes = demo();
    let (image, mask) = (Some("gradient-96x64"), Some("half-96x64"));
    let params = json!({"steps": 6, "seed": 5, "width": 96, "height": 64, "strength": 0.7});
    let sample = json!({"steps": 6, "seed": 5, "strength": 0.7});
    let by_node = picture(&run(&nodes, &model_node(params.clone(), image, None)));
    let by_parts = run(&nodes, &primitives(&Parts { sample: sample.clone(), image, ..Parts::default() }));
    assert_eq!(by_node, picture(&by_parts));

    let masked = picture(&run(&nodes, &model_node(params, image, mask)));
    let by_parts = run(&nodes, &primitives(&Parts { sample, image, mask, ..Parts::default() }));
    assert_eq!(masked, picture(&by_parts));
    let base = Pictures::make("gradient-96x64").unwrap();
    let row = |image: &Image, y: usize, half: usize| {
        let start = (y * 96 + half * 48) * 3;
        image.pixels()[start..start + 48 * 3].to_vec()
    };
    assert!((0..64).all(|y| row(&masked, y, 0) == row(&base, y, 0)), "kept pixels changed");
    assert!((0..64).all(|y| row(&masked, y, 1) != row(&base, y, 1)), "nothing was painted");
}

#[test]
fn a_second_pass_keeps_what_the_first_one_kept() {
    let nodes = demo();
    let (image, mask) = (Some("gradient-96x64"), Some("half-96x64"));
    let mut graph = primitives(&Parts { image, mask, ..Parts::default() });
    let list = graph["nodes"].as_array_mut().unwrap();
    let mut second = list[list.len() - 2].clone();
    second["id"] = json!("s2");
    second["params"] = json!({"steps": 4, "seed": 6, "strength": 0.5});
    second["inputs"]["latent"]["from"] = json!("s");
    let last = list.len() - 1;
    list[last]["inputs"]["latent"]["from"] = json!("s2");
    list.insert(last, second);
    let (result, base) = (picture(&run(&nodes, &graph)), Pictures::make("gradient-96x64").unwrap());
    let left =
        |image: &Image| -> Vec<u8> { image.pixels().chunks(96 * 3).flat_map(|row| row[..48 * 3].to_vec()).collect() };
    assert_eq!(left(&result), left(&base));
}

#[test]
fn files_of_the_models_folder_are_loaded_part_by_part() {
    let dir = tempfile::tempdir().unwrap();
    let demo_files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../assets/demo");
    let copy = |from: &str, to: &str| {
        let to = dir.path().join(to);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(demo_files.join(from), to).unwrap();
    };
    let nodes = nodes(dir.path());
    let graph = primitives(&Parts { file: "", ..Parts::default() });
    let attempt = || {
        nodes.library().rescan();
        run_graph(&nodes, &graph)
    };
    let said = |outcome: Result<RunOutcome, RunError>| outcome.unwrap_err().to_string();
    // Each load says what it looks for, before anything is rendered.
    let failed = said(attempt());
    assert!(failed.contains("text_encoders/"), "{failed}");
    copy("text_encoder/model.safetensors", "text_encoders/demo.safetensors");
    copy("text_encoder/config.json", "text_encoders/config.json");
    let failed = said(attempt());
    assert!(failed.contains("tokenizer.json"), "{failed}");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        copy(&format!("tokenizer/{name}"), &format!("text_encoders/{name}"));
    }
    let failed = said(attempt());
    assert!(failed.contains("\"dm\"") && failed.contains("diffusion_models/"), "{failed}");
    copy("transformer/diffusion_pytorch_model.safetensors", "diffusion_models/demo.safetensors");
    let failed = said(attempt());
    assert!(failed.contains("vae/"), "{failed}");
    copy("vae/diffusion_pytorch_model.safetensors", "vae/demo.safetensors");
    copy("vae/config.json", "vae/config.json");
    let by_files = picture(&attempt().unwrap());
    assert_eq!(by_files, picture(&run(&nodes, &primitives(&Parts::default()))));
    copy("vae/diffusion_pytorch_model.safetensors", "vae/second.safetensors");
    let failed = said(attempt());
    assert!(failed.contains("demo.safetensors, second.safetensors"), "{failed}");
    let wrong = primitives(&Parts { file: "nothing.safetensors", ..Parts::default() });
    let graph = engine_graph::Graph::from_value(&wrong, &engine_graph::Limits::default()).unwrap();
    assert!(engine_graph::validate(&graph, &nodes.registry(), "d").is_err(), "an option that isn't there");
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let nodes = demo();
    let said = |parts: &Parts<'_>| failure(&nodes, &primitives(parts));
    let no_negative = said(&Parts { sample: json!({"steps": 4, "seed": 5, "cfg": 2}), ..Parts::default() });
    assert!(no_negative.starts_with("s: ") && no_negative.contains("cfg"), "{no_negative}");
    let no_picture = said(&Parts { sample: json!({"steps": 4, "seed": 5, "strength": 0.5}), ..Parts::default() });
    assert!(no_picture.contains("strength"), "{no_picture}");
    let mask_alone = said(&Parts { mask: Some("half-96x64"), ..Parts::default() });
    assert!(mask_alone.contains("mask"), "{mask_alone}");
    let mut undenoised = primitives(&Parts::default());
    let list = undenoised["nodes"].as_array_mut().unwrap();
    let last = list.len() - 1;
    list[last]["inputs"]["latent"]["from"] = json!("l");
    assert!(failure(&nodes, &undenoised).contains("empty"));
    let masked = failure(&nodes, &model_node(json!({"seed": 1, "steps": 1}), None, Some("half-96x64")));
    assert!(masked.contains("needs a picture"), "{masked}");
}
