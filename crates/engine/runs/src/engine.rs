//! The engine as servers use it: submit, watch, cancel, look up.

use crate::blobs::content_id;
use crate::cache::Cache;
use crate::disk_cache::DiskCache;
use crate::ended::EndedStates;
use crate::live::{LiveRun, RunEvent, Subscription, terminal_event};
use crate::media::{ASSET_EXTENSION, Media};
use crate::meter;
use crate::options::EngineOptions;
use crate::state::{NodeState, RunFailure, RunState, RunStatus, Take, now_ms};
use crate::store::{Asset, PageQuery, Store, StoreError, StoredRun};
use engine_graph::{Graph, GraphError, Limits, NodeRegistry, validate};
use engine_nodes::Nodes;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use uuid::Uuid;

/// Ended runs that are kept in memory, so that watchers who return can catch up.
const REMEMBERED_RUNS: usize = 128;
/// Bytes of states of runs that ended before those, kept as they are served.
const ENDED_STATES: usize = 16 << 20;
/// A cancelled run is waited for this long.
const CANCEL_PATIENCE: Duration = Duration::from_secs(1);
/// The models folder is looked at this often at most.
const SCAN_INTERVAL: Duration = Duration::from_millis(250);

/// Why a run wasn't accepted.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The graph breaks a rule.
    #[error("{0}")]
    Graph(#[from] GraphError),
    /// The client id belongs to another graph.
    #[error("clientRunId was used before with another graph or target; choose a new one")]
    Conflict,
    /// The run couldn't be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A run that was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submitted {
    /// Its id.
    pub run_id: String,
    /// Where it stands.
    pub status: RunStatus,
    /// False when the client id named a run that was there already.
    pub created: bool,
}

/// A live run in the list of runs.
#[derive(Debug, Clone)]
pub struct LiveEntry {
    /// Its id.
    pub run_id: String,
    /// Where it stands.
    pub status: RunStatus,
    /// The node that it is for.
    pub target: String,
    /// How much of it is done, 0 to 1.
    pub fraction: f64,
    /// Unix milliseconds of its submission.
    pub created_at: i64,
    /// Its place in the queue, from 0; `None` once it has started.
    pub queue_position: Option<usize>,
}

/// How much an engine has to do and holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Runs that wait.
    pub queued: usize,
    /// Runs in work.
    pub running: usize,
    /// Bytes of node outputs in memory.
    pub memory_cache_bytes: u64,
    /// Bytes of node outputs on disk.
    pub disk_cache_bytes: u64,
}

pub(crate) struct Job {
    pub(crate) live: LiveRun,
    pub(crate) graph: Graph,
    pub(crate) target: String,
    /// Whether the process died while the run was in work before.
    pub(crate) retried: bool,
    /// What an earlier attempt listed, however it ended: not to be listed again.
    pub(crate) earlier_takes: Vec<Take>,
    /// Whether a stopping engine has left the run to the next process.
    pub(crate) given_back: AtomicBool,
    pub(crate) queued_at: Instant,
}

impl Job {
    fn new(state: RunState, graph: Graph, target: String, retried: bool) -> Self {
        let earlier_takes = state.takes.clone();
        let given_back = AtomicBool::new(false);
        Self { live: LiveRun::new(state), graph, target, retried, earlier_takes, given_back, queued_at: Instant::now() }
    }
}

#[derive(Default)]
struct Jobs {
    queue: VecDeque<String>,
    /// Ids of live runs in submission order.
    order: Vec<String>,
    by_id: HashMap<String, Arc<Job>>,
    ended: VecDeque<String>,
    /// Ids of the runs in work.
    working: Vec<String>,
    /// Whether the run in work is one that may have killed the process, so that no other must be at risk beside it.
    quarantine: bool,
    stopping: bool,
}

/// A graph engine over a data directory.
pub struct Engine {
    pub(crate) store: Store,
    pub(crate) media: Arc<Media>,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) cache: Cache,
    pub(crate) handle: Handle,
    jobs: Mutex<Jobs>,
    ended: EndedStates,
    wake: Condvar,
    /// Keeps the order of the queue that of the store.
    submitting: tokio::sync::Mutex<()>,
    scanned: Mutex<Option<Instant>>,
}

