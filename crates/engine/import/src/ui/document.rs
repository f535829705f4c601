//! The document of the UI format, parsed: pages of nodes and links, one for the workflow and one for each subgraph.

use std::collections::HashMap;

use engine_graph::json::type_name;
use serde_json::{Map, Value as Json};

use crate::classes::{self, CONTROL, CONTROL_VALUES, CONTROLLED, Role};
use crate::error::{ImportError, shorten};
use crate::workflow::{MAX_SOCKETS, check_count};

/// The workflow and the subgraphs that it defines, by the class of their instances.
pub(super) struct Document<'a> {
    pub root: Page<'a>,
    pub subgraphs: HashMap<&'a str, Page<'a>>,
}

/// A set of nodes and the links between them.
pub(super) struct Page<'a> {
    pub nodes: Vec<UiNode<'a>>,
    /// Places in `nodes` by key.
    pub index: HashMap<String, usize>,
    /// Where links come from, by their own key.
    pub links: HashMap<String, Origin>,
    /// Key of the node that stands for a subgraph's inputs.
    pub entry: String,
    /// Names of a subgraph's inputs, and their slots by name.
    pub input_names: Vec<&'a str>,
    pub input_slots: HashMap<&'a str, usize>,
    /// What a subgraph's outputs are wired to.
    pub results: HashMap<usize, Origin>,
    pub output_count: usize,
    /// Inputs, outputs and widgets of all nodes: what it costs to unfold the page.
    pub sockets: usize,
}

/// An output of a node on the same page.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Origin {
    pub key: String,
    pub slot: usize,
}

pub(super) struct UiNode<'a> {
    pub key: String,
    pub class: &'a str,
    pub title: Option<&'a str>,
    pub mode: Mode,
    pub inputs: Vec<UiInput<'a>>,
    /// Kinds of the outputs.
    pub outputs: Vec<&'a str>,
    /// Widget values by name, for known classes.
    pub widgets: Vec<(&'a str, &'a Json)>,
    /// A control value other than "fixed" on a node that is a constant, and so vanishes.
    pub loose_control: Option<&'a str>,
    pub fields: &'a Map<String, Json>,
}

pub(super) struct UiInput<'a> {
    pub name: &'a str,
    pub kind: &'a str,
    pub link: Option<String>,
    /// Whether it is a widget's socket.
    pub is_widget: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Active,
    Muted,
    Bypassed,
}

impl<'a> Document<'a> {
    pub fn parse(fields: &'a Map<String, Json>) -> Result<Self, ImportError> {
        let mut subgraphs = HashMap::new();
        let definitions = fields.get("definitions").and_then(|definitions| definitions.get("subgraphs"));
        for (place, definition) in list(definitions, "\"definitions.subgraphs\"")?.iter().enumerate() {
            let what = format!("definitions.subgraphs[{place}]");
            let Json::Object(definition) = definition else {
                return Err(ImportError::shape(format!("{what} must be an object, not {}", type_name(definition))));
            };
            let Some(Json::String(id)) = definition.get("id") else {
                return Err(ImportError::shape(format!("{what} has no id; a subgraph is found by its id")));
            };
            if subgraphs.insert(id.as_str(), Page::parse(definition, true)?).is_some() {
                return Err(ImportError::shape(format!("two subgraphs have the id {}", shorten(id))));
            }
        }
        Ok(Self { root: Page::parse(fields, false)?, subgraphs })
    }
}

impl<'a> Page<'a> {
    fn parse(fields: &'a Map<String, Json>, is_subgraph: bool) -> Result<Self, ImportError> {
        let nodes = list(fields.get("nodes"), "\"nodes\"")?;
        check_count(nodes.len())?;
        let nodes: Vec<_> =
            nodes.iter().enumerate().map(|(place, node)| parse_node(place, node)).collect::<Result<_, _>>()?;
        let mut index = HashMap::with_capacity(nodes.len());
        for (place, node) in nodes.iter().enumerate() {
            if index.insert(node.key.clone(), place).is_some() {
                return Err(ImportError::node_shape(&node.key, "two nodes have this id; rename one"));
            }
        }
        let border = |name: &str, usual: &str| {
            fields.get(name).and_then(|node| node.get("id")).and_then(key).unwrap_or_else(|| usual.to_owned())
        };
        let (entry, exit) = (border("inputNode", "-10"), border("outputNode", "-20"));
        let (mut input_names, mut output_count) = (Vec::new(), 0);
        if is_subgraph {
            let name = |input: &'a Json| input.get("name").and_then(Json::as_str).unwrap_or_default();
            input_names = list(fields.get("inputs"), "a subgraph's \"inputs\"")?.iter().map(name).collect();
            output_count = list(fields.get("outputs"), "a subgraph's \"outputs\"")?.len();
        }
        let mut input_slots = HashMap::new();
        for (slot, name) in input_names.iter().enumerate() {
            input_slots.entry(*name).or_insert(slot);
        }
        let mut links = HashMap::new();
        let mut results = HashMap::new();
        for (place, link) in list(fields.get("links"), "\"links\"")?.iter().enumerate() {
            if link.is_null() {
                continue;
            }
            let (id, origin, (target, slot)) = parse_link(link).ok_or_else(|| {
                let what = "a list or an object of id, origin id and slot, target id and slot";
                ImportError::shape(format!("links[{place}] must be {what}"))
            })?;
            if is_subgraph && target == exit {
                results.insert(slot, origin.clone());
            }
            if let Some(other) = links.insert(id.clone(), origin.clone())
                && other != origin
            {
                return Err(ImportError::shape(format!("two links have the id {}", shorten(&id))));
            }
        }
        let sockets =
            nodes.iter().map(|node| node.inputs.len() + node.outputs.len() + node.widgets.len()).sum::<usize>();
        let sockets = sockets + input_names.len() + output_count;
        if sockets > MAX_SOCKETS {
            return Err(ImportError::TooLarge(format!("the workflow has more than {MAX_SOCKETS} sockets")));
        }
        Ok(Self { nodes, index, links, entry, input_names, input_slots, results, output_count, sockets })
    }
}

