//! Choosing the next token.

use core_llm::{Error, Result, SamplingParams};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Chooses tokens, deterministically by seed.
pub(crate) struct Chooser {
    params: SamplingParams,
    state: u64,
    /// Tokens so far, which the repetition penalty turns away from.
    seen: BTreeSet<u32>,
    /// How often the answer has each of its tokens.
    said: BTreeMap<u32, f32>,
    made: usize,
}

/// A token and its probability as a multiple of the likeliest one's.
type Candidate = (u32, f64);

impl Chooser {
    pub(crate) fn new(params: &SamplingParams, seed: u64) -> Self {
        Self { params: params.clone(), state: seed, seen: BTreeSet::new(), said: BTreeMap::new(), made: 0 }
    }

    /// Notes tokens of the prompt.
    pub(crate) fn see(&mut self, tokens: &[u32]) {
        self.seen.extend(tokens);
    }

    /// SplitMix64 (Steele, Lea and Flood 2014), as a number in `[0, 1)`.
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The next token after `logits`.
    ///
    /// # Errors
    /// The logits are no distribution: one is NaN or infinite, or none is above negative infinity.
    pub(crate) fn choose(&mut self, mut logits: Vec<f32>) -> Result<u32> {
        self.made += 1;
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if !highest.is_finite() || logits.iter().any(|l| l.is_nan()) {
            return Err(Error::NonFinite { stage: "language model", step: Some(self.made) });
        }
        let penalty = self.params.repetition_penalty;
        if penalty != 1.0 {
            for token in &self.seen {
                if let Some(logit) = logits.get_mut(*token as usize) {
                    *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
                }
            }
        }
        let (presence, frequency) = (self.params.presence_penalty, self.params.frequency_penalty);
        if presence != 0.0 || frequency != 0.0 {
            for (token, count) in &self.said {
                if let Some(logit) = logits.get_mut(*token as usize) {
                    *logit -= presence + frequency * count;
                }
            }
        }
        let token = if self.params.temperature == 0.0 { argmax(&logits) } else { self.draw(&logits) };
        self.seen.insert(token);
        *self.said.entry(token).or_default() += 1.0;
        Ok(token)
    }

    fn draw(&mut self, logits: &[f32]) -> u32 {
        let candidates = self.candidates(logits);
        let total: f64 = candidates.iter().map(|(_, p)| p).sum();
        let mut left = self.uniform() * total;
        for (token, probability) in &candidates {
            left -= probability;
            if left < 0.0 {
                return *token;
            }
        }
        // Rounding can leave a remainder after the last one.
        candidates.last().map_or_else(|| argmax(logits), |(token, _)| *token)
    }

    /// Tokens that pass top-k, then top-p (Holtzman et al. 2020), then min-p (Nguyen et al. 2024).
    fn candidates(&self, logits: &[f32]) -> Vec<Candidate> {
        let p = &self.params;
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |logit: f32| (f64::from(logit - highest) / f64::from(p.temperature)).exp();
        let mut candidates: Vec<Candidate> = logits.iter().enumerate().map(|(i, l)| (i as u32, weight(*l))).collect();
        if p.top_k > 0 && p.top_k < candidates.len() {
            candidates.select_nth_unstable_by(p.top_k, likelier);
            candidates.truncate(p.top_k);
        }
        if p.top_p < 1.0 {
            keep_nucleus(&mut candidates, f64::from(p.top_p));
        }
        candidates.retain(|(_, w)| *w >= f64::from(p.min_p));
        candidates
    }
}

/// Likelier tokens first; ties are broken by id, so that the order is the same everywhere.
fn likelier(a: &Candidate, b: &Candidate) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Keeps the fewest tokens that reach the share `top_p` of all. Few do as a rule, so only as many are sorted as it takes.
fn keep_nucleus(candidates: &mut Vec<Candidate>, top_p: f64) {
    let wanted = top_p * candidates.iter().map(|(_, w)| w).sum::<f64>();
    let (mut sorted, mut reached) = (0, 0.0);
    while sorted < candidates.len() {
        let next = (sorted * 8).clamp(64, candidates.len().max(64)).min(candidates.len());
        let rest = &mut candidates[sorted..];
        if next - sorted < rest.len() {
            rest.select_nth_unstable_by(next - sorted, likelier);
        }
        rest[..next - sorted].sort_unstable_by(likelier);
        for index in sorted..next {
            reached += candidates[index].1;
            if reached >= wanted {
                candidates.truncate(index + 1);
                return;
            }
        }
        sorted = next;
    }
}

