//! `inline bench`: timings on random numbers, so that nothing need be downloaded.

use crate::{Failure, Result};
use clap::{Args, Subcommand, ValueEnum};
use gen_core::{CancelFlag, Precision, Quant};
use kernels::Ctx;
use kernels::bench::{Case, time};
use kernels::linear::WeightFormat;
use runtime_cpu::providers::z_image::bench::{DecodeBench, DenoiseBench, released, released_vae};
use serde_json::{Value, json};

/// Caption length of the measured step, in tokens.
const CAPTION_TOKENS: usize = 64;

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The work
    #[command(subcommand)]
    pub work: Work,
}

/// What can be timed.
#[derive(Debug, Subcommand)]
pub enum Work {
    /// One linear layer: (m, k) activations times (n, k) weights
    Linear {
        /// Rows of activations
        #[arg(long, default_value_t = 1088)]
        m: usize,
        /// Inputs
        #[arg(long, default_value_t = 3840)]
        k: usize,
        /// Outputs
        #[arg(long, default_value_t = 3840)]
        n: usize,
        /// How weights are held: f32, bf16, int8, q8_0, q4_0, q4_k, q5_k or q6_k [default: f32 or bf16, the best one here]
        #[arg(long)]
        format: Option<WeightFormat>,
        #[command(flatten)]
        common: Common,
    },
    /// Attention of tokens with themselves
    Attention {
        /// Tokens
        #[arg(long, default_value_t = 1088)]
        tokens: usize,
        /// Heads
        #[arg(long, default_value_t = 30)]
        heads: usize,
        /// Length of a head
        #[arg(long, default_value_t = 128)]
        dim: usize,
        /// Number format [default: the best one here]
        #[arg(long)]
        dtype: Option<Dtype>,
        #[command(flatten)]
        common: Common,
    },
    /// A 3x3 convolution of a square image
    Conv {
        /// Width and height
        #[arg(long, default_value_t = 256)]
        size: usize,
        /// Channels of the image
        #[arg(long, default_value_t = 256)]
        inputs: usize,
        /// Channels of the result
        #[arg(long, default_value_t = 256)]
        outputs: usize,
        /// Of the image at twice its size
        #[arg(long)]
        upsample: bool,
        /// Number format [default: the best one here]
        #[arg(long)]
        dtype: Option<Dtype>,
        #[command(flatten)]
        common: Common,
    },
    /// One denoise step of a family's true widths
    Denoise {
        /// Main transformer layers
        #[arg(long, default_value_t = 4)]
        layers: usize,
        /// Hold the matrices of the layers in 8 bits
        #[arg(long, value_parser = ["q8"])]
        quant: Option<String>,
        #[command(flatten)]
        picture: Picture,
        #[command(flatten)]
        common: Common,
    },
    /// Decoding latents to a picture
    Decode {
        #[command(flatten)]
        picture: Picture,
        #[command(flatten)]
        common: Common,
    },
}

/// What is drawn.
#[derive(Debug, Args)]
pub struct Picture {
    /// Family whose true widths are used
    #[arg(long, default_value = "z-image", value_parser = ["z-image"])]
    pub geometry: String,
    /// Width in pixels
    #[arg(long, default_value_t = 512)]
    pub width: usize,
    /// Height in pixels
    #[arg(long, default_value_t = 512)]
    pub height: usize,
    /// Number format [default: the best one here]
    #[arg(long)]
    pub dtype: Option<Dtype>,
}

/// For every work.
#[derive(Debug, Args)]
pub struct Common {
    /// Timed repetitions, after one that isn't counted
    #[arg(long, alias = "steps", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub runs: u32,
    /// Print one JSON line
    #[arg(long)]
    pub json: bool,
}

/// A number format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Dtype {
    /// 32-bit floats
    F32,
    /// Brain floats
    Bf16,
}

impl Dtype {
    fn or_best(wanted: Option<Dtype>) -> Precision {
        match wanted {
            Some(Dtype::F32) => Precision::F32,
            Some(Dtype::Bf16) => Precision::Bf16,
            None => layers::best_cpu_precision(),
        }
    }
}

