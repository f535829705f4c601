//! The block formats of GGUF, kept at their size and decoded one chunk of a panel at a time, while it is multiplied.
//!
//! Blocks of the 32 rows of a panel are woven together, so that a vector holds one inner element of neighbouring columns
//! and their factors are a vector too:
//!
//! - `Q8_0`, for 32 inner elements: factors `[32] f16`, values `[32 k][32] i8`;
//! - `Q4_0`: factors `[32] f16`, nibbles `[16 pairs][32] u8` (the first element of a pair is the low one);
//! - `Q4K`, for 256: factors `[32] f16`, offsets `[32] f16`, their multipliers `[8][32] u8` twice, nibbles
//!   `[8][16 pairs][32]`; `Q5K` then has the fifth bits, `[8][32] u32` (bit `k`);
//! - `Q6K`: factors `[32] f16`, multipliers `[16][32] i8`, nibbles `[8][16 pairs][32]`, upper bits `[16][32] u32` (two
//!   bits for each of 16 elements).

use half::{bf16, f16};

use super::{PANEL, TILE_K, WeightFormat};
use crate::isa::Isa;
use crate::simd::{Kernel, Simd, dispatch};

/// Inner elements that share a factor, or two in `Q6K`.
const GROUP: usize = 32;
/// Groups of a large block.
const GROUPS: usize = 8;
/// Bytes of nibbles of a group.
const NIBBLES: usize = GROUP / 2 * PANEL;
const F16S: usize = PANEL * 2;
const U32S: usize = PANEL * 4;

/// Bytes of a block of all 32 rows of a panel.
pub(super) fn packed_bytes(format: WeightFormat) -> usize {
    match format {
        WeightFormat::Q8_0 => F16S + GROUP * PANEL,
        WeightFormat::Q4_0 => F16S + NIBBLES,
        WeightFormat::Q4K => 2 * F16S + 2 * GROUPS * PANEL + GROUPS * NIBBLES,
        WeightFormat::Q5K => 2 * F16S + 2 * GROUPS * PANEL + GROUPS * (NIBBLES + U32S),
        WeightFormat::Q6K => F16S + 2 * GROUPS * PANEL + GROUPS * (NIBBLES + 2 * U32S),
        WeightFormat::F32 | WeightFormat::Bf16 | WeightFormat::Int8 => 0,
    }
}

/// Where one column of one packed block lies.
struct Column {
    block: *mut u8,
    column: usize,
}

impl Column {
    /// # Safety
    /// `at` is an array of 32 bytes within the block, or `byte` one of several.
    unsafe fn byte(&self, at: usize, byte: u8) {
        // SAFETY: by the contract above.
        unsafe { self.block.add(at + self.column).write(byte) }
    }

    /// # Safety
    /// `at` is an array of 32 halves within the block.
    unsafe fn half(&self, at: usize, bytes: &[u8]) {
        // SAFETY: by the contract above; bytes are little-endian in the file and in memory.
        unsafe {
            self.block.add(at).cast::<u16>().add(self.column).write_unaligned(u16::from_le_bytes([bytes[0], bytes[1]]))
        }
    }

    /// # Safety
    /// `at` is an array of 32 words within the block.
    unsafe fn word(&self, at: usize, word: u32) {
        // SAFETY: by the contract above.
        unsafe { self.block.add(at).cast::<u32>().add(self.column).write_unaligned(word) }
    }

    /// The low nibbles of a group's elements.
    ///
    /// # Safety
    /// `at` is the start of a group's nibbles within the block.
    unsafe fn nibbles(&self, at: usize, values: &[u8; GROUP]) {
        for (pair, two) in values.chunks_exact(2).enumerate() {
            // SAFETY: by the contract above.
            unsafe { self.byte(at + pair * PANEL, two[0] & 15 | two[1] << 4) };
        }
    }
}

