//! Disks that are full or can't be written.

#![cfg(unix)]
#![allow(clippy::unwrap_used)] // a test fails where a value is missing
#![allow(unsafe_code)] // limits of a child process are set between fork and exec

mod common;

use common::{Server, demo_graph, inline};
use serde_json::json;
use std::os::unix::process::CommandExt;
use std::path::Path;

/// A `serve` whose files can't grow beyond `bytes`: what writes more fails, as on a full disk.
fn limited(data: &Path, models: &Path, bytes: u64) -> Server {
    let mut command = inline();
    command.args(["serve", "--port", "0", "--cache-gb", "0", "--data-dir"]).arg(data).arg("--models-dir").arg(models);
    let limit = move || {
        let limit = libc::rlimit { rlim_cur: bytes as libc::rlim_t, rlim_max: bytes as libc::rlim_t };
        // SAFETY: both calls are async-signal-safe and only change the child. The signal would end it; an error doesn't.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            if libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { command.pre_exec(limit) };
    Server::spawn(&mut command)
}

#[test]
fn a_full_disk_ends_the_run_and_not_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let (data, models) = (dir.path().join("data"), dir.path().join("models"));
    // The database is made while there is room, and has some to grow; a large picture has none.
    drop(Server::start(&data, &models, &[]));
    let server = limited(&data, &models, 200 << 10);
    let picture = |seed: u32, side: u32| demo_graph(json!({"steps": 1, "seed": seed, "width": side, "height": side}));
    let large = server.submit(picture(1, 512));
    let small = server.submit(picture(2, 64));
    let state = server.wait(&large);
    let message = state["error"]["message"].as_str().unwrap_or_else(|| panic!("{state}"));
    assert_eq!((&state["status"], &state["error"]["nodeId"]), (&json!("error"), &json!("m1")));
    assert!(message.contains("make room") && !message.contains(data.to_str().unwrap()), "{message}");
    assert_eq!(state["takes"], json!([]));
    assert_eq!(server.wait(&small)["status"], "done");
    assert_eq!(server.get("/v1/health").status, 200);

    // Submissions until the database is full: refused plainly; what was accepted is kept.
    let meta = "x".repeat(20 << 10);
    let body = |seed: u32| json!({"graph": picture(seed, 64), "target": "m1", "meta": {"note": meta}});
    let mut accepted = vec![large, small];
    let refused = (10..200).find_map(|seed| {
        let answer = server.post("/v1/runs", &body(seed));
        if answer.status != 201 {
            return Some(answer);
        }
        accepted.push(answer.json()["runId"].as_str().unwrap().to_owned());
        None
    });
    let refused = refused.expect("the database never filled up");
    assert!(refused.status >= 500, "{}", refused.status);
    assert!(refused.json()["error"]["message"].as_str().is_some_and(|m| !m.is_empty()));
    assert_eq!(server.get("/v1/health").status, 200);
    drop(server);

    // With room again every accepted run comes to its end.
    let server = Server::start(&data, &models, &[]);
    for run in &accepted[1..] {
        let state = server.wait(run);
        assert!(state["status"] == "done" || state["error"]["message"].is_string(), "{state}");
    }
    assert_eq!(server.wait(&server.submit(picture(300, 512)))["status"], "done");
}

#[test]
fn a_data_folder_that_cannot_be_written_is_named_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    // A file in the folder's place stops even the superuser, whom permissions don't.
    let data = dir.path().join("data");
    std::fs::write(&data, b"not a folder").unwrap();
    let mut command = inline();
    let ended = command.args(["serve", "--port", "0", "--data-dir"]).arg(&data).output().unwrap();
    let message = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{message}");
    assert!(message.contains("data directory") && !message.contains("panicked"), "{message}");
}
