//! The graph document: nodes with params and edges, as it travels in JSON.
//!
//! Parsing is by hand, so that every malformed shape says which node and port it is about and what to change.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::error::{GraphError, GraphRule, quote};
use crate::json::{self, type_name};

/// The lowest graph version that this engine reads.
pub const MIN_SCHEMA_VERSION: u64 = 1;
/// The highest graph version that this engine reads.
pub const MAX_SCHEMA_VERSION: u64 = 1;

/// How large a graph may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Nodes in the graph.
    pub max_nodes: usize,
    /// Bytes in a node id.
    pub max_id_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_nodes: 50_000, max_id_bytes: 256 }
    }
}

/// A graph as it was written: params are kept as they came, so a seed is echoed digit for digit.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// The version of the document format.
    pub schema_version: u64,
    /// The nodes, in the order in which they were written.
    pub nodes: Vec<Node>,
}

/// One node.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The node's name within the graph.
    pub id: String,
    /// The type, which names a descriptor.
    pub node_type: String,
    /// Params as written; those that are left out take their defaults.
    pub params: Map<String, Value>,
    /// Edges by input port.
    pub inputs: BTreeMap<String, Input>,
}

/// What is wired to an input port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// One edge.
    One(Edge),
    /// An ordered list of edges, for list ports.
    Many(Vec<Edge>),
}

/// The far end of an edge: an output port of another node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge {
    /// The id of the node that it comes from.
    pub from: String,
    /// The output port of that node.
    pub output: String,
}

impl Edge {
    /// An edge from `output` of the node `from`.
    pub fn new(from: impl Into<String>, output: impl Into<String>) -> Self {
        Self { from: from.into(), output: output.into() }
    }

    fn to_value(&self) -> Value {
        json!({"from": self.from, "output": self.output})
    }
}

impl Input {
    /// The edges in order.
    pub fn edges(&self) -> &[Edge] {
        match self {
            Self::One(edge) => std::slice::from_ref(edge),
            Self::Many(edges) => edges,
        }
    }
}

impl Default for Graph {
    fn default() -> Self {
        Self { schema_version: MAX_SCHEMA_VERSION, nodes: Vec::new() }
    }
}

impl Node {
    /// A node without params and edges.
    pub fn new(id: impl Into<String>, node_type: impl Into<String>) -> Self {
        Self { id: id.into(), node_type: node_type.into(), params: Map::new(), inputs: BTreeMap::new() }
    }

    /// Sets a param.
    #[must_use]
    pub fn param(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.params.insert(key.into(), value.into());
        self
    }

    /// Wires an input port to `output` of the node `from`.
    #[must_use]
    pub fn input(mut self, port: impl Into<String>, from: impl Into<String>, output: impl Into<String>) -> Self {
        self.inputs.insert(port.into(), Input::One(Edge::new(from, output)));
        self
    }

    /// Wires a list port.
    #[must_use]
    pub fn input_list(mut self, port: impl Into<String>, edges: impl IntoIterator<Item = Edge>) -> Self {
        self.inputs.insert(port.into(), Input::Many(edges.into_iter().collect()));
        self
    }
}

impl Graph {
    /// A graph of these nodes, in the newest version.
    pub fn new(nodes: impl IntoIterator<Item = Node>) -> Self {
        Self { nodes: nodes.into_iter().collect(), ..Self::default() }
    }

    /// Reads a graph from JSON text.
    ///
    /// # Errors
    /// The first problem: syntax, a repeated key, the version, or a shape.
    pub fn from_slice(bytes: &[u8], limits: &Limits) -> Result<Self, GraphError> {
        let value = json::parse(bytes).map_err(|error| GraphError {
            rule: GraphRule::Json,
            node_id: error.node_id,
            port: None,
            message: error.message,
        })?;
        Self::from_value(&value, limits)
    }

    /// Reads a graph from a JSON value, for example a member of a larger document (read with [`json::parse`]).
    ///
    /// # Errors
    /// The first problem: the version, or a shape.
    pub fn from_value(value: &Value, limits: &Limits) -> Result<Self, GraphError> {
        let Value::Object(fields) = value else {
            return Err(shape(format!("a graph is an object with schemaVersion and nodes, not {}", type_name(value))));
        };
        let schema_version = schema_version(fields.get("schemaVersion"))?;
        if let Some(name) = unknown_field(fields, &["schemaVersion", "nodes"]) {
            return Err(shape(format!("unknown field {} in the graph; remove it", quote(name))));
        }
        let nodes = match fields.get("nodes") {
            Some(Value::Array(nodes)) => nodes,
            Some(other) => return Err(shape(format!("\"nodes\" must be a list of nodes, not {}", type_name(other)))),
            None => return Err(shape("\"nodes\" is missing; add the list of nodes")),
        };
        if nodes.len() > limits.max_nodes {
            return Err(GraphError::new(
                GraphRule::TooLarge,
                format!("the graph has {} nodes; the limit is {}", nodes.len(), limits.max_nodes),
            ));
        }
        let nodes = nodes.iter().enumerate().map(|(index, node)| parse_node(index, node, limits));
        Ok(Self { schema_version, nodes: nodes.collect::<Result<_, _>>()? })
    }

