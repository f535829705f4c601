//! The UI format: widgets by position, links, modes, reroutes, primitives.

mod common;

use common::*;
use serde_json::json;

#[test]
fn a_whole_workflow_is_read() {
    let imported = imported_value(&ui_fixture());
    assert_eq!(imported.targets, ["13"]);
    assert!(imported.unmapped.is_empty());
    let edge = |from: &str, output: &str| json!({"from": from, "output": output});
    assert_eq!(
        node(&imported, "12"),
        json!({
            "id": "12", "type": "sample",
            "params": {"steps": 9, "cfg": 3.5, "sampler": "dpmpp_2m", "scheduler": "sgm_uniform", "seed": 712,
                       "shift": 3.0},
            "inputs": {"model": edge("1", "model"), "positive": edge("6", "conditioning"),
                       "negative": edge("7", "conditioning"), "latent": edge("10", "latent")}})
    );
    assert_eq!(node(&imported, "10")["params"], json!({"width": 1024, "height": 768, "batch": 1}));
    assert_eq!(node(&imported, "8"), json!({"id": "8", "type": "input/text", "params": {"text": "a red apple"}}));
    assert_eq!(node(&imported, "6")["inputs"]["prompt"], edge("8", "text"));
    assert_eq!(node(&imported, "7-text")["params"]["text"], "blurry");
    let expected = [
        "9 (PrimitiveNode): \"randomize\" after each run isn't carried over; set the seed to -1 for a new one in each \
         run",
        "left out, as muted: 15 (PreviewImage)",
        "left out, as bypassed: 4 (LoraLoaderModelOnly)",
    ];
    assert_eq!(imported.notes, expected);
}

#[test]
fn both_formats_give_the_same_graph() {
    let api = json!({
        "1": {"class_type": "UNETLoader", "inputs": {"unet_name": "z_image.safetensors", "weight_dtype": "default"}},
        "2": {"class_type": "CLIPLoader", "inputs": {"clip_name": "qwen_3_4b.safetensors", "type": "lumina2"}},
        "3": {"class_type": "VAELoader", "inputs": {"vae_name": "ae.safetensors"}},
        "5": {"class_type": "ModelSamplingAuraFlow", "inputs": {"model": ["1", 0], "shift": 3}},
        "6": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["2", 0], "text": ["8", 0]}},
        "7": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["2", 0], "text": "blurry"}},
        "8": {"class_type": "PrimitiveString", "inputs": {"value": "a red apple"}},
        "10": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 1024, "height": 768, "batch_size": 1}},
        "12": {"class_type": "KSampler", "inputs": {
            "model": ["5", 0], "positive": ["6", 0], "negative": ["7", 0], "latent_image": ["10", 0], "seed": 712,
            "steps": 9, "cfg": 4.5, "sampler_name": "dpmpp_2m", "scheduler": "sgm_uniform", "denoise": 1}},
        "13": {"class_type": "VAEDecode", "inputs": {"samples": ["12", 0], "vae": ["3", 0]}},
        "14": {"class_type": "SaveImage", "inputs": {"images": ["13", 0], "filename_prefix": "apple"}}});
    assert_eq!(imported_value(&api).graph, imported_value(&ui_fixture()).graph);
}

#[test]
fn widget_values_are_read_with_and_without_the_control_widget_and_by_name() {
    for (values, seed, control) in [
        (json!([5, "fixed", 9, 4.5, "euler", "simple", 1]), json!(5), false),
        (json!([5, "randomize", 9, 4.5, "euler", "simple", 1]), json!(5), true),
        (json!([5, 9, 4.5, "euler", "simple"]), json!(5), false),
        (
            json!({"seed": 5, "steps": 9, "cfg": 4.5, "sampler_name": "euler", "scheduler": "simple", "denoise": 1}),
            json!(5),
            false,
        ),
    ] {
        let mut document = ui_fixture();
        let sampler = ui_node(&mut document, 12);
        sampler["inputs"].as_array_mut().unwrap().retain(|input| input["name"] != "seed");
        sampler["widgets_values"] = values.clone();
        let imported = imported_value(&document);
        let params = &node(&imported, "12")["params"];
        assert_eq!((&params["seed"], &params["steps"], &params["sampler"]), (&seed, &json!(9), &json!("euler")));
        assert_eq!(has_note(&imported, &["12 (KSampler)", "randomize"]), control, "{values}");
    }
}

