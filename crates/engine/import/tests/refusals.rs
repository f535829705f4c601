//! What can't be mapped is listed node by node, with what is in the way.

mod common;

use common::*;
use engine_import::{ImportError, import};
use serde_json::json;

#[test]
fn every_obstacle_is_listed_at_once() {
    let mut workflow = z_image_with("6", "sampler_name", "res_multistep");
    workflow["10"] = json!({"class_type": "LoraLoaderModelOnly", "_meta": {"title": "Style"},
        "inputs": {"model": ["1", 0], "lora_name": "style.safetensors", "strength_model": 1}});
    workflow["6"]["inputs"]["model"] = json!(["10", 0]);
    workflow["11"] = json!({"class_type": "ImageUpscaleWithModel", "inputs": {"image": ["7", 0]}});
    workflow["8"]["inputs"]["images"] = json!(["11", 0]);
    workflow["1"]["inputs"]["unet_name"] = json!("old.ckpt");
    let error = refused(&workflow);
    assert!(matches!(error, ImportError::Unmappable { .. }));
    let listed = reasons(&error);
    let ids: Vec<_> = listed.iter().map(|(id, class, _)| (*id, *class)).collect();
    let expected =
        [("1", "UNETLoader"), ("6", "KSampler"), ("10", "LoraLoaderModelOnly"), ("11", "ImageUpscaleWithModel")];
    assert_eq!(ids, expected);
    for ((.., reason), part) in listed.iter().zip(["pickle", "res_multistep", "adapters", "resizes"]) {
        assert!(reason.contains(part), "{reason}");
    }
    assert_eq!(error.unmapped()[2].title.as_deref(), Some("Style"));
    let text = error.to_string();
    assert!(text.contains("10 (LoraLoaderModelOnly, \"Style\")") && text.contains("res_multistep"), "{text}");
}

#[test]
fn one_whole_branch_is_enough_and_the_other_is_listed() {
    let mut workflow = z_image_and("20", "Sharpen", json!({"image": ["7", 0]}));
    workflow["21"] = json!({"class_type": "SaveImage", "inputs": {"images": ["20", 0]}});
    let imported = imported_value(&workflow);
    assert_eq!(imported.targets, ["7"]);
    assert_eq!(imported.unmapped.len(), 1);
    assert_eq!(imported.unmapped[0].node_id, "20");
    assert!(has_note(&imported, &["21 (SaveImage)", "isn't among the targets"]));
}

#[test]
fn nodes_of_a_failed_branch_stay_out_of_the_graph() {
    let mut workflow = z_image_and("20", "EmptyLatentImage", json!({"width": 64, "height": 64, "batch_size": 2}));
    workflow["22"] = json!({"class_type": "KSampler", "inputs": workflow["6"]["inputs"].clone()});
    workflow["22"]["inputs"]["latent_image"] = json!(["20", 0]);
    workflow["22"]["inputs"]["scheduler"] = json!("kl_optimal");
    workflow["23"] = json!({"class_type": "VAEDecode", "inputs": {"samples": ["22", 0], "vae": ["3", 0]}});
    workflow["24"] = json!({"class_type": "SaveImage", "inputs": {"images": ["23", 0]}});
    let imported = imported_value(&workflow);
    assert_eq!(imported.targets, ["7"]);
    assert!(imported.graph.nodes.iter().all(|node| node.id != "20"));
    assert!(!has_note(&imported, &["batch"]), "{:?}", imported.notes);
    assert!(imported.unmapped[0].reason.contains("kl_optimal"));
}

#[test]
fn settings_that_have_no_counterpart_are_named() {
    for (node, input, value, part) in [
        ("6", "cfg", json!(0.5), "below 1"),
        ("6", "cfg", json!("high"), "cfg must be a number, not a text"),
        ("6", "denoise", json!(0), "denoise 0"),
        ("6", "steps", json!(0), "steps must be 1"),
        ("6", "steps", json!(7.5), "steps must be a whole number"),
        ("6", "seed", json!(-3), "seed must be a whole number"),
        ("6", "seed", json!(1e300), "seed must be a whole number"),
        ("6", "seed", json!({"__value__": [1, 2]}), "not a list"),
        ("6", "scheduler", json!("ddim_uniform"), "ddim_uniform"),
        ("6", "latent_image", json!(["3", 0]), "latent_image takes latent"),
        ("6", "latent_image", json!(["5", 1]), "output 1 of 5"),
        ("6", "latent_image", json!("5"), "holds a value"),
        ("6", "latent_image", json!(["99", 0]), "node 99"),
        ("5", "width", json!("wide"), "width must be"),
        ("4", "text", json!(5), "text must be a text"),
        ("4", "text", json!(["5", 0]), "text takes text"),
        ("7", "samples", json!(null), "holds a value"),
        ("8", "images", json!(["6", 0]), "images takes image"),
        ("3", "vae_name", json!(["5", 0]), "computed by 5 (EmptySD3LatentImage)"),
    ] {
        let error = refused(&z_image_with(node, input, value.clone()));
        let listed = reasons(&error);
        assert!(
            listed.len() == 1 && listed[0].0 == node && listed[0].2.contains(part),
            "{node}.{input} = {value}: {listed:?}"
        );
    }
}

