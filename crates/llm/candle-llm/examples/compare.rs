//! Compares with what another implementation made of the same model, as `reference/llama_peer.py tokens` writes it.
//!
//! `compare MODEL PEER.json [f32 | bf16]` says for each prompt whether the likeliest tokens are the same, and if not, where
//! they first differ and how far apart the two candidates are on either side. All logits are taken after the other one's
//! tokens, so that later steps can be compared too.

use candle_llm::bench::LlmBench;
use core_llm::{LoadSpec, Precision};
use serde::Deserialize;

#[derive(Deserialize)]
struct Peer {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    /// Tokens and logits of the best of each step.
    best: Vec<Vec<(u32, f32)>>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(model), Some(peers)) = (arguments.next(), arguments.next()) else {
        return Err("usage: compare MODEL PEER.json [f32 | bf16]".into());
    };
    let mut spec = LoadSpec::dense(model);
    spec.precision = match arguments.next().as_deref() {
        Some("f32") => Some(Precision::F32),
        Some("bf16") => Some(Precision::Bf16),
        Some(other) => return Err(format!("{other} is neither f32 nor bf16").into()),
        None => None,
    };
    let peers: Vec<Peer> = serde_json::from_reader(std::io::BufReader::new(std::fs::File::open(peers)?))?;
    let bench = LlmBench::open(&spec)?;
    let (mut equal, mut steps, mut agreed, mut squares, mut compared) = (0, 0usize, 0usize, 0f64, 0usize);
    for (index, peer) in peers.iter().enumerate() {
        let logits = bench.follow(&peer.prompt, &peer.tokens)?;
        let mut first = None;
        for (step, (own, best)) in logits.iter().zip(&peer.best).enumerate() {
            let at = |token: u32| own.get(token as usize).copied().unwrap_or(f32::NAN);
            let ours = (0..own.len() as u32).max_by(|&a, &b| at(a).total_cmp(&at(b)).then(b.cmp(&a))).unwrap_or(0);
            let theirs = peer.tokens[step];
            steps += 1;
            agreed += usize::from(ours == theirs);
            // Logits as a whole may be shifted without meaning anything.
            let shift = best.iter().map(|&(token, logit)| at(token) - logit).sum::<f32>() / best.len().max(1) as f32;
            squares += best.iter().map(|&(token, logit)| f64::from(at(token) - logit - shift).powi(2)).sum::<f64>();
            compared += best.len();
            if ours != theirs && first.is_none() {
                let own_gap = at(ours) - at(theirs);
                let logit = |token: u32| best.iter().find(|(id, _)| *id == token).map_or(f32::NAN, |(_, logit)| *logit);
                first = Some((step, own_gap, logit(theirs) - logit(ours)));
            }
        }
        match first {
            None => equal += 1,
            Some((step, own, other)) => {
                println!(
                    "prompt {index}: differs first at token {step}, by {own:.5} in logits here and {other:.5} there"
                );
            }
        }
    }
    println!("{equal} of {} prompts equal; the likeliest token agrees in {agreed} of {steps} steps", peers.len());
    println!("root mean square distance of the best logits {:.6}", (squares / compared.max(1) as f64).sqrt());
    Ok(())
}
