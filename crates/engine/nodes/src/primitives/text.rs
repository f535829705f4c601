//! `encode/text`: a prompt for the diffusion model.

use super::Loaded;
use crate::scrub;
use engine_graph::{NodeContext, NodeError, NodeRunner, Outputs, Phase, PortKind, Value};
use gen_core::Role;
use std::path::PathBuf;

pub(crate) struct EncodeText {
    pub(crate) models_dir: PathBuf,
}

impl NodeRunner for EncodeText {
    fn run(&self, context: &NodeContext<'_>) -> Result<Outputs, NodeError> {
        let loaded = context.inputs().object::<Loaded>("text_encoder")?;
        let prompt = context.inputs().text("prompt")?;
        context.phase(Phase::Loading, 0.0, "loading the text encoder");
        let encoder = loaded.model.text_encoder();
        context.phase(Phase::Encode, 0.1, "encoding");
        let conditioning = encoder.encode(prompt, context.cancel());
        loaded.model.release(Role::TextEncoder);
        let conditioning = conditioning.map_err(|e| scrub(e, &self.models_dir))?;
        let value = Value::object(PortKind::Conditioning, conditioning);
        Ok(Outputs::of("conditioning", value).recording("prompt", prompt))
    }
}
