//! `inline bench`: timings on random weights, so that nothing need be downloaded.

use crate::args::{BenchArgs, BenchWork};
use crate::{Failure, Result};
use gen_core::{CancelFlag, Precision};
use runtime_cpu::providers::z_image::bench::{DecodeBench, DenoiseBench, released, released_vae};
use serde_json::json;
use std::time::Instant;

/// Caption length of the measured step, in tokens.
const CAPTION_TOKENS: usize = 64;

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let best = layers::best_cpu_precision();
    let precision = match args.dtype.as_deref() {
        Some("f32") => Precision::F32,
        Some(_) => Precision::Bf16,
        None => best,
    };
    let size = [args.width as usize, args.height as usize];
    if args.steps == 0 {
        return Err(Failure("--steps 0: use 1 or more".into()));
    }
    let cancel = CancelFlag::new();
    let (name, times, flops) = match args.work {
        BenchWork::Denoise => {
            let bench =
                DenoiseBench::new(released(args.layers), precision, size, CAPTION_TOKENS).map_err(Failure::of)?;
            ("denoise", time(args.steps, || bench.step(&cancel))?, bench.flops())
        }
        BenchWork::Decode => {
            let bench = DecodeBench::new(released_vae(), precision, size).map_err(Failure::of)?;
            ("decode", time(args.steps, || bench.decode(&cancel))?, bench.flops())
        }
    };
    let median = times[times.len() / 2];
    let context = kernels::Ctx::global();
    let report = json!({
        "work": name,
        "geometry": args.geometry,
        "layers": args.layers,
        "width": args.width,
        "height": args.height,
        "dtype": precision.to_string(),
        "threads": context.pool().threads(),
        "isa": context.isa().name(),
        "runs": times.len(),
        "median_s": median,
        "min_s": times[0],
        "max_s": times[times.len() - 1],
        "tflops": flops as f64 / median / 1e12,
        "peak_rss_bytes": peak_rss(),
        "candle_fallbacks": layers::fallbacks(),
    });
    if args.json {
        println!("{report}");
    } else {
        println!(
            "{name} {}x{} {precision} on {} with {} threads: median {median:.3} s (min {:.3}, max {:.3}), {:.2} TFLOP/s",
            args.width,
            args.height,
            context.isa().name(),
            context.pool().threads(),
            times[0],
            times[times.len() - 1],
            flops as f64 / median / 1e12,
        );
    }
    Ok(())
}

/// Seconds of `runs` calls after one that isn't counted, sorted.
fn time(runs: usize, mut work: impl FnMut() -> gen_core::Result<()>) -> Result<Vec<f64>> {
    work().map_err(Failure::of)?;
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        let start = Instant::now();
        work().map_err(Failure::of)?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// Most memory that the process has held at once, where the system tells.
fn peak_rss() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}
