//! What must not show in an answer: who else is answered meanwhile, guesses, and what was kept of earlier prompts.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

mod common;

use candle_llm::bench::LlmBench;
use common::{edit_json, registry, request, write};
use core_llm::*;
use layers::text::Tokenizer;
use serde_json::json;
use std::path::Path;
use std::sync::Barrier;

/// The number formats whose kernels differ.
fn specs(folder: &Path) -> [LoadSpec; 3] {
    [
        LoadSpec::dense(folder).with_precision(Precision::F32),
        LoadSpec::dense(folder).with_precision(Precision::Bf16),
        LoadSpec::quantized(folder, Quant::Q8),
    ]
}

#[test]
fn an_answer_is_the_same_alone_and_among_eight() {
    let dir = tempfile::tempdir().unwrap();
    write("qwen3", dir.path());
    for spec in specs(dir.path()) {
        let model = registry().load_for_model(&spec).unwrap();
        let requests: Vec<TextLlmRequest> = (0..8usize)
            .map(|i| TextLlmRequest {
                seed: i as u64,
                max_new_tokens: 24 + i,
                // Some are drawn, and one prompt is longer than a page of keys.
                sampling: SamplingParams { temperature: (i % 3) as f32, ..SamplingParams::default() },
                ..request(&format!("{} a red apple", i).repeat(1 + 4 * i))
            })
            .collect();
        let alone: Vec<TextLlmOutput> = requests.iter().map(|request| model.complete(request).unwrap()).collect();
        let fresh = registry().load_for_model(&spec).unwrap();
        let start = Barrier::new(requests.len());
        let together: Vec<TextLlmOutput> = std::thread::scope(|scope| {
            let one = |request| {
                let (fresh, start) = (&fresh, &start);
                scope.spawn(move || {
                    start.wait();
                    fresh.complete(request).unwrap()
                })
            };
            let threads: Vec<_> = requests.iter().map(one).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(together, alone, "{spec:?}");
    }
}

#[test]
fn guesses_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    write("qwen3", dir.path());
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
    edit_json(&dir.path().join("tokenizer_config.json"), |c| c["chat_template"] = json!(template));
    let text = "a red apple and a red pear and a red apple and ".repeat(3);
    let tokenizer = Tokenizer::load(&WeightsSource::Dir(dir.path().to_owned()), None).unwrap();
    for spec in specs(dir.path()) {
        let bench = LlmBench::open(&spec).unwrap();
        let prompt = bench.tokenize(&text).unwrap();
        // Without guesses.
        let made: Vec<u32> = bench.greedy(&prompt, 160).unwrap().iter().map(|choice| choice.token).collect();
        // With them: a lone answer guesses wherever a pair of tokens was said before, which happens here.
        let all = [prompt, made.clone()].concat();
        let said = |at: usize| all[..at - 1].windows(2).any(|pair| pair == &all[at - 2..at]);
        assert!((all.len() - 160..all.len()).filter(|at| said(*at)).count() > 10, "nothing could be guessed");
        let request = TextLlmRequest { max_new_tokens: 160, ..request(&text) };
        let output = registry().load_for_model(&spec).unwrap().complete(&request).unwrap();
        let count = output.usage.completion_tokens;
        assert!(count == 160 || output.finish_reason == FinishReason::Stop);
        let want = tokenizer.decode(&made[..count - usize::from(count < 160)], true).unwrap();
        let got = output.thinking.unwrap_or_default() + &output.text;
        assert_eq!(got, want.trim_end_matches('\u{fffd}'), "{spec:?}");
    }
}

#[test]
fn what_earlier_prompts_began_with_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    write("qwen3", dir.path());
    for spec in specs(dir.path()) {
        let prompt: Vec<u32> = (0..200).map(|i| 3 + i * i % 97).collect();
        let other: Vec<u32> = prompt[..150].iter().copied().chain(5..40).collect();
        let next = [7, 8, 9, 10];
        let used = LlmBench::open(&spec).unwrap();
        used.follow(&prompt, &next).unwrap();
        for prompt in [&prompt, &other, &prompt[..128].to_vec()] {
            let fresh = LlmBench::open(&spec).unwrap();
            assert_eq!(used.follow(prompt, &next).unwrap(), fresh.follow(prompt, &next).unwrap(), "{spec:?}");
        }
        // Token by token instead of all at once.
        let steps: Vec<u32> = used.greedy(&prompt, 6).unwrap().iter().map(|choice| choice.token).collect();
        let logits = LlmBench::open(&spec).unwrap().follow(&prompt, &steps).unwrap();
        for (logits, step) in logits.iter().zip(&steps) {
            assert!(logits.iter().all(|logit| *logit <= logits[*step as usize]));
        }
    }
}
