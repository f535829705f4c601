//! From a request to pictures, once for every diffusion family.
//!
//! [`render`] is the whole way; its stages ([`plan`], [`encode_prompts`], [`encode_picture`], [`initial_latents`],
//! [`decode`]) stand alone, too, for callers that cache between them.

use crate::{Guidance, SampleJob, SampleService, SamplerKind, ScheduleKind, Sigmas, TorchRng, cover};
use crate::{first_step, sigmas};
use gen_core::{
    CancelFlag, Conditioning, ConditioningInput, Denoiser, DiffusionRecipe, Error, GenerationRequest, Image,
    LatentDistribution, Latents, ModelDescriptor, Progress, Result, Role, TextEncoder, Vae,
};
use std::sync::Arc;

/// Who has the components. Asking for one may load it.
pub trait Components {
    /// Prompts to conditioning.
    fn text_encoder(&self) -> Result<Arc<dyn TextEncoder>>;
    /// The diffusion network.
    fn denoiser(&self) -> Result<Arc<dyn Denoiser>>;
    /// Pictures to latents and back.
    fn vae(&self) -> Result<Arc<dyn Vae>>;
    /// A stage has ended, in whatever way, and its component may be dropped or kept; it can be asked for again.
    fn release(&self, role: Role);
    /// Identity of the denoiser's weights, for batching.
    fn model_key(&self) -> String;
}

/// What a request comes down to for one model: every default filled in. A take records it.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The sampler.
    pub sampler: SamplerKind,
    /// Name of the sigma schedule.
    pub scheduler: String,
    /// Steps asked for.
    pub steps: usize,
    /// Noise levels of the steps that run; empty when nothing is denoised.
    pub sigmas: Sigmas,
    /// How prompt and negative prompt are combined.
    pub guidance: Guidance,
    /// Strength of the reference picture, if there is one.
    pub strength: Option<f32>,
    /// The seed of every picture.
    pub seeds: Vec<u64>,
}

impl Plan {
    /// Steps that run: fewer than asked for when starting from a picture.
    pub fn run_steps(&self) -> usize {
        self.sigmas.len().saturating_sub(1)
    }

    /// Tensors that [`initial_latents`] draws from a seed's generator; see [`SampleJob::drawn`].
    pub fn drawn(&self) -> usize {
        if self.strength.is_some() { 2 } else { 1 }
    }
}

/// Checks a request against a model and fills in its defaults.
///
/// With a reference picture, the last `steps * strength` steps run, rounded up, as in diffusers. A strength of 0 runs
/// none: the picture comes back as the VAE sees it.
///
/// # Errors
/// The first value that the model can't serve, by field.
pub fn plan(model: &ModelDescriptor, recipe: &DiffusionRecipe, request: &GenerationRequest) -> Result<Plan> {
    model.validate(request)?;
    let capabilities = &model.capabilities;
    let steps = request.steps.unwrap_or(capabilities.default_steps) as usize;
    let sampler = match request.sampler.as_ref().or(capabilities.samplers.first()) {
        Some(name) => name.parse()?,
        None => SamplerKind::default(),
    };
    let schedule: ScheduleKind = match request.scheduler.as_ref().or(capabilities.schedulers.first()) {
        Some(name) => name.parse()?,
        None => ScheduleKind::default(),
    };
    let all = sigmas(schedule, recipe, (request.width, request.height), request.scheduler_shift, steps)?;
    let strength = reference(request).map(|(_, strength)| strength);
    let first = strength.map_or(0, |strength| first_step(steps, strength));
    let sigmas = if first < steps { all[first..].into() } else { Sigmas::from([]) };
    let guidance = Guidance::of(recipe.guidance, request, capabilities.default_true_cfg)?;
    let seeds = (0..request.count).map(|index| request.seed_of(index)).collect();
    Ok(Plan { sampler, scheduler: schedule.to_string(), steps, sigmas, guidance, strength, seeds })
}

/// The picture that a request starts from, and the strength that holds for it.
fn reference(request: &GenerationRequest) -> Option<(&Arc<Image>, f32)> {
    request.conditioning.iter().find_map(|input| match input {
        ConditioningInput::Reference { image, strength } => Some((image, request.strength.unwrap_or(*strength))),
        _ => None,
    })
}

/// The prompt, and the negative prompt when guidance needs it (`""` when there is none).
///
/// # Errors
/// As [`TextEncoder::encode`].
pub fn encode_prompts(
    encoder: &dyn TextEncoder,
    request: &GenerationRequest,
    guidance: &Guidance,
) -> Result<(Conditioning, Option<Conditioning>)> {
    let positive = encoder.encode(&request.prompt, &request.cancel)?;
    let negative = match guidance.is_on() {
        true => Some(encoder.encode(&request.negative_prompt, &request.cancel)?),
        false => None,
    };
    Ok((positive, negative))
}

/// The latent distribution of `image` at `width` x `height`; see [`cover`] for pictures of another size.
///
/// # Errors
/// What the VAE gives, and [`Error::NonFinite`] when it isn't finite.
pub fn encode_picture(
    vae: &dyn Vae,
    image: &Image,
    (width, height): (u32, u32),
    cancel: &CancelFlag,
) -> Result<LatentDistribution> {
    let distribution = vae.encode(&cover(image, width, height)?, cancel)?;
    if !distribution.mean.is_finite() || !distribution.std.is_finite() {
        return Err(Error::NonFinite { stage: "vae", step: None });
    }
    Ok(distribution)
}

/// Shape of one row of latents for a request.
pub fn latent_shape(recipe: &DiffusionRecipe, width: u32, height: u32) -> [usize; 4] {
    let side = |pixels: u32| pixels as usize / recipe.latent_factor;
    [1, recipe.latent_channels, side(height), side(width)]
}

