//! The checks that a graph must pass before anything runs, and what is left of it afterwards.

use std::collections::HashMap;
use std::sync::Arc;

use crate::descriptor::NodeDescriptor;
use crate::error::{GraphError, GraphRule, listing, quote};
use crate::order::Sources;
use crate::params::{self, ParamValue, Params};
use crate::registry::NodeRegistry;
use crate::schema::{Graph, Input, Node, check_schema_version};

/// The target's upstream closure of a graph that passed every check, in the order of execution, the target last.
#[derive(Clone, Debug)]
pub struct ValidGraph {
    nodes: Vec<ValidNode>,
}

/// A node that is known to fit its descriptor.
#[derive(Clone, Debug)]
pub struct ValidNode {
    id: String,
    descriptor: Arc<NodeDescriptor>,
    params: Params,
    inputs: Vec<ValidInput>,
}

/// A wired input port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidInput {
    /// The port.
    pub port: String,
    /// Where its values come from, in order; more than one only on list ports.
    pub sources: Vec<ValidSource>,
}

/// An output port of an earlier node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidSource {
    /// The index of the node in [`ValidGraph::nodes`], smaller than the reader's.
    pub node: usize,
    /// Its output port.
    pub output: String,
}

impl ValidGraph {
    /// The nodes that will be executed, sources before readers.
    pub fn nodes(&self) -> &[ValidNode] {
        &self.nodes
    }

    /// The node that the run is for.
    pub fn target(&self) -> &ValidNode {
        // The closure holds at least its target, and holds it last.
        &self.nodes[self.nodes.len() - 1]
    }
}

impl ValidNode {
    /// The node's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The node's type.
    pub fn node_type(&self) -> &str {
        &self.descriptor.node_type
    }

    /// The type's descriptor as it was served when the graph was checked.
    pub fn descriptor(&self) -> &Arc<NodeDescriptor> {
        &self.descriptor
    }

    /// The params, defaults filled in.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The wired input ports, ordered by name.
    pub fn inputs(&self) -> &[ValidInput] {
        &self.inputs
    }

    /// The earlier nodes that it reads, with repeats.
    pub fn sources(&self) -> impl Iterator<Item = &ValidSource> {
        self.inputs.iter().flat_map(|input| &input.sources)
    }
}

/// A node of the graph beside its descriptor.
struct Typed<'a> {
    node: &'a Node,
    descriptor: &'a Arc<NodeDescriptor>,
}

impl Typed<'_> {
    fn error(&self, rule: GraphRule, message: impl Into<String>) -> GraphError {
        GraphError::new(rule, message).at(&self.node.id)
    }
}

/// Checks a graph rule by rule, each over every node in the order in which they were written, and keeps the
/// target's upstream closure.
///
/// Selects are checked against the options in `registry`, so pass it as it is served
/// ([`NodeRegistry::with_options`]).
///
/// # Errors
/// The first problem.
pub fn validate(graph: &Graph, registry: &NodeRegistry, target: &str) -> Result<ValidGraph, GraphError> {
    check_schema_version(graph.schema_version)?;
    let index = index_ids(graph)?;
    let nodes = find_types(graph, registry)?;
    check_ports(&nodes, &index)?;
    check_required(&nodes)?;
    check_lists(&nodes)?;
    check_kinds(&nodes, &index)?;
    let sources = Sources(nodes.iter().map(|typed| edges(typed.node, &index)).collect());
    let depths = sources.depths().map_err(|node| {
        nodes[node].error(GraphRule::Cycle, "the node depends on its own output; remove one edge of the cycle")
    })?;
    let Some(&target_index) = index.get(target) else {
        let known = listing(graph.nodes.iter().map(|node| node.id.as_str()));
        let message = format!("the target {} isn't a node of the graph; its nodes are {known}", quote(target));
        return Err(GraphError::new(GraphRule::UnknownTarget, message).at(target));
    };
    let mut params = resolve_params(&nodes)?;
    let order = sources.closure(target_index, &depths);
    let mut position = vec![0; nodes.len()];
    for (place, &node) in order.iter().enumerate() {
        position[node] = place;
    }
    let keep = |&place: &usize| ValidNode {
        id: nodes[place].node.id.clone(),
        descriptor: Arc::clone(nodes[place].descriptor),
        params: std::mem::take(&mut params[place]),
        inputs: valid_inputs(nodes[place].node, &index, &position),
    };
    Ok(ValidGraph { nodes: order.iter().map(keep).collect() })
}

fn index_ids(graph: &Graph) -> Result<HashMap<&str, usize>, GraphError> {
    let mut index = HashMap::with_capacity(graph.nodes.len());
    for (place, node) in graph.nodes.iter().enumerate() {
        if let Some(first) = index.insert(node.id.as_str(), place) {
            return Err(GraphError::new(
                GraphRule::DuplicateId,
                format!("nodes[{first}] and nodes[{place}] have the same id; rename one"),
            )
            .at(&node.id));
        }
    }
    Ok(index)
}

fn find_types<'a>(graph: &'a Graph, registry: &'a NodeRegistry) -> Result<Vec<Typed<'a>>, GraphError> {
    let typed = |node: &'a Node| match registry.get(&node.node_type) {
        Some(descriptor) => Ok(Typed { node, descriptor }),
        None => Err(GraphError::new(
            GraphRule::UnknownType,
            format!("unknown node type {}; GET /v1/models lists the types", quote(&node.node_type)),
        )
        .at(&node.id)),
    };
    graph.nodes.iter().map(typed).collect()
}

