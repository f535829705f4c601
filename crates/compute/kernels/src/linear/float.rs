//! Products in f32, for every instruction set. Other weights are widened one chunk at a time into L1.

use half::bf16;

use super::driver::{Engine, Packed, Place, Work};
use super::{PANEL, WeightFormat};
use crate::isa::Isa;
use crate::simd::{Kernel, Simd, dispatch};
use crate::transpose::pack_rows;
use crate::values::Values;

// Rows of a block: as many as leave two vectors of weights (and, where broadcasts need one, a register) free.
pub(crate) const AVX512_ROWS: usize = 14;
pub(crate) const AVX2_ROWS: usize = 6;
pub(crate) const NEON_ROWS: usize = 12;
pub(crate) const SCALAR_ROWS: usize = 4;

/// Vectors of columns that a block works on at a time.
const VECTORS: usize = 2;

/// Inner elements between those multiplied and those asked for.
const AHEAD: usize = 14;

/// Inner elements of a chunk: 32 KB of widened weights. Partial sums of this length also keep rounding errors from growing
/// with the inputs.
const CHUNK: usize = 256;

/// Arithmetic in f32 with blocks of `ROWS` rows.
pub(super) struct Float<const ROWS: usize> {
    pub(super) isa: Isa,
    pub(super) format: WeightFormat,
}

impl<const ROWS: usize> Engine for Float<ROWS> {
    const SPARE: usize = 64;
    const ROWS: usize = ROWS;
    type State = ();

    fn chunk(&self, _: usize) -> usize {
        CHUNK
    }

    fn bytes_per_k(rows: usize) -> usize {
        rows * 4
    }

    /// `[k][rows]`.
    unsafe fn pack(&self, x: Values<'_>, inputs: usize, first: usize, rows: usize, to: Packed) {
        for (chunk, start) in (0..inputs).step_by(CHUNK).enumerate() {
            let len = CHUNK.min(inputs - start);
            let at = first * inputs + start;
            // SAFETY: the rows exist; a chunk of the block has room for `CHUNK * rows` values and a vector more.
            unsafe {
                let to = to.chunk(chunk).cast::<f32>();
                match x {
                    Values::F32(x) => pack_rows(self.isa, x[at..].as_ptr(), inputs, rows, len, to, rows),
                    Values::Bf16(x) => pack_rows(self.isa, x[at..].as_ptr(), inputs, rows, len, to, rows),
                }
            }
        }
    }

    fn enter(&self, _: usize) {}

    fn space_bytes(&self, _: usize) -> usize {
        if self.format == WeightFormat::F32 { 0 } else { CHUNK * PANEL * 4 }
    }

    unsafe fn weights(&self, panel: *const u8, len: usize, space: *mut u8) -> *const u8 {
        if self.format == WeightFormat::F32 {
            return panel;
        }
        // SAFETY: the chunk is whole tiles, and the space holds a whole chunk.
        unsafe { widen(self.isa, panel.cast(), len, space.cast()) };
        space
    }

    unsafe fn multiply(&self, (): &mut (), work: Work) {
        let Work { a, b, sums, rows, len, place: Place { first, .. }, .. } = work;
        let work = Multiply { a: a.cast(), b: b.cast(), sums, rows, len, first };
        // SAFETY: the caller's contract.
        unsafe { dispatch(self.isa, work) }
    }
}

/// bf16 tiles to `[k][PANEL]` in f32.
///
/// # Safety
/// `tiles` is valid for `len` inner elements in whole tiles, and `to` has room for as many.
pub(crate) unsafe fn widen(isa: Isa, tiles: *const bf16, len: usize, to: *mut f32) {
    // SAFETY: by the contract above.
    unsafe { dispatch(isa, Widen { tiles, len, to }) }
}

struct Widen {
    tiles: *const bf16,
    len: usize,
    to: *mut f32,
}

impl Kernel for Widen {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        const HALF: usize = PANEL / 2;
        // Pairs of k, in the order of the tiles: two tiles of 16 columns a step of 16 pairs.
        for pair in 0..self.len.div_ceil(2) {
            for half in 0..2 {
                // SAFETY: inside the chunk's tiles and the space.
                unsafe {
                    let from = self.tiles.add((pair / 16 * 2 + half) * 16 * PANEL + pair % 16 * PANEL);
                    let to = self.to.add(pair * 2 * PANEL + half * HALF);
                    for c in (0..HALF).step_by(V::LANES) {
                        let (even, odd) = V::load_bf16_pairs(from.add(c * 2));
                        even.store(to.add(c));
                        odd.store(to.add(PANEL + c));
                    }
                }
            }
        }
    }
}

