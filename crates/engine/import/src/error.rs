//! Why a workflow gives no graph.

use std::fmt::Write;

use engine_graph::json::JsonError;
use serde::Serialize;

/// A node that has no counterpart here, or has one that doesn't mean the same as it is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Unmapped {
    /// The node's id in the workflow; within subgraphs `instance:inner`, as ComfyUI writes it.
    pub node_id: String,
    /// The node's class, such as `LoraLoader`.
    pub class_type: String,
    /// The title that its author gave it.
    pub title: Option<String>,
    /// What is in the way, and where there is one, what to change in the workflow.
    pub reason: String,
}

/// A workflow that can't be imported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The bytes aren't JSON, or an object holds a key twice.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// JSON, but not the shape of a workflow.
    #[error("{}{message}", at(.node_id.as_deref()))]
    Shape {
        /// What was found and what belongs there.
        message: String,
        /// The node that it is about, where there is one.
        node_id: Option<String>,
    },
    /// The workflow, or what its subgraphs unfold to, passes a limit.
    #[error("{0}")]
    TooLarge(String),
    /// No node saves or shows a picture.
    #[error("no active SaveImage or PreviewImage node shows a picture that is made here; add one{}", listed(.unmapped))]
    NoTarget {
        /// Nodes that couldn't be mapped either.
        unmapped: Vec<Unmapped>,
    },
    /// Before every node that saves or shows a picture stands one that can't be mapped.
    #[error("no picture of this workflow can be made with the nodes of this engine{}", listed(.unmapped))]
    Unmappable {
        /// All nodes that couldn't be mapped.
        unmapped: Vec<Unmapped>,
    },
}

impl ImportError {
    /// The nodes that couldn't be mapped, where that is the reason.
    pub fn unmapped(&self) -> &[Unmapped] {
        match self {
            Self::NoTarget { unmapped } | Self::Unmappable { unmapped } => unmapped,
            Self::Json(_) | Self::Shape { .. } | Self::TooLarge(_) => &[],
        }
    }

    pub(crate) fn shape(message: impl Into<String>) -> Self {
        Self::Shape { message: message.into(), node_id: None }
    }

    pub(crate) fn node_shape(node_id: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Shape { message: message.into(), node_id: Some(node_id.into()) }
    }
}

impl std::fmt::Display for Unmapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}", self.node_id, self.class_type)?;
        if let Some(title) = &self.title {
            write!(f, ", {title:?}")?;
        }
        write!(f, "): {}", self.reason)
    }
}

fn at(node_id: Option<&str>) -> String {
    node_id.map(|id| format!("node {}: ", shorten(id))).unwrap_or_default()
}

fn listed(unmapped: &[Unmapped]) -> String {
    let mut text = String::new();
    for (place, node) in unmapped.iter().enumerate() {
        // Writing to a String can't fail.
        let _ = write!(text, "{}\n  {node}", if place == 0 { "; what is in the way:" } else { "" });
    }
    text
}

/// A name from the workflow as it appears in messages: without control characters, and cut so that a huge one can't
/// flood a log.
pub(crate) fn shorten(name: &str) -> String {
    const SHOWN: usize = 80;
    let mut text: String = name.chars().take(SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if name.chars().nth(SHOWN).is_some() {
        text.push('…');
    }
    text
}

/// A note on nodes of which nothing is made, if there are any.
pub(crate) fn left_out(why: &str, nodes: &[String]) -> Option<String> {
    const SHOWN: usize = 20;
    let mut text = nodes.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if nodes.len() > SHOWN {
        let _ = write!(text, " and {} more", nodes.len() - SHOWN);
    }
    (!nodes.is_empty()).then(|| format!("left out, as {why}: {text}"))
}
