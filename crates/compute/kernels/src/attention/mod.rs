//! Scaled dot-product attention that never holds the matrix of scores.
//!
//! Blocks of keys are packed once a head and streamed past panels of 32 queries with a running maximum and sum (online
//! softmax: Milakov and Gimelshein 2018; FlashAttention: Dao et al. 2022). Scores are kept transposed, keys by queries,
//! so that maxima and sums run down the lanes and the weights are the right operand of the second product as they are.

#[cfg(target_arch = "x86_64")]
mod amx;
mod direct;
#[cfg(target_arch = "x86_64")]
mod dots;
mod flash;
mod float;
pub mod paged;
#[cfg(target_arch = "x86_64")]
mod pairs;
#[cfg(test)]
mod tests;

use float::Float;
use half::bf16;

use crate::ctx::Ctx;
use crate::error::{KernelError, Result, product};
use crate::isa::Isa;
use crate::linear::float::{AVX2_ROWS, AVX512_ROWS, NEON_ROWS, SCALAR_ROWS};
use crate::pool::SharedMut;
use crate::simd::Element;
use crate::values::{Values, ValuesMut};

/// Where `(batch, head, token)` starts in a buffer: at `offset` plus each index times its stride. The elements of a head
/// are next to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// Where the first one starts.
    pub offset: usize,
    /// Elements from one sample to the next.
    pub batch: usize,
    /// Elements from one head to the next.
    pub head: usize,
    /// Elements from one token to the next.
    pub token: usize,
}

impl View {
    /// A dense `(batch, heads, tokens, head_dim)` buffer.
    pub fn heads_first(heads: usize, tokens: usize, head_dim: usize) -> Self {
        let head = tokens.saturating_mul(head_dim);
        View { offset: 0, batch: head.saturating_mul(heads), head, token: head_dim }
    }

    /// A dense `(batch, tokens, heads, head_dim)` buffer.
    pub fn tokens_first(heads: usize, tokens: usize, head_dim: usize) -> Self {
        let token = heads.saturating_mul(head_dim);
        View { offset: 0, batch: token.saturating_mul(tokens), head: head_dim, token }
    }

    /// Elements up to the end of the last head of the last token.
    fn extent(&self, what: &'static str, batch: usize, heads: usize, tokens: usize, head_dim: usize) -> Result<usize> {
        if batch == 0 || heads == 0 || tokens == 0 || head_dim == 0 {
            return Ok(0);
        }
        let ends = [
            product(what, &[self.batch, batch - 1])?,
            product(what, &[self.head, heads - 1])?,
            product(what, &[self.token, tokens - 1])?,
            head_dim,
            self.offset,
        ];
        ends.iter().try_fold(0usize, |sum, &end| sum.checked_add(end)).ok_or(KernelError::Overflow { what })
    }

    fn at(&self, batch: usize, head: usize, token: usize) -> usize {
        self.offset + batch * self.batch + head * self.head + token * self.token
    }
}

/// What is hidden, or added to the scores after scaling. Keys are next to each other.
#[derive(Debug, Clone, Copy)]
pub struct Mask<'a> {
    /// One value a key, for each of what the strides tell apart.
    pub values: MaskValues<'a>,
    /// Elements from one sample to the next; 0 if all share one mask.
    pub batch: usize,
    /// Elements from one head to the next; 0 if all share one mask.
    pub head: usize,
    /// Elements from one query to the next; 0 if all share one mask.
    pub query: usize,
}

/// The two kinds of mask.
#[derive(Debug, Clone, Copy)]
pub enum MaskValues<'a> {
    /// Only keys that are true are seen.
    Visible(&'a [bool]),
    /// Added to the scores.
    Add(&'a [f32]),
}

impl<'a> Mask<'a> {
    /// `(batch, keys)`: which keys are no padding.
    pub fn keys(visible: &'a [bool], keys: usize) -> Self {
        Mask { values: MaskValues::Visible(visible), batch: keys, head: 0, query: 0 }
    }

    /// `(queries, keys)`, added for every sample and head.
    pub fn add(values: &'a [f32], keys: usize) -> Self {
        Mask { values: MaskValues::Add(values), batch: 0, head: 0, query: keys }
    }

    fn row(&self, batch: usize, head: usize, query: usize) -> usize {
        batch * self.batch + head * self.head + query * self.query
    }
}

/// The shape of an attention, and what is seen.
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    /// Samples.
    pub batch: usize,
    /// Heads of the queries.
    pub heads: usize,
    /// Heads of keys and values; a divisor of `heads`, each serves `heads / kv_heads` neighbouring ones.
    pub kv_heads: usize,
    /// Tokens of the queries.
    pub queries: usize,
    /// Tokens of keys and values.
    pub keys: usize,
    /// Elements of a head, at most 512.
    pub head_dim: usize,
    /// Multiplies the scores; usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Query `i` sees only keys up to `i + offset` if this is `Some(offset)`; `keys - queries` with a cache of past keys.
    pub causal: Option<usize>,
    /// Further restrictions.
    pub mask: Option<Mask<'a>>,
}