/// What was measured, beside its sizes.
struct Report {
    work: &'static str,
    sizes: Value,
    dtype: String,
    flops: f64,
    seconds: Vec<f64>,
}

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let ctx = Ctx::global();
    match &args.work {
        Work::Linear { m, k, n, format, common } => {
            let best =
                if layers::best_cpu_precision() == Precision::F32 { WeightFormat::F32 } else { WeightFormat::Bf16 };
            let format = format.unwrap_or(best);
            let case = Case::linear(ctx, format, *m, *k, *n);
            kernel("linear", json!({ "m": m, "k": k, "n": n }), format.to_string(), case, common)
        }
        Work::Attention { tokens, heads, dim, dtype, common } => {
            let precision = Dtype::or_best(*dtype);
            let case = Case::attention(ctx, precision == Precision::Bf16, *tokens, *heads, *dim);
            let sizes = json!({ "tokens": tokens, "heads": heads, "dim": dim });
            kernel("attention", sizes, precision.to_string(), case, common)
        }
        Work::Conv { size, inputs, outputs, upsample, dtype, common } => {
            let precision = Dtype::or_best(*dtype);
            let case = Case::conv(ctx, precision == Precision::Bf16, *size, *inputs, *outputs, *upsample);
            let sizes = json!({ "size": size, "inputs": inputs, "outputs": outputs, "upsample": upsample });
            kernel("conv", sizes, precision.to_string(), case, common)
        }
        Work::Denoise { layers, quant, picture, common } => {
            let (precision, size) = (Dtype::or_best(picture.dtype), [picture.width, picture.height]);
            let quantized = quant.as_ref().map(|_| Quant::Q8);
            let bench = DenoiseBench::new(released(*layers), precision, quantized, size, CAPTION_TOKENS);
            let (bench, cancel) = (bench.map_err(Failure::of)?, CancelFlag::new());
            let seconds = time(common.runs as usize, || bench.step(&cancel)).map_err(Failure::of)?;
            let sizes = json!({ "geometry": picture.geometry, "layers": layers, "width": size[0], "height": size[1],
                "quant": quant });
            let (dtype, flops) = (precision.to_string(), bench.flops() as f64);
            print(Report { work: "denoise", sizes, dtype, flops, seconds }, common)
        }
        Work::Decode { picture, common } => {
            let (precision, size) = (Dtype::or_best(picture.dtype), [picture.width, picture.height]);
            let bench = DecodeBench::new(released_vae(), precision, size).map_err(Failure::of)?;
            let cancel = CancelFlag::new();
            let seconds = time(common.runs as usize, || bench.decode(&cancel)).map_err(Failure::of)?;
            let sizes = json!({ "geometry": picture.geometry, "width": size[0], "height": size[1] });
            let (dtype, flops) = (precision.to_string(), bench.flops() as f64);
            print(Report { work: "decode", sizes, dtype, flops, seconds }, common)
        }
    }
}

fn kernel(
    work: &'static str,
    sizes: Value,
    dtype: String,
    case: kernels::Result<Case<'_>>,
    common: &Common,
) -> Result<()> {
    let mut case = case.map_err(Failure::of)?;
    let seconds = time(common.runs as usize, || case.run()).map_err(Failure::of)?;
    print(Report { work, sizes, dtype, flops: case.flops(), seconds }, common)
}

fn print(report: Report, common: &Common) -> Result<()> {
    let Report { work, sizes, dtype, flops, seconds } = report;
    let (median, min, max) = (seconds[seconds.len() / 2], seconds[0], seconds[seconds.len() - 1]);
    let (threads, isa) = (Ctx::global().pool().threads(), Ctx::global().isa().name());
    let tflops = flops / median / 1e12;
    if !common.json {
        let sizes: Vec<String> = sizes.as_object().into_iter().flatten().map(|(k, v)| format!("{k} {v}")).collect();
        let sizes = sizes.join(", ").replace('"', "");
        println!(
            "{work} ({sizes}) in {dtype} on {isa}, threads {threads}: median {} (min {}, max {}), {tflops:.2} TFLOP/s",
            readable(median),
            readable(min),
            readable(max),
        );
        return Ok(());
    }
    let mut line = json!({
        "work": work, "dtype": dtype, "threads": threads, "isa": isa, "runs": seconds.len(),
        "median_s": median, "min_s": min, "max_s": max, "tflops": tflops,
        "peak_rss_bytes": peak_rss(), "candle_fallbacks": layers::fallbacks(),
    });
    if let (Some(line), Value::Object(sizes)) = (line.as_object_mut(), sizes) {
        line.extend(sizes);
    }
    println!("{line}");
    Ok(())
}

fn readable(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.3} ms", seconds * 1e3) } else { format!("{seconds:.3} s") }
}

/// Most memory that the process has held at once, where the system tells.
fn peak_rss() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}
