//! Blocking and threading, the same for every instruction set.
//!
//! Activations are packed once a call into blocks of rows; the product is cut into tasks of some rows and some panels.
//! Within a task the inner dimension goes in chunks, so that a chunk of activations and the sums stay in L2 and a chunk
//! of one panel stays in L1 while all blocks of rows pass it. With few rows a task walks each panel from end to end
//! instead: then it is one stream from memory. The order of the sums is the same either way.

use half::bf16;

use super::epilogue::{Block, Finish};
use super::{PANEL, PackedLinear, WeightFormat, float, int8};
use crate::ctx::Ctx;
use crate::isa::Isa;
use crate::memory::Scratch;
use crate::pool::SharedMut;
use crate::values::Values;

/// A way to multiply one block of rows with one chunk of a panel.
pub(super) trait Engine: Sync {
    /// Rows of a full block.
    const ROWS: usize;
    /// What a thread keeps from product to product of a task.
    type State;

    /// Inner elements of a chunk, a multiple of `TILE_K` (and of the blocks that weights come in).
    fn chunk(&self, inputs: usize) -> usize;

    /// Bytes that packing may write past a chunk of a block.
    const SPARE: usize;

    /// Bytes that one inner element of a packed block takes; the inner dimension is padded to `TILE_K`.
    fn bytes_per_k(rows: usize) -> usize;

    /// Packs rows `row..row + rows` of `x`.
    ///
    /// # Safety
    /// The rows exist, and `to` has room for the block.
    unsafe fn pack(&self, x: Values<'_>, inputs: usize, row: usize, rows: usize, to: Packed);

    /// Called by a thread before its products of a task, in a call with so many rows; what it returns is dropped after them.
    fn enter(&self, rows: usize) -> Self::State;

    /// The chunk of a panel in the form that `multiply` reads: in place, or decoded into `space`.
    ///
    /// # Safety
    /// `panel` is valid for the chunk and `space` has `space_bytes`.
    unsafe fn weights(&self, panel: *const u8, len: usize, space: *mut u8) -> *const u8;

    /// Bytes that `weights` needs to decode a chunk of `chunk` inner elements.
    fn space_bytes(&self, chunk: usize) -> usize;

    /// One block times one chunk of a panel, added to its sums. These are whole after the last chunk.
    ///
    /// # Safety
    /// `a` is a packed block of `rows` rows at this chunk, `b` comes from `weights`, and `sums` is `[rows][PANEL]` with
    /// rows up to a multiple of 16. State and sums stay the same ones from the first to the last chunk.
    unsafe fn multiply(&self, state: &mut Self::State, work: Work);

    /// Brings sums that are whole into their final form, floats.
    ///
    /// # Safety
    /// `sums` is `[rows][PANEL]`, of this panel and of the rows from `row` on.
    unsafe fn settle(&self, _sums: *mut f32, _panel: usize, _row: usize, _rows: usize) {}
}

/// One product.
#[derive(Clone, Copy)]
pub(super) struct Work {
    pub(super) a: *const u8,
    pub(super) b: *const u8,
    pub(super) sums: *mut f32,
    pub(super) rows: usize,
    /// Inner elements.
    pub(super) len: usize,
    /// The first chunk begins the sums, the last one ends them.
    pub(super) place: Place,
    pub(super) ahead: Ahead,
}

/// Where a chunk stands in the inner dimension.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) first: bool,
    pub(crate) last: bool,
}

/// Memory that will be read soon and may be fetched into L2 meanwhile, spread over the product: a burst of fetches would
/// hold up its own loads. Any address will do.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    /// Activations of the next chunk, four lines a step of a product.
    pub(crate) rows: *const u8,
    /// Weights of the next panel, two lines a step.
    pub(crate) weights: *const u8,
}

impl Ahead {
    /// Parts that the panels of a task fetch the next chunk of a block in.
    const ROW_PARTS: usize = TASK_PANELS;
    /// Parts that the blocks of a task fetch the next panel in.
    const WEIGHT_PARTS: usize = 16;
}

