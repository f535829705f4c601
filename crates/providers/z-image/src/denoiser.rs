//! The network as a component: host latents in, host latents out.

use std::sync::Arc;

use candle_core::{DType, Tensor};
use gen_core::{CancelFlag, Conditioning, Denoiser, Error, Latents, Result, StepContext};
use layers::backend;

use crate::recent::Recent;
use crate::sequence::caption_rope;
use crate::transformer::{Ropes, ZImageTransformer};

/// What the family's text encoder makes of a prompt: `(tokens, caption_dim)` in the compute type.
#[derive(Debug, Clone)]
pub struct Caption(pub Tensor);

/// Refined captions that are kept: prompts and negative prompts of a few runs at once.
const CAPTIONS: usize = 8;
/// Tables of rotations that are kept: one a caption length and picture size.
const ROPES: usize = 8;

/// [`ZImageTransformer`] behind the contract's [`Denoiser`].
pub struct ZImageDenoiser {
    network: ZImageTransformer,
    captions: Recent<String, Tensor>,
    ropes: Recent<(usize, [usize; 2]), Arc<Ropes>>,
    resident_bytes: u64,
}

impl ZImageDenoiser {
    /// Wraps a network that holds `resident_bytes`.
    pub fn new(network: ZImageTransformer, resident_bytes: u64) -> Self {
        Self { network, captions: Recent::new(CAPTIONS), ropes: Recent::new(ROPES), resident_bytes }
    }

    /// The network.
    pub fn network(&self) -> &ZImageTransformer {
        &self.network
    }

    /// Hidden states of a caption, refined once for all steps.
    fn caption(&self, conditioning: &Conditioning, cancel: &CancelFlag) -> Result<(Tensor, usize)> {
        let config = self.network.config();
        let embeddings = conditioning.downcast::<Caption>().map(|caption| &caption.0);
        let embeddings = embeddings.filter(|e| e.dims().get(1) == Some(&config.caption_dim));
        let Some(embeddings) = embeddings else {
            let message = format!(
                "this text encoder's output doesn't fit; the model takes captions of width {}",
                config.caption_dim
            );
            return Err(Error::Unsupported(message));
        };
        let tokens = embeddings.dim(0).map_err(backend)?;
        let refined = self.captions.get_or_make(conditioning.fingerprint().to_owned(), || {
            let embeddings = embeddings.to_device(self.network.device()).map_err(backend)?;
            Ok::<_, Error>(self.network.refine_caption(&embeddings, &caption_rope(config, tokens), cancel)?)
        })?;
        Ok((refined, tokens))
    }

    fn predict_row(
        &self,
        row: &Latents,
        sigma: f32,
        conditioning: &Conditioning,
        context: &StepContext<'_>,
    ) -> Result<Vec<f32>> {
        let &[_, channels, height, width] = row.shape() else {
            return Err(Error::Backend(format!("latents of shape {:?} are no pictures", row.shape())));
        };
        let config = self.network.config();
        let whole = [height, width].iter().all(|side| *side > 0 && side.is_multiple_of(config.patch));
        if channels != config.latent_channels || !whole {
            let message = format!("the model can't take latents of {channels} x {height} x {width}");
            return Err(Error::Backend(message));
        }
        let (caption, tokens) = self.caption(conditioning, context.cancel)?;
        let size = [height, width];
        let ropes =
            self.ropes.get_or_make((tokens, size), || Ok::<_, Error>(Arc::new(Ropes::new(config, tokens, size))))?;
        let latents =
            Tensor::from_slice(row.data(), (channels, height, width), self.network.device()).map_err(backend)?;
        // As the reference computes it, over a scale of 1000.
        let time = (1000.0 - sigma * 1000.0) / 1000.0;
        let picture_less_noise = self.network.forward(&latents, time, &caption, &ropes, context.cancel)?;
        let velocity = picture_less_noise.neg().and_then(|v| v.to_dtype(DType::F32)?.flatten_all()?.to_vec1());
        velocity.map_err(backend)
    }
}

impl Denoiser for ZImageDenoiser {
    fn predict(
        &self,
        latents: &Latents,
        sigma: f32,
        conditioning: &[&Conditioning],
        context: &StepContext<'_>,
    ) -> Result<Latents> {
        if conditioning.len() != latents.batch() {
            let message = format!("{} captions for {} latents", conditioning.len(), latents.batch());
            return Err(Error::Backend(message));
        }
        let mut velocity = Vec::with_capacity(latents.data().len());
        // Rows have captions of different lengths, so a batch would be padded and masked; one by one they are exact.
        for (index, conditioning) in conditioning.iter().enumerate() {
            if let Some(row) = latents.row(index) {
                velocity.extend(self.predict_row(&row, sigma, conditioning, context)?);
            }
        }
        Latents::new(latents.shape().to_vec(), velocity)
    }

    fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }
}
