//! What both formats are read into: nodes with named sockets, and nodes that only hand something on.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value as Json;

use crate::classes::{self, Role};
use crate::error::{ImportError, shorten};

/// Nodes that a workflow may have, its subgraphs unfolded.
pub(crate) const MAX_NODES: usize = 50_000;
/// Sockets and links of all nodes together, subgraphs unfolded.
pub(crate) const MAX_SOCKETS: usize = 1_000_000;
const MAX_ID_BYTES: usize = 200;

/// A workflow, borrowing all values from the document.
pub(crate) struct Workflow<'a> {
    pub nodes: Vec<Node<'a>>,
    /// What the reader has to say to the user.
    pub notes: Vec<String>,
    /// Where links end that were followed before.
    ends: HashMap<Link, Source<'a>>,
}

/// One node.
pub(crate) struct Node<'a> {
    pub id: String,
    pub class: &'a str,
    pub title: Option<&'a str>,
    pub body: Body<'a>,
}

/// What a node does.
pub(crate) enum Body<'a> {
    /// Works on the inputs in its sockets.
    Works(BTreeMap<&'a str, Socket<'a>>),
    /// Hands on to each output slot what stands there: reroutes, constants, bypassed nodes, borders of subgraphs.
    Passes(Vec<Source<'a>>),
    /// Is switched off.
    Muted,
}

/// An input by name: a link, a widget's value, or both, in which case the link counts.
#[derive(Default)]
pub(crate) struct Socket<'a> {
    pub link: Option<Source<'a>>,
    pub widget: Option<&'a Json>,
}

/// An output slot of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Link {
    /// Index into [`Workflow::nodes`].
    pub node: usize,
    pub slot: usize,
}

/// Where something comes from.
#[derive(Clone, Debug)]
pub(crate) enum Source<'a> {
    Link(Link),
    Value(&'a Json),
    /// From nowhere, for this reason, so that a widget's own value counts.
    Nothing(String),
    /// A link that leads nowhere.
    Broken(String),
}

impl<'a> Node<'a> {
    /// The node for messages.
    pub fn label(&self) -> String {
        format!("{} ({})", self.id, shorten(self.class))
    }

    /// The role of its class, if that is known.
    pub fn role(&self) -> Option<Role> {
        classes::find(self.class).map(|class| class.role)
    }

    /// Whether it works, and isn't only handing on or switched off.
    pub fn works(&self) -> bool {
        matches!(self.body, Body::Works(_))
    }
}

/// The body of an active node. Reroutes and numbers vanish here; a constant text stays a node, so that several
/// readers share it.
pub(crate) fn body<'a>(class: &str, mut sockets: BTreeMap<&'a str, Socket<'a>>) -> Body<'a> {
    let unwired = || Source::Nothing("a node before it isn't wired".to_owned());
    match classes::find(class) {
        Some(known) if known.role == Role::Reroute => {
            Body::Passes(vec![sockets.into_values().find_map(|socket| socket.link).unwrap_or_else(unwired)])
        }
        Some(known) if known.role == Role::Constant => {
            let socket = known.widgets.iter().find_map(|name| sockets.remove(name)).unwrap_or_default();
            match (socket.link, socket.widget) {
                (None, Some(text @ Json::String(_))) => {
                    let socket = Socket { link: None, widget: Some(text) };
                    Body::Works(BTreeMap::from([(known.widgets[0], socket)]))
                }
                (None, Some(value)) => Body::Passes(vec![Source::Value(value)]),
                (Some(link), _) => Body::Passes(vec![link]),
                (None, None) => Body::Passes(vec![unwired()]),
            }
        }
        _ => Body::Works(sockets),
    }
}

impl<'a> Workflow<'a> {
    pub fn new(nodes: Vec<Node<'a>>, notes: Vec<String>) -> Self {
        Self { nodes, notes, ends: HashMap::new() }
    }

    /// The literal of a constant text.
    pub fn constant(&self, node: usize) -> Option<&'a Json> {
        let node = &self.nodes[node];
        match (&node.body, node.role()) {
            (Body::Works(sockets), Some(Role::Constant)) => sockets.values().find_map(|socket| socket.widget),
            _ => None,
        }
    }

    /// Follows a link over all nodes that only hand on: to the output of one that works, to a value, or to nothing.
    pub fn follow(&mut self, link: Link) -> Source<'a> {
        let mut path = HashSet::new();
        let mut at = link;
        let end = loop {
            if let Some(known) = self.ends.get(&at) {
                break known.clone();
            }
            if !path.insert(at) {
                break Source::Broken("its links run in a circle".to_owned());
            }
            let node = &self.nodes[at.node];
            match &node.body {
                Body::Works(_) => break Source::Link(at),
                Body::Muted => break Source::Nothing(format!("{} before it is muted", node.label())),
                Body::Passes(slots) => match slots.get(at.slot) {
                    Some(Source::Link(next)) => at = *next,
                    Some(other) => break other.clone(),
                    None => break Source::Broken(format!("{} has no output {}", node.label(), at.slot)),
                },
            }
        };
        self.ends.extend(path.into_iter().map(|link| (link, end.clone())));
        end
    }
}

/// Accepts a node's id as part of the graph's ids.
pub(crate) fn check_id(id: &str) -> Result<(), ImportError> {
    if id.is_empty() || id.len() > MAX_ID_BYTES || id.chars().any(char::is_control) {
        return Err(ImportError::shape(format!(
            "the node id {:?} isn't usable; ids have 1 to {MAX_ID_BYTES} bytes and no control characters",
            shorten(id)
        )));
    }
    Ok(())
}

/// Accepts a number of nodes.
pub(crate) fn check_count(nodes: usize) -> Result<(), ImportError> {
    if nodes > MAX_NODES {
        return Err(ImportError::TooLarge(format!("the workflow has {nodes} nodes; the limit is {MAX_NODES}")));
    }
    Ok(())
}
