//! Attention in bf16 by the dot products of AVX512-BF16.

use std::arch::x86_64::*;

use half::bf16;

use super::flash::{Engine, IN_FRONT, QUERIES, Rows, State};
use super::float::Rescale;
use super::pairs::{PAIR, hide_rest, pack_pairs, padded, softmax, weights};
use crate::dots;
use crate::isa::Isa;
use crate::linear::PANEL;
use crate::simd::dispatch;

/// Keys of a block: its scores stay in L1, and its keys and values beside the sums of all panels in L2.
const KEYS: usize = 128;
const _: () = assert!(KEYS.is_multiple_of(PAIR) && IN_FRONT * 2 >= PAIR * QUERIES && QUERIES == PANEL);

/// Scores and sums by `vdpbf16ps`. Keys (and elements of values) are the rows of its left operand, in blocks as equal as
/// possible, with elements (and keys) in pairs.
pub(super) struct Dots;

impl Engine<bf16> for Dots {
    const KEYS: usize = KEYS;

    fn key_bytes(&self, dim: usize) -> usize {
        KEYS * padded(dim) * 2 + dots::SPARE
    }

    fn value_bytes(&self, dim: usize) -> usize {
        (dim * KEYS * 2).next_multiple_of(64) + dots::SPARE
    }

    fn query_bytes(&self, dim: usize) -> usize {
        QUERIES * padded(dim) * 2
    }

    fn sum_rows(&self, dim: usize) -> usize {
        dim
    }

    fn enter(&self) -> impl Sized {}

    /// Blocks of keys, `[pairs of elements][keys][2]` each.
    unsafe fn pack_keys(&self, rows: Rows<bf16>, dim: usize, to: *mut u8) {
        for (start, count) in blocks(rows.count) {
            // SAFETY: AVX512-BF16 is what chose this engine; a block takes `count` padded rows, and what is written behind
            // it belongs to the next one.
            unsafe {
                let from = rows.start.add(start * rows.stride);
                dots::pack(from, rows.stride, count, dim, to.add(start * padded(dim) * 2));
            }
        }
    }

    /// Blocks of elements, `[pairs of keys][elements][2]` each.
    unsafe fn pack_values(&self, rows: Rows<bf16>, dim: usize, to: *mut u8) {
        // SAFETY: as above.
        unsafe { pack_values(rows, dim, to.cast()) }
    }

    unsafe fn pack_queries(&self, rows: Rows<bf16>, dim: usize, to: *mut u8) {
        // SAFETY: as above.
        unsafe { pack_pairs(rows, dim, to) }
    }

    unsafe fn scores(&self, keys: *const u8, queries: *const u8, dim: usize, count: usize, scores: *mut f32) {
        for (start, rows) in blocks(count) {
            // SAFETY: as above.
            unsafe {
                let a = keys.add(start * padded(dim) * 2);
                dots::multiply(a, queries, scores.add(start * QUERIES), rows, padded(dim) / PAIR, true);
            }
        }
        // SAFETY: blocks are whole steps.
        unsafe { hide_rest(scores, count) };
    }

    unsafe fn softmax(&self, scores: *mut f32, count: usize, scale: f32, state: &mut State) -> bool {
        // SAFETY: as above.
        unsafe { softmax(scores, count.div_ceil(PAIR), scale, state) }
    }

    unsafe fn values(
        &self,
        values: *const u8,
        scores: *const f32,
        dim: usize,
        count: usize,
        sums: *mut f32,
        first: bool,
    ) {
        for (start, rows) in blocks(dim) {
            // SAFETY: as above; the weights lie in front of the scores.
            unsafe {
                let a = values.add(start * KEYS * 2);
                dots::multiply(a, weights(scores), sums.add(start * QUERIES), rows, count.div_ceil(PAIR), first);
            }
        }
    }

    unsafe fn rescale(&self, sums: *mut f32, dim: usize, factors: &[f32; QUERIES]) {
        // SAFETY: the caller's contract.
        unsafe { dispatch(Isa::Avx512Bf16, Rescale { sums, dim, factors }) }
    }
}

/// Starts and lengths of the blocks that so many rows are multiplied in.
fn blocks(rows: usize) -> impl Iterator<Item = (usize, usize)> {
    let each = dots::even_rows(rows).max(1);
    (0..rows).step_by(each).map(move |start| (start, each.min(rows - start)))
}

/// # Safety
/// AVX-512 is there, the rows are valid for `dim` elements, and `to` has room for `dim` times `KEYS` and `dots::SPARE` bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_values(values: Rows<bf16>, dim: usize, to: *mut i32) {
    for (start, count) in blocks(dim) {
        let mask = (1u16 << count) - 1;
        let load = |key: usize| {
            if key >= values.count {
                return _mm512_setzero_si512();
            }
            // SAFETY: by the contract above; masked elements are not read.
            unsafe {
                let from = values.start.add(key * values.stride + start);
                _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from.cast()))
            }
        };
        // Whole steps: what fills the last one up meets weights of zero, but must not be NaN.
        for pair in 0..values.count.next_multiple_of(PAIR) / 2 {
            let both = _mm512_or_si512(load(2 * pair), _mm512_slli_epi32::<16>(load(2 * pair + 1)));
            // SAFETY: by the contract above. Whole vectors are stored, each over the place of what comes after it.
            unsafe { _mm512_storeu_si512(to.add(start * (KEYS / 2) + pair * count).cast(), both) };
        }
    }
}
