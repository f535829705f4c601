//! Consistency sampling.

use super::{Method, Next, NoiseSource, Step, blend, clean};

pub(super) struct Lcm;

impl Method for Lcm {
    fn advance(&mut self, x: &mut [f32], velocity: &[f32], step: &Step, noise: &mut NoiseSource) -> Next {
        x.copy_from_slice(&clean(x, velocity, step.sigma));
        if step.next > 0.0 {
            let next = f64::from(step.next);
            blend(x, 1.0 - next, &noise.draw(), next);
        }
        Next::Step
    }
}