#[test]
fn missing_inputs_are_named() {
    for (node, input, part) in
        [("6", "model", "model isn't wired"), ("6", "steps", "steps is missing"), ("1", "unet_name", "is missing")]
    {
        let mut workflow = z_image();
        workflow[node]["inputs"].as_object_mut().unwrap().remove(input);
        let error = refused(&workflow);
        assert!(matches!(reasons(&error)[..], [(id, _, reason)] if id == node && reason.contains(part)), "{error}");
    }
}

#[test]
fn zeroed_conditioning_isnt_passed_off_as_a_prompt() {
    let mut workflow = z_image();
    workflow["9"] = json!({"class_type": "ConditioningZeroOut", "inputs": {"conditioning": ["4", 0]}});
    let error = refused(&workflow);
    assert!(matches!(reasons(&error)[..], [("9", _, reason)] if reason.contains("cfg 1")), "{error}");
}

#[test]
fn circles_are_found() {
    let error = refused(&z_image_with("6", "latent_image", json!(["6", 0])));
    assert!(matches!(reasons(&error)[..], [("6", _, "it depends on its own output")]), "{error}");

    let mut workflow = z_image();
    workflow["5"] = json!({"class_type": "VAEEncode", "inputs": {"pixels": ["7", 0], "vae": ["3", 0]}});
    assert!(matches!(reasons(&refused(&workflow))[..], [(_, _, "it depends on its own output")]));

    let mut workflow = z_image_and("10", "Reroute", json!({"": ["11", 0]}));
    workflow["11"] = json!({"class_type": "Reroute", "inputs": {"": ["10", 0]}});
    workflow["6"]["inputs"]["latent_image"] = json!(["10", 0]);
    assert!(matches!(reasons(&refused(&workflow))[..], [("6", _, reason)] if reason.contains("circle")));

    // Through a node that isn't known.
    let mut workflow = z_image_and("10", "Exotic", json!({"latent": ["6", 0]}));
    workflow["6"]["inputs"]["latent_image"] = json!(["10", 0]);
    assert!(matches!(reasons(&refused(&workflow))[..], [("10", "Exotic", _)]));
}

#[test]
fn without_a_picture_to_make_there_is_no_graph() {
    let mut workflow = z_image();
    workflow.as_object_mut().unwrap().remove("8");
    assert!(matches!(refused(&workflow), ImportError::NoTarget { unmapped } if unmapped.is_empty()));
    workflow["8"] = json!({"class_type": "SaveVideo", "inputs": {"images": ["7", 0]}});
    let error = refused(&workflow);
    assert!(matches!(&error, ImportError::NoTarget { unmapped } if unmapped.len() == 1));
    assert!(error.to_string().contains("8 (SaveVideo)"), "{error}");
    let only_shown = json!({
        "1": {"class_type": "LoadImage", "inputs": {"image": "a.png"}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0]}}});
    assert!(matches!(refused(&only_shown), ImportError::NoTarget { .. }));
}

#[test]
fn what_isnt_a_workflow_is_refused_by_shape() {
    for (text, part) in [
        ("", "not valid JSON"),
        ("{\"1\": ", "not valid JSON"),
        ("[]", "not a list"),
        ("7", "not a number"),
        ("{}", "empty"),
        ("{\"1\": 5}", "node 1: a node is an object"),
        ("{\"1\": {}}", "class_type"),
        ("{\"1\": {\"class_type\": 5}}", "must be a text"),
        ("{\"1\": {\"class_type\": \"KSampler\", \"inputs\": []}}", "must be an object"),
        ("{\"\": {\"class_type\": \"KSampler\"}}", "node id"),
        ("{\"a\\u0000\": {\"class_type\": \"KSampler\"}}", "node id"),
        ("{\"1\": {\"class_type\": \"A\"}, \"1\": {\"class_type\": \"B\"}}", "more than once"),
        ("{\"schemaVersion\": 1, \"nodes\": [{\"id\": \"a\", \"type\": \"input/text\"}]}", "no active SaveImage"),
        ("{\"nodes\": [5]}", "nodes[0]"),
        ("{\"nodes\": [{\"type\": \"A\"}]}", "needs an id"),
        ("{\"nodes\": [{\"id\": 1}]}", "\"type\""),
        ("{\"nodes\": [{\"id\": 1, \"type\": \"A\", \"mode\": \"x\"}]}", "\"mode\""),
        ("{\"nodes\": [{\"id\": 1, \"type\": \"A\", \"inputs\": 5}]}", "\"inputs\""),
        ("{\"nodes\": [{\"id\": 1, \"type\": \"A\", \"inputs\": [{}]}]}", "\"inputs\""),
        ("{\"nodes\": [{\"id\": 1, \"type\": \"A\"}, {\"id\": \"1\", \"type\": \"B\"}]}", "two nodes"),
        ("{\"nodes\": [], \"links\": {}}", "\"links\" must be a list"),
        ("{\"nodes\": [], \"links\": [[1, 2]]}", "links[0]"),
        ("{\"nodes\": [], \"links\": [[1, 2, 0, 3, 0, \"A\"], [1, 4, 0, 3, 0, \"A\"]]}", "two links"),
        ("{\"nodes\": [], \"definitions\": {\"subgraphs\": [{}]}}", "has no id"),
        ("{\"nodes\": [], \"definitions\": {\"subgraphs\": 5}}", "must be a list"),
    ] {
        let error = import(text.as_bytes()).expect_err(text);
        assert!(error.to_string().contains(part), "{text}: {error}");
    }
    assert!(import(b"\xff\xfe").is_err());
    let marked = format!("\u{feff}{}", z_image());
    assert!(import(marked.as_bytes()).is_ok());
}
