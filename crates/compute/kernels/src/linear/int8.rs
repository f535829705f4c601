//! Products of 8-bit integers: weights with one factor an output, activations with one a row.
//!
//! Sums are exact 32-bit integers, so every instruction set gives the same; the factors are applied when a sum is whole.
//! Weights lie like those of bf16, with four inner elements where bf16 has two: `[k / 64][2][16][16 columns][4]`.

use super::driver::{Engine, Packed, Place, Work, row};
use super::{PANEL, PackedLinear};
use crate::isa::Isa;
use crate::memory::Scratch;
use crate::pool::SharedMut;
use crate::simd::{Element, Kernel, Simd, dispatch};
use crate::values::Values;

/// Inner elements of a tile.
pub(super) const TILE_K8: usize = 64;
/// Inner elements of a chunk.
const CHUNK: usize = 512;
/// An inner size up to which sums of products of two 8-bit integers stay within 32 bits.
pub(super) const MOST_INPUTS: usize = 1 << 16;

/// Index of `(k, column)` within a panel.
pub(super) fn index(k: usize, column: usize) -> usize {
    k / TILE_K8 * TILE_K8 * PANEL + column / 16 * TILE_K8 * 16 + k % TILE_K8 / 4 * 64 + column % 16 * 4 + k % 4
}

/// Rounds a row to 8 bits and returns the factor that turns it back: NaN if there is one, or an infinity, in the row.
pub(super) fn quantize<T: Element>(isa: Isa, row: &[T], to: &mut [i8]) -> f32 {
    // SAFETY: both have the same length, which the kernel checks.
    unsafe { dispatch(isa, Quantize { row, to }) }
}

struct Quantize<'a, T> {
    row: &'a [T],
    to: &'a mut [i8],
}

impl<T: Element> Kernel for Quantize<'_, T> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<V: Simd>(self) -> f32 {
        assert!(self.to.len() >= self.row.len());
        let whole = self.row.len() / V::LANES * V::LANES;
        // SAFETY: all within the row.
        unsafe {
            let (mut largest, mut poison) = (V::splat(0.0), V::splat(0.0));
            for c in (0..whole).step_by(V::LANES) {
                let x = T::load::<V>(self.row.as_ptr().add(c), V::LANES);
                largest = x.abs().max(largest);
                poison = x.fma(V::splat(0.0), poison);
            }
            let tail = &self.row[whole..];
            let largest = tail.iter().fold(largest.largest(), |m, x| m.max(x.to_f32().abs()));
            if poison.sum().is_nan() || tail.iter().any(|x| !x.to_f32().is_finite()) {
                // Nothing that could be rounded: the factor carries it on.
                self.to[..self.row.len()].fill(1);
                return f32::NAN;
            }
            if largest == 0.0 {
                self.to[..self.row.len()].fill(0);
                return 0.0;
            }
            let factor = V::splat(127.0 / largest);
            for c in (0..self.row.len()).step_by(V::LANES) {
                let len = V::LANES.min(self.row.len() - c);
                let mut lanes = [0i8; crate::simd::MAX_LANES];
                T::load::<V>(self.row.as_ptr().add(c), len).mul(factor).round().store_i8(lanes.as_mut_ptr());
                self.to[c..c + len].copy_from_slice(&lanes[..len]);
            }
            largest / 127.0
        }
    }
}

/// What both ways of multiplying have in common.
pub(super) struct Rows<'a> {
    isa: Isa,
    layer: &'a PackedLinear,
    /// One factor a row, written by packing.
    factors: SharedMut<f32>,
}

impl<'a> Rows<'a> {
    /// `factors` has room for every row.
    pub(super) fn new(isa: Isa, layer: &'a PackedLinear, factors: &mut [f32]) -> Self {
        Rows { isa, layer, factors: SharedMut::new(factors) }
    }

    /// One row in 8 bits, padded with zeros to whole tiles.
    ///
    /// # Safety
    /// The row exists, and `line` has room.
    unsafe fn line(&self, x: Values<'_>, inputs: usize, at: usize, line: &mut [i8]) {
        line[inputs..].fill(0);
        let factor = match row(x, inputs, at) {
            Values::F32(row) => quantize(self.isa, row, line),
            Values::Bf16(row) => quantize(self.isa, row, line),
        };
        // SAFETY: each row is packed once.
        unsafe { self.factors.get().add(at).write(factor) };
    }

