//! The walk over keys and queries, the same for every instruction set.

use super::{LOWEST, Work};
use crate::ctx::Ctx;
use crate::memory::Scratch;
use crate::simd::Element;
use crate::transpose::transpose;

/// Queries of a panel, one lane each.
pub(super) const QUERIES: usize = 32;
/// Panels that a block of keys passes before the next one comes.
const PANELS: usize = 16;

/// Rows of a buffer: `count` of `head_dim` elements, `stride` apart.
#[derive(Clone, Copy)]
pub(super) struct Rows<T> {
    pub(super) start: *const T,
    pub(super) stride: usize,
    pub(super) count: usize,
}

/// Running maxima and sums of a panel, and the factors by which a block changed what was there.
#[repr(C, align(64))]
pub(super) struct State {
    pub(super) maxima: [f32; QUERIES],
    pub(super) sums: [f32; QUERIES],
    pub(super) factors: [f32; QUERIES],
}

/// The products and the softmax of one instruction set. Packed sizes are in bytes.
///
/// # Safety
/// Pointers are valid for the packed sizes; `dim` is the head's, `keys` at most `KEYS`.
pub(super) trait Engine<T>: Sync {
    /// Keys of a block, a multiple of 16.
    const KEYS: usize;

    fn key_bytes(&self, dim: usize) -> usize;
    fn value_bytes(&self, dim: usize) -> usize;
    fn query_bytes(&self, dim: usize) -> usize;
    /// Rows of a panel's sums: the head's elements, padded.
    fn sum_rows(&self, dim: usize) -> usize;

    /// Called by a thread before its products; what it returns is dropped after them.
    fn enter(&self) -> impl Sized;

    unsafe fn pack_keys(&self, rows: Rows<T>, dim: usize, to: *mut u8);
    unsafe fn pack_values(&self, rows: Rows<T>, dim: usize, to: *mut u8);
    unsafe fn pack_queries(&self, rows: Rows<T>, dim: usize, to: *mut u8);

    /// `scores = k q^T`, `[KEYS][QUERIES]`, with `IN_FRONT` values of room before it for the weights.
    unsafe fn scores(&self, keys: *const u8, queries: *const u8, dim: usize, count: usize, scores: *mut f32);

    /// Turns scores into weights `exp(scale * score - maximum)`, in the form that `values` reads, and brings the state up
    /// to date. Returns whether a maximum changed.
    unsafe fn softmax(&self, scores: *mut f32, count: usize, scale: f32, state: &mut State) -> bool;

    /// `sums += v^T weights`, `[dim][QUERIES]`; `sums =` if `first`.
    unsafe fn values(
        &self,
        values: *const u8,
        weights: *const f32,
        dim: usize,
        count: usize,
        sums: *mut f32,
        first: bool,
    );

    /// Multiplies the sums of each query by its factor.
    unsafe fn rescale(&self, sums: *mut f32, dim: usize, factors: &[f32; QUERIES]);

    /// Whether `pass` serves this many keys of a block of which nothing is hidden.
    fn has_pass(&self, _count: usize) -> bool {
        false
    }

    /// All of the above for every panel of a round, where nothing is hidden: products and softmax may overlap then.
    unsafe fn pass(&self, _pass: Pass<'_>) {}
}

/// Room in front of the scores.
pub(super) const IN_FRONT: usize = 512;

/// A block of keys and the panels that it meets. Sizes between panels are in elements, those of queries in bytes.
pub(super) struct Pass<'a> {
    pub(super) keys: *const u8,
    pub(super) values: *const u8,
    /// The block that comes after this one, if there is one.
    pub(super) next: *const u8,
    pub(super) queries: *const u8,
    pub(super) query_bytes: usize,
    pub(super) sums: *mut f32,
    pub(super) sum_len: usize,
    /// Two buffers of scores, each with its room in front, `buffer` apart.
    pub(super) scores: *mut f32,
    pub(super) buffer: usize,
    pub(super) states: &'a mut [State],
    pub(super) count: usize,
    pub(super) dim: usize,
    pub(super) scale: f32,
    pub(super) first: bool,
}

