//! The `inline` binary.

mod args;
mod bench;
mod chat;
mod inspect;
mod models;
mod progress;
mod render;
mod run;
mod serve;
mod setup;

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;

/// Steps of a network ask for the same large buffers again and again.
#[global_allocator]
static ALLOCATOR: kernels::Recycler = kernels::Recycler::new();

/// A failure in one sentence for the person at the terminal.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Failure(pub(crate) String);

impl Failure {
    /// Shorthand for `map_err`.
    pub(crate) fn of(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_env("INLINE_LOG");
    let default = if matches!(cli.command, Command::Serve(_)) { "info" } else { "warn" };
    tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default)))
        .with_writer(std::io::stderr)
        .init();
    let outcome = match cli.command {
        Command::Render(args) => render::run(&cli.settings, &args),
        Command::Run(args) => run::run(&cli.settings, &args),
        Command::Chat(args) => chat::run(&cli.settings, &args),
        Command::Serve(args) => serve::run(&cli.settings, &args),
        Command::Models { json } => models::run(&cli.settings, json),
        Command::Inspect { path, json } => inspect::run(&cli.settings, &path, json),
        Command::Import(args) => run::import(&args),
        Command::Bench(args) => bench::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}
