//! One forward pass for one or several jobs, each at its own sigma.

use crate::job::{SampleJob, StepReport};
use crate::sampler::Trajectory;
use gen_core::{CancelFlag, Conditioning, Error, Latents, Result, StepContext};
use std::sync::Arc;

/// A job under way.
pub(crate) struct Active {
    job: SampleJob,
    trajectory: Trajectory,
}

impl Active {
    /// # Errors
    /// The job has several rows, or sigmas that don't fall.
    pub(crate) fn new(mut job: SampleJob) -> Result<Self> {
        if job.latents.batch() != 1 {
            return Err(Error::Backend(format!("a job is one row, not {}", job.latents.batch())));
        }
        if job.mask.as_ref().is_some_and(|mask| mask.shape() != job.latents.shape()) {
            return Err(Error::Backend("the mask doesn't fit the latents".into()));
        }
        let none = Latents::new(vec![0], Vec::new())?;
        let latents = std::mem::replace(&mut job.latents, none);
        let trajectory = Trajectory::new(job.sampler, latents, Arc::clone(&job.sigmas), job.seed, job.drawn)?;
        Ok(Self { job, trajectory })
    }

    pub(crate) fn cancel(&self) -> &CancelFlag {
        &self.job.cancel
    }

    /// The sigma of the next prediction; `None` at the end.
    pub(crate) fn pending(&self) -> Option<f32> {
        self.trajectory.pending()
    }

    pub(crate) fn into_latents(self) -> Latents {
        self.trajectory.into_latents()
    }

    pub(crate) fn report(&self, preview: Option<Arc<Latents>>) -> StepReport {
        StepReport { step: self.trajectory.done(), steps: self.trajectory.steps(), preview }
    }

    /// Whether both can share forward passes.
    pub(crate) fn fits(&self, other: &Active) -> bool {
        self.job.model_key == other.job.model_key
            && self.trajectory.latents().shape() == other.trajectory.latents().shape()
    }

    /// Rows of the next forward pass: one, or two with guidance.
    pub(crate) fn rows(&self) -> usize {
        1 + usize::from(self.guide().is_some())
    }

    /// The negative prompt, if the next prediction is guided by it.
    fn guide(&self) -> Option<&Conditioning> {
        let sigma = self.pending()?;
        self.job.negative.as_ref().filter(|_| self.job.guidance.is_on_at(sigma))
    }

    /// Takes the predictions of its rows. Returns a report when a step has ended.
    fn advance(&mut self, mut velocity: Vec<f32>, negative: Option<Vec<f32>>) -> Result<Option<StepReport>> {
        if let Some(negative) = negative {
            self.job.guidance.apply(&mut velocity, &negative);
        }
        if let (Some(mask), Some(sigma)) = (&self.job.mask, self.pending()) {
            mask.hold(&mut velocity, self.trajectory.latents().data(), sigma);
        }
        if !velocity.iter().all(|v| v.is_finite()) {
            return Err(Error::NonFinite { stage: "denoiser", step: Some(self.trajectory.done() + 1) });
        }
        let preview = match self.job.previews {
            true => Some(Arc::new(self.trajectory.estimate(&velocity)?)),
            false => None,
        };
        let ended = self.trajectory.advance(&velocity)?;
        if let (Some(mask), None, Some(0.0)) = (&self.job.mask, self.pending(), self.job.sigmas.last()) {
            mask.restore(self.trajectory.latents_mut());
        }
        Ok(ended.then(|| self.report(preview)))
    }
}

/// Predicts the next velocity of every job, at most `max_rows` rows at once, and advances each. All jobs must be
/// pending and [fit](Active::fits) the first. The inner results are the jobs' own.
///
/// # Errors
/// What the denoiser gives, or cancelled; no job has moved then.
pub(crate) fn forward(
    jobs: &mut [&mut Active],
    max_rows: usize,
    cancel: &CancelFlag,
) -> Result<Vec<Result<Option<StepReport>>>> {
    let Some(first) = jobs.first() else { return Ok(Vec::new()) };
    let context = StepContext { cancel, step: first.trajectory.done() + 1 };
    let rows: Vec<(&Latents, f32, &Conditioning)> = jobs
        .iter()
        .flat_map(|job| {
            let prompts = std::iter::once(&job.job.positive).chain(job.guide());
            let sigma = job.pending().unwrap_or_default();
            prompts.map(move |prompt| (job.trajectory.latents(), sigma, prompt))
        })
        .collect();
    let mut predicted = Vec::with_capacity(rows.len());
    for rows in rows.chunks(max_rows.max(1)) {
        cancel.check()?;
        let latents: Vec<&Latents> = rows.iter().map(|(latents, _, _)| *latents).collect();
        let sigmas: Vec<f32> = rows.iter().map(|(_, sigma, _)| *sigma).collect();
        let prompts: Vec<&Conditioning> = rows.iter().map(|(_, _, prompt)| *prompt).collect();
        let batch = Latents::concat(&latents)?;
        let velocity = first.job.denoiser.predict_rows(&batch, &sigmas, &prompts, &context)?;
        if velocity.shape() != batch.shape() {
            let shapes = (velocity.shape(), batch.shape());
            return Err(Error::Backend(format!("the denoiser gave {:?} for {:?}", shapes.0, shapes.1)));
        }
        predicted.extend(velocity.data().chunks_exact(batch.row_len().max(1)).map(<[f32]>::to_vec));
    }
    let mut predicted = predicted.into_iter();
    let mut advance = |job: &mut &mut Active| {
        let guided = job.guide().is_some();
        let velocity = predicted.next().unwrap_or_default();
        let negative = if guided { predicted.next() } else { None };
        job.advance(velocity, negative)
    };
    Ok(jobs.iter_mut().map(&mut advance).collect())
}
