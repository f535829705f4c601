//! The pipeline over a toy model: numbers against arithmetic by hand, order of progress, cancel at every stage, and
//! what is held when.

#![allow(clippy::unwrap_used)] // in the tests' helpers too

mod common;

use common::*;
use gen_core::*;
use sampling::pipeline::{self, plan};
use sampling::{
    BatchingSampler, DiffusionGenerator, InlineSampler, LatentMask, Origin, SampleJob, SampleService, SamplerKind,
    Start, TorchRng, start,
};
use std::sync::{Arc, Mutex};

fn open(model: ToyModel, offload: OffloadPolicy) -> DiffusionGenerator {
    let cancel = CancelFlag::new();
    DiffusionGenerator::open(Arc::new(model), offload, &LoadContext { cancel: &cancel }).unwrap()
}

fn request() -> GenerationRequest {
    GenerationRequest { prompt: "four".into(), width: 8, height: 8, seed: 11, ..Default::default() }
}

fn images(output: GenerationOutput) -> Vec<Image> {
    match output {
        GenerationOutput::Images(images) => images,
        other => panic!("{other:?}"),
    }
}

fn render(generator: &DiffusionGenerator, request: &GenerationRequest) -> Vec<Image> {
    images(generator.generate(request, &mut |_| {}).unwrap())
}

fn grey(side: u32, value: u8) -> Arc<Image> {
    Arc::new(Image::new(side, side, vec![value; (side * side * 3) as usize]).unwrap())
}

/// Progress as words.
fn word(progress: &Progress) -> String {
    match progress {
        Progress::Loading(what) => format!("loading {what}"),
        Progress::Encoding => "encoding".into(),
        Progress::Step { current, total, .. } => format!("step {current}/{total}"),
        Progress::Decoding => "decoding".into(),
    }
}

#[test]
fn every_picture_of_a_batch_equals_its_single_render() {
    let reference = vec![ConditioningInput::Reference { image: grey(8, 200), strength: 0.6 }];
    for sampler in KNOWN_SAMPLERS {
        for conditioning in [Vec::new(), reference.clone()] {
            let batch = GenerationRequest {
                count: 4,
                sampler: Some((*sampler).into()),
                true_cfg: Some(2.0),
                negative_prompt: "no".into(),
                seed: u64::MAX - 1,
                conditioning,
                ..request()
            };
            let inline = open(ToyModel::new(), OffloadPolicy::Resident);
            let batching =
                open(ToyModel::new(), OffloadPolicy::Resident).with_sampler(Arc::new(BatchingSampler::new(8).unwrap()));
            let all = render(&inline, &batch);
            assert_eq!(render(&batching, &batch), all, "{sampler}: batched");
            for (index, image) in all.iter().enumerate() {
                // Seeds wrap around.
                let single = GenerationRequest { count: 1, seed: batch.seed_of(index as u32), ..batch.clone() };
                assert_eq!(render(&inline, &single)[0], *image, "{sampler}: picture {index}");
            }
            assert_ne!(all[0], all[1], "{sampler}");
        }
    }
}

