//! The engine under load: starts the real server, or takes the address of one, and prints one JSON line a part.
//!
//! ```sh
//! cargo build --release -p inline --bin inline --example load
//! target/release/examples/load                       # every part, with the `inline` beside it
//! target/release/examples/load --part polls --rate 5000
//! target/release/examples/load --base http://host:8848 --part fresh
//! ```
//!
//! Clients share the machine with the server. They run on one thread, and latencies of polls count from the moment at
//! which a request was due (an open loop), so that a client that falls behind makes figures worse and not better.

mod http;
mod overhead;
mod polls;
mod runs;
mod server;
mod stats;
mod watchers;

use clap::{Parser, ValueEnum};
use serde_json::{Value, json};
use std::path::PathBuf;

type Failure = Box<dyn std::error::Error>;
type Result<T, E = Failure> = std::result::Result<T, E>;

/// As in the program itself.
#[global_allocator]
static ALLOCATOR: kernels::Recycler = kernels::Recycler::new();

#[derive(Parser)]
struct Args {
    /// Address of a server that is running, such as http://127.0.0.1:8848 [default: start one]
    #[arg(long)]
    base: Option<String>,
    /// The program to start [default: the `inline` that was built beside this one]
    #[arg(long)]
    binary: Option<PathBuf>,
    /// What to measure; may be given several times [default: everything]
    #[arg(long, value_enum)]
    part: Vec<Part>,
    /// Repetitions of single runs
    #[arg(long, default_value_t = 200)]
    repeat: usize,
    /// Runs to queue
    #[arg(long, default_value_t = 2000)]
    runs: usize,
    /// Clients that submit at the same time
    #[arg(long, default_value_t = 64)]
    submitters: usize,
    /// Polls a second
    #[arg(long, default_value_t = 10_000)]
    rate: u64,
    /// Kept connections that poll
    #[arg(long, default_value_t = 128)]
    connections: usize,
    /// Seconds of polling
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Clients that watch one run
    #[arg(long, default_value_t = 500)]
    watchers: usize,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Part {
    /// What a run costs beside the model's own work, in process
    Overhead,
    /// Small runs, one at a time
    Fresh,
    /// A run whose result is known
    Cached,
    /// Many clients that submit at the same time
    Submit,
    /// Lists while many runs are queued
    List,
    /// Polls while runs are queued and in work
    Polls,
    /// Cancelling the queue
    Cancel,
    /// Many websockets on one run
    Watch,
}

/// The demo model drawing `prompt`.
fn graph(prompt: &str, params: &Value) -> Value {
    json!({"schemaVersion": 1, "nodes": [
        {"id": "p", "type": "input/text", "params": {"text": prompt}},
        {"id": "m", "type": "inline/demo", "params": params, "inputs": {"prompt": {"from": "p", "output": "text"}}}]})
}

fn main() -> Result<()> {
    let args = Args::parse();
    let wants = |part: Part| args.part.is_empty() || args.part.contains(&part);
    if wants(Part::Overhead) {
        overhead::measure(args.repeat)?;
    }
    if args.part == [Part::Overhead] {
        return Ok(());
    }
    let server = server::Server::start(args.base.as_deref(), args.binary.as_deref())?;
    let client = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    client.block_on(async {
        let address = server.address();
        runs::warm_up(address).await?;
        if wants(Part::Fresh) {
            runs::fresh(address, args.repeat).await?;
        }
        if wants(Part::Cached) {
            runs::cached(address, args.repeat).await?;
        }
        // The parts that look at a full queue fill one.
        let queue = [Part::Submit, Part::List, Part::Polls, Part::Cancel];
        if queue.into_iter().any(wants) {
            let ids = runs::submit(address, args.runs, args.submitters).await?;
            if wants(Part::List) {
                runs::list(address).await?;
            }
            if wants(Part::Polls) {
                polls::measure(address, &ids, args.rate, args.connections, args.seconds).await?;
            }
            runs::cancel(address, &ids).await?;
        }
        if wants(Part::Watch) {
            watchers::measure(address, args.watchers).await?;
        }
        Ok(())
    })
}
