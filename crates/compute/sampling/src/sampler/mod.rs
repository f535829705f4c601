//! Samplers: how predictions move latents along a schedule.
//!
//! A [`Trajectory`] is a sampler at work on one row: it says at which sigma it needs the next prediction, gets it, and
//! moves on. Turned inside out like this, many trajectories can share one forward pass.

mod dpmpp;
mod dpmpp_sde;
mod euler;
mod heun;
mod lcm;
mod unipc;

use crate::{Sigmas, TorchRng};
use gen_core::{Error, Latents, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A sampler by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SamplerKind {
    /// First-order steps along the probability flow (Liu et al. 2022 for rectified flow).
    #[default]
    Euler,
    /// Euler to a lower sigma, then fresh noise up to the next one (Karras et al. 2022's ancestral step, on
    /// rectified flow).
    EulerAncestral,
    /// Second order: the mean of the slopes at both ends of a step (Karras et al. 2022, algorithm 1). Two predictions
    /// a step, but one for the last.
    Heun,
    /// DPM-Solver++(2M) (Lu et al. 2022).
    #[serde(rename = "dpmpp_2m")]
    Dpmpp2m,
    /// SDE-DPM-Solver++(2M) (Lu et al. 2022).
    #[serde(rename = "dpmpp_2m_sde")]
    Dpmpp2mSde,
    /// SDE-DPM-Solver++(2S) with a prediction at the middle of each step (Crowson's k-diffusion). Two predictions a
    /// step, but one for a step from pure noise and for the last.
    DpmppSde,
    /// UniPC of order 2 with B2(h) (Zhao et al. 2023).
    #[serde(rename = "unipc")]
    UniPc,
    /// Consistency sampling: to the estimated picture, then fresh noise up to the next sigma (Luo et al. 2023).
    Lcm,
    /// DDIM without noise (Song et al. 2021).
    Ddim,
}

impl SamplerKind {
    /// Every sampler.
    pub const ALL: [Self; 9] = [
        Self::Euler,
        Self::EulerAncestral,
        Self::Heun,
        Self::Dpmpp2m,
        Self::Dpmpp2mSde,
        Self::DpmppSde,
        Self::UniPc,
        Self::Lcm,
        Self::Ddim,
    ];

    /// The name used in requests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Euler => "euler",
            Self::EulerAncestral => "euler_ancestral",
            Self::Heun => "heun",
            Self::Dpmpp2m => "dpmpp_2m",
            Self::Dpmpp2mSde => "dpmpp_2m_sde",
            Self::DpmppSde => "dpmpp_sde",
            Self::UniPc => "unipc",
            Self::Lcm => "lcm",
            Self::Ddim => "ddim",
        }
    }

    fn method(self) -> Box<dyn Method> {
        match self {
            Self::Euler => Box::new(euler::Euler),
            Self::EulerAncestral => Box::new(euler::EulerAncestral),
            Self::Heun => Box::<heun::Heun>::default(),
            Self::Dpmpp2m => Box::new(dpmpp::DpmSolverPp::new(dpmpp::Order::Second, dpmpp::Noise::None)),
            Self::Dpmpp2mSde => Box::new(dpmpp::DpmSolverPp::new(dpmpp::Order::Second, dpmpp::Noise::Fresh)),
            Self::DpmppSde => Box::<dpmpp_sde::DpmppSde>::default(),
            Self::UniPc => Box::<unipc::UniPc>::default(),
            Self::Lcm => Box::new(lcm::Lcm),
            // DDIM is the first-order DPM-Solver (Lu et al. 2022, section 4.1).
            Self::Ddim => Box::new(dpmpp::DpmSolverPp::new(dpmpp::Order::First, dpmpp::Noise::None)),
        }
    }
}

impl fmt::Display for SamplerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SamplerKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|kind| kind.as_str()).collect();
            Error::invalid("sampler", format!("'{name}' is not a sampler; use one of {}", known.join(", ")))
        })
    }
}

/// The step that a method is in: from `sigma` down to `next`.
struct Step {
    sigma: f32,
    next: f32,
    /// Steps from this one to the last, both counted.
    left: usize,
}

/// What a method wants after a prediction.
enum Next {
    /// The latents have arrived at the step's end.
    Step,
    /// The same step needs another prediction, at this sigma, of the latents as they are now.
    At(f32),
}

/// How latents move. `x` and `velocity` are one row; `velocity` was predicted at `x` and the sigma last asked for.
trait Method: Send {
    fn advance(&mut self, x: &mut [f32], velocity: &[f32], step: &Step, noise: &mut NoiseSource) -> Next;
}

/// The seed's generator behind the noise of stochastic samplers.
struct NoiseSource {
    seed: u64,
    drawn: usize,
    rng: Option<TorchRng>,
    len: usize,
}

impl NoiseSource {
    /// Standard normal values for a row.
    fn draw(&mut self) -> Vec<f32> {
        let mut values = vec![0.0; self.len];
        let rng = self.rng.get_or_insert_with(|| {
            let mut rng = TorchRng::new(self.seed);
            (0..self.drawn).for_each(|_| rng.fill(&mut values));
            rng
        });
        rng.fill(&mut values);
        values
    }
}

/// A sampler at work on one row of latents.
pub struct Trajectory {
    latents: Latents,
    sigmas: Sigmas,
    index: usize,
    at: f32,
    method: Box<dyn Method>,
    noise: NoiseSource,
}

