//! The API format, and what each class becomes.

mod common;

use common::*;
use serde_json::{Value, json};

#[test]
fn a_whole_workflow_becomes_the_graph_of_its_primitives() {
    let imported = imported_value(&z_image());
    assert_eq!(imported.targets, ["7"]);
    assert!(imported.unmapped.is_empty());
    assert_eq!(imported.notes, Vec::<String>::new());
    let mut nodes: Vec<Value> = imported.graph.to_value()["nodes"].as_array().unwrap().clone();
    nodes.sort_by_key(|node| node["id"].as_str().unwrap().to_owned());
    let edge = |from: &str, output: &str| json!({"from": from, "output": output});
    assert_eq!(
        Value::from(nodes),
        json!([
            {"id": "1", "type": "load/diffusion-model", "params": {"file": "z_image.safetensors"}},
            {"id": "2", "type": "load/text-encoder", "params": {"file": "qwen_3_4b.safetensors"}},
            {"id": "3", "type": "load/vae", "params": {"file": "ae.safetensors"}},
            {"id": "4", "type": "encode/text",
             "inputs": {"text_encoder": edge("2", "text_encoder"), "prompt": edge("4-text", "text")}},
            {"id": "4-text", "type": "input/text", "params": {"text": "a red apple"}},
            {"id": "5", "type": "latent/empty", "params": {"width": 1024, "height": 768, "batch": 1}},
            {"id": "6", "type": "sample",
             "params": {"steps": 8, "cfg": 3.0, "sampler": "euler", "scheduler": "simple",
                        "seed": 18446744073709551615u64},
             "inputs": {"model": edge("1", "model"), "positive": edge("4", "conditioning"),
                        "negative": edge("9", "conditioning"), "latent": edge("5", "latent")}},
            {"id": "7", "type": "vae/decode", "inputs": {"vae": edge("3", "vae"), "latent": edge("6", "latent")}},
            {"id": "9", "type": "encode/text",
             "inputs": {"text_encoder": edge("2", "text_encoder"), "prompt": edge("9-text", "text")}},
            {"id": "9-text", "type": "input/text", "params": {"text": "blurry"}},
        ])
    );
}

#[test]
fn sources_come_before_readers() {
    let imported = imported_value(&z_image());
    let mut seen = Vec::new();
    for node in &imported.graph.nodes {
        assert!(node.inputs.values().flat_map(|input| input.edges()).all(|edge| seen.contains(&edge.from)));
        seen.push(node.id.clone());
    }
}

#[test]
fn a_checkpoint_is_three_loaders_of_one_file() {
    let mut workflow = z_image_and("10", "CheckpointLoaderSimple", json!({"ckpt_name": "sub\\all.safetensors"}));
    workflow["6"]["inputs"]["model"] = json!(["10", 0]);
    workflow["4"]["inputs"]["clip"] = json!(["10", 1]);
    workflow["9"]["inputs"]["clip"] = json!(["10", 1]);
    workflow["7"]["inputs"]["vae"] = json!(["10", 2]);
    let imported = imported_value(&workflow);
    for (id, node_type) in
        [("10", "load/diffusion-model"), ("10-text-encoder", "load/text-encoder"), ("10-vae", "load/vae")]
    {
        assert_eq!(
            node(&imported, id),
            json!({"id": id, "type": node_type, "params": {"file": "sub/all.safetensors"}})
        );
    }
    assert!(has_note(&imported, &["10 (CheckpointLoaderSimple)", "sub/all.safetensors", "as VAE"]));
    assert!(has_note(&imported, &["not needed", "1 (UNETLoader), 2 (CLIPLoader), 3 (VAELoader)"]));
}

#[test]
fn only_the_used_parts_of_a_checkpoint_are_loaded() {
    let mut workflow = z_image_and("10", "CheckpointLoaderSimple", json!({"ckpt_name": "all.safetensors"}));
    workflow["7"]["inputs"]["vae"] = json!(["10", 2]);
    let imported = imported_value(&workflow);
    assert_eq!(node(&imported, "10-vae")["type"], "load/vae");
    assert!(imported.graph.nodes.iter().all(|node| node.id != "10" && node.id != "10-text-encoder"));
    assert!(has_note(&imported, &["10 (CheckpointLoaderSimple)"]));
}

