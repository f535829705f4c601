//! The latents that sampling starts from.

use crate::TorchRng;
use gen_core::{Error, LatentDistribution, Latents, Result};

/// What a row of latents begins as, before noise.
#[derive(Debug, Clone, Copy)]
pub enum Origin<'a> {
    /// Nothing but noise.
    Noise,
    /// A picture as the VAE's encoder sees it, one row.
    Picture(&'a LatentDistribution),
    /// Clean latents, one row.
    Latents(&'a Latents),
}

/// A row to sample from.
#[derive(Debug, Clone, PartialEq)]
pub struct Start {
    /// As noisy as the first sigma.
    pub latents: Latents,
    /// The same without noise, when there was anything but noise.
    pub clean: Option<Latents>,
    /// Tensors that the seed's generator has given; see [`SampleJob::drawn`](crate::SampleJob::drawn).
    pub drawn: usize,
}

/// Mixes the noise of `seed` into `origin` up to `sigma`, the first noise level of what runs; `None` when nothing runs.
///
/// Noise comes from the seed's generator. For a picture, that generator first draws the sample of the VAE's posterior and
/// then the noise, as diffusers' image-to-image pipeline does; when nothing runs, the posterior's mean stands.
///
/// # Errors
/// The origin has another shape than `shape`.
pub fn start(shape: &[usize], sigma: Option<f32>, origin: Origin<'_>, seed: u64) -> Result<Start> {
    let mut rng = TorchRng::new(seed);
    let fits = |latents: &Latents| match latents.shape() == shape {
        true => Ok(()),
        false => Err(Error::Backend(format!("the picture's latents are {:?}, not {shape:?}", latents.shape()))),
    };
    let clean = match origin {
        Origin::Noise => return Ok(Start { latents: rng.randn(shape)?, clean: None, drawn: 1 }),
        Origin::Latents(latents) => {
            fits(latents)?;
            latents.clone()
        }
        Origin::Picture(picture) => {
            fits(&picture.mean)?;
            fits(&picture.std)?;
            if sigma.is_none() {
                picture.mean.clone()
            } else {
                let posterior = rng.randn(shape)?;
                let values = picture.mean.data().iter().zip(picture.std.data()).zip(posterior.data());
                Latents::new(shape.to_vec(), values.map(|((m, s), z)| m + s * z).collect())?
            }
        }
    };
    let Some(sigma) = sigma else {
        return Ok(Start { latents: clean.clone(), clean: Some(clean), drawn: 0 });
    };
    let noise = rng.randn(shape)?;
    let mixed = clean.data().iter().zip(noise.data()).map(|(x, n)| sigma * n + (1.0 - sigma) * x);
    let latents = Latents::new(shape.to_vec(), mixed.collect())?;
    let drawn = if matches!(origin, Origin::Picture(_)) { 2 } else { 1 };
    Ok(Start { latents, clean: Some(clean), drawn })
}
