//! Attention in f32, for every instruction set.

use super::flash::{Engine, QUERIES, Rows, State};
use crate::isa::Isa;
use crate::linear::float::Multiply;
use crate::math;
use crate::simd::{Element, Kernel, Simd, dispatch};
use crate::transpose::pack_rows;

const _: () = assert!(QUERIES == crate::linear::PANEL);

/// Bytes that packing may write behind the end.
const SPARE: usize = 64;

/// Blocks of `KEYS` keys, multiplied `ROWS` rows at a time.
pub(super) struct Float<const ROWS: usize, const KEYS: usize> {
    pub(super) isa: Isa,
}

impl<T: Element, const ROWS: usize, const KEYS: usize> Engine<T> for Float<ROWS, KEYS> {
    const KEYS: usize = KEYS;

    fn key_bytes(&self, dim: usize) -> usize {
        (KEYS * dim * 4).next_multiple_of(64) + SPARE
    }

    fn value_bytes(&self, dim: usize) -> usize {
        (KEYS * dim * 4).next_multiple_of(64) + SPARE
    }

    fn query_bytes(&self, dim: usize) -> usize {
        QUERIES * dim * 4 + SPARE
    }

    fn sum_rows(&self, dim: usize) -> usize {
        dim
    }

    fn enter(&self) -> impl Sized {}

    /// Blocks of rows, `[dim][rows]` each.
    unsafe fn pack_keys(&self, keys: Rows<T>, dim: usize, to: *mut u8) {
        for start in (0..keys.count).step_by(ROWS) {
            let rows = ROWS.min(keys.count - start);
            // SAFETY: a block of rows takes `rows * dim` values, and what is written behind it belongs to the next one.
            unsafe {
                let from = keys.start.add(start * keys.stride);
                pack_rows(self.isa, from, keys.stride, rows, dim, to.cast::<f32>().add(start * dim), rows);
            }
        }
    }

    /// Blocks of elements, `[keys][elements]` each.
    unsafe fn pack_values(&self, values: Rows<T>, dim: usize, to: *mut u8) {
        // SAFETY: the caller's contract.
        unsafe { dispatch(self.isa, PackValues::<T, ROWS, KEYS> { values, dim, to: to.cast() }) }
    }

    /// `[dim][QUERIES]`.
    unsafe fn pack_queries(&self, queries: Rows<T>, dim: usize, to: *mut u8) {
        // SAFETY: the panel has room for all.
        unsafe {
            let to = to.cast::<f32>();
            to.write_bytes(0, dim * QUERIES);
            for start in (0..queries.count).step_by(16) {
                let rows = 16.min(queries.count - start);
                let from = queries.start.add(start * queries.stride);
                pack_rows(self.isa, from, queries.stride, rows, dim, to.add(start), QUERIES);
            }
        }
    }

    unsafe fn scores(&self, keys: *const u8, queries: *const u8, dim: usize, count: usize, scores: *mut f32) {
        let (a, b) = (keys.cast::<f32>(), queries.cast());
        // SAFETY: the caller's contract.
        unsafe { self.product(a, b, scores, count, dim, true, dim) }
    }

    unsafe fn softmax(&self, scores: *mut f32, count: usize, scale: f32, state: &mut State) -> bool {
        // SAFETY: the caller's contract.
        unsafe { dispatch(self.isa, Softmax { scores, count, scale, state }) }
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
        // SAFETY: the caller's contract.
        unsafe { self.product(values.cast(), weights, sums, dim, count, first, KEYS) }
    }

    unsafe fn rescale(&self, sums: *mut f32, dim: usize, factors: &[f32; QUERIES]) {
        // SAFETY: the caller's contract.
        unsafe { dispatch(self.isa, Rescale { sums, dim, factors }) }
    }
}

impl<const ROWS: usize, const KEYS: usize> Float<ROWS, KEYS> {
    /// `sums (+)= a b` where `a` is blocks of rows, `room` inner elements apart, and `b` is `[len][QUERIES]`.
    ///
    /// # Safety
    /// All are valid for these sizes.
    unsafe fn product(
        &self,
        a: *const f32,
        b: *const f32,
        sums: *mut f32,
        rows: usize,
        len: usize,
        first: bool,
        room: usize,
    ) {
        for start in (0..rows).step_by(ROWS) {
            let rows = ROWS.min(rows - start);
            // SAFETY: by the contract above.
            unsafe {
                let (a, sums) = (a.add(start * room), sums.add(start * QUERIES));
                dispatch(self.isa, Multiply { a, b, sums, rows, len, first });
            }
        }
    }
}

/// Values in blocks of elements. Whole vectors are stored, each over the place of what comes next.
struct PackValues<T, const ROWS: usize, const KEYS: usize> {
    values: Rows<T>,
    dim: usize,
    to: *mut f32,
}

impl<T: Element, const ROWS: usize, const KEYS: usize> Kernel for PackValues<T, ROWS, KEYS> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        for start in (0..self.dim).step_by(ROWS) {
            let rows = ROWS.min(self.dim - start);
            for key in 0..self.values.count {
                for c in (0..rows).step_by(V::LANES) {
                    // SAFETY: reads stay within the head; a block takes `KEYS * rows` values, with a vector to spare
                    // behind the last one.
                    unsafe {
                        let from = self.values.start.add(key * self.values.stride + start + c);
                        let to = self.to.add(start * KEYS + key * rows + c);
                        T::load::<V>(from, V::LANES.min(self.dim - start - c)).store(to);
                    }
                }
            }
        }
    }
}

struct Softmax<'a> {
    scores: *mut f32,
    count: usize,
    scale: f32,
    state: &'a mut State,
}

impl Kernel for Softmax<'_> {
    type Output = bool;

    #[inline(always)]
    unsafe fn run<V: Simd>(self) -> bool {
        let Softmax { scores, count, scale, state } = self;
        let mut changed = false;
        for lane in (0..QUERIES).step_by(V::LANES) {
            // SAFETY: scores are `[count][QUERIES]`.
            unsafe {
                let at = |key: usize| scores.add(key * QUERIES + lane);
                let scale = V::splat(scale);
                let before = V::load(state.maxima.as_ptr().add(lane));
                let mut maximum = before;
                for key in 0..count {
                    maximum = V::load(at(key)).mul(scale).max(maximum);
                }
                let factor = math::exp(before.sub(maximum));
                let mut sum = V::load(state.sums.as_ptr().add(lane)).mul(factor);
                for key in 0..count {
                    let weight = math::exp(V::load(at(key)).mul(scale).sub(maximum));
                    sum = sum.add(weight);
                    weight.store(at(key));
                }
                maximum.store(state.maxima.as_mut_ptr().add(lane));
                sum.store(state.sums.as_mut_ptr().add(lane));
                factor.store(state.factors.as_mut_ptr().add(lane));
                changed |= state.factors[lane..][..V::LANES].iter().any(|&factor| factor != 1.0);
            }
        }
        changed
    }
}

/// Multiplies the sums of each query by its factor.
pub(super) struct Rescale<'a> {
    pub(super) sums: *mut f32,
    pub(super) dim: usize,
    pub(super) factors: &'a [f32; QUERIES],
}

impl Kernel for Rescale<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        for lane in (0..QUERIES).step_by(V::LANES) {
            // SAFETY: sums are `[dim][QUERIES]`.
            unsafe {
                let factor = V::load(self.factors.as_ptr().add(lane));
                for row in 0..self.dim {
                    let at = self.sums.add(row * QUERIES + lane);
                    V::load(at).mul(factor).store(at);
                }
            }
        }
    }
}
