//! The block formats of GGUF, kept at their size and unpacked one chunk of a panel at a time, while it is multiplied.
//!
//! A packed block holds one block of each of the 32 rows of a panel. Every format is some 16-bit floats and one run of
//! 32-bit words; both are woven together word by word, `[halves][32] f16`, then `[words][32] u32`, so that a vector holds
//! the same word of neighbouring columns. What the words mean is as in the file:
//!
//! - `Q8_0`: 8 of values (kept without sign, 128 added); `Q4_0`, `Q4_1`: 4 of nibbles, first the lower ones;
//! - `Q5_0`, `Q5_1`: one of fifth bits, then as `Q4_0`;
//! - `Q4K`: 3 of multipliers, 32 of nibbles; `Q5K`: 8 of fifth bits between them;
//! - `Q6K`: 32 of nibbles, 16 of upper bits, 4 of multipliers.
//!
//! Activations are rounded to 8 bits in blocks too, as the formats' definition (ggml) has it, and products of a group are
//! exact integers.

use half::f16;

use super::{PANEL, WeightFormat};
use crate::isa::Isa;
use crate::simd::{Kernel, Simd, dispatch};

/// Inner elements of a group: a block of the small formats.
pub(super) const GROUP: usize = 32;
/// Inner elements of a chunk, and of a large block.
pub(super) const CHUNK: usize = 256;
/// Lanes that are unpacked together.
const LANES: usize = 16;

/// How a block lies in a file, and what its values mean.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// Offsets of the 16-bit floats.
    halves: &'static [usize],
    /// Offset and number of the words.
    words: (usize, usize),
    /// What is added to a value so that it isn't negative.
    pub(super) offset: i32,
    /// Whether a minimum is added to each group.
    pub(super) minimum: bool,
}

impl WeightFormat {
    /// The layout of a block format.
    pub(super) fn layout(self) -> Layout {
        let (halves, words, offset, minimum): (&'static [usize], _, _, _) = match self {
            WeightFormat::Q8_0 => (&[0], (2, 8), 128, false),
            WeightFormat::Q4_0 => (&[0], (2, 4), 8, false),
            WeightFormat::Q4_1 => (&[0, 2], (4, 4), 0, true),
            WeightFormat::Q5_0 => (&[0], (2, 5), 16, false),
            WeightFormat::Q5_1 => (&[0, 2], (4, 5), 0, true),
            WeightFormat::Q4K => (&[0, 2], (4, 35), 0, true),
            WeightFormat::Q5K => (&[0, 2], (4, 43), 0, true),
            WeightFormat::Q6K => (&[208], (0, 52), 32, false),
            WeightFormat::F32 | WeightFormat::Bf16 | WeightFormat::Int8 => (&[], (0, 0), 0, false),
        };
        Layout { halves, words, offset, minimum }
    }

    /// Whether groups have multipliers of their own within a large block.
    pub(super) fn is_large(self) -> bool {
        self.block() == CHUNK
    }
}

/// Bytes of a block of all 32 rows of a panel.
pub(super) fn packed_bytes(format: WeightFormat) -> usize {
    format.file_block_bytes().map_or(0, |bytes| bytes * PANEL)
}

/// Weaves one block of one row into its panel.
///
/// # Safety
/// `to` is a packed block, of which nobody else writes this column; `file` is one block of this format.
pub(super) unsafe fn weave(format: WeightFormat, file: &[u8], to: *mut u8, column: usize) {
    let Layout { halves, words: (start, count), .. } = format.layout();
    let sign = if format == WeightFormat::Q8_0 { 0x8080_8080 } else { 0 };
    // SAFETY: by the contract above; the offsets follow the layout in the module's description.
    unsafe {
        for (index, &at) in halves.iter().enumerate() {
            let half = u16::from_le_bytes([file[at], file[at + 1]]);
            to.cast::<u16>().add(index * PANEL + column).write_unaligned(half);
        }
        let to = to.add(halves.len() * PANEL * 2).cast::<u32>().add(column);
        for (index, word) in file[start..start + 4 * count].chunks_exact(4).enumerate() {
            let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            to.add(index * PANEL).write_unaligned(word ^ sign);
        }
    }
}

