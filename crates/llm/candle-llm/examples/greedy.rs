//! Continues prompts with the likeliest tokens, for comparison with another implementation.
//!
//! `greedy MODEL TOKENS` reads a JSON list of prompts (lists of token ids, or texts) from standard input and writes one
//! JSON line a prompt: the prompt's ids, the tokens, and the margin of each.

use candle_llm::bench::LlmBench;
use core_llm::LoadSpec;
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(model), Some(tokens)) = (arguments.next(), arguments.next()) else {
        return Err("usage: greedy MODEL TOKENS < prompts.json".into());
    };
    let tokens = tokens.parse()?;
    let prompts: Vec<Value> = serde_json::from_reader(std::io::stdin())?;
    let bench = LlmBench::open(&LoadSpec::dense(model))?;
    for prompt in prompts {
        let ids = match &prompt {
            Value::String(text) => bench.tokenize(text)?,
            ids => serde_json::from_value(ids.clone())?,
        };
        let choices = bench.greedy(&ids, tokens)?;
        let made: Vec<u32> = choices.iter().map(|choice| choice.token).collect();
        let margins: Vec<f32> = choices.iter().map(|choice| choice.margin).collect();
        println!("{}", json!({ "prompt": ids, "tokens": made, "margins": margins }));
    }
    Ok(())
}