/// Weaves one block of one row into its panel.
///
/// # Safety
/// `to` is a packed block, of which nobody else writes this column; `file` is one block of this format.
pub(super) unsafe fn weave(format: WeightFormat, file: &[u8], to: *mut u8, column: usize) {
    let to = Column { block: to, column };
    // SAFETY: by the contract above; offsets follow the layout in the module's description.
    unsafe {
        match format {
            WeightFormat::Q8_0 => {
                to.half(0, file);
                (0..GROUP).for_each(|k| to.byte(F16S + k * PANEL, file[2 + k]));
            }
            WeightFormat::Q4_0 => {
                to.half(0, file);
                let value = |k: usize| if k < 16 { file[2 + k] & 15 } else { file[2 + k - 16] >> 4 };
                to.nibbles(F16S, &std::array::from_fn(value));
            }
            WeightFormat::Q4K | WeightFormat::Q5K => {
                to.half(0, file);
                to.half(F16S, &file[2..]);
                let fifth = format == WeightFormat::Q5K;
                let values = &file[if fifth { 48 } else { 16 }..];
                let start = 2 * F16S + 2 * GROUPS * PANEL;
                for group in 0..GROUPS {
                    let (factor, offset) = multipliers(&file[4..16], group);
                    to.byte(2 * F16S + group * PANEL, factor);
                    to.byte(2 * F16S + (GROUPS + group) * PANEL, offset);
                    let value = |k: usize| values[group / 2 * GROUP + k] >> (group % 2 * 4) & 15;
                    to.nibbles(start + group * NIBBLES, &std::array::from_fn(value));
                    if fifth {
                        let word = (0..GROUP).fold(0, |word, k| word | u32::from(file[16 + k] >> group & 1) << k);
                        to.word(start + GROUPS * NIBBLES + group * U32S, word);
                    }
                }
            }
            WeightFormat::Q6K => {
                to.half(0, &file[208..]);
                let start = F16S + 2 * GROUPS * PANEL;
                (0..2 * GROUPS).for_each(|i| to.byte(F16S + i * PANEL, file[192 + i]));
                for group in 0..GROUPS {
                    let (half, quarter) = (group / 4, group % 4);
                    let low = |k: usize| file[half * 64 + quarter % 2 * 32 + k] >> (quarter / 2 * 4) & 15;
                    let high = |k: usize| u32::from(file[128 + half * 32 + k] >> (quarter * 2) & 3);
                    to.nibbles(start + group * NIBBLES, &std::array::from_fn(low));
                    for part in 0..2 {
                        let word = (0..16).fold(0, |word, k| word | high(part * 16 + k) << (2 * k));
                        to.word(start + GROUPS * NIBBLES + (2 * group + part) * U32S, word);
                    }
                }
            }
            WeightFormat::F32 | WeightFormat::Bf16 | WeightFormat::Int8 => {}
        }
    }
}

/// The 6-bit factor and offset of a group, out of the twelve bytes that hold eight of each.
fn multipliers(packed: &[u8], group: usize) -> (u8, u8) {
    if group < 4 {
        (packed[group] & 63, packed[group + 4] & 63)
    } else {
        let low = packed[group + 4];
        (low & 15 | packed[group - 4] >> 6 << 4, low >> 4 | packed[group] >> 6 << 4)
    }
}

/// What a chunk is decoded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// `[k][PANEL]` in f32.
    Rows,
    /// Tiles of bf16.
    Tiles,
}

/// Decodes `len` inner elements (whole blocks) of a panel.
///
/// # Safety
/// `from` is at the start of a block; `to` has room.
pub(super) unsafe fn decode(isa: Isa, format: WeightFormat, from: *const u8, len: usize, to: *mut u8, target: Target) {
    // SAFETY: by the contract above.
    unsafe { dispatch(isa, Decode { format, from, len, to, target }) }
}

struct Decode {
    format: WeightFormat,
    from: *const u8,
    len: usize,
    to: *mut u8,
    target: Target,
}

/// One group of a block, as pointers to its parts.
#[derive(Clone, Copy)]
struct Group {
    factors: *const f16,
    values: *const u8,
    /// Multipliers of the factors, and of the offsets or of the second half's factors.
    multipliers: [*const u8; 2],
    high: *const u32,
}

impl Kernel for Decode {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        let block = self.format.block();
        for at in 0..self.len / block {
            for group in 0..block / GROUP {
                // SAFETY: the pointers follow the packed layout.
                unsafe {
                    let start = self.from.add(at * packed_bytes(self.format));
                    let k = at * block + group * GROUP;
                    let none = (start, std::ptr::null());
                    let multipliers_at = |at: usize| start.wrapping_add(at);
                    let (values, high) = match self.format {
                        WeightFormat::Q4K | WeightFormat::Q5K | WeightFormat::Q6K => {
                            let f16s = if self.format == WeightFormat::Q6K { F16S } else { 2 * F16S };
                            let nibbles = start.add(f16s + 2 * GROUPS * PANEL);
                            let words = if self.format == WeightFormat::Q6K { 2 } else { 1 };
                            let high = nibbles.wrapping_add(GROUPS * NIBBLES + words * group * U32S);
                            (nibbles.add(group * NIBBLES), high.cast())
                        }
                        _ => (start.add(F16S), none.1),
                    };
                    let multipliers = match self.format {
                        WeightFormat::Q6K => [2 * group, 2 * group + 1].map(|i| multipliers_at(F16S + i * PANEL)),
                        _ => [group, GROUPS + group].map(|i| multipliers_at(2 * F16S + i * PANEL)),
                    };
                    let group = Group { factors: start.cast(), values, multipliers, high };
                    match self.format {
                        WeightFormat::Q8_0 => self.q8::<V>(group, k),
                        WeightFormat::Q4_0 => self.q4::<V>(group, k),
                        WeightFormat::Q4K => self.q45::<V, false>(group, k),
                        WeightFormat::Q5K => self.q45::<V, true>(group, k),
                        WeightFormat::Q6K => self.q6::<V>(group, k),
                        _ => {}
                    }
                }
            }
        }
    }
}

