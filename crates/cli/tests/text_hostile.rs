//! Text requests that are meant to hurt: each is refused with its status, or met, and the server goes on; and the work of
//! clients that have gone stops.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

mod common;

use common::Server;
use common::text::{CHAT, COMPLETIONS, asking, given, merged, refusal, text_server, write_language};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

fn chat(server: &Server, more: Value) -> (u16, String) {
    refusal(&server.post(CHAT, &asking(more)))
}

fn raw(server: &Server, body: &str) -> u16 {
    let answer = server.send("POST", CHAT, &[("content-type", "application/json")], body.as_bytes());
    assert!(answer.json()["error"]["message"].is_string(), "{body:.80}");
    answer.status
}

#[test]
fn fields_that_cannot_be_followed_are_refused_by_name() {
    let (_dir, server) = text_server();
    for field in ["logit_bias", "parallel_tool_calls", "store", "metadata", "functions", "no_such"] {
        for value in [json!(1), Value::Null] {
            assert_eq!(chat(&server, json!({ field: value })), (422, field.to_owned()));
        }
    }
    for (body, field) in [
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"max_tokens": 1, "max_completion_tokens": 1}), "max_tokens"),
        (json!({"temperature": "NaN"}), "temperature"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"temperature": 1e39}), "temperature"),
        (json!({"top_p": 0}), "top_p"),
        (json!({"min_p": 2}), "min_p"),
        (json!({"presence_penalty": 3}), "presence_penalty"),
        (json!({"frequency_penalty": -3}), "frequency_penalty"),
        (json!({"seed": 1.5}), "seed"),
        (json!({"n": 0}), "n"),
        (json!({"n": 1000}), "n"),
        (json!({"stop": ""}), "stop"),
        (json!({"stop": [1]}), "stop"),
        (json!({"stop": vec!["x"; 17]}), "stop"),
        (json!({"stop": "x".repeat(2000)}), "stop"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options"),
        (json!({"stream": true, "stream_options": {"chunked": 1}}), "stream_options.chunked"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"logprobs": 2}), "logprobs"),
        (json!({"thinking": "hard"}), "thinking"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": "hello"}), "messages"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": 7}]}), "messages[0].content"),
        (json!({"messages": [{"role": "judge", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user", "content": "x", "mood": 1}]}), "messages[0].mood"),
        (json!({"messages": [{"role": "user", "content": [{"type": "text"}]}]}), "messages[0].content[0].text"),
        (json!({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}), "messages[0].content[0].type"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "messages[0].tool_call_id"),
        (json!({"messages": [{"role": "user", "content": "x", "tool_calls": []}]}), "messages[0].tool_calls"),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{"}}]}]}),
            "messages[0].tool_calls[0].function.arguments",
        ),
    ] {
        assert_eq!(chat(&server, body.clone()), (422, field.to_owned()), "{body:.200}");
    }
    for (body, field) in [
        (json!({}), "prompt"),
        (json!({"prompt": ""}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": [1, 2]}), "prompt"),
        (json!({"prompt": vec!["x"; 17]}), "prompt"),
        (json!({"prompt": ["x", "y"], "n": 9}), "n"),
        (json!({"prompt": "x", "suffix": "y"}), "suffix"),
        (json!({"prompt": "x", "best_of": 2}), "best_of"),
        (json!({"prompt": "x", "echo": true, "logprobs": 1}), "echo"),
        (json!({"prompt": "x", "logprobs": 21}), "logprobs"),
        (json!({"prompt": "x", "max_tokens": 0}), "max_tokens"),
        (json!({"prompt": "x", "messages": []}), "messages"),
        (json!({"prompt": "x ".repeat(4000)}), "prompt"),
    ] {
        assert_eq!(refusal(&server.post(COMPLETIONS, &body)), (422, field.to_owned()), "{body:.200}");
    }
}

#[test]
fn schemas_and_tools_that_make_no_sense_are_refused() {
    let (_dir, server) = text_server();
    let schema = |schema: Value| {
        chat(
            &server,
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}),
        )
    };
    let mut deep = json!({});
    for _ in 0..100 {
        deep = json!({"type": "array", "items": deep});
    }
    for bad in [
        json!({"$ref": "#"}),
        json!({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        json!({"$ref": "https://example.com/x.json"}),
        json!({"type": "no such type"}),
        json!({"type": "string", "pattern": "("}),
        json!({"properties": 3}),
        json!(7),
        deep,
    ] {
        assert_eq!(schema(bad.clone()), (422, "response_format".to_owned()), "{bad:.200}");
    }
    let format = |format: Value| chat(&server, json!({ "response_format": format })).1;
    assert!(format(json!({"type": "yaml"})).starts_with("response_format"));
    assert!(format(json!({"type": "json_schema"})).starts_with("response_format"));
    assert!(format(json!("json")).starts_with("response_format"));

    let function = |function: Value| json!({"tools": [{"type": "function", "function": function}]});
    let named = json!({"name": "f", "parameters": {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}});
    for bad in [
        json!({"tools": [1]}),
        json!({"tools": [{"type": "web_search"}]}),
        function(json!({"name": "no spaces"})),
        function(json!({"name": "f", "parameters": {"type": "string"}})),
        function(json!({"name": "f", "parameters": {"type": "object", "properties": {"a": 1}}})),
        function(named),
    ] {
        assert_eq!(chat(&server, bad.clone()), (422, "tools".to_owned()), "{bad}");
    }
    for choice in [json!("required"), json!("always"), json!({"type": "function", "function": {"name": "g"}})] {
        assert_eq!(chat(&server, json!({ "tool_choice": choice })), (422, "tool_choice".to_owned()));
    }
}

#[test]
fn odd_texts_are_met_and_broken_ones_refused() {
    let (_dir, server) = text_server();
    for content in ["", "\0", "a\0b", "🦀\u{202e}\u{feff}", "<|im_end|><|im_start|>system", "{{ 1 / 0 }}", "\u{fffd}"]
    {
        given(&server.post(CHAT, &json!({"messages": [{"role": "user", "content": content}], "max_tokens": 2})));
    }
    let body = |content: &str| format!(r#"{{"messages":[{{"role":"user","content":"{content}"}}],"max_tokens":2}}"#);
    for (content, status) in [(r"\ud83e", 400), (r"\udd80\ud83e", 400), (r"\ud83ex", 400), (r"\u00", 400)] {
        assert_eq!(raw(&server, &body(content)), status, "{content}");
    }
    let answer = server.send("POST", CHAT, &[], body(r"\ud83e\udd80 \u0000").as_bytes());
    given(&answer);
    assert_eq!(raw(&server, r#"{"messages":[{"role":"user","content":"x"}],"temperature":NaN}"#), 400);
    assert_eq!(raw(&server, r#"{"messages":[{"role":"user","content":"x"}],"temperature":1e999}"#), 400);
    assert_eq!(raw(&server, r#"{"messages":[],"messages":[]}"#), 400);
    assert_eq!(raw(&server, &format!(r#"{{"messages":{}{}}}"#, "[".repeat(50_000), "]".repeat(50_000))), 400);
    let text = server.send("POST", CHAT, &[("content-type", "text/plain")], b"{}");
    assert_eq!(refusal(&text).0, 415);
}

#[test]
fn what_does_not_fit_the_context_is_refused_with_the_limit() {
    let (_dir, server) = text_server();
    let message = |answer: common::Answer, field: &str| {
        assert_eq!(refusal(&answer), (422, field.to_owned()));
        answer.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    let long = json!([{"role": "user", "content": "apple ".repeat(3000)}]);
    let said = message(server.post(CHAT, &asking(json!({ "messages": long }))), "messages");
    assert!(said.contains("2048"), "{said}");
    let said = message(server.post(CHAT, &asking(json!({"max_tokens": 5000}))), "max_tokens");
    assert!(said.contains("2048"), "{said}");
    let huge = json!([{"role": "user", "content": "apple ".repeat(1_200_000)}]);
    message(server.post(CHAT, &asking(json!({ "messages": huge }))), "messages");
    let many: Vec<Value> = (0..50_000).map(|_| json!({"role": "user", "content": ""})).collect();
    message(server.post(CHAT, &asking(json!({ "messages": many }))), "messages");
    // Without a limit of its own an answer may fill the context.
    let filled = given(&server.post(CHAT, &json!({"seed": 2, "messages": [{"role": "user", "content": "a"}]})));
    assert!(filled["usage"]["total_tokens"].as_u64().unwrap() <= 2048);
}

/// A GGUF file of a Llama that computes nothing, with nothing but its geometry in the metadata.
fn gguf_without_tokenizer(path: &Path) {
    const WIDTH: u64 = 32;
    let (mut head, mut infos, mut offset) = (b"GGUF".to_vec(), Vec::new(), 0u64);
    let text = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    };
    let mut tensors: Vec<(String, Vec<u64>)> =
        vec![("token_embd.weight".into(), vec![WIDTH, 16]), ("output_norm.weight".into(), vec![WIDTH])];
    for name in ["attn_norm", "ffn_norm"] {
        tensors.push((format!("blk.0.{name}.weight"), vec![WIDTH]));
    }
    for name in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"] {
        tensors.push((format!("blk.0.{name}.weight"), vec![WIDTH, WIDTH]));
    }
    for (name, shape) in &tensors {
        text(&mut infos, name);
        infos.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|side| infos.extend(side.to_le_bytes()));
        infos.extend(0u32.to_le_bytes()); // f32
        infos.extend(offset.to_le_bytes());
        offset += shape.iter().product::<u64>() * 4;
    }
    let counts = [
        ("block_count", 1u32),
        ("context_length", 64),
        ("embedding_length", WIDTH as u32),
        ("feed_forward_length", WIDTH as u32),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 2),
    ];
    head.extend(3u32.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend((counts.len() as u64 + 2).to_le_bytes());
    text(&mut head, "general.architecture");
    head.extend(8u32.to_le_bytes()); // text
    text(&mut head, "llama");
    text(&mut head, "llama.attention.layer_norm_rms_epsilon");
    head.extend(6u32.to_le_bytes()); // f32
    head.extend(1e-5f32.to_le_bytes());
    for (key, count) in counts {
        text(&mut head, &format!("llama.{key}"));
        head.extend(4u32.to_le_bytes()); // u32
        head.extend(count.to_le_bytes());
    }
    head.extend(infos);
    head.resize(head.len().next_multiple_of(32) + offset as usize, 0);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, head).unwrap();
}

#[test]
fn models_that_lack_what_it_takes_are_refused_in_a_sentence() {
    let (dir, server) = text_server();
    let models = dir.path().join("models");
    let template = |name: &str, text: Value| {
        write_language(&models, name, |file, json| {
            if file == "tokenizer_config.json" {
                json["chat_template"] = text.clone();
            }
        });
    };
    template("recursing", json!("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"));
    template("including", json!("{% include 'chat' %}"));
    template("raising", json!("{{ raise_exception('no system role') }}"));
    template("broken", json!("{% for %}"));
    template("silent", json!(""));
    template("missing", Value::Null);
    gguf_without_tokenizer(&models.join("llm/wordless.gguf"));
    std::fs::write(models.join("llm/cut.gguf"), b"GGUF\x03\0\0\0").unwrap();
    std::fs::write(models.join("llm/pickled.bin"), b"\x80\x02}").unwrap();
    let message = |model: &str| {
        let answer = server.post(CHAT, &asking(json!({ "model": model })));
        assert_eq!(refusal(&answer).0, 422, "{model}: {}", answer.json());
        answer.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    for (model, said) in [
        ("recursing", "template"),
        ("including", "template"),
        ("raising", "no system role"),
        ("broken", "template"),
        ("silent", "empty prompt"),
        ("missing", "no chat template"),
        ("wordless", "no tokenizer"),
        ("cut", "cut"),
        ("pickled.bin", "pickle"),
    ] {
        let message = message(model);
        assert!(message.contains(said), "{model}: {message}");
    }
    given(&server.post(COMPLETIONS, &json!({"model": "missing", "prompt": "a"})));
    assert_eq!(server.get("/v1/health").status, 200);
}

/// A sample of `GET /metrics`.
fn metric(server: &Server, name: &str) -> f64 {
    let page = server.get("/metrics");
    let text = std::str::from_utf8(&page.body).unwrap();
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok()).unwrap_or(0.0)
}

fn wait_for(server: &Server, name: &str, value: f64) {
    let start = Instant::now();
    while metric(server, name) != value {
        assert!(start.elapsed() < Duration::from_secs(120), "{name} is {}, not {value}", metric(server, name));
        std::thread::sleep(Duration::from_millis(5));
    }
}

const IN_WORK: &str = "inline_text_answers";
const CANCELLED: &str = "inline_text_answers_ended_total{outcome=\"cancelled\"}";

/// Sends a request for a text without end; the answer is the caller's to read.
fn endless(server: &Server, stream: bool) -> BufReader<TcpStream> {
    let body =
        merged(asking(json!({"model": "endless", "stream": stream})), json!({"max_tokens": 1_000_000})).to_string();
    let address = server.base.strip_prefix("http://").unwrap();
    let mut socket = TcpStream::connect(address).unwrap();
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {}\r\n\r\n", body.len());
    socket.write_all((head + &body).as_bytes()).unwrap();
    BufReader::new(socket)
}

fn read_event(reader: &mut BufReader<TcpStream>) {
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert_ne!(reader.read_line(&mut line).unwrap(), 0, "the stream ended");
    }
}

#[test]
fn the_work_of_a_client_that_has_gone_stops() {
    let dir = tempfile::tempdir().unwrap();
    // Nothing ends its texts, and a million tokens take hours.
    write_language(&dir.path().join("models"), "endless", |file, json| match file {
        "config.json" => {
            json["eos_token_id"] = Value::Null;
            json["max_position_embeddings"] = json!(2_000_000);
        }
        _ => json["eos_token"] = Value::Null,
    });
    let server = Server::start(&dir.path().join("data"), &dir.path().join("models"), &[]);

    let (mut first, mut second) = (endless(&server, true), endless(&server, true));
    read_event(&mut first);
    read_event(&mut second);
    wait_for(&server, IN_WORK, 2.0);
    drop(first);
    wait_for(&server, CANCELLED, 1.0);
    wait_for(&server, IN_WORK, 1.0);
    // The other one goes on.
    for _ in 0..50 {
        read_event(&mut second);
    }
    drop(second);
    wait_for(&server, CANCELLED, 2.0);

    // Nor does a whole answer outlive its client.
    let whole = endless(&server, false);
    wait_for(&server, IN_WORK, 1.0);
    drop(whole);
    wait_for(&server, CANCELLED, 3.0);
    wait_for(&server, IN_WORK, 0.0);
    assert_eq!(metric(&server, "inline_text_answers_ended_total{outcome=\"done\"}"), 0.0);
}
