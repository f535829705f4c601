//! The parts that a diffusion generator is made of, and the two plain values that pass between them.

use crate::{CancelFlag, Error, Footprint, Image, ModelDescriptor, Result, Role};
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A batch of latents on the host: `f32`, row-major, shape `(batch, channels, height, width)` or
/// `(batch, channels, frames, height, width)`.
#[derive(Debug, Clone, PartialEq)]
pub struct Latents {
    shape: Vec<usize>,
    data: Vec<f32>,
}

impl Latents {
    /// Wraps `data`, whose length must be the product of `shape`.
    pub fn new(shape: Vec<usize>, data: Vec<f32>) -> Result<Self> {
        let elements = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        if elements != Some(data.len()) {
            return Err(Error::Backend(format!("latents of shape {shape:?} can't hold {} values", data.len())));
        }
        Ok(Self { shape, data })
    }

    /// The shape, batch first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The values.
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// The values, for samplers that work in place.
    pub fn data_mut(&mut self) -> &mut [f32] {
        &mut self.data
    }

    /// The values, without a copy.
    pub fn into_data(self) -> Vec<f32> {
        self.data
    }

    /// Rows of the batch.
    pub fn batch(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }

    /// Values of one row.
    pub fn row_len(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Row `index` as a batch of one.
    pub fn row(&self, index: usize) -> Option<Latents> {
        let len = self.row_len();
        let data = self.data.get(index * len..(index + 1) * len)?.to_vec();
        let mut shape = self.shape.clone();
        shape[0] = 1;
        Some(Self { shape, data })
    }

    /// Several rows as a batch of their own.
    ///
    /// # Errors
    /// There aren't so many rows.
    pub fn rows(&self, range: Range<usize>) -> Result<Latents> {
        let len = self.row_len();
        let data = range.end.checked_mul(len).and_then(|end| self.data.get(range.start * len..end));
        let data = data.ok_or_else(|| Error::Backend(format!("{} rows of latents have no {range:?}", self.batch())))?;
        let mut shape = self.shape.clone();
        if let Some(rows) = shape.first_mut() {
            *rows = range.len();
        }
        Latents::new(shape, data.to_vec())
    }

    /// Rows of several batches, one after another. All must agree in everything but the batch size.
    pub fn concat(parts: &[&Latents]) -> Result<Latents> {
        let first = parts.first().ok_or_else(|| Error::Backend("no latents to concatenate".into()))?;
        if parts.iter().any(|p| p.shape.get(1..) != first.shape.get(1..)) {
            return Err(Error::Backend("latents of different shapes can't be one batch".into()));
        }
        let mut shape = first.shape.clone();
        shape[0] = parts.iter().map(|p| p.batch()).sum();
        Ok(Self { shape, data: parts.iter().flat_map(|p| p.data.iter().copied()).collect() })
    }

    /// Whether every value is finite.
    pub fn is_finite(&self) -> bool {
        self.data.iter().all(|v| v.is_finite())
    }
}

/// What a text encoder hands to a denoiser of the same family; opaque to everyone between them.
#[derive(Clone)]
pub struct Conditioning {
    fingerprint: String,
    tokens: usize,
    value: Arc<dyn Any + Send + Sync>,
}

impl Conditioning {
    /// Wraps a family's own value. Equal fingerprints must mean equal values, whichever process made them.
    pub fn new<T: Any + Send + Sync>(fingerprint: impl Into<String>, tokens: usize, value: T) -> Self {
        Self { fingerprint: fingerprint.into(), tokens, value: Arc::new(value) }
    }

    /// Identity of the value, for caches and batching.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Tokens of the prompt that it was made from.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The family's value, if it is a `T`.
    pub fn downcast<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.value.downcast_ref()
    }
}

impl fmt::Debug for Conditioning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conditioning").field("fingerprint", &self.fingerprint).field("tokens", &self.tokens).finish()
    }
}

/// Prompts to conditioning.
pub trait TextEncoder: Send + Sync {
    /// Encodes one prompt. A prompt past the encoder's limit is [`Error::InvalidRequest`] on `prompt` and says how many
    /// tokens there are. Cancel is honoured between layers.
    fn encode(&self, prompt: &str, cancel: &CancelFlag) -> Result<Conditioning>;
    /// Bytes held in memory.
    fn resident_bytes(&self) -> u64;
}

/// What a denoiser gets told beside its inputs.
pub struct StepContext<'a> {
    /// Honoured between layers.
    pub cancel: &'a CancelFlag,
    /// 1-based sampler step, for errors.
    pub step: usize,
}

/// The diffusion network.
pub trait Denoiser: Send + Sync {
    /// Predicts, for each row of `latents` `(batch, channels, …)`, the model's output at `sigma` in the convention of the
    /// recipe's [`ScheduleRecipe`]: for flow matching the velocity `noise - picture`. `conditioning` has one entry a row.
    /// A row's result must not depend on its neighbours. Returns the shape of `latents`.
    fn predict(
        &self,
        latents: &Latents,
        sigma: f32,
        conditioning: &[&Conditioning],
        context: &StepContext<'_>,
    ) -> Result<Latents>;
    /// [`Self::predict`] with a sigma for each row, so that jobs at different steps can share a pass. A row's result is
    /// that of [`Self::predict`] at its sigma.
    fn predict_rows(
        &self,
        latents: &Latents,
        sigmas: &[f32],
        conditioning: &[&Conditioning],
        context: &StepContext<'_>,
    ) -> Result<Latents> {
        let counts = [sigmas.len(), conditioning.len()];
        if counts != [latents.batch(); 2] {
            let message = format!("{} sigmas and {} prompts for {} latents", counts[0], counts[1], latents.batch());
            return Err(Error::Backend(message));
        }
        let mut velocity = Vec::with_capacity(latents.data().len());
        let mut start = 0;
        // Neighbours at one sigma go together.
        for run in sigmas.chunk_by(|a, b| a == b) {
            let end = start + run.len();
            let rows = latents.rows(start..end)?;
            velocity.extend(self.predict(&rows, run[0], &conditioning[start..end], context)?.into_data());
            start = end;
        }
        Latents::new(latents.shape().to_vec(), velocity)
    }
    /// Bytes held in memory.
    fn resident_bytes(&self) -> u64;
}

