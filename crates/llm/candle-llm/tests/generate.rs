//! Whole answers of tiny models with random weights.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

mod common;

use common::{edit_json, load, request, write};
use conformance::recipe;
use core_llm::*;
use layers::text::Tokenizer;
use safetensors::SafeTensors;
use serde_json::json;
use std::path::Path;

fn tiny(folder: &Path) -> Box<dyn TextLlm> {
    write("qwen3", folder);
    load(folder).unwrap()
}

/// The fixtures' prompt, the tokens that transformers makes of it, and the number of its tokens.
fn reference(family: &str) -> (String, Vec<u32>, usize) {
    let fixtures = recipe::fixtures().join("llm-tiny");
    let prompt: serde_json::Value =
        serde_json::from_slice(&std::fs::read(fixtures.join("prompt.json")).unwrap()).unwrap();
    let bytes = std::fs::read(fixtures.join(family).join("outputs.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let ids = file.tensor("greedy_ids").unwrap().data().chunks_exact(8);
    let ids = ids.map(|b| i64::from_le_bytes(b.try_into().unwrap()) as u32).collect();
    let count = file.tensor("input_ids").unwrap().shape()[0];
    (prompt["prompt"].as_str().unwrap().to_owned(), ids, count)
}

fn text_of(folder: &Path, ids: &[u32]) -> String {
    let tokenizer = Tokenizer::load(&WeightsSource::Dir(folder.to_owned()), None).unwrap();
    let text = tokenizer.decode(ids, true).unwrap();
    text.trim_end_matches('\u{fffd}').to_owned()
}

#[test]
fn every_family_continues_as_the_reference_does() {
    for family in ["qwen3", "qwen3-untied", "llama3", "mistral", "qwen2"] {
        let dir = tempfile::tempdir().unwrap();
        write(family, dir.path());
        let (prompt, ids, prompt_tokens) = reference(family);
        let request = TextLlmRequest { max_new_tokens: ids.len(), ..request(&prompt) };
        let output = load(dir.path()).unwrap().complete(&request).unwrap();
        assert_eq!(output.text, text_of(dir.path(), &ids), "{family}");
        assert_eq!(output.usage, Usage { prompt_tokens, completion_tokens: ids.len() }, "{family}");
        assert_eq!(output.finish_reason, FinishReason::Length, "{family}");
    }
}

#[test]
fn end_tokens_come_from_every_config() {
    let dir = tempfile::tempdir().unwrap();
    write("llama3", dir.path());
    let (prompt, ids, _) = reference("llama3");
    let end = ids[6];
    let before = &ids[..ids.iter().position(|id| *id == end).unwrap()];
    edit_json(&dir.path().join("generation_config.json"), |c| c["eos_token_id"] = json!([0, end]));
    let output = load(dir.path()).unwrap().complete(&request(&prompt)).unwrap();
    assert_eq!((output.text, output.finish_reason), (text_of(dir.path(), before), FinishReason::Stop));
    assert_eq!(output.usage.completion_tokens, before.len() + 1);
}

#[test]
fn the_stream_adds_up_to_the_answer_and_repeats() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path());
    let mut streamed = String::new();
    let mut done = None;
    let output = model
        .generate(&request("a red apple"), &mut |event| match event {
            StreamEvent::Token { text, .. } => {
                assert!(!text.is_empty() && done.is_none());
                streamed.push_str(&text);
            }
            StreamEvent::ToolCall(_) => panic!("there are no tools"),
            StreamEvent::Done { usage, .. } => done = Some(usage),
        })
        .unwrap();
    assert_eq!(streamed, output.thinking.clone().unwrap_or_default() + &output.text);
    assert_eq!(done, Some(output.usage));
    assert!(output.usage.prompt_tokens > 5 && output.usage.completion_tokens > 0);
    assert_eq!(model.complete(&request("a red apple")).unwrap(), output);

    let hot =
        TextLlmRequest { sampling: SamplingParams { temperature: 3.0, ..Default::default() }, seed: 5, ..request("a") };
    assert_eq!(model.complete(&hot).unwrap(), model.complete(&hot).unwrap());
    assert_ne!(model.complete(&hot).unwrap(), model.complete(&TextLlmRequest { seed: 6, ..hot }).unwrap());
}

