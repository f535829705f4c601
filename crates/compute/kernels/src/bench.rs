//! Single kernels on random numbers, to be timed: what `inline bench linear|attention|conv` runs.

pub mod peak;

use std::time::Instant;

use half::bf16;

use crate::attention::{Attention, View};
use crate::conv::{Conv2d, ConvEpilogue, ConvShape, Image, ImageShape};
use crate::linear::{Epilogue, PackedLinearBuilder, WeightFormat};
use crate::{Ctx, KernelError, Result, Values, ValuesMut};

/// Something that can be run again and again.
pub struct Case<'a> {
    flops: f64,
    step: Box<dyn FnMut() -> Result<()> + 'a>,
}

impl<'a> Case<'a> {
    /// `(m, k)` times a layer of `(n, k)` weights. Activations are bf16 unless the weights are f32.
    ///
    /// # Errors
    /// Sizes that overflow, or a `k` that is no whole blocks of the format.
    pub fn linear(ctx: &'a Ctx, format: WeightFormat, m: usize, k: usize, n: usize) -> Result<Self> {
        let half = format != WeightFormat::F32;
        let (inputs, outputs) = (sized(&[m, k])?, sized(&[m, n])?);
        let mut builder = PackedLinearBuilder::new(format, n, k)?;
        let weights = sized(&[n, k])?;
        match format.file_block_bytes() {
            // Any bytes take equally long, as long as the factors are finite.
            Some(bytes) => builder.push_blocks(ctx, &vec![0x11; weights / format.block() * bytes])?,
            None => builder.push(ctx, Buffer::noise(weights, half).get())?,
        }
        let layer = builder.finish()?;
        let (x, mut y) = (Buffer::noise(inputs, half), Buffer::noise(outputs, half));
        let step = move || layer.forward(ctx, x.get(), m, y.get_mut(), &Epilogue::default());
        Ok(Case { flops: 2.0 * m as f64 * k as f64 * n as f64, step: Box::new(step) })
    }

    /// Full attention of `tokens` with themselves, in bf16 or f32.
    ///
    /// # Errors
    /// Sizes that overflow, or a head that is too large.
    pub fn attention(ctx: &'a Ctx, half: bool, tokens: usize, heads: usize, dim: usize) -> Result<Self> {
        let shape = Attention::full(1, heads, tokens, dim);
        let len = sized(&[tokens, heads, dim])?;
        let [q, k, v, mut out] = [(); 4].map(|()| Buffer::noise(len, half));
        let view = View::tokens_first(heads, tokens, dim);
        let step = move || shape.forward(ctx, (q.get(), view), (k.get(), view), (v.get(), view), (out.get_mut(), view));
        Ok(Case { flops: 4.0 * heads as f64 * (tokens as f64).powi(2) * dim as f64, step: Box::new(step) })
    }

    /// A 3x3 convolution of a `size` x `size` image, after an upsampling to twice the size if `upsample`.
    ///
    /// # Errors
    /// Sizes that overflow.
    pub fn conv(ctx: &'a Ctx, half: bool, size: usize, inputs: usize, outputs: usize, upsample: bool) -> Result<Self> {
        let format = if half { WeightFormat::Bf16 } else { WeightFormat::F32 };
        let weights = Buffer::noise(sized(&[outputs, inputs, 9])?, half);
        let conv = if upsample {
            Conv2d::upsampled(ctx, format, inputs, outputs, weights.get(), None)?
        } else {
            Conv2d::new(ctx, format, ConvShape::same3(inputs, outputs), weights.get(), None)?
        };
        let shape = ImageShape { batch: 1, height: size, width: size, channels: inputs };
        let x = Image::from_nchw(ctx, Buffer::noise(sized(&[size, size, inputs])?, half).get(), shape, half)?;
        let mut out = Image::empty(half);
        let flops = 2.0 * conv.output_shape(shape).elements() as f64 * inputs as f64 * 9.0;
        let step = move || conv.forward(ctx, &x, &mut out, ConvEpilogue::default());
        Ok(Case { flops, step: Box::new(step) })
    }

