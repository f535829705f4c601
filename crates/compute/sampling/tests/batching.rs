//! Jobs of several threads through one sampler: shared passes, the same bits, fairness, and independence.

#![allow(clippy::unwrap_used)] // in the tests' helpers too

mod common;

use common::*;
use gen_core::*;
use sampling::{BatchingSampler, Guidance, InlineSampler, SampleJob, SampleService, SamplerKind};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

fn alone(job: &SampleJob) -> Latents {
    let denoiser = ToyDenoiser::new(no_hook());
    InlineSampler.sample(SampleJob { denoiser, ..job.clone() }, &mut |_| {}).unwrap()
}

/// Waits until `count` jobs were submitted: each reports step 0 first.
fn submitted(started: &mpsc::Receiver<()>, count: usize) {
    (0..count).for_each(|_| started.recv().unwrap());
    // Between the report and the queue there is nothing but a lock.
    sleep(Duration::from_millis(50));
}

#[test]
fn jobs_that_can_share_passes_do_and_get_the_same_bits() {
    let gate = Gate::default();
    let denoiser = ToyDenoiser::new(gate.hook());
    let sampler = BatchingSampler::new(16).unwrap();
    let mut jobs: Vec<SampleJob> = SamplerKind::ALL
        .into_iter()
        .zip(0..)
        .map(|(kind, seed)| SampleJob { sampler: kind, ..job(&denoiser, &"p".repeat(seed as usize), seed, 6) })
        .collect();
    // Guidance of one job is nobody else's.
    jobs[0].negative = Some(conditioning("negative"));
    jobs[0].guidance =
        Guidance { recipe: GuidanceRecipe::Extrapolate, scale: 3.0, normalization: 0.5, truncation: 0.6 };
    let first = job(&denoiser, "first", 99, 6);
    let results = scope(|scope| {
        let (tell, started) = mpsc::channel();
        let run = |job: SampleJob, tell: mpsc::Sender<()>| {
            let sampler = &sampler;
            scope.spawn(move || {
                sampler
                    .sample(job, &mut |report| {
                        if report.step == 0 {
                            tell.send(()).unwrap()
                        }
                    })
                    .unwrap()
            })
        };
        // One job is in its first pass when the others come.
        let ahead = run(first.clone(), tell.clone());
        gate.arrived();
        let others: Vec<_> = jobs.iter().map(|job| run(job.clone(), tell.clone())).collect();
        submitted(&started, jobs.len() + 1);
        gate.open(1000);
        let mut results = vec![ahead.join().unwrap()];
        results.extend(others.into_iter().map(|thread| thread.join().unwrap()));
        results
    });
    for (job, got) in std::iter::once(&first).chain(&jobs).zip(results) {
        assert_eq!(got, alone(job), "{}", job.sampler);
    }
    // Jobs at different sigmas share a pass, which this denoiser takes apart again: rows at one sigma stand together.
    let passes = denoiser.passes();
    assert_eq!(passes[0].1, ["first"], "{passes:?}");
    assert_eq!(passes[1].1.len(), jobs.len() + 1, "all others, one with guidance, join right behind it: {passes:?}");
    assert!(passes[2].1 == ["first"] && passes[2].0 < passes[1].0, "{passes:?}");
}

#[test]
fn only_jobs_of_one_model_and_shape_share() {
    let gate = Gate::default();
    let denoiser = ToyDenoiser::new(gate.hook());
    let sampler = BatchingSampler::new(16).unwrap();
    let mut other_model = job(&denoiser, "model", 2, 3);
    other_model.model_key = "another".into();
    let mut other_shape = job(&denoiser, "shape", 3, 3);
    other_shape.latents = Latents::new(vec![1, 1, 2, 8], other_shape.latents.into_data()).unwrap();
    let jobs = vec![job(&denoiser, "a", 0, 3), job(&denoiser, "b", 1, 3), other_model, other_shape];
    gate.open(1000);
    let results = sampler.sample_all(jobs.clone(), &mut |_, _| {}).unwrap();
    for (job, got) in jobs.iter().zip(&results) {
        assert_eq!(*got, alone(job));
    }
    let shared: Vec<_> = denoiser.passes().into_iter().filter(|(_, prompts)| prompts.len() > 1).collect();
    assert_eq!(shared.len(), 3);
    assert!(shared.iter().all(|(_, prompts)| prompts == &["a", "b"]));
}

