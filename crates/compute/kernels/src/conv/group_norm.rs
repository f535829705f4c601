//! Group norm over images, fused with the activation that follows it.

use super::image::{BORDER, Image, ImageShape};
use crate::ctx::Ctx;
use crate::error::{KernelError, Result, exact};
use crate::linear::Activation;
use crate::math;
use crate::pool::SharedMut;
use crate::simd::{Element, Kernel, Simd, dispatch};
use crate::values::{Values, ValuesMut};

/// `activation((x - mean) / sqrt(variance + eps) * weight + bias)`, with mean and variance of each group of channels over
/// all pixels of a picture.
#[derive(Debug, Clone, Copy)]
pub struct GroupNorm<'a> {
    /// Groups of neighbouring channels.
    pub groups: usize,
    /// Added to the variance.
    pub eps: f32,
    /// One factor a channel.
    pub weight: &'a [f32],
    /// One summand a channel.
    pub bias: &'a [f32],
    /// Applied last.
    pub activation: Activation,
}

impl GroupNorm<'_> {
    /// Normalises `x` into `out`, which takes its shape and keeps its own element type.
    pub fn forward(&self, ctx: &Ctx, x: &Image, out: &mut Image) -> Result<()> {
        let shape = x.shape();
        let channels = shape.channels;
        exact("weight", channels, self.weight.len())?;
        exact("bias", channels, self.bias.len())?;
        if self.groups == 0 || !channels.is_multiple_of(self.groups) {
            let why = format!("{channels} channels can't be cut into {} groups", self.groups);
            return Err(KernelError::Shape { what: "group norm", why });
        }
        out.reshape(shape)?;
        if shape.elements() == 0 {
            return Ok(());
        }
        let factors = match x.values() {
            Values::F32(x) => self.factors(ctx, x, shape),
            Values::Bf16(x) => self.factors(ctx, x, shape),
        };
        match (x.values(), out.values_mut()) {
            (Values::F32(x), ValuesMut::F32(out)) => self.apply(ctx, x, out, shape, &factors),
            (Values::F32(x), ValuesMut::Bf16(out)) => self.apply(ctx, x, out, shape, &factors),
            (Values::Bf16(x), ValuesMut::F32(out)) => self.apply(ctx, x, out, shape, &factors),
            (Values::Bf16(x), ValuesMut::Bf16(out)) => self.apply(ctx, x, out, shape, &factors),
        }
        Ok(())
    }

    /// What each channel of each picture is multiplied with, and what is added: `[batch][2][channels padded]`.
    fn factors<T: Element>(&self, ctx: &Ctx, x: &[T], shape: ImageShape) -> Vec<f32> {
        let (pixel, rows) = (shape.pixel(), shape.batch * shape.height);
        // Sum and sum of squares about the row's own first pixel, which keeps them small where the mean is large; by
        // rows, so that the order of addition does not depend on the threads.
        let mut moments = vec![0f32; rows * 3 * pixel];
        let parts = SharedMut::new(&mut moments);
        ctx.pool().run(rows, |row| {
            let start = shape.at(row / shape.height, row % shape.height + BORDER, BORDER);
            let x = &x[start..][..shape.width * pixel];
            // SAFETY: each row has its own part.
            unsafe { dispatch(ctx.isa(), Moments { x, pixel, to: parts.part(row * 3 * pixel, 3 * pixel) }) };
        });
        let size = shape.channels / self.groups;
        let mut factors = vec![0f32; shape.batch * 2 * pixel];
        for (batch, factors) in factors.chunks_exact_mut(2 * pixel).enumerate() {
            for group in 0..self.groups {
                // Means and squared deviations of channels and rows are merged pairwise in f64 (Chan et al. 1979).
                let (mut count, mut mean, mut square) = (0f64, 0f64, 0f64);
                for y in 0..shape.height {
                    let part = &moments[(batch * shape.height + y) * 3 * pixel..][..3 * pixel];
                    for channel in group * size..(group + 1) * size {
                        let n = shape.width as f64;
                        let (center, sum, squares) = (
                            f64::from(part[channel]),
                            f64::from(part[pixel + channel]),
                            f64::from(part[2 * pixel + channel]),
                        );
                        let (own_mean, own_square) = (center + sum / n, squares - sum * sum / n);
                        let delta = own_mean - mean;
                        let total = count + n;
                        mean += delta * n / total;
                        square += own_square + delta * delta * count * n / total;
                        count = total;
                    }
                }
                let inverse = 1.0 / (square.max(0.0) / count + f64::from(self.eps)).sqrt();
                for channel in group * size..(group + 1) * size {
                    let factor = f64::from(self.weight[channel]) * inverse;
                    factors[channel] = factor as f32;
                    factors[pixel + channel] = (f64::from(self.bias[channel]) - mean * factor) as f32;
                }
            }
        }
        factors
    }

    fn apply<I: Element, O: Element>(&self, ctx: &Ctx, x: &[I], out: &mut [O], shape: ImageShape, factors: &[f32]) {
        let pixel = shape.pixel();
        let out = SharedMut::new(out);
        ctx.pool().run(shape.batch * shape.height, |row| {
            let start = shape.at(row / shape.height, row % shape.height + BORDER, BORDER);
            let len = shape.width * pixel;
            let factors = &factors[row / shape.height * 2 * pixel..][..2 * pixel];
            // SAFETY: each row of the output is one piece's own.
            let out = unsafe { out.part(start, len) };
            let work = Apply { x: &x[start..][..len], out, factors, activation: self.activation };
            // SAFETY: all sizes are multiples of the padded pixel.
            unsafe { dispatch(ctx.isa(), work) };
        });
    }
}

