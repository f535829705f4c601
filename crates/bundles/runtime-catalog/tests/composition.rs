//! Every wrong composition is refused before anything is loaded.

#![cfg(feature = "media")]
#![allow(clippy::unwrap_used)] // a test fails where a value is missing

use core_llm::{
    PrepareSpec, PreparerEntry, SnapshotPreparer, SnapshotPreparerRegistryBuilder, TextCapabilities, TextLlmDescriptor,
    TextLlmEntry,
};
use gen_core::*;
use runtime_catalog::{CatalogError, RuntimeCatalog, RuntimeCatalogBuilder};

struct Preparer;

impl SnapshotPreparer for Preparer {
    fn prepare(&self, _: &PrepareSpec) -> Result<()> {
        Err(Error::Unsupported("not in this test".into()))
    }
}

fn preparer(builder: SnapshotPreparerRegistryBuilder) -> SnapshotPreparerRegistryBuilder {
    builder.register_preparer(PreparerEntry { backend: "candle".into(), preparer: Box::new(Preparer) })
}

fn language_model(id: &str, backend: &str) -> TextLlmEntry {
    let descriptor = TextLlmDescriptor {
        id: id.into(),
        name: id.into(),
        backend: backend.into(),
        model_types: vec!["llama".into()],
        capabilities: TextCapabilities::default(),
    };
    let refuse = |_: &TextLlmDescriptor, _: &core_llm::LoadSpec| Err(Error::Unsupported("never loaded".into()));
    TextLlmEntry { descriptor, can_load: |_| Ok(()), load: refuse }
}

fn generator(change: impl FnOnce(&mut ModelDescriptor)) -> GeneratorEntry {
    let mut descriptor = ModelDescriptor {
        id: "toy".into(),
        name: "Toy".into(),
        family: "toy".into(),
        backend: "candle".into(),
        modality: Modality::Image,
        capabilities: Capabilities {
            size: SizeRule { min: 8, max: 64, multiple: 8, default: 32 },
            max_count: 1,
            default_steps: 1,
            max_steps: 2,
            true_cfg: false,
            default_true_cfg: 0.0,
            distilled_guidance: false,
            conditioning: vec![],
            adapters: vec![],
            samplers: vec!["euler".into()],
            schedulers: vec!["simple".into()],
            guidance_methods: vec![],
            quants: vec![],
        },
        required_components: vec![],
    };
    change(&mut descriptor);
    let refuse = |_: &ModelDescriptor, _: &LoadSpec| Err(gen_core::Error::Unsupported("never loaded".into()));
    GeneratorEntry { descriptor, load: refuse, open: None, footprint: |_, _| Ok(Footprint::default()) }
}

/// A bundle of these generators and a preparer.
fn bundle(entries: Vec<GeneratorEntry>) -> RuntimeCatalogBuilder {
    let all = |builder| entries.into_iter().fold(builder, ProviderRegistryBuilder::register_generator);
    RuntimeCatalogBuilder::new("cpu", "candle").media(all).preparers(preparer)
}

fn refusal(builder: RuntimeCatalogBuilder) -> CatalogError {
    builder.build().err().expect("it was accepted")
}

#[test]
fn a_sound_composition_is_listed_in_order() {
    let entries = [("b", "B"), ("a", "A")].map(|(id, name)| {
        generator(|d| {
            d.id = id.into();
            d.name = name.into();
        })
    });
    let catalog: RuntimeCatalog =
        bundle(entries.into()).text(|b| b.register_textllm(language_model("c", "candle"))).build().unwrap();
    assert_eq!(
        catalog.snapshot().to_json(),
        r#"{"platform":"cpu","backend":"candle","generator_ids":["a","b"],"transform_ids":[],"trainer_ids":[],"captioner_ids":[],"image_embedder_ids":[],"text_embedder_ids":[],"text_llm_ids":["c"],"snapshot_preparer_backends":["candle"]}"#
    );
    let unknown = catalog.media().load("c", &LoadSpec::new(WeightsSource::Dir("x".into()))).err().unwrap().to_string();
    assert!(unknown.contains("a, b"), "{unknown}");
}

#[test]
fn a_foreign_backend_is_refused_in_every_kind() {
    let refused = |builder: RuntimeCatalogBuilder| match refusal(builder) {
        CatalogError::Backend { kind, backend, expected: "candle", .. } if backend == "mlx" => kind,
        other => panic!("{other}"),
    };
    assert_eq!(refused(bundle(vec![generator(|d| d.backend = "mlx".into())])), "generator");
    assert_eq!(refused(bundle(vec![]).text(|b| b.register_textllm(language_model("a", "mlx")))), "language model");
    let foreign = PreparerEntry { backend: "mlx".into(), preparer: Box::new(Preparer) };
    assert_eq!(refused(bundle(vec![]).preparers(|b| b.register_preparer(foreign))), "snapshot preparer");
}

#[test]
fn an_id_or_name_stands_once_within_a_kind() {
    let twice = [
        bundle(vec![generator(|_| ()), generator(|d| d.name = "Other".into())]),
        bundle(vec![]).text(|b| [1, 2].iter().fold(b, |b, _| b.register_textllm(language_model("a", "candle")))),
        bundle(vec![]).preparers(preparer),
    ];
    for builder in twice {
        assert!(matches!(refusal(builder), CatalogError::Registry(e) if e.to_string().contains("twice")));
    }
    let same_name = bundle(vec![generator(|_| ()), generator(|d| d.id = "other".into())]);
    assert!(matches!(refusal(same_name), CatalogError::Descriptor(p) if p.problem.contains("Toy")));
}

#[test]
fn malformed_descriptors_and_a_missing_preparer_are_refused() {
    let malformed = bundle(vec![generator(|d| d.capabilities.samplers = vec!["magic".into()])]);
    assert!(matches!(refusal(malformed), CatalogError::Descriptor(p) if p.problem.contains("magic")));
    let malformed = bundle(vec![]).text(|b| b.register_textllm(language_model("A", "candle")));
    assert!(matches!(refusal(malformed), CatalogError::Descriptor(p) if p.id == "A"));
    assert!(matches!(refusal(RuntimeCatalogBuilder::new("cpu", "candle")), CatalogError::NoPreparer));
}
