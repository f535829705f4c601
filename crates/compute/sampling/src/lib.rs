//! Schedules, samplers, guidance, seeded noise, the job seam, and the one denoise loop. No tensor library.
//!
//! [`pipeline::render`] turns a request into pictures with any model's components and any [`SampleService`]; a library
//! user meets it as [`DiffusionGenerator`], the engine calls it with components of its own.

mod batch;
mod forward;
mod generator;
mod guidance;
mod job;
mod mask;
mod noise;
pub mod pipeline;
mod preview;
mod resize;
mod sampler;
mod schedule;
mod start;

pub use batch::BatchingSampler;
pub use generator::DiffusionGenerator;
pub use guidance::Guidance;
pub use job::{InlineSampler, SampleJob, SampleService, StepReport};
pub use mask::{LatentMask, composite, lighter, mask_cells};
pub use noise::TorchRng;
pub use preview::{fit_preview, preview_image};
pub use resize::{cover, cover_mask};
pub use sampler::{SamplerKind, Trajectory};
pub use schedule::{ScheduleKind, Sigmas, first_step, sigmas};
pub use start::{Origin, Start, start};
