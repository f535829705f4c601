//! Graphs through the real demo model.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

mod common;

use common::{nodes, picture, run_graph};
use engine_graph::{RunError, RunOutcome};
use engine_nodes::Nodes;
use serde_json::{Value, json};
use std::path::Path;

fn run(nodes: &Nodes, node_type: &str, params: Value, prompt: &str) -> Result<RunOutcome, RunError> {
    let graph = json!({"schemaVersion": 1, "nodes": [
        {"id": "p1", "type": "input/text", "params": {"text": prompt}},
        {"id": "m1", "type": node_type, "params": params, "inputs": {"prompt": {"from": "p1", "output": "text"}}}]});
    run_graph(nodes, &graph)
}

#[test]
fn the_demo_node_draws_the_golden_apple() {
    let nodes = nodes(Path::new("/nonexistent"));
    assert_eq!(nodes.default_image_node(), "inline/demo");
    let outcome = run(&nodes, "inline/demo", json!({"seed": 1}), "a red apple").unwrap();
    let image = picture(&outcome);
    let golden = conformance::recipe::fixtures().join("demo-golden/golden_0.png");
    let decoder = png::Decoder::new(std::io::BufReader::new(std::fs::File::open(golden).unwrap()));
    let mut reader = decoder.read_info().unwrap();
    let mut expected = vec![0; reader.output_buffer_size().unwrap()];
    reader.next_frame(&mut expected).unwrap();
    let squares: f64 = image.pixels().iter().zip(&expected).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
    let psnr = 10.0 * (255.0 * 255.0 / (squares / expected.len() as f64)).log10();
    assert!(psnr >= 50.0, "{psnr} dB");
    let record = outcome.target.record();
    assert_eq!(record["sigmas"].as_array().unwrap().len(), 10);
    assert_eq!(record["dtype"], "f32");
    assert_eq!(record["checkpoint"]["name"], "inline-demo");
}

#[test]
fn without_a_checkpoint_the_node_says_what_was_looked_for() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = nodes(dir.path());
    let failed = run(&nodes, "alibaba/z-image-turbo", json!({"seed": 1}), "x").unwrap_err().to_string();
    assert!(failed.contains("Z-Image") && failed.contains("diffusion_models"), "{failed}");
    assert!(!failed.contains(dir.path().to_str().unwrap()), "a host path in {failed}");
}

#[test]
fn single_files_of_the_models_folder_are_put_together() {
    use conformance::recipe;
    let dir = tempfile::tempdir().unwrap();
    let fixture = recipe::fixtures().join("z-image-tiny");
    let maps = recipe::read_comfy_map(&fixture).unwrap();
    let write = |path: &str, part: &str| {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        recipe::write_safetensors(&path, &maps[part], recipe::Format::Bf16).unwrap();
    };
    let nodes = nodes(dir.path());
    let attempt = || {
        nodes.library().rescan();
        run(&nodes, "alibaba/z-image-turbo", json!({"seed": 1, "width": 256, "height": 256, "steps": 1}), "x")
    };
    write("diffusion_models/anything.safetensors", "transformer");
    let failed = attempt().unwrap_err().to_string();
    assert!(failed.contains("VAE") && failed.contains("text encoder"), "{failed}");
    write("vae/some.safetensors", "vae");
    std::fs::copy(fixture.join("vae/config.json"), dir.path().join("vae/config.json")).unwrap();
    write("text_encoders/te.safetensors", "text_encoder");
    assert!(attempt().unwrap_err().to_string().contains("tokenizer.json"));
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../assets/demo/tokenizer");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(demo.join(name), dir.path().join("text_encoders").join(name)).unwrap();
    }
    let outcome = attempt().unwrap();
    assert_eq!(outcome.target.record()["checkpoint"]["name"], "anything.safetensors");
    assert_eq!(nodes.default_image_node(), "alibaba/z-image-turbo");

    std::fs::copy(
        dir.path().join("diffusion_models/anything.safetensors"),
        dir.path().join("diffusion_models/b.safetensors"),
    )
    .unwrap();
    let failed = attempt().unwrap_err().to_string();
    assert!(failed.contains("anything.safetensors, b.safetensors"), "{failed}");
}
