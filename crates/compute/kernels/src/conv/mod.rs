//! Convolution of pictures and of frames without im2col: tiles of pixels are read where they are.
//!
//! Feature maps stay in the channels-last layout of [`Image`] through a whole network; tensors are converted at its ends.
//! A nearest-neighbour upsampling by two in front of a 3x3 convolution becomes four 2x2 convolutions of the small image,
//! one for each position within the doubled pixel, whose weights are sums of the original ones: 4/9 of the arithmetic and
//! no large image in between.
//!
//! A causal convolution over time reads the frame itself and those before it; frames are neighbouring pictures of a
//! batch. Before the first one there are zeros, whose products are left out.

mod driver;
mod group_norm;
mod image;
#[cfg(test)]
mod tests;

use half::bf16;

pub use group_norm::GroupNorm;
pub use image::{Image, ImageShape};

use crate::ctx::Ctx;
use crate::error::{KernelError, Result, exact, product};
use crate::linear::{Activation, PackedLinear, PackedLinearBuilder, WeightFormat};
use crate::values::Values;

/// Kernel size, step and padding of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvShape {
    /// Channels of the input.
    pub inputs: usize,
    /// Channels of the output.
    pub outputs: usize,
    /// Height and width of the kernel: 1 or 3.
    pub kernel: usize,
    /// Step: 1 or 2.
    pub stride: usize,
    /// Zeros above and to the left: 0 or 1.
    pub before: usize,
    /// Zeros below and to the right: 0 or 1.
    pub after: usize,
}

impl ConvShape {
    /// 3x3 that keeps the size.
    pub fn same3(inputs: usize, outputs: usize) -> Self {
        ConvShape { inputs, outputs, kernel: 3, stride: 1, before: 1, after: 1 }
    }

    /// 1x1.
    pub fn point(inputs: usize, outputs: usize) -> Self {
        ConvShape { inputs, outputs, kernel: 1, stride: 1, before: 0, after: 0 }
    }

    /// Output length along one axis.
    fn length(&self, input: usize) -> usize {
        (input + self.before + self.after).checked_sub(self.kernel).map_or(0, |rest| rest / self.stride + 1)
    }
}

/// One element of a kernel: how many frames before, and the offset from the pixel at `(y * stride, x * stride)`, in the
/// bordered image.
#[derive(Clone, Copy)]
struct Tap {
    before: usize,
    y: usize,
    x: usize,
}

/// One kernel over taps, and where it reads and writes.
struct Part {
    /// Weights with the channels of all taps as their inner dimension, each tap's padded to 32.
    weights: PackedLinear,
    /// The taps, oldest frame first.
    taps: Vec<Tap>,
    /// Position of its outputs within a doubled pixel.
    phase: (usize, usize),
}

/// A convolution whose weights are packed once.
pub struct Conv2d {
    shape: ConvShape,
    upsample: bool,
    /// Frames that a kernel spans.
    depth: usize,
    parts: Vec<Part>,
}

/// What is done to an output before it is written: `residual + activation(y)`.
#[derive(Clone, Copy, Default)]
pub struct ConvEpilogue<'a> {
    /// Applied first.
    pub activation: Activation,
    /// Added then; an image of the output's shape.
    pub residual: Option<&'a Image>,
}

impl Conv2d {
    /// Packs `(outputs, inputs, kernel, kernel)` weights.
    pub fn new(
        ctx: &Ctx,
        format: WeightFormat,
        shape: ConvShape,
        weights: Values<'_>,
        bias: Option<Values<'_>>,
    ) -> Result<Conv2d> {
        Conv2d::causal(ctx, format, shape, 1, weights, bias)
    }

    /// Packs `(outputs, inputs, depth, kernel, kernel)` weights of a convolution over time as well, whose output at a
    /// frame depends on that one and on `depth - 1` frames before it; run it by [`Conv2d::forward_frames`].
    pub fn causal(
        ctx: &Ctx,
        format: WeightFormat,
        shape: ConvShape,
        depth: usize,
        weights: Values<'_>,
        bias: Option<Values<'_>>,
    ) -> Result<Conv2d> {
        let (kernel, area) = (shape.kernel, shape.kernel * shape.kernel);
        if !matches!(kernel, 1 | 3) || !matches!(shape.stride, 1 | 2) || shape.before > 1 || shape.after > 1 {
            let why = format!("{shape:?}: kernels are 1 or 3, strides 1 or 2, paddings 0 or 1");
            return Err(KernelError::Shape { what: "convolution", why });
        }
        if !(1..=16).contains(&depth) {
            let why = format!("a kernel can span 1 to 16 frames, not {depth}");
            return Err(KernelError::Shape { what: "convolution", why });
        }
        // A border of one pixel stands for the padding, so the first tap lies at most one pixel before the first output.
        let offset = image::BORDER - shape.before;
        let tap =
            |i: usize| Tap { before: depth - 1 - i / area, y: offset + i % area / kernel, x: offset + i % kernel };
        let taps: Vec<_> = (0..depth * area).map(tap).collect();
        let sources: Vec<_> = (0..depth * area).map(|tap| vec![tap]).collect();
        let part = part(ctx, format, shape, depth * area, weights, bias, taps, &sources, (0, 0))?;
        Ok(Conv2d { shape, upsample: false, depth, parts: vec![part] })
    }