/// `sums = a b` if `first`, else `sums += a b`: `a` is `[len][rows]`, `b` is `[len][PANEL]`, `sums` is `[rows][PANEL]`.
pub(crate) struct Multiply {
    pub(crate) a: *const f32,
    pub(crate) b: *const f32,
    pub(crate) sums: *mut f32,
    pub(crate) rows: usize,
    pub(crate) len: usize,
    pub(crate) first: bool,
}

impl Kernel for Multiply {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        // SAFETY: the caller's contract; a block has at most as many rows as its instruction set's constant says.
        unsafe {
            match (V::LANES, self.rows) {
                (_, 1) => self.block::<V, 1>(),
                (_, 2) => self.block::<V, 2>(),
                (_, 3) => self.block::<V, 3>(),
                (_, 4) => self.block::<V, 4>(),
                (4.., 5) => self.block::<V, 5>(),
                (4.., 6) => self.block::<V, 6>(),
                (4 | 16, 7) => self.block::<V, 7>(),
                (4 | 16, 8) => self.block::<V, 8>(),
                (4 | 16, 9) => self.block::<V, 9>(),
                (4 | 16, 10) => self.block::<V, 10>(),
                (4 | 16, 11) => self.block::<V, 11>(),
                (4 | 16, 12) => self.block::<V, 12>(),
                (16, 13) => self.block::<V, 13>(),
                (16, 14) => self.block::<V, 14>(),
                _ => unreachable!("blocks are no larger"),
            }
        }
    }
}

/// Adds one inner element to the sums.
///
/// # Safety
/// `a` is valid for `ROWS` values, `b` for `VECTORS` vectors.
#[inline(always)]
unsafe fn step<V: Simd, const ROWS: usize>(acc: &mut [[V; VECTORS]; ROWS], a: *const f32, b: *const f32) {
    // SAFETY: by the contract above.
    unsafe {
        let w: [V; VECTORS] = [V::load(b), V::load(b.add(V::LANES))];
        for (r, acc) in acc.iter_mut().enumerate() {
            let x = V::splat(*a.add(r));
            for v in 0..VECTORS {
                acc[v] = x.fma(w[v], acc[v]);
            }
        }
    }
}

impl Multiply {
    #[inline(always)]
    unsafe fn block<V: Simd, const ROWS: usize>(&self) {
        for column in (0..PANEL).step_by(V::LANES * VECTORS) {
            // SAFETY: `a` is `[len][ROWS]`, `b` is `[len][PANEL]`, `sums` is `[ROWS][PANEL]`.
            unsafe {
                let mut acc = [[V::splat(0.0); VECTORS]; ROWS];
                let (a, b) = (self.a, self.b.add(column));
                for k in (0..self.len - self.len % 2).step_by(2) {
                    // A chunk of weights and a block of rows together are more than L1 likes to keep. Each line is asked
                    // for once: narrow vectors have no load to spare.
                    V::prefetch(a.wrapping_add(ROWS * (k + AHEAD)));
                    if ROWS > 8 {
                        V::prefetch(a.wrapping_add(ROWS * (k + 1 + AHEAD)));
                    }
                    for k in k..k + 2 {
                        let ahead = b.wrapping_add(PANEL * (k + AHEAD));
                        (0..V::LANES * VECTORS).step_by(16).for_each(|line| V::prefetch(ahead.wrapping_add(line)));
                        step(&mut acc, a.add(k * ROWS), b.add(k * PANEL));
                    }
                }
                if self.len % 2 == 1 {
                    let k = self.len - 1;
                    step(&mut acc, a.add(k * ROWS), b.add(k * PANEL));
                }
                for r in 0..ROWS {
                    for v in 0..VECTORS {
                        let to = self.sums.add(r * PANEL + column + v * V::LANES);
                        let sum = if self.first { acc[r][v] } else { V::load(to).add(acc[r][v]) };
                        sum.store(to);
                    }
                }
            }
        }
    }
}