#[test]
fn at_cfg_one_the_negative_is_left_out_whatever_it_is() {
    let mut workflow = z_image_with("6", "cfg", 1.0);
    workflow["9"] = json!({"class_type": "ConditioningZeroOut", "inputs": {"conditioning": ["4", 0]}});
    let imported = imported_value(&workflow);
    let sample = node(&imported, "6");
    assert_eq!(sample["params"]["cfg"], 0.0);
    assert!(sample["inputs"].get("negative").is_none());
    assert!(imported.unmapped.is_empty());
    assert!(has_note(&imported, &["6 (KSampler)", "negative"]));
    assert!(has_note(&imported, &["9 (ConditioningZeroOut)", "not needed"]));
    workflow["9"] = json!({"class_type": "Exotic", "inputs": {}});
    let imported = imported_value(&workflow);
    assert_eq!((imported.targets.len(), imported.unmapped[0].class_type.as_str()), (1, "Exotic"));
}

#[test]
fn a_shift_on_the_model_goes_to_the_sampler_and_the_last_one_counts() {
    let mut workflow = z_image_and("10", "ModelSamplingSD3", json!({"model": ["1", 0], "shift": 6.0}));
    workflow["11"] = json!({"class_type": "ModelSamplingAuraFlow", "inputs": {"model": ["10", 0], "shift": 3}});
    workflow["6"]["inputs"]["model"] = json!(["11", 0]);
    let imported = imported_value(&workflow);
    let sample = node(&imported, "6");
    assert_eq!(sample["params"]["shift"], 3.0);
    assert_eq!(sample["inputs"]["model"], json!({"from": "1", "output": "model"}));
}

#[test]
fn image_to_image_runs_the_same_steps_of_the_same_schedule() {
    let mut workflow = z_image_and("10", "LoadImage", json!({"image": "photo.png"}));
    workflow["5"] = json!({"class_type": "VAEEncode", "inputs": {"pixels": ["10", 0], "vae": ["3", 0]}});
    workflow["6"]["inputs"]["denoise"] = json!(0.5);
    workflow["12"] = json!({"class_type": "PreviewImage", "inputs": {"images": ["10", 0]}});
    let imported = imported_value(&workflow);
    let sample = node(&imported, "6");
    assert_eq!((&sample["params"]["steps"], &sample["params"]["strength"]), (&json!(16), &json!(0.5)));
    assert_eq!(node(&imported, "10"), json!({"id": "10", "type": "input/image"}));
    let edge = |from: &str, output: &str| json!({"from": from, "output": output});
    assert_eq!(node(&imported, "5")["inputs"], json!({"vae": edge("3", "vae"), "image": edge("10", "image")}));
    assert!(has_note(&imported, &["photo.png", "/v1/assets", "node 10"]));
    // The preview of a picture that was brought along is no target.
    assert_eq!(imported.targets, ["7"]);
    assert!(has_note(&imported, &["12 (PreviewImage)", "brought along"]));
}

#[test]
fn constants_feed_params_and_shared_texts_stay_nodes() {
    let mut workflow = z_image_and("10", "PrimitiveStringMultiline", json!({"value": "a shared prompt"}));
    workflow["11"] = json!({"class_type": "PrimitiveInt", "inputs": {"value": 42}});
    workflow["12"] = json!({"class_type": "Reroute", "inputs": {"": ["11", 0]}});
    workflow["13"] = json!({"class_type": "PrimitiveString", "inputs": {"value": ["10", 0]}});
    workflow["4"]["inputs"]["text"] = json!(["13", 0]);
    workflow["9"]["inputs"]["text"] = json!(["10", 0]);
    workflow["6"]["inputs"]["seed"] = json!(["12", 0]);
    workflow["14"] = json!({"class_type": "PrimitiveString", "inputs": {"value": "uni_pc"}});
    workflow["6"]["inputs"]["sampler_name"] = json!(["14", 0]);
    let imported = imported_value(&workflow);
    assert_eq!(node(&imported, "10"), json!({"id": "10", "type": "input/text", "params": {"text": "a shared prompt"}}));
    for encoder in ["4", "9"] {
        assert_eq!(node(&imported, encoder)["inputs"]["prompt"], json!({"from": "10", "output": "text"}));
    }
    let sample = node(&imported, "6");
    assert_eq!((&sample["params"]["seed"], &sample["params"]["sampler"]), (&json!(42), &json!("unipc")));
}

