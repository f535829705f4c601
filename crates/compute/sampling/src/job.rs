//! The seam between those who want latents sampled and those who do it.

use crate::{Guidance, SamplerKind, Sigmas};
use gen_core::{CancelFlag, Conditioning, Denoiser, Error, Latents, Result, StepContext};
use std::sync::Arc;

/// One row of latents to be denoised. Plain data but for the denoiser, so it can be batched or sent elsewhere.
#[derive(Clone)]
pub struct SampleJob {
    /// The network.
    pub denoiser: Arc<dyn Denoiser>,
    /// Identity of the network with its adapters: only jobs of one key can share a batch.
    pub model_key: String,
    /// The noisy latents at `sigmas[0]`, one row.
    pub latents: Latents,
    /// The prompt.
    pub positive: Conditioning,
    /// The negative prompt, when guidance needs one.
    pub negative: Option<Conditioning>,
    /// How both are combined.
    pub guidance: Guidance,
    /// Noise levels, falling to 0.
    pub sigmas: Sigmas,
    /// How steps are taken.
    pub sampler: SamplerKind,
    /// Seed of any noise that the sampler adds.
    pub seed: u64,
    /// Whether reports should carry the estimate of the picture.
    pub previews: bool,
    /// Stops this job and no other.
    pub cancel: CancelFlag,
}

/// Progress of a job. Step 0 is reported before the first forward pass.
#[derive(Debug, Clone)]
pub struct StepReport {
    /// Steps done.
    pub step: usize,
    /// Steps in all.
    pub steps: usize,
    /// The model's estimate of the clean latents.
    pub preview: Option<Arc<Latents>>,
}

/// Samples latents. Implementations may run jobs at once, in batches, or in another process; a job's result is the
/// same bit for bit.
pub trait SampleService: Send + Sync {
    /// Runs a job to its end, calling `on_step` from the calling thread.
    ///
    /// # Errors
    /// [`Error::Cancelled`], [`Error::NonFinite`] with the step, or what the denoiser gives.
    fn sample(&self, job: SampleJob, on_step: &mut dyn FnMut(StepReport)) -> Result<Latents>;
}

/// Runs each job in the calling thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct InlineSampler;

impl SampleService for InlineSampler {
    fn sample(&self, job: SampleJob, on_step: &mut dyn FnMut(StepReport)) -> Result<Latents> {
        let SampleJob { mut latents, .. } = job;
        let steps = job.sigmas.len().saturating_sub(1);
        on_step(StepReport { step: 0, steps, preview: None });
        for (index, pair) in job.sigmas.windows(2).enumerate() {
            let (sigma, next) = (pair[0], pair[1]);
            job.cancel.check()?;
            let context = StepContext { cancel: &job.cancel, step: index + 1 };
            let mut velocity = job.denoiser.predict(&latents, sigma, &[&job.positive], &context)?;
            if let Some(negative) = job.negative.as_ref().filter(|_| job.guidance.is_on_at(sigma)) {
                job.cancel.check()?;
                let unconditional = job.denoiser.predict(&latents, sigma, &[negative], &context)?;
                job.guidance.apply(velocity.data_mut(), unconditional.data());
            }
            if !velocity.is_finite() {
                return Err(Error::NonFinite { stage: "denoiser", step: Some(index + 1) });
            }
            let preview = match job.previews {
                true => Some(Arc::new(clean_estimate(&latents, &velocity, sigma)?)),
                false => None,
            };
            job.sampler.step(latents.data_mut(), velocity.data(), sigma, next);
            on_step(StepReport { step: index + 1, steps, preview });
        }
        Ok(latents)
    }
}

/// Where a straight flow from here would end: `x - sigma * velocity`.
fn clean_estimate(latents: &Latents, velocity: &Latents, sigma: f32) -> Result<Latents> {
    let values = latents.data().iter().zip(velocity.data()).map(|(x, v)| x - sigma * v);
    Latents::new(latents.shape().to_vec(), values.collect())
}
