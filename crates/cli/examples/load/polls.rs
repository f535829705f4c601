//! Polls at a fixed rate, whether or not the server keeps up.

use crate::Result;
use crate::http::{Connection, request};
use crate::stats::{Times, print};
use serde_json::json;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// What one connection saw.
#[derive(Default)]
struct Seen {
    /// From when a poll was due.
    due: Times,
    /// From when it was sent.
    sent: Times,
    ended: usize,
}

/// Asks for the state of all `ids` in turn, `rate` times a second over `connections` for `seconds`.
pub async fn measure(address: SocketAddr, ids: &[String], rate: u64, connections: usize, seconds: u64) -> Result<()> {
    let polls: Vec<Vec<u8>> = ids.iter().map(|id| request("GET", &format!("/v1/runs/{id}"), "")).collect();
    let before = done(address).await?;
    let start = Instant::now() + Duration::from_millis(50);
    let end = start + Duration::from_secs(seconds);
    let client = |number: usize| {
        let polls = &polls;
        async move {
            let mut connection = Connection::open(address).await?;
            let mut seen = Seen::default();
            // The connections take turns: this one has every `connections`th poll.
            for turn in (number as u64..).step_by(connections) {
                let due = start + Duration::from_nanos(turn * 1_000_000_000 / rate);
                if due >= end {
                    break;
                }
                sleep_until(due).await;
                let sent = Instant::now();
                let (status, body) = connection.send(&polls[turn as usize % polls.len()]).await?;
                if status != 200 {
                    return Err(format!("status {status}").into());
                }
                seen.ended += usize::from(body.windows(15).any(|part| part == b"\"status\":\"done\""));
                let now = Instant::now();
                seen.due.push(now - due);
                seen.sent.push(now - sent);
            }
            Ok::<_, crate::Failure>(seen)
        }
    };
    let all = futures::future::try_join_all((0..connections).map(client)).await?;
    let took = start.elapsed().as_secs_f64();
    let rendered = done(address).await? - before;
    let mut seen = Seen::default();
    for one in all {
        seen.due.extend(one.due);
        seen.sent.extend(one.sent);
        seen.ended += one.ended;
    }
    let reached = (seen.due.len() as f64 / took).round();
    let figures = json!({
        "rate": rate, "reached_per_second": reached, "connections": connections,
        "rendered_meanwhile": rendered, "polls_of_ended_runs": seen.ended,
        "latency_from_due": seen.due.summary(), "latency_from_sent": seen.sent.summary(),
    });
    print("polls", figures);
    Ok(())
}

/// Runs that have ended well, as the server counts them.
async fn done(address: SocketAddr) -> Result<i64> {
    let mut connection = Connection::open(address).await?;
    let (_, page) = connection.send(&request("GET", "/metrics", "")).await?;
    let page = std::str::from_utf8(page)?;
    let line = page.lines().find_map(|line| line.strip_prefix("inline_runs_ended_total{status=\"done\"} "));
    Ok(line.map_or(Ok(0), str::parse)?)
}
