//! Every sampler, step by step, against diffusers' own schedulers (`reference/samplers.py`).

#![allow(clippy::unwrap_used)] // in the tests' helpers too

use gen_core::Latents;
use sampling::{SamplerKind, TorchRng, Trajectory};
use serde_json::Value;

fn table() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/samplers.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn floats(values: &Value) -> Vec<f32> {
    values.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

/// The script's stand-in for a network.
fn toy_velocity(x: &[f32], sigma: f32) -> Vec<f32> {
    let last = (x.len() - 1) as f32;
    let velocity = |(index, x): (usize, &f32)| {
        let place = 2.0 * index as f32 / last - 1.0;
        x - 0.8 * (x * (0.3 + 0.5 * (1.0 - sigma)) + place).tanh()
    };
    x.iter().enumerate().map(velocity).collect()
}

#[test]
fn every_step_of_every_sampler_equals_the_reference_within_1e5() {
    let table = table();
    let (seed, shape) = (table["seed"].as_u64().unwrap(), floats(&table["shape"]));
    let shape: Vec<usize> = shape.iter().map(|side| *side as usize).collect();
    let start = TorchRng::new(seed).randn(&shape).unwrap();
    let cases = table["samplers"].as_array().unwrap();
    for kind in SamplerKind::ALL {
        assert!(cases.iter().filter(|case| case["name"] == kind.as_str()).count() >= 4, "{kind}");
    }
    let mut worst = 0f32;
    for case in cases {
        let what = format!("{} {}", case["name"], case["title"]);
        let kind: SamplerKind = case["name"].as_str().unwrap().parse().unwrap();
        let sigmas = floats(&case["sigmas"]);
        let mut trajectory = Trajectory::new(kind, start.clone(), sigmas.into(), seed, 1).unwrap();
        for (step, expected) in case["steps"].as_array().unwrap().iter().enumerate() {
            while trajectory.done() == step {
                let sigma = trajectory.pending().unwrap();
                let velocity = toy_velocity(trajectory.latents().data(), sigma);
                trajectory.advance(&velocity).unwrap();
            }
            for (got, want) in trajectory.latents().data().iter().zip(floats(expected)) {
                worst = worst.max((got - want).abs());
                assert!((got - want).abs() <= 1e-5, "{what}, step {}: {got} is not {want}", step + 1);
            }
        }
        assert_eq!(trajectory.pending(), None, "{what}");
    }
    println!("worst difference: {worst:e}");
}

/// Each sampler's own order: how its error falls when steps are halved, on a flow whose solution is known.
#[test]
fn deterministic_samplers_converge_to_the_exact_solution_at_their_order() {
    // The picture is a Gaussian of this deviation around this mean, so the exact velocity and path are known.
    const MEAN: f64 = 0.7;
    const SPREAD: f64 = 0.5;
    let deviation = |sigma: f64| ((1.0 - sigma).powi(2) * SPREAD * SPREAD + sigma * sigma).sqrt();
    let velocity = |x: &[f32], sigma: f32| -> Vec<f32> {
        let sigma = f64::from(sigma);
        let variance = deviation(sigma).powi(2);
        let one = |x: f32| {
            let off = f64::from(x) - (1.0 - sigma) * MEAN;
            let picture = MEAN + (1.0 - sigma) * SPREAD * SPREAD * off / variance;
            let noise = sigma * off / variance;
            (noise - picture) as f32
        };
        x.iter().map(|x| one(*x)).collect()
    };
    let (from, to, x) = (0.9f64, 0.1f64, 1.3f32);
    let exact = (1.0 - to) * MEAN + deviation(to) / deviation(from) * (f64::from(x) - (1.0 - from) * MEAN);
    let error = |kind, steps: usize| {
        let sigmas: Vec<f32> = (0..=steps).map(|i| (from + (to - from) * i as f64 / steps as f64) as f32).collect();
        let start = Latents::new(vec![1, 1, 1, 1], vec![x]).unwrap();
        let mut trajectory = Trajectory::new(kind, start, sigmas.into(), 0, 1).unwrap();
        while let Some(sigma) = trajectory.pending() {
            trajectory.advance(&velocity(trajectory.latents().data(), sigma)).unwrap();
        }
        (f64::from(trajectory.latents().data()[0]) - exact).abs()
    };
    use SamplerKind::{Ddim, Dpmpp2m, Euler, Heun, UniPc};
    for (kind, order) in [(Euler, 1), (Ddim, 1), (Heun, 2), (Dpmpp2m, 2), (UniPc, 2)] {
        let ratio = error(kind, 16) / error(kind, 32);
        let least = f64::powi(2.0, order) * 0.8;
        assert!(ratio > least, "{kind}: the error falls by {ratio}, not {least}");
    }
}

/// A stochastic sampler must give the model's own distribution: the right mean and spread over many seeds.
#[test]
fn stochastic_samplers_keep_the_distribution() {
    const MEAN: f64 = 0.7;
    const SPREAD: f64 = 0.5;
    let velocity = |x: &[f32], sigma: f32| -> Vec<f32> {
        let sigma = f64::from(sigma);
        let variance = (1.0 - sigma).powi(2) * SPREAD * SPREAD + sigma * sigma;
        let one = |x: f32| {
            let off = f64::from(x) - (1.0 - sigma) * MEAN;
            let picture = MEAN + (1.0 - sigma) * SPREAD * SPREAD * off / variance;
            (sigma * off / variance - picture) as f32
        };
        x.iter().map(|x| one(*x)).collect()
    };
    let sigmas: Vec<f32> = (0..=200).map(|i| 1.0 - i as f32 / 200.0).collect();
    use SamplerKind::{Dpmpp2mSde, DpmppSde, EulerAncestral};
    for kind in [EulerAncestral, Dpmpp2mSde, DpmppSde] {
        let start = TorchRng::new(3).randn(&[1, 1, 64, 64]).unwrap();
        let mut trajectory = Trajectory::new(kind, start, sigmas.clone().into(), 3, 1).unwrap();
        while let Some(sigma) = trajectory.pending() {
            trajectory.advance(&velocity(trajectory.latents().data(), sigma)).unwrap();
        }
        let values = trajectory.latents().data();
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / values.len() as f64;
        let spread = (values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt();
        // 4096 values: the mean's own deviation is 0.008, the spread's 0.006.
        assert!((mean - MEAN).abs() < 0.03 && (spread - SPREAD).abs() < 0.025, "{kind}: {mean} +- {spread}");
    }
}

/// The noise of a stochastic sampler comes after the tensors that the latents were made of.
#[test]
fn fresh_noise_is_not_the_noise_that_was_there() {
    let shape = [1, 1, 4, 4];
    let mut rng = TorchRng::new(5);
    let draws: Vec<Latents> = (0..3).map(|_| rng.randn(&shape).unwrap()).collect();
    for drawn in [1, 2] {
        let sigmas = [1.0, 0.5, 0.0].into();
        let mut trajectory = Trajectory::new(SamplerKind::Lcm, draws[0].clone(), sigmas, 5, drawn).unwrap();
        // The picture is 0, so what is left is half the noise.
        trajectory.advance(draws[0].data()).unwrap();
        for (x, z) in trajectory.latents().data().iter().zip(draws[drawn].data()) {
            assert_eq!(*x, 0.5 * z, "{drawn}");
        }
    }
}
