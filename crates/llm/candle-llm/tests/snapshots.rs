//! What can be loaded and prepared, and what is refused.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

mod common;

use common::{edit_json, load, registry, request, write};
use conformance::recipe;
use core_llm::*;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../assets/demo")
}

/// What keeps the model in `folder` from being loaded.
fn refusal(folder: &Path) -> String {
    load(folder).err().expect("it loaded").to_string()
}

/// Writes the weights of the tiny Qwen3 anew, changed.
fn rewrite(folder: &Path, change: impl FnOnce(&mut Vec<recipe::Mapped>)) {
    let list = recipe::read_tensor_list(&recipe::fixtures().join("llm-tiny/qwen3/tensors.json")).unwrap();
    let mut tensors = list.into_iter().map(recipe::Mapped::from).collect();
    change(&mut tensors);
    recipe::write_safetensors(&folder.join("model.safetensors"), &tensors, recipe::Format::F32).unwrap();
}

#[test]
fn other_models_are_refused_for_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    let config = folder.join("config.json");
    write("qwen3", folder);
    load(folder).unwrap();
    let quantized = registry().load_for_model(&LoadSpec::quantized(folder, Quant::Q4)).err().unwrap().to_string();
    assert!(quantized.contains("Q4"), "{quantized}");

    rewrite(folder, |tensors| tensors.push(("model.layers.1.self_attn.o_proj.bias".to_owned(), vec![96]).into()));
    assert!(refusal(folder).contains("o_proj.bias"), "{}", refusal(folder));
    rewrite(folder, |tensors| tensors.retain(|t| !t.name.contains("layers.1.mlp.up_proj")));
    assert!(refusal(folder).contains("up_proj"), "{}", refusal(folder));
    rewrite(folder, |_| ());

    edit_json(&config, |c| c["tie_word_embeddings"] = json!(false));
    assert!(refusal(folder).contains("lm_head"), "{}", refusal(folder));
    edit_json(&config, |c| c["tie_word_embeddings"] = json!(true));
    edit_json(&config, |c| c["hidden_act"] = json!("gelu"));
    assert!(refusal(folder).contains("gelu"), "{}", refusal(folder));
    edit_json(&config, |c| c["model_type"] = json!("mamba"));
    assert!(refusal(folder).contains("mamba"), "{}", refusal(folder));
    fs::remove_file(&config).unwrap();
    assert!(refusal(folder).contains("config.json"), "{}", refusal(folder));
    assert!(refusal(&folder.join("nowhere")).contains("nowhere"));
    assert!(refusal(&demo().join("transformer")).contains("config.json"));
}

#[test]
fn a_gguf_file_that_is_cut_off_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    fs::write(&file, b"GGUF\x03\0\0\0").unwrap();
    for path in [dir.path(), &file] {
        assert!(refusal(path).contains("cut off"), "{}", refusal(path));
        let spec = PrepareSpec::dense(path, dir.path().join("out"));
        assert!(
            candle_llm::preparer_registry()
                .unwrap()
                .prepare_snapshot(&spec)
                .unwrap_err()
                .to_string()
                .contains("cut off")
        );
    }
}

#[test]
fn a_missing_tokenizer_or_a_broken_template_fails_at_load() {
    let dir = tempfile::tempdir().unwrap();
    write("qwen3", dir.path());
    fs::write(dir.path().join("chat_template.jinja"), "{% if %}").unwrap();
    assert!(refusal(dir.path()).contains("chat template"), "{}", refusal(dir.path()));
    fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
    assert!(refusal(dir.path()).contains("tokenizer.json"), "{}", refusal(dir.path()));
}

#[test]
fn a_cancelled_load_stops() {
    let cancel = CancelFlag::new();
    cancel.cancel();
    let spec = LoadSpec::dense(demo().join("text_encoder")).with_cancel(&cancel);
    assert_eq!(registry().load_for_model(&spec).err(), Some(Error::Cancelled));
}

#[test]
fn the_encoder_of_a_pipeline_speaks_and_becomes_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let (source, made) = (demo().join("text_encoder"), dir.path().join("deep/out"));
    let before = load(&source).unwrap().complete(&request("a red apple")).unwrap();
    candle_llm::preparer_registry().unwrap().prepare_snapshot(&PrepareSpec::dense(source, &made)).unwrap();
    assert!(made.join("tokenizer.json").is_file());
    assert_eq!(load(&made).unwrap().complete(&request("a red apple")).unwrap(), before);
}

#[test]
fn files_of_every_kind_become_snapshots() {
    let fixture = recipe::fixtures().join("llm-tiny/qwen2");
    for (format, shards) in [(recipe::Format::F32, 1), (recipe::Format::F16, 1), (recipe::Format::Bf16, 3)] {
        let dir = tempfile::tempdir().unwrap();
        let (source, made) = (dir.path().join("in"), dir.path().join("out"));
        recipe::write_folder(&fixture, &source, format, shards).unwrap();
        let before = load(&source).unwrap().complete(&request("x")).unwrap();
        let path = if shards == 1 { source.join("model.safetensors") } else { source };
        candle_llm::preparer_registry().unwrap().prepare_snapshot(&PrepareSpec::dense(path, &made)).unwrap();
        assert_eq!(load(&made).unwrap().complete(&request("x")).unwrap(), before, "{format:?} in {shards}");
    }
}

#[test]
fn a_preparation_that_fails_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (source, made) = (dir.path().join("in"), dir.path().join("made"));
    write("qwen3", &source);
    let preparers = candle_llm::preparer_registry().unwrap();
    let prepare = |spec: PrepareSpec| preparers.prepare_snapshot(&spec);
    let entries = || fs::read_dir(dir.path()).unwrap().count();

    let cancel = CancelFlag::new();
    cancel.cancel();
    assert_eq!(prepare(PrepareSpec::dense(&source, &made).with_cancel(&cancel)), Err(Error::Cancelled));
    let quantized = prepare(PrepareSpec::quantized(&source, &made, Quant::Q8)).unwrap_err().to_string();
    assert!(quantized.contains("Q8"), "{quantized}");
    assert_eq!(entries(), 1);

    prepare(PrepareSpec::dense(&source, &made)).unwrap();
    let again = prepare(PrepareSpec::dense(&source, &made)).unwrap_err().to_string();
    assert!(again.contains("exists"), "{again}");
    let blocked = prepare(PrepareSpec::dense(&source, made.join("config.json/out"))).unwrap_err().to_string();
    assert!(blocked.contains("can't be written"), "{blocked}");
    assert_eq!((entries(), fs::read_dir(&made).unwrap().count()), (2, 4));

    // Cut off in the middle of the weights.
    let weights = source.join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    fs::write(&weights, &bytes[..bytes.len() / 2]).unwrap();
    assert!(prepare(PrepareSpec::dense(&source, dir.path().join("third"))).is_err());
    assert_eq!(entries(), 2);
}
