//! The server that is measured.

use crate::{Failure, Result};
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A server, stopped when dropped if it was started here.
pub struct Server {
    address: SocketAddr,
    started: Option<(Child, tempfile::TempDir)>,
}

impl Server {
    /// Starts `binary` on a data folder of its own; with `base`, takes what runs there.
    pub fn start(base: Option<&str>, binary: Option<&Path>) -> Result<Self> {
        if let Some(base) = base {
            return Ok(Self { address: resolve(base)?, started: None });
        }
        // Examples lie in a folder beside the program.
        let beside = std::env::current_exe()?.with_file_name(format!("../inline{}", std::env::consts::EXE_SUFFIX));
        let dir = tempfile::tempdir()?;
        let mut command = Command::new(binary.unwrap_or(&beside));
        command.arg("serve").args(["--port", "0"]);
        command.arg("--data-dir").arg(dir.path().join("data")).arg("--models-dir").arg(dir.path().join("models"));
        command.env("INLINE_LOG", "warn").stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("{}: {e}", command.get_program().display()))?;
        let output = child.stdout.take().ok_or("no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let address = resolve(line.trim().trim_end_matches("/v1"))?;
        Ok(Self { address, started: Some((child, dir)) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn resolve(base: &str) -> Result<SocketAddr> {
    let host = base.strip_prefix("http://").ok_or_else(|| format!("'{base}' doesn't begin with http://"))?;
    let host = host.trim_end_matches('/');
    host.to_socket_addrs()?.next().ok_or_else(|| Failure::from(format!("{host}: no such address")))
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some((child, _)) = &mut self.started {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
