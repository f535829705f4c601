//! From a workflow to a graph of primitives: what the targets need is mapped node by node, sources first.

mod inputs;
mod nodes;

use std::collections::{HashMap, HashSet};

use engine_graph::{Edge, Graph, Input, Limits, Node, PortKind};

use crate::classes::{self, Role};
use crate::error::{ImportError, left_out, shorten};
use crate::workflow::{self, Body, Source, Workflow};
use crate::{Imported, Unmapped};

/// Bytes of text that a graph may hold; subgraphs can repeat a text without bound.
const MAX_TEXT_BYTES: usize = 8 << 20;

/// What an output slot of a workflow's node is in the graph.
#[derive(Clone, Debug)]
struct Output {
    edge: Edge,
    kind: PortKind,
    /// The time shift that was set on a model.
    shift: Option<f64>,
    /// Whether it is a picture that is made here, not one that is brought along.
    is_made: bool,
}

/// What a workflow's node becomes.
#[derive(Default)]
struct Mapped {
    nodes: Vec<Node>,
    /// By output slot.
    outputs: Vec<Output>,
    notes: Vec<String>,
}

/// Why a node isn't mapped now.
enum Fail {
    /// This node has to be mapped first.
    Needs(usize),
    /// A node before it can't be mapped, and says why itself.
    Blocked,
    /// It can't be.
    Reason(String),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    /// Waiting for a node before it.
    Waiting,
    Mapped,
    Failed,
}

struct Mapper<'w, 'a> {
    workflow: &'w mut Workflow<'a>,
    states: Vec<State>,
    outputs: HashMap<usize, Vec<Output>>,
    graph: Vec<Node>,
    ids: HashSet<String>,
    text_bytes: usize,
    notes: Vec<String>,
    /// Notes beside the graph's nodes that they are about.
    node_notes: Vec<(Vec<String>, Vec<String>)>,
    unmapped: Vec<(usize, Unmapped)>,
}

/// Maps a workflow.
pub(crate) fn map(workflow: &mut Workflow<'_>) -> Result<Imported, ImportError> {
    let count = workflow.nodes.len();
    let ids = workflow.nodes.iter().map(|node| node.id.clone()).collect();
    let notes = std::mem::take(&mut workflow.notes);
    let mut mapper = Mapper {
        workflow,
        states: vec![State::New; count],
        outputs: HashMap::new(),
        graph: Vec::new(),
        ids,
        text_bytes: 0,
        notes,
        node_notes: Vec::new(),
        unmapped: Vec::new(),
    };
    let targets = mapper.targets()?;
    for node in 0..count {
        if mapper.workflow.nodes[node].works() && mapper.workflow.nodes[node].role().is_none() {
            mapper.demand(node)?;
        }
    }
    mapper.account();
    mapper.finish(targets)
}

impl Mapper<'_, '_> {
    /// The graph's nodes whose pictures are saved or shown, saved ones first.
    fn targets(&mut self) -> Result<Vec<String>, ImportError> {
        let mut targets: Vec<String> = Vec::new();
        let mut seen = HashSet::new();
        for role in [Role::Save, Role::Preview] {
            for node in 0..self.workflow.nodes.len() {
                if !self.workflow.nodes[node].works() || self.workflow.nodes[node].role() != Some(role) {
                    continue;
                }
                self.demand(node)?;
                let label = self.workflow.nodes[node].label();
                let Some(output) = self.outputs.get(&node).and_then(|outputs| outputs.first()) else {
                    self.notes.push(format!("{label} isn't among the targets: its picture can't be made"));
                    continue;
                };
                if !output.is_made {
                    self.notes
                        .push(format!("{label} isn't among the targets: it shows a picture that is brought along"));
                } else if seen.insert(output.edge.from.clone()) {
                    targets.push(output.edge.from.clone());
                }
            }
        }
        Ok(targets)
    }

    /// Maps a node and all that it needs, over a stack of its own.
    fn demand(&mut self, node: usize) -> Result<(), ImportError> {
        let mut stack = vec![node];
        while let Some(&top) = stack.last() {
            if matches!(self.states[top], State::New | State::Waiting) {
                self.states[top] = State::Waiting;
                match self.map_node(top) {
                    Ok(mapped) => {
                        self.states[top] = State::Mapped;
                        self.keep(top, mapped)?;
                    }
                    Err(Fail::Needs(source)) if self.states[source] == State::Waiting => {
                        self.fail(top, "it depends on its own output".to_owned());
                    }
                    Err(Fail::Needs(source)) => {
                        stack.push(source);
                        continue;
                    }
                    Err(Fail::Blocked) => self.states[top] = State::Failed,
                    Err(Fail::Reason(reason)) => self.fail(top, reason),
                }
            }
            stack.pop();
        }
        Ok(())
    }

