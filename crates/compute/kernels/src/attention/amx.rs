//! Attention in bf16 on the tiles of AMX.

use std::arch::x86_64::*;

use half::bf16;

use super::flash::{Engine, IN_FRONT, Pass, QUERIES, Rows, State};
use super::float::Rescale;
use super::pairs::{PAIR, Softmax, UNITS, hide_rest, load, pack_pairs, padded, softmax, weights};
use crate::isa::Isa;
use crate::simd::dispatch;
use crate::tiles::{Sums, TILE, TileConfig, two_tiles};
use crate::transpose::avx512::registers;

/// Keys of a block: the scores of two panels stay in L1.
const KEYS: usize = 128;
const _: () = assert!(IN_FRONT * 4 >= 2 * TILE && KEYS / PAIR == UNITS);

/// Scores and sums by `tdpbf16ps`. Everything packed is pairs of tiles, one pair for every 32 of the inner dimension.
pub(super) struct Tiles;

impl Engine<bf16> for Tiles {
    const KEYS: usize = KEYS;

    fn key_bytes(&self, dim: usize) -> usize {
        KEYS * padded(dim) * 2
    }

    fn value_bytes(&self, dim: usize) -> usize {
        KEYS * padded(dim) * 2
    }

    fn query_bytes(&self, dim: usize) -> usize {
        QUERIES * padded(dim) * 2
    }

    fn sum_rows(&self, dim: usize) -> usize {
        padded(dim)
    }

    fn enter(&self) -> impl Sized {
        TileConfig::load()
    }

    /// `[keys / 32][dim / 32][2][16 keys][32]`.
    unsafe fn pack_keys(&self, rows: Rows<bf16>, dim: usize, to: *mut u8) {
        // SAFETY: AMX implies AVX-512; the rest is the caller's contract.
        unsafe { pack_rows(rows, dim, to) }
    }

    /// `[dim / 32][keys / 32][2][16 elements][32 keys]`.
    unsafe fn pack_values(&self, rows: Rows<bf16>, dim: usize, to: *mut u8) {
        // SAFETY: as above.
        unsafe { pack_columns(rows, dim, to) }
    }

    /// `[dim / 32][2][16 pairs of elements][16 queries][2]`.
    unsafe fn pack_queries(&self, rows: Rows<bf16>, dim: usize, to: *mut u8) {
        // SAFETY: as above.
        unsafe { pack_pairs(rows, dim, to) }
    }

    unsafe fn scores(&self, keys: *const u8, queries: *const u8, dim: usize, count: usize, scores: *mut f32) {
        let steps = padded(dim) / PAIR;
        for group in 0..count.div_ceil(PAIR) {
            // SAFETY: the caller's contract; `enter` configured the tiles.
            unsafe {
                let a = keys.add(group * steps * 2 * TILE);
                two_tiles(a, queries, scores.add(group * PAIR * QUERIES), steps, true);
            }
        }
        // SAFETY: blocks are whole steps.
        unsafe { hide_rest(scores, count) };
    }

    unsafe fn softmax(&self, scores: *mut f32, count: usize, scale: f32, state: &mut State) -> bool {
        // SAFETY: AMX implies AVX-512; the rest is the caller's contract.
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
        for group in 0..padded(dim) / PAIR {
            // SAFETY: as above; the weights lie in front of the scores.
            unsafe {
                let a = values.add(group * (KEYS / PAIR) * 2 * TILE);
                let sums = sums.add(group * PAIR * QUERIES);
                two_tiles(a, weights(scores), sums, count.div_ceil(PAIR), first);
            }
        }
    }

    fn has_pass(&self, count: usize) -> bool {
        count.is_multiple_of(PAIR)
    }

    unsafe fn pass(&self, pass: Pass<'_>) {
        // SAFETY: as above.
        unsafe { overlapped(pass) }
    }

    unsafe fn rescale(&self, sums: *mut f32, dim: usize, factors: &[f32; QUERIES]) {
        // SAFETY: the caller's contract.
        unsafe { dispatch(Isa::AmxBf16, Rescale { sums, dim, factors }) }
    }
}

/// # Safety
/// As for `load`; `to` has room for whole pairs of tiles.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pack_rows(rows: Rows<bf16>, dim: usize, to: *mut u8) {
    let steps = padded(dim) / PAIR;
    for row in 0..rows.count.next_multiple_of(PAIR) {
        let start = row / PAIR * steps * 2 * TILE + row % PAIR * 64;
        for step in 0..steps {
            // SAFETY: by the contract above.
            unsafe {
                _mm512_storeu_si512(to.add(start + step * 2 * TILE).cast(), load(rows, row, step * PAIR, dim));
            }
        }
    }
}

