//! Times one kernel without building the whole program:
//! `cargo run --release -p kernels --example bench -- linear --m 1088 --k 3840 --n 3840`.
//!
//! Prints one JSON line (`peak`, the machine's own limits, one for each); options: `--isa`, `--threads`, `--dtype bfloat16|float32`, `--format int8|q8_0|…`, `--runs`, `--clock wall|own` and the
//! sizes. `own` leaves out what other programs take from a single thread.

use std::error::Error;

use kernels::bench::peak::{self, Limit};
use kernels::bench::{Case, time, time_own};
use kernels::linear::WeightFormat;
use kernels::{Ctx, Isa};

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
    if work == "peak" {
        for limit in peak::limits(ctx.pool().threads()) {
            let Limit { what, threads, unit, rate } = limit;
            println!(
                "{{\"work\":\"peak\",\"what\":\"{what}\",\"threads\":{threads},\"rate\":{rate:.3},\"unit\":\"{unit}\"}}"
            );
        }
        return Ok(());
    }
    let dtype = options.text("dtype", "bfloat16");
    let half = dtype == "bfloat16";
    let number = |name: &str, default: usize| options.number(name, default);
    let mut case = match work.as_str() {
        "linear" => {
            let default = if half { "bf16" } else { "f32" };
            let format: WeightFormat = options.text("format", default).parse()?;
            Case::linear(&ctx, format, number("m", 1088)?, number("k", 3840)?, number("n", 3840)?)?
        }
        "attention" => Case::attention(&ctx, half, number("tokens", 1088)?, number("heads", 30)?, number("dim", 128)?)?,
        "conv" => {
            let channels = number("channels", 256)?;
            let (outputs, upsample) = (number("n", channels)?, number("upsample", 0)? == 1);
            Case::conv(&ctx, half, number("size", 256)?, channels, outputs, upsample)?
        }
        other => return Err(format!("no such work: {other}").into()),
    };
    let runs = number("runs", 11)?;
    let seconds = match options.text("clock", "wall").as_str() {
        "own" if ctx.pool().threads() == 1 => time_own(runs, || case.run())?.ok_or("this system has no such clock")?,
        "own" => return Err("a thread's own clock times one thread; add --threads 1".into()),
        _ => time(runs, || case.run())?,
    };
    let (median, min, max) = (seconds[seconds.len() / 2], seconds[0], seconds[seconds.len() - 1]);
    println!(
        "{{\"work\":\"{work}\",\"dtype\":\"{dtype}\",\"isa\":\"{isa}\",\"threads\":{},\"median_s\":{median:.6},\
         \"min_s\":{min:.6},\"max_s\":{max:.6},\"tflops\":{:.3},\"best_tflops\":{:.3}}}",
        ctx.pool().threads(),
        case.flops() / median / 1e12,
        case.flops() / min / 1e12,
    );
    Ok(())
}
