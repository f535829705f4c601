//! Running a graph without a server or a store.

use crate::nodes::NodeSet;
use crate::seeds;
use crate::takes::{self, Encoded};
use engine_graph::{
    Execution, Graph, GraphError, NodeError, NodeOutput, Observer, OutputSink, RunError, ValidGraph, validate,
};
use gen_core::CancelFlag;
use std::sync::{Mutex, PoisonError};
use uuid::Uuid;

/// Why a graph gave no takes.
#[derive(Debug, thiserror::Error)]
pub enum OnceError {
    /// The graph breaks a rule.
    #[error("{0}")]
    Graph(#[from] GraphError),
    /// A node failed, or the run was cancelled.
    #[error("{0}")]
    Run(#[from] RunError),
}

/// A graph that is ready to run: checked, its random seeds drawn.
pub(crate) struct Prepared {
    pub(crate) valid: ValidGraph,
    /// The graph as takes carry it.
    pub(crate) json: String,
}

/// Checks `graph` against the node types of this moment and draws its seeds from `run_id`.
pub(crate) fn prepare(
    nodes: &dyn NodeSet,
    graph: &Graph,
    target: &str,
    run_id: &str,
) -> Result<Prepared, GraphError> {
    let registry = nodes.registry();
    let valid = validate(graph, &registry, target)?;
    match seeds::draw(graph, &valid, run_id) {
        None => Ok(Prepared { valid, json: graph.to_value().to_string() }),
        Some(drawn) => {
            Ok(Prepared { valid: validate(&drawn, &registry, target)?, json: drawn.to_value().to_string() })
        }
    }
}

/// Runs `graph` for `target` and gives the takes of its nodes as bytes, node by node, the same that a server would write.
///
/// # Errors
/// As [`OnceError`].
pub fn run_once(
    nodes: &dyn NodeSet,
    graph: &Graph,
    target: &str,
    observer: &dyn Observer,
    cancel: CancelFlag,
) -> Result<Vec<(String, Encoded)>, OnceError> {
    let prepared = prepare(nodes, graph, target, &Uuid::new_v4().to_string())?;
    let sink = Collect { graph: &prepared.json, takes: Mutex::default() };
    Execution::new(nodes.runners()).observer(observer).sink(&sink).cancel(cancel).run(&prepared.valid)?;
    Ok(sink.takes.into_inner().unwrap_or_else(PoisonError::into_inner))
}

struct Collect<'a> {
    graph: &'a str,
    takes: Mutex<Vec<(String, Encoded)>>,
}

impl OutputSink for Collect<'_> {
    fn save(&self, output: &NodeOutput<'_>) -> Result<(), NodeError> {
        let encoded = takes::encode(self.graph, output)?;
        let mut takes = self.takes.lock().unwrap_or_else(PoisonError::into_inner);
        takes.extend(encoded.into_iter().map(|take| (output.node.id().to_owned(), take)));
        Ok(())
    }
}
