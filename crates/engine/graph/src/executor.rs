//! Runs a validated graph: finds out what needs running, runs it in order, and tells what happens.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use gen_core::CancelFlag;

use crate::descriptor::PortDescriptor;
use crate::key::{ContentHasher, Contents, NoContents, NodeKey, node_keys};
use crate::kind::MediaKind;
use crate::params::Params;
use crate::runner::{NodeContext, NodeError, NodeRunner, Phase, Progress, RunnerSet};
use crate::validate::{ValidGraph, ValidNode};
use crate::value::{Inputs, Outputs, Value};

/// Something that happened in a run.
#[derive(Debug)]
pub enum Event<'a> {
    /// The node begins to run.
    Started {
        /// The node.
        node_id: &'a str,
    },
    /// The node reports progress.
    Progress {
        /// The node.
        node_id: &'a str,
        /// The report, its fraction from 0 to 1 and never going back.
        progress: &'a Progress,
    },
    /// How the node's result looks so far; only when [`Observer::wants_previews`].
    Preview {
        /// The node.
        node_id: &'a str,
        /// A small picture.
        image: Arc<gen_core::Image>,
    },
    /// The node's outputs are there and saved.
    Done {
        /// The node.
        node_id: &'a str,
        /// Whether nothing had to run.
        cached: bool,
    },
    /// The node failed, and with it the run.
    Failed {
        /// The node.
        node_id: &'a str,
        /// Why.
        error: &'a NodeError,
    },
}

/// Gets the events of a run, in order, from the thread that executes it and from those that its runners use.
pub trait Observer: Send + Sync {
    /// Takes one event. Should be quick: the run waits.
    fn event(&self, event: Event<'_>);

    /// Whether previews are worth making at this moment.
    fn wants_previews(&self) -> bool {
        false
    }
}

/// A node's outputs, on their way to become takes.
#[derive(Debug)]
pub struct NodeOutput<'a> {
    /// The node.
    pub node: &'a ValidNode,
    /// Its params with the seeds that were drawn.
    pub params: &'a Params,
    /// What it gave, with its record.
    pub outputs: &'a Outputs,
    /// Its cache key, if it has one.
    pub key: Option<&'a NodeKey>,
    /// Whether the outputs come from the cache.
    pub cached: bool,
    /// The random seeds that this run has drawn so far, by node id and param.
    pub drawn: &'a [DrawnSeed],
}

/// A random seed that a run drew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrawnSeed {
    /// The node.
    pub node_id: String,
    /// The param.
    pub param: String,
    /// The seed.
    pub seed: u64,
}

impl<'a> NodeOutput<'a> {
    /// What becomes takes: the port, kind and value of each picture, video and sound on the output ports, in port
    /// order, lists item by item; what is on two ports comes once.
    pub fn takes(&self) -> impl Iterator<Item = (&'a str, MediaKind, &'a Value)> + use<'a> {
        let outputs = self.outputs;
        let mut seen: Vec<&Value> = Vec::new();
        let all = self.node.descriptor().outputs.iter().flat_map(move |port| {
            let kind = port.kind.take_kind();
            let items = outputs.get(&port.id).map_or(&[][..], Value::items);
            kind.into_iter().flat_map(move |kind| items.iter().map(move |item| (port.id.as_str(), kind, item)))
        });
        // The first of several pictures also has a port of its own.
        all.filter(move |(_, _, item)| {
            let is_new = !seen.iter().any(|seen| seen.is_same(item));
            seen.push(item);
            is_new
        })
    }
}

/// Saves the outputs of nodes that have an output kind, before the node counts as done.
pub trait OutputSink: Send + Sync {
    /// Makes takes of the media on the node's output ports.
    ///
    /// # Errors
    /// They couldn't be saved: the node fails with it.
    fn save(&self, output: &NodeOutput<'_>) -> Result<(), NodeError>;
}

/// Keeps node outputs by key. An implementation keeps what it can: handles only in memory, media on disk too.
pub trait NodeCache: Send + Sync {
    /// The outputs kept under the key.
    fn get(&self, key: &NodeKey, node: &ValidNode) -> Option<Arc<Outputs>>;

