//! Products with the bf16 tiles of AMX.

use super::dot_bf16::to_bf16;
use super::driver::{Ahead, Engine, Packed, row};
use super::{PANEL, TILE_K, WeightFormat, quant};
use crate::isa::Isa;
use crate::memory::Scratch;
use crate::tiles::{STEPS, TILE, TileConfig, one_tile, two_tiles};
use crate::values::Values;

/// `tdpbf16ps` on packed tiles.
pub(super) struct Tiles {
    pub(super) format: WeightFormat,
}

impl Engine for Tiles {
    const SPARE: usize = 0;
    const ROWS: usize = 32;
    const CHUNK: usize = STEPS * TILE_K;

    /// Tiles of sixteen rows are always whole; those past the end are zero.
    fn bytes_per_k(rows: usize) -> usize {
        rows.div_ceil(16) * TILE / TILE_K
    }

    /// `[k / 32][tiles][16 rows][32]`.
    unsafe fn pack(&self, x: Values<'_>, inputs: usize, first: usize, rows: usize, to: Packed) {
        let padded = inputs.next_multiple_of(TILE_K);
        let tiles = rows.div_ceil(16);
        let mut line = Scratch::take(padded * 2);
        let line = line.ptr::<u8>();
        for r in 0..tiles * 16 {
            // SAFETY: the line holds a padded row, the block `padded / 32 * tiles` tiles.
            unsafe {
                if r < rows {
                    to_bf16(row(x, inputs, first + r), line.cast(), padded);
                } else if r == rows {
                    line.write_bytes(0, padded * 2);
                }
                scatter_tile_rows(line, padded * 2, r, rows, to);
            }
        }
    }

    fn enter(&self) -> impl Sized {
        TileConfig::load()
    }

    fn space_bytes(&self) -> usize {
        if self.format == WeightFormat::Bf16 { 0 } else { Self::CHUNK * PANEL * 2 }
    }

    unsafe fn weights(&self, panel: *const u8, len: usize, space: *mut u8) -> *const u8 {
        if self.format == WeightFormat::Bf16 {
            return panel;
        }
        // SAFETY: the chunk is whole blocks, and the space holds a whole chunk.
        unsafe { quant::decode(Isa::AmxBf16, self.format, panel, len, space, quant::Target::Tiles) };
        space
    }

    unsafe fn multiply(
        &self,
        a: *const u8,
        b: *const u8,
        sums: *mut f32,
        rows: usize,
        len: usize,
        first: bool,
        ahead: Ahead,
    ) {
        let steps = len.div_ceil(TILE_K);
        // SAFETY: the caller's contract, and tiles are configured by `enter`.
        unsafe {
            if rows > 16 { two_tiles(a, b, sums, steps, first, ahead) } else { one_tile(a, b, sums, steps, first) }
        }
    }
}

/// Puts the bytes of row `r` of a block of `rows` into its tiles, 64 to each.
///
/// # Safety
/// `line` holds `bytes` bytes, a multiple of 64, and the block has room for them.
pub(super) unsafe fn scatter_tile_rows(line: *const u8, bytes: usize, r: usize, rows: usize, to: Packed) {
    let tiles = rows.div_ceil(16);
    for step in 0..bytes / 64 {
        // SAFETY: by the contract above.
        unsafe {
            let to = to.chunk(step / STEPS).add((step % STEPS * tiles + r / 16) * TILE + r % 16 * 64);
            std::ptr::copy_nonoverlapping(line.add(step * 64), to, 64);
        }
    }
}
