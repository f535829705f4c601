//! Sigma schedules.

mod beta;

use gen_core::{DiffusionRecipe, Error, Result, ScheduleRecipe};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The noise levels of a render: `steps + 1` values, falling, the last one 0.
pub type Sigmas = Arc<[f32]>;

/// How noise levels are spaced, by name.
///
/// The model's own levels are those of 1000 training times `t / 1000` through the time shift, from 1 down to the shift of
/// 0.001.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// Times 1 to `1/steps` evenly, through the shift: what diffusers' flow-match pipelines hand their scheduler.
    #[default]
    Simple,
    /// From 1 to the model's smallest sigma evenly, through the shift (once more): the default of diffusers'
    /// `FlowMatchEulerDiscreteScheduler`.
    Normal,
    /// Between the model's largest and smallest sigma, evenly in the 7th root (Karras et al. 2022, equation 5).
    Karras,
    /// Between the model's largest and smallest sigma, evenly in the logarithm.
    Exponential,
    /// As [`Self::Normal`] with one more step, whose last level is left out: the smallest sigma is not visited.
    SgmUniform,
    /// Between the model's largest and smallest sigma, at quantiles of Beta(0.6, 0.6): dense at both ends (Lee et al.
    /// 2024, as diffusers' `use_beta_sigmas`).
    Beta,
}

impl ScheduleKind {
    /// Every schedule.
    pub const ALL: [Self; 6] =
        [Self::Simple, Self::Normal, Self::Karras, Self::Exponential, Self::SgmUniform, Self::Beta];

    /// The name used in requests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Simple => "simple",
            Self::Normal => "normal",
            Self::Karras => "karras",
            Self::Exponential => "exponential",
            Self::SgmUniform => "sgm_uniform",
            Self::Beta => "beta",
        }
    }
}

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ScheduleKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|kind| kind.as_str()).collect();
            Error::invalid("scheduler", format!("'{name}' is not a schedule; use one of {}", known.join(", ")))
        })
    }
}

/// The time shift of rectified flow.
struct Shift {
    factor: f32,
    /// The smallest level that the model's scheduler starts from before any schedule's own shift: a static shift is in
    /// it already, one that depends on the picture's size is not known to the scheduler by then.
    smallest: f32,
}

/// Training times, as every flow-match scheduler in diffusers has them.
const SMALLEST_TIME: f32 = 0.001;

impl Shift {
    fn new(recipe: &DiffusionRecipe, width: u32, height: u32, asked: Option<f32>) -> Self {
        let fixed = |factor: f32| Self { factor, smallest: shifted(factor, SMALLEST_TIME) };
        match (&recipe.schedule, asked) {
            (_, Some(factor)) => fixed(factor),
            (ScheduleRecipe::FlowMatch { shift }, None) => fixed(*shift),
            (ScheduleRecipe::DynamicFlowMatch { base_shift, max_shift, base_tokens, max_tokens }, None) => {
                let cell = (recipe.latent_factor * recipe.patch).max(1);
                let tokens = (width as usize / cell) * (height as usize / cell);
                let slope = (max_shift - base_shift) / (*max_tokens as f32 - *base_tokens as f32);
                let mu = tokens as f32 * slope + base_shift - slope * *base_tokens as f32;
                Self { factor: mu.exp(), smallest: SMALLEST_TIME }
            }
        }
    }

    fn of(&self, time: f32) -> f32 {
        shifted(self.factor, time)
    }
}

fn shifted(factor: f32, time: f32) -> f32 {
    factor * time / (1.0 + (factor - 1.0) * time)
}

/// The sigmas of `steps` steps for a picture of `width` x `height` pixels; `shift` overrides the model's time shift.
///
/// [`ScheduleKind::Simple`] is equal to diffusers' `FlowMatchEulerDiscreteScheduler` as its pipelines use it, in `f32`.
///
/// # Errors
/// A shift so extreme that levels fall together.
pub fn sigmas(
    kind: ScheduleKind,
    recipe: &DiffusionRecipe,
    (width, height): (u32, u32),
    shift: Option<f32>,
    steps: usize,
) -> Result<Sigmas> {
    let shift = Shift::new(recipe, width, height, shift);
    let (largest, smallest) = (1.0f64, f64::from(shift.of(SMALLEST_TIME)));
    // Through the shift, and between the model's ends, where 0 is the largest level and 1 the smallest.
    let timed = |times: Vec<f32>| times.into_iter().map(|time| shift.of(time)).collect::<Vec<f32>>();
    let spaced = |level: &dyn Fn(f64) -> f64| {
        let way = |step: usize| step as f64 / (steps.max(2) - 1) as f64;
        (0..steps).map(|step| level(way(step)) as f32).collect::<Vec<f32>>()
    };
    let levels = match kind {
        ScheduleKind::Simple => timed(linspace(1.0, 1.0 / steps as f32, steps)),
        ScheduleKind::Normal => timed(linspace(1.0, shift.smallest, steps)),
        ScheduleKind::SgmUniform => {
            let mut times = linspace(1.0, shift.smallest, steps + 1);
            times.truncate(steps);
            timed(times)
        }
        ScheduleKind::Karras => {
            let (from, to) = (largest.powf(1.0 / 7.0), smallest.powf(1.0 / 7.0));
            spaced(&|way| (from + way * (to - from)).powi(7))
        }
        ScheduleKind::Exponential => spaced(&|way| (largest.ln() + way * (smallest.ln() - largest.ln())).exp()),
        ScheduleKind::Beta => spaced(&|way| smallest + (largest - smallest) * beta::quantile(1.0 - way)),
    };
    let sigmas: Sigmas = levels.into_iter().chain([0.0]).collect();
    let bounded = sigmas.iter().all(|sigma| (0.0..=1.0).contains(sigma));
    if !bounded || !sigmas.windows(2).all(|pair| pair[1] < pair[0]) {
        let message = format!("{} leaves no {steps} different noise levels; use one nearer to 1", shift.factor);
        return Err(Error::invalid("scheduler_shift", message));
    }
    Ok(sigmas)
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
mod tests;