fn check_ports(nodes: &[Typed<'_>], index: &HashMap<&str, usize>) -> Result<(), GraphError> {
    for typed in nodes {
        for (port, input) in &typed.node.inputs {
            if typed.descriptor.find_input(port).is_none() {
                let known = listing(typed.descriptor.inputs.iter().map(|port| port.id.as_str()));
                let message = format!("{} has no input {}; it has {known}", typed.node.node_type, quote(port));
                return Err(typed.error(GraphRule::UnknownPort, message).on_port(port));
            }
            for edge in input.edges() {
                let Some(&source) = index.get(edge.from.as_str()) else {
                    let known = listing(nodes.iter().map(|typed| typed.node.id.as_str()));
                    let from = quote(&edge.from);
                    let message = format!("input {}: no node {from} in the graph; its nodes are {known}", quote(port));
                    return Err(typed.error(GraphRule::UnknownSource, message).on_port(port));
                };
                let source = &nodes[source];
                if source.descriptor.find_output(&edge.output).is_none() {
                    let message = format!(
                        "input {}: node {} ({}) has no output {}; it has {}",
                        quote(port),
                        quote(&edge.from),
                        source.node.node_type,
                        quote(&edge.output),
                        listing(source.descriptor.outputs.iter().map(|port| port.id.as_str()))
                    );
                    return Err(typed.error(GraphRule::UnknownPort, message).on_port(port));
                }
            }
        }
    }
    Ok(())
}

fn check_required(nodes: &[Typed<'_>]) -> Result<(), GraphError> {
    for typed in nodes {
        for port in typed.descriptor.inputs.iter().filter(|port| port.required) {
            if typed.node.inputs.get(&port.id).is_none_or(|input| input.edges().is_empty()) {
                let message = format!("input {} isn't wired; connect an output of kind {}", quote(&port.id), port.kind);
                return Err(typed.error(GraphRule::RequiredPort, message).on_port(&port.id));
            }
        }
    }
    Ok(())
}

fn check_lists(nodes: &[Typed<'_>]) -> Result<(), GraphError> {
    for typed in nodes {
        for (port, input) in &typed.node.inputs {
            let takes_list = typed.descriptor.find_input(port).is_some_and(|port| port.kind.is_list());
            if let (Input::Many(edges), false) = (input, takes_list) {
                let count = edges.len();
                let message =
                    format!("input {} takes one edge, not a list of {count}; write the edge alone", quote(port));
                return Err(typed.error(GraphRule::SeveralEdges, message).on_port(port));
            }
        }
    }
    Ok(())
}

fn check_kinds(nodes: &[Typed<'_>], index: &HashMap<&str, usize>) -> Result<(), GraphError> {
    for typed in nodes {
        for (port, input) in &typed.node.inputs {
            for edge in input.edges() {
                let output = nodes[index[edge.from.as_str()]].descriptor.find_output(&edge.output);
                let (Some(input), Some(output)) = (typed.descriptor.find_input(port), output) else { continue };
                if !input.kind.accepts(output.kind) {
                    let message = format!(
                        "input {} takes {}, but output {} of node {} gives {}; connect a matching output",
                        quote(port),
                        input.kind,
                        quote(&edge.output),
                        quote(&edge.from),
                        output.kind
                    );
                    return Err(typed.error(GraphRule::KindMismatch, message).on_port(port));
                }
            }
        }
    }
    Ok(())
}

fn edges(node: &Node, index: &HashMap<&str, usize>) -> Vec<usize> {
    node.inputs.values().flat_map(Input::edges).map(|edge| index[edge.from.as_str()]).collect()
}

/// Types and ranges of every node first, then names, then options: the order of the contract.
fn resolve_params(nodes: &[Typed<'_>]) -> Result<Vec<Params>, GraphError> {
    let mut all = Vec::with_capacity(nodes.len());
    for typed in nodes {
        let mut values = Params::default();
        for param in &typed.descriptor.params {
            let value = typed.node.params.get(&param.key).unwrap_or(&param.default);
            let value = params::resolve(param, value).map_err(|(rule, message)| typed.error(rule, message))?;
            values.insert(&param.key, value);
        }
        all.push(values);
    }
    for typed in nodes {
        if let Some(key) = typed.node.params.keys().find(|key| typed.descriptor.find_param(key).is_none()) {
            let known = listing(typed.descriptor.params.iter().map(|param| param.key.as_str()));
            let message = format!("{} has no param {}; it has {known}", typed.node.node_type, quote(key));
            return Err(typed.error(GraphRule::UnknownParam, message));
        }
    }
    for (typed, values) in nodes.iter().zip(&all) {
        for param in &typed.descriptor.params {
            let Some(value @ ParamValue::Text(_)) = values.get(&param.key) else { continue };
            params::check_option(param, value).map_err(|message| typed.error(GraphRule::UnknownOption, message))?;
        }
    }
    Ok(all)
}

fn valid_inputs(node: &Node, index: &HashMap<&str, usize>, position: &[usize]) -> Vec<ValidInput> {
    let valid = |(port, input): (&String, &Input)| ValidInput {
        port: port.clone(),
        sources: input
            .edges()
            .iter()
            .map(|edge| ValidSource { node: position[index[edge.from.as_str()]], output: edge.output.clone() })
            .collect(),
    };
    node.inputs.iter().filter(|(_, input)| !input.edges().is_empty()).map(valid).collect()
}
