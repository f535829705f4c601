//! `load/*`: opens one component. Weights are read when a node first uses them.

use crate::host::{HostedModel, ModelHost};
use crate::library::{ComponentKind, FamilyParts, ModelLibrary};
use crate::{demo, scrub};
use engine_graph::{NodeContext, NodeError, NodeRunner, Outputs, Params, Phase, PortKind, Value};
use gen_core::{LoadSpec, Role};
use std::sync::Arc;

/// What a `model`, `vae` or `text-encoder` port carries.
pub(crate) struct Loaded {
    /// The opened component.
    pub(crate) model: Arc<HostedModel>,
    /// Its file's name, for takes.
    pub(crate) name: String,
}

pub(crate) struct Loader {
    pub(crate) host: Arc<ModelHost>,
    pub(crate) library: Arc<ModelLibrary>,
    /// Families with the generators that open them.
    pub(crate) families: Vec<(FamilyParts, &'static str)>,
    pub(crate) role: Role,
    pub(crate) category: &'static str,
    pub(crate) port: &'static str,
    pub(crate) kind: PortKind,
    pub(crate) what: &'static str,
}

impl Loader {
    /// The component that these params mean. Reads headers only.
    pub(crate) fn open(&self, params: &Params) -> Result<Loaded, NodeError> {
        let file = params.text("file")?;
        let (spec, name, generator) = if file == demo::NAME {
            (LoadSpec::new(demo::source()).with_only(self.role), demo::NAME.to_owned(), demo::GENERATOR)
        } else {
            let families: Vec<FamilyParts> = self.families.iter().map(|(parts, _)| *parts).collect();
            let wanted =
                ComponentKind { role: self.role, category: self.category, what: self.what, families: &families };
            let (choice, parts) = self.library.component(&wanted, file)?;
            let generator = self.families.iter().find(|(known, _)| known.family == parts.family);
            let (_, generator) = generator
                .ok_or_else(|| NodeError::new(format!("this build can't run the {} {}", parts.title, self.what)))?;
            (choice.spec, choice.name, *generator)
        };
        let model = self.host.open(generator, spec).map_err(|e| scrub(e, self.library.dir()))?;
        Ok(Loaded { model, name })
    }
}

impl NodeRunner for Loader {
    fn run(&self, context: &NodeContext<'_>) -> Result<Outputs, NodeError> {
        context.phase(Phase::Preparing, 0.0, format!("opening the {}", self.what));
        Ok(Outputs::of(self.port, Value::object(self.kind, self.open(context.params())?)))
    }
}