#[test]
fn latents_equal_arithmetic_by_hand() {
    let model = ToyModel::new();
    let request = GenerationRequest {
        steps: Some(2),
        true_cfg: Some(2.0),
        negative_prompt: "negative".into(),
        scheduler_shift: Some(1.0),
        ..request()
    };
    let plan = plan(&model.descriptor, &model.recipe, &request).unwrap();
    assert_eq!(&plan.sigmas[..], [1.0, 0.5, 0.0]);
    let start = start(&[1, 1, 8, 8], plan.first_sigma(), Origin::Noise, request.seed).unwrap();
    assert_eq!((start.drawn, &start.clean), (1, &None));
    let start = start.latents;
    assert_eq!(start, TorchRng::new(11).randn(&[1, 1, 8, 8]).unwrap());
    let denoiser = ToyDenoiser::new(no_hook());
    let mut job = job(&denoiser, "four", 11, 1);
    job.latents = start.clone();
    job.negative = Some(conditioning("negative"));
    job.guidance = plan.guidance;
    job.sigmas = plan.sigmas.clone();
    job.previews = true;
    let mut previews = Vec::new();
    let got = InlineSampler.sample(job, &mut |report| previews.extend(report.preview)).unwrap();
    // positive + 2 * (positive - negative), prompts of 4 and 8 letters, each 0.01.
    let velocity = |x: f64, sigma: f64| x.tanh() * sigma + 0.04 + 2.0 * (0.04 - 0.08);
    for (index, x) in start.data().iter().enumerate() {
        let x = f64::from(*x);
        let half = x - 0.5 * velocity(x, 1.0);
        let end = half - 0.5 * velocity(half, 0.5);
        assert!((f64::from(got.data()[index]) - end).abs() < 1e-6);
        assert!((f64::from(previews[0].data()[index]) - (x - velocity(x, 1.0))).abs() < 1e-6);
        assert!((f64::from(previews[1].data()[index]) - end).abs() < 1e-6);
    }
    assert_eq!(denoiser.passes().len(), 4);
}

#[test]
fn guidance_runs_only_where_it_is_on() {
    let negatives = |recipe, true_cfg, truncation| {
        let mut model = ToyModel::new();
        model.recipe.guidance = recipe;
        let request = GenerationRequest { true_cfg, cfg_truncation: truncation, ..request() };
        let plan = plan(&model.descriptor, &model.recipe, &request).unwrap();
        let denoiser = ToyDenoiser::new(no_hook());
        let mut job = job(&denoiser, "p", 1, 1);
        job.negative = Some(conditioning("n"));
        job.guidance = plan.guidance;
        job.sigmas = plan.sigmas;
        InlineSampler.sample(job, &mut |_| {}).unwrap();
        denoiser.passes().iter().filter(|(_, prompts)| prompts == &["n"]).count()
    };
    use GuidanceRecipe::{Extrapolate, Interpolate};
    assert_eq!(negatives(Extrapolate, None, 1.0), 0);
    assert_eq!(negatives(Extrapolate, Some(0.0), 1.0), 0);
    assert_eq!(negatives(Extrapolate, Some(0.5), 1.0), 4);
    assert_eq!(negatives(Interpolate, Some(1.0), 1.0), 0);
    assert_eq!(negatives(Interpolate, Some(1.5), 1.0), 4);
    // Sigmas 1, 0.9, 0.75, 0.5: the model's time is past 0.2 in the last two.
    assert_eq!(negatives(Extrapolate, Some(4.0), 0.2), 2);
    // Above 1, truncation is off.
    assert_eq!(negatives(Extrapolate, Some(4.0), 1.5), 4);
}

#[test]
fn an_empty_negative_prompt_is_encoded_and_only_with_guidance() {
    for (true_cfg, negative, expected) in [
        (0.0, "x", vec!["encode 'four'"]),
        (3.0, "", vec!["encode 'four'", "encode ''"]),
        (3.0, "x", vec!["encode 'four'", "encode 'x'"]),
    ] {
        let model = ToyModel::new();
        let log = model.log.clone();
        let generator = open(model, OffloadPolicy::Resident);
        let request = GenerationRequest { true_cfg: Some(true_cfg), negative_prompt: negative.into(), ..request() };
        render(&generator, &request);
        let encoded: Vec<String> = log.take().into_iter().filter(|l| l.starts_with("encode")).collect();
        assert_eq!(encoded, expected);
    }
}

