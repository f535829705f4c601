//! The runner of every node that makes pictures: it lowers params to a request and lets the pipeline do the rest.

use crate::families::{ImageNode, Origin};
use crate::host::{HostedModel, ModelHost};
use crate::library::ModelLibrary;
use crate::reporter::Reporter;
use crate::{demo, scrub};
use engine_graph::{NodeContext, NodeError, NodeRunner, Outputs, Params, Phase, Value};
use gen_core::{
    CancelFlag, ConditioningInput, Denoiser, GenerationRequest, Image, LoadSpec, Result, Role, TextEncoder, Vae,
};
use sampling::SampleService;
use sampling::pipeline::{self, Components};
use serde_json::{Map, Value as Json, json};
use std::sync::Arc;

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
        let picture = picture.map(|image| ConditioningInput::Reference { image, strength });
        let mask = context.inputs().optional::<Image>("mask")?.map(ConditioningInput::Mask);
        Ok(GenerationRequest {
            prompt: context.inputs().text("prompt")?.to_owned(),
            negative_prompt: params.text("negative_prompt")?.to_owned(),
            width: params.count("width")?,
            height: params.count("height")?,
            seed: params.seed("seed")?,
            steps: Some(params.count("steps")?),
            true_cfg: Some(params.float("guidance")? as f32),
            conditioning: picture.into_iter().chain(mask).collect(),
            // Somebody may begin to watch at any step.
            previews: true,
            cancel: context.cancel().clone(),
            ..GenerationRequest::default()
        })
    }

    /// What a take must hold to be rendered again, beside the node's params.
    fn record(&self, chosen: &Chosen, request: &GenerationRequest, plan: &pipeline::Plan) -> Map<String, Json> {
        let mut record = sampling_record(&chosen.model, &chosen.name, plan);
        record.insert("prompt".to_owned(), json!(request.prompt));
        record.insert("generator".to_owned(), json!(self.node.generator));
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
        let mut reporter = Reporter::new(context, &chosen.model);
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

/// What was used to sample, as takes record it.
pub(crate) fn sampling_record(model: &HostedModel, name: &str, plan: &pipeline::Plan) -> Map<String, Json> {
    let placement = model.plan().placement(Role::Denoiser);
    let record = json!({
        "checkpoint": { "name": name, "hash": model.model().fingerprint() },
        "sampler": plan.sampler.as_str(),
        "scheduler": plan.scheduler,
        "sigmas": plan.sigmas.to_vec(),
        "adapters": [],
        "dtype": placement.dtype.to_string(),
        "quantization": placement.quant.map(|q| json!(q)),
        "engineVersion": env!("CARGO_PKG_VERSION"),
    });
    match record {
        Json::Object(record) => record,
        _ => Map::new(),
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
        self.model.network_key()
    }
}
