//! UniPC with predictions of the picture, order 2 and B2(h) (Zhao et al. 2023, arXiv 2302.04867).

use super::{Method, Next, NoiseSource, Step, add, blend, clean, log_snr};

/// Pure noise is infinitely far away; the reference starts this far from it.
const MOST_NOISE: f32 = 1.0 - 1e-6;

/// A picture that was predicted at a sigma.
struct Picture {
    values: Vec<f32>,
    sigma: f32,
}

/// What a corrector needs of the step that led here.
struct Before {
    /// Its latents, corrected.
    start: Vec<f32>,
    picture: Picture,
    /// The picture before that one, when the predictor used it.
    older: Option<Picture>,
}

#[derive(Default)]
pub(super) struct UniPc(Option<Before>);

impl Method for UniPc {
    fn advance(&mut self, x: &mut [f32], velocity: &[f32], step: &Step, _: &mut NoiseSource) -> Next {
        let sigma = step.sigma.min(MOST_NOISE);
        let picture = Picture { values: clean(x, velocity, sigma), sigma };
        let mut older = None;
        if let Some(before) = self.0.take() {
            correct(x, &before, &picture);
            older = Some(before.picture);
        }
        // The last step falls back to first order.
        let older = older.filter(|_| step.left > 1);
        let start = x.to_vec();
        predict(x, &picture, older.as_ref(), step.next);
        self.0 = Some(Before { start, picture, older });
        Next::Step
    }
}

/// The step from `picture.sigma` to `next` of UniP-1, which both halves of the method add to; returns `alpha * B(h)`.
fn first_order(x: &mut [f32], picture: &Picture, next: f32) -> f64 {
    let h = log_snr(next) - log_snr(picture.sigma);
    let gain = (1.0 - f64::from(next)) * (-h).exp_m1();
    blend(x, f64::from(next) / f64::from(picture.sigma), &picture.values, -gain);
    gain
}

/// The place of `older` on a step from `from` to `to`, in parts of its length: negative.
fn place(older: &Picture, from: f32, to: f32) -> f64 {
    (log_snr(older.sigma) - log_snr(from)) / (log_snr(to) - log_snr(from))
}

fn add_difference(x: &mut [f32], a: &[f32], b: &[f32], factor: f64) {
    let difference: Vec<f32> = a.iter().zip(b).map(|(a, b)| a - b).collect();
    add(x, &difference, factor);
}

/// UniP: moves `x` to `next`.
fn predict(x: &mut [f32], picture: &Picture, older: Option<&Picture>, next: f32) {
    let gain = first_order(x, picture, next);
    if let Some(older) = older {
        let r = place(older, picture.sigma, next);
        add_difference(x, &older.values, &picture.values, -gain * 0.5 / r);
    }
}

/// UniC: replaces `x`, which the predictor has reached, by what the picture predicted there makes of the same step.
fn correct(x: &mut [f32], before: &Before, here: &Picture) {
    x.copy_from_slice(&before.start);
    let base = &before.picture;
    let gain = first_order(x, base, here.sigma);
    let weight = match &before.older {
        None => 0.5,
        Some(older) => {
            // Both rows of the order conditions: w1 + w = b1 and r * w1 + w = b2.
            let r = place(older, base.sigma, here.sigma);
            let h = log_snr(base.sigma) - log_snr(here.sigma);
            let b = h.exp_m1();
            let phi2 = b / h - 1.0;
            let (b1, b2) = (phi2 / b, 2.0 * (phi2 / h - 0.5) / b);
            let w1 = (b1 - b2) / (1.0 - r);
            add_difference(x, &older.values, &base.values, -gain * w1 / r);
            b1 - w1
        }
    };
    add_difference(x, &here.values, &base.values, -gain * weight);
}