pub(super) fn run<T: Element, O: Element, E: Engine<T>>(ctx: &Ctx, engine: &E, work: &Work<'_, T, O>) {
    let shape = work.shape;
    // Every task packs the keys of its head, so heads are cut only where there are too few of them.
    let heads = shape.batch * shape.kv_heads;
    let group = shape.heads / shape.kv_heads;
    let rounds = shape.queries.div_ceil(QUERIES * PANELS);
    let threads = ctx.pool().threads();
    let cuts = if heads.is_multiple_of(threads) || heads >= 8 * threads {
        1
    } else {
        (8 * threads).div_ceil(heads).clamp(1, rounds)
    };
    let rounds_of_cut = rounds.div_ceil(cuts);
    ctx.pool().run(heads * cuts, |task| {
        let (kv, cut) = (task / cuts, task % cuts);
        let (batch, kv_head) = (kv / shape.kv_heads, kv % shape.kv_heads);
        let head = Head::new(ctx, engine, work, batch, kv_head);
        for round in cut * rounds_of_cut..((cut + 1) * rounds_of_cut).min(rounds) {
            for head_of_group in 0..group {
                head.round(kv_head * group + head_of_group, round * PANELS * QUERIES);
            }
        }
    });
}

/// One head of keys and values, packed.
struct Head<'a, T, O, E> {
    ctx: &'a Ctx,
    engine: &'a E,
    work: &'a Work<'a, T, O>,
    batch: usize,
    packed: Scratch,
}

impl<'a, T: Element, O: Element, E: Engine<T>> Head<'a, T, O, E> {
    fn new(ctx: &'a Ctx, engine: &'a E, work: &'a Work<'a, T, O>, batch: usize, kv_head: usize) -> Self {
        let (keys, dim) = (work.shape.keys, work.shape.head_dim);
        let block_bytes = engine.key_bytes(dim) + engine.value_bytes(dim);
        let mut packed = Scratch::take(keys.div_ceil(E::KEYS) * block_bytes);
        for (block, start) in (0..keys).step_by(E::KEYS).enumerate() {
            let rows = |buffer: &[T], view: super::View| Rows {
                start: buffer[view.at(batch, kv_head, start)..].as_ptr(),
                stride: view.token,
                count: E::KEYS.min(keys - start),
            };
            // SAFETY: the views were checked, and each block has its own room.
            unsafe {
                let to = packed.ptr::<u8>().add(block * block_bytes);
                engine.pack_keys(rows(work.k, work.views.k), dim, to);
                engine.pack_values(rows(work.v, work.views.v), dim, to.add(engine.key_bytes(dim)));
            }
        }
        Head { ctx, engine, work, batch, packed }
    }

    /// The queries `first..first + PANELS * QUERIES` of one head.
    fn round(&self, head: usize, first: usize) {
        let (engine, work, shape) = (self.engine, self.work, self.work.shape);
        let (keys, dim) = (shape.keys, shape.head_dim);
        let queries = (shape.queries - first).min(PANELS * QUERIES);
        let panels = queries.div_ceil(QUERIES);
        let (query_bytes, sum_len) = (engine.query_bytes(dim), engine.sum_rows(dim) * QUERIES);
        let mut packed = Scratch::take(panels * query_bytes);
        let mut sums = Scratch::of::<f32>(panels * sum_len);
        let buffer = IN_FRONT + E::KEYS * QUERIES;
        let mut scores = Scratch::of::<f32>(2 * buffer);
        let (packed, sums, scores) =
            (packed.ptr::<u8>(), sums.ptr::<f32>(), scores.ptr::<f32>().wrapping_add(IN_FRONT));
        let mut states: [State; PANELS] =
            std::array::from_fn(|_| State { maxima: [LOWEST; QUERIES], sums: [0.0; QUERIES], factors: [1.0; QUERIES] });
        for panel in 0..panels {
            let query = first + panel * QUERIES;
            let start = work.q[work.views.q.at(self.batch, head, query)..].as_ptr();
            let count = QUERIES.min(shape.queries - query);
            // SAFETY: the view was checked, and each panel has its own room.
            unsafe {
                let rows = Rows { start, stride: work.views.q.token, count };
                engine.pack_queries(rows, dim, packed.add(panel * query_bytes));
            }
        }

        let block_bytes = engine.key_bytes(dim) + engine.value_bytes(dim);
        let key_bytes = engine.key_bytes(dim);
        {
            let _entered = engine.enter();
            for (block, start) in (0..keys).step_by(E::KEYS).enumerate() {
                let count = E::KEYS.min(keys - start);
                // SAFETY: blocks, panels and sums were sized above.
                let block = unsafe { self.packed.start().add(block * block_bytes) };
                let hidden = shape.mask.is_some() || work.visible_keys(first) < start + count;
                if !hidden && engine.has_pass(count) {
                    let pass = Pass {
                        keys: block,
                        values: block.wrapping_add(key_bytes),
                        next: block.wrapping_add(block_bytes),
                        queries: packed,
                        query_bytes,
                        sums,
                        sum_len,
                        scores,
                        buffer,
                        states: &mut states[..panels],
                        count,
                        dim,
                        scale: shape.scale,
                        first: start == 0,
                    };
                    // SAFETY: as above.
                    unsafe { engine.pass(pass) };
                    continue;
                }
                for (panel, state) in states.iter_mut().enumerate().take(panels) {
                    let query = first + panel * QUERIES;
                    let last = (query + QUERIES).min(shape.queries) - 1;
                    if start >= work.visible_keys(last) {
                        continue;
                    }
                    // SAFETY: blocks, panels and sums were sized above.
                    unsafe {
                        let sums = sums.add(panel * sum_len);
                        engine.scores(block, packed.add(panel * query_bytes), dim, count, scores);
                        self.hide(head, query, start, count, scores);
                        let changed = engine.softmax(scores, count, shape.scale, state);
                        if changed && start > 0 {
                            engine.rescale(sums, dim, &state.factors);
                        }
                        engine.values(block.add(key_bytes), scores, dim, count, sums, start == 0);
                    }
                }
            }
        }
        for (panel, state) in states.iter().enumerate().take(panels) {
            let query = first + panel * QUERIES;
            let count = QUERIES.min(shape.queries - query);
            // SAFETY: the sums were written by the first block (every query may see key 0 or there are none).
            unsafe {
                let sums = std::slice::from_raw_parts(sums.add(panel * sum_len), dim * QUERIES);
                self.store(head, query, count, sums, state);
            }
        }
    }

