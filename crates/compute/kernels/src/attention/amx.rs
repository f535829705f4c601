//! Attention in bf16 on the tiles of AMX.

use std::arch::x86_64::*;

use half::bf16;

use super::flash::{Engine, QUERIES, Rows, State};
use super::float::Rescale;
use crate::isa::Isa;
use crate::linear::Ahead;
use crate::simd::dispatch;
use crate::tiles::{TILE, TileConfig, two_tiles};
use crate::transpose::avx512::registers;

/// Keys of a block: its scores and weights stay in L1.
const KEYS: usize = 128;
/// Keys (or queries, or elements) of a pair of tiles.
const PAIR: usize = 32;

/// Scores and sums by `tdpbf16ps`. Everything packed is pairs of tiles, one pair for every 32 of the inner dimension.
pub(super) struct Tiles;

/// Length of a head, padded to whole tiles.
fn padded(dim: usize) -> usize {
    dim.next_multiple_of(PAIR)
}

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
                two_tiles(a, queries, scores.add(group * PAIR * QUERIES), steps, true, Ahead { rows: a, weights: a });
            }
        }
    }

    unsafe fn softmax(&self, scores: *mut f32, count: usize, scale: f32, state: &mut State) -> bool {
        // SAFETY: as above.
        unsafe { softmax(scores, count, scale, state) }
    }

    unsafe fn values(
        &self,
        values: *const u8,
        weights: *const f32,
        dim: usize,
        count: usize,
        sums: *mut f32,
        first: bool,
    ) {
        for group in 0..padded(dim) / PAIR {
            // SAFETY: as above; the weights lie behind the scores.
            unsafe {
                let a = values.add(group * (KEYS / PAIR) * 2 * TILE);
                let b = weights.add(KEYS * QUERIES).cast();
                let sums = sums.add(group * PAIR * QUERIES);
                two_tiles(a, b, sums, count.div_ceil(PAIR), first, Ahead { rows: a, weights: a });
            }
        }
    }

    unsafe fn rescale(&self, sums: *mut f32, dim: usize, factors: &[f32; QUERIES]) {
        // SAFETY: the caller's contract.
        unsafe { dispatch(Isa::AmxBf16, Rescale { sums, dim, factors }) }
    }
}

/// 32 elements of a row from `at` on, zeros past its end; zeros for a row past the last one.
///
/// # Safety
/// AVX-512 is there, and the rows are valid for `dim` elements.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn load(rows: Rows<bf16>, row: usize, at: usize, dim: usize) -> __m512i {
    if row >= rows.count || at >= dim {
        return _mm512_setzero_si512();
    }
    let mask = if dim - at >= 32 { !0 } else { (1u32 << (dim - at)) - 1 };
    // SAFETY: by the contract above; masked elements are not read.
    unsafe { _mm512_maskz_loadu_epi16(mask, rows.start.add(row * rows.stride + at).cast()) }
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

/// # Safety
/// As for `pack_rows`.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pack_pairs(rows: Rows<bf16>, dim: usize, to: *mut u8) {
    for step in 0..padded(dim) / PAIR {
        for tile in 0..2 {
            let mut queries = [_mm512_setzero_si512(); 16];
            for (i, query) in queries.iter_mut().enumerate() {
                // SAFETY: by the contract above.
                *query = unsafe { load(rows, tile * 16 + i, step * PAIR, dim) };
            }
            for (r, pairs) in registers(queries).into_iter().enumerate() {
                // SAFETY: by the contract above.
                unsafe { _mm512_storeu_si512(to.add((step * 2 + tile) * TILE + r * 64).cast(), pairs) };
            }
        }
    }
}

