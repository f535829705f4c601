//! BERT encoders (Devlin et al. 2018) that turn sentences into vectors, pooled and normalised as sentence-transformers
//! does (Reimers and Gurevych 2019).

mod config;
mod embedder;
mod encoder;

use gen_core::{
    Capabilities, Modality, ModelDescriptor, ProviderRegistry, ProviderRegistryBuilder, Result, Role, SizeRule,
    TextEmbedder, TypedEntry,
};

pub use config::BertConfig;
pub use embedder::SentenceEmbedder;
pub use encoder::BertEncoder;

/// Family name in descriptors and in `weights::identify`.
pub const FAMILY: &str = "bert";
/// Id of the sentence embedder.
pub const SENTENCE_BERT: &str = "sentence_bert";

/// The sentence embedder.
pub fn sentence_bert() -> ModelDescriptor {
    ModelDescriptor {
        id: SENTENCE_BERT.to_owned(),
        name: "Sentence BERT".to_owned(),
        family: FAMILY.to_owned(),
        backend: "candle".to_owned(),
        modality: Modality::Embedding,
        // Of all these only the kind of output means something for vectors.
        capabilities: Capabilities {
            size: SizeRule { min: 1, max: 1, multiple: 1, default: 1 },
            max_count: 1,
            default_steps: 1,
            max_steps: 1,
            true_cfg: false,
            default_true_cfg: 0.0,
            distilled_guidance: false,
            conditioning: Vec::new(),
            adapters: Vec::new(),
            samplers: Vec::new(),
            schedulers: Vec::new(),
            guidance_methods: Vec::new(),
            quants: Vec::new(),
        },
        required_components: vec![Role::Tokenizer, Role::TextEncoder],
    }
}

/// Adds the family's providers to a bundle.
pub fn register_providers(builder: ProviderRegistryBuilder) -> ProviderRegistryBuilder {
    builder.register_text_embedder(TypedEntry {
        descriptor: sentence_bert(),
        load: |descriptor, spec| {
            SentenceEmbedder::load(descriptor.clone(), spec).map(|model| Box::new(model) as Box<dyn TextEmbedder>)
        },
    })
}

/// The family's providers alone.
///
/// # Errors
/// Two ids are the same.
pub fn provider_registry() -> Result<ProviderRegistry> {
    register_providers(ProviderRegistryBuilder::new()).build()
}
