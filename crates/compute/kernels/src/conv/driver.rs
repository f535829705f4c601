//! The walk over bands of output pixels, taps and channels.

use half::bf16;

use super::image::{BORDER, ImageShape};
use super::{Conv2d, ConvEpilogue, Image, Part};
use crate::ctx::Ctx;
use crate::isa::Isa;
use crate::linear::float::{AVX2_ROWS, AVX512_ROWS, Multiply, NEON_ROWS, SCALAR_ROWS, widen};
use crate::linear::{Block, Finish, PANEL, TILE_K, WeightFormat};
use crate::memory::Scratch;
use crate::simd::dispatch;
use crate::transpose::pack_rows;
use crate::values::Values;

/// Inner elements of a chunk: what of a panel stays in L1 while a band passes.
const CHUNK: usize = 256;
/// Pixels of a band, at least one row; their sums for `PANELS` panels stay in L2.
const BAND: usize = 512;
/// Panels of a task.
const PANELS: usize = 8;

/// Tells a band's groups of neighbouring pixels of one row, at most `group` each.
struct Band {
    first_row: usize,
    rows: usize,
    width: usize,
    group: usize,
}

impl Band {
    fn per_row(&self) -> usize {
        self.width.div_ceil(self.group)
    }

    fn groups(&self) -> usize {
        self.rows * self.per_row()
    }

    /// Row, first column and number of pixels of a group.
    fn group(&self, index: usize) -> (usize, usize, usize) {
        let x = index % self.per_row() * self.group;
        (self.first_row + index / self.per_row(), x, self.group.min(self.width - x))
    }
}

/// Runs one part. The shapes fit, and the output has pixels.
pub(super) fn run(
    ctx: &Ctx,
    conv: &Conv2d,
    part: &Part,
    x: &Image,
    frames: usize,
    out: &mut Image,
    epilogue: &ConvEpilogue<'_>,
) {
    let to = out.shape();
    // The pixels that this part writes: all of them, or one of four.
    let scale = if conv.upsample { 2 } else { 1 };
    let (height, width) = (to.height / scale, to.width / scale);
    let residual = epilogue.residual.map(|image| image.values());
    let finish = part.weights.finish_strided(epilogue.activation, residual, out.values_mut());
    let panels = part.weights.panels();
    let rows = (BAND / width).clamp(1, height);
    let (bands, panel_tasks) = (height.div_ceil(rows), panels.div_ceil(PANELS));
    let bf16 = part.weights.format() == WeightFormat::Bf16;
    let arithmetic = match ctx.isa() {
        Isa::AmxBf16 if bf16 && x.is_half() => Arithmetic::Tiles,
        Isa::Avx512Bf16 if bf16 && x.is_half() => Arithmetic::Dots,
        _ => Arithmetic::Floats,
    };
    let isa_rows = match ctx.isa() {
        Isa::AmxBf16 if arithmetic == Arithmetic::Tiles => 16,
        Isa::AmxBf16 | Isa::Avx512Bf16 | Isa::Avx512 => AVX512_ROWS,
        Isa::Avx2 => AVX2_ROWS,
        Isa::Neon => NEON_ROWS,
        Isa::Scalar => SCALAR_ROWS,
    };
    // A row's pixels in groups of equal size, for small ones can't hide the latency of sums; tiles are always whole.
    let group = if arithmetic == Arithmetic::Tiles { isa_rows } else { width.div_ceil(width.div_ceil(isa_rows)) };
    ctx.pool().run(to.batch * bands * panel_tasks, |task| {
        let (batch, band) = (task / (bands * panel_tasks), task / panel_tasks % bands);
        let first_panel = task % panel_tasks * PANELS;
        let first_row = band * rows;
        // Taps come oldest frame first, so those before the video's start are the first ones.
        let missing = (conv.depth - 1).saturating_sub(batch % frames);
        let from_k = missing * (part.taps.len() / conv.depth) * x.shape().pixel();
        let task = Task {
            ctx,
            part,
            x,
            from: x.shape(),
            to,
            finish: &finish,
            stride: conv.shape.stride,
            scale,
            batch,
            from_k,
            band: Band { first_row, rows: rows.min(height - first_row), width, group },
            panels: first_panel..(first_panel + PANELS).min(panels),
        };
        match arithmetic {
            #[cfg(target_arch = "x86_64")]
            Arithmetic::Tiles => task.tiles(),
            _ => task.packed(arithmetic),
        }
        finish.publish();
    });
}

