//! From a request to pictures, once for every diffusion family.

use crate::{Guidance, SampleJob, SampleService, SamplerKind, Sigmas, TorchRng, cover, first_step, schedule};
use gen_core::{
    Conditioning, ConditioningInput, Denoiser, DiffusionRecipe, Error, GenerationRequest, Image, LatentDistribution,
    Latents, ModelDescriptor, Progress, Result, Role, TextEncoder, Vae,
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
    /// The component isn't needed again in this render; it may be dropped or kept.
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
}

/// Checks a request against a model and fills in its defaults.
///
/// # Errors
/// The first value that the model can't serve, by field.
pub fn plan(model: &ModelDescriptor, recipe: &DiffusionRecipe, request: &GenerationRequest) -> Result<Plan> {
    model.validate(request)?;
    let capabilities = &model.capabilities;
    let steps = request.steps.unwrap_or(capabilities.default_steps) as usize;
    let sampler = match &request.sampler {
        Some(name) => name.parse()?,
        None => SamplerKind::default(),
    };
    let all = schedule::sigmas(recipe, request, steps)?;
    let strength = reference(request).map(|(_, strength)| strength);
    let first = strength.map_or(0, |strength| first_step(steps, strength));
    let sigmas = if first < steps { all[first..].into() } else { Sigmas::from([]) };
    let guidance = Guidance {
        recipe: recipe.guidance,
        scale: request.true_cfg.unwrap_or(capabilities.default_true_cfg),
        normalization: request.cfg_normalization,
        truncation: request.cfg_truncation,
    };
    let scheduler = request.scheduler.clone().unwrap_or_else(|| "simple".into());
    Ok(Plan { sampler, scheduler, steps, sigmas, guidance, strength })
}

fn reference(request: &GenerationRequest) -> Option<(&Arc<Image>, f32)> {
    request.conditioning.iter().find_map(|input| match input {
        ConditioningInput::Reference { image, strength } => Some((image, request.strength.unwrap_or(*strength))),
        _ => None,
    })
}

/// The prompt, and the negative prompt when guidance needs it.
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
    let Some(&sigma) = plan.sigmas.first() else {
        return Ok(picture.mean.clone());
    };
    let posterior = rng.randn(&shape)?;
    let noise = rng.randn(&shape)?;
    if picture.mean.shape() != shape || picture.std.shape() != shape {
        return Err(Error::Backend(format!("the picture's latents are {:?}, not {shape:?}", picture.mean.shape())));
    }
    let clean = picture.mean.data().iter().zip(picture.std.data()).zip(posterior.data()).map(|((m, s), z)| m + s * z);
    let mixed = clean.zip(noise.data()).map(|(x, n)| sigma * n + (1.0 - sigma) * x);
    Latents::new(shape.to_vec(), mixed.collect())
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

    cancel.check()?;
    progress(Progress::Loading("text encoder"));
    let encoder = components.text_encoder()?;
    progress(Progress::Encoding);
    let (positive, negative) = encode_prompts(&*encoder, request, &plan.guidance)?;
    drop(encoder);
    components.release(Role::TextEncoder);

    let picture = match reference(request) {
        None => None,
        Some((image, _)) => {
            cancel.check()?;
            progress(Progress::Loading("vae"));
            let vae = components.vae()?;
            progress(Progress::Encoding);
            let fitted = cover(image, request.width, request.height)?;
            let distribution = vae.encode(&fitted, cancel)?;
            if !distribution.mean.is_finite() || !distribution.std.is_finite() {
                return Err(Error::NonFinite { stage: "vae", step: None });
            }
            Some(distribution)
        }
    };

    let latents = sample_all(recipe, components, sampler, request, &plan, (positive, negative), picture, progress)?;
    components.release(Role::Denoiser);

    cancel.check()?;
    progress(Progress::Loading("vae"));
    let vae = components.vae()?;
    progress(Progress::Decoding);
    let images = latents.iter().map(|row| vae.decode(row, cancel)).collect();
    components.release(Role::Vae);
    images
}

#[allow(clippy::too_many_arguments)] // one stage of `render`, split off for reading
fn sample_all(
    recipe: &DiffusionRecipe,
    components: &dyn Components,
    sampler: &dyn SampleService,
    request: &GenerationRequest,
    plan: &Plan,
    (positive, negative): (Conditioning, Option<Conditioning>),
    picture: Option<LatentDistribution>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Latents>> {
    let starts = (0..request.count)
        .map(|index| initial_latents(recipe, request, plan, picture.as_ref(), request.seed_of(index)))
        .collect::<Result<Vec<_>>>()?;
    if plan.sigmas.is_empty() {
        return Ok(starts);
    }
    request.cancel.check()?;
    progress(Progress::Loading("diffusion model"));
    let denoiser = components.denoiser()?;
    let steps = plan.sigmas.len() - 1;
    let total = steps * starts.len();
    let mut sampled = Vec::with_capacity(starts.len());
    for (index, latents) in starts.into_iter().enumerate() {
        let job = SampleJob {
            denoiser: Arc::clone(&denoiser),
            model_key: components.model_key(),
            latents,
            positive: positive.clone(),
            negative: negative.clone(),
            guidance: plan.guidance,
            sigmas: Arc::clone(&plan.sigmas),
            sampler: plan.sampler,
            seed: request.seed_of(index as u32),
            previews: request.previews,
            cancel: request.cancel.clone(),
        };
        let done = index * steps;
        let mut report = |r: crate::StepReport| {
            // Between two pictures the last step's report stands.
            if r.step > 0 || index == 0 {
                progress(Progress::Step { current: done + r.step, total, preview: r.preview });
            }
        };
        sampled.push(sampler.sample(job, &mut report)?);
    }
    Ok(sampled)
}
