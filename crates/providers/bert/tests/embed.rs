//! Vectors of a tiny model with random weights, against transformers.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

use conformance::recipe;
use gen_core::{Error, LoadSpec, Quant, TextEmbedder, WeightsSource};
use safetensors::SafeTensors;
use std::fs;
use std::path::Path;

fn load(folder: &Path) -> gen_core::Result<Box<dyn TextEmbedder>> {
    let spec = LoadSpec::new(WeightsSource::Dir(folder.to_owned()));
    bert::provider_registry().unwrap().load_text_embedder(bert::SENTENCE_BERT, &spec)
}

fn write(folder: &Path) {
    recipe::write_folder(&recipe::fixtures().join("bert-tiny"), folder, recipe::Format::F32, 1).unwrap();
}

#[test]
fn vectors_are_the_references() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let model = load(dir.path()).unwrap();
    let fixture = recipe::fixtures().join("bert-tiny");
    let texts: Vec<String> = serde_json::from_slice(&fs::read(fixture.join("texts.json")).unwrap()).unwrap();
    let bytes = fs::read(fixture.join("outputs.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let expected = file.tensor("vectors").unwrap().data().to_vec();
    let expected: Vec<f32> = expected.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let width = expected.len() / texts.len();
    for (text, expected) in texts.iter().zip(expected.chunks(width)) {
        let vector = model.embed(text).unwrap();
        assert_eq!(vector.len(), width);
        let worst = vector.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-4, "{text}: {worst}");
    }
}

#[test]
fn texts_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let model = load(dir.path()).unwrap();
    for text in [String::new(), "apple ".repeat(200), "x".repeat(10_000_000)] {
        assert!(matches!(model.embed(&text), Err(Error::InvalidRequest { field: "input", .. })));
        assert!(model.validate(&text).is_err());
    }
    model.embed("\0 \u{fffd} 🦀").unwrap();
    fs::write(dir.path().join("sentence_bert_config.json"), r#"{"max_seq_length": 4}"#).unwrap();
    let short = load(dir.path()).unwrap();
    assert!(short.validate("two striped umbrellas and the moon").is_err());
}

#[test]
fn what_is_not_built_is_refused_at_load() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let pooling = dir.path().join("1_Pooling");
    fs::create_dir(&pooling).unwrap();
    fs::write(pooling.join("config.json"), r#"{"pooling_mode_max_tokens": true}"#).unwrap();
    assert!(load(dir.path()).err().unwrap().to_string().contains("pooling_mode_max_tokens"));
    fs::write(pooling.join("config.json"), r#"{"pooling_mode_cls_token": true}"#).unwrap();
    load(dir.path()).unwrap();
    let spec = LoadSpec::new(WeightsSource::Dir(dir.path().to_owned())).with_quant(Quant::Q8);
    assert!(bert::provider_registry().unwrap().load_text_embedder(bert::SENTENCE_BERT, &spec).is_err());
    fs::remove_file(dir.path().join("config.json")).unwrap();
    assert!(load(dir.path()).err().unwrap().to_string().contains("config.json"));
}
