//! What attention in bf16 has in common with AVX-512, on tiles or without: queries and weights as pairs, and the softmax
//! between the products.

use std::arch::x86_64::*;

use half::bf16;

use super::flash::{IN_FRONT, QUERIES, Rows, State};
use crate::transpose::avx512::registers;

/// Keys (or queries, or elements) of a step.
pub(super) const PAIR: usize = 32;
/// Bytes of sixteen vectors.
const TILE: usize = 1024;

/// Length of a head, padded to whole tiles.
pub(super) fn padded(dim: usize) -> usize {
    dim.next_multiple_of(PAIR)
}

/// 32 elements of a row from `at` on, zeros past its end; zeros for a row past the last one.
///
/// # Safety
/// AVX-512 is there, and the rows are valid for `dim` elements.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(super) unsafe fn load(rows: Rows<bf16>, row: usize, at: usize, dim: usize) -> __m512i {
    if row >= rows.count || at >= dim {
        return _mm512_setzero_si512();
    }
    let mask = if dim - at >= 32 { !0 } else { (1u32 << (dim - at)) - 1 };
    // Rows of one head may lie far apart, where no hardware looks ahead.
    _mm_prefetch::<_MM_HINT_T0>(rows.start.wrapping_add((row + 16) * rows.stride + at).cast());
    // SAFETY: by the contract above; masked elements are not read.
    unsafe { _mm512_maskz_loadu_epi16(mask, rows.start.add(row * rows.stride + at).cast()) }
}

/// `[dim / 32][2][16 pairs of elements][16 queries][2]`.
///
/// # Safety
/// As for `load`; `to` has room for whole steps.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn pack_pairs(rows: Rows<bf16>, dim: usize, to: *mut u8) {
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

/// Hides the scores that fill the last step up, so that whole steps can be worked on.
///
/// # Safety
/// `scores` has room for whole steps.
pub(super) unsafe fn hide_rest(scores: *mut f32, count: usize) {
    for at in count * QUERIES..count.next_multiple_of(PAIR) * QUERIES {
        // SAFETY: by the contract above.
        unsafe { scores.add(at).write(f32::NEG_INFINITY) };
    }
}

/// Weights take the place of the scores from `IN_FRONT` values before them on, as `[keys / 32][2][16 pairs of keys][16
/// queries][2]`. They are half as large, so a group of keys never reaches scores that have not been read.
pub(super) fn weights(scores: *const f32) -> *const u8 {
    scores.wrapping_sub(IN_FRONT).cast()
}

/// A softmax on its way through a block. Maxima are kept as powers of two, that is, multiplied by the scale and log2 e.
pub(super) struct Softmax {
    scores: *mut f32,
    scale: __m512,
    tops: [__m512; 4],
    maxima: [__m512; 2],
    sums: [__m512; 4],
    alternate: __m512i,
}

/// Units that a group of 32 keys is worked on in: half of its keys for half of the queries each.
pub(super) const UNITS: usize = 4;

impl Softmax {
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    pub(super) fn new(scores: *mut f32, scale: f32) -> Self {
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
    pub(super) unsafe fn look(&mut self, group: usize, unit: usize) {
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
    pub(super) unsafe fn look_all(&mut self, group: usize) {
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
    pub(super) unsafe fn settle(&mut self, state: &mut State) -> bool {
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
    pub(super) unsafe fn weigh(&mut self, group: usize, unit: usize) {
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
    pub(super) unsafe fn weigh_all(&mut self, group: usize) {
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
    pub(super) unsafe fn keep(&self, state: &mut State) {
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
pub(super) unsafe fn softmax(scores: *mut f32, groups: usize, scale: f32, state: &mut State) -> bool {
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
