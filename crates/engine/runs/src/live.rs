//! A run in memory: its state, and the events that its watchers get.

use crate::history::{History, Pace, RunEvent};
use crate::picture;
use crate::state::{NodePhase, NodeState, RunFailure, RunState, RunStatus, Take, now_ms};
use engine_graph::{Event, Observer, Progress};
use gen_core::{CancelFlag, Image};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Pictures on the way are shown this often at most.
const PREVIEW_INTERVAL: Duration = Duration::from_millis(100);

struct Inner {
    state: RunState,
    /// Number of the last event.
    seq: u64,
    history: History,
    pace: Pace,
    preview: Option<Preview>,
}

/// How a result looks so far.
#[derive(Debug, Clone)]
struct Preview {
    number: u64,
    made: Instant,
    jpeg: Arc<[u8]>,
}

/// A run in memory.
pub(crate) struct LiveRun {
    /// Stops it.
    pub(crate) cancel: CancelFlag,
    inner: Mutex<Inner>,
    changed: watch::Sender<()>,
    preview_watchers: AtomicUsize,
}

impl LiveRun {
    /// A run whose events are numbered from above `seq`.
    pub(crate) fn new(state: RunState, seq: u64) -> Self {
        let pace = Pace::new(Instant::now());
        let inner = Inner { state, seq, history: History::default(), pace, preview: None };
        Self {
            cancel: CancelFlag::new(),
            inner: Mutex::new(inner),
            changed: watch::Sender::new(()),
            preview_watchers: AtomicUsize::new(0),
        }
    }

