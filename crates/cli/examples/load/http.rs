//! One kept connection. It does little, because it takes its time from the server's.

use crate::Result;
use serde_json::Value;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A connection on which one request goes after the other.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// The bytes of a request.
pub fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
    let length = body.len();
    format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{kind}content-length: {length}\r\n\r\n{body}").into_bytes()
}

impl Connection {
    pub async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(8192) })
    }

    /// Sends a request and gives the status and body of its answer.
    pub async fn send(&mut self, request: &[u8]) -> Result<(u16, &[u8])> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        loop {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err("the server closed the connection".into());
            }
            if let Some((status, body)) = answer(&self.buffer)? {
                return Ok((status, &self.buffer[body..]));
            }
        }
    }

    /// As [`Self::send`], for answers of a certain status that are JSON.
    pub async fn json(&mut self, request: &[u8], expected: u16) -> Result<Value> {
        let (status, body) = self.send(request).await?;
        if status != expected {
            return Err(format!("status {status}: {}", String::from_utf8_lossy(body)).into());
        }
        Ok(serde_json::from_slice(body)?)
    }
}

/// Status of an answer and where its body starts, once all of it is there.
fn answer(bytes: &[u8]) -> Result<Option<(u16, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(body) = head.parse(bytes)? else { return Ok(None) };
    let length = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length = length.ok_or("an answer without a length")?.value;
    let length: usize = std::str::from_utf8(length)?.parse()?;
    Ok((bytes.len() >= body + length).then(|| (head.code.unwrap_or(0), body)))
}