/// A linear map from latent channels to RGB, for previews: `rgb = bias + sum(channel * weight)`, in `[0, 1]`.
#[derive(Debug, Clone, PartialEq)]
pub struct PreviewProjection {
    /// One RGB triple a latent channel.
    pub weights: Vec<[f32; 3]>,
    /// The RGB offset.
    pub bias: [f32; 3],
}

/// What a VAE's encoder says of a picture: a Gaussian a latent value, normalised as the denoiser expects.
#[derive(Debug, Clone, PartialEq)]
pub struct LatentDistribution {
    /// Means, `(1, channels, height / factor, width / factor)`.
    pub mean: Latents,
    /// Standard deviations, of the same shape.
    pub std: Latents,
}

/// Pictures to latents and back.
pub trait Vae: Send + Sync {
    /// The latent distribution of a picture whose sides are multiples of [`DiffusionRecipe::latent_factor`].
    fn encode(&self, image: &Image, cancel: &CancelFlag) -> Result<LatentDistribution>;
    /// The picture of one row of normalised latents `(1, channels, height, width)`.
    fn decode(&self, latents: &Latents, cancel: &CancelFlag) -> Result<Image>;
    /// The latent-to-RGB map for previews, when one was fitted.
    fn preview(&self) -> Option<PreviewProjection> {
        None
    }
    /// Bytes held in memory.
    fn resident_bytes(&self) -> u64;
}

/// The noise schedule that a model was trained for.
#[derive(Debug, Clone, PartialEq)]
pub enum ScheduleRecipe {
    /// Rectified flow: `x_sigma = (1 - sigma) * picture + sigma * noise`, sigmas through `s -> shift*s / (1 + (shift-1)*s)`.
    FlowMatch {
        /// The static time shift.
        shift: f32,
    },
    /// Rectified flow with a shift that grows with the number of image tokens: `exp(mu)` in place of the static shift,
    /// with `mu` linear between the two points.
    DynamicFlowMatch {
        /// `mu` at `base_tokens`.
        base_shift: f32,
        /// `mu` at `max_tokens`.
        max_shift: f32,
        /// Tokens at the lower point.
        base_tokens: usize,
        /// Tokens at the upper point.
        max_tokens: usize,
    },
}

/// How a family combines conditional and unconditional predictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuidanceRecipe {
    /// `positive + scale * (positive - negative)`: off at 0 (Z-Image, as in its reference pipeline).
    Extrapolate,
    /// `negative + scale * (positive - negative)`: off at 1 (Ho & Salimans 2022, as most pipelines write it).
    Interpolate,
}

/// What the denoise loop must know of a model: data, not code.
#[derive(Debug, Clone, PartialEq)]
pub struct DiffusionRecipe {
    /// Channels of the latents.
    pub latent_channels: usize,
    /// Pixels a latent cell covers, per side.
    pub latent_factor: usize,
    /// Latent cells a token covers, per side.
    pub patch: usize,
    /// The noise schedule.
    pub schedule: ScheduleRecipe,
    /// How guidance is applied.
    pub guidance: GuidanceRecipe,
}

/// What loading gets told.
pub struct LoadContext<'a> {
    /// Honoured between tensors.
    pub cancel: &'a CancelFlag,
}

/// A diffusion checkpoint that was opened and checked, whose components load one by one.
///
/// Opening reads headers only and fails when anything is missing; a component's weights are read when it is asked for,
/// so that a caller can encode, free the encoder, and only then load the denoiser.
pub trait DiffusionModel: Send + Sync {
    /// The descriptor that it was opened under.
    fn descriptor(&self) -> &ModelDescriptor;
    /// Data for the denoise loop.
    fn recipe(&self) -> &DiffusionRecipe;
    /// Resident bytes per component, as the weights will be held.
    fn footprint(&self) -> &Footprint;
    /// Identity of the checkpoint's content: equal only for equal weights. Cheap: from headers, sizes and times for
    /// files, from the bytes for embedded weights.
    fn fingerprint(&self) -> &str;
    /// Identity of one component as it will be held: the same in every model that shares it, so that it is loaded once.
    fn component_fingerprint(&self, role: Role) -> String {
        format!("{role} of {}", self.fingerprint())
    }
    /// Reads the text encoder and tokenizer.
    fn load_text_encoder(&self, context: &LoadContext<'_>) -> Result<Arc<dyn TextEncoder>>;
    /// Reads the denoiser.
    fn load_denoiser(&self, context: &LoadContext<'_>) -> Result<Arc<dyn Denoiser>>;
    /// Reads the VAE.
    fn load_vae(&self, context: &LoadContext<'_>) -> Result<Arc<dyn Vae>>;
}