/// A chunk of a panel, unpacked.
#[repr(C, align(64))]
pub(super) struct Chunk {
    /// Fours of inner elements, without sign.
    pub(super) values: [[[u8; 4]; PANEL]; CHUNK / 4],
    /// One factor a group; of a large block only the first counts.
    pub(super) factors: [[f32; PANEL]; CHUNK / GROUP],
    /// What is added to each group, or the factor of the minimums of a large block.
    pub(super) minimums: [[f32; PANEL]; CHUNK / GROUP],
    /// Multipliers of a large block, for groups of 32 or of 16.
    pub(super) multipliers: [[i32; PANEL]; CHUNK / 16],
    /// Its minimums, those of two groups in one word.
    pub(super) pairs: [[i32; PANEL]; CHUNK / GROUP / 2],
}

/// Unpacks `len` inner elements (whole blocks) of a panel.
///
/// # Safety
/// `from` is at the start of a packed block, and `to` has room.
pub(super) unsafe fn unpack(isa: Isa, format: WeightFormat, from: *const u8, len: usize, to: *mut Chunk) {
    // SAFETY: by the contract above.
    unsafe { dispatch(isa, Unpack { format, from, len, to }) }
}

struct Unpack {
    format: WeightFormat,
    from: *const u8,
    len: usize,
    to: *mut Chunk,
}

