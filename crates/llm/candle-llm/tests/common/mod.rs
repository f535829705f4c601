//! Tiny models with random weights.

use conformance::recipe;
use core_llm::*;
use std::path::Path;

pub fn registry() -> TextLlmRegistry {
    candle_llm::provider_registry().unwrap()
}

/// Writes the tiny model of a family.
pub fn write(family: &str, folder: &Path) {
    let fixture = recipe::fixtures().join("llm-tiny").join(family);
    recipe::write_folder(&fixture, folder, recipe::Format::F32, 1).unwrap();
}

/// In the reference's number format, whatever this machine likes best.
#[allow(dead_code)] // some tests name the format themselves
pub fn load(folder: &Path) -> Result<Box<dyn TextLlm>> {
    registry().load_for_model(&LoadSpec::dense(folder).with_precision(Precision::F32))
}

pub fn request(text: &str) -> TextLlmRequest {
    TextLlmRequest { sampling: SamplingParams::greedy(), ..TextLlmRequest::new(vec![Message::user(text)], 24) }
}

/// Changes a JSON file.
pub fn edit_json(path: &Path, change: impl FnOnce(&mut serde_json::Value)) {
    let bytes = std::fs::read(path).unwrap_or_else(|_| b"{}".to_vec());
    let mut json = serde_json::from_slice(&bytes).unwrap();
    change(&mut json);
    std::fs::write(path, json.to_string()).unwrap();
}
