//! A server that is killed again and again loses nothing, repeats nothing and overwrites nothing.
//!
//! `CHAOS_ROUNDS` and `CHAOS_RUNS` set the size, `TEST_BINARY` the program:
//! `CHAOS_ROUNDS=200 CHAOS_RUNS=1000 TEST_BINARY=target/release/inline cargo test -p inline --test chaos -- --nocapture`.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

mod common;

use common::{Server, demo_graph};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const INTERRUPTED: &str = "interrupted by a restart";
/// The longest life of a server that is going to be killed.
const LIFE: Duration = Duration::from_millis(400);

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |value| value.parse().unwrap_or_else(|e| panic!("{name}: {e}")))
}

/// Random numbers whose seed is printed, so that a failure can be looked at again (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

fn ended(status: &str) -> bool {
    ["done", "error", "cancelled"].contains(&status)
}

/// Everything in a list, over all its pages, by id.
fn whole_list(server: &Server, list: &str, id: &str) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    let mut cursor = String::new();
    loop {
        let page = server.get(&format!("/v1/{list}?limit=500{cursor}")).json();
        for item in page[list].as_array().unwrap() {
            let before = all.insert(item[id].as_str().unwrap().to_owned(), item.clone());
            assert!(before.is_none(), "listed twice: {item}");
        }
        match page["nextCursor"].as_i64() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return all,
        }
    }
}

/// What a client knows for sure, whatever happened to the server since.
struct Knowledge {
    takes_root: PathBuf,
    /// Client ids by the ids of the runs that they were answered with.
    accepted: HashMap<String, String>,
    /// Runs seen ended: status and error.
    ended: HashMap<String, (String, Value)>,
    takes: BTreeMap<String, Value>,
}

impl Knowledge {
    /// The body of submission `number`. Every third has a random seed.
    fn body(number: usize) -> (String, Vec<u8>) {
        let seed = if number.is_multiple_of(3) { -1 } else { number as i64 };
        let graph = demo_graph(json!({"steps": 1 + number % 3, "seed": seed, "width": 64, "height": 64}));
        let client = format!("client-{number}");
        let body = json!({"graph": graph, "target": "m1", "clientRunId": client, "meta": {"number": number}});
        (client, body.to_string().into_bytes())
    }

    /// Submits a run, or asks again about one; false if the server is gone.
    fn submit(&mut self, server: &Server, number: usize) -> bool {
        let (client, body) = Self::body(number);
        let Ok(answer) = server.try_send("POST", "/v1/runs", &[("content-type", "application/json")], &body) else {
            return false;
        };
        assert!([200, 201].contains(&answer.status), "{}", answer.json());
        let run = answer.json()["runId"].as_str().unwrap().to_owned();
        match self.accepted.insert(client.clone(), run.clone()) {
            None => {}
            Some(before) => assert_eq!((before, answer.status), (run, 200), "{client} was taken for a new run"),
        }
        true
    }

    /// Compares what the server says now with what it said before, and takes with their bytes.
    fn check(&mut self, server: &Server) {
        // The server works meanwhile: a run that is done here has its take in the list that is asked for after.
        let runs = whole_list(server, "runs", "runId");
        let takes = whole_list(server, "takes", "id");
        for (id, take) in &self.takes {
            assert_eq!(takes.get(id), Some(take), "a listed take changed or is gone");
        }
        let mut of_run: HashMap<&str, usize> = HashMap::new();
        for (id, take) in &takes {
            *of_run.entry(take["runId"].as_str().unwrap()).or_default() += 1;
            if !self.takes.contains_key(id) {
                verify(&self.takes_root, take);
            }
        }
        for (client, run) in &self.accepted {
            let state = runs.get(run).unwrap_or_else(|| panic!("{client} was accepted as {run}, which is lost"));
            let status = state["status"].as_str().unwrap();
            let made = of_run.get(run.as_str()).copied().unwrap_or(0);
            assert!(made <= 1, "{run} was executed {made} times: {state}");
            assert!(status != "done" || made == 1, "{run} is done without a take");
            assert!(status != "error" || state["error"]["message"] == INTERRUPTED, "{state}");
            if ended(status) {
                let now = (status.to_owned(), state["error"].clone());
                let before = self.ended.entry(run.clone()).or_insert_with(|| now.clone());
                assert_eq!(*before, now, "{run} had ended");
            } else {
                assert!(!self.ended.contains_key(run), "{run} had ended and is now {status}");
            }
        }
        self.takes = takes;
    }
}

fn verify(root: &Path, take: &Value) {
    let bytes = std::fs::read(root.join(take["uri"].as_str().unwrap()));
    let bytes = bytes.unwrap_or_else(|e| panic!("a listed take has no bytes: {e}: {take}"));
    assert_eq!(take["hash"], json!(format!("sha256-{}", hex::encode(Sha256::digest(bytes)))), "{take}");
}

