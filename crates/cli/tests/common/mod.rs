//! The real binary, started as users start it.

#![allow(clippy::unwrap_used, dead_code)] // a test fails where a value is missing; not every test uses everything

pub mod text;

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use tungstenite::stream::MaybeTlsStream;
use tungstenite::{Message, WebSocket};

pub fn inline() -> Command {
    // Long checks run against an optimised binary.
    let binary = std::env::var_os("TEST_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_inline").into());
    let mut command = Command::new(binary);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("INLINE_")) {
        command.env_remove(name);
    }
    // f32 gives the same picture on every instruction set within rounding, and so the golden ones.
    command.env("INLINE_LOG", "warn");
    command
}

pub fn demo_graph(params: Value) -> Value {
    json!({"schemaVersion": 1, "nodes": [
        {"id": "p1", "type": "input/text", "params": {"text": "a red apple"}},
        {"id": "m1", "type": "inline/demo", "params": params, "inputs": {"prompt": {"from": "p1", "output": "text"}}}]})
}

/// A server on a free port, killed when dropped.
pub struct Server {
    pub child: Child,
    client: Client,
}

/// Speaks to a server at an address.
pub struct Client {
    pub base: String,
    pub token: Option<String>,
}

impl Deref for Server {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

pub struct Answer {
    pub status: u16,
    pub headers: ureq::http::HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().unwrap())
    }
}

impl Server {
    pub fn start(data: &Path, models: &Path, extra: &[&str]) -> Self {
        let mut command = inline();
        command.args([
            "serve",
            "--port",
            "0",
            "--data-dir",
            data.to_str().unwrap(),
            "--models-dir",
            models.to_str().unwrap(),
        ]);
        Self::spawn(command.args(extra))
    }

    /// Starts a `serve` command that was prepared elsewhere.
    pub fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let base = line.trim().strip_suffix("/v1").unwrap_or_else(|| panic!("the server printed {line:?}")).to_owned();
        Self { child, client: Client { base, token: None } }
    }
}

impl Client {
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.try_send(method, path, headers, body).unwrap()
    }

    /// As [`Self::send`], for a server that may be dying.
    pub fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Answer, ureq::Error> {
        static AGENT: LazyLock<ureq::Agent> = LazyLock::new(|| {
            ureq::Agent::config_builder()
                .http_status_as_error(false)
                .allow_non_standard_methods(true)
                .timeout_global(Some(Duration::from_secs(60)))
                .build()
                .into()
        });
        let mut request = ureq::http::Request::builder().method(method).uri(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut response = AGENT.run(request.body(body.to_vec()).unwrap())?;
        let mut bytes = Vec::new();
        response.body_mut().as_reader().read_to_end(&mut bytes)?;
        Ok(Answer { status: response.status().as_u16(), headers: response.headers().clone(), body: bytes })
    }

    pub fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[("content-type", "application/json")], body.to_string().as_bytes())
    }

    pub fn submit(&self, graph: Value) -> String {
        let answer = self.post("/v1/runs", &json!({"graph": graph, "target": "m1"}));
        assert_eq!(answer.status, 201, "{:?}", answer.json());
        answer.json()["runId"].as_str().unwrap().to_owned()
    }

    /// The state of a run once it has ended.
    pub fn wait(&self, run: &str) -> Value {
        let start = Instant::now();
        loop {
            let state = self.get(&format!("/v1/runs/{run}")).json();
            if ["done", "error", "cancelled"].contains(&state["status"].as_str().unwrap()) {
                return state;
            }
            assert!(start.elapsed() < Duration::from_secs(120), "{state}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn events(&self, run: &str, query: &str) -> WebSocket<MaybeTlsStream<TcpStream>> {
        let mut url = format!("{}/v1/runs/{run}/events{query}", self.base.replace("http:", "ws:"));
        if let Some(token) = &self.token {
            url += &format!("{}token={token}", if query.is_empty() { "?" } else { "&" });
        }
        tungstenite::connect(url).unwrap().0
    }
}

/// Every event up to the close, and the close code.
pub fn drain(mut socket: WebSocket<MaybeTlsStream<TcpStream>>) -> (Vec<Value>, Option<u16>) {
    let mut events = Vec::new();
    loop {
        match socket.read() {
            Ok(Message::Text(text)) => events.push(serde_json::from_str(text.as_str()).unwrap()),
            Ok(Message::Close(frame)) => return (events, frame.map(|f| f.code.into())),
            Ok(_) => {}
            Err(_) => return (events, None),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Width, height and bytes of a PNG file.
pub fn pixels(path: &Path) -> (u32, u32, Vec<u8>) {
    let decoder = png::Decoder::new(std::io::BufReader::new(std::fs::File::open(path).unwrap()));
    let mut reader = decoder.read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut bytes).unwrap();
    (info.width, info.height, bytes)
}

/// How alike two pictures are, in dB; infinite if equal.
pub fn peak_to_noise(a: &[u8], b: &[u8]) -> f64 {
    assert_eq!(a.len(), b.len());
    let squares: f64 = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
    10.0 * (255.0 * 255.0 / (squares / a.len() as f64)).log10()
}