    /// Packs a 3x3 convolution behind a nearest-neighbour upsampling by two: `(outputs, inputs, 3, 3)` weights.
    pub fn upsampled(
        ctx: &Ctx,
        format: WeightFormat,
        inputs: usize,
        outputs: usize,
        weights: Values<'_>,
        bias: Option<Values<'_>>,
    ) -> Result<Conv2d> {
        let shape = ConvShape::same3(inputs, outputs);
        // Along one axis an even output reads pixels -1, 0, 0 and an odd one 0, 0, +1 of the small image.
        let axis = [[(0, vec![0]), (1, vec![1, 2])], [(1, vec![0, 1]), (2, vec![2])]];
        let mut parts = Vec::new();
        for phase in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let (mut taps, mut sources) = (Vec::new(), Vec::new());
            for (y, rows) in &axis[phase.0] {
                for (x, columns) in &axis[phase.1] {
                    taps.push(Tap { before: 0, y: *y, x: *x });
                    sources
                        .push(rows.iter().flat_map(|row| columns.iter().map(move |column| row * 3 + column)).collect());
                }
            }
            parts.push(part(ctx, format, shape, 9, weights, bias, taps, &sources, phase)?);
        }
        Ok(Conv2d { shape, upsample: true, depth: 1, parts })
    }

    /// Bytes of memory that it holds.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.weights.bytes()).sum()
    }

    /// The shape of its output.
    pub fn output_shape(&self, input: ImageShape) -> ImageShape {
        let length = |size| if self.upsample { 2 * size } else { self.shape.length(size) };
        ImageShape {
            batch: input.batch,
            height: length(input.height),
            width: length(input.width),
            channels: self.shape.outputs,
        }
    }

    /// `out = epilogue(x * weights + bias)`; `out` takes the shape that results and keeps its element type.
    ///
    /// bf16 images and weights are multiplied in bf16 on AMX and AVX512-BF16; everything else is f32 arithmetic. Sums are f32 always.
    pub fn forward(&self, ctx: &Ctx, x: &Image, out: &mut Image, epilogue: ConvEpilogue<'_>) -> Result<()> {
        self.forward_frames(ctx, x, 1, out, epilogue)
    }

    /// As [`Conv2d::forward`], where every `frames` pictures of the batch are the frames of one video.
    pub fn forward_frames(
        &self,
        ctx: &Ctx,
        x: &Image,
        frames: usize,
        out: &mut Image,
        epilogue: ConvEpilogue<'_>,
    ) -> Result<()> {
        if frames == 0 || !x.shape().batch.is_multiple_of(frames) {
            let why = format!("{} pictures are no whole videos of {frames} frames", x.shape().batch);
            return Err(KernelError::Shape { what: "convolution", why });
        }
        exact("channels", self.shape.inputs, x.shape().channels)?;
        let shape = self.output_shape(x.shape());
        if let Some(residual) = epilogue.residual
            && residual.shape() != shape
        {
            let why = format!("{:?} can't be added to {shape:?}", residual.shape());
            return Err(KernelError::Shape { what: "residual", why });
        }
        out.reshape(shape)?;
        if shape.elements() > 0 {
            for part in &self.parts {
                driver::run(ctx, self, part, x, frames, out, &epilogue);
            }
        }
        Ok(())
    }
}

/// Packs one kernel whose taps are sums of the given ones of the `area` taps of the weights.
fn part(
    ctx: &Ctx,
    format: WeightFormat,
    shape: ConvShape,
    area: usize,
    weights: Values<'_>,
    bias: Option<Values<'_>>,
    taps: Vec<Tap>,
    sources: &[Vec<usize>],
    phase: (usize, usize),
) -> Result<Part> {
    // Int8 would round activations by rows, of which a convolution has none; blocks are of another order of weights.
    if !matches!(format, WeightFormat::F32 | WeightFormat::Bf16) {
        let why = format!("weights can be F32 or Bf16, not {format:?}");
        return Err(KernelError::Shape { what: "convolution", why });
    }
    exact("weights", product("weights", &[shape.outputs, shape.inputs, area])?, weights.len())?;
    let padded = shape.inputs.next_multiple_of(crate::linear::TILE_K);
    product("weights", &[shape.outputs, padded, taps.len()])?;
    let value = |at: usize| match weights {
        Values::F32(values) => values[at],
        Values::Bf16(values) => bf16::to_f32(values[at]),
    };
    let mut builder = PackedLinearBuilder::new(format, shape.outputs, taps.len() * padded)?;
    // Sixteen rows at a time: what is packed together, and little memory.
    for first in (0..shape.outputs).step_by(16) {
        let count = 16.min(shape.outputs - first);
        let mut rows = vec![0f32; count * taps.len() * padded];
        for (i, row) in rows.chunks_exact_mut((taps.len() * padded).max(1)).enumerate() {
            for (tap, sources) in sources.iter().enumerate() {
                for channel in 0..shape.inputs {
                    let start = ((first + i) * shape.inputs + channel) * area;
                    row[tap * padded + channel] = sources.iter().map(|source| value(start + source)).sum();
                }
            }
        }
        builder.push(ctx, (&rows).into())?;
    }
    let mut weights = builder.finish()?;
    if let Some(bias) = bias {
        weights = weights.with_bias(bias)?;
    }
    Ok(Part { weights, taps, phase })
}
