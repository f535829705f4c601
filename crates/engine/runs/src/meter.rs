//! What the engine tells of its work through the `metrics` facade. Without a recorder that costs next to nothing.

use crate::live::LiveRun;
use crate::state::RunStatus;
use engine_graph::{Event, Observer, ValidGraph};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A run left the queue after `waited`.
pub(crate) fn run_started(waited: Duration) {
    metrics::histogram!("inline_run_queue_seconds").record(waited);
}

/// A run ended; `worked` is none for one that never left the queue.
pub(crate) fn run_ended(status: RunStatus, worked: Option<Duration>) {
    metrics::counter!("inline_runs_ended_total", "status" => status.as_str()).increment(1);
    if let Some(worked) = worked {
        metrics::histogram!("inline_run_duration_seconds", "status" => status.as_str()).record(worked);
    }
}

/// A look into the cache; `result` is `memory`, `disk` or `miss`.
pub(crate) fn cache_lookup(result: &'static str) {
    metrics::counter!("inline_cache_lookups_total", "result" => result).increment(1);
}

/// A take of so many bytes was listed.
pub(crate) fn take_listed(bytes: u64) {
    metrics::counter!("inline_takes_total").increment(1);
    metrics::counter!("inline_take_bytes_total").increment(bytes);
}

/// Times the nodes of one run on their way to its observer.
pub(crate) struct NodeTimes<'a> {
    live: &'a LiveRun,
    types: HashMap<&'a str, &'a str>,
    /// Nodes of a run go one after another.
    started: Mutex<Option<Instant>>,
}

impl<'a> NodeTimes<'a> {
    pub(crate) fn new(live: &'a LiveRun, graph: &'a ValidGraph) -> Self {
        let types = graph.nodes().iter().map(|node| (node.id(), node.node_type())).collect();
        Self { live, types, started: Mutex::default() }
    }
}

impl Observer for NodeTimes<'_> {
    fn event(&self, event: Event<'_>) {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Started { .. } => *started = Some(Instant::now()),
            Event::Done { node_id, cached: false } => {
                if let (Some(start), Some(node_type)) = (started.take(), self.types.get(node_id)) {
                    let node_type = (*node_type).to_owned();
                    metrics::histogram!("inline_node_duration_seconds", "type" => node_type).record(start.elapsed());
                }
            }
            _ => {}
        }
        drop(started);
        self.live.event(event);
    }

    fn wants_previews(&self) -> bool {
        self.live.wants_previews()
    }
}
