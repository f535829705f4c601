//! Runs, takes and assets: what was asked for, what came of it, and the files that it lies in.
//!
//! [`Engine`] queues runs in SQLite, executes them and lists their takes; [`run_once`] executes a graph with nothing around
//! it. Both encode takes in the same way, so the same graph and seed give the same bytes.

mod blobs;
mod cache;
mod disk_cache;
mod ended;
mod engine;
mod live;
mod media;
mod meter;
mod once;
mod options;
pub mod picture;
mod state;
mod store;
pub mod takes;
mod worker;

pub use blobs::{Blobs, content_id};
pub use cache::Cache;
pub use disk_cache::DiskCache;
pub use engine::{Engine, LiveEntry, Load, SubmitError, Submitted, Watch};
pub use live::{LiveRun, Preview, RunEvent, Subscription, terminal_event};
pub use media::{Media, PathAccess};
pub use once::{OnceError, run_once};
pub use options::EngineOptions;
pub use state::{NodePhase, NodeState, RunFailure, RunState, RunStatus, Take};
pub use store::{Asset, PageQuery, Store, StoreError, StoredRun};
