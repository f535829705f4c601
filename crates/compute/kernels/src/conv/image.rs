//! Feature maps in channels-last layout with a border of zeros, which convolutions read as their padding.

use half::bf16;

use crate::ctx::Ctx;
use crate::error::{Result, exact, product};
use crate::memory::Bytes;
use crate::pool::SharedMut;
use crate::simd::Element;
use crate::values::{Values, ValuesMut};

/// Pixels of zeros on each side.
pub(crate) const BORDER: usize = 1;
/// Channels are padded to a multiple of this with zeros.
const CHANNELS: usize = 32;
/// Pixels behind the last one that a kernel may read (and then ignore).
const SLACK: usize = 80;

/// Sizes of an [`Image`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageShape {
    /// Pictures.
    pub batch: usize,
    /// Rows of pixels.
    pub height: usize,
    /// Pixels of a row.
    pub width: usize,
    /// Values of a pixel.
    pub channels: usize,
}

impl ImageShape {
    /// Elements from one pixel to the next.
    pub(crate) fn pixel(&self) -> usize {
        self.channels.next_multiple_of(CHANNELS)
    }

    /// Elements from one row to the next.
    pub(crate) fn row(&self) -> usize {
        (self.width + 2 * BORDER) * self.pixel()
    }

    /// Elements from one picture to the next.
    pub(crate) fn picture(&self) -> usize {
        (self.height + 2 * BORDER) * self.row()
    }

    /// Where a pixel starts; the border is at row and column -1 and `height` and `width`, here moved up by one.
    pub(crate) fn at(&self, batch: usize, bordered_y: usize, bordered_x: usize) -> usize {
        batch * self.picture() + bordered_y * self.row() + bordered_x * self.pixel()
    }

    /// Elements of a dense tensor of this shape.
    pub fn elements(&self) -> usize {
        self.batch * self.height * self.width * self.channels
    }

    /// Elements to allocate, if they fit in memory.
    fn room(&self) -> Result<usize> {
        let grow = |size: usize, by: usize| size.saturating_add(by);
        let sizes = [self.batch, grow(self.height, 2), grow(self.width, 2), grow(self.channels, CHANNELS - 1), 4];
        product("image", &sizes)?;
        let slack = product("image", &[SLACK, grow(self.channels, CHANNELS), 4])?;
        product("image", &[self.batch * self.picture() + slack, 8])?;
        Ok(self.batch * self.picture() + SLACK * self.pixel())
    }
}

/// A batch of feature maps, `[batch][height + 2][width + 2][channels padded to 32]`, in bf16 or f32.
///
/// Kernels that write one call [`Image::reshape`], so one value can serve a whole decoder and its memory is reused.
pub struct Image {
    shape: ImageShape,
    half: bool,
    bytes: Bytes,
}

impl Image {
    /// An image of no pixels, to be written by a kernel; elements are bf16 if `half`.
    pub fn empty(half: bool) -> Image {
        Image { shape: ImageShape { batch: 0, height: 0, width: 0, channels: 0 }, half, bytes: Bytes::zeroed(0) }
    }

    /// Takes a `(batch, channels, height, width)` tensor.
    pub fn from_nchw(ctx: &Ctx, x: Values<'_>, shape: ImageShape, half: bool) -> Result<Image> {
        let mut image = Image::empty(half);
        image.reshape(shape)?;
        exact("image", shape.elements(), x.len())?;
        match x {
            Values::F32(x) => image.fill_nchw(ctx, x),
            Values::Bf16(x) => image.fill_nchw(ctx, x),
        }
        Ok(image)
    }

    fn fill_nchw<T: Element>(&mut self, ctx: &Ctx, x: &[T]) {
        let shape = self.shape;
        let half = self.half;
        let (to_half, to_full) =
            (SharedMut::new(self.bytes.slice_mut::<bf16>()), SharedMut::new(self.bytes.slice_mut::<f32>()));
        ctx.pool().run(shape.batch * shape.height, |row| {
            let (batch, y) = (row / shape.height, row % shape.height);
            let from = |channel: usize| {
                &x[((batch * shape.channels + channel) * shape.height + y) * shape.width..][..shape.width]
            };
            let start = shape.at(batch, y + BORDER, BORDER);
            for channel in 0..shape.channels {
                for (i, value) in from(channel).iter().enumerate() {
                    let at = start + i * shape.pixel() + channel;
                    // SAFETY: a pixel of the image's own row, which only this piece writes, in the image's own type.
                    unsafe {
                        if half {
                            to_half.get().add(at).write(bf16::from_f32(value.to_f32()));
                        } else {
                            to_full.get().add(at).write(value.to_f32());
                        }
                    }
                }
            }
        });
    }

