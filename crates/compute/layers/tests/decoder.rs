//! The decoder against transformers, and tokenizer and template against the reference's.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device};
use conformance::recipe;
use layers::decoder::{Decoder, DecoderConfig, KvCache, Part, Piece};
use layers::text::{ChatTemplate, TemplateOptions, Tokenizer};
use runtime_base::{CancelFlag, WeightsSource};
use safetensors::SafeTensors;
use weights::{Checkpoint, Weights, load_config, plans};

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../assets/demo")
}

fn weights(folder: &Path) -> Weights {
    let checkpoint = Arc::new(Checkpoint::open(folder).unwrap());
    Weights::new(checkpoint, &plans::decoder(), DType::F32, Device::Cpu).unwrap()
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    file.tensor(name).unwrap().data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn ids(file: &SafeTensors<'_>, name: &str) -> Vec<u32> {
    let data = file.tensor(name).unwrap().data().to_vec();
    data.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as u32).collect()
}

fn relative_error(got: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let square = |v: f64| v * v;
    let difference: f64 = got.iter().zip(expected).map(|(g, e)| square(f64::from(g - e))).sum();
    (difference / expected.iter().map(|e| square(f64::from(*e))).sum::<f64>()).sqrt()
}

/// The logits of the last `keep` of `tokens`.
fn step(decoder: &Decoder, tokens: &[u32], cache: &mut KvCache, keep: usize) -> Vec<f32> {
    decoder.forward(&mut [Piece { tokens, cache, keep }], &CancelFlag::new()).unwrap()
}