    /// A run that ended, `seq` being the number of its last event.
    pub(crate) fn ended(state: RunState, seq: u64) -> Self {
        let event = terminal_event(&state);
        let run = Self::new(state, seq.saturating_sub(1));
        run.send(&mut run.lock(), event, Kind::Terminal);
        run
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> RunState {
        self.lock().state.clone()
    }

    pub(crate) fn status(&self) -> RunStatus {
        self.lock().state.status
    }

    /// Calls `look` with the state, without copying it.
    pub(crate) fn with_state<T>(&self, look: impl FnOnce(&RunState) -> T) -> T {
        look(&self.lock().state)
    }

    /// Resolves when the run has ended.
    pub(crate) async fn until_ended(&self) {
        let mut changed = self.changed.subscribe();
        while !self.status().is_final() && changed.changed().await.is_ok() {}
    }

    fn send(&self, inner: &mut Inner, mut event: Value, kind: Kind) {
        inner.seq += 1;
        event["runId"] = json!(inner.state.run_id);
        event["seq"] = json!(inner.seq);
        let event = RunEvent { seq: inner.seq, json: event.to_string().into(), terminal: kind == Kind::Terminal };
        match kind {
            Kind::Progress => inner.history.add_progress(event),
            Kind::Milestone | Kind::Terminal => inner.history.add_milestone(event),
        }
        self.changed.send_replace(());
    }

    pub(crate) fn started(&self) {
        let mut inner = self.lock();
        inner.state.status = RunStatus::Running;
        self.send(&mut inner, json!({"type": "run_started"}), Kind::Milestone);
    }

    /// The state as it will be after that end, and the number of the event that will tell of it: to be stored before anyone
    /// sees it.
    pub(crate) fn end_state(&self, status: RunStatus, error: Option<RunFailure>) -> (RunState, u64) {
        let inner = self.lock();
        let mut state = inner.state.clone();
        for (id, node) in &mut state.nodes {
            if error.as_ref().and_then(|e| e.node_id.as_ref()) == Some(id) {
                node.rest(NodePhase::Error);
            } else if node.state == NodePhase::Running {
                node.rest(NodePhase::Queued);
            }
        }
        state.status = status;
        state.error = error;
        state.ended_at = Some(now_ms());
        state.refresh_fraction();
        (state, inner.seq + 1)
    }

    /// Sets the end and tells the watchers.
    pub(crate) fn end(&self, state: RunState) {
        let mut inner = self.lock();
        let event = terminal_event(&state);
        inner.state = state;
        inner.history.forget_progress();
        inner.preview = None;
        self.send(&mut inner, event, Kind::Terminal);
    }

    pub(crate) fn add_take(&self, take: Take) {
        self.lock().state.takes.push(take);
    }

    /// The nodes that a run consists of, when that is only known once its graph is read.
    pub(crate) fn set_nodes(&self, ids: impl Iterator<Item = String>) {
        self.lock().state.nodes = ids.map(|id| (id, NodeState::queued())).collect();
    }

    fn node_progress(&self, node_id: &str, progress: &Progress) {
        let mut inner = self.lock();
        if let Some(node) = inner.state.nodes.get_mut(node_id) {
            node.progress(progress);
        }
        inner.state.refresh_fraction();
        let event = progress_event(node_id, progress);
        if let Some(event) = inner.pace.offer(Instant::now(), node_id, progress.phase, event) {
            self.send(&mut inner, event, Kind::Progress);
        }
    }

    /// Sends the progress that was held back, when its time has come. To be called every now and then.
    pub(crate) fn flush_progress(&self) {
        let mut inner = self.lock();
        if let Some(event) = inner.pace.due(Instant::now()) {
            self.send(&mut inner, event, Kind::Progress);
        }
    }

    fn node_done(&self, node_id: &str, cached: bool) {
        let mut inner = self.lock();
        if let Some(node) = inner.state.nodes.get_mut(node_id) {
            node.rest(if cached { NodePhase::Cached } else { NodePhase::Done });
        }
        inner.state.refresh_fraction();
        inner.pace.drop_of(node_id);
        let takes: Vec<&Take> = inner.state.takes.iter().filter(|take| take.node_id == node_id).collect();
        let event = json!({"type": "node_done", "nodeId": node_id, "cached": cached, "takes": takes});
        self.send(&mut inner, event, Kind::Milestone);
    }

    fn preview(&self, image: &Image) {
        let made = Instant::now();
        let recent = |inner: &Inner| inner.preview.as_ref().is_some_and(|p| made - p.made < PREVIEW_INTERVAL);
        if recent(&self.lock()) {
            return;
        }
        let Ok(jpeg) = picture::encode_jpeg(image) else { return };
        let mut inner = self.lock();
        let number = inner.preview.as_ref().map_or(1, |p| p.number + 1);
        inner.preview = Some(Preview { number, made, jpeg: jpeg.into() });
        self.changed.send_replace(());
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Progress,
    Milestone,
    Terminal,
}

fn progress_event(node_id: &str, progress: &Progress) -> Value {
    let mut event = json!({
        "type": "progress",
        "nodeId": node_id,
        "phase": progress.phase,
        "fraction": progress.fraction,
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
    event
}

/// The last event of an ended run, without its number.
fn terminal_event(state: &RunState) -> Value {
    match state.status {
        RunStatus::Done => json!({"type": "run_done"}),
        RunStatus::Cancelled => json!({"type": "cancelled"}),
        _ => {
            let message = state.error.as_ref().map_or("", |e| e.message.as_str());
            let node = state.error.as_ref().and_then(|e| e.node_id.as_deref());
            json!({"type": "error", "message": message, "nodeId": node})
        }
    }
}

impl Observer for LiveRun {
    fn event(&self, event: Event<'_>) {
        match event {
            Event::Started { node_id } => {
                if let Some(node) = self.lock().state.nodes.get_mut(node_id) {
                    *node = NodeState::running();
                }
            }
            Event::Progress { node_id, progress } => self.node_progress(node_id, progress),
            Event::Done { node_id, cached } => self.node_done(node_id, cached),
            Event::Preview { image, .. } => self.preview(&image),
            // The run's end tells of it.
            Event::Failed { .. } => {}
        }
    }

    fn wants_previews(&self) -> bool {
        self.preview_watchers.load(Ordering::Relaxed) > 0
    }
}

/// What a watcher is sent.
#[derive(Debug, Clone)]
pub enum Frame {
    /// The whole state: the first frame, and what a watcher gets that fell too far behind.
    Snapshot {
        /// The state.
        state: Box<RunState>,
        /// Number of the last event that is in it.
        seq: u64,
    },
    /// An event.
    Event(RunEvent),
    /// How the result looks so far, as JPEG.
    Preview(Arc<[u8]>),
}

/// Follows a run: a snapshot, then every event to the last. Nothing is queued for it; it reads where it stands from the
/// run's history, so a slow one costs nothing.
pub struct Watcher {
    run: Arc<LiveRun>,
    changed: watch::Receiver<()>,
    /// Number of the last event sent.
    at: u64,
    /// Progress up to this number is of no use to this watcher.
    progress_after: u64,
    needs_snapshot: bool,
    /// Number of the last preview sent, if previews are wanted.
    previews: Option<u64>,
    ended: bool,
}

impl Watcher {
    /// Watches from now on; with `after`, also gets what was sent since that event.
    pub(crate) fn new(run: Arc<LiveRun>, after: Option<u64>, previews: bool) -> Self {
        let changed = run.changed.subscribe();
        if previews {
            run.preview_watchers.fetch_add(1, Ordering::Relaxed);
        }
        let inner = run.lock();
        let ended = inner.state.status.is_final();
        // The last event follows in any case. A number from another life of the run says nothing.
        let last = if ended { inner.seq.saturating_sub(1) } else { inner.seq };
        let at = after.filter(|after| *after <= inner.seq).map_or(last, |after| after.min(last));
        let progress_after = inner.history.forgotten();
        drop(inner);
        Self { run, changed, at, progress_after, needs_snapshot: true, previews: previews.then_some(0), ended: false }
    }

    /// The next frame, when there is one; `None` after the last event. May be dropped while it waits without losing anything.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            // Before looking, so that no change falls in between.
            self.changed.borrow_and_update();
            if self.ended {
                return None;
            }
            if let Some(frame) = self.take() {
                return Some(frame);
            }
            self.changed.changed().await.ok()?;
        }
    }

    fn take(&mut self) -> Option<Frame> {
        let inner = self.run.lock();
        if self.needs_snapshot {
            self.needs_snapshot = false;
            return Some(Frame::Snapshot { state: Box::new(inner.state.clone()), seq: inner.seq });
        }
        // Progress was forgotten that this watcher hasn't had: it starts over from the state of now. Events other than
        // progress still follow.
        if inner.history.forgotten() > self.at.max(self.progress_after) && !inner.state.status.is_final() {
            self.progress_after = inner.seq;
            return Some(Frame::Snapshot { state: Box::new(inner.state.clone()), seq: inner.seq });
        }
        if let Some(event) = inner.history.next(self.at, self.progress_after) {
            self.at = event.seq;
            self.ended = event.terminal;
            return Some(Frame::Event(event.clone()));
        }
        let preview = inner.preview.as_ref()?;
        let sent = self.previews.as_mut().filter(|sent| **sent < preview.number)?;
        *sent = preview.number;
        Some(Frame::Preview(Arc::clone(&preview.jpeg)))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if self.previews.is_some() {
            self.run.preview_watchers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
