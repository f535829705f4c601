//! A server with a tiny language model and a tiny embedder, both with random weights.

use super::{Answer, Server};
use conformance::recipe;
use serde_json::{Value, json};
use std::path::Path;

pub const CHAT: &str = "/v1/chat/completions";
pub const COMPLETIONS: &str = "/v1/completions";
pub const EMBEDDINGS: &str = "/v1/embeddings";

/// Writes the tiny language model as `llm/{name}` of a models folder, its JSON files changed by `change`.
pub fn write_language(models: &Path, name: &str, change: impl Fn(&str, &mut Value)) {
    let folder = models.join("llm").join(name);
    let fixture = recipe::fixtures().join("llm-tiny/qwen3");
    recipe::write_folder(&fixture, &folder, recipe::Format::F32, 1).unwrap();
    for file in ["config.json", "tokenizer_config.json"] {
        let mut json = serde_json::from_slice(&std::fs::read(folder.join(file)).unwrap()).unwrap();
        change(file, &mut json);
        std::fs::write(folder.join(file), json.to_string()).unwrap();
    }
}

/// Writes the tiny embedder as `embeddings/vectors`.
pub fn write_embedder(models: &Path) {
    let fixture = recipe::fixtures().join("bert-tiny");
    recipe::write_folder(&fixture, &models.join("embeddings/vectors"), recipe::Format::F32, 1).unwrap();
}

/// A server with one model of each kind.
pub fn text_server() -> (tempfile::TempDir, Server) {
    let dir = tempfile::tempdir().unwrap();
    write_language(&dir.path().join("models"), "tiny", |_, _| {});
    write_embedder(&dir.path().join("models"));
    let server = Server::start(&dir.path().join("data"), &dir.path().join("models"), &[]);
    (dir, server)
}

/// A conversation of one question, and `more`.
pub fn asking(more: Value) -> Value {
    merged(json!({"messages": [{"role": "user", "content": "a red apple"}], "max_tokens": 24}), more)
}

pub fn merged(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The answer of a request that must be met.
pub fn given(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    answer.json()
}

/// Status and field of a refusal in OpenAI's form.
pub fn refusal(answer: &Answer) -> (u16, String) {
    let error = answer.json()["error"].clone();
    assert_eq!(error["type"], "invalid_request_error", "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(!message.is_empty() && message.len() < 2000 && !message.contains("/models/"), "{message}");
    (answer.status, error["param"].as_str().unwrap_or_default().to_owned())
}

/// The events of a stream that ended well.
pub fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!((answer.status, answer.header("content-type")), (200, "text/event-stream"));
    let text = std::str::from_utf8(&answer.body).unwrap();
    let mut events: Vec<&str> = text.split_terminator("\n\n").map(|e| e.strip_prefix("data: ").unwrap()).collect();
    assert_eq!(events.pop(), Some("[DONE]"), "{text}");
    events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

/// What one choice's events say under `delta.{key}`, one after another.
pub fn said(events: &[Value], index: usize, key: &str) -> String {
    let choices = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
    choices.filter(|c| c["index"] == index).filter_map(|c| c["delta"][key].as_str()).collect()
}
