//! The exact surface of the bundle.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

use runtime_cpu as runtime;

#[test]
fn the_catalog_holds_exactly_these_ids() {
    let catalog = runtime::catalog().unwrap();
    assert_eq!(catalog.platform(), runtime::PLATFORM);
    assert_eq!(catalog.backend(), runtime::BACKEND);
    let generators = if cfg!(feature = "media") { r#"["z_image","z_image_turbo"]"# } else { "[]" };
    let embedders = if cfg!(feature = "media") { r#"["sentence_bert"]"# } else { "[]" };
    let expected = format!(
        r#"{{"platform":"cpu","backend":"candle","generator_ids":{generators},"transform_ids":[],"trainer_ids":[],"captioner_ids":[],"image_embedder_ids":[],"text_embedder_ids":{embedders},"text_llm_ids":["candle-llama"],"snapshot_preparer_backends":["candle"]}}"#
    );
    assert_eq!(catalog.snapshot().to_json(), expected);
}

#[test]
fn the_bundle_says_where_it_runs_and_what_it_needs() {
    assert_eq!((runtime::BACKEND, runtime::PLATFORM), ("candle", "cpu"));
    assert_eq!(
        runtime::SUPPORTED_TARGET_TRIPLES,
        ["x86_64-unknown-linux-gnu", "aarch64-apple-darwin", "x86_64-pc-windows-msvc"]
    );
    assert!(runtime::NATIVE_PREREQUISITES.is_empty());
    assert_eq!(runtime::llm::BACKEND, runtime::BACKEND);
}

#[cfg(feature = "media")]
#[test]
fn every_family_is_in_the_catalog() {
    let family = runtime::providers::z_image::provider_registry().unwrap();
    let bundle = runtime::media::provider_registry().unwrap();
    for entry in family.generators() {
        assert!(bundle.generators().any(|other| other.descriptor == entry.descriptor), "{}", entry.descriptor.id);
    }
}

#[test]
fn a_folder_that_is_no_model_is_refused_with_what_was_seen() {
    let catalog = runtime::catalog().unwrap();
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let refusal = catalog.text().load_for_model(&runtime::core_llm::LoadSpec::dense(here)).err().unwrap().to_string();
    assert!(refusal.contains("candle-llama") && refusal.contains("safetensors"), "{refusal}");
}
