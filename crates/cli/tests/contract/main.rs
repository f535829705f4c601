//! The /v1 contract, checked from outside: against `INLINE_CONTRACT_URL` (such as `http://127.0.0.1:8848`, with
//! `INLINE_CONTRACT_TOKEN` if it asks for one), or against the binary with a fresh data directory.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

#[path = "../common/mod.rs"]
mod common;

mod events;
mod graphs;
mod media;
mod refusals;

use common::{Answer, Client, Server};
use serde_json::Value;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, Weak};

struct Started {
    server: Server,
    _dir: tempfile::TempDir,
}

/// The server that the suite asks.
enum Api {
    Started(Arc<Started>),
    Given(Client),
}

impl Deref for Api {
    type Target = Client;

    fn deref(&self) -> &Client {
        match self {
            Self::Started(started) => &started.server,
            Self::Given(client) => client,
        }
    }
}

/// The binary with a fresh data directory.
fn start() -> Started {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"), &dir.path().join("models"), &[]);
    Started { server, _dir: dir }
}

/// One server for all tests that run at a time; it ends with the last of them.
fn api() -> Api {
    static STARTED: Mutex<Weak<Started>> = Mutex::new(Weak::new());
    if let Ok(base) = std::env::var("INLINE_CONTRACT_URL") {
        let base = base.trim_end_matches('/').to_owned();
        return Api::Given(Client { base, token: std::env::var("INLINE_CONTRACT_TOKEN").ok() });
    }
    let mut shared = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(started) = shared.upgrade() {
        return Api::Started(started);
    }
    let started = Arc::new(start());
    *shared = Arc::downgrade(&started);
    Api::Started(started)
}

/// The `error` of a refusal, after what holds for each of them was checked.
fn refusal(answer: &Answer, status: u16, code: &str) -> Value {
    let body = answer.json();
    assert_eq!((answer.status, body["error"]["code"].as_str()), (status, Some(code)), "{body}");
    let message = body["error"]["message"].as_str().unwrap();
    assert!(!message.is_empty() && !names_a_file(message), "{message}");
    body["error"].clone()
}

/// Whether a message shows where something lies on the host: an absolute path that isn't a route, or a file of sources or of
/// the database.
fn names_a_file(message: &str) -> bool {
    let words = message.split(|c: char| c.is_whitespace() || "'\"`(),;".contains(c));
    let absolute = |word: &&str| word.len() > 1 && word.starts_with('/') && !word.starts_with("/v1/");
    words.clone().any(|word| absolute(&word)) || [".rs:", "runs.db"].iter().any(|part| message.contains(part))
}

#[test]
fn a_path_in_a_message_is_seen_and_a_route_is_not() {
    assert!(names_a_file("can't write '/srv/data/takes/1'"));
    assert!(names_a_file("panicked at server/lib.rs:10"));
    assert!(!names_a_file("ask GET /v1/models for node types; width/height must match"));
}
