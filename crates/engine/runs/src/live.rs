//! A run that is queued or in work: its state, and the events that its watchers get.

use crate::engine::LiveEntry;
use crate::picture::encode_jpeg;
use crate::state::{NodePhase, NodeState, RunFailure, RunState, RunStatus, Take, rounded};
use engine_graph::{Event, Observer, Progress};
use gen_core::CancelFlag;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};

/// Progress of one run is sent this often at most.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// Events that a watcher may be behind before it gets a fresh snapshot instead.
const WATCHER_LAG: usize = 256;
/// Events that a returning watcher can catch up on.
const HISTORY: usize = 512;

/// An event as it is sent: JSON with its number.
#[derive(Debug, Clone)]
pub struct RunEvent {
    /// Its number within the run, from 1.
    pub seq: u64,
    /// The frame's text.
    pub json: Arc<str>,
    /// Whether it is the last one.
    pub terminal: bool,
}

/// How a node's result looks so far.
#[derive(Debug, Clone)]
pub struct Preview {
    /// The text frame that announces it.
    pub json: Arc<str>,
    /// A small JPEG.
    pub jpeg: Arc<[u8]>,
}

struct Inner {
    state: RunState,
    /// The state as JSON, until it changes: many ask for it between two changes.
    served: Option<Arc<str>>,
    seq: u64,
    history: VecDeque<RunEvent>,
    /// When progress was last sent, and of which node and phase.
    last_progress: Option<(Instant, String, engine_graph::Phase)>,
}

/// A run in memory.
pub struct LiveRun {
    /// Stops it.
    pub cancel: CancelFlag,
    inner: Mutex<Inner>,
    sender: broadcast::Sender<RunEvent>,
    /// The last preview: who is slow gets the newest one.
    previews: watch::Sender<Option<Preview>>,
}

/// What a watcher starts from: the state, what it missed, and what comes.
pub struct Subscription {
    /// The state when the subscription began, with the number of the last event in it.
    pub state: RunState,
    /// That number.
    pub seq: u64,
    /// Events after the number that the watcher last saw.
    pub missed: Vec<RunEvent>,
    /// Events to come.
    pub receiver: broadcast::Receiver<RunEvent>,
    /// Previews to come, when they were asked for.
    pub previews: Option<watch::Receiver<Option<Preview>>>,
}

