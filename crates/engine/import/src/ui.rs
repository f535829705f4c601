//! The UI format: nodes with widget values by position, and a table of links. Muted and bypassed nodes, reroutes,
//! primitives and subgraphs are resolved here as ComfyUI's interface does before it queues a workflow.

mod document;
mod subgraph;

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value as Json};

use crate::error::{ImportError, left_out, shorten};
use crate::workflow::{Body, Link, MAX_SOCKETS, Node, Socket, Source, Workflow, body, check_count, check_id};
use document::{Document, Mode, Origin, Page, UiNode};
use subgraph::Promoted;

/// The kind of a socket that takes anything.
const ANY: &str = "*";
/// How deep subgraphs may nest.
const MAX_DEPTH: usize = 16;

/// Reads the nodes, every instance of a subgraph unfolded.
pub(crate) fn read(fields: &Map<String, Json>) -> Result<Workflow<'_>, ImportError> {
    let document = Document::parse(fields)?;
    let mut notes = Vec::new();
    let scopes = unfold(&document, &mut notes)?;
    let mut nodes = Vec::new();
    let (mut muted, mut bypassed) = (Vec::new(), Vec::new());
    for scope in &scopes {
        for (place, node) in scope.page.nodes.iter().enumerate() {
            let id = format!("{}{}", scope.prefix, node.key);
            check_id(&id)?;
            let body = scope.body(place, node, &scopes);
            let read = Node { id, class: node.class, title: node.title, body };
            match node.mode {
                Mode::Active => {}
                Mode::Muted => muted.push(read.label()),
                Mode::Bypassed => bypassed.push(read.label()),
            }
            notes.extend(node.loose_control.map(|control| control_note(&read.label(), control)));
            nodes.push(read);
        }
        if let Some(host) = &scope.host {
            // The border through which links enter, after the nodes of its scope.
            let body = Body::Passes(scope.border(host, &scopes));
            nodes.push(Node { id: scope.prefix.clone(), class: "subgraph input", title: None, body });
        }
    }
    notes.extend(left_out("muted", &muted));
    notes.extend(left_out("bypassed", &bypassed));
    Ok(Workflow::new(nodes, notes))
}

/// What to tell about a value that ComfyUI changes after each run.
pub(crate) fn control_note(label: &str, control: &str) -> String {
    format!("{label}: \"{control}\" after each run isn't carried over; set the seed to -1 for a new one in each run")
}

/// The workflow itself, or one instance of a subgraph.
struct Scope<'p, 'a> {
    page: &'p Page<'a>,
    /// Where its nodes start among all nodes.
    base: usize,
    /// What its ids start with.
    prefix: String,
    depth: usize,
    host: Option<Host<'a>>,
    /// Scopes of the instances among its nodes.
    children: HashMap<usize, usize>,
}

/// The instance that a scope is the inside of.
struct Host<'a> {
    scope: usize,
    node: usize,
    promoted: Promoted<'a>,
}

fn unfold<'p, 'a>(document: &'p Document<'a>, notes: &mut Vec<String>) -> Result<Vec<Scope<'p, 'a>>, ImportError> {
    let root = &document.root;
    let mut scopes =
        vec![Scope { page: root, base: 0, prefix: String::new(), depth: 0, host: None, children: HashMap::new() }];
    let mut nodes = root.nodes.len();
    let mut sockets = root.sockets;
    let mut current = 0;
    while current < scopes.len() {
        let page = scopes[current].page;
        for (place, node) in page.nodes.iter().enumerate() {
            let Some(inside) = document.subgraphs.get(node.class).filter(|_| node.mode == Mode::Active) else {
                continue;
            };
            let scope = &scopes[current];
            let prefix = format!("{}{}:", scope.prefix, node.key);
            let depth = scope.depth + 1;
            if depth > MAX_DEPTH {
                return Err(ImportError::TooLarge(format!(
                    "subgraphs nest more than {MAX_DEPTH} levels deep, or one contains itself"
                )));
            }
            check_id(&prefix)?;
            let base = nodes;
            nodes += inside.nodes.len() + 1;
            sockets += inside.sockets;
            check_count(nodes)?;
            if sockets > MAX_SOCKETS {
                return Err(ImportError::TooLarge(format!("the workflow has more than {MAX_SOCKETS} sockets")));
            }
            let promoted = Promoted::of(node, inside, |class| document.subgraphs.contains_key(class));
            if promoted.unclear {
                notes.push(format!(
                    "{}{}: the values set on this subgraph's own widgets can't be told apart, so those inside it count",
                    scope.prefix, node.key
                ));
            }
            let host = Some(Host { scope: current, node: place, promoted });
            let child = scopes.len();
            scopes[current].children.insert(place, child);
            scopes.push(Scope { page: inside, base, prefix, depth, host, children: HashMap::new() });
        }
        current += 1;
    }
    Ok(scopes)
}

