//! Euler's method, and its ancestral variant.

use super::{Method, Next, NoiseSource, Step, add, blend, clean};

pub(super) struct Euler;

impl Method for Euler {
    fn advance(&mut self, x: &mut [f32], velocity: &[f32], step: &Step, _: &mut NoiseSource) -> Next {
        // In f32 from the first operation on, as the reference scheduler does.
        let dt = step.next - step.sigma;
        x.iter_mut().zip(velocity).for_each(|(x, v)| *x += dt * v);
        Next::Step
    }
}

/// Down to `next^2 / sigma` without noise, then up to `next` with so much noise that the variance fits.
pub(super) struct EulerAncestral;

impl Method for EulerAncestral {
    fn advance(&mut self, x: &mut [f32], velocity: &[f32], step: &Step, noise: &mut NoiseSource) -> Next {
        let picture = clean(x, velocity, step.sigma);
        if step.next == 0.0 {
            x.copy_from_slice(&picture);
            return Next::Step;
        }
        let (sigma, next) = (f64::from(step.sigma), f64::from(step.next));
        let down = next * next / sigma;
        // Going up scales the picture's share, too: from 1 - down to 1 - next.
        let scale = (1.0 - next) / (1.0 - down);
        let ratio = down / sigma;
        blend(x, scale * ratio, &picture, scale * (1.0 - ratio));
        add(x, &noise.draw(), (next * next - (scale * down).powi(2)).max(0.0).sqrt());
        Next::Step
    }
}
