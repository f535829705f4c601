//! The autoencoder as a component: pictures and normalised host latents.

use candle_core::{DType, Device, Tensor};
use gen_core::{CancelFlag, Error, Image, LatentDistribution, Latents, Result, Vae};
use layers::backend;
use layers::vae::AutoencoderKl;

/// [`AutoencoderKl`] behind the contract's [`Vae`].
pub struct ZImageVae {
    network: AutoencoderKl,
    dtype: DType,
    device: Device,
    resident_bytes: u64,
}

impl ZImageVae {
    /// Wraps a network that computes in `dtype` on `device` and holds `resident_bytes`.
    pub fn new(network: AutoencoderKl, dtype: DType, device: Device, resident_bytes: u64) -> Self {
        Self { network, dtype, device, resident_bytes }
    }

    /// The picture before it is clamped and rounded, `(1, 3, height, width)` around `[-1, 1]`.
    pub fn decode_raw(&self, latents: &Latents, cancel: &CancelFlag) -> Result<Tensor> {
        let config = self.network.config();
        if latents.shape().len() != 4 || latents.batch() != 1 || latents.shape()[1] != config.latent_channels {
            return Err(Error::Backend(format!("the VAE can't decode latents of shape {:?}", latents.shape())));
        }
        // The reference divides and adds in f32.
        let (scale, shift) = (config.scaling_factor as f32, config.shift_factor as f32);
        let raw: Vec<f32> = latents.data().iter().map(|x| x / scale + shift).collect();
        let raw = Tensor::from_vec(raw, latents.shape(), &self.device).and_then(|x| x.to_dtype(self.dtype));
        Ok(self.network.decode(&raw.map_err(backend)?, cancel)?)
    }
}

impl Vae for ZImageVae {
    fn encode(&self, image: &Image, cancel: &CancelFlag) -> Result<LatentDistribution> {
        let (width, height) = (image.width() as usize, image.height() as usize);
        let config = self.network.config();
        if !width.is_multiple_of(config.factor()) || !height.is_multiple_of(config.factor()) {
            let message =
                format!("a picture of {width}x{height} isn't a multiple of {} on both sides", config.factor());
            return Err(Error::invalid("conditioning", message));
        }
        let moments = pixels(image, &self.device).and_then(|x| x.to_dtype(self.dtype)).map_err(backend)?;
        let moments = self.network.encode(&moments, cancel)?;
        let moments = moments.ok_or_else(|| {
            Error::Unsupported("this VAE file holds a decoder only; image to image needs a whole VAE".into())
        })?;
        let host = |x: &Tensor| x.flatten_all()?.to_vec1::<f32>();
        let shape = moments.mean.dims().to_vec();
        let (scale, shift) = (config.scaling_factor as f32, config.shift_factor as f32);
        let mean = host(&moments.mean).map_err(backend)?.iter().map(|x| (x - shift) * scale).collect();
        let log_variance = host(&moments.log_variance).map_err(backend)?;
        let std = log_variance.iter().map(|x| (0.5 * x).exp() * scale).collect();
        Ok(LatentDistribution { mean: Latents::new(shape.clone(), mean)?, std: Latents::new(shape, std)? })
    }

    fn decode(&self, latents: &Latents, cancel: &CancelFlag) -> Result<Image> {
        let picture = self.decode_raw(latents, cancel)?;
        let (_, channels, height, width) = picture.dims4().map_err(backend)?;
        let values = picture.to_dtype(DType::F32).and_then(|x| x.flatten_all()?.to_vec1::<f32>()).map_err(backend)?;
        if channels != 3 {
            return Err(Error::Unsupported(format!("the VAE gives {channels} channels, not the 3 of a picture")));
        }
        if values.iter().any(|v| !v.is_finite()) {
            return Err(Error::NonFinite { stage: "vae", step: None });
        }
        let plane = height * width;
        let byte = |v: f32| ((v / 2.0 + 0.5).clamp(0.0, 1.0) * 255.0).round_ties_even() as u8;
        let pixels = (0..plane).flat_map(|at| [0, 1, 2].map(|channel| byte(values[channel * plane + at]))).collect();
        Image::new(width as u32, height as u32, pixels)
    }

    fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }
}

/// A picture as `(1, 3, height, width)` in `[-1, 1]`.
fn pixels(image: &Image, device: &Device) -> candle_core::Result<Tensor> {
    let plane = (image.width() * image.height()) as usize;
    let value = |byte: u8| f32::from(byte) / 255.0 * 2.0 - 1.0;
    let values: Vec<f32> =
        (0..3).flat_map(|channel| (0..plane).map(move |at| value(image.pixels()[3 * at + channel]))).collect();
    Tensor::from_vec(values, (1, 3, image.height() as usize, image.width() as usize), device)
}