impl<'a> Scope<'_, 'a> {
    fn body(&self, place: usize, node: &UiNode<'a>, scopes: &[Self]) -> Body<'a> {
        match node.mode {
            Mode::Muted => return Body::Muted,
            Mode::Bypassed => return Body::Passes(self.bypass(node)),
            Mode::Active => {}
        }
        if let Some(&child) = self.children.get(&place) {
            let child = &scopes[child];
            let result = |slot: usize| match child.page.results.get(&slot) {
                Some(origin) => child.origin(origin),
                None => Source::Nothing(format!("output {slot} of subgraph {}{} isn't wired", self.prefix, node.key)),
            };
            return Body::Passes((0..child.page.output_count).map(result).collect());
        }
        let mut sockets: BTreeMap<&'a str, Socket<'a>> = BTreeMap::new();
        // What the instance sets counts over what is written inside.
        let promoted = self.host.as_ref().map(|host| host.promoted.inside(place)).unwrap_or_default();
        for (name, value) in node.widgets.iter().chain(promoted) {
            sockets.entry(name).or_default().widget = Some(value);
        }
        for input in &node.inputs {
            if let Some(link) = &input.link {
                let socket = sockets.entry(input.name).or_default();
                socket.link.get_or_insert_with(|| self.link(link));
            }
        }
        body(node.class, sockets)
    }

    /// What a bypassed node hands on: for each output an input of its kind, the one in its own slot before others.
    fn bypass(&self, node: &UiNode<'a>) -> Vec<Source<'a>> {
        let mut first = HashMap::new();
        for input in &node.inputs {
            if let Some(link) = &input.link {
                first.entry(input.kind).or_insert(link);
                first.entry(ANY).or_insert(link);
            }
        }
        let source = |(slot, kind): (usize, &&str)| {
            let own = node.inputs.get(slot).filter(|input| input.kind == *kind || input.kind == ANY || *kind == ANY);
            match own.and_then(|input| input.link.as_ref()).or_else(|| first.get(kind).copied()) {
                Some(link) => self.link(link),
                None => Source::Nothing(format!(
                    "{}{} before it is bypassed and has nothing of that kind to hand on",
                    self.prefix, node.key
                )),
            }
        };
        node.outputs.iter().enumerate().map(source).collect()
    }

    /// What flows into an instance, by slot of its subgraph's input border.
    fn border(&self, host: &Host<'a>, scopes: &[Self]) -> Vec<Source<'a>> {
        let outer = &scopes[host.scope];
        let node = &outer.page.nodes[host.node];
        let mut links = HashMap::new();
        for (slot, input) in subgraph::slots(node, self.page) {
            if let Some(link) = &input.link {
                links.entry(slot).or_insert_with(|| outer.link(link));
            }
        }
        let unwired = |slot: usize| {
            let name = shorten(self.page.input_names[slot]);
            Source::Nothing(format!("input {name} of subgraph {}{} isn't wired", outer.prefix, node.key))
        };
        let source = |slot: usize| {
            let value = host.promoted.input(slot).map(Source::Value);
            links.remove(&slot).or(value).unwrap_or_else(|| unwired(slot))
        };
        (0..self.page.input_names.len()).map(source).collect()
    }

    fn link(&self, key: &str) -> Source<'a> {
        match self.page.links.get(key) {
            Some(origin) => self.origin(origin),
            None => Source::Broken(format!("link {} isn't in the workflow", shorten(key))),
        }
    }

    fn origin(&self, origin: &Origin) -> Source<'a> {
        let node = match self.page.index.get(&origin.key) {
            Some(place) => self.base + place,
            None if self.host.is_some() && origin.key == self.page.entry => self.base + self.page.nodes.len(),
            None => {
                let key = shorten(&origin.key);
                return Source::Broken(format!("it is linked to node {key}, which isn't in the workflow"));
            }
        };
        Source::Link(Link { node, slot: origin.slot })
    }
}
