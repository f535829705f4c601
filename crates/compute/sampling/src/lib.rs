//! Schedules, samplers, guidance, seeded noise, the job seam, and the one denoise loop. No tensor library.
//!
//! [`pipeline::render`] turns a request into pictures with any model's components and any [`SampleService`]; a library
//! user meets it as [`DiffusionGenerator`], the engine calls it with components of its own.

mod batch;
mod forward;
mod generator;
mod guidance;
mod job;
mod noise;
pub mod pipeline;
mod resize;
mod sampler;
mod schedule;

pub use batch::BatchingSampler;
pub use generator::DiffusionGenerator;
pub use guidance::Guidance;
pub use job::{InlineSampler, SampleJob, SampleService, StepReport};
pub use noise::TorchRng;
pub use resize::cover;
pub use sampler::{SamplerKind, Trajectory};
pub use schedule::{ScheduleKind, Sigmas, first_step, sigmas};