    /// Offers outputs.
    fn put(&self, key: &NodeKey, node: &ValidNode, outputs: &Arc<Outputs>);
}

/// Hears, saves and keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ignore;

impl Observer for Ignore {
    fn event(&self, _: Event<'_>) {}
}

impl OutputSink for Ignore {
    fn save(&self, _: &NodeOutput<'_>) -> Result<(), NodeError> {
        Ok(())
    }
}

impl NodeCache for Ignore {
    fn get(&self, _: &NodeKey, _: &ValidNode) -> Option<Arc<Outputs>> {
        None
    }

    fn put(&self, _: &NodeKey, _: &ValidNode, _: &Arc<Outputs>) {}
}

/// How a run ended without its target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// A node failed.
    #[error("node {node_id:?}: {error}")]
    Node {
        /// The node.
        node_id: String,
        /// Why.
        error: NodeError,
    },
}

/// What a run gave.
#[derive(Clone, Debug)]
pub struct RunOutcome {
    /// The target's outputs.
    pub target: Arc<Outputs>,
    /// How many nodes ran; the others came from the cache or weren't needed, because what reads them did.
    pub executed: usize,
}

/// A seed from the operating system's randomness, from 0 to 2^53-1 so that every JSON reader keeps it exactly.
pub fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // Each RandomState has keys of its own, drawn from the operating system.
    RandomState::new().hash_one(std::time::SystemTime::now()) >> 11
}

/// Everything that a run needs around its graph.
pub struct Execution<'a> {
    runners: &'a RunnerSet,
    cache: &'a dyn NodeCache,
    hasher: &'a dyn ContentHasher,
    observer: &'a dyn Observer,
    sink: &'a dyn OutputSink,
    draw_seed: &'a (dyn Fn() -> u64 + Sync),
    cancel: CancelFlag,
}

impl<'a> Execution<'a> {
    /// A run with these runners that nobody watches, without cache, that can't be cancelled.
    pub fn new(runners: &'a RunnerSet) -> Self {
        Self {
            runners,
            cache: &Ignore,
            hasher: &NoContents,
            observer: &Ignore,
            sink: &Ignore,
            draw_seed: &random_seed,
            cancel: CancelFlag::new(),
        }
    }

    /// Keeps and finds outputs in `cache`, under keys with the contents that `hasher` adds.
    #[must_use]
    pub fn cache(mut self, cache: &'a dyn NodeCache, hasher: &'a dyn ContentHasher) -> Self {
        self.cache = cache;
        self.hasher = hasher;
        self
    }

    /// Sends events to `observer`.
    #[must_use]
    pub fn observer(mut self, observer: &'a dyn Observer) -> Self {
        self.observer = observer;
        self
    }

    /// Saves outputs with `sink`.
    #[must_use]
    pub fn sink(mut self, sink: &'a dyn OutputSink) -> Self {
        self.sink = sink;
        self
    }

    /// Draws random seeds with `draw`; they are cut to 53 bits.
    #[must_use]
    pub fn seeds(mut self, draw: &'a (dyn Fn() -> u64 + Sync)) -> Self {
        self.draw_seed = draw;
        self
    }

    /// Stops when `cancel` is set.
    #[must_use]
    pub fn cancel(mut self, cancel: CancelFlag) -> Self {
        self.cancel = cancel;
        self
    }

    /// Executes the graph. Only what the target needs and the cache doesn't hold is run; two nodes with one key run
    /// once. Outputs are freed as soon as nothing that is still to run reads them.
    ///
    /// # Errors
    /// The node that failed, or that the run was cancelled.
    pub fn run(&self, graph: &ValidGraph) -> Result<RunOutcome, RunError> {
        let hasher = CancellableHasher { hasher: self.hasher, cancel: &self.cancel };
        let keys = node_keys(graph, &hasher).map_err(|(index, error)| self.fail(&graph.nodes()[index], error))?;
        let mut plan = self.plan(graph, keys)?;
        let executed = plan.steps.iter().filter(|step| matches!(step, Step::Run)).count();
        let mut values = Values::new(graph, &plan);
        let mut drawn = Vec::new();
        for (index, node) in graph.nodes().iter().enumerate() {
            self.check_cancelled()?;
            let step = std::mem::replace(&mut plan.steps[index], Step::Skip);
            let outputs = self
                .step(node, step, plan.keys[index].as_ref(), &mut values, &mut drawn)
                .map_err(|error| self.fail(node, error))?;
            values.put(index, outputs);
        }
        let target = values.read(graph.nodes().len() - 1);
        Ok(RunOutcome { target, executed })
    }

