//! The runner of every node that makes pictures: it lowers params to a request and lets the pipeline do the rest.

use crate::families::{ImageNode, Origin};
use crate::host::{HostedModel, ModelHost};
use crate::library::ModelLibrary;
use crate::{demo, scrub};
use engine_graph::{NodeContext, NodeError, NodeRunner, Outputs, Params, Phase, Progress as Report, Value};
use gen_core::{
    CancelFlag, ConditioningInput, Denoiser, GenerationRequest, Image, LoadSpec, Progress, Result, Role, TextEncoder,
    Vae,
};
use sampling::SampleService;
use sampling::pipeline::{self, Components};
use serde_json::{Map, Value as Json, json};
use std::sync::Arc;
use std::time::Instant;

/// Share of a node's progress before the first step, and after the last.
const BEFORE_SAMPLING: f32 = 0.1;
const AFTER_SAMPLING: f32 = 0.9;

pub(crate) struct ImageRunner {
    pub(crate) node: &'static ImageNode,
    pub(crate) host: Arc<ModelHost>,
    pub(crate) library: Arc<ModelLibrary>,
    pub(crate) sampler: Arc<dyn SampleService>,
}

/// A model that a node will run, opened and placed.
pub(crate) struct Chosen {
    pub(crate) model: Arc<HostedModel>,
    name: String,
}

impl ImageRunner {
    /// The model that these params mean. Reads headers only.
    pub(crate) fn choose(&self, params: &Params) -> std::result::Result<Chosen, NodeError> {
        let (spec, name) = match self.node.origin {
            Origin::Demo => (LoadSpec::new(demo::source()), demo::NAME.to_owned()),
            Origin::Library(parts) => {
                let choice = self.library.choose(&parts, params.text("model")?)?;
                (choice.spec, choice.name)
            }
        };
        let model = self.host.open(self.node.generator, spec).map_err(|e| scrub(e, self.library.dir()))?;
        Ok(Chosen { model, name })
    }

    fn request(&self, context: &NodeContext<'_>) -> std::result::Result<GenerationRequest, NodeError> {
        let params = context.params();
        let strength = params.float("strength")? as f32;
        let picture = context.inputs().optional::<Image>("image")?;
        Ok(GenerationRequest {
            prompt: context.inputs().text("prompt")?.to_owned(),
            negative_prompt: params.text("negative_prompt")?.to_owned(),
            width: params.count("width")?,
            height: params.count("height")?,
            seed: params.seed("seed")?,
            steps: Some(params.count("steps")?),
            true_cfg: Some(params.float("guidance")? as f32),
            conditioning: picture.map(|image| ConditioningInput::Reference { image, strength }).into_iter().collect(),
            previews: context.wants_previews(),
            cancel: context.cancel().clone(),
            ..GenerationRequest::default()
        })
    }

    /// What a take must hold to be rendered again, beside the node's params.
    fn record(&self, chosen: &Chosen, request: &GenerationRequest, plan: &pipeline::Plan) -> Map<String, Json> {
        let model = chosen.model.model();
        let placement = chosen.model.plan().placement(Role::Denoiser);
        let quant = placement.quant.map(|q| json!(q));
        let Json::Object(record) = json!({
            "prompt": request.prompt,
            "generator": self.node.generator,
            "checkpoint": { "name": chosen.name, "hash": model.fingerprint() },
            "sampler": plan.sampler.as_str(),
            "scheduler": plan.scheduler,
            "sigmas": plan.sigmas.to_vec(),
            "adapters": [],
            "dtype": placement.dtype.to_string(),
            "quantization": quant,
            "engineVersion": env!("CARGO_PKG_VERSION"),
        }) else {
            return Map::new();
        };
        record
    }
}

impl NodeRunner for ImageRunner {
    fn run(&self, context: &NodeContext<'_>) -> std::result::Result<Outputs, NodeError> {
        context.phase(Phase::Preparing, 0.0, "opening the model");
        let chosen = self.choose(context.params())?;
        let request = self.request(context)?;
        let model = chosen.model.model();
        let plan = pipeline::plan(model.descriptor(), model.recipe(), &request)?;
        let components = Hosted { model: &chosen.model, cancel: &request.cancel };
        let mut reporter = Reporter { context, model: &chosen.model, sampling_since: None };
        let images = pipeline::render(
            model.descriptor(),
            model.recipe(),
            &components,
            &*self.sampler,
            &request,
            &mut |progress| reporter.report(progress),
        );
        let images = images.map_err(|e| scrub(e, self.library.dir()))?;
        let image = images.into_iter().next().ok_or_else(|| NodeError::new("the model gave no picture"))?;
        let outputs = Outputs::of("image", Value::image(image));
        let record = self.record(&chosen, &request, &plan);
        Ok(record.into_iter().fold(outputs, |outputs, (key, value)| outputs.recording(key, value)))
    }
}

/// A hosted model's components for one run, whose cancel flag also stops loads.
struct Hosted<'a> {
    model: &'a Arc<HostedModel>,
    cancel: &'a CancelFlag,
}

impl Components for Hosted<'_> {
    fn text_encoder(&self) -> Result<Arc<dyn TextEncoder>> {
        Ok(self.model.text_encoder())
    }

    fn denoiser(&self) -> Result<Arc<dyn Denoiser>> {
        self.model.denoiser(self.cancel)
    }

    fn vae(&self) -> Result<Arc<dyn Vae>> {
        self.model.vae(self.cancel)
    }

    fn release(&self, role: Role) {
        self.model.release(role);
    }

    fn model_key(&self) -> String {
        self.model.key().to_owned()
    }
}

/// Turns the pipeline's progress into the node's.
struct Reporter<'a> {
    context: &'a NodeContext<'a>,
    model: &'a HostedModel,
    sampling_since: Option<Instant>,
}

impl Reporter<'_> {
    fn report(&mut self, progress: Progress) {
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
                if let Some(image) = preview.and_then(|latents| self.model.preview(&latents)) {
                    self.context.preview(Arc::new(image));
                }
            }
        }
    }
}
