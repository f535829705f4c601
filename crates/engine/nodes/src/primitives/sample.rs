//! `sample`: latents through the denoise loop.

use super::Loaded;
use super::latent::{Content, Kept, Latent};
use crate::image_node::sampling_record;
use crate::reporter::Reporter;
use crate::scrub;
use engine_graph::{NodeContext, NodeError, NodeRunner, Outputs};
use gen_core::{Conditioning, GenerationRequest, Image, Latents, Progress, Role};
use sampling::pipeline::{self, Network, Plan};
use sampling::{Origin, SampleService, Start, cover_mask, lighter, start};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) struct Sample {
    pub(crate) sampler: Arc<dyn SampleService>,
    pub(crate) models_dir: PathBuf,
}

impl Sample {
    /// The settings as a model node would have them.
    fn request(context: &NodeContext<'_>, latent: &Latent) -> Result<GenerationRequest, NodeError> {
        let params = context.params();
        let count = match &latent.content {
            Content::Empty(rows) => *rows,
            Content::Picture(..) => 1,
            Content::Rows(rows) => rows.len() as u32,
        };
        let shift = params.float("shift")? as f32;
        Ok(GenerationRequest {
            width: latent.size.0,
            height: latent.size.1,
            count,
            seed: params.seed("seed")?,
            steps: Some(params.count("steps")?),
            true_cfg: Some(params.float("cfg")? as f32),
            sampler: Some(params.text("sampler")?.to_owned()),
            scheduler: Some(params.text("scheduler")?.to_owned()),
            scheduler_shift: (shift > 0.0).then_some(shift),
            previews: true,
            cancel: context.cancel().clone(),
            ..GenerationRequest::default()
        })
    }

    fn plan(
        &self,
        context: &NodeContext<'_>,
        model: &Loaded,
        latent: &Latent,
        request: &GenerationRequest,
    ) -> Result<Plan, NodeError> {
        let opened = model.model.model();
        let plan = pipeline::plan(opened.descriptor(), opened.recipe(), request)?;
        let strength = context.params().float("strength")? as f32;
        match latent.content {
            Content::Empty(_) if strength < 1.0 => Err(NodeError::new(
                "strength below 1 keeps a part of a picture, and this latent is empty; set it to 1, or wire a picture through vae/encode",
            )
            .on_port("latent")),
            Content::Empty(_) => Ok(plan),
            _ => Ok(plan.from_picture(strength)),
        }
    }

    fn run_jobs(
        &self,
        model: &Loaded,
        plan: &Plan,
        request: &GenerationRequest,
        prompts: &(Conditioning, Option<Conditioning>),
        (starts, mask): (Vec<Start>, Option<&Image>),
        progress: &mut dyn FnMut(Progress),
    ) -> gen_core::Result<Vec<Latents>> {
        if plan.run_steps() == 0 {
            return Ok(starts.into_iter().map(|start| start.latents).collect());
        }
        progress(Progress::Loading("diffusion model"));
        let network =
            Network { denoiser: model.model.denoiser(&request.cancel)?, model_key: model.model.network_key() };
        let job = |(start, seed): (Start, &u64)| {
            let watch = (request.previews, request.cancel.clone());
            network.job(plan, start, *seed, prompts.clone(), mask, watch)
        };
        let jobs = starts.into_iter().zip(&plan.seeds).map(job).collect::<gen_core::Result<Vec<_>>>()?;
        pipeline::sample(&*self.sampler, jobs, plan.run_steps(), progress)
    }
}

impl NodeRunner for Sample {
    fn run(&self, context: &NodeContext<'_>) -> Result<Outputs, NodeError> {
        let inputs = context.inputs();
        let model = inputs.object::<Loaded>("model")?;
        let latent = inputs.object::<Latent>("latent")?;
        let request = Self::request(context, &latent)?;
        let plan = self.plan(context, &model, &latent, &request)?;
        let positive = inputs.object::<Conditioning>("positive")?;
        let negative = inputs.optional::<Conditioning>("negative")?;
        if plan.guidance.is_on() && negative.is_none() {
            let message = "guidance needs something to lead away from: wire encode/text here (an empty prompt will do), or set cfg to 0";
            return Err(NodeError::new(message).on_port("negative"));
        }
        let negative = negative.filter(|_| plan.guidance.is_on());
        let prompts = (Conditioning::clone(&positive), negative.as_deref().cloned());
        let failed = |e| scrub(e, &self.models_dir);
        let (width, height) = latent.size;
        let mask = inputs.optional::<Image>("mask")?;
        let mask = mask.map(|mask| cover_mask(&mask, width, height)).transpose().map_err(failed)?;
        let shape = pipeline::latent_shape(model.model.model().recipe(), width, height);
        let begin = |(index, seed): (usize, &u64)| {
            let origin = match &latent.content {
                Content::Empty(_) => Origin::Noise,
                Content::Picture(picture, _) => Origin::Picture(picture),
                Content::Rows(rows) => rows.get(index).map_or(Origin::Noise, Origin::Latents),
            };
            start(&shape, plan.first_sigma(), origin, *seed)
        };
        let starts = plan.seeds.iter().enumerate().map(begin).collect::<gen_core::Result<Vec<_>>>();
        let starts = starts.map_err(failed)?;
        let mut reporter = Reporter::new(context, &model.model);
        let report = &mut |progress| reporter.report(progress);
        let rows = self.run_jobs(&model, &plan, &request, &prompts, (starts, mask.as_ref()), report);
        model.model.release(Role::Denoiser);
        let rows = rows.map_err(failed)?;

        let mut record = latent.record.clone();
        record.extend(sampling_record(&model.model, &model.name, &plan));
        record.insert("seed".to_owned(), json!(request.seed));
        record.insert("steps".to_owned(), json!(plan.steps));
        record.insert("cfg".to_owned(), json!(plan.guidance.scale));
        record.insert("width".to_owned(), json!(width));
        record.insert("height".to_owned(), json!(height));
        record.insert("strength".to_owned(), json!(plan.strength));
        let kept = kept(&latent, mask).map_err(failed)?;
        Ok(Latent { size: latent.size, content: Content::Rows(rows), kept, record }.into_outputs())
    }
}

/// What of a picture stays after sampling with `mask`: what it keeps, and what was kept before and it keeps, too.
fn kept(latent: &Latent, mask: Option<Image>) -> gen_core::Result<Option<Kept>> {
    let Some(mask) = mask else { return Ok(None) };
    match (&latent.content, &latent.kept) {
        (Content::Picture(_, picture), _) => Ok(Some(Kept { picture: Arc::clone(picture), mask: Arc::new(mask) })),
        (_, Some(kept)) => {
            let mask = Arc::new(lighter(&kept.mask, &mask)?);
            Ok(Some(Kept { picture: Arc::clone(&kept.picture), mask }))
        }
        _ => Ok(None),
    }
}
