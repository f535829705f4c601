//! Products of bf16 by the dot-product instruction of AVX-512, sixteen columns a vector.
//!
//! The left operand is packed as pairs of inner elements, `[pairs][rows]`, the right one as the tiles of AMX are:
//! `[steps][2][16 pairs][16 columns]`, 32 inner elements a step.

use std::arch::x86_64::*;

use half::bf16;

use crate::linear::{PANEL, TILE_K};
use crate::transpose::avx512::registers;

/// Most rows of a block: their sums leave registers for two vectors of weights and a broadcast.
pub(crate) const ROWS: usize = 14;
/// Bytes that packing may write behind a block.
pub(crate) const SPARE: usize = 64;

/// The size of blocks of rows, as large as possible and as equal as possible: small ones can't hide the latency of sums.
pub(crate) fn even_rows(rows: usize) -> usize {
    rows.div_ceil(rows.div_ceil(ROWS).max(1))
}

/// An element that is packed as bf16.
pub(crate) trait Source: Copy {
    /// The first `len` (at most 32) of these as bf16, zeros after them.
    ///
    /// # Safety
    /// AVX512-BF16 is there, and `from` is valid for `len` elements.
    unsafe fn load(from: *const Self, len: usize) -> __m512i;
}

/// A mask of the first `len` of 32 lanes.
fn first(len: usize) -> u32 {
    if len >= 32 { !0 } else { (1 << len) - 1 }
}

impl Source for bf16 {
    #[inline(always)]
    unsafe fn load(from: *const bf16, len: usize) -> __m512i {
        // SAFETY: by the contract above; masked elements are not read.
        unsafe { _mm512_maskz_loadu_epi16(first(len), from.cast()) }
    }
}

impl Source for f32 {
    /// Rounds to nearest even; subnormal numbers become zero.
    #[inline(always)]
    unsafe fn load(from: *const f32, len: usize) -> __m512i {
        let mask = first(len);
        // SAFETY: as above.
        unsafe {
            let low = _mm512_maskz_loadu_ps(mask as u16, from);
            let high = _mm512_maskz_loadu_ps((mask >> 16) as u16, from.wrapping_add(16));
            std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low))
        }
    }
}

/// A row with zeros up to a multiple of 32.
///
/// # Safety
/// AVX512-BF16 is there, and `to` has room for the padded row.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(crate) unsafe fn line<T: Source>(row: &[T], to: *mut u8) {
    for at in (0..row.len()).step_by(TILE_K) {
        // SAFETY: by the contract above.
        unsafe {
            let values = T::load(row.as_ptr().add(at), TILE_K.min(row.len() - at));
            _mm512_storeu_si512(to.add(at * 2).cast(), values);
        }
    }
}

/// Packs `len` elements of up to sixteen rows, `stride` elements apart, with zeros up to a multiple of 32.
///
/// # Safety
/// AVX512-BF16 is there; the rows are valid, and `to` is for `rows` times the padded length and `SPARE` bytes more.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(crate) unsafe fn pack<T: Source>(from: *const T, stride: usize, rows: usize, len: usize, to: *mut u8) {
    let to = to.cast::<i32>();
    for at in (0..len).step_by(TILE_K) {
        let count = TILE_K.min(len - at);
        let to = to.wrapping_add(at / 2 * rows);
        // SAFETY: by the contract above. Each pair is stored with a whole vector, over the place of what comes after it.
        unsafe {
            if rows == 1 {
                _mm512_storeu_si512(to.cast(), T::load(from.add(at), count));
                continue;
            }
            let mut block = [_mm512_setzero_si512(); 16];
            for (r, row) in block.iter_mut().enumerate().take(rows) {
                *row = T::load(from.add(r * stride + at), count);
            }
            for (pair, column) in registers(block).into_iter().enumerate() {
                _mm512_storeu_si512(to.add(pair * rows).cast(), column);
            }
        }
    }
}

/// `sums = a b` if `first`, else `sums += a b`, for up to [`ROWS`] rows and [`PANEL`] columns.
///
/// # Safety
/// AVX512-BF16 is there; `a` is `[steps * 16][rows]` pairs, `b` is `[steps][2][16][16]` pairs, `sums` is `[rows][PANEL]`.
#[inline]
pub(crate) unsafe fn multiply(a: *const u8, b: *const u8, sums: *mut f32, rows: usize, steps: usize, first: bool) {
    macro_rules! blocks {
        ($($rows:literal)*) => {
            // SAFETY: by the contract above.
            match rows {
                $($rows => unsafe { block::<$rows>(a.cast(), b, sums, steps, first) },)*
                _ => unreachable!("blocks are no larger"),
            }
        };
    }
    blocks!(1 2 3 4 5 6 7 8 9 10 11 12 13 14)
}

/// # Safety
/// As for `multiply`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    #[test]
    fn packed_rows_are_pairs_with_zeros_behind_them() {
        if !Isa::Avx512Bf16.is_available() {
            return;
        }
        for (rows, len) in [(1usize, 1usize), (1, 40), (2, 32), (5, 33), (14, 95), (16, 64)] {
            let stride = len + 3;
            let from: Vec<f32> = (0..rows * stride).map(|i| i as f32).collect();
            let half: Vec<bf16> = from.iter().map(|&x| bf16::from_f32(x)).collect();
            let padded = len.next_multiple_of(TILE_K);
            let mut packed = [(); 2].map(|()| vec![bf16::NAN; rows * padded + SPARE / 2]);
            // SAFETY: AVX512-BF16 is there, and there is room.
            unsafe {
                pack(from.as_ptr(), stride, rows, len, packed[0].as_mut_ptr().cast());
                pack(half.as_ptr(), stride, rows, len, packed[1].as_mut_ptr().cast());
            }
            for (r, k) in (0..rows).flat_map(|r| (0..padded).map(move |k| (r, k))) {
                let want = if k < len { half[r * stride + k] } else { bf16::ZERO };
                let at = k / 2 * rows * 2 + r * 2 + k % 2;
                assert_eq!([packed[0][at], packed[1][at]], [want; 2], "{rows}x{len}: {r}, {k}");
            }
        }
    }

    #[test]
    fn blocks_are_even() {
        assert_eq!([0, 1, 14, 15, 28, 31, 128].map(even_rows), [0, 1, 14, 8, 14, 11, 13]);
    }
}