    /// Floating-point operations of a run: two for each product that is summed.
    pub fn flops(&self) -> f64 {
        self.flops
    }

    /// Runs it once.
    ///
    /// # Errors
    /// None once it was made.
    pub fn run(&mut self) -> Result<()> {
        (self.step)()
    }
}

/// Seconds of `runs` calls after one that isn't counted, sorted. There is at least one.
///
/// # Errors
/// What `step` gives.
pub fn time<E>(runs: usize, mut step: impl FnMut() -> std::result::Result<(), E>) -> std::result::Result<Vec<f64>, E> {
    step()?;
    let mut seconds = Vec::with_capacity(runs.max(1));
    for _ in 0..runs.max(1) {
        let start = Instant::now();
        step()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds)
}

/// Seconds of the calling thread's own work in `runs` calls, as `time` has them: what a single thread needs, also on a
/// machine that others keep busy. `None` where the system doesn't tell.
///
/// # Errors
/// What `step` gives.
pub fn time_own<E>(
    runs: usize,
    mut step: impl FnMut() -> std::result::Result<(), E>,
) -> std::result::Result<Option<Vec<f64>>, E> {
    let mut seconds = Vec::with_capacity(runs.max(1));
    for run in 0..=runs.max(1) {
        let start = own_seconds();
        step()?;
        let (Some(start), Some(end)) = (start, own_seconds()) else { return Ok(None) };
        if run > 0 {
            seconds.push(end - start);
        }
    }
    seconds.sort_by(f64::total_cmp);
    Ok(Some(seconds))
}

/// What the calling thread has worked so far.
fn own_seconds() -> Option<f64> {
    #[cfg(target_os = "linux")]
    {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call writes the time and nothing else.
        let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) } != 0;
        (!failed).then_some(time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9)
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// The product of sizes, where a buffer of so many elements can exist.
fn sized(sizes: &[usize]) -> Result<usize> {
    let all = sizes.iter().try_fold(8usize, |all, &size| all.checked_mul(size));
    all.filter(|&bytes| bytes <= isize::MAX as usize)
        .map(|bytes| bytes / 8)
        .ok_or(KernelError::Overflow { what: "size" })
}

/// Values of one type or the other.
enum Buffer {
    Half(Vec<bf16>),
    Full(Vec<f32>),
}

impl Buffer {
    /// Uniform from -1 to 1. Tiles run slower on such numbers than on zeros.
    fn noise(len: usize, half: bool) -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let values = (0..len).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        });
        if half { Buffer::Half(values.map(bf16::from_f32).collect()) } else { Buffer::Full(values.collect()) }
    }

    fn get(&self) -> Values<'_> {
        match self {
            Buffer::Half(values) => values.into(),
            Buffer::Full(values) => values.into(),
        }
    }

    fn get_mut(&mut self) -> ValuesMut<'_> {
        match self {
            Buffer::Half(values) => values.into(),
            Buffer::Full(values) => values.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_run_and_count_their_work() {
        let ctx = Ctx::global();
        let mut linear = Case::linear(ctx, WeightFormat::Q8_0, 3, 64, 40).unwrap();
        assert_eq!(linear.flops(), 2.0 * 3.0 * 64.0 * 40.0);
        assert_eq!(time(2, || linear.run()).unwrap().len(), 2);
        assert!(time_own(2, || linear.run()).unwrap().is_none_or(|seconds| seconds.len() == 2 && seconds[0] > 0.0));
        let mut attention = Case::attention(ctx, true, 5, 2, 16).unwrap();
        assert_eq!(attention.flops(), 4.0 * 2.0 * 25.0 * 16.0);
        attention.run().unwrap();
        let mut conv = Case::conv(ctx, false, 4, 3, 5, true).unwrap();
        assert_eq!(conv.flops(), 2.0 * 64.0 * 5.0 * 3.0 * 9.0);
        conv.run().unwrap();
        assert!(Case::linear(ctx, WeightFormat::F32, usize::MAX, 2, 2).is_err());
        assert!(Case::attention(ctx, true, usize::MAX, 2, 2).is_err());
    }
}
