//! Commands of the real binary.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

mod common;

use common::{demo_graph, inline, peak_to_noise, pixels};
use serde_json::json;
use std::process::Output;

fn ran(command: &mut std::process::Command) -> (Output, String) {
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, error)
}

#[test]
fn render_with_nothing_configured_draws_the_golden_apple() {
    let dir = tempfile::tempdir().unwrap();
    let (output, error) =
        ran(inline().current_dir(&dir).args(["render", "a red apple", "-o", "apple.png", "--seed", "1"]));
    assert!(output.status.success(), "{error}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "apple.png\n");
    let (width, height, got) = pixels(&dir.path().join("apple.png"));
    assert_eq!((width, height), (128, 128));
    let (.., golden) = pixels(&conformance::recipe::fixtures().join("demo-golden/golden_0.png"));
    let psnr = peak_to_noise(&got, &golden);
    // The number format is the machine's best, so this is the bound for bf16.
    assert!(psnr > 30.0, "{psnr} dB");
}

#[test]
fn count_gives_the_single_renders_of_following_seeds() {
    let dir = tempfile::tempdir().unwrap();
    let render = |args: &[&str]| {
        let (output, error) = ran(inline().current_dir(&dir).args(["render", "cat face", "--steps", "2"]).args(args));
        assert!(output.status.success(), "{error}");
    };
    // The largest seed wraps.
    render(&["--seed", "18446744073709551615", "--count", "2", "-o", "cat.png"]);
    render(&["--seed", "18446744073709551615", "-o", "last.png"]);
    render(&["--seed", "0", "-o", "first.png"]);
    let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
    assert_eq!(read("cat-1.png"), read("last.png"));
    assert_eq!(read("cat-2.png"), read("first.png"));
    assert_ne!(read("cat-1.png"), read("cat-2.png"));
}

#[test]
fn a_picture_can_be_the_start_and_no_strength_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let golden = conformance::recipe::fixtures().join("demo-golden/golden_0.png");
    let mut results = Vec::new();
    for strength in ["0", "0.5", "1"] {
        let out = format!("{strength}.png");
        let mut command = inline();
        command.current_dir(&dir).args([
            "render",
            "a red apple",
            "--seed",
            "3",
            "--strength",
            strength,
            "-o",
            &out,
            "--image",
        ]);
        let (output, error) = ran(command.arg(&golden));
        assert!(output.status.success(), "{error}");
        results.push(pixels(&dir.path().join(out)).2);
    }
    let (.., original) = pixels(&golden);
    let distance =
        |a: &[u8]| a.iter().zip(&original).map(|(a, b)| f64::from(a.abs_diff(*b))).sum::<f64>() / original.len() as f64;
    assert!(
        distance(&results[0]) < 4.0 && distance(&results[0]) < distance(&results[2]),
        "{:?}",
        results.iter().map(|r| distance(r)).collect::<Vec<_>>()
    );
}

#[test]
fn what_cannot_work_is_one_sentence_and_exit_code_1() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("broken.png"), b"\x89PNG\r\n\x1a\nnothing").unwrap();
    std::fs::write(dir.path().join("model.ckpt"), b"\x80\x02}").unwrap();
    let long = "apple ".repeat(10_000);
    for (args, expected) in [
        (vec!["render", "x", "--width", "0"], "width"),
        (vec!["render", "x", "--width", "15"], "width"),
        (vec!["render", "x", "--height", "1544"], "height"),
        (vec!["render", "x", "--height", "65536"], "height"),
        (vec!["render", "x", "--guidance", "NaN"], "--guidance"),
        (vec!["render", "x", "--seed", "1e99"], "--seed"),
        (vec!["render", "x", "--node", "no/such"], "no/such"),
        (vec!["render", "x", "--image", "absent.png"], "absent.png"),
        (vec!["render", "x", "--image", "broken.png"], "can't be read"),
        (vec!["render", &long], "tokens"),
        (vec!["render", "x", "--node", "alibaba/z-image-turbo"], "diffusion_models"),
        (vec!["inspect", "model.ckpt"], "pickle"),
        (vec!["inspect", "absent.safetensors"], "absent.safetensors"),
        (vec!["run", "absent.json", "--target", "m1"], "absent.json"),
    ] {
        let (output, error) = ran(inline().current_dir(&dir).args(&args));
        assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
        let shown: Vec<&str> = error.lines().filter(|line| line.starts_with("error:")).collect();
        assert!(shown.len() == 1 && shown[0].contains(expected), "{:?}: {error}", &args[..2]);
        assert!(output.stdout.is_empty());
    }
    assert_eq!(inline().arg("paint").output().unwrap().status.code(), Some(2));
}

#[test]
fn odd_prompts_render() {
    let dir = tempfile::tempdir().unwrap();
    for prompt in ["", "🍎🦀", "苹果 na\u{ef}ve\n<|im_end|>"] {
        let (output, error) = ran(inline().current_dir(&dir).args(["render", prompt, "--steps", "1", "--seed", "1"]));
        assert!(output.status.success(), "{prompt:?}: {error}");
    }
    assert!(dir.path().join("picture-1-2.png").exists(), "nothing is overwritten");
}

#[test]
fn inspect_tells_what_true_size_files_are() {
    use conformance::headers;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("whatever.safetensors");
    let list = headers::header_list("z_image_transformer_comfy").unwrap();
    headers::write_header_only(&path, &list.tensors, "BF16").unwrap();
    let (output, error) = ran(inline().args(["inspect", "--json"]).arg(&path));
    assert!(output.status.success(), "{error}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let component = &report["components"][0];
    assert_eq!((&component["family"], &component["parameters"]), (&json!("z_image"), &json!(6_154_908_736u64)));
    assert!(component["residentBytes"].as_u64().unwrap() > 12_000_000_000);
}

#[test]
fn import_turns_a_workflow_into_a_graph() {
    let dir = tempfile::tempdir().unwrap();
    let workflow = json!({
        "1": {"class_type": "UNETLoader", "inputs": {"unet_name": "z.safetensors", "weight_dtype": "default"}},
        "2": {"class_type": "CLIPLoader", "inputs": {"clip_name": "q.safetensors", "type": "lumina2"}},
        "3": {"class_type": "VAELoader", "inputs": {"vae_name": "ae.safetensors"}},
        "4": {"class_type": "CLIPTextEncode", "inputs": {"text": "a red apple", "clip": ["2", 0]}},
        "5": {"class_type": "ConditioningZeroOut", "inputs": {"conditioning": ["4", 0]}},
        "6": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 512, "height": 512, "batch_size": 1}},
        "7": {"class_type": "KSampler", "inputs": {"model": ["1", 0], "positive": ["4", 0], "negative": ["5", 0], "latent_image": ["6", 0],
            "seed": 7, "steps": 8, "cfg": 1.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}},
        "8": {"class_type": "VAEDecode", "inputs": {"samples": ["7", 0], "vae": ["3", 0]}},
        "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "x"}}});
    std::fs::write(dir.path().join("w.json"), workflow.to_string()).unwrap();
    let (output, error) = ran(inline().current_dir(&dir).args(["import", "w.json"]));
    assert!(output.status.success(), "{error}");
    let graph: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(graph["nodes"].as_array().unwrap().iter().any(|n| n["type"] == "sample"));
    std::fs::write(dir.path().join("bad.json"), demo_graph(json!({})).to_string()).unwrap();
    assert_eq!(inline().current_dir(&dir).args(["import", "bad.json"]).output().unwrap().status.code(), Some(1));
}