    /// Applies masks to a block of scores.
    ///
    /// # Safety
    /// `scores` is `[KEYS][QUERIES]`.
    unsafe fn hide(&self, head: usize, query: usize, start: usize, count: usize, scores: *mut f32) {
        let (work, shape) = (self.work, self.work.shape);
        let queries = QUERIES.min(shape.queries - query);
        // SAFETY: by the contract above.
        let scores = unsafe { std::slice::from_raw_parts_mut(scores, count * QUERIES) };
        if let Some(mask) = shape.mask {
            // Masks are added after scaling, but the scores are not scaled yet.
            let unscale = 1.0 / shape.scale;
            for (key, scores) in scores.chunks_exact_mut(QUERIES).enumerate() {
                if mask.query == 0 {
                    let bias = work.bias(self.batch, head, 0, start + key) * unscale;
                    if bias != 0.0 {
                        scores.iter_mut().for_each(|score| *score += bias);
                    }
                } else {
                    for (i, score) in scores[..queries].iter_mut().enumerate() {
                        *score += work.bias(self.batch, head, query + i, start + key) * unscale;
                    }
                }
            }
        }
        if work.visible_keys(query) < start + count {
            for (key, scores) in scores.chunks_exact_mut(QUERIES).enumerate() {
                for (i, score) in scores[..queries].iter_mut().enumerate() {
                    if start + key >= work.visible_keys(query + i) {
                        *score = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }

    /// Divides by the sums of the weights and writes a panel's queries out.
    fn store(&self, head: usize, query: usize, count: usize, sums: &[f32], state: &State) {
        let (work, dim) = (self.work, self.work.shape.head_dim);
        let view = work.views.out;
        let mut rows = Scratch::of::<f32>(QUERIES * dim);
        let rows = &mut rows.slice_mut::<f32>()[..QUERIES * dim];
        if work.shape.keys > 0 {
            transpose(self.ctx.isa(), sums, QUERIES, dim, QUERIES, rows, dim);
        }
        for i in 0..count {
            let factor = super::factor(state.sums[i]);
            let row = &rows[i * dim..][..dim];
            // SAFETY: the view was checked: no two heads share an element.
            unsafe {
                let out = work.out.part(view.at(self.batch, head, query + i), dim);
                if factor == 0.0 {
                    out.fill(O::zeroed());
                } else {
                    crate::simd::dispatch(self.ctx.isa(), crate::elementwise::Scale { x: row, factor, out });
                }
            }
        }
    }
}
