//! Products of GGUF blocks with activations that are rounded to 8 bits in blocks of their own.
//!
//! The rounding is that of ggml: blocks of 32 with a factor that is a 16-bit float, or, for weights in blocks of 256,
//! blocks of 256 with a 32-bit one. Sums of a group's products are exact integers, and groups are added in order, so a
//! row's result is the same in any company.

use half::f16;

use super::driver::{Engine, Packed, Work, row};
use super::quant::{self, CHUNK, Chunk, GROUP};
use super::{PANEL, WeightFormat};
use crate::isa::Isa;
use crate::simd::{Element, Kernel, MAX_LANES, Simd, dispatch};
use crate::values::Values;

/// Rows of a full block: as many as keep both kinds of sums in registers.
const ROWS: usize = 6;

// A packed block of rows, in words of 32 bits for each row: fours of values, then these.
/// Factors, one a group.
const FACTORS: usize = CHUNK / 4;
/// Factor times sum of a group, for minimums.
const SUMS: usize = FACTORS + CHUNK / GROUP;
/// What integer sums of a group (of 32 or 16) start from, as values of weights are shifted.
const STARTS: usize = SUMS + CHUNK / GROUP;
/// Sums of two groups in one word, for minimums of large blocks.
const PAIRS: usize = STARTS + CHUNK / 16;

/// `vpdpbusd` on unpacked blocks where it is, plain integers elsewhere.
pub(super) struct Blocks {
    pub(super) isa: Isa,
    pub(super) format: WeightFormat,
    pub(super) vnni: bool,
}

impl Engine for Blocks {
    const SPARE: usize = 0;
    const ROWS: usize = ROWS;
    type State = ();

    fn chunk(&self, _: usize) -> usize {
        CHUNK
    }

    fn bytes_per_k(rows: usize) -> usize {
        2 * rows
    }

    unsafe fn pack(&self, x: Values<'_>, inputs: usize, first: usize, rows: usize, to: Packed) {
        for r in 0..rows {
            for (chunk, start) in (0..inputs).step_by(CHUNK).enumerate() {
                let range = start..(start + CHUNK).min(inputs);
                // SAFETY: the rows exist, and the block has room for its words.
                unsafe {
                    let to = to.chunk(chunk).cast::<u32>();
                    let format = self.format;
                    match row(x, inputs, first + r) {
                        Values::F32(x) => dispatch(self.isa, Round { x: &x[range], to, r, rows, format }),
                        Values::Bf16(x) => dispatch(self.isa, Round { x: &x[range], to, r, rows, format }),
                    }
                }
            }
        }
    }

    fn enter(&self, _: usize) {}

    fn space_bytes(&self, _: usize) -> usize {
        size_of::<Chunk>()
    }

    unsafe fn weights(&self, panel: *const u8, len: usize, space: *mut u8) -> *const u8 {
        // SAFETY: the chunk is whole blocks, and the space holds a whole chunk, aligned as all scratch is.
        unsafe { quant::unpack(self.isa, self.format, panel, len, space.cast()) };
        space
    }

    unsafe fn multiply(&self, (): &mut (), work: Work) {
        // SAFETY: the caller's contract; `weights` has filled the chunk.
        let product = unsafe {
            Product {
                a: work.a.cast(),
                b: &*work.b.cast(),
                sums: work.sums,
                len: work.len,
                first: work.place.first,
                format: self.format,
            }
        };
        #[cfg(target_arch = "x86_64")]
        if self.vnni {
            // SAFETY: VNNI is there; the rest is the caller's contract.
            unsafe {
                match work.rows {
                    1 => product.vnni::<1>(),
                    2 => product.vnni::<2>(),
                    3 => product.vnni::<3>(),
                    4 => product.vnni::<4>(),
                    5 => product.vnni::<5>(),
                    _ => product.vnni::<ROWS>(),
                }
            }
            return;
        }
        // SAFETY: the caller's contract.
        unsafe { dispatch(self.isa, Plain { product, rows: work.rows }) }
    }
}

