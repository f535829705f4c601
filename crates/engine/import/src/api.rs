//! The API format: an object of nodes by id, each with its class and its inputs by name.

use std::collections::{BTreeMap, HashMap};

use engine_graph::json::type_name;
use serde_json::{Map, Value as Json};

use crate::error::{ImportError, shorten};
use crate::workflow::{Link, Node, Socket, Source, Workflow, body, check_count, check_id};

/// Reads the nodes.
pub(crate) fn read(fields: &Map<String, Json>) -> Result<Workflow<'_>, ImportError> {
    check_count(fields.len())?;
    let mut entries: Vec<_> = fields.iter().collect();
    // In the order of their numbers, whatever order the JSON reader keeps.
    entries.sort_by_key(|(id, _)| (id.parse().unwrap_or(u64::MAX), *id));
    let index: HashMap<&str, usize> = entries.iter().enumerate().map(|(place, (id, _))| (id.as_str(), place)).collect();
    let nodes = entries.iter().map(|(id, entry)| node(id, entry, &index)).collect::<Result<_, _>>()?;
    Ok(Workflow::new(nodes, Vec::new()))
}

fn node<'a>(id: &str, entry: &'a Json, index: &HashMap<&str, usize>) -> Result<Node<'a>, ImportError> {
    check_id(id)?;
    let wrong = |message: String| ImportError::node_shape(id, message);
    let Json::Object(fields) = entry else {
        return Err(wrong(format!("a node is an object with class_type and inputs, not {}", type_name(entry))));
    };
    let class = match fields.get("class_type") {
        Some(Json::String(class)) => class.as_str(),
        Some(other) => return Err(wrong(format!("\"class_type\" must be a text, not {}", type_name(other)))),
        None => return Err(wrong("\"class_type\" is missing; is this a ComfyUI workflow in API format?".to_owned())),
    };
    let mut sockets = BTreeMap::new();
    match fields.get("inputs") {
        Some(Json::Object(inputs)) => {
            sockets.extend(inputs.iter().map(|(name, value)| (name.as_str(), socket(value, index))));
        }
        None | Some(Json::Null) => {}
        Some(other) => {
            return Err(wrong(format!("\"inputs\" must be an object of names and values, not {}", type_name(other))));
        }
    }
    let title = fields.get("_meta").and_then(|meta| meta.get("title")).and_then(Json::as_str);
    Ok(Node { id: id.to_owned(), class, title, body: body(class, sockets) })
}

fn socket<'a>(value: &'a Json, index: &HashMap<&str, usize>) -> Socket<'a> {
    if let Json::Array(pair) = value
        && let [id, slot] = pair.as_slice()
        && let Some(slot) = slot.as_u64().and_then(|slot| usize::try_from(slot).ok())
        && let Some(id) = id.as_str().map(str::to_owned).or_else(|| id.as_u64().map(|id| id.to_string()))
    {
        let link = match index.get(id.as_str()) {
            Some(&node) => Source::Link(Link { node, slot }),
            None => Source::Broken(format!("it is linked to node {}, which isn't in the workflow", shorten(&id))),
        };
        return Socket { link: Some(link), widget: None };
    }
    // A list that is meant as a value is wrapped, so that it isn't taken for a link.
    Socket { link: None, widget: Some(value.get("__value__").unwrap_or(value)) }
}