    /// Gives a `(batch, channels, height, width)` tensor.
    pub fn to_nchw(&self, ctx: &Ctx, out: ValuesMut<'_>) -> Result<()> {
        exact("out", self.shape.elements(), out.len())?;
        match out {
            ValuesMut::F32(out) => self.write_nchw(ctx, out, |x| x),
            ValuesMut::Bf16(out) => self.write_nchw(ctx, out, bf16::from_f32),
        }
        Ok(())
    }

    fn write_nchw<T: Element>(&self, ctx: &Ctx, out: &mut [T], convert: impl Fn(f32) -> T + Sync) {
        let shape = self.shape;
        let out = SharedMut::new(out);
        ctx.pool().run(shape.batch * shape.height, |row| {
            let (batch, y) = (row / shape.height, row % shape.height);
            for channel in 0..shape.channels {
                // SAFETY: a row of one channel, which only this piece writes.
                let to = unsafe {
                    out.part(((batch * shape.channels + channel) * shape.height + y) * shape.width, shape.width)
                };
                let start = shape.at(batch, y + BORDER, BORDER) + channel;
                for (i, to) in to.iter_mut().enumerate() {
                    let at = start + i * shape.pixel();
                    *to = convert(match self.values() {
                        Values::F32(values) => values[at],
                        Values::Bf16(values) => values[at].to_f32(),
                    });
                }
            }
        });
    }

    /// Makes room for another shape, keeping the memory if it suffices. The pixels then hold anything; border and padding
    /// are zeros.
    pub fn reshape(&mut self, shape: ImageShape) -> Result<()> {
        let need = shape.room()? * if self.half { 2 } else { 4 };
        if shape == self.shape {
            return Ok(());
        }
        self.shape = shape;
        if need > self.bytes.len() {
            // The old memory goes first, so that both are never held at once.
            self.bytes = Bytes::zeroed(0);
            self.bytes = Bytes::zeroed(need);
        } else if self.half {
            clear_border(self.bytes.slice_mut::<bf16>(), shape);
        } else {
            clear_border(self.bytes.slice_mut::<f32>(), shape);
        }
        Ok(())
    }

    /// The sizes.
    pub fn shape(&self) -> ImageShape {
        self.shape
    }

    /// Whether elements are bf16.
    pub fn is_half(&self) -> bool {
        self.half
    }

    /// All elements, borders included.
    pub(crate) fn values(&self) -> Values<'_> {
        if self.half { Values::Bf16(self.bytes.slice()) } else { Values::F32(self.bytes.slice()) }
    }

    /// All elements, borders included.
    pub(crate) fn values_mut(&mut self) -> ValuesMut<'_> {
        if self.half { ValuesMut::Bf16(self.bytes.slice_mut()) } else { ValuesMut::F32(self.bytes.slice_mut()) }
    }
}

/// Zeros the border, the padding of channels and the slack, which older contents may have filled.
fn clear_border<T: Element>(values: &mut [T], shape: ImageShape) {
    let (pixel, row) = (shape.pixel(), shape.row());
    for batch in 0..shape.batch {
        for y in 0..shape.height + 2 * BORDER {
            let values = &mut values[shape.at(batch, y, 0)..][..row];
            if y < BORDER || y >= shape.height + BORDER {
                values.fill(T::zeroed());
                continue;
            }
            values[..BORDER * pixel].fill(T::zeroed());
            values[row - BORDER * pixel..].fill(T::zeroed());
            if pixel > shape.channels {
                values.chunks_exact_mut(pixel).for_each(|values| values[shape.channels..].fill(T::zeroed()));
            }
        }
    }
    let end = shape.batch * shape.picture();
    values[end..end + SLACK * pixel].fill(T::zeroed());
}
