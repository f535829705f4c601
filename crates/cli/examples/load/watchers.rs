//! Many websockets on one run: does everybody see everything, in order, and how soon?

use crate::Result;
use crate::http::{Connection, request};
use crate::runs::{submission, submit_one};
use crate::stats::{Times, print};
use futures::StreamExt;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

/// What one watcher got.
#[derive(Default)]
struct Seen {
    events: usize,
    fresh_snapshots: usize,
    /// Numbers of events and when they came.
    arrivals: Vec<(u64, Instant)>,
    last: Option<String>,
    close: Option<u16>,
}

async fn open(address: SocketAddr, run: &str) -> Result<WebSocketStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let url = format!("ws://localhost/v1/runs/{run}/events");
    Ok(tokio_tungstenite::client_async(url, stream).await?.0)
}

/// Reads to the close. An event that isn't the next one, and didn't come with a fresh snapshot, is an error.
async fn follow(mut socket: WebSocketStream<TcpStream>) -> Result<Seen> {
    let mut seen = Seen::default();
    let mut expected = None;
    while let Some(message) = socket.next().await {
        match message? {
            Message::Text(text) => {
                let now = Instant::now();
                let event: Value = serde_json::from_str(text.as_str())?;
                let seq = event["seq"].as_u64().ok_or_else(|| format!("no seq: {event}"))?;
                let kind = event["type"].as_str().unwrap_or_default().to_owned();
                if kind == "snapshot" {
                    seen.fresh_snapshots += usize::from(expected.is_some());
                } else {
                    if expected != Some(seq) {
                        return Err(format!("expected event {expected:?}, got {event}").into());
                    }
                    seen.events += 1;
                    seen.arrivals.push((seq, now));
                    seen.last = Some(kind);
                }
                expected = Some(seq + 1);
            }
            Message::Close(frame) => seen.close = frame.map(|frame| frame.code.into()),
            _ => {}
        }
    }
    Ok(seen)
}

/// `count` watchers on one run that is in work, from before its first step to its end.
pub async fn measure(address: SocketAddr, count: usize) -> Result<()> {
    let mut connection = Connection::open(address).await?;
    // Two long runs keep the workers busy until everybody watches.
    let mut blockers = Vec::new();
    for seed in [1, 2] {
        let params = json!({"seed": 5_000_000 + seed, "steps": 100, "width": 512, "height": 512});
        blockers.push(submit_one(&mut connection, &params).await?);
    }
    let run =
        submit_one(&mut connection, &json!({"seed": 6_000_000, "steps": 40, "width": 256, "height": 256})).await?;
    let start = Instant::now();
    let mut sockets = Vec::new();
    for _ in 0..count {
        sockets.push(open(address, &run).await?);
    }
    let opened = start.elapsed();
    for blocker in &blockers {
        connection.json(&request("DELETE", &format!("/v1/runs/{blocker}"), ""), 200).await?;
    }
    let start = Instant::now();
    let seen = RefCell::new(Vec::new());
    let watchers = sockets.into_iter().map(|socket| async {
        let one = follow(socket).await?;
        seen.borrow_mut().push(one);
        Ok::<_, crate::Failure>(())
    });
    tokio::time::timeout(Duration::from_secs(120), futures::future::try_join_all(watchers)).await??;
    let took = start.elapsed();
    let seen = seen.into_inner();
    let state = connection.json(&request("GET", &format!("/v1/runs/{run}"), ""), 200).await?;
    if state["status"] != "done" {
        return Err(format!("the watched run failed: {state}").into());
    }
    let incomplete = seen.iter().filter(|s| s.last.as_deref() != Some("run_done") || s.close != Some(1000)).count();
    if incomplete > 0 {
        return Err(format!("{incomplete} watchers didn't see the end").into());
    }
    // The first watcher that an event reaches sets its time.
    let mut first: HashMap<u64, Instant> = HashMap::new();
    for (seq, at) in seen.iter().flat_map(|s| &s.arrivals) {
        first.entry(*seq).and_modify(|first| *first = (*at).min(*first)).or_insert(*at);
    }
    let mut behind = Times::default();
    for (seq, at) in seen.iter().flat_map(|s| &s.arrivals) {
        behind.push(*at - first[seq]);
    }
    let alone = again(&mut connection).await?;
    let figures = json!({
        "watchers": count, "opened_s": opened.as_secs_f64(), "run_s": took.as_secs_f64(), "run_alone_s": alone,
        "events": seen.iter().map(|s| s.events).sum::<usize>(),
        "distinct_events": first.len(),
        "fresh_snapshots": seen.iter().map(|s| s.fresh_snapshots).sum::<usize>(),
        "behind_the_first": behind.summary(),
    });
    print("watch", figures);
    Ok(())
}

/// Seconds of a like run that nobody watches.
async fn again(connection: &mut Connection) -> Result<f64> {
    let start = Instant::now();
    let body = submission(&json!({"seed": 6_000_001, "steps": 40, "width": 256, "height": 256}));
    let run = connection.json(&body, 201).await?;
    let poll = request("GET", &format!("/v1/runs/{}", run["runId"].as_str().unwrap_or_default()), "");
    loop {
        let state = connection.json(&poll, 200).await?;
        if state["status"] == "done" {
            return Ok(start.elapsed().as_secs_f64());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
