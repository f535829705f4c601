//! The text half of a product's program on the CPU bundle; it builds without any media crate.
//!
//! `cargo run -p runtime-cpu --no-default-features --example text -- [MODEL]`
//!
//! `MODEL` is a GGUF file or a folder with safetensors. Without one the program writes a tiny model of random weights first,
//! whose words mean nothing.

use std::error::Error;
use std::path::{Path, PathBuf};

use runtime::core_llm::{
    Constraint, FinishReason, LoadSpec as LlmSpec, Message, PrepareSpec, StreamEvent, TextLlm, TextLlmRequest,
};
use runtime_cpu as runtime;

fn main() -> Result<(), Box<dyn Error>> {
    let scratch = tempfile::tempdir()?;
    let path = match std::env::args_os().nth(1) {
        Some(path) => PathBuf::from(path),
        None => tiny_model(&scratch.path().join("tiny"))?,
    };
    let catalog = runtime::catalog()?;
    assert_eq!((catalog.platform(), catalog.backend()), (runtime::PLATFORM, runtime::BACKEND));

    let llm = catalog.text().load_for_model(&LlmSpec::dense(&path))?;
    let question = vec![Message::user("Explain diffusion in one sentence.")];
    let request = TextLlmRequest::new(question, 128);
    llm.validate(&request)?;
    let streamed = say(&*llm, &request)?;
    assert_eq!(streamed, llm.complete(&request)?.text, "the same request is answered with the same words");

    // Whatever the model, the answer is a document of the schema.
    let schema = serde_json::json!({"type": "object", "properties": {"colour": {"enum": ["red", "green", "blue"]}},
        "required": ["colour"], "additionalProperties": false});
    let question = vec![Message::user("Which colour has a ripe tomato? Answer in JSON.")];
    let request =
        TextLlmRequest { constraint: Some(Constraint::JsonSchema(schema)), ..TextLlmRequest::new(question, 64) };
    let answer = llm.complete(&request)?;
    assert_eq!(answer.finish_reason, FinishReason::Stop);
    let document: serde_json::Value = serde_json::from_str(&answer.text)?;
    println!("a ripe tomato is {}", document["colour"]);

    if path.is_file() {
        // It loads as it is.
        return Ok(());
    }
    // A snapshot of its own, which speaks like the original.
    let snapshot = scratch.path().join("snapshot");
    catalog.preparers().prepare_snapshot(&PrepareSpec::dense(&path, &snapshot))?;
    println!("a snapshot of {} files", std::fs::read_dir(&snapshot)?.count());
    let again = catalog.text().load_for_model(&LlmSpec::dense(&snapshot))?;
    say(&*again, &TextLlmRequest::new(vec![Message::user("Name a fruit.")], 16))?;
    Ok(())
}

/// Prints an answer as it comes, and gives it.
fn say(llm: &dyn TextLlm, request: &TextLlmRequest) -> Result<String, Box<dyn Error>> {
    let mut said = String::new();
    llm.generate(request, &mut |e| {
        if let StreamEvent::Token { text, .. } = e {
            print!("{text}");
            said.push_str(&text);
        }
    })?;
    println!();
    Ok(said)
}

/// Writes the model that the tests use.
fn tiny_model(folder: &Path) -> Result<PathBuf, Box<dyn Error>> {
    use conformance::recipe;
    recipe::write_folder(&recipe::fixtures().join("llm-tiny/qwen3"), folder, recipe::Format::F32, 1)?;
    Ok(folder.to_owned())
}