/// The whole product. Sizes have been checked, and neither rows nor outputs are zero.
pub(super) fn multiply(ctx: &Ctx, layer: &PackedLinear, x: Values<'_>, rows: usize, finish: &Finish<'_>) {
    let (isa, format) = (ctx.isa(), layer.geometry.format);
    if format == WeightFormat::Int8 {
        return multiply_int8(ctx, layer, x, rows, finish);
    }
    if format.is_blocks() {
        let avx512 = matches!(isa, Isa::AmxBf16 | Isa::Avx512Bf16 | Isa::Avx512);
        let vnni = avx512 && crate::isa::has_avx512_vnni();
        return run(ctx, &super::blocks::Blocks { isa, format, vnni }, layer, x, rows, finish);
    }
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::AmxBf16 if format != WeightFormat::F32 => run(ctx, &super::amx::Tiles, layer, x, rows, finish),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 if format != WeightFormat::F32 => run(ctx, &super::dot_bf16::DotBf16, layer, x, rows, finish),
        Isa::AmxBf16 | Isa::Avx512Bf16 | Isa::Avx512 => {
            run(ctx, &float::Float::<{ float::AVX512_ROWS }> { isa, format }, layer, x, rows, finish)
        }
        Isa::Neon => run(ctx, &float::Float::<{ float::NEON_ROWS }> { isa, format }, layer, x, rows, finish),
        Isa::Avx2 => run(ctx, &float::Float::<{ float::AVX2_ROWS }> { isa, format }, layer, x, rows, finish),
        Isa::Scalar => run(ctx, &float::Float::<{ float::SCALAR_ROWS }> { isa, format }, layer, x, rows, finish),
    }
}

fn multiply_int8(ctx: &Ctx, layer: &PackedLinear, x: Values<'_>, rows: usize, finish: &Finish<'_>) {
    let mut factors = Scratch::of::<f32>(rows);
    let own = int8::Rows::new(ctx.isa(), layer, &mut factors.slice_mut::<f32>()[..rows]);
    #[cfg(target_arch = "x86_64")]
    if ctx.isa() == Isa::AmxBf16 && crate::isa::has_amx_int8() {
        return run(ctx, &int8::Tiles8(own), layer, x, rows, finish);
    }
    let avx512 = matches!(ctx.isa(), Isa::AmxBf16 | Isa::Avx512Bf16 | Isa::Avx512);
    let engine = int8::Dot8 { rows: own, vnni: avx512 && crate::isa::has_avx512_vnni() };
    run(ctx, &engine, layer, x, rows, finish);
}

/// Rows up to which weights are the traffic that counts.
const FEW_ROWS: usize = 64;
/// Rows of a task otherwise: their sums and one chunk of their activations fill half of a 2 MB L2.
const TASK_ROWS: usize = 560;
/// Panels of a task with many rows.
const TASK_PANELS: usize = 8;
/// Weights of a task with few rows, enough for the stream to gain speed.
const TASK_BYTES: usize = 512 << 10;
/// Weights below which a task isn't worth handing out.
const SMALL_TASK_BYTES: usize = 64 << 10;