    /// Turns whole sums into floats.
    ///
    /// # Safety
    /// `sums` is `[rows][PANEL]` of i32; `shift` is what was added to each activation.
    unsafe fn settle(&self, sums: *mut f32, panel: usize, row: usize, rows: usize, shift: i32) {
        let columns = panel * PANEL..(panel + 1) * PANEL;
        let (factors, column_sums) = (&self.layer.factors[columns.clone()], &self.layer.column_sums[columns]);
        let mut offsets = [0i32; PANEL];
        offsets.iter_mut().zip(column_sums).for_each(|(offset, sum)| *offset = -shift * sum);
        // SAFETY: by the contract above.
        unsafe {
            let rows = std::slice::from_raw_parts(self.factors.get().add(row), rows);
            dispatch(self.isa, Settle { sums, rows, factors, offsets: &offsets });
        }
    }
}

struct Settle<'a> {
    sums: *mut f32,
    rows: &'a [f32],
    factors: &'a [f32],
    offsets: &'a [i32; PANEL],
}

impl Kernel for Settle<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        for (r, &row) in self.rows.iter().enumerate() {
            for column in (0..PANEL).step_by(V::LANES) {
                // SAFETY: sums are `[rows][PANEL]`, the others `[PANEL]`.
                unsafe {
                    let at = self.sums.add(r * PANEL + column);
                    let sum = V::from_sum_i32(at.cast(), self.offsets.as_ptr().add(column));
                    sum.mul(V::load(self.factors.as_ptr().add(column))).mul(V::splat(row)).store(at);
                }
            }
        }
    }
}

/// `tdpbssd` on packed tiles.
#[cfg(target_arch = "x86_64")]
pub(super) struct Tiles8<'a>(pub(super) Rows<'a>);

#[cfg(target_arch = "x86_64")]
impl Engine for Tiles8<'_> {
    const SPARE: usize = 0;
    const ROWS: usize = 32;
    type State = crate::tiles::Pipe;

    fn chunk(&self, inputs: usize) -> usize {
        super::amx::even(inputs, TILE_K8)
    }

    fn bytes_per_k(rows: usize) -> usize {
        rows.div_ceil(16) * 16
    }

    /// `[k / 64][tiles][16 rows][64]`.
    unsafe fn pack(&self, x: Values<'_>, inputs: usize, first: usize, rows: usize, to: Packed) {
        let padded = inputs.next_multiple_of(TILE_K8);
        let mut line = Scratch::of::<i8>(padded);
        let line = &mut line.slice_mut::<i8>()[..padded];
        for r in 0..rows.next_multiple_of(16) {
            // SAFETY: the rows exist, and the block has room for whole tiles.
            unsafe {
                if r < rows {
                    self.0.line(x, inputs, first + r, line);
                } else if r == rows {
                    line.fill(0);
                }
                super::amx::scatter_tile_rows(line.as_ptr().cast(), 0..padded / TILE_K8, r, rows, TILE_K8, to);
            }
        }
    }

    fn enter(&self, rows: usize) -> Self::State {
        crate::tiles::Pipe::new(true, rows)
    }

    fn space_bytes(&self, _: usize) -> usize {
        0
    }

    unsafe fn weights(&self, panel: *const u8, _: usize, _: *mut u8) -> *const u8 {
        panel
    }

    unsafe fn multiply(&self, pipe: &mut Self::State, work: Work) {
        let product = (work.a, work.b, work.len.div_ceil(TILE_K8));
        // SAFETY: the caller's contract.
        unsafe { pipe.multiply(product, work.sums, work.rows, work.place, work.ahead) }
    }

    unsafe fn settle(&self, sums: *mut f32, panel: usize, row: usize, rows: usize) {
        // SAFETY: the caller's contract.
        unsafe { self.0.settle(sums, panel, row, rows, 0) }
    }
}

/// Dot products of four: `vpdpbusd` where it is, plain integers elsewhere.
pub(super) struct Dot8<'a> {
    pub(super) rows: Rows<'a>,
    pub(super) vnni: bool,
}

/// What is added to an activation so that it is not negative, as `vpdpbusd` needs it.
const SHIFT: i32 = 128;

