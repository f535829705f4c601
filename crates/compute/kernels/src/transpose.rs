//! Transposition of f32 matrices, in blocks of 16 by 16 where vectors allow.

use crate::isa::Isa;

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

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512 {
    use std::arch::x86_64::*;

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
