//! The descriptors that imported graphs are checked against, and how they are checked.

#![allow(dead_code, clippy::unwrap_used)] // each test file uses its own part; panics are failed tests

use engine_graph::*;
use engine_import::{ImportError, Imported, import};
use serde_json::{Value, json};

/// Source nodes and primitives with the ports and params of the HTTP contract; files are any name.
pub fn registry() -> NodeRegistry {
    use PortKind::*;
    let input = |id: &str, kind| PortDescriptor::required(id, id, kind);
    let output = |id: &str, kind| PortDescriptor::output(id, id, kind);
    let load = |name: &str, port: &str, kind, category: &str| {
        let mut file = ParamDescriptor::model("file", "File", category);
        // The options come from the models root, which tests don't have.
        file.options = None;
        NodeDescriptor::new(format!("load/{name}"), name).output(output(port, kind)).param(file)
    };
    let select =
        |key: &str, names: &[&str]| ParamDescriptor::select(key, key, names[0], names.iter().map(|n| (*n, *n)));
    let samplers =
        ["euler", "euler_ancestral", "heun", "dpmpp_2m", "dpmpp_2m_sde", "dpmpp_sde", "unipc", "lcm", "ddim"];
    NodeRegistry::new([
        NodeDescriptor::new("input/text", "Text")
            .output(output("text", Text))
            .param(ParamDescriptor::textarea("text", "Text", "")),
        NodeDescriptor::new("input/image", "Image")
            .output(output("image", Image))
            .param(ParamDescriptor::asset("asset", "Asset")),
        load("diffusion-model", "model", Model, "diffusion_models"),
        load("vae", "vae", Vae, "vae"),
        load("text-encoder", "text_encoder", TextEncoder, "text_encoders"),
        NodeDescriptor::new("encode/text", "Encode")
            .input(input("text_encoder", TextEncoder))
            .input(input("prompt", Text))
            .output(output("conditioning", Conditioning)),
        NodeDescriptor::new("latent/empty", "Empty")
            .output(output("latent", Latent))
            .param(ParamDescriptor::integer("width", "Width", 1024, 16..=8192, 16))
            .param(ParamDescriptor::integer("height", "Height", 1024, 16..=8192, 16))
            .param(ParamDescriptor::integer("batch", "Batch", 1, 1..=64, 1)),
        NodeDescriptor::new("sample", "Sample")
            .input(input("model", Model))
            .input(input("positive", Conditioning))
            .input(PortDescriptor::optional("negative", "Negative", Conditioning))
            .input(input("latent", Latent))
            .output(output("latent", Latent))
            .param(ParamDescriptor::integer("steps", "Steps", 8, 1..=10_000, 1))
            .param(ParamDescriptor::float("cfg", "Cfg", 0.0, 0.0..=100.0, 0.5))
            .param(select("sampler", &samplers))
            .param(select("scheduler", &["simple", "normal", "karras", "exponential", "sgm_uniform", "beta"]))
            .param(ParamDescriptor::seed("seed", "Seed"))
            .param(ParamDescriptor::float("strength", "Strength", 1.0, 0.0..=1.0, 0.05))
            .param(ParamDescriptor::float("shift", "Shift", 0.0, 0.0..=100.0, 0.1)),
        NodeDescriptor::new("vae/decode", "Decode")
            .output_kind(MediaKind::Image)
            .input(input("vae", Vae))
            .input(input("latent", Latent))
            .output(output("image", Image)),
        NodeDescriptor::new("vae/encode", "Encode")
            .input(input("vae", Vae))
            .input(input("image", Image))
            .output(output("latent", Latent)),
    ])
    .unwrap()
}

/// Imports what must be importable, and checks that every target is a valid one that makes a picture.
pub fn imported(workflow: &[u8]) -> Imported {
    let imported = import(workflow).unwrap_or_else(|error| panic!("{error}"));
    check(&imported);
    // What comes out can be written and read again.
    let text = imported.graph.to_value().to_string();
    assert_eq!(Graph::from_slice(text.as_bytes(), &Limits::default()).unwrap(), imported.graph);
    imported
}