impl Engine {
    /// Makes an engine, takes up what an earlier process left, and starts working. To be called within a tokio runtime.
    ///
    /// # Errors
    /// The store can't be read.
    pub async fn start(
        store: Store,
        media: Arc<Media>,
        nodes: Arc<Nodes>,
        options: EngineOptions,
    ) -> Result<Arc<Self>, StoreError> {
        let disk = match options.disk_cache {
            0 => None,
            // Without its cache an engine is slower, not broken.
            budget => DiskCache::open(media.cache_dir(), budget)
                .inspect_err(|error| tracing::warn!(%error, "results are cached in memory only"))
                .ok(),
        };
        let engine = Arc::new(Self {
            store,
            media,
            nodes,
            cache: Cache::new(options.memory_cache, disk),
            handle: Handle::current(),
            jobs: Mutex::default(),
            ended: EndedStates::new(ENDED_STATES),
            wake: Condvar::new(),
            submitting: tokio::sync::Mutex::new(()),
            scanned: Mutex::default(),
        });
        engine.take_up().await?;
        for number in 0..options.workers.max(1) {
            let worker = Arc::clone(&engine);
            std::thread::Builder::new().name(format!("run-worker-{number}")).spawn(move || worker.work())?;
        }
        Ok(engine)
    }

    /// Queues what was queued, retries what was in work once, and ends what died twice.
    async fn take_up(&self) -> Result<(), StoreError> {
        for run in self.store.unfinished().await? {
            let mut state = new_state(&run);
            state.takes = self.store.takes_of_run(&run.id).await?;
            let failure = if run.attempts >= 2 {
                Some(RunFailure { node_id: None, message: "interrupted by a restart".into() })
            } else {
                None
            };
            match (failure, Graph::from_value(&run.graph, &Limits::default())) {
                (None, Ok(graph)) => {
                    let job = Job::new(state, graph, run.target, run.attempts > 0);
                    self.enqueue(run.id, job);
                }
                (failure, _) => {
                    state.status = RunStatus::Error;
                    let unreadable = || RunFailure { node_id: None, message: "its stored graph can't be read".into() };
                    state.error = Some(failure.unwrap_or_else(unreadable));
                    self.store.end(&state).await?;
                }
            }
        }
        Ok(())
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enqueue(&self, id: String, job: Job) {
        let mut jobs = self.jobs();
        jobs.queue.push_back(id.clone());
        jobs.order.push(id.clone());
        jobs.by_id.insert(id, Arc::new(job));
        self.wake.notify_all();
    }

    /// The nodes and their models.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// How much there is to do now.
    pub fn load(&self) -> Load {
        let (memory_cache_bytes, disk_cache_bytes) = self.cache.bytes();
        let jobs = self.jobs();
        Load { queued: jobs.queue.len(), running: jobs.working.len(), memory_cache_bytes, disk_cache_bytes }
    }

    /// Looks at the models folder if that wasn't done a moment ago. Blocking.
    pub fn refresh_models(&self) {
        let mut scanned = self.scanned.lock().unwrap_or_else(PoisonError::into_inner);
        if scanned.is_none_or(|at| at.elapsed() >= SCAN_INTERVAL) {
            self.nodes.library().rescan();
            *scanned = Some(Instant::now());
        }
    }

    /// The node types as they are served now.
    pub fn registry(&self) -> NodeRegistry {
        self.nodes.registry()
    }

    /// Accepts a run: checked, stored, queued.
    ///
    /// # Errors
    /// As [`SubmitError`].
    pub async fn submit(
        &self,
        graph: &Value,
        target: &str,
        client_run_id: Option<String>,
        meta: Option<Value>,
    ) -> Result<Submitted, SubmitError> {
        let parsed = Graph::from_value(graph, &Limits::default())?;
        let valid = validate(&parsed, &self.registry(), target)?;
        let run = StoredRun {
            id: format!("run_{}", Uuid::new_v4().simple()),
            client_run_id,
            graph: graph.clone(),
            target: target.to_owned(),
            meta,
            status: RunStatus::Queued,
            attempts: 0,
            created_at: now_ms(),
        };
        let mut state = new_state(&run);
        state.nodes = valid.nodes().iter().map(|node| (node.id().to_owned(), NodeState::queued())).collect();
        let _order = self.submitting.lock().await;
        if let Some(first) = self.store.submit(&run).await? {
            if first.graph != *graph || first.target != target {
                return Err(SubmitError::Conflict);
            }
            let status = self.jobs().by_id.get(&first.id).map_or(first.status, |job| job.live.status());
            return Ok(Submitted { run_id: first.id, status, created: false });
        }
        let job = Job::new(state, parsed, run.target, false);
        self.enqueue(run.id.clone(), job);
        Ok(Submitted { run_id: run.id, status: RunStatus::Queued, created: true })
    }

    /// A run's state.
    ///
    /// # Errors
    /// The store failed.
    pub async fn run(&self, id: &str) -> Result<Option<RunState>, StoreError> {
        match self.job(id) {
            Some(job) => Ok(Some(job.live.state())),
            None => self.store.run(id).await,
        }
    }

    /// Waits for a run's end and gives its state.
    ///
    /// # Errors
    /// The store failed.
    pub async fn wait(&self, id: &str) -> Result<Option<RunState>, StoreError> {
        match self.job(id) {
            Some(job) => {
                job.live.ended().await;
                Ok(Some(job.live.state()))
            }
            None => self.store.run(id).await,
        }
    }

    /// A run's state as JSON, which is made once for all who ask between two changes.
    ///
    /// # Errors
    /// The store failed.
    pub async fn run_json(&self, id: &str) -> Result<Option<Arc<str>>, StoreError> {
        if let Some(job) = self.job(id) {
            return Ok(Some(job.live.state_json()));
        }
        if let Some(kept) = self.ended.get(id) {
            return Ok(Some(kept));
        }
        let Some(state) = self.store.run(id).await? else { return Ok(None) };
        let json: Arc<str> = serde_json::json!(state).to_string().into();
        if state.status.is_final() {
            self.ended.put(id, &json);
        }
        Ok(Some(json))
    }

    fn job(&self, id: &str) -> Option<Arc<Job>> {
        self.jobs().by_id.get(id).cloned()
    }

    /// The runs that haven't ended, in submission order.
    pub fn live_runs(&self) -> Vec<LiveEntry> {
        let jobs = self.jobs();
        let places: HashMap<&str, usize> = jobs.queue.iter().enumerate().map(|(i, id)| (id.as_str(), i)).collect();
        let entry = |id: &String| jobs.by_id.get(id)?.live.entry(places.get(id.as_str()).copied());
        jobs.order.iter().filter_map(entry).collect()
    }

    /// The queue: places from 0 by run.
    pub fn queue_positions(&self) -> HashMap<String, usize> {
        self.jobs().queue.iter().enumerate().map(|(place, id)| (id.clone(), place)).collect()
    }

    /// Stops a run, queued or in work, and gives its status; one that has ended stays as it is. Waits a moment for work
    /// under way to notice.
    ///
    /// # Errors
    /// The store failed.
    pub async fn cancel(&self, id: &str) -> Result<Option<RunStatus>, StoreError> {
        let Some(job) = self.job(id) else {
            return Ok(self.store.run(id).await?.map(|run| run.status));
        };
        job.live.cancel.cancel();
        let was_queued = {
            let mut jobs = self.jobs();
            let before = jobs.queue.len();
            jobs.queue.retain(|queued| queued != id);
            jobs.queue.len() < before
        };
        if was_queued {
            let state = job.live.ending(RunStatus::Cancelled, None);
            if let Err(error) = self.store.end(&state).await {
                // Not lost: a worker takes it up, sees the flag and tries to store the end again.
                self.jobs().queue.push_front(id.to_owned());
                self.wake.notify_all();
                return Err(error);
            }
            meter::run_ended(RunStatus::Cancelled, None);
            job.live.end(state);
            self.forget_later(id);
        } else {
            // Longer than the work between two looks at the flag, on the slowest of machines.
            let _ = tokio::time::timeout(CANCEL_PATIENCE, job.live.ended()).await;
        }
        Ok(Some(job.live.status()))
    }

    /// Watches a run. For one that ended long ago, the state and the last event are all there is.
    ///
    /// # Errors
    /// The store failed.
    pub async fn watch(&self, id: &str, after: Option<u64>, previews: bool) -> Result<Option<Watch>, StoreError> {
        if let Some(job) = self.job(id) {
            return Ok(Some(Watch::Live(job.live.subscribe(after, previews))));
        }
        Ok(self.store.run(id).await?.map(|state| {
            let event = RunEvent { seq: 0, json: terminal_event(&state).to_string().into(), terminal: true };
            Watch::Ended { state, event }
        }))
    }

    /// A page of runs, newest first.
    ///
    /// # Errors
    /// The store failed.
    pub async fn list_runs(&self, page: &PageQuery) -> Result<Vec<(i64, RunState)>, StoreError> {
        let mut runs = self.store.list_runs(page).await?;
        for (_, run) in &mut runs {
            if let Some(job) = self.job(&run.run_id) {
                *run = job.live.state();
            }
        }
        Ok(runs)
    }

    /// A page of takes, newest first.
    ///
    /// # Errors
    /// The store failed.
    pub async fn list_takes(&self, page: &PageQuery) -> Result<Vec<(i64, Take)>, StoreError> {
        self.store.list_takes(page).await
    }

    /// A take.
    ///
    /// # Errors
    /// The store failed.
    pub async fn take(&self, id: &str) -> Result<Option<Take>, StoreError> {
        self.store.take(id).await
    }

    /// The media files.
    pub fn media(&self) -> &Media {
        &self.media
    }

    /// Keeps an uploaded file; the same bytes give the same id.
    ///
    /// # Errors
    /// The disk is full or the store failed.
    pub async fn add_asset(&self, bytes: Vec<u8>, mime: &str) -> Result<Asset, StoreError> {
        let known = |kind: &&str| ["image", "video", "audio"].contains(kind);
        let kind = mime.split('/').next().filter(known).unwrap_or("file");
        let length = bytes.len() as i64;
        let media = Arc::clone(&self.media);
        let written = tokio::task::spawn_blocking(move || {
            let id = content_id(&bytes);
            media.assets().put(&id, ASSET_EXTENSION, &bytes).map(|_| id)
        });
        let id = written.await.map_err(std::io::Error::other)??;
        let asset = Asset { id, kind: kind.to_owned(), mime: mime.to_owned(), bytes: length };
        self.store.add_asset(&asset).await?;
        Ok(asset)
    }

    /// An asset and its path.
    ///
    /// # Errors
    /// The store failed.
    pub async fn asset(&self, id: &str) -> Result<Option<(Asset, std::path::PathBuf)>, StoreError> {
        let asset = self.store.asset(id).await?;
        Ok(asset.map(|asset| {
            let path = self.media.assets().path(&crate::blobs::Blobs::uri(&asset.id, ASSET_EXTENSION));
            (asset, path)
        }))
    }

    /// Stops taking up work. What is in work is stopped without an end and without counting as an attempt: the next
    /// process takes it up.
    ///
    /// # Errors
    /// The store failed; the runs in work then count as interrupted.
    pub async fn stop(&self) -> Result<(), StoreError> {
        let working: Vec<(String, Arc<Job>)> = {
            let mut jobs = self.jobs();
            jobs.stopping = true;
            self.wake.notify_all();
            let job = |id: &String| Some((id.clone(), Arc::clone(jobs.by_id.get(id)?)));
            jobs.working.iter().filter_map(job).filter(|(_, job)| !job.live.cancel.is_cancelled()).collect()
        };
        for (id, job) in working {
            self.store.give_back(&id).await?;
            job.given_back.store(true, Ordering::Release);
            job.live.cancel.cancel();
        }
        Ok(())
    }

    /// Waits for the next run; `None` when stopping. Runs that were in work when a process died go alone: if one of them
    /// is what killed it, it takes no other with it.
    pub(crate) fn next_job(&self) -> Option<(String, Arc<Job>)> {
        let mut jobs = self.jobs();
        loop {
            if jobs.stopping {
                return None;
            }
            let next = jobs.queue.front().and_then(|id| Some((id.clone(), Arc::clone(jobs.by_id.get(id)?))));
            let may_start = |job: &Job| !jobs.quarantine && (!job.retried || jobs.working.is_empty());
            match next {
                Some((id, job)) if may_start(&job) => {
                    jobs.queue.pop_front();
                    jobs.quarantine = job.retried;
                    jobs.working.push(id.clone());
                    return Some((id, job));
                }
                None if !jobs.queue.is_empty() => drop(jobs.queue.pop_front()),
                _ => jobs = self.wake.wait(jobs).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// A run is no longer in work.
    pub(crate) fn let_go(&self, id: &str) {
        let mut jobs = self.jobs();
        jobs.working.retain(|working| working != id);
        jobs.quarantine = false;
        self.wake.notify_all();
    }

    /// Keeps an ended run in memory until enough others have ended.
    pub(crate) fn forget_later(&self, id: &str) {
        let mut jobs = self.jobs();
        jobs.order.retain(|live| live != id);
        jobs.ended.push_back(id.to_owned());
        if jobs.ended.len() > REMEMBERED_RUNS
            && let Some(oldest) = jobs.ended.pop_front()
        {
            jobs.by_id.remove(&oldest);
        }
    }
}

/// What watching a run gives.
pub enum Watch {
    /// A run in memory.
    Live(Subscription),
    /// A run that ended earlier.
    Ended {
        /// Its state.
        state: RunState,
        /// Its last event.
        event: RunEvent,
    },
}

fn new_state(run: &StoredRun) -> RunState {
    RunState {
        run_id: run.id.clone(),
        status: RunStatus::Queued,
        target: run.target.clone(),
        fraction: 0.0,
        nodes: BTreeMap::new(),
        takes: Vec::new(),
        error: None,
        client_run_id: run.client_run_id.clone(),
        meta: run.meta.clone(),
        created_at: run.created_at,
    }
}