#[test]
fn killed_at_random_moments_nothing_is_lost_or_repeated() {
    let (rounds, backlog) = (setting("CHAOS_ROUNDS", 6), setting("CHAOS_RUNS", 60));
    let seed = setting("CHAOS_SEED", std::process::id() as usize) as u64;
    println!("{rounds} rounds, {backlog} runs queued, seed {seed}");
    let mut random = Random(seed);
    let dir = tempfile::tempdir().unwrap();
    let (data, models) = (dir.path().join("data"), dir.path().join("models"));
    let mut known = Knowledge {
        takes_root: data.join("takes"),
        accepted: HashMap::new(),
        ended: HashMap::new(),
        takes: BTreeMap::new(),
    };
    let mut submitted = 0_usize;
    let mut slowest_start = Duration::ZERO;
    for round in 0..rounds {
        let begun = Instant::now();
        let mut server = Server::start(&data, &models, &[]);
        slowest_start = slowest_start.max(begun.elapsed());
        known.check(&server);
        // The last submission may have had no answer: asking again makes no second run. Older ones are still known.
        let earlier: Vec<usize> = (0..8.min(submitted)).map(|_| random.below(submitted as u64) as usize).collect();
        earlier.into_iter().chain(submitted.checked_sub(1)).for_each(|number| assert!(known.submit(&server, number)));
        // The kill comes while the backlog is filled up, or after that.
        let backlogged = known.accepted.len() - known.ended.len();
        let life = Duration::from_micros(random.below(LIFE.as_micros() as u64));
        let first = round == 0;
        let full = AtomicBool::new(!first);
        let pid = server.child.id();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !full.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                std::thread::sleep(life);
                kill(pid);
            });
            for queued in backlogged..backlog {
                let number = submitted;
                submitted += 1;
                if !known.submit(&server, number) {
                    break;
                }
                full.fetch_or(queued + 1 == backlog, Ordering::Release);
            }
            full.store(true, Ordering::Release);
        });
        server.child.wait().unwrap();
        if (round + 1) % 20 == 0 {
            println!("round {}: {} submitted, {} takes checked", round + 1, known.accepted.len(), known.takes.len());
        }
    }

    let server = Server::start(&data, &models, &[]);
    // The last submission may have been lost with its answer; it becomes a run here, and no other does.
    for number in 0..submitted {
        assert!(known.submit(&server, number));
    }
    let limit = Instant::now() + Duration::from_secs(60) + Duration::from_millis(200) * backlog as u32;
    while !server.get("/v1/runs").json()["runs"].as_array().unwrap().is_empty() {
        assert!(Instant::now() < limit, "the queue isn't worked off");
        std::thread::sleep(Duration::from_millis(100));
    }
    known.check(&server);
    let runs = whole_list(&server, "runs", "runId");
    assert_eq!(runs.len(), known.accepted.len(), "there are runs that nobody submitted");
    known.takes.values().for_each(|take| verify(&known.takes_root, take));
    let [done, given_up] = ["done", "error"].map(|status| runs.values().filter(|run| run["status"] == status).count());
    println!(
        "{} runs: {done} done, {given_up} {INTERRUPTED}, {} takes with their bytes; slowest start {slowest_start:?}",
        runs.len(),
        known.takes.len(),
    );
    assert!(done > 0 && done + given_up == runs.len() && known.takes.len() == done);
}

/// As `kill -9`, by a thread that can't own the child.
fn kill(pid: u32) {
    let status = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn a_run_that_was_in_work_at_two_deaths_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let (data, models) = (dir.path().join("data"), dir.path().join("models"));
    let mut server = Server::start(&data, &models, &["--workers", "1"]);
    let poison = server.submit(demo_graph(json!({"steps": 100, "seed": 1, "width": 512, "height": 512})));
    let waiting = server.submit(demo_graph(json!({"steps": 1, "seed": 2, "width": 64, "height": 64})));
    let status = |server: &Server, run: &str| server.get(&format!("/v1/runs/{run}")).json()["status"].clone();
    for _ in 0..2 {
        let limit = Instant::now() + Duration::from_secs(30);
        while status(&server, &poison) != "running" {
            assert!(Instant::now() < limit);
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(status(&server, &waiting), "queued");
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        server = Server::start(&data, &models, &["--workers", "1"]);
    }
    let state = server.wait(&poison);
    assert_eq!((&state["status"], &state["error"]["message"]), (&json!("error"), &json!(INTERRUPTED)), "{state}");
    assert_eq!(state["takes"], json!([]));
    assert_eq!(server.wait(&waiting)["status"], "done");
}