    /// The graph as JSON; a parsed graph gives the same document back, params as written.
    pub fn to_value(&self) -> Value {
        let nodes = self.nodes.iter().map(|node| {
            let mut fields = Map::new();
            fields.insert("id".into(), Value::from(node.id.as_str()));
            fields.insert("type".into(), Value::from(node.node_type.as_str()));
            if !node.params.is_empty() {
                fields.insert("params".into(), Value::Object(node.params.clone()));
            }
            if !node.inputs.is_empty() {
                let inputs = node.inputs.iter().map(|(port, input)| {
                    let value = match input {
                        Input::One(edge) => edge.to_value(),
                        Input::Many(edges) => edges.iter().map(Edge::to_value).collect(),
                    };
                    (port.clone(), value)
                });
                fields.insert("inputs".into(), Value::Object(inputs.collect()));
            }
            Value::Object(fields)
        });
        json!({"schemaVersion": self.schema_version, "nodes": nodes.collect::<Vec<_>>()})
    }
}

pub(crate) fn check_schema_version(version: u64) -> Result<(), GraphError> {
    if (MIN_SCHEMA_VERSION..=MAX_SCHEMA_VERSION).contains(&version) {
        return Ok(());
    }
    Err(GraphError::new(
        GraphRule::SchemaVersion,
        format!("schemaVersion {version} isn't known here; this engine reads version {MAX_SCHEMA_VERSION}"),
    ))
}

fn schema_version(value: Option<&Value>) -> Result<u64, GraphError> {
    let Some(value) = value else {
        return Err(GraphError::new(
            GraphRule::SchemaVersion,
            format!("\"schemaVersion\" is missing; add \"schemaVersion\": {MAX_SCHEMA_VERSION}"),
        ));
    };
    let Some(version) = value.as_u64() else {
        return Err(GraphError::new(
            GraphRule::SchemaVersion,
            format!("\"schemaVersion\" must be the number {MAX_SCHEMA_VERSION}"),
        ));
    };
    check_schema_version(version)?;
    Ok(version)
}

fn parse_node(index: usize, value: &Value, limits: &Limits) -> Result<Node, GraphError> {
    let Value::Object(fields) = value else {
        return Err(shape(format!("nodes[{index}] must be an object with id and type, not {}", type_name(value))));
    };
    let id = match fields.get("id") {
        Some(Value::String(id)) => id,
        Some(other) => return Err(shape(format!("the id of nodes[{index}] must be a text, not {}", type_name(other)))),
        None => return Err(shape(format!("nodes[{index}] has no id; give every node one"))),
    };
    if id.is_empty() {
        return Err(shape(format!("the id of nodes[{index}] is empty; give every node one")));
    }
    if id.len() > limits.max_id_bytes || id.chars().any(char::is_control) {
        return Err(shape(format!(
            "the id of nodes[{index}] must be at most {} bytes without control characters",
            limits.max_id_bytes
        )));
    }
    node_fields(id, fields).map_err(|error| error.at(id))
}

fn node_fields(id: &str, fields: &Map<String, Value>) -> Result<Node, GraphError> {
    if let Some(name) = unknown_field(fields, &["id", "type", "params", "inputs"]) {
        return Err(shape(format!("unknown field {}; a node has id, type, params and inputs", quote(name))));
    }
    let node_type = match fields.get("type") {
        Some(Value::String(node_type)) => node_type,
        Some(other) => return Err(shape(format!("\"type\" must be a text, not {}", type_name(other)))),
        None => return Err(shape("\"type\" is missing; name the node's type")),
    };
    let params = match fields.get("params") {
        Some(Value::Object(params)) => params.clone(),
        Some(other) => {
            return Err(shape(format!("\"params\" must be an object of names and values, not {}", type_name(other))));
        }
        None => Map::new(),
    };
    let mut inputs = BTreeMap::new();
    match fields.get("inputs") {
        Some(Value::Object(ports)) => {
            for (port, value) in ports {
                inputs.insert(port.clone(), parse_input(value).map_err(|error| error.on_port(port))?);
            }
        }
        Some(other) => {
            return Err(shape(format!("\"inputs\" must be an object of ports and edges, not {}", type_name(other))));
        }
        None => {}
    }
    Ok(Node { id: id.to_owned(), node_type: node_type.clone(), params, inputs })
}

fn parse_input(value: &Value) -> Result<Input, GraphError> {
    match value {
        Value::Array(edges) => edges.iter().map(parse_edge).collect::<Result<_, _>>().map(Input::Many),
        edge => parse_edge(edge).map(Input::One),
    }
}

fn parse_edge(value: &Value) -> Result<Edge, GraphError> {
    let Value::Object(fields) = value else {
        return Err(shape(format!(
            "an input is one edge {{\"from\": node id, \"output\": port}} or a list of edges, not {}",
            type_name(value)
        )));
    };
    if let Some(name) = unknown_field(fields, &["from", "output"]) {
        return Err(shape(format!("unknown field {} in an edge; it has from and output", quote(name))));
    }
    let text = |name: &str| match fields.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(shape(format!("\"{name}\" of an edge must be a text, not {}", type_name(other)))),
        None => Err(shape(format!("an edge without \"{name}\"; it needs from (a node id) and output (its port)"))),
    };
    Ok(Edge { from: text("from")?, output: text("output")? })
}

fn unknown_field<'a>(fields: &'a Map<String, Value>, known: &[&str]) -> Option<&'a str> {
    fields.keys().map(String::as_str).find(|name| !known.contains(name))
}

fn shape(message: impl Into<String>) -> GraphError {
    GraphError::new(GraphRule::Shape, message)
}
