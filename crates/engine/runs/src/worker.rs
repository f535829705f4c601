//! Working off the queue.

use crate::engine::{Engine, Job};
use crate::meter::{self, NodeTimes};
use crate::state::{RunFailure, RunStatus};
use crate::takes;
use engine_graph::{Execution, NodeError, NodeOutput, OutputSink, RunError, validate};
use sha2::{Digest, Sha256};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

impl Engine {
    /// Runs one job after another until the engine stops.
    pub(crate) fn work(&self) {
        while let Some((id, job)) = self.next_job() {
            let start = Instant::now();
            meter::run_started(job.queued_at.elapsed());
            let outcome = catch_unwind(AssertUnwindSafe(|| self.execute(&id, &job)));
            let (status, failure) = outcome.unwrap_or_else(|_| {
                let message = "internal error; the engine's log has the details".to_owned();
                (RunStatus::Error, Some(RunFailure { node_id: None, message }))
            });
            // A run that was given back to the next process has no end here.
            if status != RunStatus::Cancelled || !job.given_back.load(Ordering::Acquire) {
                meter::run_ended(status, Some(start.elapsed()));
                self.finish(&id, &job, status, failure);
            }
            self.let_go(&id);
        }
    }

    fn finish(&self, id: &str, job: &Job, status: RunStatus, failure: Option<RunFailure>) {
        let state = job.live.ending(status, failure);
        if let Err(error) = self.handle.block_on(self.store.end(&state)) {
            // The watchers learn the outcome all the same; after a restart the run is tried once more.
            tracing::error!(%error, run = %id, "the end of a run couldn't be stored");
        }
        job.live.end(state);
        self.forget_later(id);
    }

    fn execute(&self, id: &str, job: &Job) -> (RunStatus, Option<RunFailure>) {
        if job.live.cancel.is_cancelled() {
            return (RunStatus::Cancelled, None);
        }
        let failed =
            |node_id: Option<String>, message: String| (RunStatus::Error, Some(RunFailure { node_id, message }));
        if let Err(error) = self.handle.block_on(self.store.start(id)) {
            tracing::error!(%error, run = %id, "a run couldn't be started");
            return failed(None, "the run database failed; the engine's log has the details".into());
        }
        job.live.started();
        self.refresh_models();
        // Files may have come or gone since the submission.
        let graph = match validate(&job.graph, &self.registry(), &job.target) {
            Ok(graph) => graph,
            Err(error) => return failed(error.node_id, error.message),
        };
        let sink = TakeSink { engine: self, run_id: id, job };
        let observer = NodeTimes::new(&job.live, &graph);
        let drawn = AtomicU64::new(0);
        let draw = || seed_of(id, drawn.fetch_add(1, Ordering::Relaxed));
        let execution = Execution::new(self.nodes.runners())
            .cache(&self.cache, &*self.nodes)
            .observer(&observer)
            .sink(&sink)
            .seeds(&draw)
            .cancel(job.live.cancel.clone());
        match execution.run(&graph) {
            Ok(_) => (RunStatus::Done, None),
            Err(RunError::Cancelled | RunError::Node { error: NodeError::Cancelled, .. }) => {
                (RunStatus::Cancelled, None)
            }
            Err(RunError::Node { node_id, error }) => failed(Some(node_id), error.to_string()),
        }
    }
}

/// The `n`th random seed of a run. A run's id is random; a run that is tried again draws the same seeds, so that takes of
/// both attempts belong together.
fn seed_of(run_id: &str, n: u64) -> u64 {
    let digest = Sha256::new().chain_update(run_id).chain_update(n.to_le_bytes()).finalize();
    digest.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Makes takes of outputs: encoded, written, listed, shown.
struct TakeSink<'a> {
    engine: &'a Engine,
    run_id: &'a str,
    job: &'a Job,
}

impl OutputSink for TakeSink<'_> {
    fn save(&self, output: &NodeOutput<'_>) -> Result<(), NodeError> {
        let node_id = output.node.id();
        for encoded in takes::encode(&self.job.graph, output)? {
            let bytes = encoded.bytes.len() as u64;
            let take = takes::write(self.engine.media.takes(), encoded, self.run_id, node_id);
            // The error itself names the file, which is for the log alone.
            let take = take.map_err(|error| {
                tracing::error!(%error, run = %self.run_id, "a take couldn't be written");
                NodeError::new(format!("the take can't be written: {}; make room and run again", error.kind()))
            })?;
            let listed = |t: &crate::Take| t.node_id == take.node_id && t.hash == take.hash;
            if self.job.earlier_takes.iter().any(listed) {
                continue;
            }
            self.engine.handle.block_on(self.engine.store.add_take(&take)).map_err(|error| {
                tracing::error!(%error, run = %self.run_id, "a take couldn't be listed");
                NodeError::new("the take can't be listed: the run database failed; make room and run again")
            })?;
            meter::take_listed(bytes);
            self.job.live.add_take(take);
        }
        Ok(())
    }
}
