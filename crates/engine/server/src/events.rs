//! The websocket of a run.

use crate::AppState;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, Query, State};
use axum::response::Response;
use bytes::Bytes;
use engine_runs::{Preview, RunState, Subscription, Watch};
use serde::Deserialize;
use serde_json::json;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

/// Close code for a run that isn't known.
const UNKNOWN_RUN: u16 = 4404;
/// A watcher that takes nothing for this long is given up.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsQuery {
    /// `seq` of the last event that was seen: those after it come first.
    after: Option<u64>,
    /// `1` for small JPEG frames of how the result looks so far.
    previews: Option<String>,
}

/// What a watcher asks for.
struct Wishes {
    after: Option<u64>,
    previews: bool,
}

/// A websocket of the run's events: a snapshot, what happens, and the end. Each is one JSON text frame with a `type`.
#[utoipa::path(get, path = "/v1/runs/{id}/events", tag = "runs", params(("id" = String, Path), EventsQuery),
    responses((status = 101, description = "The event stream; an unknown run is closed with code 4404"),
        (status = 426, body = crate::error::ErrorBody)))]
pub(crate) async fn events(
    State(state): State<AppState>,
    Path(id): Path<String>,
    Query(query): Query<EventsQuery>,
    upgrade: WebSocketUpgrade,
) -> Response {
    upgrade.max_message_size(64 << 10).on_upgrade(move |socket| async move {
        let previews = query.previews.is_some_and(|value| ["1", "true"].contains(&value.as_str()));
        watch(state, id, Wishes { after: query.after, previews }, socket).await;
    })
}

async fn watch(state: AppState, id: String, wishes: Wishes, mut socket: WebSocket) {
    let _counted = crate::metrics::Watcher::new();
    match state.engine().watch(&id, wishes.after, wishes.previews).await {
        Ok(Some(Watch::Live(subscription))) => {
            if follow(&state, &id, wishes.previews, subscription, &mut socket).await.is_ok() {
                close(&mut socket, 1000, "").await;
            }
        }
        Ok(Some(Watch::Ended { state, event })) => {
            let sent = send(&mut socket, snapshot(&state, event.seq)).await;
            if sent.is_ok() && send(&mut socket, event.json.to_string()).await.is_ok() {
                close(&mut socket, 1000, "").await;
            }
        }
        Ok(None) => close(&mut socket, UNKNOWN_RUN, "unknown run").await,
        Err(error) => {
            tracing::error!(%error, "watching a run");
            close(&mut socket, 1011, "storage failed").await;
        }
    }
}

/// The watcher went away.
struct Gone;

fn snapshot(state: &RunState, seq: u64) -> String {
    json!({"type": "snapshot", "runId": state.run_id, "state": state, "seq": seq}).to_string()
}

async fn send(socket: &mut WebSocket, text: String) -> Result<(), Gone> {
    send_message(socket, Message::Text(Utf8Bytes::from(text))).await
}

/// Waits for the next preview; for ever when none were asked for.
async fn next_preview(previews: &mut Option<watch::Receiver<Option<Preview>>>) -> Preview {
    if let Some(previews) = previews {
        while previews.changed().await.is_ok() {
            if let Some(preview) = previews.borrow_and_update().clone() {
                return preview;
            }
        }
    }
    std::future::pending().await
}

async fn send_message(socket: &mut WebSocket, message: Message) -> Result<(), Gone> {
    let sent = tokio::time::timeout(PATIENCE, socket.send(message)).await;
    match sent {
        Ok(Ok(())) => Ok(()),
        _ => Err(Gone),
    }
}

async fn close(socket: &mut WebSocket, code: u16, reason: &'static str) {
    let frame = CloseFrame { code, reason: Utf8Bytes::from_static(reason) };
    let _ = tokio::time::timeout(PATIENCE, socket.send(Message::Close(Some(frame)))).await;
}

/// Sends a snapshot, what was missed, and everything that comes, to the last event.
async fn follow(
    state: &AppState,
    id: &str,
    previews: bool,
    first: Subscription,
    socket: &mut WebSocket,
) -> Result<(), Gone> {
    let mut subscription = first;
    loop {
        send(socket, snapshot(&subscription.state, subscription.seq)).await?;
        let mut ended = false;
        for event in &subscription.missed {
            send(socket, event.json.to_string()).await?;
            ended |= event.terminal;
        }
        if ended {
            return Ok(());
        }
        if subscription.state.status.is_final() {
            let event = engine_runs::terminal_event(&subscription.state).to_string();
            return send(socket, event).await;
        }
        loop {
            tokio::select! {
                // What is lasting goes before what is only nice to see.
                biased;
                event = subscription.receiver.recv() => match event {
                    Ok(event) => {
                        send(socket, event.json.to_string()).await?;
                        if event.terminal {
                            return Ok(());
                        }
                    }
                    // Too far behind: start over from a fresh snapshot.
                    Err(RecvError::Lagged(_)) => break,
                    Err(RecvError::Closed) => return Ok(()),
                },
                preview = next_preview(&mut subscription.previews) => {
                    send(socket, preview.json.to_string()).await?;
                    send_message(socket, Message::Binary(Bytes::copy_from_slice(&preview.jpeg))).await?;
                }
                message = socket.recv() => match message {
                    // Whatever a client says, the stream goes one way.
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return Err(Gone),
                    Some(Ok(_)) => {}
                },
            }
        }
        match state.engine().watch(id, None, previews).await {
            Ok(Some(Watch::Live(again))) => subscription = again,
            Ok(Some(Watch::Ended { state, event })) => {
                send(socket, snapshot(&state, event.seq)).await?;
                return send(socket, event.json.to_string()).await;
            }
            _ => return Ok(()),
        }
    }
}
