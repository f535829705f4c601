//! Times one kernel: `cargo run --release -p kernels --example bench -- linear --m 1088 --k 3840 --n 3840`.
//!
//! Prints one JSON line; options: `--isa`, `--threads`, `--dtype bfloat16|float32`, `--format int8|q8_0|…`, `--runs` and the sizes.

use std::error::Error;
use std::time::Instant;

use half::bf16;
use kernels::attention::{Attention, View};
use kernels::conv::{Conv2d, ConvEpilogue, ConvShape, Image, ImageShape};
use kernels::linear::{Epilogue, PackedLinearBuilder, WeightFormat};
use kernels::norm::Norm;
use kernels::rope::{HeadNorm, Heads, Rope, RopeStyle, norm_rope};
use kernels::{Ctx, Isa, Values, ValuesMut};

/// As programs that run networks have it.
#[global_allocator]
static ALLOCATOR: kernels::Recycler = kernels::Recycler::new();

struct Options(Vec<String>);

impl Options {
    fn text(&self, name: &str, default: &str) -> String {
        let at = self.0.iter().position(|word| word.strip_prefix("--") == Some(name));
        at.and_then(|at| self.0.get(at + 1)).cloned().unwrap_or_else(|| default.to_string())
    }

    fn number(&self, name: &str, default: usize) -> Result<usize, Box<dyn Error>> {
        Ok(self.text(name, &default.to_string()).parse()?)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options(std::env::args().skip(1).collect());
    let work = options.0.first().cloned().unwrap_or_else(|| "linear".into());
    let isa: Isa = options.text("isa", Isa::active().name()).parse()?;
    let ctx = Ctx::new(isa, options.number("threads", Ctx::global().pool().threads())?)?;
    let dtype = options.text("dtype", "bfloat16");
    let runs = options.number("runs", 11)?.max(1);
    let half = dtype == "bfloat16";
    let (mut seconds, flop) = match work.as_str() {
        "linear" => linear(&ctx, &options, half, runs)?,
        "attention" => attention(&ctx, &options, half, runs)?,
        "norm" | "rope" => rows(&ctx, &options, half, runs, work == "rope")?,
        "conv" => conv(&ctx, &options, half, runs)?,
        other => return Err(format!("no such work: {other}").into()),
    };
    seconds.sort_by(f64::total_cmp);
    let (median, min, max) = (seconds[seconds.len() / 2], seconds[0], seconds[seconds.len() - 1]);
    println!(
        "{{\"work\":\"{work}\",\"dtype\":\"{dtype}\",\"isa\":\"{isa}\",\"threads\":{},\"median_s\":{median:.6},\
         \"min_s\":{min:.6},\"max_s\":{max:.6},\"tflops\":{:.3},\"best_tflops\":{:.3}}}",
        ctx.pool().threads(),
        flop / median / 1e12,
        flop / min / 1e12,
    );
    Ok(())
}

type Timings = Result<(Vec<f64>, f64), Box<dyn Error>>;

/// Times `step` after one run to warm up.
fn time(runs: usize, mut step: impl FnMut() -> kernels::Result<()>) -> Result<Vec<f64>, Box<dyn Error>> {
    step()?;
    let mut seconds = Vec::new();
    for _ in 0..runs {
        let start = Instant::now();
        step()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    Ok(seconds)
}

fn noise(len: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

/// Values of one type or the other.
enum Buffer {
    Half(Vec<bf16>),
    Full(Vec<f32>),
}

impl Buffer {
    fn noise(len: usize, half: bool) -> Self {
        let values = noise(len);
        if half { Buffer::Half(values.iter().map(|&x| bf16::from_f32(x)).collect()) } else { Buffer::Full(values) }
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

fn linear(ctx: &Ctx, options: &Options, half: bool, runs: usize) -> Timings {
    let (m, k, n) = (options.number("m", 1088)?, options.number("k", 3840)?, options.number("n", 3840)?);
    let default = if half { WeightFormat::Bf16 } else { WeightFormat::F32 };
    let format = match options.text("format", "").as_str() {
        "int8" => WeightFormat::Int8,
        "q8_0" => WeightFormat::Q8_0,
        "q4_0" => WeightFormat::Q4_0,
        "q4_k" => WeightFormat::Q4K,
        "q5_k" => WeightFormat::Q5K,
        "q6_k" => WeightFormat::Q6K,
        _ => default,
    };
    let mut builder = PackedLinearBuilder::new(format, n, k)?;
    match format.file_block_bytes() {
        // Any bytes take equally long, as long as the factors are finite.
        Some(bytes) => builder.push_blocks(ctx, &vec![0x11; n * k / format.block() * bytes])?,
        None => builder.push(ctx, Buffer::noise(n * k, half).get())?,
    }
    let layer = builder.finish()?;
    let (x, mut y) = (Buffer::noise(m * k, half), Buffer::noise(m * n, half));
    let seconds = time(runs, || layer.forward(ctx, x.get(), m, y.get_mut(), &Epilogue::default()))?;
    Ok((seconds, 2.0 * (m * k * n) as f64))
}

fn attention(ctx: &Ctx, options: &Options, half: bool, runs: usize) -> Timings {
    let (tokens, heads, dim) =
        (options.number("tokens", 1088)?, options.number("heads", 30)?, options.number("dim", 128)?);
    let shape = Attention::full(1, heads, tokens, dim);
    let len = tokens * heads * dim;
    let (q, k, v, mut out) =
        (Buffer::noise(len, half), Buffer::noise(len, half), Buffer::noise(len, half), Buffer::noise(len, half));
    let view = View::tokens_first(heads, tokens, dim);
    let seconds =
        time(runs, || shape.forward(ctx, (q.get(), view), (k.get(), view), (v.get(), view), (out.get_mut(), view)))?;
    Ok((seconds, 4.0 * (heads * tokens * tokens * dim) as f64))
}

/// `--size`, `--channels` (in), `--n` (out) and `--upsample 1`.
fn conv(ctx: &Ctx, options: &Options, half: bool, runs: usize) -> Timings {
    let (size, inputs) = (options.number("size", 256)?, options.number("channels", 256)?);
    let outputs = options.number("n", inputs)?;
    let format = if half { WeightFormat::Bf16 } else { WeightFormat::F32 };
    let weights = Buffer::noise(outputs * inputs * 9, half);
    let upsample = options.number("upsample", 0)? == 1;
    let conv = if upsample {
        Conv2d::upsampled(ctx, format, inputs, outputs, weights.get(), None)?
    } else {
        Conv2d::new(ctx, format, ConvShape::same3(inputs, outputs), weights.get(), None)?
    };
    let shape = ImageShape { batch: 1, height: size, width: size, channels: inputs };
    let x = Image::from_nchw(ctx, Buffer::noise(shape.elements(), half).get(), shape, half)?;
    let mut out = Image::empty(half);
    let seconds = time(runs, || conv.forward(ctx, &x, &mut out, ConvEpilogue::default()))?;
    Ok((seconds, 2.0 * (conv.output_shape(shape).elements() * inputs * 9) as f64))
}

/// RMS norm, or norm and rotation of heads, in place; counts each element as one operation.
fn rows(ctx: &Ctx, options: &Options, half: bool, runs: usize, rope: bool) -> Timings {
    let (tokens, heads, dim) =
        (options.number("tokens", 1088)?, options.number("heads", 30)?, options.number("dim", 128)?);
    let mut x = Buffer::noise(tokens * heads * dim, half);
    let (weight, table) = (vec![1f32; heads * dim], vec![0.6f32; tokens * dim / 2]);
    let turn = Rope { cos: &table, sin: &table, positions: tokens, rotated: dim, style: RopeStyle::Interleaved };
    let head_norm = HeadNorm { weight: &weight[..dim], eps: 1e-6 };
    let seconds = time(runs, || {
        if rope {
            norm_rope(ctx, x.get_mut(), Heads::dense(tokens, heads, dim), Some(head_norm), Some(turn))
        } else {
            Norm::rms(1e-6).weight(&weight).in_place(ctx, x.get_mut(), heads * dim)
        }
    })?;
    Ok((seconds, (tokens * heads * dim) as f64))
}
