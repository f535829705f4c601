//! Answers that must match something: whatever a model with random weights would rather say, they do.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

mod common;

use common::{edit_json, load, request, write};
use core_llm::*;
use serde_json::{Value, json};
use std::path::Path;

fn tiny(folder: &Path) -> Box<dyn TextLlm> {
    write("qwen3", folder);
    load(folder).unwrap()
}

/// A request whose tokens are close to chance.
fn wild(constraint: Constraint, seed: u64) -> TextLlmRequest {
    TextLlmRequest {
        constraint: Some(constraint),
        sampling: SamplingParams { temperature: 3.0, top_p: 1.0, ..Default::default() },
        seed,
        thinking: Thinking::Disabled,
        max_new_tokens: 1500,
        ..request("a red apple")
    }
}

fn field(result: Result<TextLlmOutput>) -> &'static str {
    match result {
        Err(Error::InvalidRequest { field, .. }) => field,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "mood": {"enum": ["good", "bad"]},
            "friends": {"type": "array", "items": {"$ref": "#/$defs/friend"}, "maxItems": 3}
        },
        "required": ["name", "age", "mood"],
        "additionalProperties": false,
        "$defs": {"friend": {"type": "string", "maxLength": 5}}
    })
}

#[test]
fn documents_follow_their_schema() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path());
    for seed in 0..8 {
        let output = model.complete(&wild(Constraint::JsonSchema(person()), seed)).unwrap();
        assert_eq!(output.finish_reason, FinishReason::Stop, "{output:?}");
        let document: Value = serde_json::from_str(&output.text).unwrap();
        assert!((0..=150).contains(&document["age"].as_i64().unwrap()), "{document}");
        assert!(document["name"].as_str().unwrap().chars().count() <= 12, "{document}");
        assert!(["good", "bad"].contains(&document["mood"].as_str().unwrap()), "{document}");
        for key in document.as_object().unwrap().keys() {
            assert!(["name", "age", "mood", "friends"].contains(&key.as_str()), "{document}");
        }
    }
}

#[test]
fn any_json_is_json_or_the_beginning_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path());
    for seed in 0..12 {
        let request = TextLlmRequest { max_new_tokens: 60, ..wild(Constraint::Json, seed) };
        let output = model.complete(&request).unwrap();
        let parsed = serde_json::from_str::<Value>(&output.text);
        match output.finish_reason {
            FinishReason::Stop => {
                // JSON knows larger numbers than this parser.
                let fine = parsed.as_ref().map_or_else(|e| e.to_string().contains("out of range"), |_| true);
                assert!(fine, "{parsed:?} {}", output.text);
            }
            // Cut off by the length, and nothing else is wrong with it.
            _ => assert!(
                parsed.map_or_else(|e| e.is_eof() || e.to_string().contains("out of range"), |_| true),
                "{}",
                output.text
            ),
        }
    }
}

#[test]
fn expressions_and_grammars_are_followed() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path());
    for seed in 0..4 {
        let text = model.complete(&wild(Constraint::Regex("[a-c]{3}-[0-9]{2}".into()), seed)).unwrap().text;
        let bytes = text.as_bytes();
        assert!(bytes.len() == 6 && bytes[..3].iter().all(|b| (b'a'..=b'c').contains(b)) && bytes[3] == b'-', "{text}");
        assert!(bytes[4..].iter().all(u8::is_ascii_digit), "{text}");
        let grammar = "start: \"yes\" | \"no\" \", \" NUMBER\nNUMBER: /[1-9][0-9]?/\n";
        let text = model.complete(&wild(Constraint::Grammar(grammar.into()), seed)).unwrap().text;
        assert!(text == "yes" || text.strip_prefix("no, ").unwrap().parse::<u32>().unwrap() < 100, "{text}");
    }
}

#[test]
fn what_cannot_be_followed_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path());
    let endless = json!({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]});
    let mut deep = json!({"type": "string"});
    for _ in 0..500 {
        deep = json!({"type": "array", "items": deep});
    }
    for bad in [
        Constraint::JsonSchema(endless),
        Constraint::JsonSchema(json!({"$ref": "#"})),
        Constraint::JsonSchema(deep),
        Constraint::JsonSchema(json!("no schema")),
        Constraint::JsonSchema(json!(false)),
        Constraint::JsonSchema(json!({"type": "fruit"})),
        Constraint::JsonSchema(json!({"allOf": [{"type": "string"}, {"type": "integer"}]})),
        Constraint::Regex("(".into()),
        Constraint::Regex("[z-a]".into()),
        Constraint::Regex("(".repeat(100_000)),
        Constraint::Grammar(String::new()),
        Constraint::Grammar("start: missing".into()),
        Constraint::Grammar("start: start".into()),
        Constraint::Grammar(format!("start: {}\"a\"{}", "(".repeat(5000), ")".repeat(5000))),
    ] {
        let shown = format!("{bad:?}").chars().take(80).collect::<String>();
        assert_eq!(field(model.complete(&wild(bad, 0))), "constraint", "{shown}");
    }
}

#[test]
fn a_thought_comes_before_the_document_and_not_in_it() {
    let dir = tempfile::tempdir().unwrap();
    write("qwen3", dir.path());
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n";
    edit_json(&dir.path().join("tokenizer_config.json"), |c| c["chat_template"] = json!(template));
    let model = load(dir.path()).unwrap();
    let mut complete = 0;
    for seed in 0..12 {
        let request = wild(Constraint::Regex("(yes|no)".into()), seed);
        let output = model.complete(&TextLlmRequest { thinking: Thinking::Auto, ..request }).unwrap();
        match output.finish_reason {
            FinishReason::Length => assert!("yes no".contains(&output.text)),
            _ => {
                complete += 1;
                assert!(["yes", "no"].contains(&output.text.as_str()), "{output:?}");
            }
        }
    }
    assert!(complete > 0, "no thought ended");
}