#[test]
fn a_pass_has_no_more_rows_than_allowed() {
    let denoiser = ToyDenoiser::new(no_hook());
    let sampler = BatchingSampler::new(3).unwrap();
    let guided = |seed| {
        let mut job = job(&denoiser, "guided", seed, 4);
        job.negative = Some(conditioning("n"));
        job.guidance.scale = 2.0;
        job
    };
    let jobs = vec![guided(0), guided(1), job(&denoiser, "plain", 2, 4), job(&denoiser, "plain", 3, 4)];
    let results = sampler.sample_all(jobs.clone(), &mut |_, _| {}).unwrap();
    for (job, got) in jobs.iter().zip(&results) {
        assert_eq!(*got, alone(job));
    }
    let rows: Vec<usize> = denoiser.passes().iter().map(|(_, prompts)| prompts.len()).collect();
    assert_eq!(rows, [3, 3, 3, 3, 3, 3, 3, 3]);
}

#[test]
fn a_long_job_and_a_stream_of_short_ones_do_not_starve_each_other() {
    let denoiser = ToyDenoiser::new(Arc::new(|_| {
        sleep(Duration::from_millis(1));
        Ok(())
    }));
    let sampler = BatchingSampler::new(4).unwrap();
    let order = Mutex::new(Vec::new());
    scope(|scope| {
        let (tell, started) = mpsc::channel();
        let (sampler, order, denoiser) = (&sampler, &order, &denoiser);
        let long = job(denoiser, "long", 0, 60);
        scope.spawn(move || {
            sampler
                .sample(long, &mut |report| {
                    if report.step == 1 {
                        tell.send(()).unwrap()
                    }
                })
                .unwrap();
            order.lock().unwrap().push("long");
        });
        started.recv().unwrap();
        // Another model, so nothing is shared: each short job takes two passes of its own.
        for stream in 0..2 {
            scope.spawn(move || {
                for seed in 0..60 {
                    let key = format!("stream {stream}");
                    let short = SampleJob { model_key: key, ..job(denoiser, "short", seed, 2) };
                    sampler.sample(short, &mut |_| {}).unwrap();
                    order.lock().unwrap().push("short");
                }
            });
        }
    });
    let order = order.into_inner().unwrap();
    let before = order.iter().position(|name| *name == "long").unwrap();
    // Every third pass is the long job's: it ends after about 60 of the 120 short ones, neither first nor last.
    assert!((30..=90).contains(&before), "{before} short jobs before the long one");
}

#[test]
fn jobs_at_different_sigmas_go_to_the_denoiser_as_one_batch() {
    /// Takes all rows at once, as a network with a time for each row does.
    struct Rows(Arc<ToyDenoiser>, Mutex<Vec<Vec<f32>>>);
    impl Denoiser for Rows {
        fn predict(&self, x: &Latents, sigma: f32, c: &[&Conditioning], context: &StepContext<'_>) -> Result<Latents> {
            self.0.predict(x, sigma, c, context)
        }

        fn predict_rows(
            &self,
            x: &Latents,
            sigmas: &[f32],
            c: &[&Conditioning],
            context: &StepContext<'_>,
        ) -> Result<Latents> {
            self.1.lock().unwrap().push(sigmas.to_vec());
            let row = |i: usize| self.predict(&x.row(i).unwrap(), sigmas[i], &c[i..=i], context);
            let rows = (0..x.batch()).map(row).collect::<Result<Vec<_>>>()?;
            Latents::concat(&rows.iter().collect::<Vec<_>>())
        }

        fn resident_bytes(&self) -> u64 {
            0
        }
    }
    let toy = ToyDenoiser::new(no_hook());
    let rows = Arc::new(Rows(Arc::clone(&toy), Mutex::default()));
    let sampler = BatchingSampler::new(8).unwrap();
    let with = |prompt, seed, steps| SampleJob { denoiser: rows.clone(), ..job(&toy, prompt, seed, steps) };
    let jobs = vec![with("a", 0, 4), with("b", 1, 2), with("c", 2, 3)];
    let results = sampler.sample_all(jobs.clone(), &mut |_, _| {}).unwrap();
    for (job, got) in jobs.iter().zip(&results) {
        assert_eq!(*got, alone(job));
    }
    let sigmas = rows.1.lock().unwrap().clone();
    assert_eq!(sigmas[..2], [vec![1.0; 3], vec![0.75, 0.5, 1.0 - 1.0 / 3.0]]);
    assert_eq!(sigmas.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3, 2, 1]);
}

