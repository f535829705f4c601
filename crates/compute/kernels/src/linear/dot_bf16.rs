//! Products with the bf16 dot-product instruction of AVX-512.

use std::arch::x86_64::*;

use half::bf16;

use super::driver::{BF16, Engine, Packed, Place, Work, row};
use super::{PANEL, TILE_K};
use crate::memory::Scratch;
use crate::values::Values;

/// Inner elements of a chunk.
const CHUNK: usize = 256;

/// `vdpbf16ps` on packed tiles.
pub(super) struct DotBf16;

impl Engine for DotBf16 {
    const SPARE: usize = 0;
    const ROWS: usize = 14;
    type State = ();

    fn chunk(&self, _: usize) -> usize {
        CHUNK
    }

    fn bytes_per_k(rows: usize) -> usize {
        rows * BF16
    }

    /// `[pairs of k][rows][2]`.
    unsafe fn pack(&self, x: Values<'_>, inputs: usize, first: usize, rows: usize, to: Packed) {
        let padded = inputs.next_multiple_of(TILE_K);
        let mut line = Scratch::of::<bf16>(padded);
        let line = line.ptr::<bf16>();
        for r in 0..rows {
            // SAFETY: the line and the block have room for the padded row.
            unsafe {
                to_bf16(row(x, inputs, first + r), line, padded);
                for start in (0..padded).step_by(CHUNK) {
                    let to = to.chunk(start / CHUNK).cast::<u32>().add(r);
                    let pairs = line.add(start).cast::<u32>();
                    let count = CHUNK.min(padded - start) / 2;
                    (0..count).for_each(|pair| to.add(pair * rows).write(*pairs.add(pair)));
                }
            }
        }
    }

    fn enter(&self, _: usize) {}

    fn space_bytes(&self, _: usize) -> usize {
        0
    }

    unsafe fn weights(&self, panel: *const u8, _: usize, _: *mut u8) -> *const u8 {
        panel
    }

    unsafe fn multiply(&self, (): &mut (), work: Work) {
        let Work { a, b, sums, rows, len, place: Place { first, .. }, .. } = work;
        let steps = len.div_ceil(TILE_K);
        macro_rules! blocks {
            ($($rows:literal)*) => {
                // SAFETY: AVX512-BF16 is what chose this engine; the rest is the caller's contract.
                match rows {
                    $($rows => unsafe { block::<$rows>(a.cast(), b, sums, steps, first) },)*
                    _ => unreachable!("blocks are no larger"),
                }
            };
        }
        blocks!(1 2 3 4 5 6 7 8 9 10 11 12 13 14)
    }
}

/// # Safety
/// `a` is `[steps * 16][ROWS]` pairs, `b` is `[steps][2][16][16]` pairs, `sums` is `[ROWS][PANEL]`.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn block<const ROWS: usize>(a: *const i32, b: *const u8, sums: *mut f32, steps: usize, first: bool) {
    // SAFETY: by the contract above.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); 2]; ROWS];
        if !first {
            for r in 0..ROWS {
                acc[r] = [_mm512_loadu_ps(sums.add(r * PANEL)), _mm512_loadu_ps(sums.add(r * PANEL + 16))];
            }
        }
        let mut a = a;
        for step in 0..steps {
            let tiles = b.add(step * 2048);
            for pair in 0..16 {
                let w: [__m512bh; 2] = [
                    std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(tiles.add(pair * 64).cast())),
                    std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(tiles.add(1024 + pair * 64).cast())),
                ];
                for r in 0..ROWS {
                    let x = std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(*a.add(r)));
                    acc[r][0] = _mm512_dpbf16_ps(acc[r][0], x, w[0]);
                    acc[r][1] = _mm512_dpbf16_ps(acc[r][1], x, w[1]);
                }
                a = a.add(ROWS);
            }
        }
        for r in 0..ROWS {
            _mm512_storeu_ps(sums.add(r * PANEL), acc[r][0]);
            _mm512_storeu_ps(sums.add(r * PANEL + 16), acc[r][1]);
        }
    }
}

/// A row as bf16, with zeros up to `padded` (a multiple of 32).
///
/// # Safety
/// AVX512-BF16 is there, and `to` has room.
pub(super) unsafe fn to_bf16(row: Values<'_>, to: *mut bf16, padded: usize) {
    // SAFETY: by the contract above.
    unsafe {
        match row {
            Values::Bf16(values) => std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len()),
            Values::F32(values) => round(values, to),
        }
        to.add(row.len()).write_bytes(0, padded - row.len());
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn round(values: &[f32], to: *mut bf16) {
    let whole = values.len() / 32 * 32;
    // SAFETY: `to` has room for all of them.
    unsafe {
        for i in (0..whole).step_by(32) {
            let (low, high) = (_mm512_loadu_ps(values.as_ptr().add(i)), _mm512_loadu_ps(values.as_ptr().add(i + 16)));
            let both = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
            _mm512_storeu_si512(to.add(i).cast(), both);
        }
        for i in whole..values.len() {
            // The vector instruction flushes subnormals, so the tail does too.
            let value = values[i];
            to.add(i).write(bf16::from_f32(if value.is_subnormal() { 0.0f32.copysign(value) } else { value }));
        }
    }
}
