//! The seam between those who want latents sampled and those who do it.

use crate::forward::{Active, forward};
use crate::{Guidance, LatentMask, SamplerKind, Sigmas};
use gen_core::{CancelFlag, Conditioning, Denoiser, Latents, Result};
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
    /// Tensors of the latents' shape that the seed's generator has given before: 1 when the latents are its noise, 2
    /// when they were also made from a picture. A stochastic sampler's noise comes after them, as in diffusers, where
    /// one generator serves a whole render; noise that was in the latents already would stay in the picture.
    pub drawn: usize,
    /// What of a picture is held while the rest is sampled.
    pub mask: Option<Arc<LatentMask>>,
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
    /// [`gen_core::Error::Cancelled`], [`gen_core::Error::NonFinite`] with the step, or what the denoiser gives.
    fn sample(&self, job: SampleJob, on_step: &mut dyn FnMut(StepReport)) -> Result<Latents>;

    /// Runs several jobs, in any order or together; `on_step` gets a job's index. The first error ends them all.
    ///
    /// # Errors
    /// As [`Self::sample`].
    fn sample_all(&self, jobs: Vec<SampleJob>, on_step: &mut dyn FnMut(usize, StepReport)) -> Result<Vec<Latents>> {
        let one = |(index, job)| self.sample(job, &mut |report| on_step(index, report));
        jobs.into_iter().enumerate().map(one).collect()
    }
}

/// Runs each job in the calling thread, row by row.
#[derive(Debug, Clone, Copy, Default)]
pub struct InlineSampler;

impl SampleService for InlineSampler {
    fn sample(&self, job: SampleJob, on_step: &mut dyn FnMut(StepReport)) -> Result<Latents> {
        let mut active = Active::new(job)?;
        on_step(active.report(None));
        while active.pending().is_some() {
            let cancel = active.cancel().clone();
            for outcome in forward(&mut [&mut active], 1, &cancel)? {
                if let Some(report) = outcome? {
                    on_step(report);
                }
            }
        }
        Ok(active.into_latents())
    }
}
