//! From the pipeline's progress to a node's.

use crate::host::HostedModel;
use engine_graph::{NodeContext, Phase, Progress as Report};
use gen_core::{Latents, Progress};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Share of a node's progress before the first step, and after the last.
const BEFORE_SAMPLING: f32 = 0.1;
const AFTER_SAMPLING: f32 = 0.9;
/// Previews of one node are made this often at most.
const PREVIEW_INTERVAL: Duration = Duration::from_millis(100);

/// Tells what the pipeline does in one node.
pub(crate) struct Reporter<'a> {
    context: &'a NodeContext<'a>,
    model: &'a HostedModel,
    sampling_since: Option<Instant>,
    previewed: Option<Instant>,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(context: &'a NodeContext<'a>, model: &'a HostedModel) -> Self {
        Self { context, model, sampling_since: None, previewed: None }
    }

    pub(crate) fn report(&mut self, progress: Progress) {
        let before = if self.sampling_since.is_some() { AFTER_SAMPLING } else { 0.0 };
        match progress {
            Progress::Loading(what) => self.context.phase(Phase::Loading, before + 0.01, format!("loading the {what}")),
            Progress::Encoding => self.context.phase(Phase::Encode, 0.05, "encoding"),
            Progress::Decoding => self.context.phase(Phase::Decode, 0.95, "decoding"),
            Progress::Step { current, total, preview } => {
                let since = *self.sampling_since.get_or_insert_with(Instant::now);
                let done = current as f32 / total.max(1) as f32;
                let fraction = BEFORE_SAMPLING + (AFTER_SAMPLING - BEFORE_SAMPLING) * done;
                let status = format!("step {current} of {total}");
                let mut report = Report::new(Phase::Sample, fraction, status).step(current as u32, total as u32);
                if current > 0 {
                    let left = since.elapsed().mul_f32((total - current) as f32 / current as f32);
                    report = report.eta_ms(left.as_millis() as u64);
                }
                self.context.progress(report);
                if let Some(latents) = preview {
                    self.preview(&latents);
                }
            }
        }
    }

    fn preview(&mut self, latents: &Latents) {
        let now = Instant::now();
        let too_soon = self.previewed.is_some_and(|last| now - last < PREVIEW_INTERVAL);
        if too_soon || !self.context.wants_previews() {
            return;
        }
        self.previewed = Some(now);
        if let Some(image) = self.model.preview(latents, self.context.cancel()) {
            self.context.preview(Arc::new(image));
        }
    }
}
