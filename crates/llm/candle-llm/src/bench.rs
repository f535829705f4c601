//! A model without words, to measure it and to compare it with others token by token.

use crate::batch::{Batch, Session};
use crate::snapshot::Snapshot;
use candle_core::DType;
use core_llm::{CancelFlag, Error, LoadSpec, Precision, Result};
use std::sync::Arc;
use std::time::Instant;

/// A loaded model that is fed tokens.
pub struct LlmBench {
    batch: Arc<Batch>,
    snapshot: Snapshot,
}

/// What a measurement took, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Seconds {
    /// Until the logits after the prompts.
    pub prompt: f64,
    /// From then on to the last token.
    pub tokens: f64,
}

/// A token that was chosen, and how far its logit was above the next best.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// The token.
    pub token: u32,
    /// The distance.
    pub margin: f32,
}

impl LlmBench {
    /// Loads the model of a specification.
    ///
    /// # Errors
    /// What keeps it from being loaded.
    pub fn open(spec: &LoadSpec) -> Result<Self> {
        let dtype = match spec.precision.unwrap_or_else(layers::best_cpu_precision) {
            Precision::Bf16 => DType::BF16,
            _ => DType::F32,
        };
        let snapshot = Snapshot::open(&spec.source, dtype, spec.quant, &spec.cancel)?;
        Ok(Self { batch: Batch::new(snapshot.decoder()?), snapshot })
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn tokenize(&self, text: &str) -> Result<Vec<u32>> {
        self.snapshot.words.tokenizer.encode(text)
    }

    /// The likeliest continuation of `prompt`, whatever it says, without guesses.
    ///
    /// # Errors
    /// The context is too short, or the backend fails.
    pub fn greedy(&self, prompt: &[u32], tokens: usize) -> Result<Vec<Choice>> {
        let mut session = self.session(prompt.len() + tokens)?;
        let mut choices = vec![likeliest(&session.prompt(prompt)?)];
        while choices.len() < tokens {
            let last = choices.last().map_or(0, |choice| choice.token);
            choices.push(likeliest(&session.advance(&[last], 1)?));
        }
        Ok(choices)
    }

    /// The logits before each of `tokens`, which follow `prompt` whatever the model thinks of them.
    ///
    /// # Errors
    /// As [`Self::greedy`].
    pub fn follow(&self, prompt: &[u32], tokens: &[u32]) -> Result<Vec<Vec<f32>>> {
        let mut session = self.session(prompt.len() + tokens.len())?;
        let mut logits = vec![session.prompt(prompt)?];
        if let Some(fed) = tokens.len().checked_sub(1).filter(|fed| *fed > 0) {
            let rest = session.advance(&tokens[..fed], fed)?;
            logits.extend(rest.chunks_exact(self.batch.decoder().config().vocabulary).map(<[f32]>::to_vec));
        }
        Ok(logits)
    }

    /// Times `concurrent` answers of `tokens` tokens to prompts of `prompt` tokens that have nothing in common.
    ///
    /// # Errors
    /// As [`Self::greedy`].
    pub fn measure(&self, prompt: usize, tokens: usize, concurrent: usize, seed: usize) -> Result<Seconds> {
        let start = Instant::now();
        let one = |index: usize| -> Result<[f64; 2]> {
            let vocabulary = self.batch.decoder().config().vocabulary;
            let first = seed * 31 + index * 7;
            let words = (0..prompt.max(1)).map(|i| ((first + i * 13 + i * i * 5) % vocabulary) as u32);
            let mut session = self.session(prompt.max(1) + tokens)?;
            let mut next = likeliest(&session.prompt(&words.collect::<Vec<_>>())?).token;
            let read = start.elapsed().as_secs_f64();
            for _ in 0..tokens {
                next = likeliest(&session.advance(&[next], 1)?).token;
            }
            Ok([read, start.elapsed().as_secs_f64()])
        };
        let results: Vec<Result<[f64; 2]>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..concurrent.max(1)).map(|index| scope.spawn(move || one(index))).collect();
            let failed = |_| Err(Error::Backend("a measuring thread panicked".into()));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(failed)).collect()
        });
        let results = results.into_iter().collect::<Result<Vec<_>>>()?;
        let latest = |at: usize| results.iter().map(|times| times[at]).fold(0.0, f64::max);
        Ok(Seconds { prompt: latest(0), tokens: latest(1) - latest(0) })
    }

    fn session(&self, room: usize) -> Result<Session> {
        let context = self.batch.decoder().config().max_positions;
        if room > context {
            return Err(Error::invalid("tokens", format!("{room} tokens don't fit a context of {context}")));
        }
        Ok(self.batch.open(room, &CancelFlag::new()))
    }
}

fn likeliest(logits: &[f32]) -> Choice {
    let (mut token, mut best, mut second) = (0, f32::NEG_INFINITY, f32::NEG_INFINITY);
    for (id, &logit) in logits.iter().enumerate() {
        if logit > best {
            (token, second, best) = (id as u32, best, logit);
        } else if logit > second {
            second = logit;
        }
    }
    Choice { token, margin: best - second }
}
