//! From a request to pictures, once for every diffusion family.
//!
//! [`render`] is the whole way; its stages ([`plan`], [`encode_prompts`], [`encode_picture`], [`start`](crate::start()),
//! [`decode`]) stand alone, too, for callers that cache between them.

use crate::{Guidance, LatentMask, Origin, SampleJob, SampleService, SamplerKind, ScheduleKind, Sigmas, Start};
use crate::{composite, cover, cover_mask, first_step, mask_cells, sigmas, start};
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

    /// The same from a picture: the last `steps * strength` steps run, rounded up, as in diffusers; none at strength 0.
    #[must_use]
    pub fn from_picture(mut self, strength: f32) -> Self {
        let first = first_step(self.steps, strength);
        self.sigmas = if first < self.steps { self.sigmas[first..].into() } else { Sigmas::from([]) };
        self.strength = Some(strength);
        self
    }

    /// The noise level that the first step starts from; `None` when no step runs.
    pub fn first_sigma(&self) -> Option<f32> {
        self.sigmas.first().copied()
    }
}

/// Checks a request against a model and fills in its defaults.
///
/// With a reference picture it is [`Plan::from_picture`]. A strength of 0 runs no step: the picture comes back as the VAE
/// sees it.
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
    let sigmas = sigmas(schedule, recipe, (request.width, request.height), request.scheduler_shift, steps)?;
    let guidance = Guidance::of(recipe.guidance, request, capabilities.default_true_cfg)?;
    let seeds = (0..request.count).map(|index| request.seed_of(index)).collect();
    let plan = Plan { sampler, scheduler: schedule.to_string(), steps, sigmas, guidance, strength: None, seeds };
    match reference(request) {
        Some((_, strength)) => Ok(plan.from_picture(strength)),
        None if mask(request).is_some() => {
            Err(Error::invalid("mask", "says which part of a picture to paint anew, so it needs a picture"))
        }
        None => Ok(plan),
    }
}

/// The mask of a request.
fn mask(request: &GenerationRequest) -> Option<&Arc<Image>> {
    request.conditioning.iter().find_map(|input| match input {
        ConditioningInput::Mask(mask) => Some(mask),
        _ => None,
    })
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

/// The latent distribution of a picture.
///
/// # Errors
/// What the VAE gives, and [`Error::NonFinite`] when it isn't finite.
pub fn encode_picture(vae: &dyn Vae, image: &Image, cancel: &CancelFlag) -> Result<LatentDistribution> {
    let distribution = vae.encode(image, cancel)?;
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
/// job of its own. A reference picture of another size is fitted with [`cover`]. With a mask, black pixels of the result
/// are those of that picture, bit for bit.
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
    let size = (request.width, request.height);
    let base = reference(request).map(|(image, _)| cover(image, size.0, size.1)).transpose()?;
    let mask = mask(request).map(|mask| cover_mask(mask, size.0, size.1)).transpose()?;
    let picture = match &base {
        None => None,
        Some(image) => {
            let _stage = Stage::enter(components, Role::Vae, cancel, progress)?;
            let vae = components.vae()?;
            progress(Progress::Encoding);
            Some(encode_picture(&*vae, image, cancel)?)
        }
    };
    let shape = latent_shape(recipe, size.0, size.1);
    let origin = picture.as_ref().map_or(Origin::Noise, Origin::Picture);
    let begin = |seed: &u64| start(&shape, plan.first_sigma(), origin, *seed);
    let starts = plan.seeds.iter().map(begin).collect::<Result<Vec<_>>>()?;
    let latents = if plan.run_steps() > 0 {
        let _stage = Stage::enter(components, Role::Denoiser, cancel, progress)?;
        let jobs = jobs(components, request, &plan, &prompts, (starts, mask.as_ref()))?;
        sample(sampler, jobs, plan.run_steps(), progress)?
    } else {
        starts.into_iter().map(|start| start.latents).collect()
    };
    let _stage = Stage::enter(components, Role::Vae, cancel, progress)?;
    let vae = components.vae()?;
    progress(Progress::Decoding);
    let images = decode(&*vae, &latents, cancel)?;
    match (&base, &mask) {
        (Some(base), Some(mask)) => images.iter().map(|image| composite(base, image, mask)).collect(),
        _ => Ok(images),
    }
}

/// One job a picture.
fn jobs(
    components: &dyn Components,
    request: &GenerationRequest,
    plan: &Plan,
    (positive, negative): &(Conditioning, Option<Conditioning>),
    (starts, mask): (Vec<Start>, Option<&Image>),
) -> Result<Vec<SampleJob>> {
    let network = Network { denoiser: components.denoiser()?, model_key: components.model_key() };
    let prompts = (positive.clone(), negative.clone());
    let watch = (request.previews, request.cancel.clone());
    let job = |(start, seed): (Start, &u64)| network.job(plan, start, *seed, prompts.clone(), mask, watch.clone());
    starts.into_iter().zip(&plan.seeds).map(job).collect()
}

/// A denoiser and who it is.
pub struct Network {
    /// The network.
    pub denoiser: Arc<dyn Denoiser>,
    /// See [`SampleJob::model_key`].
    pub model_key: String,
}

impl Network {
    /// The job of one row. `prompts` are the positive and negative one, `mask` is stretched over the latents, and
    /// `watch` says whether previews are wanted, and what cancels.
    ///
    /// # Errors
    /// A mask over pure noise.
    pub fn job(
        &self,
        plan: &Plan,
        start: Start,
        seed: u64,
        (positive, negative): (Conditioning, Option<Conditioning>),
        mask: Option<&Image>,
        (previews, cancel): (bool, CancelFlag),
    ) -> Result<SampleJob> {
        let mask = match (mask, start.clean) {
            (None, _) => None,
            (Some(mask), Some(clean)) => {
                let &[_, _, height, width] = clean.shape() else {
                    return Err(Error::Backend(format!("latents of shape {:?} can't be masked", clean.shape())));
                };
                Some(Arc::new(LatentMask::new(clean, mask_cells(mask, [height, width]))?))
            }
            (Some(_), None) => return Err(Error::invalid("mask", "there is no picture that it could keep a part of")),
        };
        Ok(SampleJob {
            denoiser: Arc::clone(&self.denoiser),
            model_key: self.model_key.clone(),
            latents: start.latents,
            positive,
            negative,
            guidance: plan.guidance,
            sigmas: Arc::clone(&plan.sigmas),
            sampler: plan.sampler,
            seed,
            drawn: start.drawn,
            mask,
            previews,
            cancel,
        })
    }
}

/// Runs jobs of `steps` steps each and reports their steps added up.
///
/// # Errors
/// As [`SampleService::sample_all`].
pub fn sample(
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