#[test]
fn ksampler_advanced_over_all_steps_is_a_sampler() {
    let mut workflow = z_image();
    let inputs = workflow["6"]["inputs"].as_object_mut().unwrap();
    inputs.retain(|name, _| name != "seed" && name != "denoise");
    inputs.extend([("add_noise".to_owned(), json!("enable")), ("noise_seed".to_owned(), json!(5))]);
    inputs.extend([("start_at_step".to_owned(), json!(0)), ("end_at_step".to_owned(), json!(10000))]);
    inputs.insert("return_with_leftover_noise".to_owned(), json!("disable"));
    workflow["6"]["class_type"] = json!("KSamplerAdvanced");
    let imported = imported_value(&workflow);
    let params = &node(&imported, "6")["params"];
    assert_eq!(params["seed"], 5);
    assert!(params.get("strength").is_none());
    for (input, value, part) in [
        ("start_at_step", json!(2), "all 8 steps"),
        ("end_at_step", json!(7), "all 8 steps"),
        ("add_noise", json!("disable"), "without adding noise"),
    ] {
        let mut partial = workflow.clone();
        partial["6"]["inputs"][input] = value;
        let error = refused(&partial);
        assert!(matches!(reasons(&error)[..], [("6", "KSamplerAdvanced", reason)] if reason.contains(part)), "{error}");
    }
}

#[test]
fn saved_pictures_come_before_shown_ones_and_each_once() {
    let mut workflow = z_image_and("2a", "PreviewImage", json!({"images": ["7", 0]}));
    workflow["0"] = json!({"class_type": "PreviewImage", "inputs": {"images": ["20", 0]}});
    workflow["20"] = workflow["7"].clone();
    let imported = imported_value(&workflow);
    assert_eq!(imported.targets, ["7", "20"]);
}

#[test]
fn a_posted_body_is_read_like_the_workflow_in_it() {
    let body = json!({"client_id": "c", "prompt": z_image()});
    assert_eq!(imported_value(&body), imported_value(&z_image()));
}

#[test]
fn added_nodes_get_ids_of_their_own() {
    let mut workflow = z_image_and("4-text", "PreviewImage", json!({"images": ["7", 0]}));
    workflow["4-text-2"] = json!({"class_type": "Note", "inputs": {}});
    let imported = imported_value(&workflow);
    assert_eq!(node(&imported, "4-text-3")["params"]["text"], "a red apple");
}

#[test]
fn what_differs_from_comfyui_is_noted() {
    let imported = imported_value(&z_image_with("4", "text", "a (red:1.3) apple"));
    assert!(has_note(&imported, &["4 (CLIPTextEncode)", "(word:1.2)"]));
    let imported = imported_value(&z_image_with("5", "batch_size", 4));
    assert!(has_note(&imported, &["5 (EmptySD3LatentImage)", "batch"]));
    let imported = imported_value(&z_image_with("1", "weight_dtype", "fp8_e4m3fn"));
    assert!(has_note(&imported, &["1 (UNETLoader)", "fp8_e4m3fn", "device policy"]));
    let mut workflow = z_image();
    workflow["7"]["class_type"] = json!("VAEDecodeTiled");
    assert!(has_note(&imported_value(&workflow), &["7 (VAEDecodeTiled)", "tiles"]));
    let imported = imported_value(&z_image_with("6", "sampler_name", "euler_ancestral"));
    assert!(has_note(&imported, &["6 (KSampler)", "noise"]));
}
