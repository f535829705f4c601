//! Whole renders against diffusers' pipelines, stage by stage: tokens, embeddings, every step's latents, the picture.

#![allow(clippy::unwrap_used)] // in the tests' helpers too

mod common;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use candle_core::{Device, Tensor};
use common::{Golden, close, golden, relative_error, tiny_folder};
use conformance::recipe::{Format, fixtures};
use gen_core::{
    CancelFlag, Conditioning, ConditioningInput, Denoiser, DiffusionModel, GenerationOutput, GenerationRequest,
    Generator, Image, Latents, LoadContext, LoadSpec, OffloadPolicy, Precision, Quant, Result, Role, StepContext, Vae,
    WeightsSource,
};
use sampling::pipeline::{encode_prompts, latent_shape, plan};
use sampling::{DiffusionGenerator, InlineSampler, Origin, SampleJob, SampleService, start};
use serde_json::Value;
use z_image::{Caption, ZImageModel, z_image_turbo};

/// Relative error that a stage may have in f32, and the picture's least signal to noise.
const EXACT: f64 = 1e-4;
const PSNR: f64 = 50.0;

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../assets/demo")
}

fn open(folder: &Path, precision: Precision) -> ZImageModel {
    let spec = LoadSpec::new(WeightsSource::Dir(folder.to_owned())).with_precision(precision);
    ZImageModel::open(&z_image_turbo(), &spec).unwrap()
}

fn picture(path: &Path) -> Image {
    let decoded = image::open(path).unwrap().to_rgb8();
    Image::new(decoded.width(), decoded.height(), decoded.into_raw()).unwrap()
}

fn psnr(got: &Image, want: &Image) -> f64 {
    assert_eq!((got.width(), got.height()), (want.width(), want.height()));
    let square = |(a, b): (&u8, &u8)| (f64::from(*a) - f64::from(*b)).powi(2);
    let mean = got.pixels().iter().zip(want.pixels()).map(square).sum::<f64>() / got.pixels().len() as f64;
    if mean == 0.0 { f64::INFINITY } else { 10.0 * (255.0 * 255.0 / mean).log10() }
}

fn tensor(latents: &Latents) -> Tensor {
    Tensor::from_slice(latents.data(), latents.shape(), &Device::Cpu).unwrap()
}

/// A case of `golden.json`, as a request.
fn request(case: &Value, fixture: &Path) -> GenerationRequest {
    let number = |key: &str| case[key].as_f64().unwrap();
    let mut request = GenerationRequest {
        prompt: case["prompt"].as_str().unwrap().to_owned(),
        negative_prompt: case["negative_prompt"].as_str().unwrap_or_default().to_owned(),
        width: number("width") as u32,
        height: number("height") as u32,
        seed: case["seed"].as_u64().unwrap(),
        steps: Some(number("steps") as u32),
        true_cfg: Some(number("guidance_scale") as f32),
        cfg_normalization: number("cfg_normalization") as f32,
        cfg_truncation: number("cfg_truncation") as f32,
        ..GenerationRequest::default()
    };
    if let (Some(strength), Some(file)) = (case["strength"].as_f64(), case["image"].as_str()) {
        let image = Arc::new(picture(&fixture.join(file)));
        request.conditioning = vec![ConditioningInput::Reference { image, strength: strength as f32 }];
    }
    request
}

/// Keeps what each step starts from.
struct Recorder {
    inner: Arc<dyn Denoiser>,
    seen: Mutex<Vec<(f32, Latents)>>,
}

impl Denoiser for Recorder {
    fn predict(&self, x: &Latents, sigma: f32, c: &[&Conditioning], context: &StepContext<'_>) -> Result<Latents> {
        let mut seen = self.seen.lock().unwrap();
        if seen.last().is_none_or(|(last, _)| *last != sigma) {
            seen.push((sigma, x.clone()));
        }
        drop(seen);
        self.inner.predict(x, sigma, c, context)
    }

    fn resident_bytes(&self) -> u64 {
        self.inner.resident_bytes()
    }
}