/// # Safety
/// As for `pack_rows`.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pack_columns(rows: Rows<bf16>, dim: usize, to: *mut u8) {
    let interleave_low = interleave(0);
    let interleave_high = interleave(16);
    for group in 0..padded(dim) / PAIR {
        for step in 0..rows.count.div_ceil(PAIR) {
            // Elements by pairs of keys, as 32-bit values: transposed, pairs of keys follow each other.
            let mut low = [_mm512_setzero_si512(); 16];
            let mut high = low;
            for pair in 0..16 {
                // SAFETY: by the contract above.
                let (a, b) = unsafe {
                    let row = step * PAIR + 2 * pair;
                    (load(rows, row, group * PAIR, dim), load(rows, row + 1, group * PAIR, dim))
                };
                low[pair] = _mm512_permutex2var_epi16(a, interleave_low, b);
                high[pair] = _mm512_permutex2var_epi16(a, interleave_high, b);
            }
            for (tile, values) in [registers(low), registers(high)].into_iter().enumerate() {
                for (r, value) in values.into_iter().enumerate() {
                    let at = ((group * (KEYS / PAIR) + step) * 2 + tile) * TILE + r * 64;
                    // SAFETY: by the contract above.
                    unsafe { _mm512_storeu_si512(to.add(at).cast(), value) };
                }
            }
        }
    }
}

/// Indices that take elements `from..from + 16` of two rows alternately.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn interleave(from: i32) -> __m512i {
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let first = _mm512_add_epi32(lanes, _mm512_set1_epi32(from));
    _mm512_or_si512(first, _mm512_slli_epi32::<16>(_mm512_add_epi32(first, _mm512_set1_epi32(32))))
}

/// Walks through the next block, which is fetched into L2 while this one is worked on.
struct Following(*const u8);

impl Following {
    /// The next four lines.
    #[inline(always)]
    fn next(&mut self) -> *const u8 {
        let at = self.0;
        self.0 = at.wrapping_add(256);
        at
    }
}

/// The products of one panel run in the tile unit while the vector units work on the softmax of another: each step of a
/// product is followed by a unit of the softmax, near enough for both to be in flight.
///
/// # Safety
/// As for `Engine::pass`, with tiles configured; `count` is a multiple of 32.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
unsafe fn overlapped(pass: Pass<'_>) {
    let (steps, groups) = (padded(pass.dim) / PAIR, pass.count / PAIR);
    let panels = pass.states.len();
    // SAFETY: by the contract above.
    unsafe {
        let mut ahead = Following(pass.next);
        let scores = |panel: usize| pass.scores.add(panel % 2 * pass.buffer);
        let queries = |panel: usize| pass.queries.add(panel * pass.query_bytes);
        for group in 0..groups {
            let a = pass.keys.add(group * steps * 2 * TILE);
            let sums = scores(0).add(group * PAIR * QUERIES);
            two_tiles(a, queries(0), sums, steps, true);
        }
        let mut softmax = Softmax::new(scores(0), pass.scale);
        for group in 0..groups {
            softmax.look_all(group);
        }
        for panel in 0..panels {
            let sums = pass.sums.add(panel * pass.sum_len);
            let state = &mut pass.states[panel];
            if softmax.settle(state) && !pass.first {
                dispatch(Isa::AmxBf16, Rescale { sums, dim: pass.dim, factors: &state.factors });
            }
            let more = panel + 1 < panels;
            for group in 0..groups {
                if !more {
                    softmax.weigh_all(group);
                    continue;
                }
                let next = Sums::load(scores(panel + 1).add(group * PAIR * QUERIES), true);
                let (a, b) = (pass.keys.add(group * steps * 2 * TILE), queries(panel + 1));
                // Written out, so that the halves of the softmax stay in registers.
                macro_rules! step {
                    ($($i:literal)*) => { $(
                        if $i < steps {
                            next.add_step(a.add($i * 2 * TILE), b.add($i * 2 * TILE), ahead.next());
                        }
                        softmax.weigh(group, $i);
                    )* };
                }
                step!(0 1 2 3);
                for i in UNITS..steps {
                    next.add_step(a.add(i * 2 * TILE), b.add(i * 2 * TILE), ahead.next());
                }
                next.store();
            }
            softmax.keep(state);
            let b = weights(scores(panel));
            softmax = Softmax::new(scores(panel + 1), pass.scale);
            for element in 0..steps {
                let sums = Sums::load(sums.add(element * PAIR * QUERIES), pass.first);
                let a = pass.values.add(element * (KEYS / PAIR) * 2 * TILE);
                let look = more && element < groups;
                macro_rules! step {
                    ($($i:literal)*) => { $(
                        if $i < groups {
                            sums.add_step(a.add($i * 2 * TILE), b.add($i * 2 * TILE), ahead.next());
                        }
                        if look {
                            softmax.look(element, $i);
                        }
                    )* };
                }
                step!(0 1 2 3);
                sums.store();
            }
            if more {
                (steps..groups).for_each(|group| softmax.look_all(group));
            }
        }
    }
}
