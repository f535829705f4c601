//! Runs one at a time, and many at once.

use crate::http::{Connection, request};
use crate::stats::{Times, print};
use crate::{Result, graph};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// A run that takes a few milliseconds.
fn small(seed: usize) -> Value {
    json!({"steps": 1, "seed": seed, "width": 64, "height": 64})
}

/// The request that submits a run.
pub fn submission(params: &Value) -> Vec<u8> {
    request("POST", "/v1/runs", &json!({"graph": graph("a red apple", params), "target": "m"}).to_string())
}

/// Submits a run and gives its id.
pub async fn submit_one(connection: &mut Connection, params: &Value) -> Result<String> {
    id_of(&connection.json(&submission(params), 201).await?)
}

fn id_of(answer: &Value) -> Result<String> {
    Ok(answer["runId"].as_str().ok_or("an answer without runId")?.to_owned())
}

/// Submits a run and asks for it again and again until it is done.
async fn to_the_end(connection: &mut Connection, params: &Value) -> Result<()> {
    let run = submit_one(connection, params).await?;
    let poll = request("GET", &format!("/v1/runs/{run}"), "");
    loop {
        let state = connection.json(&poll, 200).await?;
        match state["status"].as_str() {
            Some("done") => return Ok(()),
            Some("queued" | "running") => {}
            _ => return Err(format!("the run failed: {state}").into()),
        }
    }
}

/// The first run loads the model.
pub async fn warm_up(address: SocketAddr) -> Result<()> {
    let mut connection = Connection::open(address).await?;
    for seed in 0..3 {
        to_the_end(&mut connection, &small(1_000_000 + seed)).await?;
    }
    Ok(())
}

/// Small runs of new seeds, from the submission to the poll that finds them done.
pub async fn fresh(address: SocketAddr, repeat: usize) -> Result<()> {
    let mut connection = Connection::open(address).await?;
    let mut times = Times::default();
    for seed in 0..repeat {
        let start = Instant::now();
        to_the_end(&mut connection, &small(2_000_000 + seed)).await?;
        times.push(start.elapsed());
    }
    print("fresh", times.summary());
    Ok(())
}

/// The same run again and again.
pub async fn cached(address: SocketAddr, repeat: usize) -> Result<()> {
    let mut connection = Connection::open(address).await?;
    let mut times = Times::default();
    to_the_end(&mut connection, &small(3_000_000)).await?;
    for _ in 0..repeat {
        let start = Instant::now();
        to_the_end(&mut connection, &small(3_000_000)).await?;
        times.push(start.elapsed());
    }
    print("cached", times.summary());
    Ok(())
}

/// Queues `runs` runs from `clients` connections at once, while the first of them are in work.
pub async fn submit(address: SocketAddr, runs: usize, clients: usize) -> Result<Vec<String>> {
    let next = AtomicUsize::new(0);
    let client = || async {
        let mut connection = Connection::open(address).await?;
        let (mut ids, mut times) = (Vec::new(), Times::default());
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= runs {
                return Ok::<_, crate::Failure>((ids, times));
            }
            // The usual size of the demo model.
            let body = submission(&json!({"seed": 4_000_000 + number}));
            let start = Instant::now();
            ids.push(id_of(&connection.json(&body, 201).await?)?);
            times.push(start.elapsed());
        }
    };
    let start = Instant::now();
    let all = futures::future::try_join_all((0..clients).map(|_| client())).await?;
    let seconds = start.elapsed().as_secs_f64();
    let (mut ids, mut times) = (Vec::new(), Times::default());
    for (more, timed) in all {
        ids.extend(more);
        times.extend(timed);
    }
    let rate = (runs as f64 / seconds).round();
    print("submit", json!({"clients": clients, "per_second": rate, "latency": times.summary()}));
    Ok(ids)
}

/// The list of live runs, and a page of all runs.
pub async fn list(address: SocketAddr) -> Result<()> {
    let mut connection = Connection::open(address).await?;
    let (mut live, mut page, mut rows) = (Times::default(), Times::default(), 0);
    for _ in 0..50 {
        for (path, times) in [("/v1/runs", &mut live), ("/v1/runs?limit=50", &mut page)] {
            let start = Instant::now();
            let answer = connection.json(&request("GET", path, ""), 200).await?;
            times.push(start.elapsed());
            rows = rows.max(answer["runs"].as_array().map_or(0, Vec::len));
        }
    }
    print("list", json!({"rows": rows, "live": live.summary(), "page": page.summary()}));
    Ok(())
}

/// Cancels what is left of the queue, newest first.
pub async fn cancel(address: SocketAddr, ids: &[String]) -> Result<()> {
    let mut connection = Connection::open(address).await?;
    let (mut times, mut cancelled) = (Times::default(), 0);
    for id in ids.iter().rev() {
        let start = Instant::now();
        let answer = connection.json(&request("DELETE", &format!("/v1/runs/{id}"), ""), 200).await?;
        times.push(start.elapsed());
        cancelled += usize::from(answer["status"] == "cancelled");
    }
    print("cancel", json!({"cancelled": cancelled, "latency": times.summary()}));
    Ok(())
}
