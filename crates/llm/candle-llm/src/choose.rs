//! Choosing the next token.

use core_llm::{Error, Result, SamplingParams};

/// Chooses tokens, deterministically by seed.
pub(crate) struct Chooser {
    params: SamplingParams,
    state: u64,
}

impl Chooser {
    pub(crate) fn new(params: SamplingParams, seed: u64) -> Self {
        Self { params, state: seed }
    }

    /// SplitMix64 (Steele, Lea and Flood 2014), as a number in `[0, 1)`.
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The next token after `logits`; `seen` are the tokens so far, for the repetition penalty.
    pub(crate) fn choose(&mut self, logits: &mut [f32], seen: &[u32]) -> Result<u32> {
        if logits.iter().any(|l| l.is_nan()) || logits.is_empty() {
            return Err(Error::NonFinite { stage: "language model", step: Some(seen.len()) });
        }
        let penalty = self.params.repetition_penalty;
        if penalty != 1.0 {
            let mut penalised: Vec<u32> = seen.to_vec();
            penalised.sort_unstable();
            penalised.dedup();
            for token in penalised {
                if let Some(logit) = logits.get_mut(token as usize) {
                    *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
                }
            }
        }
        if self.params.temperature == 0.0 {
            return Ok(argmax(logits));
        }
        let candidates = self.candidates(logits);
        let total: f64 = candidates.iter().map(|(_, p)| p).sum();
        let mut left = self.uniform() * total;
        for (token, probability) in &candidates {
            left -= probability;
            if left < 0.0 {
                return Ok(*token);
            }
        }
        Ok(candidates.last().map_or_else(|| argmax(logits), |(token, _)| *token))
    }

    /// Tokens that pass top-k, min-p and top-p, likeliest first, with weights relative to the likeliest.
    fn candidates(&self, logits: &[f32]) -> Vec<(u32, f64)> {
        let p = &self.params;
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |logit: f32| (f64::from(logit - highest) / f64::from(p.temperature)).exp();
        let mut candidates: Vec<(u32, f64)> = logits.iter().enumerate().map(|(i, l)| (i as u32, weight(*l))).collect();
        // Ties are broken by id, so that the order is the same everywhere.
        candidates.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        if p.top_k > 0 {
            candidates.truncate(p.top_k);
        }
        candidates.retain(|(_, w)| *w >= f64::from(p.min_p));
        let total: f64 = candidates.iter().map(|(_, w)| w).sum();
        let mut reached = 0.0;
        let keep = candidates.iter().take_while(|(_, w)| {
            let before = reached;
            reached += w / total;
            before < f64::from(p.top_p)
        });
        let keep = keep.count().max(1);
        candidates.truncate(keep);
        candidates
    }
}

fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (index, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = index;
        }
    }
    best as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(params: SamplingParams, seed: u64, n: usize) -> Vec<u32> {
        let mut chooser = Chooser::new(params, seed);
        (0..n).map(|_| chooser.choose(&mut [1.0, 3.0, 2.0, -4.0], &[]).unwrap()).collect()
    }

    #[test]
    fn zero_temperature_takes_the_likeliest() {
        assert_eq!(draws(SamplingParams::greedy(), 1, 3), [1, 1, 1]);
    }

    #[test]
    fn a_seed_fixes_the_choice_and_frequencies_follow_the_softmax() {
        let params = SamplingParams { temperature: 1.0, top_p: 1.0, ..Default::default() };
        let many = draws(params.clone(), 7, 4000);
        assert_eq!(many, draws(params.clone(), 7, 4000));
        assert_ne!(many[..64], draws(params, 8, 64)[..]);
        let share = many.iter().filter(|t| **t == 1).count() as f64 / 4000.0;
        let expected = 3f64.exp() / (1f64.exp() + 3f64.exp() + 2f64.exp() + (-4f64).exp());
        assert!((share - expected).abs() < 0.03, "{share} is not near {expected}");
    }

    #[test]
    fn the_filters_keep_what_they_should() {
        let base = SamplingParams { temperature: 1.0, top_p: 1.0, ..Default::default() };
        for params in [
            SamplingParams { top_k: 1, ..base.clone() },
            SamplingParams { top_p: 0.5, ..base.clone() },
            SamplingParams { min_p: 0.9, ..base.clone() },
        ] {
            assert!(draws(params, 3, 50).iter().all(|t| *t == 1));
        }
        assert!(draws(SamplingParams { top_k: 2, ..base }, 3, 50).iter().all(|t| [1, 2].contains(t)));
    }

    #[test]
    fn the_penalty_turns_away_from_what_was_said() {
        let params = SamplingParams { repetition_penalty: 2.0, ..SamplingParams::greedy() };
        assert_eq!(Chooser::new(params, 0).choose(&mut [1.0, 3.0, 2.0], &[1, 1]).unwrap(), 2);
    }

    #[test]
    fn nan_is_an_error() {
        assert!(Chooser::new(SamplingParams::greedy(), 0).choose(&mut [f32::NAN, 1.0], &[]).is_err());
    }
}