#[test]
fn progress_comes_before_the_work_and_in_order() {
    let generator = open(ToyModel::new(), OffloadPolicy::Resident);
    let mut words = Vec::new();
    let mut previews = 0;
    let plain = GenerationRequest { count: 2, steps: Some(2), previews: true, ..request() };
    generator
        .generate(&plain, &mut |progress| {
            previews += usize::from(matches!(&progress, Progress::Step { preview: Some(_), .. }));
            words.push(word(&progress));
        })
        .unwrap();
    let expected = "loading text encoder, encoding, loading diffusion model, step 0/4, step 1/4, step 2/4, step 3/4, \
                    step 4/4, loading vae, decoding";
    assert_eq!(words.join(", "), expected);
    assert_eq!(previews, 4);

    let image = vec![ConditioningInput::Reference { image: grey(8, 90), strength: 0.5 }];
    let from_image = GenerationRequest { conditioning: image, ..request() };
    words.clear();
    generator.generate(&from_image, &mut |progress| words.push(word(&progress))).unwrap();
    let expected = "loading text encoder, encoding, loading vae, encoding, loading diffusion model, step 0/2, step 1/2, \
                    step 2/2, loading vae, decoding";
    assert_eq!(words.join(", "), expected);
}

#[test]
fn a_picture_is_started_from_as_the_reference_does() {
    let model = ToyModel::new();
    let image = grey(8, 255);
    let with = |strength, seed| {
        let conditioning = vec![ConditioningInput::Reference { image: Arc::clone(&image), strength }];
        let request = GenerationRequest { conditioning, seed, ..request() };
        let plan = plan(&model.descriptor, &model.recipe, &request).unwrap();
        let (mean, std) = (vec![1.0; 64], vec![0.25; 64]);
        let of = |values| Latents::new(vec![1, 1, 8, 8], values).unwrap();
        let picture = LatentDistribution { mean: of(mean), std: of(std) };
        let started = start(&[1, 1, 8, 8], plan.first_sigma(), Origin::Picture(&picture), seed).unwrap();
        (plan, started)
    };
    let (plan, Start { latents, drawn, .. }) = with(0.5, 3);
    assert_eq!((plan.steps, plan.run_steps(), plan.strength, drawn), (4, 2, Some(0.5), 2));
    let mut rng = TorchRng::new(3);
    let (posterior, noise) = (rng.randn(&[1, 1, 8, 8]).unwrap(), rng.randn(&[1, 1, 8, 8]).unwrap());
    let sigma = plan.sigmas[0];
    for ((x, z), n) in latents.data().iter().zip(posterior.data()).zip(noise.data()) {
        assert!((x - (sigma * n + (1.0 - sigma) * (1.0 + 0.25 * z))).abs() < 1e-6);
    }
    // A little strength runs one step; none runs none and gives the picture back as the VAE has it.
    assert_eq!(with(0.01, 3).0.run_steps(), 1);
    let (plan, Start { latents, .. }) = with(0.0, 3);
    assert_eq!((plan.run_steps(), latents.data()), (0, &[1.0; 64][..]));

    let log = model.log.clone();
    let generator = open(ToyModel::new(), OffloadPolicy::Resident);
    let conditioning = vec![ConditioningInput::Reference { image: grey(8, 77), strength: 0.9 }];
    let request = GenerationRequest { conditioning, strength: Some(0.0), ..request() };
    assert_eq!(render(&generator, &request), [(*grey(8, 77)).clone()], "the request's strength counts");
    assert!(log.take().is_empty());
}

#[test]
fn a_picture_of_another_size_is_fitted() {
    let generator = open(ToyModel::new(), OffloadPolicy::Resident);
    let conditioning = vec![ConditioningInput::Reference { image: grey(31, 77), strength: 0.0 }];
    let fitted = render(&generator, &GenerationRequest { conditioning, ..request() });
    assert_eq!(fitted, [(*grey(8, 77)).clone()]);
}

#[test]
fn a_broken_prediction_ends_the_render_with_its_step() {
    let generator = open(ToyModel::new(), OffloadPolicy::Resident);
    let poisoned = GenerationRequest { prompt: "poison".into(), ..request() };
    let error = generator.generate(&poisoned, &mut |_| {}).unwrap_err();
    assert_eq!(error, Error::NonFinite { stage: "denoiser", step: Some(1) });
    // Guided by poison from the start, but truncated to nothing: still the first step.
    let guided = GenerationRequest { negative_prompt: "poison".into(), true_cfg: Some(1.0), ..request() };
    let error = generator.generate(&guided, &mut |_| {}).unwrap_err();
    assert_eq!(error, Error::NonFinite { stage: "denoiser", step: Some(1) });
}

