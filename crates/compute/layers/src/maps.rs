//! Feature maps of convolutional networks, in the layout that the device's convolutions want.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, Error, Result, Tensor};
use kernels::conv::{Image, ImageShape};
use kernels::{Ctx, ValuesMut};

use crate::cpu;

/// A batch of feature maps. On the CPU they are kept channels-last for the kernels, elsewhere as the tensor they came
/// from.
///
/// Maps that were made from one another share their memory: what is dropped is written to again by the next
/// operation, and all is freed with the last of them.
pub struct Maps(Layout);

enum Layout {
    Kernel(Buffer),
    /// `(batch, channels, height, width)`.
    Tensor(Tensor),
}

/// An image that goes back to its pool.
struct Buffer {
    image: Image,
    pool: Arc<Pool>,
}

struct Pool {
    free: Mutex<Vec<Image>>,
    half: bool,
    /// The largest maps to expect, so that an image never has to grow.
    largest: ImageShape,
}

impl Pool {
    fn take(self: &Arc<Self>) -> kernels::Result<Buffer> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let image = match free {
            Some(image) => image,
            None => {
                let mut image = Image::empty(self.half);
                image.reshape(self.largest)?;
                image
            }
        };
        Ok(Buffer { image, pool: Arc::clone(self) })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let image = std::mem::replace(&mut self.image, Image::empty(self.pool.half));
        self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).push(image);
    }
}

impl Maps {
    /// Takes a tensor `(batch, channels, height, width)`.
    pub fn from_tensor(x: &Tensor) -> Result<Self> {
        let (_, channels, height, width) = x.dims4()?;
        Self::with_room(x, [channels, height, width])
    }

    /// The same for a network whose largest maps are `[channels, height, width]`.
    pub fn with_room(x: &Tensor, [channels, height, width]: [usize; 3]) -> Result<Self> {
        if !cpu::serves_tensor("feature maps", x) {
            return Ok(Self(Layout::Tensor(x.clone())));
        }
        let half = x.dtype() == DType::BF16;
        let largest = ImageShape { batch: x.dim(0)?, height, width, channels };
        let pool = Arc::new(Pool { free: Mutex::default(), half, largest });
        image_of(x, half).map(|image| Self(Layout::Kernel(Buffer { image, pool })))
    }

    /// Gives a tensor `(batch, channels, height, width)`.
    pub fn to_tensor(&self) -> Result<Tensor> {
        let image = match &self.0 {
            Layout::Tensor(x) => return Ok(x.clone()),
            Layout::Kernel(buffer) => &buffer.image,
        };
        let ImageShape { batch, channels, height, width } = image.shape();
        let shape = (batch, channels, height, width);
        if image.is_half() {
            let mut out = vec![half::bf16::ZERO; image.shape().elements()];
            image.to_nchw(Ctx::global(), ValuesMut::Bf16(&mut out)).map_err(Error::wrap)?;
            Tensor::from_vec(out, shape, &Device::Cpu)
        } else {
            let mut out = vec![0f32; image.shape().elements()];
            image.to_nchw(Ctx::global(), ValuesMut::F32(&mut out)).map_err(Error::wrap)?;
            Tensor::from_vec(out, shape, &Device::Cpu)
        }
    }

    /// `[batch, channels, height, width]`.
    pub fn dims(&self) -> Result<[usize; 4]> {
        match &self.0 {
            Layout::Tensor(x) => x.dims4().map(|(b, c, h, w)| [b, c, h, w]),
            Layout::Kernel(buffer) => {
                let ImageShape { batch, channels, height, width } = buffer.image.shape();
                Ok([batch, channels, height, width])
            }
        }
    }

    /// A tensor `(batch, channels, height, width)`, in the layout of these maps.
    pub fn like(&self, x: &Tensor) -> Result<Self> {
        match &self.0 {
            Layout::Tensor(_) => Ok(Self(Layout::Tensor(x.clone()))),
            Layout::Kernel(buffer) => {
                let image = image_of(x, buffer.pool.half)?;
                Ok(Self(Layout::Kernel(Buffer { image, pool: Arc::clone(&buffer.pool) })))
            }
        }
    }

    /// Runs a kernel from these maps into others, or gives `None` if they are a tensor.
    pub(crate) fn compute(
        &self,
        kernel: impl FnOnce(&Image, &mut Image) -> kernels::Result<()>,
    ) -> Option<Result<Self>> {
        let Layout::Kernel(buffer) = &self.0 else { return None };
        let run = || {
            let mut out = buffer.pool.take()?;
            kernel(&buffer.image, &mut out.image)?;
            Ok(Self(Layout::Kernel(out)))
        };
        Some(run().map_err(|error: kernels::KernelError| Error::wrap(error)))
    }

    pub(crate) fn image(&self) -> Option<&Image> {
        match &self.0 {
            Layout::Kernel(buffer) => Some(&buffer.image),
            Layout::Tensor(_) => None,
        }
    }
}

fn image_of(x: &Tensor, half: bool) -> Result<Image> {
    let (batch, channels, height, width) = x.dims4()?;
    let shape = ImageShape { batch, channels, height, width };
    cpu::read(x, |values| Image::from_nchw(Ctx::global(), values, shape, half))
}
