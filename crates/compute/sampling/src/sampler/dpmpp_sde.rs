//! SDE-DPM-Solver++(2S) with its middle at half the log-SNR, as in Crowson's k-diffusion (`eta` 1, `r` 1/2).

use super::dpmpp::sde_step;
use super::{Method, Next, NoiseSource, Step, clean, log_snr};

/// Between the two predictions of a step: where it started, the middle, and the noise on the way there.
#[derive(Default)]
pub(super) struct DpmppSde(Option<Middle>);

struct Middle {
    start: Vec<f32>,
    sigma: f32,
    noise: Vec<f32>,
}

impl Method for DpmppSde {
    fn advance(&mut self, x: &mut [f32], velocity: &[f32], step: &Step, noise: &mut NoiseSource) -> Next {
        if let Some(Middle { start, sigma, noise: mut first }) = self.0.take() {
            let picture = clean(x, velocity, sigma);
            // Noise over the whole step is one Brownian path, whose first half has been walked. Its clock is
            // sigma / alpha.
            let clock = |sigma: f32| f64::from(sigma) / (1.0 - f64::from(sigma));
            let whole = clock(step.sigma) - clock(step.next);
            let share = ((clock(step.sigma) - clock(sigma)) / whole).clamp(0.0, 1.0);
            super::blend(&mut first, share.sqrt(), &noise.draw(), (1.0 - share).sqrt());
            x.copy_from_slice(&start);
            sde_step(x, &picture, step.sigma, step.next, &first);
            return Next::Step;
        }
        let picture = clean(x, velocity, step.sigma);
        if step.next == 0.0 {
            x.copy_from_slice(&picture);
            return Next::Step;
        }
        if step.sigma >= 1.0 {
            // Pure noise has no middle on the way from it: the first-order step's limit.
            sde_step(x, &picture, step.sigma, step.next, &noise.draw());
            return Next::Step;
        }
        let half = 0.5 * (log_snr(step.sigma) + log_snr(step.next));
        let middle = Middle { start: x.to_vec(), sigma: (1.0 / (1.0 + half.exp())) as f32, noise: noise.draw() };
        sde_step(x, &picture, step.sigma, middle.sigma, &middle.noise);
        let sigma = middle.sigma;
        self.0 = Some(middle);
        Next::At(sigma)
    }
}
