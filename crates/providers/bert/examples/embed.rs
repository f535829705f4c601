//! Prints the vector of a text: `cargo run -p bert --example embed -- MODEL_DIR TEXT`.

use gen_core::{LoadSpec, WeightsSource};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: embed MODEL_DIR TEXT";
    let (dir, text) = (arguments.next().ok_or(usage)?, arguments.next().ok_or(usage)?);
    let spec = LoadSpec::new(WeightsSource::Dir(dir.into()));
    let model = bert::provider_registry()?.load_text_embedder(bert::SENTENCE_BERT, &spec)?;
    println!("{:?}", model.embed(&text)?);
    Ok(())
}
