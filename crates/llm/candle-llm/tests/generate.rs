//! Whole answers on a tiny model with random weights.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

use conformance::recipe;
use core_llm::*;
use std::path::Path;

fn registry() -> TextLlmRegistry {
    candle_llm::register_providers(TextLlmRegistry::new()).unwrap()
}

fn tiny(dir: &Path) -> Box<dyn TextLlm> {
    recipe::write_folder(&recipe::fixtures().join("llm-tiny/qwen3"), dir, recipe::Format::F32, 1).unwrap();
    registry().load_for_model(&LoadSpec::dense(dir)).unwrap()
}

fn request(text: &str) -> TextLlmRequest {
    TextLlmRequest { sampling: SamplingParams::greedy(), ..TextLlmRequest::new(vec![Message::user(text)], 24) }
}

#[test]
fn the_stream_adds_up_to_the_answer_and_repeats() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path());
    let mut streamed = String::new();
    let mut done = None;
    let output = model
        .generate(&request("a red apple"), &mut |event| match event {
            StreamEvent::Token { text, .. } => streamed.push_str(&text),
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
fn refusals_name_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path());
    let long = model.complete(&request(&"apple ".repeat(4000))).unwrap_err().to_string();
    assert!(long.contains("tokens"), "{long}");
    let cancelled = request("a");
    cancelled.cancel.cancel();
    assert_eq!(model.complete(&cancelled).unwrap_err(), Error::Cancelled);
    assert!(model.complete(&TextLlmRequest { constraint: Some(Constraint::Json), ..request("a") }).is_err());

    let quantized = LoadSpec::quantized(dir.path(), Quant::Q4);
    assert!(registry().load_for_model(&quantized).is_err());
    std::fs::write(dir.path().join("config.json"), r#"{"model_type": "mamba"}"#).unwrap();
    let foreign = registry().load_for_model(&LoadSpec::dense(dir.path())).err().unwrap().to_string();
    assert!(foreign.contains("mamba"), "{foreign}");
}

#[test]
fn a_prepared_snapshot_loads_and_answers_alike() {
    let dir = tempfile::tempdir().unwrap();
    let (source, destination) = (dir.path().join("in"), dir.path().join("made/out"));
    let before = tiny(&source).complete(&request("x")).unwrap();
    let preparers = candle_llm::preparers().unwrap();
    preparers.prepare_snapshot(&PrepareSpec::dense(&source, &destination)).unwrap();
    let after = registry().load_for_model(&LoadSpec::dense(&destination)).unwrap().complete(&request("x")).unwrap();
    assert_eq!(before, after);
    let again = preparers.prepare_snapshot(&PrepareSpec::dense(&source, &destination)).unwrap_err().to_string();
    assert!(again.contains("exists"), "{again}");

    std::fs::remove_file(source.join("config.json")).unwrap();
    let third = dir.path().join("third");
    assert!(preparers.prepare_snapshot(&PrepareSpec::dense(&source, &third)).is_err());
    assert!(!third.exists());
    let leftovers = std::fs::read_dir(dir.path())
        .unwrap()
        .filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'));
    assert_eq!(leftovers.count(), 0);
}