#[test]
fn links_may_be_objects_and_ids_texts() {
    let mut document = ui_fixture();
    for link in document["links"].as_array_mut().unwrap().iter_mut().filter(|link| !link.is_null()) {
        let items = link.as_array().unwrap().clone();
        let names = ["id", "origin_id", "origin_slot", "target_id", "target_slot", "type"];
        *link = names.into_iter().zip(items).map(|(name, item)| (name.to_owned(), item)).collect();
        link["origin_id"] = link["origin_id"].to_string().into();
    }
    assert_eq!(imported_value(&document), imported_value(&ui_fixture()));
}

#[test]
fn a_muted_node_leaves_its_readers_unwired() {
    let mut document = ui_fixture();
    ui_node(&mut document, 7)["mode"] = json!(2);
    let error = refused(&document);
    assert_eq!(reasons(&error), [("12", "KSampler", "input negative: 7 (CLIPTextEncode) before it is muted")]);
    // A widget has a value of its own to fall back on.
    let mut document = ui_fixture();
    ui_node(&mut document, 9)["mode"] = json!(2);
    assert_eq!(node(&imported_value(&document), "12")["params"]["seed"], 999);
}

#[test]
fn a_muted_output_is_no_target() {
    let mut document = ui_fixture();
    ui_node(&mut document, 14)["mode"] = json!(2);
    assert!(refused(&document).to_string().contains("no active SaveImage"));
    ui_node(&mut document, 15)["mode"] = json!(0);
    assert_eq!(imported_value(&document).targets, ["13"]);
}

#[test]
fn an_active_adapter_is_in_the_way_and_a_bypassed_one_isnt() {
    let mut document = ui_fixture();
    ui_node(&mut document, 4)["mode"] = json!(0);
    let error = refused(&document);
    assert!(matches!(reasons(&error)[..], [("4", "LoraLoaderModelOnly", _)]), "{error}");
    assert_eq!(error.unmapped()[0].title.as_deref(), Some("Style (off)"));
}

#[test]
fn a_bypassed_node_hands_on_by_kind() {
    let mut document = ui_fixture();
    // LoraLoader has MODEL and CLIP; swapped inputs show that kinds decide, not places.
    let lora = ui_node(&mut document, 4);
    lora["inputs"] =
        json!([{"name": "clip", "type": "CLIP", "link": 30}, {"name": "model", "type": "MODEL", "link": 1}]);
    lora["outputs"] = json!([{"name": "MODEL", "type": "MODEL", "links": [2]}, {"name": "CLIP", "type": "CLIP"}]);
    ui_node(&mut document, 6)["inputs"][0]["link"] = json!(31);
    let links = document["links"].as_array_mut().unwrap();
    links.extend([json!([30, 2, 0, 4, 0, "CLIP"]), json!([31, 4, 1, 6, 0, "CLIP"])]);
    assert_eq!(imported_value(&document).graph, imported_value(&ui_fixture()).graph);
    // With nothing of the kind, the readers stay unwired.
    ui_node(&mut document, 4)["inputs"][0]["type"] = json!("IMAGE");
    let error = refused(&document);
    assert!(matches!(reasons(&error)[..], [("6", _, reason)] if reason.contains("bypassed")), "{error}");
}

#[test]
fn dangling_links_are_named() {
    let mut document = ui_fixture();
    document["links"].as_array_mut().unwrap().retain(|link| link[0] != 11);
    let error = refused(&document);
    assert!(matches!(reasons(&error)[..], [("12", _, "input latent_image: link 11 isn't in the workflow")]), "{error}");
    let mut document = ui_fixture();
    document["nodes"].as_array_mut().unwrap().retain(|node| node["id"] != 10);
    let error = refused(&document);
    assert!(matches!(reasons(&error)[..], [("12", _, reason)] if reason.contains("node 10")), "{error}");
}

#[test]
fn group_nodes_are_named() {
    let mut document = ui_fixture();
    ui_node(&mut document, 10)["type"] = json!("workflow>Latents");
    let error = refused(&document);
    assert!(matches!(reasons(&error)[..], [("10", _, reason)] if reason.contains("group")), "{error}");
}
