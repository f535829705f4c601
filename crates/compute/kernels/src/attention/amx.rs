//! Attention in bf16 on the tiles of AMX.

use std::arch::x86_64::*;

use half::bf16;

use super::flash::{Engine, IN_FRONT, Pass, QUERIES, Rows, State};
use super::float::Rescale;
use crate::isa::Isa;
use crate::simd::dispatch;
use crate::tiles::{Sums, TILE, TileConfig, two_tiles};
use crate::transpose::avx512::registers;

/// Keys of a block: the scores of two panels stay in L1.
const KEYS: usize = 128;
const _: () = assert!(IN_FRONT * 4 >= 2 * TILE && KEYS / PAIR == UNITS);

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
                two_tiles(a, queries, scores.add(group * PAIR * QUERIES), steps, true);
            }
        }
        // What fills the last tile up is hidden, so that whole tiles can be worked on.
        for at in count * QUERIES..count.next_multiple_of(PAIR) * QUERIES {
            // SAFETY: within the block.
            unsafe { scores.add(at).write(f32::NEG_INFINITY) };
        }
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
    // Rows of one head may lie far apart, where no hardware looks ahead.
    _mm_prefetch::<_MM_HINT_T0>(rows.start.wrapping_add((row + 16) * rows.stride + at).cast());
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

/// Weights take the place of the scores from `IN_FRONT` values before them on, as `[keys / 32][2][16 pairs of keys][16
/// queries][2]`. They are half as large, so a group of keys never reaches scores that have not been read.
fn weights(scores: *const f32) -> *const u8 {
    scores.wrapping_sub(IN_FRONT).cast()
}

/// A softmax on its way through a block. Maxima are kept as powers of two, that is, multiplied by the scale and log2 e.
struct Softmax {
    scores: *mut f32,
    scale: __m512,
    tops: [__m512; 4],
    maxima: [__m512; 2],
    sums: [__m512; 4],
    alternate: __m512i,
}

/// Units that a group of 32 keys is worked on in: half of its keys for half of the queries each.
const UNITS: usize = 4;

impl Softmax {
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn new(scores: *mut f32, scale: f32) -> Self {
        // Low and high halves of two vectors of bf16, alternately.
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let alternate = _mm512_or_si512(lanes, _mm512_slli_epi32::<16>(_mm512_add_epi32(lanes, _mm512_set1_epi32(16))));
        let none = _mm512_set1_ps(f32::NEG_INFINITY);
        Softmax {
            scores,
            scale: _mm512_set1_ps(scale * std::f32::consts::LOG2_E),
            tops: [none; 4],
            maxima: [none; 2],
            sums: [_mm512_setzero_ps(); 4],
            alternate,
        }
    }