fn run<E: Engine>(ctx: &Ctx, engine: &E, layer: &PackedLinear, x: Values<'_>, rows: usize, finish: &Finish<'_>) {
    let geometry = layer.geometry;
    let inputs = geometry.inputs;
    let blocks = rows.div_ceil(E::ROWS);
    let block_rows = |block: usize| E::ROWS.min(rows - block * E::ROWS);
    // Chunk after chunk, and block after block within a chunk, so that a task's chunk is one stretch of memory.
    // A cache line more, because packing may write whole vectors.
    let chunk_len = engine.chunk(inputs);
    let block_bytes = (E::bytes_per_k(E::ROWS) * chunk_len).next_multiple_of(64) + E::SPARE;
    let chunk_bytes = blocks * block_bytes;
    let chunks = inputs.div_ceil(chunk_len).max(1);
    let mut packed = Scratch::take(chunks * chunk_bytes);
    let packed = SharedMut::new(packed.slice_mut::<u8>());
    ctx.pool().run_ranges(blocks, (1 << 17) / (chunks * block_bytes), |range| {
        for block in range {
            // SAFETY: blocks lie apart in `packed`.
            unsafe {
                let to = Packed { start: packed.get().add(block * block_bytes), chunk_bytes, chunk_len };
                engine.pack(x, inputs, block * E::ROWS, block_rows(block), to);
            }
        }
    });

    let panels = geometry.panels();
    let few = rows <= FEW_ROWS;
    let (task_blocks, task_panels) = if few {
        // Several tasks a thread even out what else keeps a core busy.
        let panels_of = |bytes: usize| (bytes / geometry.panel_bytes().max(1)).max(1);
        let even = panels.div_ceil(ctx.pool().threads() * 4).max(panels_of(SMALL_TASK_BYTES));
        (blocks, panels_of(TASK_BYTES).min(even).clamp(1, panels.div_ceil(ctx.pool().threads())))
    } else {
        let row_tasks = rows.div_ceil(TASK_ROWS);
        let wanted = (panels * row_tasks).div_ceil(ctx.pool().threads() * 4);
        (blocks.div_ceil(row_tasks), wanted.clamp(1, TASK_PANELS))
    };
    let panel_tasks = panels.div_ceil(task_panels);

    ctx.pool().run(panel_tasks * blocks.div_ceil(task_blocks), |task| {
        let first_panel = task % panel_tasks * task_panels;
        let own_panels = task_panels.min(panels - first_panel);
        let first_block = task / panel_tasks * task_blocks;
        let own_blocks = task_blocks.min(blocks - first_block);
        let panel_sums = (own_blocks * E::ROWS).next_multiple_of(16) * PANEL;
        let mut sums = Scratch::of::<f32>(panel_sums * own_panels);
        let sums = sums.ptr::<f32>();
        let mut space = Scratch::take(engine.space_bytes(chunk_len));
        let mut state = engine.enter(rows);
        let steps = own_panels * chunks;
        let weight_bytes = geometry.format.bytes(chunk_len);
        let place = |step: usize| {
            if few { (step / chunks, step % chunks) } else { (step % own_panels, step / own_panels) }
        };
        let panel_chunk = |(panel, chunk): (usize, usize)| {
            let at = (first_panel + panel) * geometry.panel_bytes() + geometry.format.bytes(chunk * chunk_len);
            layer.bytes.as_ptr().wrapping_add(at)
        };
        for step in 0..steps {
            let (panel, chunk) = place(step);
            let len = chunk_len.min(inputs - chunk * chunk_len);
            let chunk_place = Place { first: chunk == 0, last: chunk + 1 == chunks };
            // After the last chunk comes another task, most likely on the same rows.
            let next_chunk = packed.get().wrapping_add((chunk + 1) % chunks * chunk_bytes + first_block * block_bytes);
            let next_weights = panel_chunk(place((step + 1).min(steps - 1)));
            // SAFETY: the panel exists, `k` is a multiple of `TILE_K`, and the packed blocks, sums and spaces were sized
            // above for exactly these offsets; tasks write different sums and different parts of the output.
            unsafe {
                let b = engine.weights(panel_chunk((panel, chunk)), len, space.ptr());
                for own in 0..own_blocks {
                    let block = first_block + own;
                    let count = block_rows(block);
                    let a = packed.get().add(chunk * chunk_bytes + block * block_bytes);
                    let sums = sums.add(panel * panel_sums + own * E::ROWS * PANEL);
                    let row_part = panel * own_blocks + own;
                    let ahead = Ahead {
                        rows: next_chunk.wrapping_add(row_part * (block_bytes / Ahead::ROW_PARTS)),
                        weights: next_weights.wrapping_add(own * (weight_bytes / Ahead::WEIGHT_PARTS)),
                    };
                    engine.multiply(&mut state, Work { a, b, sums, rows: count, len, place: chunk_place, ahead });
                    if chunk_place.last {
                        let (row, panel) = (block * E::ROWS, first_panel + panel);
                        engine.settle(sums, panel, row, count);
                        let (start, stride) = (row * geometry.outputs, geometry.outputs);
                        finish.block(ctx.isa(), Block { sums, panel, row, start, stride, rows: count });
                    }
                }
            }
        }
        finish.publish();
    });
}

/// Where a block of rows is packed to: one piece in each chunk.
#[derive(Clone, Copy)]
pub(super) struct Packed {
    start: *mut u8,
    chunk_bytes: usize,
    /// Inner elements of a chunk.
    pub(super) chunk_len: usize,
}

impl Packed {
    /// The block's piece of a chunk.
    ///
    /// # Safety
    /// The chunk exists.
    pub(super) unsafe fn chunk(self, chunk: usize) -> *mut u8 {
        // SAFETY: by the contract above.
        unsafe { self.start.add(chunk * self.chunk_bytes) }
    }
}

/// Reads one value of a row as f32.
#[inline(always)]
pub(super) fn row<'a>(x: Values<'a>, inputs: usize, row: usize) -> Values<'a> {
    match x {
        Values::F32(values) => Values::F32(&values[row * inputs..][..inputs]),
        Values::Bf16(values) => Values::Bf16(&values[row * inputs..][..inputs]),
    }
}

/// Bytes of a bf16.
pub(super) const BF16: usize = size_of::<bf16>();