/// Latents before the first step and after each, in `model`'s own arithmetic, and the captions.
fn sample(model: &ZImageModel, request: &GenerationRequest) -> (Vec<Latents>, Conditioning, Option<Conditioning>) {
    let cancel = CancelFlag::new();
    let plan = plan(model.descriptor(), model.recipe(), request).unwrap();
    let encoder = model.text_encoder(&cancel).unwrap();
    let (positive, negative) = encode_prompts(&encoder, request, &plan.guidance).unwrap();
    let distribution = request.conditioning.first().map(|input| match input {
        ConditioningInput::Reference { image, .. } => model.vae(&cancel).unwrap().encode(image, &cancel).unwrap(),
        other => panic!("{other:?} is in no golden file"),
    });
    let shape = latent_shape(model.recipe(), request.width, request.height);
    let origin = distribution.as_ref().map_or(Origin::Noise, Origin::Picture);
    let start = start(&shape, plan.first_sigma(), origin, request.seed).unwrap();
    let recorder = Arc::new(Recorder { inner: Arc::new(model.denoiser(&cancel).unwrap()), seen: Mutex::default() });
    let job = SampleJob {
        denoiser: recorder.clone(),
        model_key: model.fingerprint().to_owned(),
        latents: start.latents,
        positive: positive.clone(),
        negative: negative.clone(),
        guidance: plan.guidance,
        sigmas: plan.sigmas.clone(),
        sampler: plan.sampler,
        seed: request.seed,
        drawn: start.drawn,
        mask: None,
        previews: false,
        cancel,
    };
    let last = InlineSampler.sample(job, &mut |_| {}).unwrap();
    let mut all: Vec<Latents> = recorder.seen.lock().unwrap().drain(..).map(|(_, latents)| latents).collect();
    all.push(last);
    (all, positive, negative)
}

fn caption(conditioning: &Conditioning) -> &Tensor {
    &conditioning.downcast::<Caption>().unwrap().0
}

fn check_case(model: &ZImageModel, name: &str, case: &Value, fixture: &Path, golden: &Golden) {
    let file = case["file"].as_str().unwrap();
    let stage = |stage: &str| format!("{name} {file} {stage}");
    let request = request(case, fixture);
    let cancel = CancelFlag::new();

    let encoder = model.text_encoder(&cancel).unwrap();
    for (prompt, key) in [(&request.prompt, "input_ids"), (&request.negative_prompt, "negative_input_ids")] {
        if let Some(ids) = golden.get(key) {
            let want: Vec<u32> = ids.to_vec1::<i64>().unwrap().iter().map(|id| *id as u32).collect();
            assert_eq!(encoder.tokens(prompt).unwrap(), want, "{}", stage(key));
        }
    }

    let (latents, positive, negative) = sample(model, &request);
    close(&stage("embeddings"), caption(&positive), &golden["prompt_embeds"], EXACT);
    assert_eq!(negative.is_some(), golden.contains_key("negative_prompt_embeds"));
    if let Some(negative) = &negative {
        close(&stage("negative embeddings"), caption(negative), &golden["negative_prompt_embeds"], EXACT);
    }
    let start = relative_error(&tensor(&latents[0]), &golden["latents_init"]);
    assert!(start < if request.conditioning.is_empty() { 1e-6 } else { EXACT }, "{}: {start:e}", stage("start"));
    let mut worst = 0f64;
    for (index, latents) in latents.iter().enumerate().skip(1) {
        let error = relative_error(&tensor(latents), &golden[&format!("latents_step_{index:02}")]);
        assert!(error < EXACT, "{} {index}: {error:e}", stage("step"));
        worst = worst.max(error);
    }
    assert!(!golden.contains_key(&format!("latents_step_{:02}", latents.len())), "{}: too few steps", stage("step"));
    println!("{}: start {start:.1e}, worst of {} steps {worst:.1e}", stage("latents"), latents.len() - 1);

    let vae = model.vae(&cancel).unwrap();
    let last = latents.last().unwrap();
    if let Some(image) = golden.get("image") {
        close(&stage("image"), &vae.decode_raw(last, &cancel).unwrap(), image, EXACT);
    }
    let png = fixture.join(format!("{file}.png"));
    if png.exists() {
        let decibels = psnr(&vae.decode(last, &cancel).unwrap(), &picture(&png));
        println!("{}: {decibels:.1} dB", stage("picture"));
        assert!(decibels >= PSNR, "{}: {decibels} dB", stage("picture"));
    }
}

fn check_all(fixture: &str, folder: &Path) {
    let model = open(folder, Precision::F32);
    let path = fixtures().join(fixture);
    let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(path.join("golden.json")).unwrap()).unwrap();
    assert!(cases.len() >= 3);
    for case in &cases {
        check_case(&model, fixture, case, &path, &golden(fixture, case["file"].as_str().unwrap()));
    }
}

#[test]
fn the_demo_model_renders_like_the_reference() {
    check_all("demo-golden", &demo());
}

#[test]
fn a_second_geometry_renders_like_the_reference() {
    check_all("z-image-tiny", tiny_folder(Format::F32).path());
}

