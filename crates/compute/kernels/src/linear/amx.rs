//! Products with the bf16 tiles of AMX.

use std::ops::Range;

use super::TILE_K;
use super::driver::{Engine, Packed, Work, row};
use crate::dots;
use crate::memory::Scratch;
use crate::tiles::{Pipe, STEPS, TILE};
use crate::values::Values;

/// `tdpbf16ps` on packed tiles.
pub(super) struct Tiles;

impl Engine for Tiles {
    const SPARE: usize = 0;
    const ROWS: usize = 32;
    type State = Pipe;

    fn chunk(&self, inputs: usize) -> usize {
        even(inputs, TILE_K)
    }

    /// Tiles of sixteen rows are always whole; those past the end are zero.
    fn bytes_per_k(rows: usize) -> usize {
        rows.div_ceil(16) * TILE / TILE_K
    }

    /// `[k / 32][tiles][16 rows][32]`.
    unsafe fn pack(&self, x: Values<'_>, inputs: usize, first: usize, rows: usize, to: Packed) {
        let padded = inputs.next_multiple_of(TILE_K);
        let mut line = Scratch::take(padded * 2);
        let line = line.ptr::<u8>();
        for r in 0..rows.next_multiple_of(16) {
            // SAFETY: the line holds a padded row, the block `padded / 32` tiles for each sixteen rows.
            unsafe {
                match (r < rows).then(|| row(x, inputs, first + r)) {
                    // What is bf16 already goes straight to its place, but for the end, which has to be filled up.
                    Some(Values::Bf16(values)) => {
                        let whole = inputs / TILE_K;
                        scatter_tile_rows(values.as_ptr().cast(), 0..whole, r, rows, TILE_K, to);
                        if padded > inputs {
                            dots::line(&values[whole * TILE_K..], line.add(whole * 64));
                            scatter_tile_rows(line, whole..whole + 1, r, rows, TILE_K, to);
                        }
                        continue;
                    }
                    Some(Values::F32(values)) => dots::line(values, line),
                    None => line.write_bytes(0, padded * 2),
                }
                scatter_tile_rows(line, 0..padded / TILE_K, r, rows, TILE_K, to);
            }
        }
    }

    fn enter(&self, rows: usize) -> Pipe {
        Pipe::new(false, rows)
    }

    fn space_bytes(&self, _: usize) -> usize {
        0
    }

    unsafe fn weights(&self, panel: *const u8, _: usize, _: *mut u8) -> *const u8 {
        panel
    }

    unsafe fn multiply(&self, pipe: &mut Pipe, work: Work) {
        let product = (work.a, work.b, work.len.div_ceil(TILE_K));
        // SAFETY: the caller's contract.
        unsafe { pipe.multiply(product, work.sums, work.rows, work.place, work.ahead) }
    }
}

/// The longest chunks of equal length that are no longer than `STEPS` steps.
pub(super) fn even(inputs: usize, step: usize) -> usize {
    let steps = inputs.div_ceil(step).max(1);
    steps.div_ceil(steps.div_ceil(STEPS)) * step
}

/// Puts row `r` of a block of `rows` into its tiles: to each of these steps (of `step_len` elements), 64 bytes.
///
/// # Safety
/// `line` is valid for these steps, and the block has room for them.
pub(super) unsafe fn scatter_tile_rows(
    line: *const u8,
    steps: Range<usize>,
    r: usize,
    rows: usize,
    step_len: usize,
    to: Packed,
) {
    let (tiles, chunk_steps) = (rows.div_ceil(16), to.chunk_len / step_len);
    for step in steps {
        // SAFETY: by the contract above.
        unsafe {
            let to = to.chunk(step / chunk_steps).add((step % chunk_steps * tiles + r / 16) * TILE + r % 16 * 64);
            std::ptr::copy_nonoverlapping(line.add(step * 64), to, 64);
        }
    }
}