impl Trajectory {
    /// Starts at `sigmas[0]` with latents that are as noisy. `drawn` tensors of the latents' size are skipped in the
    /// generator of `seed` before it gives the noise of a stochastic sampler: those that the latents were made of.
    ///
    /// # Errors
    /// The sigmas don't fall strictly from at most 1 to at least 0.
    pub fn new(kind: SamplerKind, latents: Latents, sigmas: Sigmas, seed: u64, drawn: usize) -> Result<Self> {
        let ordered = sigmas.windows(2).all(|pair| pair[1] < pair[0]);
        let bounded = sigmas.iter().all(|sigma| (0.0..=1.0).contains(sigma));
        if !ordered || !bounded {
            return Err(Error::Backend(format!("sigmas must fall within 1 to 0, these don't: {sigmas:?}")));
        }
        let at = sigmas.first().copied().unwrap_or(0.0);
        let noise = NoiseSource { seed, drawn, rng: None, len: latents.data().len() };
        Ok(Self { latents, sigmas, index: 0, at, method: kind.method(), noise })
    }

    /// Steps in all.
    pub fn steps(&self) -> usize {
        self.sigmas.len().saturating_sub(1)
    }

    /// Steps done.
    pub fn done(&self) -> usize {
        self.index
    }

    /// The sigma at which a prediction for [`Self::latents`] is needed; `None` at the end.
    pub fn pending(&self) -> Option<f32> {
        (self.index < self.steps()).then_some(self.at)
    }

    /// The latents as they are now.
    pub fn latents(&self) -> &Latents {
        &self.latents
    }

    pub(crate) fn latents_mut(&mut self) -> &mut [f32] {
        self.latents.data_mut()
    }

    /// The latents, at the end.
    pub fn into_latents(self) -> Latents {
        self.latents
    }

    /// Where a straight flow from here would end: `x - sigma * velocity`, the estimate of the clean latents.
    ///
    /// # Errors
    /// `velocity` has another length than the latents.
    pub fn estimate(&self, velocity: &[f32]) -> Result<Latents> {
        self.check(velocity)?;
        let picture = clean(self.latents.data(), velocity, self.at);
        Latents::new(self.latents.shape().to_vec(), picture)
    }

    /// Takes the velocity predicted for [`Self::latents`] at [`Self::pending`]. Returns whether a step has ended.
    ///
    /// # Errors
    /// `velocity` has another length than the latents, or no prediction was pending.
    pub fn advance(&mut self, velocity: &[f32]) -> Result<bool> {
        self.check(velocity)?;
        let left = self.steps() - self.index;
        let Some(&[sigma, next]) = self.sigmas.get(self.index..self.index + 2) else {
            return Err(Error::Backend("the trajectory has ended".into()));
        };
        let step = Step { sigma, next, left };
        match self.method.advance(self.latents.data_mut(), velocity, &step, &mut self.noise) {
            Next::At(sigma) => {
                self.at = sigma;
                Ok(false)
            }
            Next::Step => {
                self.index += 1;
                self.at = next;
                Ok(true)
            }
        }
    }

    fn check(&self, velocity: &[f32]) -> Result<()> {
        let len = self.latents.data().len();
        if velocity.len() != len {
            return Err(Error::Backend(format!("{} predicted values for {len} latents", velocity.len())));
        }
        Ok(())
    }
}

/// `x - sigma * velocity`: the picture that a velocity points at.
fn clean(x: &[f32], velocity: &[f32], sigma: f32) -> Vec<f32> {
    x.iter().zip(velocity).map(|(x, v)| x - sigma * v).collect()
}

/// `x = a * x + b * y`, element by element.
fn blend(x: &mut [f32], a: f64, y: &[f32], b: f64) {
    let (a, b) = (a as f32, b as f32);
    x.iter_mut().zip(y).for_each(|(x, y)| *x = a * *x + b * y);
}

/// `x += b * y`, element by element.
fn add(x: &mut [f32], y: &[f32], b: f64) {
    let b = b as f32;
    x.iter_mut().zip(y).for_each(|(x, y)| *x += b * y);
}

/// `ln(alpha / sigma)` of rectified flow, whose alpha is `1 - sigma`: the solvers' time. It is minus infinity in pure
/// noise and plus infinity in a picture.
fn log_snr(sigma: f32) -> f64 {
    let sigma = f64::from(sigma);
    ((1.0 - sigma) / sigma).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_contract_everywhere() {
        let names: Vec<_> = SamplerKind::ALL.iter().map(|kind| kind.as_str()).collect();
        assert_eq!(names, gen_core::KNOWN_SAMPLERS);
        for kind in SamplerKind::ALL {
            assert_eq!(kind.as_str().parse::<SamplerKind>().unwrap(), kind);
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        assert!("eulr".parse::<SamplerKind>().unwrap_err().to_string().contains("euler_ancestral"));
    }

    #[test]
    fn a_schedule_that_does_not_fall_is_refused() {
        let latents = Latents::new(vec![1, 1, 1, 2], vec![0.0; 2]).unwrap();
        for bad in [&[1.0, 1.0, 0.0][..], &[1.5, 0.0], &[1.0, f32::NAN], &[0.5, -0.1]] {
            assert!(Trajectory::new(SamplerKind::Euler, latents.clone(), bad.into(), 0, 1).is_err(), "{bad:?}");
        }
        let mut ended = Trajectory::new(SamplerKind::Euler, latents, [].into(), 0, 1).unwrap();
        assert_eq!(ended.pending(), None);
        assert!(ended.advance(&[0.0; 2]).is_err());
    }
}
