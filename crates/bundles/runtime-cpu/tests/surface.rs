//! The exact surface of the bundle.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

#[test]
fn the_catalog_holds_exactly_these_ids() {
    let catalog = runtime_cpu::catalog().unwrap();
    assert_eq!(catalog.platform(), runtime_cpu::PLATFORM);
    assert_eq!(catalog.backend(), runtime_cpu::BACKEND);
    let generators = if cfg!(feature = "media") { r#"["z_image","z_image_turbo"]"# } else { "[]" };
    let expected = format!(
        r#"{{"platform":"cpu","backend":"candle","generator_ids":{generators},"transform_ids":[],"trainer_ids":[],"captioner_ids":[],"image_embedder_ids":[],"text_embedder_ids":[],"text_llm_ids":["candle-llama"],"snapshot_preparer_backends":["candle"]}}"#
    );
    assert_eq!(catalog.snapshot().to_json(), expected);
}
