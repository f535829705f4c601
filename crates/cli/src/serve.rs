//! `inline serve`.

use crate::args::{ServeArgs, SettingsArgs};
use crate::{Failure, Result, setup};
use engine_runs::{Engine, EngineOptions, Media, PathAccess, Store};
use engine_server::{Limits, ServerConfig};
use sampling::BatchingSampler;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

/// Rows of one forward pass; a guided picture takes two.
const MAX_ROWS: usize = 8;
const MIB: usize = 1 << 20;

pub(crate) fn run(settings: &SettingsArgs, args: &ServeArgs) -> Result<()> {
    // Requests are light; the work has threads of its own.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(Failure::of)?;
    let outcome = runtime.block_on(serve(settings, args));
    runtime.shutdown_background();
    outcome
}

fn address(args: &ServeArgs) -> Result<SocketAddr> {
    let found = (args.host.as_str(), args.port).to_socket_addrs();
    let found = found.map_err(|e| Failure(format!("--host {}: {e}", args.host)))?.next();
    found.ok_or_else(|| Failure(format!("--host {}: no such address", args.host)))
}

async fn serve(settings: &SettingsArgs, args: &ServeArgs) -> Result<()> {
    let token = args.token.clone().filter(|token| !token.is_empty());
    let limits = Limits {
        json: args.json_limit_mb as usize * MIB,
        asset: args.asset_limit_mb as usize * MIB,
        patience: Duration::from_secs(args.request_timeout_s.into()),
        connections: args.max_connections as usize,
    };
    let config = ServerConfig { token, insecure: args.insecure, origins: args.allow_origin.clone(), limits };
    let listener = engine_server::bind(address(args)?, &config).await.map_err(Failure::of)?;
    let store = Store::open(&settings.data_dir).await.map_err(Failure::of)?;
    let paths = if args.allow_path.is_empty() { PathAccess::None } else { PathAccess::Below(args.allow_path.clone()) };
    let handle = tokio::runtime::Handle::current();
    let media = Arc::new(Media::new(&settings.data_dir, store.clone(), handle, paths));
    media.takes().sweep();
    media.assets().sweep();
    yield_to_requests();
    // Rows of all runs in work; more would only wait for each other.
    let sampler = BatchingSampler::new(MAX_ROWS).map_err(Failure::of)?;
    let nodes = Arc::new(setup::nodes(settings, Arc::clone(&media) as _, Arc::new(sampler))?);
    let options = EngineOptions {
        workers: args.workers.into(),
        disk_cache: (args.cache_gb * 1e9) as u64,
        ..EngineOptions::default()
    };
    let engine = Engine::start(store, media, nodes, options).await.map_err(Failure::of)?;
    let local = listener.local_addr().map_err(Failure::of)?;
    println!("http://{local}/v1");
    tracing::info!(address = %local, models = %settings.models_dir.display(), data = %settings.data_dir.display(), "serving");
    let stopping = Arc::clone(&engine);
    let stop = async move {
        stop_signal().await;
        tracing::info!("stopping");
        if let Err(error) = stopping.stop().await {
            tracing::error!(%error, "the runs in work couldn't be given back");
        }
    };
    // A connection that stays open must not keep the process: runs in work are taken up by the next one.
    let (told, signal) = tokio::sync::oneshot::channel();
    let server = tokio::spawn(engine_server::serve(listener, config, engine, async move {
        stop.await;
        let _ = told.send(());
    }));
    tokio::select! {
        ended = server => ended.map_err(Failure::of),
        _ = async {
            let _ = signal.await;
            tokio::time::sleep(Duration::from_secs(2)).await;
        } => Ok(()),
    }
}

/// How much the threads that render give way to those that answer requests.
#[cfg(target_os = "linux")]
const GIVE_WAY: i32 = 5;

/// Lowers the priority of this thread and with it of those that it starts from now on, which render. On Linux a nice
/// value belongs to a thread; elsewhere to the process, so there it stays.
fn yield_to_requests() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::nice(GIVE_WAY) {
        tracing::warn!(%error, "rendering keeps the priority of requests");
    }
}

async fn stop_signal() {
    let interrupted = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        let terminated = async {
            match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
                Ok(mut signal) => {
                    signal.recv().await;
                }
                Err(_) => std::future::pending::<()>().await,
            }
        };
        tokio::select! { _ = interrupted => {}, () = terminated => {} }
    }
    #[cfg(not(unix))]
    let _ = interrupted.await;
}
