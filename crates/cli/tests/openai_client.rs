//! OpenAI's official Python client against a real server. It is installed into an environment of the test's own, so this
//! is no part of a plain `cargo test`: `cargo test -p inline --test openai_client -- --ignored --nocapture`.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

mod common;

use common::text::text_server;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The client, at a version that is known.
const PACKAGE: &str = "openai==3.63.0";

/// What pip says when it gets no answer, rather than a bad one.
const UNREACHABLE: [&str; 4] = ["NewConnectionError", "NameResolutionError", "ConnectTimeoutError", "Retrying (Retry("];

fn python(environment: &Path) -> PathBuf {
    environment.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" })
}

/// The Python of an environment with the client, or why there is none.
fn environment() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(PACKAGE.replace("==", "-"));
    let python = python(&folder);
    let imports =
        |python: &Path| Command::new(python).args(["-c", "import openai"]).output().is_ok_and(|o| o.status.success());
    if imports(&python) {
        return Ok(python);
    }
    let own = if cfg!(windows) { "python" } else { "python3" };
    let made =
        Command::new(own).args(["-m", "venv", "--clear"]).arg(&folder).output().map_err(|e| format!("{own}: {e}"))?;
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--timeout", "20", PACKAGE];
    let installed = Command::new(&python).args(pip).output().unwrap();
    if installed.status.success() {
        return Ok(python);
    }
    let said = String::from_utf8_lossy(&installed.stderr).into_owned();
    match UNREACHABLE.iter().any(|sign| said.contains(sign)) {
        true => Err(format!("pip reaches no package registry:\n{said}")),
        false => panic!("{said}"),
    }
}

#[test]
#[ignore = "installs OpenAI's client from a package registry"]
fn the_official_client_works() {
    let python = match environment() {
        Ok(python) => python,
        Err(reason) => {
            println!("skipped: {reason}");
            return;
        }
    };
    let (_dir, server) = text_server();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openai_client.py");
    let output = Command::new(python).arg(script).arg(format!("{}/v1", server.base)).output().unwrap();
    let (told, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}{error}");
    print!("{told}");
}