/// Logarithms of the probabilities of `token` and of the `top` likeliest tokens, likeliest first.
pub(crate) fn logprobs(logits: &[f32], token: u32, top: usize) -> (f32, Vec<(u32, f32)>) {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|l| f64::from(l - highest).exp()).sum();
    let log_total = total.ln() as f32 + highest;
    let mut all: Vec<Candidate> = logits.iter().enumerate().map(|(i, l)| (i as u32, f64::from(*l))).collect();
    if top < all.len() {
        all.select_nth_unstable_by(top, likelier);
        all.truncate(top);
    }
    all.sort_unstable_by(likelier);
    let chosen = logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
    (chosen - log_total, all.into_iter().map(|(id, logit)| (id, logit as f32 - log_total)).collect())
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
        let mut chooser = Chooser::new(&params, seed);
        (0..n).map(|_| chooser.choose(vec![1.0, 3.0, 2.0, -4.0]).unwrap()).collect()
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
    fn the_nucleus_is_the_one_of_the_definition() {
        let logits: Vec<f32> = (0..3000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32 / 600.0).collect();
        for top_p in [0.01, 0.3, 0.9, 0.9999] {
            let params = SamplingParams { temperature: 1.0, top_p, ..Default::default() };
            let got = Chooser::new(&params, 0).candidates(&logits);
            let all = SamplingParams { temperature: 1.0, top_p: 1.0, ..Default::default() };
            let mut sorted = Chooser::new(&all, 0).candidates(&logits);
            sorted.sort_by(likelier);
            let total: f64 = sorted.iter().map(|(_, w)| w).sum();
            let mut reached = 0.0;
            let before_enough = |(_, w): &&Candidate| {
                let before = reached;
                reached += w;
                before < f64::from(top_p) * total
            };
            let expected: Vec<_> = sorted.iter().take_while(before_enough).copied().collect();
            assert_eq!(got, expected, "{top_p}");
        }
    }

    #[test]
    fn the_penalty_turns_away_from_what_was_said() {
        let params = SamplingParams { repetition_penalty: 2.0, ..SamplingParams::greedy() };
        let mut chooser = Chooser::new(&params, 0);
        chooser.see(&[1, 1]);
        assert_eq!(chooser.choose(vec![1.0, 3.0, 2.0]).unwrap(), 2);
        assert_eq!(chooser.choose(vec![1.6, 3.0, 3.1]).unwrap(), 0);
    }

    #[test]
    fn presence_and_frequency_count_what_was_said() {
        let said = |params: SamplingParams| {
            let mut chooser = Chooser::new(&params, 0);
            chooser.see(&[0, 1, 2]);
            (0..4).map(|_| chooser.choose(vec![0.0, 3.0, 2.5]).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(said(SamplingParams { presence_penalty: 1.0, ..SamplingParams::greedy() }), [1, 2, 1, 1]);
        assert_eq!(said(SamplingParams { frequency_penalty: 1.0, ..SamplingParams::greedy() }), [1, 2, 1, 2]);
    }

    #[test]
    fn probabilities_add_up_to_one() {
        let logits = [1.0f32, 3.0, 2.0, f32::NEG_INFINITY];
        let (chosen, top) = logprobs(&logits, 2, 4);
        assert_eq!(top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2, 0, 3]);
        assert_eq!(top[1].1, chosen);
        assert!((top.iter().map(|(_, l)| l.exp()).sum::<f32>() - 1.0).abs() < 1e-6);
        assert!(logprobs(&logits, 2, 0).1.is_empty());
    }

    #[test]
    fn what_is_no_distribution_is_an_error() {
        for logits in [vec![f32::NAN, 1.0], vec![f32::INFINITY, 1.0], vec![f32::NEG_INFINITY; 2], vec![]] {
            let mut chooser = Chooser::new(&SamplingParams::greedy(), 0);
            assert!(matches!(chooser.choose(logits), Err(Error::NonFinite { step: Some(1), .. })));
        }
    }
}
