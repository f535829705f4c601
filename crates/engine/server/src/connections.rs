//! Accepting connections, within limits that the framework's own loop doesn't have.

use crate::Limits;
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Between two tries to accept when the system has no more file descriptors.
const BREATH: Duration = Duration::from_millis(50);

/// Serves `router` until `stop` resolves, then lets requests under way end. At most so many connections are open at a
/// time, further ones wait; one whose request's head takes too long, or that stays idle, is closed.
pub(crate) async fn serve(listener: TcpListener, router: Router, limits: Limits, stop: impl Future<Output = ()>) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(limits.connections));
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = async {
            // The semaphore is never closed.
            let place = Arc::clone(&places).acquire_owned().await;
            (listener.accept().await, place)
        };
        tokio::select! {
            () = &mut stop => break,
            (accepted, place) = accepted => match accepted {
                Ok((stream, _)) => {
                    let connection = graceful.watcher().watch(connection(stream, router.clone(), limits));
                    tokio::spawn(async move {
                        // A client that breaks off is no news.
                        if let Err(error) = connection.await {
                            tracing::debug!(%error, "a connection ended");
                        }
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection couldn't be accepted");
                    tokio::time::sleep(BREATH).await;
                }
            },
        }
    }
    drop(listener);
    graceful.shutdown().await;
}

fn connection(
    stream: TcpStream,
    router: Router,
    limits: Limits,
) -> impl hyper_util::server::graceful::GracefulConnection<Error: std::fmt::Display> + Send {
    // Events are small and wanted at once.
    let _ = stream.set_nodelay(true);
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.patience);
    builder.serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(router)).into_owned()
}
