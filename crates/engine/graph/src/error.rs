//! What can be wrong with a graph before it runs.

use std::fmt;

/// Which rule of the graph contract a [`GraphError`] breaks, in the order in which the rules are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GraphRule {
    /// The bytes aren't JSON, or an object holds the same key twice.
    Json,
    /// `schemaVersion` is missing or not a version that this engine reads.
    SchemaVersion,
    /// A graph, node or edge doesn't have the shape of the contract.
    Shape,
    /// More nodes than the limit.
    TooLarge,
    /// Two nodes share an id.
    DuplicateId,
    /// No descriptor of that type.
    UnknownType,
    /// An edge comes from a node that isn't in the graph.
    UnknownSource,
    /// A port that the node type doesn't have.
    UnknownPort,
    /// A required input without an edge.
    RequiredPort,
    /// A list of edges on a port that takes one.
    SeveralEdges,
    /// The kinds of an edge's two ends don't match.
    KindMismatch,
    /// Nodes that depend on themselves.
    Cycle,
    /// The target isn't a node of the graph.
    UnknownTarget,
    /// A param holds another JSON type than its descriptor says.
    ParamType,
    /// A param is below its minimum, above its maximum or off its step.
    ParamRange,
    /// A param that the node type doesn't have.
    UnknownParam,
    /// A select holds a value that isn't offered.
    UnknownOption,
}

/// The first problem of a graph, with the node and port that it is about. The message says what to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphError {
    /// The rule that was broken.
    pub rule: GraphRule,
    /// The node, where one is known.
    pub node_id: Option<String>,
    /// The port of that node, where the problem is about one.
    pub port: Option<String>,
    /// One or two sentences for the person who wrote the graph.
    pub message: String,
}

impl GraphError {
    pub(crate) fn new(rule: GraphRule, message: impl Into<String>) -> Self {
        Self { rule, node_id: None, port: None, message: message.into() }
    }

    pub(crate) fn at(mut self, node_id: &str) -> Self {
        self.node_id = Some(node_id.to_owned());
        self
    }

    pub(crate) fn on_port(mut self, port: &str) -> Self {
        self.port = Some(port.to_owned());
        self
    }
}

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(node_id) = &self.node_id {
            write!(f, "node {}: ", quote(node_id))?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for GraphError {}

/// A name from the graph as it appears in messages: quoted, escaped, and cut so that a huge one can't flood a log.
pub(crate) fn quote(name: &str) -> String {
    const SHOWN: usize = 80;
    match name.char_indices().nth(SHOWN) {
        None => format!("{name:?}"),
        Some((cut, _)) => format!("{:?}…", &name[..cut]),
    }
}

/// The names offered by a node type, for the end of a message.
pub(crate) fn listing<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 20;
    let mut names = names.into_iter();
    let mut text = names.by_ref().take(SHOWN).map(quote).collect::<Vec<_>>().join(", ");
    match names.count() {
        0 if text.is_empty() => "none".to_owned(),
        0 => text,
        more => {
            text.push_str(&format!(" and {more} more"));
            text
        }
    }
}
