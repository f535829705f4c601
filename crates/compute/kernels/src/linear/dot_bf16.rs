//! Products with the bf16 dot-product instruction of AVX-512.

use super::TILE_K;
use super::driver::{BF16, Engine, Packed, Place, Work};
use crate::dots;
use crate::values::Values;

/// Inner elements of a chunk.
const CHUNK: usize = 256;

/// `vdpbf16ps` on packed tiles.
pub(super) struct DotBf16;

impl Engine for DotBf16 {
    const SPARE: usize = dots::SPARE;
    const ROWS: usize = dots::ROWS;
    type State = ();

    fn chunk(&self, _: usize) -> usize {
        CHUNK
    }

    fn bytes_per_k(rows: usize) -> usize {
        rows * BF16
    }

    /// `[pairs of k][rows][2]`.
    unsafe fn pack(&self, x: Values<'_>, inputs: usize, first: usize, rows: usize, to: Packed) {
        for (chunk, start) in (0..inputs).step_by(CHUNK).enumerate() {
            let (len, at) = (CHUNK.min(inputs - start), first * inputs + start);
            // SAFETY: AVX512-BF16 is what chose this engine; the rows exist, and the block has room for a padded chunk.
            unsafe {
                let to = to.chunk(chunk);
                match x {
                    Values::F32(x) => dots::pack(x[at..].as_ptr(), inputs, rows, len, to),
                    Values::Bf16(x) => dots::pack(x[at..].as_ptr(), inputs, rows, len, to),
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
        // SAFETY: AVX512-BF16 is what chose this engine; the rest is the caller's contract.
        unsafe { dots::multiply(a, b, sums, rows, len.div_ceil(TILE_K), first) }
    }
}
