//! Every wrong composition is refused before anything is loaded.

#![cfg(feature = "media")]
#![allow(clippy::unwrap_used)] // a test fails where a value is missing

use core_llm::{Error, PrepareSpec, PreparerEntry, SnapshotPreparer, SnapshotPreparerRegistry, TextLlmRegistry};
use gen_core::*;
use runtime_catalog::{CatalogError, RuntimeCatalog};

struct Preparer;

impl SnapshotPreparer for Preparer {
    fn prepare(&self, _: &PrepareSpec) -> Result<()> {
        Err(Error::Unsupported("not in this test".into()))
    }
}

fn preparers() -> SnapshotPreparerRegistry {
    let entry = PreparerEntry { backend: "candle".into(), preparer: Box::new(Preparer) };
    SnapshotPreparerRegistry::new().register(entry).unwrap()
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

fn catalog(
    entries: Vec<GeneratorEntry>,
    preparers: SnapshotPreparerRegistry,
) -> std::result::Result<RuntimeCatalog, CatalogError> {
    let builder = entries.into_iter().fold(ProviderRegistryBuilder::new(), |b, e| b.register_generator(e));
    RuntimeCatalog::new("cpu", "candle", builder.build()?, TextLlmRegistry::new(), preparers)
}

#[test]
fn a_sound_composition_is_listed_in_order() {
    let catalog =
        catalog(vec![generator(|d| d.id = "b".into()), generator(|d| d.id = "a".into())], preparers()).unwrap();
    assert_eq!(catalog.snapshot().generator_ids, ["a", "b"]);
    assert_eq!(
        catalog.snapshot().to_json(),
        r#"{"platform":"cpu","backend":"candle","generator_ids":["a","b"],"transform_ids":[],"trainer_ids":[],"captioner_ids":[],"image_embedder_ids":[],"text_embedder_ids":[],"text_llm_ids":[],"snapshot_preparer_backends":["candle"]}"#
    );
    let unknown = catalog.media().load("c", &LoadSpec::new(WeightsSource::Dir("x".into()))).err().unwrap().to_string();
    assert!(unknown.contains("a, b"), "{unknown}");
}

#[test]
fn wrong_compositions_are_refused() {
    let foreign = catalog(vec![generator(|d| d.backend = "mlx".into())], preparers());
    assert!(matches!(foreign, Err(CatalogError::Backend { .. })));
    let twice = catalog(vec![generator(|_| ()), generator(|_| ())], preparers());
    assert!(matches!(twice, Err(CatalogError::Registry(_))));
    let malformed = catalog(vec![generator(|d| d.capabilities.samplers = vec!["magic".into()])], preparers());
    assert!(matches!(malformed, Err(CatalogError::Descriptor { .. })));
    assert!(matches!(catalog(vec![], SnapshotPreparerRegistry::new()), Err(CatalogError::NoPreparer)));
}