/// Cancels when progress reaches each of its reports, and once in the middle of each stage's own work.
#[test]
fn cancel_is_honoured_at_every_stage() {
    let image = vec![ConditioningInput::Reference { image: grey(8, 90), strength: 0.5 }];
    let base = GenerationRequest { conditioning: image, count: 2, ..request() };
    for batching in [false, true] {
        let mut reports = 0;
        for stop_at in 0.. {
            let model = ToyModel::new();
            let log = model.log.clone();
            let mut generator = open(model, OffloadPolicy::Sequential);
            if batching {
                generator = generator.with_sampler(Arc::new(BatchingSampler::new(4).unwrap()));
            }
            let request = GenerationRequest { cancel: CancelFlag::new(), ..base.clone() };
            let (mut seen, mut last) = (0, String::new());
            let outcome = generator.generate(&request, &mut |progress| {
                assert!(!request.cancel.is_cancelled(), "{} after the cancel at {last}", word(&progress));
                last = word(&progress);
                if seen == stop_at {
                    request.cancel.cancel();
                }
                seen += 1;
            });
            if !request.cancel.is_cancelled() {
                reports = seen;
                outcome.unwrap();
                break;
            }
            assert_eq!(outcome.unwrap_err(), Error::Cancelled, "at {last}");
            // Nothing stays behind: what was loaded was dropped. (A batch lets its row go when the pass has stopped,
            // which its thread is waited for here.)
            drop(generator);
            let log = log.take();
            let count = |what: &str| log.iter().filter(|line| line.starts_with(what)).count();
            assert_eq!(count("load"), count("drop"), "at {last}: {log:?}");
        }
        assert_eq!(reports, 12);
    }
    for (stage, cancelled_in) in [("encode", 0), ("decode", 1)] {
        let mut model = ToyModel::new();
        let cancel = CancelFlag::new();
        let flag = cancel.clone();
        model.vae_hook = Arc::new(move |which| {
            if which == cancelled_in {
                flag.cancel();
            }
            Ok(())
        });
        let generator = open(model, OffloadPolicy::Sequential);
        let request = GenerationRequest { cancel, ..base.clone() };
        assert_eq!(generator.generate(&request, &mut |_| {}).unwrap_err(), Error::Cancelled, "in {stage}");
    }
}

#[test]
fn sequential_holds_one_component_at_a_time_and_resident_loads_at_once() {
    let image = vec![ConditioningInput::Reference { image: grey(8, 90), strength: 0.5 }];
    let from_image = GenerationRequest { conditioning: image, ..request() };

    let model = ToyModel::new();
    let log = model.log.clone();
    let generator = open(model, OffloadPolicy::Sequential);
    assert!(log.take().is_empty(), "nothing is loaded before it is needed");
    let held = |request: &GenerationRequest| {
        render(&generator, request);
        let lines = log.take().into_iter().filter(|line| line.starts_with("load") || line.starts_with("drop"));
        lines.collect::<Vec<_>>().join(", ")
    };
    let plain = "load text encoder, drop text encoder, load denoiser, drop denoiser, load vae, drop vae";
    assert_eq!(held(&request()), plain);
    let with_image = "load text encoder, drop text encoder, load vae, drop vae, load denoiser, drop denoiser, load vae, \
                      drop vae";
    assert_eq!(held(&from_image), with_image);

    let model = ToyModel::new();
    let log = model.log.clone();
    let generator = open(model, OffloadPolicy::Resident);
    assert_eq!(log.take(), ["load text encoder", "load denoiser", "load vae"]);
    render(&generator, &from_image);
    assert!(log.take().iter().all(|line| !line.starts_with("load") && !line.starts_with("drop")));
}