// SAFETY of these: as for `Decode`, whose parts the group's pointers are.
impl Decode {
    /// Writes the elements `k` and `k + 1` of the columns from `column` on.
    #[inline(always)]
    unsafe fn put<V: Simd>(&self, k: usize, column: usize, even: V, odd: V) {
        unsafe {
            match self.target {
                Target::Rows => {
                    let to = self.to.cast::<f32>().add(k * PANEL + column);
                    even.store(to);
                    odd.store(to.add(PANEL));
                }
                Target::Tiles => {
                    let tile = k / TILE_K * 2 + column / 16;
                    let at = tile * 16 * PANEL + k % TILE_K / 2 * PANEL + column % 16 * 2;
                    V::store_bf16_pairs(even, odd, self.to.cast::<bf16>().add(at));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn q8<V: Simd>(&self, group: Group, k: usize) {
        for column in (0..PANEL).step_by(V::LANES) {
            unsafe {
                let factor = V::load_f16(group.factors.add(column));
                for pair in 0..GROUP / 2 {
                    let from = group.values.add(2 * pair * PANEL + column).cast::<i8>();
                    let (even, odd) = (V::from_i8(from), V::from_i8(from.add(PANEL)));
                    self.put(k + 2 * pair, column, even.mul(factor), odd.mul(factor));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn q4<V: Simd>(&self, group: Group, k: usize) {
        for column in (0..PANEL).step_by(V::LANES) {
            unsafe {
                let factor = V::load_f16(group.factors.add(column));
                let plus = factor.mul(V::splat(-8.0));
                for pair in 0..GROUP / 2 {
                    let from = group.values.add(pair * PANEL + column);
                    let (even, odd) = (V::from_bits_u8(from, 0, 15), V::from_bits_u8(from, 4, 15));
                    self.put(k + 2 * pair, column, even.fma(factor, plus), odd.fma(factor, plus));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn q45<V: Simd, const FIFTH: bool>(&self, group: Group, k: usize) {
        for column in (0..PANEL).step_by(V::LANES) {
            unsafe {
                let multiplier = |i: usize| V::from_bits_u8(group.multipliers[i].add(column), 0, 255);
                let factor = V::load_f16(group.factors.add(column)).mul(multiplier(0));
                let offset = V::load_f16(group.factors.add(PANEL + column)).mul(multiplier(1));
                let plus = V::splat(0.0).sub(offset);
                for pair in 0..GROUP / 2 {
                    let from = group.values.add(pair * PANEL + column);
                    let (mut even, mut odd) = (V::from_bits_u8(from, 0, 15), V::from_bits_u8(from, 4, 15));
                    if FIFTH {
                        let bit = |k: usize| V::from_bits_u32(group.high.add(column), k as u32, 1);
                        even = bit(2 * pair).fma(V::splat(16.0), even);
                        odd = bit(2 * pair + 1).fma(V::splat(16.0), odd);
                    }
                    self.put(k + 2 * pair, column, even.fma(factor, plus), odd.fma(factor, plus));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn q6<V: Simd>(&self, group: Group, k: usize) {
        for column in (0..PANEL).step_by(V::LANES) {
            for part in 0..2 {
                unsafe {
                    let multiplier = V::from_i8(group.multipliers[part].add(column).cast());
                    let factor = V::load_f16(group.factors.add(column)).mul(multiplier);
                    let plus = factor.mul(V::splat(-32.0));
                    for pair in 0..8 {
                        let from = group.values.add((part * 8 + pair) * PANEL + column);
                        let high = |k: usize| V::from_bits_u32(group.high.add(part * PANEL + column), 2 * k as u32, 3);
                        let (even, odd) = (V::from_bits_u8(from, 0, 15), V::from_bits_u8(from, 4, 15));
                        let even = high(2 * pair).fma(V::splat(16.0), even);
                        let odd = high(2 * pair + 1).fma(V::splat(16.0), odd);
                        self.put(k + part * 16 + 2 * pair, column, even.fma(factor, plus), odd.fma(factor, plus));
                    }
                }
            }
        }
    }
}
