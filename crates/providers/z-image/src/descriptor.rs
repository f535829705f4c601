//! What the family offers, and its entries for a registry.

use std::sync::Arc;

use gen_core::{
    CancelFlag, Capabilities, ConditioningKind, DiffusionModel, Generator, GeneratorEntry, KNOWN_SAMPLERS,
    KNOWN_SCHEDULERS, LoadContext, LoadSpec, Modality, ModelDescriptor, ProviderRegistry, ProviderRegistryBuilder,
    Quant, Result, Role, SizeRule,
};
use sampling::DiffusionGenerator;

use crate::ZImageModel;

/// Family name in descriptors and in `weights::identify`.
pub const FAMILY: &str = "z_image";

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

fn descriptor(id: &str, name: &str, default_steps: u32, default_true_cfg: f32) -> ModelDescriptor {
    ModelDescriptor {
        id: id.to_owned(),
        name: name.to_owned(),
        family: FAMILY.to_owned(),
        backend: "candle".to_owned(),
        modality: Modality::Image,
        capabilities: Capabilities {
            size: SizeRule { min: 16, max: 4096, multiple: 16, default: 1024 },
            max_count: 64,
            default_steps,
            max_steps: 200,
            true_cfg: true,
            default_true_cfg,
            distilled_guidance: false,
            conditioning: vec![ConditioningKind::Reference, ConditioningKind::Mask],
            adapters: Vec::new(),
            samplers: names(KNOWN_SAMPLERS),
            schedulers: names(KNOWN_SCHEDULERS),
            guidance_methods: names(&["cfg", "cfg_norm", "cfg_trunc"]),
            quants: vec![Quant::Q8],
        },
        required_components: vec![Role::Tokenizer, Role::TextEncoder, Role::Denoiser, Role::Vae],
    }
}

/// The few-step model.
pub fn z_image_turbo() -> ModelDescriptor {
    descriptor("z_image_turbo", "Z-Image Turbo", 8, 0.0)
}

/// The base model, made for guidance.
pub fn z_image() -> ModelDescriptor {
    descriptor("z_image", "Z-Image", 50, 4.0)
}

fn open(descriptor: &ModelDescriptor, spec: &LoadSpec) -> Result<Arc<dyn DiffusionModel>> {
    Ok(Arc::new(ZImageModel::open(descriptor, spec)?))
}

fn load(descriptor: &ModelDescriptor, spec: &LoadSpec) -> Result<Box<dyn Generator>> {
    let context = LoadContext { cancel: &CancelFlag::new() };
    Ok(Box::new(DiffusionGenerator::open(open(descriptor, spec)?, spec.offload, &context)?))
}

fn entry(descriptor: ModelDescriptor) -> GeneratorEntry {
    GeneratorEntry {
        descriptor,
        load,
        open: Some(open),
        footprint: |descriptor, spec| Ok(ZImageModel::open(descriptor, spec)?.footprint().clone()),
    }
}

/// Adds the family to a bundle.
pub fn register_providers(builder: ProviderRegistryBuilder) -> ProviderRegistryBuilder {
    builder.register_generator(entry(z_image_turbo())).register_generator(entry(z_image()))
}

/// The family alone.
///
/// # Errors
/// Two ids are the same.
pub fn provider_registry() -> Result<ProviderRegistry> {
    register_providers(ProviderRegistryBuilder::new()).build()
}
