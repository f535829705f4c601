//! DPM-Solver++ and its SDE variant, multistep, of first and second order (Lu et al. 2022, arXiv 2211.01095).

use super::{Method, Next, NoiseSource, Step, add, blend, clean, log_snr};

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Order {
    First,
    Second,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Noise {
    None,
    Fresh,
}

pub(super) struct DpmSolverPp {
    order: Order,
    noise: Noise,
    /// The picture of the step before, and its log-SNR.
    before: Option<(Vec<f32>, f64)>,
}

impl DpmSolverPp {
    pub(super) fn new(order: Order, noise: Noise) -> Self {
        Self { order, noise, before: None }
    }
}

impl Method for DpmSolverPp {
    fn advance(&mut self, x: &mut [f32], velocity: &[f32], step: &Step, noise: &mut NoiseSource) -> Next {
        let picture = clean(x, velocity, step.sigma);
        let from = log_snr(step.sigma);
        // The picture at the step's middle, extrapolated from this one and the one before.
        let mut towards = picture.clone();
        if let Some((before, at)) = self.before.as_ref().filter(|_| step.next > 0.0) {
            // From pure noise the step before was infinitely long, which leaves no slope.
            let half = 0.5 * (log_snr(step.next) - from) / (from - at);
            towards.iter_mut().zip(before).for_each(|(d, b)| *d += half as f32 * (*d - b));
        }
        match self.noise {
            Noise::None => ode_step(x, &towards, step.sigma, step.next),
            Noise::Fresh if step.next > 0.0 => sde_step(x, &towards, step.sigma, step.next, &noise.draw()),
            Noise::Fresh => x.copy_from_slice(&towards),
        }
        if self.order == Order::Second {
            self.before = Some((picture, from));
        }
        Next::Step
    }
}

/// From `sigma` to `next` as if the picture stayed the same.
fn ode_step(x: &mut [f32], picture: &[f32], sigma: f32, next: f32) {
    let h = log_snr(next) - log_snr(sigma);
    let alpha = 1.0 - f64::from(next);
    blend(x, f64::from(next) / f64::from(sigma), picture, -alpha * (-h).exp_m1());
}

/// The same along the reverse SDE, with standard normal `noise`.
pub(super) fn sde_step(x: &mut [f32], picture: &[f32], sigma: f32, next: f32, noise: &[f32]) {
    let h = log_snr(next) - log_snr(sigma);
    let (sigma, next) = (f64::from(sigma), f64::from(next));
    let gain = -(-2.0 * h).exp_m1();
    blend(x, next / sigma * (-h).exp(), picture, (1.0 - next) * gain);
    add(x, noise, next * gain.sqrt());
}
