//! Heun's method.

use super::{Method, Next, NoiseSource, Step};

/// Between the two predictions of a step: where it started, and the slope there.
#[derive(Default)]
pub(super) struct Heun(Option<(Vec<f32>, Vec<f32>)>);

impl Method for Heun {
    fn advance(&mut self, x: &mut [f32], velocity: &[f32], step: &Step, _: &mut NoiseSource) -> Next {
        let dt = step.next - step.sigma;
        if let Some((start, slope)) = self.0.take() {
            let ends = slope.iter().zip(velocity);
            x.iter_mut().zip(start).zip(ends).for_each(|((x, start), (a, b))| *x = start + dt * (0.5 * (a + b)));
            return Next::Step;
        }
        // At a picture's sigma there is nothing to predict, so the last step is Euler's.
        let last = step.next == 0.0;
        if !last {
            self.0 = Some((x.to_vec(), velocity.to_vec()));
        }
        x.iter_mut().zip(velocity).for_each(|(x, v)| *x += dt * v);
        if last { Next::Step } else { Next::At(step.next) }
    }
}