#[test]
fn newcomers_do_not_overtake() {
    // A stream of newcomers that are always a little behind the first job.
    let denoiser = ToyDenoiser::new(Arc::new(|_| {
        sleep(Duration::from_millis(1));
        Ok(())
    }));
    let sampler = BatchingSampler::new(1).unwrap();
    let ended = Mutex::new(Vec::new());
    scope(|scope| {
        let (sampler, ended, denoiser) = (&sampler, &ended, &denoiser);
        for thread in 0..6 {
            scope.spawn(move || {
                let jobs = if thread == 0 { 1 } else { 20 };
                for seed in 0..jobs {
                    sampler.sample(job(denoiser, "p", seed, 5), &mut |_| {}).unwrap();
                    ended.lock().unwrap().push(thread);
                }
            });
        }
    });
    let ended = ended.into_inner().unwrap();
    let first = ended.iter().position(|thread| *thread == 0).unwrap();
    assert!(first < 20, "{first} jobs overtook the first one");
}

#[test]
fn cancel_stops_its_own_job_at_once_and_no_other() {
    let gate = Gate::default();
    let denoiser = ToyDenoiser::new(gate.hook());
    let sampler = BatchingSampler::new(8).unwrap();
    let (kept, dropped) = (job(&denoiser, "kept", 0, 5), job(&denoiser, "dropped", 1, 5));
    scope(|scope| {
        let (tell, started) = mpsc::channel();
        let run = |job: SampleJob, tell: mpsc::Sender<()>| {
            let sampler = &sampler;
            scope.spawn(move || {
                sampler.sample(job, &mut |report| {
                    if report.step == 0 {
                        tell.send(()).unwrap()
                    }
                })
            })
        };
        let keeper = run(kept.clone(), tell.clone());
        let dropper = run(dropped.clone(), tell);
        submitted(&started, 2);
        // Both are in a pass or wait for one, and no pass moves.
        let asked = Instant::now();
        dropped.cancel.cancel();
        assert_eq!(dropper.join().unwrap(), Err(Error::Cancelled));
        assert!(asked.elapsed() < Duration::from_millis(150), "{:?}", asked.elapsed());
        gate.open(1000);
        assert_eq!(keeper.join().unwrap().unwrap(), alone(&kept));
    });
    let last = denoiser.passes().pop().unwrap();
    assert_eq!(last.1, ["kept"]);
}