impl LiveRun {
    pub(crate) fn new(state: RunState) -> Self {
        let inner = Inner { state, served: None, seq: 0, history: VecDeque::new(), last_progress: None };
        Self {
            cancel: CancelFlag::new(),
            inner: Mutex::new(inner),
            sender: broadcast::channel(WATCHER_LAG).0,
            previews: watch::channel(None).0,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock for those that change the state.
    fn change(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.lock();
        inner.served = None;
        inner
    }

    /// The state now.
    pub fn state(&self) -> RunState {
        self.lock().state.clone()
    }

    /// Its line in the list of live runs; `None` once it has ended.
    pub(crate) fn entry(&self, queue_position: Option<usize>) -> Option<LiveEntry> {
        let state = &self.lock().state;
        (!state.status.is_final()).then(|| LiveEntry {
            run_id: state.run_id.clone(),
            status: state.status,
            target: state.target.clone(),
            fraction: rounded(state.fraction),
            created_at: state.created_at,
            queue_position,
        })
    }

    /// The state now, as JSON.
    pub fn state_json(&self) -> Arc<str> {
        let mut inner = self.lock();
        if let Some(served) = &inner.served {
            return Arc::clone(served);
        }
        let served: Arc<str> = json!(inner.state).to_string().into();
        inner.served = Some(Arc::clone(&served));
        served
    }

    /// Where it stands now.
    pub fn status(&self) -> RunStatus {
        self.lock().state.status
    }

    /// Watches the run from now on; with `after`, also gets what was sent since that event. Previews are made while
    /// somebody wants them.
    pub fn subscribe(&self, after: Option<u64>, previews: bool) -> Subscription {
        let inner = self.lock();
        let missed = match after {
            Some(after) => inner.history.iter().filter(|e| e.seq > after).cloned().collect(),
            None => Vec::new(),
        };
        // Subscribing under the lock: nothing falls between the state and the first event.
        Subscription {
            state: inner.state.clone(),
            seq: inner.seq,
            missed,
            receiver: self.sender.subscribe(),
            previews: previews.then(|| self.previews.subscribe()),
        }
    }

    /// Resolves when the run has ended.
    pub(crate) async fn ended(&self) {
        let mut watch = self.subscribe(None, false);
        while !self.status().is_final() && !matches!(watch.receiver.recv().await, Err(RecvError::Closed)) {}
    }

    fn send(&self, inner: &mut Inner, mut event: Value, terminal: bool) {
        inner.seq += 1;
        event["runId"] = json!(inner.state.run_id);
        event["seq"] = json!(inner.seq);
        let event = RunEvent { seq: inner.seq, json: event.to_string().into(), terminal };
        inner.history.push_back(event.clone());
        if inner.history.len() > HISTORY {
            inner.history.pop_front();
        }
        // Nobody watching is fine.
        let _ = self.sender.send(event);
    }

    pub(crate) fn started(&self) {
        let mut inner = self.change();
        inner.state.status = RunStatus::Running;
        self.send(&mut inner, json!({"type": "run_started"}), false);
    }

    /// The state as it is to be when the run has ended. Nobody sees it before [`LiveRun::end`].
    pub(crate) fn ending(&self, status: RunStatus, error: Option<RunFailure>) -> RunState {
        let mut state = self.state();
        if let Some(node) = error.as_ref().and_then(|e| state.nodes.get_mut(e.node_id.as_ref()?)) {
            node.end(NodePhase::Error);
        }
        state.status = status;
        state.error = error;
        state.refresh_fraction();
        state
    }

    /// Shows the end that the caller has stored, and tells the watchers.
    pub(crate) fn end(&self, state: RunState) {
        let mut inner = self.change();
        inner.state = state;
        let event = terminal_event(&inner.state);
        self.send(&mut inner, event, true);
    }

    pub(crate) fn add_take(&self, take: Take) {
        self.change().state.takes.push(take);
    }

    fn node_progress(&self, node_id: &str, progress: &Progress) {
        let mut inner = self.change();
        if let Some(node) = inner.state.nodes.get_mut(node_id) {
            node.progress(progress);
        }
        inner.state.refresh_fraction();
        let now = Instant::now();
        let too_soon = inner.last_progress.as_ref().is_some_and(|(at, node, phase)| {
            now - *at < PROGRESS_INTERVAL && node == node_id && *phase == progress.phase
        });
        if too_soon {
            return;
        }
        inner.last_progress = Some((now, node_id.to_owned(), progress.phase));
        let mut event = json!({
            "type": "progress",
            "nodeId": node_id,
            "phase": progress.phase,
            "fraction": rounded(progress.fraction),
            "status": progress.status,
        });
        let optional = [
            ("step", progress.step.map(u64::from)),
            ("stepCount", progress.step_count.map(u64::from)),
            ("etaMs", progress.eta_ms),
        ];
        for (key, value) in optional {
            if let Some(value) = value {
                event[key] = json!(value);
            }
        }
        self.send(&mut inner, event, false);
    }

    fn preview(&self, node_id: &str, image: &gen_core::Image) {
        let jpeg = match encode_jpeg(image) {
            Ok(jpeg) => jpeg,
            Err(error) => return tracing::warn!(%error, "a preview couldn't be encoded"),
        };
        let inner = self.lock();
        let json = json!({
            "type": "preview",
            "runId": inner.state.run_id,
            "nodeId": node_id,
            "seq": inner.seq,
            "mime": "image/jpeg",
            "width": image.width(),
            "height": image.height(),
            "bytes": jpeg.len(),
        });
        self.previews.send_replace(Some(Preview { json: json.to_string().into(), jpeg: jpeg.into() }));
    }

    fn node_done(&self, node_id: &str, cached: bool) {
        let mut inner = self.change();
        if let Some(node) = inner.state.nodes.get_mut(node_id) {
            node.end(if cached { NodePhase::Cached } else { NodePhase::Done });
        }
        inner.state.refresh_fraction();
        let takes: Vec<&Take> = inner.state.takes.iter().filter(|take| take.node_id == node_id).collect();
        let event = json!({"type": "node_done", "nodeId": node_id, "cached": cached, "takes": takes});
        self.send(&mut inner, event, false);
    }
}

/// The last event of an ended run, without its number.
pub fn terminal_event(state: &RunState) -> Value {
    match state.status {
        RunStatus::Done => json!({"type": "run_done", "runId": state.run_id}),
        RunStatus::Cancelled => json!({"type": "cancelled", "runId": state.run_id}),
        _ => {
            let message = state.error.as_ref().map_or("", |e| e.message.as_str());
            let node = state.error.as_ref().and_then(|e| e.node_id.as_deref());
            json!({"type": "error", "runId": state.run_id, "message": message, "nodeId": node})
        }
    }
}

impl Observer for LiveRun {
    fn event(&self, event: Event<'_>) {
        match event {
            Event::Started { node_id } => {
                let mut inner = self.change();
                if let Some(node) = inner.state.nodes.get_mut(node_id) {
                    *node = NodeState { state: NodePhase::Running, ..NodeState::queued() };
                }
            }
            Event::Progress { node_id, progress } => self.node_progress(node_id, progress),
            Event::Done { node_id, cached } => self.node_done(node_id, cached),
            Event::Preview { node_id, image } => self.preview(node_id, &image),
            // The run's end tells of it.
            Event::Failed { .. } => {}
        }
    }

    fn wants_previews(&self) -> bool {
        self.previews.receiver_count() > 0
    }
}