/// Largest head.
const MAX_HEAD_DIM: usize = 512;

impl<'a> Attention<'a> {
    /// Full attention of one set of tokens with as many heads of keys as of queries, scaled as usual.
    pub fn full(batch: usize, heads: usize, tokens: usize, head_dim: usize) -> Self {
        Attention {
            batch,
            heads,
            kv_heads: heads,
            queries: tokens,
            keys: tokens,
            head_dim,
            scale: 1.0 / (head_dim.max(1) as f32).sqrt(),
            causal: None,
            mask: None,
        }
    }

    /// `out = softmax(q k^T * scale + mask) v`, head by head; a query that sees no key becomes zeros.
    ///
    /// `q`, `k` and `v` are of one type, `out` may be of the other. bf16 on AMX and AVX512-BF16 multiplies bf16
    /// (weights of the softmax are rounded too); everything else is f32 arithmetic.
    pub fn forward(
        &self,
        ctx: &Ctx,
        q: (Values<'_>, View),
        k: (Values<'_>, View),
        v: (Values<'_>, View),
        out: (ValuesMut<'_>, View),
    ) -> Result<()> {
        self.check(&q, &k, &v, &out)?;
        if self.batch * self.heads * self.queries * self.head_dim == 0 {
            return Ok(());
        }
        let views = Views { q: q.1, k: k.1, v: v.1, out: out.1 };
        match (q.0, k.0, v.0, out.0) {
            (Values::F32(q), Values::F32(k), Values::F32(v), ValuesMut::F32(o)) => self.run(ctx, q, k, v, o, views),
            (Values::F32(q), Values::F32(k), Values::F32(v), ValuesMut::Bf16(o)) => self.run(ctx, q, k, v, o, views),
            (Values::Bf16(q), Values::Bf16(k), Values::Bf16(v), ValuesMut::F32(o)) => {
                self.run_half(ctx, q, k, v, o, views)
            }
            (Values::Bf16(q), Values::Bf16(k), Values::Bf16(v), ValuesMut::Bf16(o)) => {
                self.run_half(ctx, q, k, v, o, views)
            }
            _ => {
                let why = "q, k and v must be of one type".into();
                return Err(KernelError::Shape { what: "attention", why });
            }
        }
        Ok(())
    }

    fn check(
        &self,
        q: &(Values<'_>, View),
        k: &(Values<'_>, View),
        v: &(Values<'_>, View),
        out: &(ValuesMut<'_>, View),
    ) -> Result<()> {
        let shape = |why: String| Err(KernelError::Shape { what: "attention", why });
        if self.head_dim > MAX_HEAD_DIM {
            return shape(format!("a head of {} elements is longer than {MAX_HEAD_DIM}", self.head_dim));
        }
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            return shape(format!("{} heads can't share {} heads of keys", self.heads, self.kv_heads));
        }
        if !self.scale.is_normal() {
            return shape(format!("scores can't be scaled by {}", self.scale));
        }
        let long_enough = |what, need: usize, got: usize| {
            if got < need { Err(KernelError::Length { what, need, got }) } else { Ok(()) }
        };
        long_enough("q", q.1.extent("q", self.batch, self.heads, self.queries, self.head_dim)?, q.0.len())?;
        long_enough("k", k.1.extent("k", self.batch, self.kv_heads, self.keys, self.head_dim)?, k.0.len())?;
        long_enough("v", v.1.extent("v", self.batch, self.kv_heads, self.keys, self.head_dim)?, v.0.len())?;
        long_enough("out", out.1.extent("out", self.batch, self.heads, self.queries, self.head_dim)?, out.0.len())?;
        if !out.1.is_injective([self.batch, self.heads, self.queries], self.head_dim) {
            return shape("parts of the output overlap; its strides are too small".into());
        }
        if let Some(mask) = self.mask {
            let view = View { offset: 0, batch: mask.batch, head: mask.head, token: mask.query };
            let got = match mask.values {
                MaskValues::Visible(values) => values.len(),
                MaskValues::Add(values) => values.len(),
            };
            long_enough("mask", view.extent("mask", self.batch, self.heads, self.queries, self.keys)?, got)?;
        }
        product("attention", &[self.batch, self.heads, self.queries.saturating_add(1)])?;
        product("attention", &[self.keys.saturating_add(1024), MAX_HEAD_DIM, 16])?;
        Ok(())
    }

    fn run<T: Element, O: Element>(&self, ctx: &Ctx, q: &[T], k: &[T], v: &[T], out: &mut [O], views: Views) {
        let work = Work { shape: self, q, k, v, out: SharedMut::new(out), views };
        if self.queries <= direct::MOST_QUERIES {
            return direct::run(ctx, &work);
        }
        match ctx.isa() {
            Isa::AmxBf16 | Isa::Avx512Bf16 | Isa::Avx512 => {
                flash::run(ctx, &Float::<AVX512_ROWS, 112> { isa: ctx.isa() }, &work)
            }
            Isa::Avx2 => flash::run(ctx, &Float::<AVX2_ROWS, 96> { isa: ctx.isa() }, &work),
            Isa::Neon => flash::run(ctx, &Float::<NEON_ROWS, 96> { isa: ctx.isa() }, &work),
            Isa::Scalar => flash::run(ctx, &Float::<SCALAR_ROWS, 96> { isa: ctx.isa() }, &work),
        }
    }

    fn run_half<O: Element>(&self, ctx: &Ctx, q: &[bf16], k: &[bf16], v: &[bf16], out: &mut [O], views: Views) {
        #[cfg(target_arch = "x86_64")]
        if matches!(ctx.isa(), Isa::AmxBf16 | Isa::Avx512Bf16) && self.queries > direct::MOST_QUERIES {
            let work = Work { shape: self, q, k, v, out: SharedMut::new(out), views };
            return match ctx.isa() {
                Isa::AmxBf16 => flash::run(ctx, &amx::Tiles, &work),
                _ => flash::run(ctx, &dots::Dots, &work),
            };
        }
        self.run(ctx, q, k, v, out, views);
    }
}

impl View {
    /// Whether no two of these heads share an element, judged by the strides in order of size.
    fn is_injective(&self, counts: [usize; 3], head_dim: usize) -> bool {
        let mut levels = [(self.batch, counts[0]), (self.head, counts[1]), (self.token, counts[2])];
        levels.sort_unstable();
        let mut extent = head_dim;
        for (stride, count) in levels {
            if count <= 1 {
                continue;
            }
            if stride < extent {
                return false;
            }
            extent = stride.saturating_mul(count - 1).saturating_add(extent);
        }
        true
    }
}

/// Views of the four buffers.
#[derive(Clone, Copy)]
struct Views {
    q: View,
    k: View,
    v: View,
    out: View,
}

/// A checked attention with its buffers.
struct Work<'a, T, O> {
    shape: &'a Attention<'a>,
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    out: SharedMut<O>,
    views: Views,
}

impl<T, O> Work<'_, T, O> {
    /// How many keys a query may see at most.
    fn visible_keys(&self, query: usize) -> usize {
        match self.shape.causal {
            Some(offset) => query.saturating_add(offset).saturating_add(1).min(self.shape.keys),
            None => self.shape.keys,
        }
    }

    /// What is added to a score, or minus infinity where the key is hidden.
    fn bias(&self, batch: usize, head: usize, query: usize, key: usize) -> f32 {
        match self.shape.mask {
            None => 0.0,
            Some(mask) => {
                let at = mask.row(batch, head, query) + key;
                match mask.values {
                    MaskValues::Visible(values) => {
                        if values[at] {
                            0.0
                        } else {
                            f32::NEG_INFINITY
                        }
                    }
                    MaskValues::Add(values) => values[at],
                }
            }
        }
    }
}

/// Below every score that counts, and finite, so that differences of two of them are.
const LOWEST: f32 = -1e30;

/// What the weighted values are multiplied by. The largest weight is 1, so a smaller sum means that nothing was seen.
fn factor(total: f32) -> f32 {
    if total < 0.5 { 0.0 } else { 1.0 / total }
}