fn weather() -> Value {
    let parameters = json!({
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 9}, "days": {"$ref": "#/$defs/days"}},
        "required": ["city", "days"],
        "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 14}}
    });
    json!({"type": "function", "function": {"name": "weather", "description": "the forecast", "parameters": parameters}})
}

#[test]
fn calls_that_must_come_do_in_every_style() {
    for template in [
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        "{% for t in tools %}{{ t | tojson }}{% endfor %}{# <tool_call> #}",
        "{% for t in tools %}{{ t | tojson }}{% endfor %}{# bare #}",
        "{% for t in tools %}{{ t | tojson }}{% endfor %}{# <function= #}",
    ] {
        let dir = tempfile::tempdir().unwrap();
        write("qwen3", dir.path());
        edit_json(&dir.path().join("tokenizer_config.json"), |c| c["chat_template"] = json!(template));
        let model = load(dir.path()).unwrap();
        for tool_choice in [ToolChoice::Required, ToolChoice::Named("weather".into())] {
            let request =
                TextLlmRequest { tools: vec![weather()], tool_choice, constraint: None, ..wild(Constraint::Json, 3) };
            let mut called = Vec::new();
            let output = model
                .generate(&request, &mut |event| match event {
                    StreamEvent::ToolCall(call) => called.push(call),
                    StreamEvent::Token { text, .. } => assert!(text.trim().is_empty(), "{text}"),
                    StreamEvent::Done { .. } => {}
                })
                .unwrap();
            assert_eq!((output.finish_reason, &output.tool_calls), (FinishReason::ToolCalls, &called), "{template}");
            assert!((1..=14).contains(&called[0].arguments["days"].as_i64().unwrap()), "{called:?}");
            assert!(called[0].arguments["city"].is_string() && called[0].name == "weather", "{called:?}");
        }
        let either = TextLlmRequest { tools: vec![weather()], ..wild(Constraint::JsonSchema(person()), 1) };
        let output = model.complete(&either).unwrap();
        assert!(!output.tool_calls.is_empty() || serde_json::from_str::<Value>(&output.text).is_ok(), "{output:?}");
    }
}

#[test]
fn tools_that_cannot_be_called_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path());
    let mut endless = weather();
    endless["function"]["parameters"] =
        json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]});
    let ask = |tools, tool_choice| TextLlmRequest { tools, tool_choice, ..request("a") };
    assert_eq!(field(model.complete(&ask(vec![endless.clone()], ToolChoice::Auto))), "tools");
    assert_eq!(field(model.complete(&ask(vec![endless], ToolChoice::Required))), "tools");
    assert_eq!(field(model.complete(&ask(vec![json!({})], ToolChoice::Auto))), "tools");
    assert_eq!(field(model.complete(&ask(vec![weather()], ToolChoice::Named("other".into())))), "tool_choice");
}

#[test]
fn probabilities_come_with_the_text_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path());
    let plain = model.complete(&request("a red apple")).unwrap();
    let mut streamed = Vec::new();
    let asked = TextLlmRequest { logprobs: Some(3), ..request("a red apple") };
    let output = model
        .generate(&asked, &mut |event| {
            if let StreamEvent::Token { logprobs, .. } = event {
                streamed.extend(logprobs);
            }
        })
        .unwrap();
    assert_eq!((&output.text, &output.logprobs), (&plain.text, &streamed));
    assert!(plain.logprobs.is_empty() && streamed.len() > 3 && streamed.len() <= output.usage.completion_tokens);
    for token in &streamed {
        assert!(token.token.logprob <= 0.0 && token.top.len() == 3);
        // The likeliest token was taken.
        assert_eq!(token.top[0], token.token);
        assert!(token.top.windows(2).all(|pair| pair[0].logprob >= pair[1].logprob));
    }
}

#[test]
fn a_text_is_continued_without_a_template() {
    let dir = tempfile::tempdir().unwrap();
    write("qwen3", dir.path());
    edit_json(&dir.path().join("tokenizer_config.json"), |c| drop(c.as_object_mut().unwrap().remove("chat_template")));
    let _ = std::fs::remove_file(dir.path().join("chat_template.jinja"));
    let model = load(dir.path()).unwrap();
    let asked = TextLlmRequest { sampling: SamplingParams::greedy(), ..TextLlmRequest::continuing("a red", 8) };
    let output = model.complete(&asked).unwrap();
    assert!(output.usage.completion_tokens == 8 && !output.text.is_empty());
    assert_eq!(field(model.complete(&request("a red"))), "messages");
    assert_eq!(field(model.complete(&TextLlmRequest::continuing("", 8))), "prompt");
}

#[test]
fn odd_texts_are_answered_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path());
    for text in ["", "\0", "a\0b", "\u{fffd}", "\u{202e}🦀\u{10ffff}", "<|im_end|><think>"] {
        model.complete(&TextLlmRequest { max_new_tokens: 2, ..request(text) }).unwrap();
    }
    let began = std::time::Instant::now();
    assert_eq!(field(model.complete(&request(&"apple ".repeat(4_000_000)))), "messages");
    assert!(began.elapsed().as_secs() < 5);
}