/// Rounds a chunk of one row.
struct Round<'a, T> {
    x: &'a [T],
    to: *mut u32,
    r: usize,
    rows: usize,
    format: WeightFormat,
}

impl<T: Element> Round<'_, T> {
    /// The value of the largest magnitude, the first of several; NaN if one isn't finite.
    #[inline(always)]
    unsafe fn extreme<V: Simd>(x: &[T]) -> f32 {
        // SAFETY: whole groups of 32, which is a multiple of every vector's lanes.
        unsafe {
            let (mut largest, mut poison) = (V::splat(0.0), V::splat(0.0));
            for c in (0..x.len()).step_by(V::LANES) {
                let v = T::load::<V>(x.as_ptr().add(c), V::LANES);
                largest = v.abs().max(largest);
                poison = v.fma(V::splat(0.0), poison);
            }
            if poison.sum().is_nan() { f32::NAN } else { largest.largest() }
        }
    }

    /// # Safety
    /// `at` is one of the words of a row.
    #[inline(always)]
    unsafe fn put<W>(&self, at: usize, word: W) {
        // SAFETY: by the contract above.
        unsafe { self.to.add(at * self.rows + self.r).cast::<W>().write(word) }
    }

    /// Rounds a group after multiplying with `by`, and gives the sums of its halves.
    #[inline(always)]
    unsafe fn group<V: Simd>(&self, group: usize, by: f32) -> [i32; 2] {
        let mut line = [0i8; GROUP + MAX_LANES];
        // SAFETY: the group lies within the row.
        unsafe {
            let x = self.x.as_ptr().add(group * GROUP);
            for c in (0..GROUP).step_by(V::LANES) {
                T::load::<V>(x.add(c), V::LANES).mul(V::splat(by)).round().store_i8(line.as_mut_ptr().add(c));
            }
            for (four, v) in line[..GROUP].chunks_exact(4).enumerate() {
                self.put(group * 8 + four, [v[0], v[1], v[2], v[3]]);
            }
        }
        let sum = |half: &[i8]| half.iter().map(|&v| i32::from(v)).sum::<i32>();
        [sum(&line[..16]), sum(&line[16..GROUP])]
    }
}

impl<T: Element> Kernel for Round<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        let (offset, groups) = (self.format.layout().offset, self.x.len() / GROUP);
        // SAFETY: the words of a row, by the contract of `pack`.
        unsafe {
            if self.format.is_large() {
                let largest = Self::extreme::<V>(self.x);
                // The one of the largest magnitude becomes -127, whatever its sign.
                let signed = self.x.iter().map(|x| x.to_f32()).find(|x| x.abs() == largest).unwrap_or(largest);
                let by = if signed == 0.0 { 0.0 } else { -127.0 / signed };
                let factor = if signed == 0.0 { 0.0 } else { 1.0 / by };
                self.put(FACTORS, factor);
                let mut pair = 0;
                for group in 0..groups {
                    let [first, second] = self.group::<V>(group, if by.is_nan() { 0.0 } else { by });
                    if self.format.layout().minimum {
                        self.put(STARTS + group, 0i32);
                        pair = if group % 2 == 0 { first + second } else { pair & 0xffff | (first + second) << 16 };
                        self.put(PAIRS + group / 2, pair);
                    } else {
                        self.put(STARTS + 2 * group, -offset * first);
                        self.put(STARTS + 2 * group + 1, -offset * second);
                    }
                }
                return;
            }
            for group in 0..groups {
                let largest = Self::extreme::<V>(&self.x[group * GROUP..][..GROUP]);
                let factor = largest / 127.0;
                let by = if largest > 0.0 { 127.0 / largest } else { 0.0 };
                let [first, second] = self.group::<V>(group, by);
                self.put(FACTORS + group, f16::from_f32(factor).to_f32());
                self.put(SUMS + group, f16::from_f32(factor * (first + second) as f32).to_f32());
                self.put(STARTS + group, -offset * (first + second));
            }
        }
    }
}