    /// Decides from the target upwards what each node needs. Fails before anything has run when a runner is missing.
    fn plan(&self, graph: &ValidGraph, keys: Vec<Option<NodeKey>>) -> Result<Plan, RunError> {
        let nodes = graph.nodes();
        let mut first: HashMap<NodeKey, usize> = HashMap::new();
        for (index, key) in keys.iter().enumerate() {
            if let Some(key) = key {
                first.entry(*key).or_insert(index);
            }
        }
        let mut needed = vec![false; nodes.len()];
        needed[nodes.len() - 1] = true;
        let mut steps = Vec::with_capacity(nodes.len());
        for (index, node) in nodes.iter().enumerate().rev() {
            self.check_cancelled()?;
            let step = if !needed[index] {
                Step::Skip
            } else if let Some(outputs) = self.cached(keys[index].as_ref(), node) {
                Step::Cached(outputs)
            } else if let Some(twin) = keys[index].map(|key| first[&key]).filter(|&twin| twin < index) {
                needed[twin] = true;
                Step::SameAs(twin)
            } else {
                node.sources().for_each(|source| needed[source.node] = true);
                Step::Run
            };
            steps.push(step);
        }
        steps.reverse();
        for (node, step) in nodes.iter().zip(&steps) {
            if matches!(step, Step::Run) {
                self.runner(node).map_err(|error| self.fail(node, error))?;
            }
        }
        Ok(Plan { steps, keys })
    }

    fn step(
        &self,
        node: &ValidNode,
        step: Step,
        key: Option<&NodeKey>,
        values: &mut Values,
        drawn: &mut Vec<DrawnSeed>,
    ) -> Result<Option<Arc<Outputs>>, NodeError> {
        let outputs = match step {
            Step::Run => return self.run_node(node, key, values, drawn).map(Some),
            Step::Cached(outputs) => Some(outputs),
            Step::SameAs(twin) => Some(values.read(twin)),
            // A reader came from the cache. What makes takes is shown all the same if the cache still holds it.
            Step::Skip if node.descriptor().output_kind.is_some() => self.cached(key, node),
            Step::Skip => None,
        };
        if let Some(outputs) = &outputs {
            self.save(&NodeOutput { node, params: node.params(), outputs, key, cached: true, drawn })?;
        }
        self.observer.event(Event::Done { node_id: node.id(), cached: true });
        Ok(outputs)
    }

    fn run_node(
        &self,
        node: &ValidNode,
        key: Option<&NodeKey>,
        values: &mut Values,
        drawn: &mut Vec<DrawnSeed>,
    ) -> Result<Arc<Outputs>, NodeError> {
        let runner = self.runner(node)?;
        self.observer.event(Event::Started { node_id: node.id() });
        let mut inputs = Inputs::default();
        for input in node.inputs() {
            for source in &input.sources {
                if let Some(value) = values.read(source.node).get(&source.output) {
                    inputs.push(&input.port, value);
                }
            }
        }
        let params = node.params().with_drawn_seeds(|param| {
            let seed = (self.draw_seed)() & MAX_DRAWN_SEED;
            drawn.push(DrawnSeed { node_id: node.id().to_owned(), param: param.to_owned(), seed });
            seed
        });
        let context = NodeContext::new(node, params, inputs, &self.cancel, self.observer);
        // A runner keeps no state that a panic could leave half-changed without poisoning it.
        let outputs = catch_unwind(AssertUnwindSafe(|| runner.run(&context))).unwrap_or(Err(NodeError::Panicked))?;
        context.check_cancelled()?;
        if let Some(port) = missing_output(node, &outputs) {
            return Err(NodeError::new(format!("internal error: the node gave no usable output {port:?}")));
        }
        let outputs = Arc::new(outputs);
        if let Some(key) = key {
            // Before saving: if that fails for lack of space, trying again needs no second rendering.
            self.cache.put(key, node, &outputs);
        }
        if node.descriptor().output_kind.is_some() {
            context.progress(Progress::new(Phase::Save, 0.0, "Saving"));
            let output = NodeOutput { node, params: context.params(), outputs: &outputs, key, cached: false, drawn };
            self.save(&output)?;
        }
        self.observer.event(Event::Done { node_id: node.id(), cached: false });
        Ok(outputs)
    }