#[test]
fn an_error_leaves_nothing_loaded_behind_in_sequence() {
    let mut model = ToyModel::new();
    let log = model.log.clone();
    model.denoiser_hook = Arc::new(|number| match number {
        2 => Err(Error::Backend("the device is lost".into())),
        _ => Ok(()),
    });
    let generator = open(model, OffloadPolicy::Sequential);
    let error = generator.generate(&request(), &mut |_| {}).unwrap_err();
    assert_eq!(error, Error::Backend("the device is lost".into()));
    assert_eq!(log.take().last().unwrap(), "drop denoiser");
}

#[test]
fn a_cancelled_load_fails_at_open() {
    let cancel = CancelFlag::new();
    cancel.cancel();
    let context = LoadContext { cancel: &cancel };
    let model = Arc::new(ToyModel::new());
    let resident = DiffusionGenerator::open(Arc::clone(&model) as _, OffloadPolicy::Resident, &context);
    assert_eq!(resident.err(), Some(Error::Cancelled));
    assert!(DiffusionGenerator::open(model, OffloadPolicy::Sequential, &context).is_ok());
}

#[test]
fn a_plan_holds_what_a_render_needs_to_be_repeated() {
    let mut model = ToyModel::new();
    model.descriptor.capabilities.samplers = vec!["heun".into(), "euler".into()];
    model.descriptor.capabilities.schedulers = vec!["karras".into(), "simple".into()];
    let of = |request: &GenerationRequest| plan(&model.descriptor, &model.recipe, request);
    let defaults = of(&GenerationRequest { count: 2, seed: u64::MAX, ..request() }).unwrap();
    assert_eq!((defaults.sampler.as_str(), defaults.scheduler.as_str()), ("heun", "karras"));
    assert_eq!((defaults.steps, defaults.seeds.as_slice()), (4, &[u64::MAX, 0][..]));
    let again = GenerationRequest {
        steps: Some(defaults.steps as u32),
        sampler: Some(defaults.sampler.to_string()),
        scheduler: Some(defaults.scheduler.clone()),
        ..request()
    };
    assert_eq!(of(&again).unwrap().sigmas, defaults.sigmas);
    for (bad, field) in [
        (GenerationRequest { sampler: Some("ddim".into()), ..request() }, "sampler"),
        (GenerationRequest { scheduler: Some("beta".into()), ..request() }, "scheduler"),
        (GenerationRequest { true_cfg: Some(f32::NAN), ..request() }, "true_cfg"),
        (GenerationRequest { width: 15, ..request() }, "width"),
        (
            GenerationRequest { scheduler: Some("simple".into()), scheduler_shift: Some(1e-30), ..request() },
            "scheduler_shift",
        ),
    ] {
        match of(&bad).unwrap_err() {
            Error::InvalidRequest { field: named, .. } => assert_eq!(named, field),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_masked_render_keeps_black_pixels_bit_for_bit_and_paints_white_ones() {
    let picture: Vec<u8> = (0..64u8).flat_map(|i| [i * 3, 255 - i, i]).collect();
    let picture = Arc::new(Image::new(8, 8, picture).unwrap());
    // The right half is white, with one grey column before it.
    let mask: Vec<u8> = (0..64).flat_map(|i| [[0, 0, 0, 100, 255, 255, 255, 255][i % 8]; 3]).collect();
    let mask = Arc::new(Image::new(8, 8, mask).unwrap());
    let generator = open(ToyModel::new(), OffloadPolicy::Resident);
    let inputs = |mask: Option<&Arc<Image>>| {
        let reference = ConditioningInput::Reference { image: Arc::clone(&picture), strength: 1.0 };
        std::iter::once(reference).chain(mask.map(|mask| ConditioningInput::Mask(Arc::clone(mask)))).collect()
    };
    let of = |mask, count| GenerationRequest { conditioning: inputs(mask), count, ..request() };
    let images = render(&generator, &of(Some(&mask), 2));
    let free = render(&generator, &of(None, 1));
    for image in &images {
        for (index, (got, kept)) in image.pixels().chunks(3).zip(picture.pixels().chunks(3)).enumerate() {
            match index % 8 {
                0..=2 => assert_eq!(got, kept, "{index}"),
                4.. => assert_ne!(got, kept, "{index}"),
                _ => {}
            }
        }
    }
    assert_ne!(images[0], images[1]);
    // The toy's cells don't see each other, so a white mask is no mask at all.
    let white = Arc::new(Image::new(4, 4, vec![255; 48]).unwrap());
    assert_eq!(render(&generator, &of(Some(&white), 1)), free);
    let alone = GenerationRequest { conditioning: vec![ConditioningInput::Mask(mask)], ..request() };
    assert!(generator.validate(&alone).unwrap_err().to_string().contains("needs a picture"));
}

#[test]
fn held_latents_end_at_the_picture_with_every_sampler() {
    let denoiser = ToyDenoiser::new(no_hook());
    let clean = TorchRng::new(77).randn(&[1, 1, 4, 4]).unwrap();
    let repaint: Vec<f32> = (0..16).map(|cell| [0.0, 1.0, 0.5, 0.0][cell % 4]).collect();
    let mask = Arc::new(LatentMask::new(clean.clone(), repaint).unwrap());
    for sampler in SamplerKind::ALL {
        let Start { latents, drawn, .. } = start(&[1, 1, 4, 4], Some(1.0), Origin::Latents(&clean), 5).unwrap();
        assert_eq!(drawn, 1);
        let free = SampleJob { latents, sampler, drawn, ..job(&denoiser, "p", 5, 6) };
        let held = SampleJob { mask: Some(Arc::clone(&mask)), ..free.clone() };
        let run = |job| InlineSampler.sample(job, &mut |_| {}).unwrap();
        let (free, held) = (run(free), run(held));
        for (cell, (held, free)) in held.data().iter().zip(free.data()).enumerate() {
            match cell % 4 {
                0 | 3 => assert_eq!(*held, clean.data()[cell], "{sampler}"),
                // The toy's cells don't see each other.
                1 => assert_eq!(held, free, "{sampler}"),
                _ => assert!(held != free && held.is_finite(), "{sampler}"),
            }
        }
    }
    let mut other_shape = job(&denoiser, "p", 5, 6);
    other_shape.mask = Some(mask);
    other_shape.latents = Latents::new(vec![1, 1, 2, 8], other_shape.latents.into_data()).unwrap();
    assert!(InlineSampler.sample(other_shape, &mut |_| {}).is_err());
}

/// Others may supply components of their own.
#[test]
fn a_render_runs_on_components_from_anywhere() {
    struct Shelf(ToyModel, Mutex<Vec<Role>>);
    impl pipeline::Components for Shelf {
        fn text_encoder(&self) -> Result<Arc<dyn TextEncoder>> {
            self.0.load_text_encoder(&LoadContext { cancel: &CancelFlag::new() })
        }
        fn denoiser(&self) -> Result<Arc<dyn Denoiser>> {
            self.0.load_denoiser(&LoadContext { cancel: &CancelFlag::new() })
        }
        fn vae(&self) -> Result<Arc<dyn Vae>> {
            self.0.load_vae(&LoadContext { cancel: &CancelFlag::new() })
        }
        fn release(&self, role: Role) {
            self.1.lock().unwrap().push(role);
        }
        fn model_key(&self) -> String {
            "shelf".into()
        }
    }
    let shelf = Shelf(ToyModel::new(), Mutex::default());
    let images =
        pipeline::render(&shelf.0.descriptor, &shelf.0.recipe, &shelf, &InlineSampler, &request(), &mut |_| {});
    assert_eq!(images.unwrap(), render(&open(ToyModel::new(), OffloadPolicy::Resident), &request()));
    assert_eq!(*shelf.1.lock().unwrap(), [Role::TextEncoder, Role::Denoiser, Role::Vae]);
}
