//! The state of runs and takes, as the API shows it.

use engine_graph::{MediaKind, Phase, Progress};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RunStatus {
    /// Waiting.
    Queued,
    /// In work.
    Running,
    /// Ended with its target's outputs.
    Done,
    /// Ended with an error.
    Error,
    /// Ended because someone asked for it.
    Cancelled,
}

impl RunStatus {
    /// The name used in JSON and in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Done => "done",
            Self::Error => "error",
            Self::Cancelled => "cancelled",
        }
    }

    /// The status of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Queued, Self::Running, Self::Done, Self::Error, Self::Cancelled].into_iter().find(|s| s.as_str() == name)
    }

    /// Whether nothing more will happen.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Error | Self::Cancelled)
    }
}

/// Where a node stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum NodePhase {
    Queued,
    Running,
    Cached,
    Done,
    Error,
}

/// A node of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeState {
    /// Where it stands.
    pub state: NodePhase,
    /// How much of it is done, 0 to 1.
    #[serde(serialize_with = "short_fraction")]
    pub fraction: f32,
    /// What it is doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Step of the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// Steps of the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_count: Option<u32>,
    /// A few words for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
}

impl NodeState {
    /// A node that waits.
    pub fn queued() -> Self {
        Self { state: NodePhase::Queued, fraction: 0.0, phase: None, step: None, step_count: None, status: None }
    }

    pub(crate) fn progress(&mut self, progress: &Progress) {
        self.state = NodePhase::Running;
        self.fraction = progress.fraction;
        self.phase = Some(progress.phase);
        self.step = progress.step;
        self.step_count = progress.step_count;
        self.status = Some(progress.status.clone());
    }

    pub(crate) fn end(&mut self, state: NodePhase) {
        self.state = state;
        if state != NodePhase::Error {
            self.fraction = 1.0;
        }
        (self.phase, self.step, self.step_count, self.status) = (None, None, None, None);
    }
}

/// An immutable output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Take {
    /// Random id.
    pub id: String,
    /// The run that made it.
    pub run_id: String,
    /// The node that made it.
    pub node_id: String,
    /// What it is.
    pub kind: MediaKind,
    /// Path below the takes root.
    pub uri: String,
    /// `sha256-` and the hash of the bytes.
    pub hash: String,
    /// Everything needed to make it again.
    #[schema(value_type = Object)]
    pub params: Map<String, Value>,
    /// Unix milliseconds.
    pub created_at: i64,
    /// Media type of the bytes.
    #[serde(default)]
    pub mime: String,
}

/// Why a run failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunFailure {
    /// The node that failed.
    pub node_id: Option<String>,
    /// What to change.
    pub message: String,
}

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunState {
    /// Random id.
    pub run_id: String,
    /// Where it stands.
    pub status: RunStatus,
    /// The node that it is for.
    pub target: String,
    /// Mean of its nodes' fractions.
    #[serde(serialize_with = "short_fraction")]
    pub fraction: f32,
    /// Its nodes.
    pub nodes: BTreeMap<String, NodeState>,
    /// What it has made so far.
    pub takes: Vec<Take>,
    /// Why it failed.
    pub error: Option<RunFailure>,
    /// The id that the client gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_run_id: Option<String>,
    /// The object that the client gave with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub meta: Option<Value>,
    /// Unix milliseconds of its submission.
    pub created_at: i64,
}

impl RunState {
    pub(crate) fn refresh_fraction(&mut self) {
        let sum: f32 = self.nodes.values().map(|node| node.fraction).sum();
        self.fraction = match self.status {
            RunStatus::Done => 1.0,
            _ if self.nodes.is_empty() => 0.0,
            _ => sum / self.nodes.len() as f32,
        };
    }
}

/// A fraction with four digits, which is what a progress bar can show.
pub(crate) fn rounded(fraction: f32) -> f64 {
    (f64::from(fraction) * 1e4).round() / 1e4
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference
fn short_fraction<S: serde::Serializer>(fraction: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(rounded(*fraction))
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| d.as_millis() as i64)
}
