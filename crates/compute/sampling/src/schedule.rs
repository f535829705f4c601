//! Sigma schedules.

use gen_core::{DiffusionRecipe, Error, GenerationRequest, Result, ScheduleRecipe};
use std::sync::Arc;

/// The noise levels of a render: `steps + 1` values, falling, the last one 0.
pub type Sigmas = Arc<[f32]>;

/// The sigmas of a request in `steps` steps.
///
/// Flow matching follows diffusers' `FlowMatchEulerDiscreteScheduler` with the sigmas that its pipelines hand in: `1` to
/// `1/steps` evenly, through the time shift, in `f32`.
///
/// # Errors
/// The request names a schedule that isn't known.
pub(crate) fn sigmas(recipe: &DiffusionRecipe, request: &GenerationRequest, steps: usize) -> Result<Sigmas> {
    let linear = linspace(1.0, 1.0 / steps as f32, steps);
    let shift = match (&recipe.schedule, request.scheduler_shift) {
        (_, Some(shift)) => shift,
        (ScheduleRecipe::FlowMatch { shift }, None) => *shift,
        (ScheduleRecipe::DynamicFlowMatch { base_shift, max_shift, base_tokens, max_tokens }, None) => {
            let cell = (recipe.latent_factor * recipe.patch).max(1);
            let tokens = (request.width as usize / cell) * (request.height as usize / cell);
            let slope = (max_shift - base_shift) / (*max_tokens as f32 - *base_tokens as f32);
            (tokens as f32 * slope + base_shift - slope * *base_tokens as f32).exp()
        }
    };
    match request.scheduler.as_deref().unwrap_or("simple") {
        "simple" => {
            let shifted = linear.iter().map(|s| shift * s / (1.0 + (shift - 1.0) * s));
            Ok(shifted.chain([0.0]).collect())
        }
        other => Err(Error::invalid("scheduler", format!("'{other}' is not a schedule for this model; use simple"))),
    }
}

/// `torch.linspace` in `f32`: each half is counted from its own end.
fn linspace(start: f32, end: f32, steps: usize) -> Vec<f32> {
    if steps == 1 {
        return vec![start];
    }
    let step = (end - start) / (steps - 1) as f32;
    let value = |i: usize| if i < steps / 2 { start + step * i as f32 } else { end - step * (steps - 1 - i) as f32 };
    (0..steps).map(value).collect()
}

/// The first of `steps` steps that runs when starting from a picture: 0 for strength 1, `steps` (none) for strength 0.
/// Follows diffusers' image-to-image pipelines.
pub fn first_step(steps: usize, strength: f32) -> usize {
    // Through decimal text, so that 0.6 is 0.6 as the user wrote it and not 0.60000002.
    let strength: f64 = strength.to_string().parse().unwrap_or(f64::from(strength));
    let steps = steps as f64;
    (steps - (steps * strength).min(steps)).max(0.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use gen_core::GuidanceRecipe;
    use serde_json::Value;

    #[test]
    fn equals_the_reference_tables() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/schedule.json");
        let tables: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert!(tables.len() > 5);
        for table in tables {
            let steps = table["steps"].as_u64().unwrap() as usize;
            let recipe = DiffusionRecipe {
                latent_channels: 16,
                latent_factor: 8,
                patch: 2,
                schedule: ScheduleRecipe::FlowMatch { shift: table["shift"].as_f64().unwrap() as f32 },
                guidance: GuidanceRecipe::Extrapolate,
            };
            let got = sigmas(&recipe, &GenerationRequest::default(), steps).unwrap();
            let expected: Vec<f32> =
                table["sigmas"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
            assert_eq!(got.len(), expected.len());
            for (g, e) in got.iter().zip(&expected) {
                assert!((g - e).abs() <= 1.2e-7, "{steps} steps: {got:?} is not {expected:?}");
            }
            for pair in table["first_step_by_strength"].as_array().into_iter().flatten() {
                let (strength, first) = (pair[0].as_f64().unwrap() as f32, pair[1].as_u64().unwrap() as usize);
                assert_eq!(first_step(steps, strength), first, "{steps} steps, strength {strength}");
            }
        }
    }

    #[test]
    fn no_strength_means_no_steps() {
        assert_eq!(first_step(8, 0.0), 8);
        assert_eq!(first_step(8, 1.0), 0);
    }
}