/// The latents that sampling starts from.
///
/// Noise comes from the seed's generator. With a reference picture, that generator first draws the sample of the VAE's
/// posterior and then the noise that is mixed in at the first sigma, as diffusers' image-to-image pipeline does.
///
/// # Errors
/// The picture's latents have another shape than the noise.
pub fn initial_latents(
    recipe: &DiffusionRecipe,
    request: &GenerationRequest,
    plan: &Plan,
    picture: Option<&LatentDistribution>,
    seed: u64,
) -> Result<Latents> {
    let shape = latent_shape(recipe, request.width, request.height);
    let mut rng = TorchRng::new(seed);
    let Some(picture) = picture else {
        return rng.randn(&shape);
    };
    if picture.mean.shape() != shape || picture.std.shape() != shape {
        return Err(Error::Backend(format!("the picture's latents are {:?}, not {shape:?}", picture.mean.shape())));
    }
    let Some(&sigma) = plan.sigmas.first() else {
        return Ok(picture.mean.clone());
    };
    let posterior = rng.randn(&shape)?;
    let noise = rng.randn(&shape)?;
    let clean = picture.mean.data().iter().zip(picture.std.data()).zip(posterior.data()).map(|((m, s), z)| m + s * z);
    let mixed = clean.zip(noise.data()).map(|(x, n)| sigma * n + (1.0 - sigma) * x);
    Latents::new(shape.to_vec(), mixed.collect())
}

/// The pictures of several rows of latents, one by one.
///
/// # Errors
/// What the VAE gives.
pub fn decode(vae: &dyn Vae, rows: &[Latents], cancel: &CancelFlag) -> Result<Vec<Image>> {
    let picture = |row: &Latents| {
        cancel.check()?;
        vae.decode(row, cancel)
    };
    rows.iter().map(picture).collect()
}

/// Releases a component when the stage that uses it ends, with an error, too.
struct Stage<'a> {
    components: &'a dyn Components,
    role: Role,
}

impl<'a> Stage<'a> {
    /// Cancel is looked at first, and the load reported.
    fn enter(
        components: &'a dyn Components,
        role: Role,
        cancel: &CancelFlag,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        cancel.check()?;
        progress(Progress::Loading(match role {
            Role::TextEncoder => "text encoder",
            Role::Denoiser => "diffusion model",
            _ => "vae",
        }));
        Ok(Self { components, role })
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        self.components.release(self.role);
    }
}

/// Renders a request: picture `i` of `count` uses `seed + i` and equals the single render with that seed, since each is a
/// job of its own.
///
/// # Errors
/// What [`plan`] refuses, and whatever a component or the sample service gives.
pub fn render(
    model: &ModelDescriptor,
    recipe: &DiffusionRecipe,
    components: &dyn Components,
    sampler: &dyn SampleService,
    request: &GenerationRequest,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Image>> {
    let plan = plan(model, recipe, request)?;
    let cancel = &request.cancel;
    let prompts = {
        let _stage = Stage::enter(components, Role::TextEncoder, cancel, progress)?;
        let encoder = components.text_encoder()?;
        progress(Progress::Encoding);
        encode_prompts(&*encoder, request, &plan.guidance)?
    };
    let picture = match reference(request) {
        None => None,
        Some((image, _)) => {
            let _stage = Stage::enter(components, Role::Vae, cancel, progress)?;
            let vae = components.vae()?;
            progress(Progress::Encoding);
            Some(encode_picture(&*vae, image, (request.width, request.height), cancel)?)
        }
    };
    let start = |seed: &u64| initial_latents(recipe, request, &plan, picture.as_ref(), *seed);
    let mut latents = plan.seeds.iter().map(start).collect::<Result<Vec<_>>>()?;
    if plan.run_steps() > 0 {
        let _stage = Stage::enter(components, Role::Denoiser, cancel, progress)?;
        let jobs = jobs(components, request, &plan, &prompts, latents)?;
        latents = sample(sampler, jobs, plan.run_steps(), progress)?;
    }
    let _stage = Stage::enter(components, Role::Vae, cancel, progress)?;
    let vae = components.vae()?;
    progress(Progress::Decoding);
    decode(&*vae, &latents, cancel)
}

/// One job a picture.
fn jobs(
    components: &dyn Components,
    request: &GenerationRequest,
    plan: &Plan,
    (positive, negative): &(Conditioning, Option<Conditioning>),
    latents: Vec<Latents>,
) -> Result<Vec<SampleJob>> {
    let denoiser = components.denoiser()?;
    let model_key = components.model_key();
    let job = |(latents, seed): (Latents, &u64)| SampleJob {
        denoiser: Arc::clone(&denoiser),
        model_key: model_key.clone(),
        latents,
        positive: positive.clone(),
        negative: negative.clone(),
        guidance: plan.guidance,
        sigmas: Arc::clone(&plan.sigmas),
        sampler: plan.sampler,
        seed: *seed,
        drawn: plan.drawn(),
        previews: request.previews,
        cancel: request.cancel.clone(),
    };
    Ok(latents.into_iter().zip(&plan.seeds).map(job).collect())
}

/// Runs the jobs and adds their steps up.
fn sample(
    sampler: &dyn SampleService,
    jobs: Vec<SampleJob>,
    steps: usize,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Latents>> {
    let mut done = vec![0; jobs.len()];
    let total = steps * jobs.len();
    progress(Progress::Step { current: 0, total, preview: None });
    sampler.sample_all(jobs, &mut |index, report| {
        // Each job starts with a step 0; the one above stands for all.
        if report.step > 0 {
            done[index] = report.step;
            progress(Progress::Step { current: done.iter().sum(), total, preview: report.preview });
        }
    })
}