/// Center, sum and sum of squares of each channel over a row.
struct Moments<'a, T> {
    x: &'a [T],
    pixel: usize,
    to: &'a mut [f32],
}

impl<T: Element> Kernel for Moments<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        let pixels = self.x.len() / self.pixel;
        // Two vectors at a time; a padded pixel is a multiple of 32.
        for c in (0..self.pixel).step_by(2 * V::LANES) {
            // SAFETY: within the row and the part.
            unsafe {
                let load = |pixel: usize, i: usize| {
                    T::load::<V>(self.x.as_ptr().add(pixel * self.pixel + c + i * V::LANES), V::LANES)
                };
                let center = [load(0, 0), load(0, 1)];
                let (mut sum, mut square) = ([V::splat(0.0); 2], [V::splat(0.0); 2]);
                for pixel in 0..pixels {
                    for i in 0..2 {
                        let x = load(pixel, i).sub(center[i]);
                        sum[i] = sum[i].add(x);
                        square[i] = x.fma(x, square[i]);
                    }
                }
                for i in 0..2 {
                    let to = self.to.as_mut_ptr().add(c + i * V::LANES);
                    center[i].store(to);
                    sum[i].store(to.add(self.pixel));
                    square[i].store(to.add(2 * self.pixel));
                }
            }
        }
    }
}

/// One row.
struct Apply<'a, I, O> {
    x: &'a [I],
    out: &'a mut [O],
    factors: &'a [f32],
    activation: Activation,
}

impl<I: Element, O: Element> Kernel for Apply<'_, I, O> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        // SAFETY: `dispatch` chose vectors that the CPU has.
        unsafe {
            match self.activation {
                Activation::Identity => self.row::<V>(|x| x),
                Activation::Silu => self.row::<V>(|x| math::silu(x)),
                Activation::GeluTanh => self.row::<V>(|x| math::gelu_tanh(x)),
                Activation::GeluErf => self.row::<V>(|x| math::gelu_erf(x)),
                Activation::QuickGelu => self.row::<V>(|x| math::quick_gelu(x)),
            }
        }
    }
}

impl<I: Element, O: Element> Apply<'_, I, O> {
    /// Padding channels have factors of zero, and every activation keeps zero.
    #[inline(always)]
    unsafe fn row<V: Simd>(self, activation: impl Fn(V) -> V) {
        let pixel = self.factors.len() / 2;
        for start in (0..self.x.len()).step_by(pixel) {
            for c in (0..pixel).step_by(V::LANES) {
                // SAFETY: within the row and the factors.
                unsafe {
                    let (factor, plus) =
                        (V::load(self.factors.as_ptr().add(c)), V::load(self.factors.as_ptr().add(pixel + c)));
                    let x = I::load::<V>(self.x.as_ptr().add(start + c), V::LANES);
                    O::store(activation(x.fma(factor, plus)), self.out.as_mut_ptr().add(start + c), V::LANES);
                }
            }
        }
    }
}
