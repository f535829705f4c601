//! What the machine itself can do: the roofs under which kernels are judged.
//!
//! Arithmetic is measured from registers alone, with independent sums enough to hide latency, and on AMX also with
//! tiles loaded from L1 and L2 as a product loads them. Reads go through buffers of each level's size.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use crate::isa::Isa;
use crate::memory::Bytes;

/// One measured limit.
#[derive(Debug, Clone)]
pub struct Limit {
    /// What was measured, for instance `avx512bf16 registers`.
    pub what: &'static str,
    /// Threads at work at the same time.
    pub threads: usize,
    /// `Top/s` (two operations for each product that is summed) or `GB/s`.
    pub unit: &'static str,
    /// Of all threads together, the best of several tries.
    pub rate: f64,
}

/// A loop over `count` rounds in a thread's own memory.
struct Probe {
    what: &'static str,
    unit: &'static str,
    available: bool,
    /// Memory of each thread.
    bytes: usize,
    /// Units of 1e12 operations or 1e9 bytes that one round does.
    per_round: f64,
    rounds: usize,
    run: fn(&mut Bytes, usize),
}

/// How often each is measured.
const TRIES: usize = 5;

/// Measures everything this machine offers with `threads` threads.
pub fn limits(threads: usize) -> Vec<Limit> {
    let threads = threads.max(1);
    let probes = probes();
    let measure = |probe: &Probe| {
        let seconds = (0..TRIES).map(|_| seconds(probe, threads)).fold(f64::INFINITY, f64::min);
        let rate = probe.per_round * probe.rounds as f64 * threads as f64 / seconds;
        Limit { what: probe.what, threads, unit: probe.unit, rate }
    };
    probes.iter().filter(|probe| probe.available).map(measure).collect()
}

/// From the moment all threads start until the last one is done.
fn seconds(probe: &Probe, threads: usize) -> f64 {
    let barrier = Barrier::new(threads);
    thread::scope(|scope| {
        let start = || {
            let mut bytes = Bytes::zeroed(probe.bytes);
            bytes.slice_mut::<u8>().fill(1);
            (probe.run)(&mut bytes, probe.rounds / 4);
            barrier.wait();
            let start = Instant::now();
            (probe.run)(&mut bytes, probe.rounds);
            start.elapsed().as_secs_f64()
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(start)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or(f64::INFINITY)).fold(0.0, f64::max)
    })
}

/// Bytes of the buffers that are read from L1, L2 and memory.
const LEVELS: [usize; 3] = [24 << 10, 384 << 10, 256 << 20];

fn read(what: &'static str, bytes: usize) -> Probe {
    let rounds = ((4usize << 30) / bytes).clamp(1, 1 << 16);
    Probe { what, unit: "GB/s", available: true, bytes, per_round: bytes as f64 / 1e9, rounds, run: read_all }
}

/// Sums all of it, so that every line has to come.
fn read_all(bytes: &mut Bytes, rounds: usize) {
    let mut total = 0u64;
    for _ in 0..rounds {
        #[cfg(target_arch = "x86_64")]
        if Isa::Avx512.is_available() {
            // SAFETY: AVX-512 is there.
            unsafe { x86::read(bytes.slice::<u8>()) };
            continue;
        }
        let sums = bytes.slice::<[u64; 8]>().iter().fold([0u64; 8], |mut sums, line| {
            sums.iter_mut().zip(line).for_each(|(sum, word)| *sum ^= word);
            sums
        });
        total ^= std::hint::black_box(sums)[0];
    }
    std::hint::black_box(total);
}