impl Engine for Dot8<'_> {
    const SPARE: usize = 0;
    const ROWS: usize = 14;
    type State = ();

    fn chunk(&self, _: usize) -> usize {
        CHUNK
    }

    fn bytes_per_k(rows: usize) -> usize {
        rows
    }

    /// `[k / 4][rows][4]`, shifted.
    unsafe fn pack(&self, x: Values<'_>, inputs: usize, first: usize, rows: usize, to: Packed) {
        let padded = inputs.next_multiple_of(TILE_K8);
        let mut line = Scratch::of::<i8>(padded);
        let line = &mut line.slice_mut::<i8>()[..padded];
        for r in 0..rows {
            // SAFETY: the rows exist, and the block has room for the padded row.
            unsafe {
                self.rows.line(x, inputs, first + r, line);
                for (chunk, values) in line.chunks(CHUNK).enumerate() {
                    let to = to.chunk(chunk).cast::<[u8; 4]>().add(r);
                    for (i, four) in values.chunks_exact(4).enumerate() {
                        let shifted = std::array::from_fn(|j| (i32::from(four[j]) + SHIFT) as u8);
                        to.add(i * rows).write(shifted);
                    }
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
        let steps = len.div_ceil(TILE_K8);
        #[cfg(target_arch = "x86_64")]
        if self.vnni {
            macro_rules! blocks {
                ($($rows:literal)*) => {
                    // SAFETY: VNNI is there; the rest is the caller's contract.
                    match rows {
                        $($rows => unsafe { vnni::<$rows>(a.cast(), b, sums.cast(), steps, first) },)*
                        _ => unreachable!("blocks are no larger"),
                    }
                };
            }
            blocks!(1 2 3 4 5 6 7 8 9 10 11 12 13 14);
            return;
        }
        // SAFETY: the caller's contract.
        unsafe {
            let sums = std::slice::from_raw_parts_mut(sums.cast::<i32>(), rows * PANEL);
            if first {
                sums.fill(0);
            }
            dispatch(self.rows.isa, Plain { a, b, sums, rows, steps });
        }
    }

    unsafe fn settle(&self, sums: *mut f32, panel: usize, row: usize, rows: usize) {
        // SAFETY: the caller's contract.
        unsafe { self.rows.settle(sums, panel, row, rows, SHIFT) }
    }
}

/// The product in plain integers; being a kernel, it is compiled for the instruction set at hand.
struct Plain<'a> {
    a: *const u8,
    b: *const u8,
    sums: &'a mut [i32],
    rows: usize,
    steps: usize,
}

impl Kernel for Plain<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        for four in 0..self.steps * 16 {
            for half in 0..2 {
                // SAFETY: whole tiles of weights, and as many activations.
                let (weights, x) = unsafe {
                    let tile = four / 16 * 2 + half;
                    let weights = self.b.add(tile * 1024 + four % 16 * 64).cast::<[[i8; 4]; 16]>();
                    (&*weights, std::slice::from_raw_parts(self.a.add(four * self.rows * 4), self.rows * 4))
                };
                for (r, x) in x.chunks_exact(4).enumerate() {
                    let sums = &mut self.sums[r * PANEL + half * 16..][..16];
                    for (sum, w) in sums.iter_mut().zip(weights) {
                        *sum += (0..4).map(|i| i32::from(x[i]) * i32::from(w[i])).sum::<i32>();
                    }
                }
            }
        }
    }
}

/// # Safety
/// `a` is `[steps * 16][ROWS]` fours, `b` is `[steps]` pairs of tiles, `sums` is `[ROWS][PANEL]`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn vnni<const ROWS: usize>(a: *const i32, b: *const u8, sums: *mut i32, steps: usize, first: bool) {
    use std::arch::x86_64::*;
    // SAFETY: by the contract above.
    unsafe {
        let mut acc = [[_mm512_setzero_si512(); 2]; ROWS];
        if !first {
            for r in 0..ROWS {
                let at = sums.add(r * PANEL);
                acc[r] = [_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(16).cast())];
            }
        }
        let mut a = a;
        for step in 0..steps {
            for four in 0..16 {
                let at = b.add(step * 2048 + four * 64);
                let w = [_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(1024).cast())];
                for r in 0..ROWS {
                    let x = _mm512_set1_epi32(*a.add(r));
                    acc[r] = [_mm512_dpbusd_epi32(acc[r][0], x, w[0]), _mm512_dpbusd_epi32(acc[r][1], x, w[1])];
                }
                a = a.add(ROWS);
            }
        }
        for r in 0..ROWS {
            _mm512_storeu_si512(sums.add(r * PANEL).cast(), acc[r][0]);
            _mm512_storeu_si512(sums.add(r * PANEL + 16).cast(), acc[r][1]);
        }
    }
}
