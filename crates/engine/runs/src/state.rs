//! The state of runs and takes, as the API shows it.

use engine_graph::{MediaKind, Phase, Progress};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    /// Every status.
    pub const ALL: [Self; 5] = [Self::Queued, Self::Running, Self::Done, Self::Error, Self::Cancelled];

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
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }

    /// Whether nothing more will happen.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Error | Self::Cancelled)
    }
}

/// Where a node of a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodePhase {
    /// It hasn't begun.
    Queued,
    /// In work.
    Running,
    /// Its outputs were there already, or nothing needed them.
    Cached,
    /// It has run.
    Done,
    /// It failed, and with it the run.
    Error,
}

/// A node of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeState {
    /// Where it stands.
    pub state: NodePhase,
    /// How much of it is done, 0 to 1.
    pub fraction: f32,
    /// What it is doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Step of the phase, from 1.
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

    pub(crate) fn running() -> Self {
        Self { state: NodePhase::Running, ..Self::queued() }
    }

    pub(crate) fn progress(&mut self, progress: &Progress) {
        self.state = NodePhase::Running;
        self.fraction = progress.fraction;
        self.phase = Some(progress.phase);
        self.step = progress.step;
        self.step_count = progress.step_count;
        self.status = Some(progress.status.clone());
    }

    /// Leaves what the node was doing for a state in which it does nothing.
    pub(crate) fn rest(&mut self, state: NodePhase) {
        let fraction = if matches!(state, NodePhase::Done | NodePhase::Cached) { 1.0 } else { self.fraction };
        *self = Self { state, fraction, ..Self::queued() };
    }
}

/// An immutable output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    pub params: Map<String, Value>,
    /// Unix milliseconds.
    pub created_at: i64,
    /// Media type of the bytes.
    pub mime: String,
    /// Number of bytes.
    pub bytes: i64,
}

/// Why a run failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunFailure {
    /// The node that failed; `None` when it was none of the nodes.
    pub node_id: Option<String>,
    /// What went wrong and what to change.
    pub message: String,
}

impl RunFailure {
    pub(crate) fn of_run(message: impl Into<String>) -> Self {
        Self { node_id: None, message: message.into() }
    }
}

/// A run in full.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunState {
    /// Random id.
    pub run_id: String,
    /// Where it stands.
    pub status: RunStatus,
    /// The node that it is for.
    pub target: String,
    /// Mean of its nodes' fractions.
    pub fraction: f32,
    /// The nodes that the target needs.
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
    pub meta: Option<Value>,
    /// Unix milliseconds of its submission.
    pub created_at: i64,
    /// Unix milliseconds of its end.
    pub ended_at: Option<i64>,
}

impl RunState {
    pub(crate) fn refresh_fraction(&mut self) {
        let sum: f64 = self.nodes.values().map(|node| f64::from(node.fraction)).sum();
        self.fraction = match self.status {
            RunStatus::Done => 1.0,
            _ if self.nodes.is_empty() => 0.0,
            _ => (sum / self.nodes.len() as f64) as f32,
        };
    }

    /// The entry of this run in lists.
    pub fn summary(&self) -> RunSummary {
        RunSummary {
            run_id: self.run_id.clone(),
            status: self.status,
            target: self.target.clone(),
            fraction: self.fraction,
            queue_position: None,
            client_run_id: self.client_run_id.clone(),
            error: self.error.clone(),
            created_at: self.created_at,
            ended_at: self.ended_at,
        }
    }
}

/// A run in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunSummary {
    /// Random id.
    pub run_id: String,
    /// Where it stands.
    pub status: RunStatus,
    /// The node that it is for.
    pub target: String,
    /// Mean of its nodes' fractions.
    pub fraction: f32,
    /// Its place in the queue, from 0; `None` once it has started.
    pub queue_position: Option<usize>,
    /// The id that the client gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_run_id: Option<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RunFailure>,
    /// Unix milliseconds of its submission.
    pub created_at: i64,
    /// Unix milliseconds of its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<i64>,
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| d.as_millis() as i64)
}