/// Weights as `[keys / 32][2][16 pairs of keys][16 queries][2]` behind the scores. Maxima are kept as powers of two.
///
/// # Safety
/// AVX512-BF16 is there; `scores` is `[KEYS][QUERIES]` with as much room behind it.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
unsafe fn softmax(scores: *mut f32, count: usize, scale: f32, state: &mut State) -> bool {
    let scale = _mm512_set1_ps(scale * std::f32::consts::LOG2_E);
    // Low and high halves of two vectors of bf16, alternately.
    let alternate = {
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        _mm512_or_si512(lanes, _mm512_slli_epi32::<16>(_mm512_add_epi32(lanes, _mm512_set1_epi32(16))))
    };
    let mut changed = false;
    // SAFETY: by the contract above.
    unsafe {
        let weights = scores.add(KEYS * QUERIES).cast::<u8>();
        for half in 0..2 {
            let scores = scores.add(half * 16);
            let score = |key: usize| _mm512_loadu_ps(scores.add(key * QUERIES));
            let mut tops = [_mm512_set1_ps(f32::NEG_INFINITY); 4];
            for key in (0..count / 4 * 4).step_by(4) {
                for i in 0..4 {
                    // A NaN in the first place is passed over here; it comes back through the exponential.
                    tops[i] = _mm512_max_ps(score(key + i), tops[i]);
                }
            }
            for key in count / 4 * 4..count {
                tops[0] = _mm512_max_ps(score(key), tops[0]);
            }
            let top = _mm512_max_ps(_mm512_max_ps(tops[0], tops[1]), _mm512_max_ps(tops[2], tops[3]));
            let before = _mm512_loadu_ps(state.maxima.as_ptr().add(half * 16));
            let maximum = _mm512_max_ps(_mm512_mul_ps(top, scale), before);
            let factor = exp2(_mm512_sub_ps(before, maximum));
            let mut sums =
                [_mm512_mul_ps(_mm512_loadu_ps(state.sums.as_ptr().add(half * 16)), factor), _mm512_setzero_ps()];
            let weight = |key: usize| exp2(_mm512_fmsub_ps(score(key), scale, maximum));
            let pairs = |pair: usize| weights.add((pair / 16 * 2 + half) * TILE + pair % 16 * 64);
            let whole = count / 2;
            for pair in 0..whole {
                let (even, odd) = (weight(2 * pair), weight(2 * pair + 1));
                sums = [_mm512_add_ps(sums[0], even), _mm512_add_ps(sums[1], odd)];
                let halves = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(odd, even));
                _mm512_storeu_si512(pairs(pair).cast(), _mm512_permutexvar_epi16(alternate, halves));
            }
            for pair in whole..count.next_multiple_of(PAIR) / 2 {
                let mut halves = _mm512_setzero_si512();
                if 2 * pair < count {
                    let even = weight(2 * pair);
                    sums[0] = _mm512_add_ps(sums[0], even);
                    halves = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(_mm512_setzero_ps(), even));
                }
                _mm512_storeu_si512(pairs(pair).cast(), _mm512_permutexvar_epi16(alternate, halves));
            }
            _mm512_storeu_ps(state.maxima.as_mut_ptr().add(half * 16), maximum);
            _mm512_storeu_ps(state.sums.as_mut_ptr().add(half * 16), _mm512_add_ps(sums[0], sums[1]));
            _mm512_storeu_ps(state.factors.as_mut_ptr().add(half * 16), factor);
            changed |= _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(factor, _mm512_set1_ps(1.0)) != 0;
        }
    }
    changed
}

/// `2^x` to 3e-6, far finer than the bf16 it is rounded to; 0 for minus infinity.
#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
fn exp2(x: __m512) -> __m512 {
    let fraction = _mm512_reduce_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(x);
    let mut p = _mm512_set1_ps(0.013_534_168);
    p = _mm512_fmadd_ps(p, fraction, _mm512_set1_ps(0.052_011_46));
    p = _mm512_fmadd_ps(p, fraction, _mm512_set1_ps(0.241_442_75));
    p = _mm512_fmadd_ps(p, fraction, _mm512_set1_ps(0.693_003_83));
    p = _mm512_fmadd_ps(p, fraction, _mm512_set1_ps(1.0));
    _mm512_scalef_ps(p, x)
}