fn parse_node<'a>(place: usize, value: &'a Json) -> Result<UiNode<'a>, ImportError> {
    let Json::Object(fields) = value else {
        return Err(ImportError::shape(format!("nodes[{place}] must be an object, not {}", type_name(value))));
    };
    let Some(node_key) = fields.get("id").and_then(key) else {
        return Err(ImportError::shape(format!("nodes[{place}] needs an id that is a number or a text")));
    };
    let wrong = |message: String| ImportError::node_shape(&node_key, message);
    let Some(Json::String(class)) = fields.get("type") else {
        return Err(wrong("\"type\" must be the name of the node's class".to_owned()));
    };
    let mode = match fields.get("mode") {
        None | Some(Json::Null) => Mode::Active,
        Some(mode) => match mode.as_u64() {
            Some(2) => Mode::Muted,
            Some(4) => Mode::Bypassed,
            Some(_) => Mode::Active,
            None => return Err(wrong("\"mode\" must be a number; 0 is active".to_owned())),
        },
    };
    let inputs = list(fields.get("inputs"), "\"inputs\"").map_err(|error| wrong(error.to_string()))?;
    let inputs = inputs.iter().map(parse_input).collect::<Option<Vec<_>>>();
    let inputs =
        inputs.ok_or_else(|| wrong("each of \"inputs\" must be an object with a name and a link".to_owned()))?;
    let outputs = list(fields.get("outputs"), "\"outputs\"").map_err(|error| wrong(error.to_string()))?;
    let (widgets, control) = widgets(class, fields.get("widgets_values"));
    let is_constant = classes::find(class).is_some_and(|known| known.role == Role::Constant);
    Ok(UiNode {
        class,
        title: fields.get("title").and_then(Json::as_str),
        mode,
        inputs,
        outputs: outputs.iter().map(kind).collect(),
        widgets,
        loose_control: control.filter(|control| is_constant && *control != "fixed" && mode == Mode::Active),
        fields,
        key: node_key,
    })
}

fn parse_input(value: &Json) -> Option<UiInput<'_>> {
    let link = match value.get("link") {
        None | Some(Json::Null) => None,
        Some(link) => Some(key(link)?),
    };
    let name = value.get("name")?.as_str()?;
    Some(UiInput { name, kind: kind(value), link, is_widget: value.get("widget").is_some_and(Json::is_object) })
}

fn kind(slot: &Json) -> &str {
    slot.get("type").and_then(Json::as_str).unwrap_or_default()
}

/// A link as `[id, origin, slot, target, slot, kind]`, or as an object of the same.
fn parse_link(value: &Json) -> Option<(String, Origin, (String, usize))> {
    let field = |place: usize, name: &str| match value {
        Json::Array(items) => items.get(place),
        other => other.get(name),
    };
    let slot = |value: &Json| match value {
        Json::String(text) => text.parse().ok(),
        other => usize::try_from(other.as_u64()?).ok(),
    };
    let origin = Origin { key: key(field(1, "origin_id")?)?, slot: slot(field(2, "origin_slot")?)? };
    let target = (key(field(3, "target_id")?)?, slot(field(4, "target_slot")?)?);
    Some((key(field(0, "id")?)?, origin, target))
}

/// Widget values by name, for a known class, and the value of the control widget.
fn widgets<'a>(class: &str, values: Option<&'a Json>) -> (Vec<(&'a str, &'a Json)>, Option<&'a str>) {
    let Some(known) = classes::find(class) else { return (Vec::new(), None) };
    let mut named = Vec::new();
    let mut control = None;
    match values {
        Some(Json::Object(values)) => {
            named.extend(known.widgets.iter().filter_map(|name| Some((*name, values.get(*name)?))));
        }
        Some(Json::Array(values)) => {
            let mut values = values.iter().peekable();
            for name in known.widgets {
                let Some(value) = values.next() else { break };
                named.push((*name, value));
                let controlled = CONTROLLED.contains(name) || known.role == Role::Constant;
                // Files written by scripts lack the control widget's value, so it is known by what it holds.
                let is_control = |value: &&Json| value.as_str().is_some_and(|text| CONTROL_VALUES.contains(&text));
                if controlled && let Some(value) = values.next_if(is_control) {
                    named.push((CONTROL, value));
                    control = value.as_str();
                }
            }
        }
        _ => {}
    }
    (named, control)
}

/// An id, written as a number or as a text.
pub(super) fn key(value: &Json) -> Option<String> {
    match value {
        Json::String(text) => Some(text.clone()),
        Json::Number(number) => match number.as_f64() {
            _ if number.is_i64() || number.is_u64() => Some(number.to_string()),
            Some(float) if float.fract() == 0.0 && float.abs() < 1e15 => Some(format!("{float:.0}")),
            _ => None,
        },
        _ => None,
    }
}

pub(super) fn list<'a>(value: Option<&'a Json>, what: &str) -> Result<&'a [Json], ImportError> {
    match value {
        None | Some(Json::Null) => Ok(&[]),
        Some(Json::Array(items)) => Ok(items),
        Some(other) => Err(ImportError::shape(format!("{what} must be a list, not {}", type_name(other)))),
    }
}