#[test]
fn every_family_gives_the_reference_logits_and_continuation() {
    let dense = ["qwen3", "qwen3-untied", "llama3", "llama-yarn", "mistral", "qwen2", "phi3", "gemma2", "gemma3"];
    for family in dense.into_iter().chain(["qwen3-moe"]) {
        let fixture = recipe::fixtures().join("llm-tiny").join(family);
        let dir = tempfile::tempdir().unwrap();
        recipe::write_folder(&fixture, dir.path(), recipe::Format::F32, 1).unwrap();
        let weights = weights(dir.path());
        let config = load_config(&WeightsSource::Dir(dir.path().to_owned()), "config.json").unwrap();
        let config = DecoderConfig::new(&weights, config.as_ref()).unwrap();
        let vocabulary = config.vocabulary;
        let decoder = Decoder::new(&weights, config, Part::Whole).unwrap();

        let bytes = std::fs::read(fixture.join("outputs.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let prompt = ids(&file, "input_ids");
        // In pieces, the first of which needs no logits.
        let mut cache = decoder.sequence(prompt.len() + 24);
        assert!(step(&decoder, &prompt[..20], &mut cache, 0).is_empty());
        let first = step(&decoder, &prompt[20..prompt.len() - 1], &mut cache, 1);
        let rest = step(&decoder, &prompt[prompt.len() - 1..], &mut cache, 1);
        let mut cache = decoder.sequence(prompt.len() + 24);
        let logits = step(&decoder, &prompt, &mut cache, prompt.len());
        assert_eq!(logits.len(), prompt.len() * vocabulary);
        assert_eq!([first, rest].concat(), logits[(prompt.len() - 2) * vocabulary..], "{family}");
        let chosen: Vec<f32> = ids(&file, "positions")
            .iter()
            .flat_map(|p| logits[*p as usize * vocabulary..][..vocabulary].to_vec())
            .collect();
        let error = relative_error(&chosen, &floats(&file, "logits"));
        assert!(error < 1e-4, "{family}: logits are off by {error:e}");

        let argmax = |row: &[f32]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32;
        let mut next = argmax(&logits[(prompt.len() - 1) * vocabulary..]);
        let expected = ids(&file, "greedy_ids");
        let mut continuation = vec![];
        let mut last = vec![];
        for _ in 0..expected.len() {
            continuation.push(next);
            last = step(&decoder, &[next], &mut cache, 1);
            next = argmax(&last);
        }
        assert_eq!(continuation, expected, "{family}");
        let error = relative_error(&last, &floats(&file, "logits_after_greedy"));
        assert!(error < 1e-4, "{family}: logits after the continuation are off by {error:e}");
    }
}

#[test]
fn eight_bits_stay_near_the_reference_logits() {
    for family in ["qwen3", "llama3", "qwen2"] {
        let fixture = recipe::fixtures().join("llm-tiny").join(family);
        let dir = tempfile::tempdir().unwrap();
        recipe::write_folder(&fixture, dir.path(), recipe::Format::F32, 1).unwrap();
        let weights = weights(dir.path()).with_quant(Some(runtime_base::Quant::Q8));
        let config = load_config(&WeightsSource::Dir(dir.path().to_owned()), "config.json").unwrap();
        let config = DecoderConfig::new(&weights, config.as_ref()).unwrap();
        let decoder = Decoder::new(&weights, config, Part::Whole).unwrap();
        let bytes = std::fs::read(fixture.join("outputs.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let prompt = ids(&file, "input_ids");
        let all = step(&decoder, &prompt, &mut KvCache::new(), prompt.len());
        let rows: Vec<&[f32]> = all.chunks(all.len() / prompt.len()).collect();
        let chosen: Vec<f32> = ids(&file, "positions").iter().flat_map(|p| rows[*p as usize].to_vec()).collect();
        let error = relative_error(&chosen, &floats(&file, "logits"));
        println!("{family}: {error:.1e}");
        assert!(error > 1e-4 && error < 5e-2, "{family}: {error:e}");
    }
}

#[test]
fn a_prefix_of_layers_is_a_text_encoder() {
    let fixture = recipe::fixtures().join("demo-golden");
    let weights = weights(&demo().join("text_encoder"));
    let config = load_config(&WeightsSource::Dir(demo()), "text_encoder/config.json").unwrap();
    let config = DecoderConfig::new(&weights, config.as_ref()).unwrap();
    let layers = config.layers;
    let encoder = Decoder::new(&weights, config, Part::Layers(layers - 1)).unwrap();
    for golden in ["golden_0", "golden_1", "golden_2"] {
        let bytes = std::fs::read(fixture.join(golden).with_extension("safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let hidden = encoder.encode(&ids(&file, "input_ids"), &CancelFlag::new()).unwrap();
        let hidden = hidden.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let error = relative_error(&hidden, &floats(&file, "prompt_embeds"));
        assert!(error < 1e-4, "{golden}: {error:e}");
    }
}

#[test]
fn geometry_without_a_config_is_read_from_the_tensors() {
    let weights = weights(&demo().join("text_encoder"));
    let config = load_config(&WeightsSource::Dir(demo()), "text_encoder/config.json").unwrap();
    let with = DecoderConfig::new(&weights, config.as_ref()).unwrap();
    let without = DecoderConfig::new(&weights, None).unwrap();
    assert_eq!(without.heads, with.heads);
    assert_eq!((without.layers, without.rope), (with.layers, with.rope));
}

#[test]
fn cancelled_work_stops() {
    let weights = weights(&demo().join("text_encoder"));
    let config = DecoderConfig::new(&weights, None).unwrap();
    let encoder = Decoder::new(&weights, config, Part::Layers(1)).unwrap();
    let cancel = CancelFlag::new();
    cancel.cancel();
    assert!(encoder.encode(&[1, 2, 3], &cancel).is_err());
}

#[test]
fn text_becomes_the_reference_tokens() {
    let source = WeightsSource::Dir(demo());
    let tokenizer = Tokenizer::load(&source, Some("tokenizer")).unwrap();
    let template = ChatTemplate::load(&source, Some("tokenizer")).unwrap().unwrap();
    let table = std::fs::read(recipe::fixtures().join("tokens.json")).unwrap();
    let table: Vec<serde_json::Value> = serde_json::from_slice(&table).unwrap();
    assert!(table.len() > 20);
    for entry in table {
        let messages = [serde_json::json!({"role": "user", "content": entry["prompt"]})];
        let options = TemplateOptions {
            add_generation_prompt: true,
            enable_thinking: entry["enable_thinking"].as_bool(),
            tools: None,
        };
        let text = template.render(&messages, options).unwrap();
        assert_eq!(text, entry["chat_text"].as_str().unwrap());
        let expected: Vec<u32> = serde_json::from_value(entry["ids"].clone()).unwrap();
        assert_eq!(tokenizer.encode(&text).unwrap(), expected, "{:?}", entry["prompt"]);
    }
}

#[test]
fn broken_templates_and_tokenizers_say_so() {
    let config = serde_json::Value::Null;
    assert!(ChatTemplate::new("{% for m in %}".into(), &config).is_err());
    let refusing = ChatTemplate::new("{{ raise_exception('no system role') }}".into(), &config).unwrap();
    assert!(refusing.mentions("system role") && !refusing.mentions("enable_thinking"));
    let message = refusing.render(&["x"], TemplateOptions::default()).unwrap_err().to_string();
    assert!(message.contains("no system role"), "{message}");
    assert!(Tokenizer::from_bytes(b"{}").is_err());
    let empty = tempfile::tempdir().unwrap();
    let missing = Tokenizer::load(&WeightsSource::Dir(empty.path().to_owned()), None).err().unwrap().to_string();
    assert!(missing.contains("tokenizer.json"), "{missing}");
}
