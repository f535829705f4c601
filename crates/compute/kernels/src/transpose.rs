//! Transposition of f32 matrices, in blocks of 16 by 16 where vectors allow.

use crate::isa::Isa;
use crate::simd::Element;

/// `to[c][r] = from[r][c]` for `rows` x `columns`, with these row strides.
pub(crate) fn transpose(
    isa: Isa,
    from: &[f32],
    from_stride: usize,
    rows: usize,
    columns: usize,
    to: &mut [f32],
    to_stride: usize,
) {
    assert!(rows == 0 || columns == 0 || from.len() >= (rows - 1) * from_stride + columns);
    assert!(rows == 0 || columns == 0 || to.len() >= (columns - 1) * to_stride + rows);
    let (mut whole_rows, mut whole_columns) = (0, 0);
    #[cfg(target_arch = "x86_64")]
    if matches!(isa, Isa::AmxBf16 | Isa::Avx512Bf16 | Isa::Avx512) {
        (whole_rows, whole_columns) = (rows / 16 * 16, columns / 16 * 16);
        for r in (0..whole_rows).step_by(16) {
            for c in (0..whole_columns).step_by(16) {
                // SAFETY: the block lies within both matrices, and AVX-512 is there.
                unsafe {
                    let from = from.as_ptr().add(r * from_stride + c).cast();
                    avx512::block(from, from_stride, to.as_mut_ptr().add(c * to_stride + r).cast(), to_stride);
                }
            }
        }
    }
    let _ = (isa, &mut whole_rows, &mut whole_columns);
    for r in 0..rows {
        for c in if r < whole_rows { whole_columns } else { 0 }..columns {
            to[c * to_stride + r] = from[r * from_stride + c];
        }
    }
}

/// Packs `rows` rows of `len` values into `len` columns of f32, `to_stride` apart. Up to 15 values behind each column
/// may be overwritten.
///
/// # Safety
/// The rows, `stride` values apart, are valid, and so is `to`, with sixteen values to spare; `to_stride >= rows`.
pub(crate) unsafe fn pack_rows<T: Element>(
    isa: Isa,
    from: *const T,
    stride: usize,
    rows: usize,
    len: usize,
    to: *mut f32,
    to_stride: usize,
) {
    let mut whole = 0;
    #[cfg(target_arch = "x86_64")]
    if matches!(isa, Isa::AmxBf16 | Isa::Avx512Bf16 | Isa::Avx512) && (4..=16).contains(&rows) {
        whole = len / 16 * 16;
        for k in (0..whole).step_by(16) {
            // SAFETY: AVX-512 is there. Each column is stored whole, over the next one's place, which comes after it.
            unsafe { avx512::columns(from.add(k), stride, rows, to.add(k * to_stride), to_stride) };
        }
    }
    let _ = (isa, &mut whole);
    for r in 0..rows {
        for k in whole..len {
            // SAFETY: by the contract above.
            unsafe { to.add(k * to_stride + r).write((*from.add(r * stride + k)).to_f32()) };
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512 {
    use std::arch::x86_64::*;

    use crate::simd::{Element, F32x16};

    /// Sixteen columns of up to sixteen rows.
    ///
    /// # Safety
    /// AVX-512 is there, and the rows and sixteen whole vectors at `to` are valid.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub(crate) unsafe fn columns<T: Element>(
        from: *const T,
        stride: usize,
        rows: usize,
        to: *mut f32,
        to_stride: usize,
    ) {
        // SAFETY: by the contract above.
        unsafe {
            let mut block = [_mm512_setzero_si512(); 16];
            for (r, row) in block.iter_mut().enumerate().take(rows) {
                *row = _mm512_castps_si512(T::load::<F32x16<false>>(from.add(r * stride), 16).0);
            }
            for (c, column) in registers(block).into_iter().enumerate() {
                _mm512_storeu_ps(to.add(c * to_stride), _mm512_castsi512_ps(column));
            }
        }
    }

    /// Sixteen rows of sixteen 32-bit values become columns. Strides are in values.
    ///
    /// # Safety
    /// AVX-512 is there, and both blocks are valid.
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn block(from: *const i32, from_stride: usize, to: *mut i32, to_stride: usize) {
        // SAFETY: by the contract above.
        unsafe {
            let mut rows = [_mm512_setzero_si512(); 16];
            for (r, row) in rows.iter_mut().enumerate() {
                *row = _mm512_loadu_si512(from.add(r * from_stride).cast());
            }
            for (c, column) in registers(rows).into_iter().enumerate() {
                _mm512_storeu_si512(to.add(c * to_stride).cast(), column);
            }
        }
    }

    /// Sixteen registers as the rows of a matrix, transposed.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(crate) fn registers(r: [__m512i; 16]) -> [__m512i; 16] {
        let mut pairs = r;
        for i in 0..8 {
            pairs[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
            pairs[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
        }
        // Within each group of four rows: 128-bit lane `l` of `quads[4 g + j]` holds column `4 l + j` of its rows.
        let mut quads = pairs;
        for g in 0..4 {
            let at = 4 * g;
            quads[at] = _mm512_unpacklo_epi64(pairs[at], pairs[at + 2]);
            quads[at + 1] = _mm512_unpackhi_epi64(pairs[at], pairs[at + 2]);
            quads[at + 2] = _mm512_unpacklo_epi64(pairs[at + 1], pairs[at + 3]);
            quads[at + 3] = _mm512_unpackhi_epi64(pairs[at + 1], pairs[at + 3]);
        }
        let mut columns = quads;
        for j in 0..4 {
            let low = _mm512_shuffle_i32x4::<0x88>(quads[j], quads[4 + j]);
            let high = _mm512_shuffle_i32x4::<0xdd>(quads[j], quads[4 + j]);
            let low2 = _mm512_shuffle_i32x4::<0x88>(quads[8 + j], quads[12 + j]);
            let high2 = _mm512_shuffle_i32x4::<0xdd>(quads[8 + j], quads[12 + j]);
            columns[j] = _mm512_shuffle_i32x4::<0x88>(low, low2);
            columns[8 + j] = _mm512_shuffle_i32x4::<0xdd>(low, low2);
            columns[4 + j] = _mm512_shuffle_i32x4::<0x88>(high, high2);
            columns[12 + j] = _mm512_shuffle_i32x4::<0xdd>(high, high2);
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_finds_its_place() {
        for &isa in Isa::available() {
            for (rows, columns) in [(0, 3), (1, 1), (16, 16), (17, 35), (32, 128), (5, 40)] {
                let from: Vec<f32> = (0..rows * (columns + 3)).map(|i| i as f32).collect();
                let mut to = vec![-1f32; columns * (rows + 2)];
                transpose(isa, &from, columns + 3, rows, columns, &mut to, rows + 2);
                for (r, c) in (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))) {
                    assert_eq!(to[c * (rows + 2) + r], from[r * (columns + 3) + c], "{isa} {rows}x{columns}");
                }
            }
        }
    }
}
