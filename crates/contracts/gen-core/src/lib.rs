//! The media contract of the inference runtime.
//!
//! Everything that a product, a provider and the engine agree on lives here: requests and results, the
//! components that a generator is made of, model descriptors, and the registry that a bundle composes.
//! There is no tensor library below this crate; pictures are packed RGB bytes and latents are host `f32`.
//! All traits are object-safe, blocking and `Send + Sync`.

mod component;
mod descriptor;
mod generator;
mod load;
mod media;
mod progress;
mod registry;
mod request;

pub use component::{
    Conditioning, Denoiser, DiffusionModel, DiffusionRecipe, GuidanceRecipe, LatentDistribution, Latents, LoadContext,
    PreviewProjection, ScheduleRecipe, StepContext, TextEncoder, Vae,
};
pub use descriptor::{
    AdapterKind, Capabilities, ConditioningKind, KNOWN_GUIDANCE_METHODS, KNOWN_SAMPLERS, KNOWN_SCHEDULERS, Modality,
    ModelDescriptor, ProviderKind, SizeRule,
};
pub use generator::{
    CaptionRequest, Captioner, Generator, ImageEmbedder, TextEmbedder, TrainRequest, Trainer, TrainingOutput,
    Transform, TransformRequest,
};
pub use load::{AdapterSpec, ComponentFootprint, Footprint, LoadSpec};
pub use media::{AudioTrack, GenerationOutput};
pub use progress::Progress;
pub use registry::{GeneratorEntry, ProviderRegistry, ProviderRegistryBuilder, TypedEntry};
pub use request::{ConditioningInput, ControlKind, GenerationRequest};
pub use runtime_base::{
    CancelFlag, DescriptorProblem, Error, Image, OffloadPolicy, Precision, Quant, Result, Role, WeightsSource,
};