pub fn check(imported: &Imported) {
    assert!(!imported.targets.is_empty());
    for target in &imported.targets {
        let graph = validate(&imported.graph, &registry(), target).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(graph.target().descriptor().output_kind, Some(MediaKind::Image));
    }
}

pub fn imported_value(workflow: &Value) -> Imported {
    imported(workflow.to_string().as_bytes())
}

pub fn refused(workflow: &Value) -> ImportError {
    import(workflow.to_string().as_bytes()).expect_err("this can't be imported")
}

/// (id, class, reason) of what couldn't be mapped.
pub fn reasons(error: &ImportError) -> Vec<(&str, &str, &str)> {
    error.unmapped().iter().map(|n| (n.node_id.as_str(), n.class_type.as_str(), n.reason.as_str())).collect()
}

/// A node of the graph as JSON.
pub fn node(imported: &Imported, id: &str) -> Value {
    let graph = imported.graph.to_value();
    let nodes = graph["nodes"].as_array().unwrap();
    nodes.iter().find(|node| node["id"] == id).unwrap_or_else(|| panic!("no node {id} in {graph}")).clone()
}

pub fn has_note(imported: &Imported, parts: &[&str]) -> bool {
    imported.notes.iter().any(|note| parts.iter().all(|part| note.contains(part)))
}

/// A small workflow in API format: Z-Image, everything mapped, target "7".
pub fn z_image() -> Value {
    json!({
        "1": {"class_type": "UNETLoader", "inputs": {"unet_name": "z_image.safetensors", "weight_dtype": "default"}},
        "2": {"class_type": "CLIPLoader", "inputs": {"clip_name": "qwen_3_4b.safetensors", "type": "lumina2"}},
        "3": {"class_type": "VAELoader", "inputs": {"vae_name": "ae.safetensors"}},
        "4": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["2", 0], "text": "a red apple"}},
        "5": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 1024, "height": 768, "batch_size": 1}},
        "6": {"class_type": "KSampler", "inputs": {
            "model": ["1", 0], "positive": ["4", 0], "negative": ["9", 0], "latent_image": ["5", 0],
            "seed": 18446744073709551615u64, "steps": 8, "cfg": 4, "sampler_name": "euler", "scheduler": "simple",
            "denoise": 1.0}},
        "7": {"class_type": "VAEDecode", "inputs": {"samples": ["6", 0], "vae": ["3", 0]}},
        "8": {"class_type": "SaveImage", "inputs": {"images": ["7", 0], "filename_prefix": "ComfyUI"}},
        "9": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["2", 0], "text": "blurry"}},
    })
}

/// The same with one input of one node replaced.
pub fn z_image_with(node: &str, input: &str, value: impl Into<Value>) -> Value {
    let mut workflow = z_image();
    workflow[node]["inputs"][input] = value.into();
    workflow
}

/// The same with a node added.
pub fn z_image_and(id: &str, class: &str, inputs: Value) -> Value {
    let mut workflow = z_image();
    workflow[id] = json!({"class_type": class, "inputs": inputs});
    workflow
}

/// Text to image in UI format, with a reroute, primitives, notes, a muted and a bypassed node; target "13".
pub fn ui_fixture() -> Value {
    serde_json::from_str(include_str!("../fixtures/ui.json")).unwrap()
}

/// A node of a document in UI format.
pub fn ui_node(document: &mut Value, id: u64) -> &mut Value {
    document["nodes"].as_array_mut().unwrap().iter_mut().find(|node| node["id"] == id).unwrap()
}

/// Text to image within a subgraph; target "57:8".
pub fn subgraph_fixture() -> Value {
    serde_json::from_str(include_str!("../fixtures/subgraph.json")).unwrap()
}