/// How products are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arithmetic {
    /// bf16 on the tiles of AMX.
    Tiles,
    /// bf16 by the dot products of AVX512-BF16.
    Dots,
    /// f32.
    Floats,
}

/// Some rows of output pixels and some panels.
struct Task<'a> {
    ctx: &'a Ctx,
    part: &'a Part,
    x: &'a Image,
    from: ImageShape,
    to: ImageShape,
    finish: &'a Finish<'a>,
    stride: usize,
    scale: usize,
    batch: usize,
    /// The inner element that the sums start at.
    from_k: usize,
    band: Band,
    panels: std::ops::Range<usize>,
}

impl Task<'_> {
    /// Inner dimension: the padded channels of all taps.
    fn inner(&self) -> usize {
        self.part.taps.len() * self.from.pixel()
    }

    /// Where the input of a pixel starts for the inner element `k`.
    fn input(&self, y: usize, x: usize, k: usize) -> usize {
        let tap = self.part.taps[k / self.from.pixel()];
        let batch = self.batch - tap.before;
        self.from.at(batch, y * self.stride + tap.y, x * self.stride + tap.x) + k % self.from.pixel()
    }

    /// Where the output of a pixel starts.
    fn output(&self, y: usize, x: usize) -> usize {
        let (py, px) = self.part.phase;
        self.to.at(self.batch, y * self.scale + py + BORDER, x * self.scale + px + BORDER)
    }

    /// Pieces of `start..start + len` that lie within one tap, with their lengths.
    fn segments(&self, start: usize, len: usize) -> impl Iterator<Item = (usize, usize)> {
        let pixel = self.from.pixel();
        let mut at = start;
        std::iter::from_fn(move || {
            let left = (start + len - at).min(pixel - at % pixel);
            at += left;
            (left > 0).then_some((at - left, left))
        })
    }

    /// Ends a group of pixels.
    ///
    /// # Safety
    /// `sums` is `[count][PANEL]`, and nobody else has this group and panel.
    unsafe fn end(&self, sums: *const f32, panel: usize, group: usize) {
        let (y, x, count) = self.band.group(group);
        let block =
            Block { sums, panel, row: 0, start: self.output(y, x), stride: self.scale * self.to.pixel(), rows: count };
        // SAFETY: by the contract above.
        unsafe { self.finish.block(self.ctx.isa(), block) }
    }

    /// bf16 on tiles: two groups of sixteen pixels are the rows of a block.
    #[cfg(target_arch = "x86_64")]
    fn tiles(&self) {
        use crate::tiles::{Sums, TileConfig};
        let Values::Bf16(x) = self.x.values() else { return };
        let (groups, inner) = (self.band.groups(), self.inner());
        let blocks = groups.div_ceil(2);
        let panel_sums = blocks * 32 * PANEL;
        let mut sums = Scratch::of::<f32>(panel_sums * self.panels.len());
        let sums = sums.ptr::<f32>();
        let row_bytes = self.stride * self.from.pixel() * size_of::<bf16>();
        let _config = TileConfig::load();
        for k in (self.from_k..inner).step_by(CHUNK) {
            let len = CHUNK.min(inner - k);
            for (own, panel) in self.panels.clone().enumerate() {
                let weights = self.part.weights.panel(panel, k);
                let next = self.next_weights(panel, k);
                for block in 0..blocks {
                    let groups_of_block = [2 * block, (2 * block + 1).min(groups - 1)];
                    // SAFETY: a group's tile starts at a pixel and reads sixteen, which may be past the row's end but not
                    // past the slack behind the image; the sums were sized above.
                    unsafe {
                        let c = sums.add(own * panel_sums + block * 32 * PANEL);
                        let c = Sums::load(c, k == self.from_k);
                        for (at, length) in self.segments(k, len) {
                            let [a0, a1] = groups_of_block.map(|group| {
                                let (y, px, _) = self.band.group(group);
                                x.as_ptr().add(self.input(y, px, at)).cast::<u8>()
                            });
                            let b = weights.add((at - k) * PANEL * size_of::<bf16>());
                            let ahead = next.wrapping_add((block * CHUNK + at - k) * 4);
                            c.add_strided(a0, a1, row_bytes, b, length / TILE_K, ahead);
                        }
                        c.store();
                        if k + len == inner {
                            let c = sums.add(own * panel_sums + block * 32 * PANEL);
                            self.end(c, panel, 2 * block);
                            if 2 * block + 1 < groups {
                                self.end(c.add(16 * PANEL), panel, 2 * block + 1);
                            }
                        }
                    }
                }
            }
        }
    }

    /// The weights that come after these.
    #[cfg(target_arch = "x86_64")]
    fn next_weights(&self, panel: usize, k: usize) -> *const u8 {
        let (next, chunk) = if panel + 1 < self.panels.end { (panel + 1, k) } else { (self.panels.start, k + CHUNK) };
        self.part.weights.panel(next, chunk.min(self.inner()))
    }

    /// Dot products or f32: a chunk of every group of pixels is packed into L2, then passed by all panels.
    fn packed(&self, arithmetic: Arithmetic) {
        let dots = arithmetic == Arithmetic::Dots;
        let widened = !dots && self.part.weights.format() == WeightFormat::Bf16;
        let (groups, inner, isa) = (self.band.groups(), self.inner(), self.ctx.isa());
        let group_sums = self.band.group * PANEL;
        let mut sums = Scratch::of::<f32>(groups * group_sums * self.panels.len());
        // One vector more: packing writes whole vectors.
        let group_bytes = self.band.group * CHUNK * if dots { size_of::<bf16>() } else { size_of::<f32>() };
        let mut packed = Scratch::take(groups * group_bytes + 64);
        let mut space = Scratch::of::<f32>(if widened { CHUNK * PANEL } else { 0 });
        let (sums, packed, space) = (sums.ptr::<f32>(), packed.ptr::<u8>(), space.ptr::<f32>());
        for k in (self.from_k..inner).step_by(CHUNK) {
            let len = CHUNK.min(inner - k);
            let place = |group: usize| packed.wrapping_add(group * group_bytes);
            for group in 0..groups {
                for (at, length) in self.segments(k, len) {
                    // SAFETY: the group's pixels exist, and each group has room for a chunk.
                    unsafe { self.pack(arithmetic, group, at, length, place(group), at - k) };
                }
            }
            for (own, panel) in self.panels.clone().enumerate() {
                let mut b = self.part.weights.panel(panel, k);
                if widened {
                    // SAFETY: whole tiles, and the space holds a chunk.
                    unsafe { widen(isa, b.cast(), len, space) };
                    b = space.cast::<u8>();
                }
                for group in 0..groups {
                    let (rows, a, first) = (self.band.group(group).2, place(group), k == self.from_k);
                    // SAFETY: all were sized above, and a chunk is whole steps.
                    unsafe {
                        let sums = sums.add((own * groups + group) * group_sums);
                        match arithmetic {
                            #[cfg(target_arch = "x86_64")]
                            Arithmetic::Dots => crate::dots::multiply(a, b, sums, rows, len / TILE_K, first),
                            _ => dispatch(isa, Multiply { a: a.cast(), b: b.cast(), sums, rows, len, first }),
                        }
                        if k + len == inner {
                            self.end(sums, panel, group);
                        }
                    }
                }
            }
        }
    }

    /// Packs `length` inner elements from `at` on of a group's pixels, to where the inner element `offset` of its room is.
    ///
    /// # Safety
    /// The elements belong to one tap, and the room holds them and one vector more.
    unsafe fn pack(
        &self,
        arithmetic: Arithmetic,
        group: usize,
        at: usize,
        length: usize,
        room: *mut u8,
        offset: usize,
    ) {
        let (isa, stride) = (self.ctx.isa(), self.stride * self.from.pixel());
        let (y, x, count) = self.band.group(group);
        let start = self.input(y, x, at);
        // SAFETY: by the contract above.
        unsafe {
            let floats = room.cast::<f32>().wrapping_add(offset * count);
            match (self.x.values(), arithmetic) {
                #[cfg(target_arch = "x86_64")]
                (Values::Bf16(x), Arithmetic::Dots) => {
                    let to = room.cast::<bf16>().add(offset * count).cast();
                    crate::dots::pack(x.as_ptr().add(start), stride, count, length, to);
                }
                (Values::Bf16(x), _) => pack_rows(isa, x.as_ptr().add(start), stride, count, length, floats, count),
                (Values::F32(x), _) => pack_rows(isa, x.as_ptr().add(start), stride, count, length, floats, count),
            }
        }
    }
}