    fn runner(&self, node: &ValidNode) -> Result<&Arc<dyn NodeRunner>, NodeError> {
        let lacking = || NodeError::new(format!("this build can't run nodes of type {}", node.node_type()));
        self.runners.get(node.node_type()).ok_or_else(lacking)
    }

    fn save(&self, output: &NodeOutput<'_>) -> Result<(), NodeError> {
        if output.node.descriptor().output_kind.is_some() { self.sink.save(output) } else { Ok(()) }
    }

    /// What the cache holds, if the descriptor would still have it.
    fn cached(&self, key: Option<&NodeKey>, node: &ValidNode) -> Option<Arc<Outputs>> {
        self.cache.get(key?, node).filter(|outputs| missing_output(node, outputs).is_none())
    }

    fn check_cancelled(&self) -> Result<(), RunError> {
        if self.cancel.is_cancelled() { Err(RunError::Cancelled) } else { Ok(()) }
    }

    /// Whatever a node says while the run is being cancelled is a consequence of that.
    fn fail(&self, node: &ValidNode, error: NodeError) -> RunError {
        if error == NodeError::Cancelled || self.cancel.is_cancelled() {
            return RunError::Cancelled;
        }
        self.observer.event(Event::Failed { node_id: node.id(), error: &error });
        RunError::Node { node_id: node.id().to_owned(), error }
    }
}

/// Every JSON reader keeps seeds up to this one exactly.
const MAX_DRAWN_SEED: u64 = (1 << 53) - 1;

/// What each node needs, decided before anything runs.
struct Plan {
    steps: Vec<Step>,
    keys: Vec<Option<NodeKey>>,
}

enum Step {
    /// Nothing reads it that has to run.
    Skip,
    /// The cache gave its outputs.
    Cached(Arc<Outputs>),
    /// An earlier node has the same key.
    SameAs(usize),
    /// It has to run.
    Run,
}

/// The outputs of the nodes so far, each kept until its last reader has read it.
struct Values {
    outputs: Vec<Option<Arc<Outputs>>>,
    reads_left: Vec<usize>,
}

impl Values {
    fn new(graph: &ValidGraph, plan: &Plan) -> Self {
        let count = graph.nodes().len();
        let mut reads_left = vec![0; count];
        reads_left[count - 1] = 1;
        for (node, step) in graph.nodes().iter().zip(&plan.steps) {
            match step {
                Step::Run => node.sources().for_each(|source| reads_left[source.node] += 1),
                Step::SameAs(twin) => reads_left[*twin] += 1,
                Step::Skip | Step::Cached(_) => {}
            }
        }
        Self { outputs: vec![None; count], reads_left }
    }

    fn put(&mut self, index: usize, outputs: Option<Arc<Outputs>>) {
        self.outputs[index] = outputs.filter(|_| self.reads_left[index] > 0);
    }

    fn read(&mut self, index: usize) -> Arc<Outputs> {
        self.reads_left[index] = self.reads_left[index].saturating_sub(1);
        let outputs = &mut self.outputs[index];
        let read = if self.reads_left[index] == 0 { outputs.take() } else { outputs.clone() };
        read.unwrap_or_default()
    }
}

/// The first output port without a value of its kind.
fn missing_output<'a>(node: &'a ValidNode, outputs: &Outputs) -> Option<&'a str> {
    let fits = |port: &&PortDescriptor| outputs.get(&port.id).is_some_and(|value| port.kind.accepts(value.kind()));
    node.descriptor().outputs.iter().find(|port| !fits(port)).map(|port| port.id.as_str())
}

/// Hashing a large file can take a while, so a cancelled run doesn't begin with the next one.
struct CancellableHasher<'a> {
    hasher: &'a dyn ContentHasher,
    cancel: &'a CancelFlag,
}

impl ContentHasher for CancellableHasher<'_> {
    fn add_contents(&self, node: &ValidNode, contents: &mut Contents) -> Result<(), NodeError> {
        if self.cancel.is_cancelled() {
            return Err(NodeError::Cancelled);
        }
        self.hasher.add_contents(node, contents)
    }
}