/// A packed block of rows times a chunk of a panel.
#[derive(Clone, Copy)]
struct Product<'a> {
    a: *const u32,
    b: &'a Chunk,
    sums: *mut f32,
    len: usize,
    first: bool,
    format: WeightFormat,
}

#[cfg(target_arch = "x86_64")]
impl Product<'_> {
    /// # Safety
    /// AVX512-VNNI is there, and the block has `R` rows.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn vnni<const R: usize>(self) {
        // SAFETY: the contract above.
        unsafe {
            match (self.format.is_large(), self.format.layout().minimum) {
                (false, false) => self.small::<R, false>(),
                (false, true) => self.small::<R, true>(),
                (true, false) => self.large::<R, 4>(),
                (true, true) => self.large::<R, 8>(),
            }
        }
    }

    /// # Safety
    /// As above.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn small<const R: usize, const MINIMUM: bool>(self) {
        use std::arch::x86_64::*;
        // SAFETY: the words of the rows and the chunk lie as described; sums are `[R][PANEL]`.
        unsafe {
            let mut sums = [[_mm512_setzero_ps(); 2]; R];
            if !self.first {
                for r in 0..R {
                    sums[r] = [0, 16].map(|c| _mm512_loadu_ps(self.sums.add(r * PANEL + c)));
                }
            }
            for group in 0..self.len / GROUP {
                let words = |at: usize| self.a.add((at + group) * R);
                let products = self.fours::<R, 8>(group * 8, words(STARTS).cast());
                for c in 0..2 {
                    let factors = _mm512_loadu_ps(self.b.factors[group].as_ptr().add(16 * c));
                    let minimums = _mm512_loadu_ps(self.b.minimums[group].as_ptr().add(16 * c));
                    for r in 0..R {
                        let factor = _mm512_mul_ps(factors, _mm512_set1_ps(*words(FACTORS).cast::<f32>().add(r)));
                        sums[r][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[r][c]), factor, sums[r][c]);
                        if MINIMUM {
                            let sum = _mm512_set1_ps(*words(SUMS).cast::<f32>().add(r));
                            sums[r][c] = _mm512_fmadd_ps(minimums, sum, sums[r][c]);
                        }
                    }
                }
            }
            for r in 0..R {
                (0..2).for_each(|c| _mm512_storeu_ps(self.sums.add(r * PANEL + 16 * c), sums[r][c]));
            }
        }
    }

    /// Groups of `FOURS` fours; those of eight have minimums.
    ///
    /// # Safety
    /// As above.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn large<const R: usize, const FOURS: usize>(self) {
        use std::arch::x86_64::*;
        // SAFETY: as above.
        unsafe {
            let mut totals = [[_mm512_setzero_si512(); 2]; R];
            for group in 0..self.len / 4 / FOURS {
                let products = self.fours::<R, FOURS>(group * FOURS, self.a.add((STARTS + group) * R).cast());
                for c in 0..2 {
                    let by = _mm512_loadu_si512(self.b.multipliers[group].as_ptr().add(16 * c).cast());
                    for r in 0..R {
                        totals[r][c] = _mm512_add_epi32(totals[r][c], _mm512_mullo_epi32(products[r][c], by));
                    }
                }
            }
            for r in 0..R {
                let row = _mm512_set1_ps(*self.a.add(FACTORS * R + r).cast::<f32>());
                for c in 0..2 {
                    let at = self.sums.add(r * PANEL + 16 * c);
                    let mut sum = if self.first { _mm512_setzero_ps() } else { _mm512_loadu_ps(at) };
                    let factors = _mm512_loadu_ps(self.b.factors[0].as_ptr().add(16 * c));
                    sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(totals[r][c]), _mm512_mul_ps(factors, row), sum);
                    if FOURS == 8 {
                        let mut total = _mm512_setzero_si512();
                        for pair in 0..4 {
                            let minimums = _mm512_loadu_si512(self.b.pairs[pair].as_ptr().add(16 * c).cast());
                            let two = _mm512_set1_epi32(*self.a.add((PAIRS + pair) * R + r).cast::<i32>());
                            total = _mm512_dpwssd_epi32(total, minimums, two);
                        }
                        let factors = _mm512_loadu_ps(self.b.minimums[0].as_ptr().add(16 * c));
                        sum = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(total), _mm512_mul_ps(factors, row), sum);
                    }
                    _mm512_storeu_ps(at, sum);
                }
            }
        }
    }

    /// Integer sums of `FOURS` fours.
    ///
    /// # Safety
    /// As above; `starts` is valid for `R` words.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn fours<const R: usize, const FOURS: usize>(
        self,
        first: usize,
        starts: *const i32,
    ) -> [[std::arch::x86_64::__m512i; 2]; R] {
        use std::arch::x86_64::*;
        // SAFETY: as above.
        unsafe {
            let mut sums = [[_mm512_setzero_si512(); 2]; R];
            for r in 0..R {
                sums[r] = [_mm512_set1_epi32(*starts.add(r)); 2];
            }
            for four in first..first + FOURS {
                let w = [0, 16].map(|c| _mm512_loadu_si512(self.b.values[four].as_ptr().add(c).cast()));
                for r in 0..R {
                    let x = _mm512_set1_epi32(*self.a.add(four * R + r).cast::<i32>());
                    sums[r] = [_mm512_dpbusd_epi32(sums[r][0], w[0], x), _mm512_dpbusd_epi32(sums[r][1], w[1], x)];
                }
            }
            sums
        }
    }
}