    /// # Safety
    /// The unit lies within the block.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn score(&self, half: usize, key: usize) -> __m512 {
        // SAFETY: by the contract above.
        unsafe { _mm512_loadu_ps(self.scores.add(key * QUERIES + half * 16)) }
    }

    /// Takes the scores of a unit into account.
    ///
    /// # Safety
    /// The unit lies within the block, whose scores are there.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn look(&mut self, group: usize, unit: usize) {
        let (half, key) = (unit % 2, group * PAIR + unit / 2 * 16);
        for i in (0..16).step_by(2) {
            // SAFETY: by the contract above. A NaN in the first place is passed over; it comes back as a weight.
            unsafe {
                self.tops[half] = _mm512_max_ps(self.score(half, key + i), self.tops[half]);
                self.tops[2 + half] = _mm512_max_ps(self.score(half, key + i + 1), self.tops[2 + half]);
            }
        }
    }

    /// All units of a group.
    ///
    /// # Safety
    /// As for `look`.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn look_all(&mut self, group: usize) {
        // SAFETY: by the contract above.
        unsafe {
            self.look(group, 0);
            self.look(group, 1);
            self.look(group, 2);
            self.look(group, 3);
        }
    }

    /// Settles the maxima once all units were looked at. Returns whether one changed.
    ///
    /// # Safety
    /// AVX-512 is there.
    #[target_feature(enable = "avx512f,avx512dq")]
    #[inline]
    unsafe fn settle(&mut self, state: &mut State) -> bool {
        let mut changed = false;
        for half in 0..2 {
            // SAFETY: states have 32 of each.
            unsafe {
                let top = _mm512_max_ps(self.tops[half], self.tops[2 + half]);
                let before = _mm512_loadu_ps(state.maxima.as_ptr().add(half * 16));
                // A maximum is only moved where weights would grow past 2^8: less than that costs no precision, and
                // sums need not be rescaled. It is every query's own choice, so none depends on another.
                let top = _mm512_mul_ps(top, self.scale);
                let limit = _mm512_add_ps(before, _mm512_set1_ps(8.0));
                let grown = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(top, limit);
                self.maxima[half] = _mm512_mask_mov_ps(before, grown, top);
                let factor = exp2(_mm512_sub_ps(before, self.maxima[half]));
                self.sums[half] = _mm512_mul_ps(_mm512_loadu_ps(state.sums.as_ptr().add(half * 16)), factor);
                _mm512_storeu_ps(state.maxima.as_mut_ptr().add(half * 16), self.maxima[half]);
                _mm512_storeu_ps(state.factors.as_mut_ptr().add(half * 16), factor);
                changed |= _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(factor, _mm512_set1_ps(1.0)) != 0;
            }
        }
        changed
    }

    /// Turns the scores of a unit into weights.
    ///
    /// # Safety
    /// As for `look`; units come in order, for the weights take the place of scores.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    #[inline]
    unsafe fn weigh(&mut self, group: usize, unit: usize) {
        let (half, pairs) = (unit % 2, unit / 2 * 8);
        for pair in pairs..pairs + 8 {
            // SAFETY: by the contract above.
            unsafe {
                let key = group * PAIR + 2 * pair;
                let weight = |score| exp2(_mm512_fmsub_ps(score, self.scale, self.maxima[half]));
                let (even, odd) = (weight(self.score(half, key)), weight(self.score(half, key + 1)));
                self.sums[half] = _mm512_add_ps(self.sums[half], even);
                self.sums[2 + half] = _mm512_add_ps(self.sums[2 + half], odd);
                let halves = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(odd, even));
                let to = weights(self.scores).cast_mut().add((group * 2 + half) * TILE + pair * 64);
                _mm512_storeu_si512(to.cast(), _mm512_permutexvar_epi16(self.alternate, halves));
            }
        }
    }

    /// All units of a group.
    ///
    /// # Safety
    /// As for `weigh`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    #[inline]
    unsafe fn weigh_all(&mut self, group: usize) {
        // SAFETY: by the contract above.
        unsafe {
            self.weigh(group, 0);
            self.weigh(group, 1);
            self.weigh(group, 2);
            self.weigh(group, 3);
        }
    }

    /// Keeps the sums of the weights.
    ///
    /// # Safety
    /// AVX-512 is there.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn keep(&self, state: &mut State) {
        for half in 0..2 {
            // SAFETY: states have 32 sums.
            unsafe {
                let sum = _mm512_add_ps(self.sums[half], self.sums[2 + half]);
                _mm512_storeu_ps(state.sums.as_mut_ptr().add(half * 16), sum);
            }
        }
    }
}

/// # Safety
/// AVX512-BF16 is there; the scores of `groups` times 32 keys are.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
unsafe fn softmax(scores: *mut f32, groups: usize, scale: f32, state: &mut State) -> bool {
    // SAFETY: by the contract above.
    unsafe {
        let mut softmax = Softmax::new(scores, scale);
        for group in 0..groups {
            softmax.look_all(group);
        }
        let changed = softmax.settle(state);
        for group in 0..groups {
            softmax.weigh_all(group);
        }
        softmax.keep(state);
        changed
    }
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