#[test]
fn a_pass_that_nobody_waits_for_is_stopped() {
    // A network that only ends when it is told to.
    struct Endless(Mutex<Option<mpsc::Sender<&'static str>>>);
    impl Denoiser for Endless {
        fn predict(&self, _: &Latents, _: f32, _: &[&Conditioning], context: &StepContext<'_>) -> Result<Latents> {
            let tell = self.0.lock().unwrap().clone().unwrap();
            tell.send("in").unwrap();
            loop {
                sleep(Duration::from_millis(1));
                if context.cancel.is_cancelled() {
                    tell.send("out").unwrap();
                    return Err(Error::Cancelled);
                }
            }
        }

        fn resident_bytes(&self) -> u64 {
            0
        }
    }
    let (tell, heard) = mpsc::channel();
    let toy = ToyDenoiser::new(no_hook());
    let endless: Arc<dyn Denoiser> = Arc::new(Endless(Mutex::new(Some(tell))));
    let jobs: Vec<_> =
        (0..2).map(|seed| SampleJob { denoiser: Arc::clone(&endless), ..job(&toy, "p", seed, 3) }).collect();
    let sampler = BatchingSampler::new(8).unwrap();
    let cancels: Vec<_> = jobs.iter().map(|job| job.cancel.clone()).collect();
    scope(|scope| {
        let call = scope.spawn(|| sampler.sample_all(jobs, &mut |_, _| {}));
        assert_eq!(heard.recv().unwrap(), "in");
        cancels[1].cancel();
        assert_eq!(call.join().unwrap(), Err(Error::Cancelled));
        assert_eq!(heard.recv_timeout(Duration::from_secs(5)).unwrap(), "out");
    });
}

#[test]
fn an_error_is_its_own_jobs_only() {
    let denoiser = ToyDenoiser::new(no_hook());
    let sampler = BatchingSampler::new(8).unwrap();
    let good = job(&denoiser, "good", 0, 4);
    scope(|scope| {
        let fine = scope.spawn(|| sampler.sample(good.clone(), &mut |_| {}));
        let bad = scope.spawn(|| sampler.sample(job(&denoiser, "poison", 1, 4), &mut |_| {}));
        let error = bad.join().unwrap().unwrap_err();
        assert_eq!(error, Error::NonFinite { stage: "denoiser", step: Some(1) });
        assert_eq!(fine.join().unwrap().unwrap(), alone(&good));
    });
}

#[test]
fn a_shared_pass_that_fails_is_traced_to_its_job() {
    // Two rows at once are too many, and one prompt panics.
    struct Picky(Arc<ToyDenoiser>);
    impl Denoiser for Picky {
        fn predict(&self, x: &Latents, sigma: f32, c: &[&Conditioning], context: &StepContext<'_>) -> Result<Latents> {
            if x.batch() > 1 {
                return Err(Error::OutOfMemory { needed: 2, available: 1 });
            }
            assert_ne!(c[0].fingerprint(), "panic", "on purpose");
            self.0.predict(x, sigma, c, context)
        }

        fn resident_bytes(&self) -> u64 {
            0
        }
    }
    let toy = ToyDenoiser::new(no_hook());
    let picky: Arc<dyn Denoiser> = Arc::new(Picky(Arc::clone(&toy)));
    let with = |prompt, seed| SampleJob { denoiser: Arc::clone(&picky), ..job(&toy, prompt, seed, 3) };
    let sampler = BatchingSampler::new(8).unwrap();
    let good = vec![with("a", 0), with("b", 1)];
    let results = sampler.sample_all(good.clone(), &mut |_, _| {}).unwrap();
    assert_eq!(results, [alone(&good[0]), alone(&good[1])]);
    let error = sampler.sample_all(vec![with("a", 0), with("panic", 1)], &mut |_, _| {}).unwrap_err();
    assert_eq!(error, Error::Backend("the denoiser panicked".into()));
    // The sampler lives on.
    assert_eq!(sampler.sample(good[0].clone(), &mut |_| {}).unwrap(), results[0]);
}

#[test]
fn jobs_without_steps_and_no_jobs_at_all_end_at_once() {
    let denoiser = ToyDenoiser::new(no_hook());
    let sampler = BatchingSampler::new(8).unwrap();
    let still = SampleJob { sigmas: [].into(), ..job(&denoiser, "p", 0, 1) };
    assert_eq!(sampler.sample(still.clone(), &mut |_| {}).unwrap(), still.latents);
    assert_eq!(sampler.sample_all(Vec::new(), &mut |_, _| {}).unwrap(), []);
    assert!(denoiser.passes().is_empty());
    let two_rows = Latents::concat(&[&still.latents, &still.latents]).unwrap();
    assert!(sampler.sample(SampleJob { latents: two_rows, ..still }, &mut |_| {}).is_err());
}
