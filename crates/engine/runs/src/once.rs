//! Running a graph without a server or a store.

use crate::takes::{self, Encoded};
use engine_graph::{Execution, Graph, GraphError, NodeError, NodeOutput, Observer, OutputSink, RunError, validate};
use engine_nodes::Nodes;
use gen_core::CancelFlag;
use std::sync::{Mutex, PoisonError};

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

/// Runs `graph` for `target` and gives the takes of its nodes as bytes, node by node, the same that a server would write.
///
/// # Errors
/// As [`OnceError`].
pub fn run_once(
    nodes: &Nodes,
    graph: &Graph,
    target: &str,
    observer: &dyn Observer,
    cancel: CancelFlag,
) -> Result<Vec<(String, Encoded)>, OnceError> {
    let valid = validate(graph, &nodes.registry(), target)?;
    let sink = Collect { graph, takes: Mutex::default() };
    Execution::new(nodes.runners()).observer(observer).sink(&sink).cancel(cancel).run(&valid)?;
    Ok(sink.takes.into_inner().unwrap_or_else(PoisonError::into_inner))
}

struct Collect<'a> {
    graph: &'a Graph,
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