impl Kernel for Unpack {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        let Unpack { format, from, len, to } = self;
        let layout = format.layout();
        let halves = layout.halves.len();
        // SAFETY: blocks of the panel, and a chunk with room, by the contract of `unpack`.
        let to = unsafe { &mut *to };
        for block in 0..len / format.block() {
            for lane in (0..PANEL).step_by(LANES) {
                // SAFETY: the packed layout.
                unsafe {
                    let start = from.add(block * packed_bytes(format));
                    let half = start.cast::<f16>().add(lane);
                    for c in (0..LANES).step_by(V::LANES) {
                        V::load_f16(half.add(c)).store(to.factors[block].as_mut_ptr().add(lane + c));
                        if halves > 1 {
                            V::load_f16(half.add(PANEL + c)).store(to.minimums[block].as_mut_ptr().add(lane + c));
                        }
                    }
                    let words = Words(start.add(halves * PANEL * 2).cast::<u32>().add(lane));
                    let mut put = |four: usize, value: [u32; LANES]| {
                        let at = to.values[block * format.block() / 4 + four].as_mut_ptr().add(lane);
                        at.cast::<[u32; LANES]>().write_unaligned(value);
                    };
                    match format {
                        WeightFormat::Q8_0 => (0..8).for_each(|f| put(f, words.get(f))),
                        WeightFormat::Q4_0 | WeightFormat::Q4_1 => {
                            (0..8).for_each(|f| put(f, words.nibbles(f % 4, f / 4)))
                        }
                        WeightFormat::Q5_0 | WeightFormat::Q5_1 => {
                            let bits = words.get(0);
                            (0..8).for_each(|f| {
                                put(f, either(words.nibbles(1 + f % 4, f / 4), spread(bits, 4 * f as u32)));
                            });
                        }
                        WeightFormat::Q4K => {
                            (0..64).for_each(|f| put(f, words.nibbles(3 + f / 16 * 8 + f % 8, f / 8 % 2)))
                        }
                        WeightFormat::Q5K => (0..64).for_each(|f| {
                            let fifth = words.bits(3 + f % 8, f as u32 / 8, 0x0101_0101);
                            put(f, either(words.nibbles(11 + f / 16 * 8 + f % 8, f / 8 % 2), fifth));
                        }),
                        WeightFormat::Q6K => (0..64).for_each(|f| {
                            let (half, quarter, f8) = (f / 32, f / 8 % 4, f % 8);
                            let low = words.nibbles(half * 16 + quarter % 2 * 8 + f8, quarter / 2);
                            put(f, either(low, words.bits(32 + half * 8 + f8, 2 * quarter as u32, 0x0303_0303)));
                        }),
                        WeightFormat::F32 | WeightFormat::Bf16 | WeightFormat::Int8 => {}
                    }
                    match format {
                        WeightFormat::Q4K | WeightFormat::Q5K => {
                            for group in 0..8 {
                                let (factors, _) = words.multipliers(group);
                                let at = to.multipliers[group].as_mut_ptr().add(lane);
                                at.cast::<[u32; LANES]>().write_unaligned(factors);
                            }
                            for pair in 0..4 {
                                let (low, high) = (words.multipliers(2 * pair).1, words.multipliers(2 * pair + 1).1);
                                let both: [u32; LANES] = std::array::from_fn(|i| low[i] | high[i] << 16);
                                to.pairs[pair].as_mut_ptr().add(lane).cast::<[u32; LANES]>().write_unaligned(both);
                            }
                        }
                        WeightFormat::Q6K => {
                            for group in 0..16 {
                                let word = words.get(48 + group / 4);
                                let signed = word.map(|w| (w << (24 - group % 4 * 8)) as i32 >> 24);
                                let at = to.multipliers[group].as_mut_ptr().add(lane);
                                at.cast::<[i32; LANES]>().write_unaligned(signed);
                            }
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}

/// The words of sixteen columns of a packed block.
#[derive(Clone, Copy)]
struct Words(*const u32);

// SAFETY of these: the index is one of the block's words.
impl Words {
    #[inline(always)]
    unsafe fn get(self, index: usize) -> [u32; LANES] {
        unsafe { self.0.add(index * PANEL).cast::<[u32; LANES]>().read_unaligned() }
    }

    /// The lower or upper nibbles.
    #[inline(always)]
    unsafe fn nibbles(self, index: usize, upper: usize) -> [u32; LANES] {
        unsafe { self.get(index).map(|w| w >> (4 * upper) & 0x0f0f_0f0f) }
    }

    /// Some bits of each byte, as bits 4 and 5.
    #[inline(always)]
    unsafe fn bits(self, index: usize, shift: u32, mask: u32) -> [u32; LANES] {
        unsafe { self.get(index).map(|w| (w >> shift & mask) << 4) }
    }

    /// The 6-bit factors and minimums of a group, out of the twelve bytes that hold eight of each.
    #[inline(always)]
    unsafe fn multipliers(self, group: usize) -> ([u32; LANES], [u32; LANES]) {
        let [first, second, third] = unsafe { [self.get(0), self.get(1), self.get(2)] };
        let shift = 8 * (group as u32 % 4);
        if group < 4 {
            return (first.map(|w| w >> shift & 63), second.map(|w| w >> shift & 63));
        }
        let low = third.map(|w| w >> shift);
        let upper = |words: [u32; LANES], i: usize| (words[i] >> (shift + 6) & 3) << 4;
        (
            std::array::from_fn(|i| low[i] & 15 | upper(first, i)),
            std::array::from_fn(|i| low[i] >> 4 & 15 | upper(second, i)),
        )
    }
}

#[inline(always)]
fn either(a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
    std::array::from_fn(|i| a[i] | b[i])
}

/// Four bits from `shift` on, as bit 4 of the four bytes.
#[inline(always)]
fn spread(bits: [u32; LANES], shift: u32) -> [u32; LANES] {
    // Copies of the four bits, 7 apart, put each one at the bottom of its byte.
    bits.map(|w| ((w >> shift & 15).wrapping_mul(0x0020_4081) & 0x0101_0101) << 4)
}

impl Chunk {
    /// The value of an inner element of a column, as the format defines it.
    pub(super) fn value(&self, format: WeightFormat, k: usize, column: usize) -> f32 {
        let layout = format.layout();
        let value = (i32::from(self.values[k / 4][column][k % 4]) - layout.offset) as f32;
        let group = k / GROUP;
        if !format.is_large() {
            let minimum = if layout.minimum { self.minimums[group][column] } else { 0.0 };
            return value * self.factors[group][column] + minimum;
        }
        let block = |multiplier: i32| self.factors[0][column] * multiplier as f32 * value;
        if !layout.minimum {
            return block(self.multipliers[k / 16][column]);
        }
        let minimum = self.pairs[group / 2][column] >> (16 * (group % 2)) & 0xffff;
        block(self.multipliers[group][column]) - self.minimums[0][column] * minimum as f32
    }
}