fn probes() -> Vec<Probe> {
    let mut probes = Vec::new();
    #[cfg(target_arch = "x86_64")]
    x86::arithmetic(&mut probes);
    let names = ["read L1", "read L2", "read memory"];
    probes.extend(names.into_iter().zip(LEVELS).map(|(what, bytes)| read(what, bytes)));
    probes
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;

    use super::{Bytes, Isa, Probe};
    use crate::tiles::{TILE, TileConfig, two_tiles};

    /// Instructions of a round of `registers!`.
    const SUMS: usize = 12;

    /// Rounds of twelve independent instructions on 512-bit registers.
    macro_rules! registers {
        ($name:ident, $instruction:literal, $vector:literal) => {
            fn $name(_: &mut Bytes, rounds: usize) {
                if rounds == 0 {
                    return;
                }
                // SAFETY: `arithmetic` runs it only where the instruction is there; memory is not touched.
                unsafe {
                    asm!(
                        // Ones in every format: zeros would be summed without effort on some machines.
                        "vpcmpeqd ymm0, ymm0, ymm0", "vpsrlw ymm0, ymm0, 10", "vpsllw ymm0, ymm0, 8",
                        concat!("vmovups ", $vector, "14, ", $vector, "0"),
                        concat!("vmovups ", $vector, "15, ", $vector, "0"),
                        "2:",
                        concat!($instruction, " ", $vector, "0, ", $vector, "14, ", $vector, "15"),
                        concat!($instruction, " ", $vector, "1, ", $vector, "14, ", $vector, "15"),
                        concat!($instruction, " ", $vector, "2, ", $vector, "14, ", $vector, "15"),
                        concat!($instruction, " ", $vector, "3, ", $vector, "14, ", $vector, "15"),
                        concat!($instruction, " ", $vector, "4, ", $vector, "14, ", $vector, "15"),
                        concat!($instruction, " ", $vector, "5, ", $vector, "14, ", $vector, "15"),
                        concat!($instruction, " ", $vector, "6, ", $vector, "14, ", $vector, "15"),
                        concat!($instruction, " ", $vector, "7, ", $vector, "14, ", $vector, "15"),
                        concat!($instruction, " ", $vector, "8, ", $vector, "14, ", $vector, "15"),
                        concat!($instruction, " ", $vector, "9, ", $vector, "14, ", $vector, "15"),
                        concat!($instruction, " ", $vector, "10, ", $vector, "14, ", $vector, "15"),
                        concat!($instruction, " ", $vector, "11, ", $vector, "14, ", $vector, "15"),
                        "dec {n}", "jnz 2b", "vzeroupper",
                        n = inout(reg) rounds => _,
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                        out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                        out("xmm14") _, out("xmm15") _,
                        options(nostack, nomem),
                    );
                }
            }
        };
    }

    registers!(fma256, "vfmadd231ps", "ymm");
    registers!(fma512, "vfmadd231ps", "zmm");
    registers!(dot_bf16, "vdpbf16ps", "zmm");
    registers!(dot_int8, "vpdpbusd", "zmm");

    /// Rounds of four products of tiles that are never loaded.
    macro_rules! tiles {
        ($name:ident, $instruction:literal) => {
            fn $name(_: &mut Bytes, rounds: usize) {
                if rounds == 0 {
                    return;
                }
                let _tiles = TileConfig::load();
                // SAFETY: the tiles are configured; memory is not touched.
                unsafe {
                    asm!(
                        "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                        "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
                        "2:",
                        concat!($instruction, " tmm0, tmm4, tmm6"),
                        concat!($instruction, " tmm2, tmm5, tmm6"),
                        concat!($instruction, " tmm1, tmm4, tmm7"),
                        concat!($instruction, " tmm3, tmm5, tmm7"),
                        "dec {n}", "jnz 2b",
                        n = inout(reg) rounds => _,
                        options(nostack, nomem),
                    );
                }
            }
        };
    }

    tiles!(tiles_bf16, "tdpbf16ps");
    tiles!(tiles_int8, "tdpbssd");

    /// Products of as many pairs of tiles as the memory has, half of them left operands.
    fn tiles_loaded(bytes: &mut Bytes, rounds: usize) {
        let _tiles = TileConfig::load();
        let steps = bytes.len() / TILE / 4;
        let mut sums = Bytes::zeroed(4 * TILE);
        let a = bytes.as_ptr();
        for _ in 0..rounds {
            // SAFETY: the tiles are configured; both halves are `steps` pairs of tiles.
            unsafe { two_tiles(a, a.add(steps * 2 * TILE), sums.slice_mut::<f32>().as_mut_ptr(), steps, true) };
        }
    }

    /// # Safety
    /// AVX-512 is there.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn read(bytes: &[u8]) {
        use std::arch::x86_64::*;
        let mut sums = [_mm512_setzero_si512(); 8];
        for lines in bytes.chunks_exact(512) {
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the eight lines are within the chunk.
                *sum = unsafe { _mm512_xor_si512(*sum, _mm512_loadu_si512(lines.as_ptr().add(i * 64).cast())) };
            }
        }
        let sum = sums.into_iter().fold(_mm512_setzero_si512(), |a, b| _mm512_xor_si512(a, b));
        std::hint::black_box(sum);
    }

    /// Multiply-adds of one product of tiles of 32-bit sums with `deep` inner elements.
    const fn tile_ops(deep: usize) -> f64 {
        (2 * 16 * 16 * deep) as f64 / 1e12
    }

    pub(super) fn arithmetic(probes: &mut Vec<Probe>) {
        let amx = Isa::AmxBf16.is_available();
        let vnni = Isa::Avx512.is_available() && crate::isa::has_avx512_vnni();
        let mut push = |what, available, bytes, per_round, rounds, run| {
            probes.push(Probe { what, unit: "Top/s", available, bytes, per_round, rounds, run });
        };
        let vectors = |lanes: usize, deep: usize| (2 * SUMS * lanes * deep) as f64 / 1e12;
        push("amx bf16 registers", amx, 64, 4.0 * tile_ops(32), 2_000_000, tiles_bf16 as fn(&mut Bytes, usize));
        push("amx int8 registers", amx && crate::isa::has_amx_int8(), 64, 4.0 * tile_ops(64), 2_000_000, tiles_int8);
        let loaded = |bytes: usize| (bytes / TILE) as f64 * tile_ops(32);
        push("amx bf16, tiles from L1", amx, 32 * TILE, loaded(32 * TILE), 250_000, tiles_loaded);
        push("amx bf16, tiles from L2", amx, 1024 * TILE, loaded(1024 * TILE), 8_000, tiles_loaded);
        push("avx512bf16 registers", Isa::Avx512Bf16.is_available(), 64, vectors(16, 2), 20_000_000, dot_bf16);
        push("avx512 int8 registers", vnni, 64, vectors(16, 4), 20_000_000, dot_int8);
        push("avx512 f32 registers", Isa::Avx512.is_available(), 64, vectors(16, 1), 20_000_000, fma512);
        push("avx2 f32 registers", Isa::Avx2.is_available(), 64, vectors(8, 1), 20_000_000, fma256);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_a_rate() {
        // A probe that does nothing would seem infinitely fast, one that fails to run infinitely slow.
        for probe in probes().iter_mut().filter(|probe| probe.available) {
            probe.rounds = (probe.rounds / 1000).max(1);
            let seconds = seconds(probe, 2);
            assert!(seconds.is_finite() && seconds > 0.0 && probe.per_round > 0.0, "{}", probe.what);
        }
    }
}
