//! What a node type implements to be executed, and what it can ask of the run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{collections::BTreeMap, fmt};

use gen_core::CancelFlag;
use serde::{Deserialize, Serialize};

use crate::executor::{Event, Observer};
use crate::params::Params;
use crate::validate::ValidNode;
use crate::value::{Inputs, Outputs};

/// Why a node didn't give its outputs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The run was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// The node failed; the message is for the person who wrote the graph and holds no host path.
    #[error("{message}")]
    Failed {
        /// What went wrong and what to change.
        message: String,
        /// The input port that it is about.
        port: Option<String>,
    },
    /// The runner panicked; the panic hook has told the operator where.
    #[error("internal error in this node; the engine's log has the details")]
    Panicked,
}

impl NodeError {
    /// A failure.
    pub fn new(message: impl Into<String>) -> Self {
        Self::Failed { message: message.into(), port: None }
    }

    /// Names the input port that a failure is about.
    #[must_use]
    pub fn on_port(self, port: impl Into<String>) -> Self {
        match self {
            Self::Failed { message, .. } => Self::Failed { message, port: Some(port.into()) },
            other => other,
        }
    }
}

impl From<gen_core::Error> for NodeError {
    fn from(error: gen_core::Error) -> Self {
        match error {
            gen_core::Error::Cancelled => Self::Cancelled,
            other => Self::new(other.to_string()),
        }
    }
}

/// What a node is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Waiting for its turn.
    Queued,
    /// Reading inputs, working out a plan.
    Preparing,
    /// Reading weights.
    Loading,
    /// Encoding prompts or pictures.
    Encode,
    /// In the denoise loop.
    Sample,
    /// Decoding latents.
    Decode,
    /// Writing takes.
    Save,
}

impl Phase {
    /// The phase's name in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Preparing => "preparing",
            Self::Loading => "loading",
            Self::Encode => "encode",
            Self::Sample => "sample",
            Self::Decode => "decode",
            Self::Save => "save",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A progress report of one node. Report a phase before its slow work starts.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// What the node is doing.
    pub phase: Phase,
    /// How much of the whole node is done, 0 to 1. It never goes back: a lower figure is raised to the last one.
    pub fraction: f32,
    /// A few words for people.
    pub status: String,
    /// The step of the phase, 1-based.
    pub step: Option<u32>,
    /// The number of steps of the phase.
    pub step_count: Option<u32>,
    /// The estimated time to the node's end, in milliseconds.
    pub eta_ms: Option<u64>,
}

impl Progress {
    /// A report without steps.
    pub fn new(phase: Phase, fraction: f32, status: impl Into<String>) -> Self {
        Self { phase, fraction, status: status.into(), step: None, step_count: None, eta_ms: None }
    }

    /// Adds the step.
    #[must_use]
    pub fn step(mut self, step: u32, step_count: u32) -> Self {
        self.step = Some(step);
        self.step_count = Some(step_count);
        self
    }

    /// Adds the estimated time to the node's end.
    #[must_use]
    pub fn eta_ms(mut self, eta_ms: u64) -> Self {
        self.eta_ms = Some(eta_ms);
        self
    }
}

/// Executes the nodes of one type. Blocking; called from any thread, for several runs at a time.
pub trait NodeRunner: Send + Sync {
    /// Gives a value for every output port of the descriptor.
    ///
    /// Long work looks at [`NodeContext::cancel`] often and ends with [`NodeError::Cancelled`].
    ///
    /// # Errors
    /// A message that says what to change.
    fn run(&self, context: &NodeContext<'_>) -> Result<Outputs, NodeError>;
}

/// Runners by node type.
#[derive(Clone, Default)]
pub struct RunnerSet(BTreeMap<String, Arc<dyn NodeRunner>>);

impl RunnerSet {
    /// No runners.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the runner of a node type.
    pub fn insert(&mut self, node_type: impl Into<String>, runner: Arc<dyn NodeRunner>) {
        self.0.insert(node_type.into(), runner);
    }

    /// Sets the runner of a node type.
    #[must_use]
    pub fn with(mut self, node_type: impl Into<String>, runner: impl NodeRunner + 'static) -> Self {
        self.insert(node_type, Arc::new(runner));
        self
    }

    /// The runner of a node type.
    pub fn get(&self, node_type: &str) -> Option<&Arc<dyn NodeRunner>> {
        self.0.get(node_type)
    }
}

/// What a runner sees of the run.
pub struct NodeContext<'a> {
    node: &'a ValidNode,
    params: Params,
    inputs: Inputs,
    cancel: &'a CancelFlag,
    observer: &'a dyn Observer,
    // The bits of the last reported fraction; those of non-negative floats order as the floats do.
    fraction: AtomicU32,
}

impl<'a> NodeContext<'a> {
    /// A context for calling a runner directly, with random seeds already drawn in `params`.
    pub fn new(
        node: &'a ValidNode,
        params: Params,
        inputs: Inputs,
        cancel: &'a CancelFlag,
        observer: &'a dyn Observer,
    ) -> Self {
        Self { node, params, inputs, cancel, observer, fraction: AtomicU32::new(0) }
    }

    /// The node's id.
    pub fn node_id(&self) -> &str {
        self.node.id()
    }

    /// The node as validated.
    pub fn node(&self) -> &ValidNode {
        self.node
    }

    /// The params, defaults filled in and seeds drawn.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The values of the input ports.
    pub fn inputs(&self) -> &Inputs {
        &self.inputs
    }

    /// The run's cancel flag.
    pub fn cancel(&self) -> &CancelFlag {
        self.cancel
    }

    /// For use between pieces of work, with `?`.
    ///
    /// # Errors
    /// [`NodeError::Cancelled`] once the run is cancelled.
    pub fn check_cancelled(&self) -> Result<(), NodeError> {
        if self.cancel.is_cancelled() { Err(NodeError::Cancelled) } else { Ok(()) }
    }

    /// Reports progress.
    pub fn progress(&self, mut progress: Progress) {
        // False for NaN and -0 too.
        let fraction = if progress.fraction > 0.0 { progress.fraction.min(1.0) } else { 0.0 };
        let bits = fraction.to_bits();
        let last = self.fraction.fetch_max(bits, Ordering::Relaxed);
        progress.fraction = f32::from_bits(bits.max(last));
        self.observer.event(Event::Progress { node_id: self.node.id(), progress: &progress });
    }

    /// Reports progress without steps.
    pub fn phase(&self, phase: Phase, fraction: f32, status: impl Into<String>) {
        self.progress(Progress::new(phase, fraction, status));
    }

    /// Whether anyone looks at previews; when not, none need be made.
    pub fn wants_previews(&self) -> bool {
        self.observer.wants_previews()
    }

    /// Shows how the result looks so far.
    pub fn preview(&self, image: Arc<gen_core::Image>) {
        self.observer.event(Event::Preview { node_id: self.node.id(), image });
    }
}