/// Embeddings, final latents and picture in bf16 against f32 on the same rounded weights.
#[test]
fn half_precision_stays_near() {
    let folder = tiny_folder(Format::Bf16);
    let path = fixtures().join("z-image-tiny");
    let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(path.join("golden.json")).unwrap()).unwrap();
    let want = golden("z-image-tiny", "bf16");
    let model = open(folder.path(), Precision::Bf16);
    for file in ["t2i", "cfg"] {
        let case = cases.iter().find(|case| case["file"] == file).unwrap();
        let (latents, positive, _) = sample(&model, &request(case, &path));
        let last = latents.last().unwrap();
        close(&format!("bf16 {file} latents"), &tensor(last), &want[&format!("{file}.f32.latents")], 2e-2);
        if let Some(embeddings) = want.get(&format!("{file}.f32.prompt_embeds")) {
            close(&format!("bf16 {file} embeddings"), caption(&positive), embeddings, 2e-2);
        }
        if let Some(image) = want.get(&format!("{file}.f32.image")) {
            let vae = model.vae(&CancelFlag::new()).unwrap();
            close(&format!("bf16 {file} image"), &vae.decode_raw(last, &CancelFlag::new()).unwrap(), image, 2e-2);
        }
    }
    let model = open(&demo(), Precision::Bf16);
    let path = fixtures().join("demo-golden");
    let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(path.join("golden.json")).unwrap()).unwrap();
    for file in ["golden_0", "golden_cfg"] {
        let case = cases.iter().find(|case| case["file"] == file).unwrap();
        let (latents, positive, _) = sample(&model, &request(case, &path));
        let want = golden("demo-golden", file);
        close(&format!("bf16 {file} embeddings"), caption(&positive), &want["prompt_embeds"], 2e-2);
        close(&format!("bf16 {file} latents"), &tensor(latents.last().unwrap()), &want["latents_step_09"], 2e-2);
    }
}

#[test]
fn eight_bits_halve_the_memory_and_keep_the_picture() {
    let spec = LoadSpec::new(WeightsSource::Dir(demo())).with_precision(Precision::F32);
    let whole = ZImageModel::open(&z_image_turbo(), &spec).unwrap();
    let model = ZImageModel::open(&z_image_turbo(), &spec.with_quant(Quant::Q8)).unwrap();
    for role in [Role::TextEncoder, Role::Denoiser] {
        let (held, before) = (model.footprint().bytes(role), whole.footprint().bytes(role));
        assert!(held < before * 2 / 5, "{role}: {held} of {before} bytes");
    }
    assert_eq!(model.footprint().bytes(Role::Vae), whole.footprint().bytes(Role::Vae));
    assert_ne!(model.fingerprint(), whole.fingerprint());
    let path = fixtures().join("demo-golden");
    let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(path.join("golden.json")).unwrap()).unwrap();
    for file in ["golden_0", "golden_1", "golden_cfg"] {
        let case = cases.iter().find(|case| case["file"] == file).unwrap();
        let want = golden("demo-golden", file);
        let (latents, positive, _) = sample(&model, &request(case, &path));
        close(&format!("int8 {file} embeddings"), caption(&positive), &want["prompt_embeds"], 3e-2);
        close(&format!("int8 {file} latents"), &tensor(latents.last().unwrap()), &want["latents_step_09"], 4e-2);
        let vae = model.vae(&CancelFlag::new()).unwrap();
        let image = vae.decode(latents.last().unwrap(), &CancelFlag::new()).unwrap();
        let decibels = psnr(&image, &picture(&path.join(file).with_extension("png")));
        println!("int8 {file}: {decibels:.1} dB");
        assert!(decibels >= 40.0, "{file}: {decibels} dB");
    }
}

#[test]
fn the_generator_gives_the_reference_picture_and_batches_equal_single_renders() {
    for offload in [OffloadPolicy::Resident, OffloadPolicy::Sequential] {
        let cancel = CancelFlag::new();
        let model = Arc::new(open(&demo(), Precision::F32));
        let generator = DiffusionGenerator::open(model, offload, &LoadContext { cancel: &cancel }).unwrap();
        let request = GenerationRequest {
            prompt: "a red apple".into(),
            width: 128,
            height: 128,
            seed: 1,
            steps: Some(9),
            ..GenerationRequest::default()
        };
        let render = |request: &GenerationRequest| match generator.generate(request, &mut |_| {}).unwrap() {
            GenerationOutput::Images(images) => images,
            other => panic!("{other:?}"),
        };
        let want = picture(&fixtures().join("demo-golden/golden_0.png"));
        let single = render(&request);
        assert!(psnr(&single[0], &want) >= PSNR);
        let batch = render(&GenerationRequest { count: 2, seed: 0, ..request.clone() });
        assert_eq!((batch.len(), &batch[1]), (2, &single[0]));
    }
}