#[test]
fn a_stop_text_ends_the_answer_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path());
    let whole = model.complete(&request("a red apple")).unwrap().text;
    let characters: Vec<char> = whole.chars().collect();
    let stop: String = characters[characters.len() / 2..][..2].iter().collect();
    let cut = model.complete(&TextLlmRequest { stop: vec![stop.clone()], ..request("a red apple") }).unwrap();
    assert_eq!(cut.text, whole[..whole.find(&stop).unwrap()]);
    assert_eq!(cut.finish_reason, FinishReason::Stop);
}

#[test]
fn a_prompt_of_several_chunks_is_answered_in_both_formats() {
    let dir = tempfile::tempdir().unwrap();
    write("qwen3", dir.path());
    let long = request(&"a red apple ".repeat(250));
    for precision in [Precision::F32, Precision::Bf16] {
        let spec = LoadSpec::dense(dir.path()).with_precision(precision);
        let output = common::registry().load_for_model(&spec).unwrap().complete(&long).unwrap();
        assert!(output.usage.prompt_tokens > 600, "{precision}: {:?}", output.usage);
    }
}

#[test]
fn a_model_speaks_in_eight_bits_too() {
    let dir = tempfile::tempdir().unwrap();
    write("qwen3", dir.path());
    let model = common::registry().load_for_model(&LoadSpec::quantized(dir.path(), Quant::Q8)).unwrap();
    let output = model.complete(&request("a red apple")).unwrap();
    assert_eq!(model.complete(&request("a red apple")).unwrap(), output);
    assert!(!output.text.is_empty());
}

#[test]
fn thinking_follows_the_template() {
    let dir = tempfile::tempdir().unwrap();
    write("qwen3", dir.path());
    let template = |text: &str| {
        edit_json(&dir.path().join("tokenizer_config.json"), |c| c["chat_template"] = json!(text));
        load(dir.path()).unwrap()
    };
    let ask = |thinking| TextLlmRequest { thinking, ..request("a red apple") };
    let plain = "{% for m in messages %}{{ m.content }}{% endfor %}";

    let always = template(&format!("{plain}<think>\n"));
    assert_eq!(always.descriptor().capabilities.thinking, ThinkingSupport::Always);
    let output = always.complete(&ask(Thinking::Auto)).unwrap();
    assert!(output.thinking.is_some() && output.text.is_empty(), "{output:?}");
    assert!(always.complete(&ask(Thinking::Disabled)).is_err());

    let never = template(plain);
    assert_eq!(never.descriptor().capabilities.thinking, ThinkingSupport::None);
    assert!(never.complete(&ask(Thinking::Enabled)).is_err());
    assert!(never.complete(&ask(Thinking::Disabled)).unwrap().thinking.is_none());

    let optional = template(&format!("{plain}{{% if enable_thinking is true %}}<think>{{% endif %}}"));
    assert_eq!(optional.descriptor().capabilities.thinking, ThinkingSupport::Optional);
    assert!(optional.complete(&ask(Thinking::Enabled)).unwrap().thinking.is_some());
    assert!(optional.complete(&ask(Thinking::Disabled)).unwrap().thinking.is_none());
}

#[test]
fn requests_that_do_not_fit_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path());
    let context = model.descriptor().capabilities.context.unwrap();
    assert_eq!(context, 2048);
    let field = |request: TextLlmRequest| match model.complete(&request) {
        Err(Error::InvalidRequest { field, .. }) => field,
        other => panic!("expected a refusal, got {other:?}"),
    };
    assert_eq!(field(request(&"apple ".repeat(4000))), "messages");
    assert_eq!(field(TextLlmRequest { max_new_tokens: context, ..request("a") }), "max_new_tokens");
    assert_eq!(
        field(TextLlmRequest { constraint: Some(Constraint::Json), stop: vec!["a".into()], ..request("a") }),
        "stop"
    );
    let cancelled = request("a");
    cancelled.cancel.cancel();
    assert_eq!(model.complete(&cancelled).unwrap_err(), Error::Cancelled);
}

#[test]
fn an_answer_stops_when_it_is_cancelled_on_the_way() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path());
    let request = request("a red apple");
    let mut events = 0;
    let result = model.generate(&request, &mut |_| {
        events += 1;
        request.cancel.cancel();
    });
    assert_eq!((result, events), (Err(Error::Cancelled), 1));
}