/// The product in plain integers; being a kernel, it is compiled for the instruction set at hand.
struct Plain<'a> {
    product: Product<'a>,
    rows: usize,
}

impl Kernel for Plain<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        let Plain { product: Product { a, b, sums, len, first, format }, rows } = self;
        let (large, minimum) = (format.is_large(), format.layout().minimum);
        let fours = if large && !minimum { 4 } else { 8 };
        // SAFETY: the words of the rows, and sums of `[rows][PANEL]`.
        unsafe {
            for r in 0..rows {
                let word = |at: usize| a.add(at * rows + r);
                let float = |at: usize| word(at).cast::<f32>().read();
                let sums = std::slice::from_raw_parts_mut(sums.add(r * PANEL), PANEL);
                if first {
                    sums.fill(0.0);
                }
                let mut totals = [0i32; PANEL];
                for group in 0..len / 4 / fours {
                    let mut products = [word(STARTS + group).cast::<i32>().read(); PANEL];
                    for four in group * fours..(group + 1) * fours {
                        let x = word(four).cast::<[i8; 4]>().read().map(i32::from);
                        for (sum, w) in products.iter_mut().zip(&b.values[four]) {
                            *sum += (0..4).map(|i| x[i] * i32::from(w[i])).sum::<i32>();
                        }
                    }
                    for c in 0..PANEL {
                        if large {
                            totals[c] += products[c] * b.multipliers[group][c];
                            continue;
                        }
                        sums[c] += products[c] as f32 * (b.factors[group][c] * float(FACTORS + group));
                        if minimum {
                            sums[c] += b.minimums[group][c] * float(SUMS + group);
                        }
                    }
                }
                for c in (0..PANEL).filter(|_| large) {
                    sums[c] += totals[c] as f32 * (b.factors[0][c] * float(FACTORS));
                    if minimum {
                        let half = |word: i32, upper: bool| i32::from((if upper { word >> 16 } else { word }) as i16);
                        let pair = |pair: usize| (b.pairs[pair][c], word(PAIRS + pair).cast::<i32>().read());
                        let products =
                            |(m, x): (i32, i32)| half(m, false) * half(x, false) + half(m, true) * half(x, true);
                        let total: i32 = (0..4).map(|p| products(pair(p))).sum();
                        sums[c] -= total as f32 * (b.minimums[0][c] * float(FACTORS));
                    }
                }
            }
        }
    }
}