    fn keep(&mut self, node: usize, mapped: Mapped) -> Result<(), ImportError> {
        for node in &mapped.nodes {
            self.ids.insert(node.id.clone());
            self.text_bytes += node.params.values().filter_map(|value| value.as_str()).map(str::len).sum::<usize>();
        }
        if !mapped.notes.is_empty() {
            self.node_notes.push((mapped.nodes.iter().map(|node| node.id.clone()).collect(), mapped.notes));
        }
        self.graph.extend(mapped.nodes);
        self.outputs.insert(node, mapped.outputs);
        let limit = Limits::default().max_nodes;
        if self.graph.len() > limit || self.text_bytes > MAX_TEXT_BYTES {
            return Err(ImportError::TooLarge(format!(
                "the graph would pass {limit} nodes or {MAX_TEXT_BYTES} bytes of text; import a part of the workflow"
            )));
        }
        Ok(())
    }

    fn fail(&mut self, node: usize, reason: String) {
        self.states[node] = State::Failed;
        let failed = &self.workflow.nodes[node];
        let unmapped = Unmapped {
            node_id: failed.id.clone(),
            class_type: shorten(failed.class),
            title: failed.title.map(shorten),
            reason,
        };
        self.unmapped.push((node, unmapped));
    }

    /// The id for a node that accompanies the node `id`.
    fn beside(&self, id: &str, what: &str) -> String {
        let mut name = format!("{id}-{what}");
        let mut count = 2;
        while self.ids.contains(&name) {
            name = format!("{id}-{what}-{count}");
            count += 1;
        }
        name
    }

    /// Notes the known nodes that no target needs.
    fn account(&mut self) {
        let is_unused = |node: &workflow::Node<'_>| node.works() && node.role().is_some_and(|role| role != Role::Note);
        let nodes = self.workflow.nodes.iter().zip(&self.states);
        let unused = nodes.filter(|(node, state)| **state == State::New && is_unused(node));
        let unused: Vec<String> = unused.map(|(node, _)| node.label()).collect();
        self.notes.extend(left_out("not needed for any target", &unused));
    }

    fn finish(mut self, targets: Vec<String>) -> Result<Imported, ImportError> {
        self.unmapped.sort_by_key(|(node, _)| *node);
        let unmapped: Vec<Unmapped> = self.unmapped.into_iter().map(|(_, unmapped)| unmapped).collect();
        if targets.is_empty() {
            let nodes = self.workflow.nodes.iter().zip(&self.states);
            let shows = |node: &workflow::Node<'_>| matches!(node.role(), Some(Role::Save | Role::Preview));
            return Err(if nodes.into_iter().any(|(node, state)| shows(node) && *state == State::Failed) {
                ImportError::Unmappable { unmapped }
            } else {
                ImportError::NoTarget { unmapped }
            });
        }
        let needed = upstream(&self.graph, &targets);
        let of_needed = |(ids, _): &(Vec<String>, _)| ids.iter().any(|id| needed.contains(id));
        let notes =
            self.node_notes.into_iter().filter(of_needed).flat_map(|(_, notes)| notes).chain(self.notes).collect();
        self.graph.retain(|node| needed.contains(&node.id));
        Ok(Imported { graph: Graph::new(self.graph), targets, notes, unmapped })
    }

    /// Maps one node whose sources are mapped.
    fn map_node(&mut self, node: usize) -> Result<Mapped, Fail> {
        match self.workflow.nodes[node].role() {
            Some(role) => self.map_role(node, role),
            None => {
                // What stands before it is looked at too, so that every obstacle is named at once.
                self.visit_sources(node)?;
                Err(Fail::Reason(classes::why_not(self.workflow.nodes[node].class).to_owned()))
            }
        }
    }

    fn visit_sources(&mut self, node: usize) -> Result<(), Fail> {
        let Body::Works(sockets) = &self.workflow.nodes[node].body else { return Ok(()) };
        let links: Vec<_> = sockets
            .values()
            .filter_map(|socket| match socket.link {
                Some(Source::Link(link)) => Some(link),
                _ => None,
            })
            .collect();
        for link in links {
            if let Source::Link(source) = self.workflow.follow(link)
                && self.states[source.node] == State::New
            {
                return Err(Fail::Needs(source.node));
            }
        }
        Ok(())
    }
}

/// Ids of the nodes that the targets need.
fn upstream(nodes: &[Node], targets: &[String]) -> HashSet<String> {
    let places: HashMap<&str, &Node> = nodes.iter().map(|node| (node.id.as_str(), node)).collect();
    let mut needed = HashSet::new();
    let mut stack: Vec<&str> = targets.iter().map(String::as_str).collect();
    while let Some(id) = stack.pop() {
        if needed.insert(id.to_owned())
            && let Some(node) = places.get(id)
        {
            stack.extend(node.inputs.values().flat_map(Input::edges).map(|edge| edge.from.as_str()));
        }
    }
    needed
}
