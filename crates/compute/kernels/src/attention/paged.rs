//! Attention over pages of keys and values, for decoders.
//!
//! A [`Page`] holds [`PAGE`] tokens of one layer. Keys lie transposed, so that the scores of neighbouring tokens are a
//! vector, and pages are gone through in order with a running maximum (online softmax: Milakov and Gimelshein 2018). Every
//! query's sums have the same order whoever its neighbours are and wherever its pages lie, so results are the same bit for
//! bit for a prompt in one piece, in several, or token by token.

use bytemuck::Zeroable;
use half::f16;

use crate::ctx::Ctx;
use crate::error::{KernelError, Result, exact, product};
use crate::math;
use crate::memory::Scratch;
use crate::pool::SharedMut;
use crate::simd::{Kernel, MAX_LANES, Simd, dispatch};

/// Tokens of a page.
pub const PAGE: usize = 64;

/// Queries of a head that are worked on together.
const TOGETHER: usize = 6;

/// Numbers that keys and values are kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageFormat {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
}

#[derive(Clone)]
enum Store {
    F32(Vec<f32>),
    F16(Vec<f16>),
}

/// Keys and values of [`PAGE`] tokens of one layer: `[kv_heads][head_dim][PAGE]`, then `[kv_heads][PAGE][head_dim]`.
#[derive(Clone)]
pub struct Page {
    store: Store,
    kv_heads: usize,
    head_dim: usize,
}

impl Page {
    /// An empty page.
    ///
    /// # Errors
    /// Sizes that overflow, or a head that is too large.
    pub fn new(format: PageFormat, kv_heads: usize, head_dim: usize) -> Result<Self> {
        if head_dim > super::MAX_HEAD_DIM || head_dim == 0 {
            let why = format!("a head of {head_dim} elements is not one of 1 to {}", super::MAX_HEAD_DIM);
            return Err(KernelError::Shape { what: "page", why });
        }
        let len = product("page", &[2, kv_heads, head_dim, PAGE])?;
        let store = match format {
            PageFormat::F32 => Store::F32(vec![0.0; len]),
            PageFormat::F16 => Store::F16(vec![f16::zeroed(); len]),
        };
        Ok(Page { store, kv_heads, head_dim })
    }

    /// Writes the keys and values, `(kv_heads, head_dim)` each, of the token at `slot`.
    ///
    /// # Errors
    /// There is no such slot, or a length is wrong.
    pub fn put(&mut self, slot: usize, k: &[f32], v: &[f32]) -> Result<()> {
        let (heads, dim) = (self.kv_heads, self.head_dim);
        exact("keys of a token", heads * dim, k.len())?;
        exact("values of a token", heads * dim, v.len())?;
        if slot >= PAGE {
            return Err(KernelError::Shape { what: "page", why: format!("there is no slot {slot} in {PAGE}") });
        }
        fn write<T: Copy>(to: &mut [T], slot: usize, dim: usize, k: &[f32], v: &[f32], narrow: impl Fn(f32) -> T) {
            let (keys, values) = to.split_at_mut(k.len() * PAGE);
            for (i, &k) in k.iter().enumerate() {
                keys[i * PAGE + slot] = narrow(k);
            }
            for (head, v) in v.chunks_exact(dim).enumerate() {
                let to = &mut values[(head * PAGE + slot) * dim..][..dim];
                to.iter_mut().zip(v).for_each(|(to, &v)| *to = narrow(v));
            }
        }
        match &mut self.store {
            Store::F32(to) => write(to, slot, dim, k, v, |x| x),
            Store::F16(to) => write(to, slot, dim, k, v, f16::from_f32),
        }
        Ok(())
    }
}

/// One sequence's part of an attention: its newest tokens are the queries.
pub struct Sequence<'a> {
    /// Pages of the whole sequence, whose newest tokens are in place already.
    pub pages: Vec<&'a Page>,
    /// Tokens in them.
    pub tokens: usize,
    /// First of the sequence's rows among the queries.
    pub first: usize,
    /// Rows, the last tokens of the sequence.
    pub rows: usize,
}

/// The shape of a causal attention over pages.
#[derive(Debug, Clone, Copy)]
pub struct PagedAttention {
    /// Heads of the queries.
    pub heads: usize,
    /// Heads of keys and values; a divisor of `heads`.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// Newest tokens that a query sees, itself included; `None` is all.
    pub window: Option<usize>,
    /// Scores become `cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
}

impl PagedAttention {
    /// `out = softmax(q k^T * scale) v`: row `r` of `q` starts at `r * stride` and holds `(heads, head_dim)`, `out` is dense.
    ///
    /// # Errors
    /// Sizes that don't fit.
    pub fn forward(
        &self,
        ctx: &Ctx,
        q: &[f32],
        stride: usize,
        sequences: &[Sequence<'_>],
        out: &mut [f32],
    ) -> Result<()> {
        let shape = |why: String| Err(KernelError::Shape { what: "paged attention", why });
        let width = product("queries", &[self.heads, self.head_dim])?;
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            return shape(format!("{} heads can't share {} heads of keys", self.heads, self.kv_heads));
        }
        let mut tasks = Vec::new();
        let mut next = 0;
        for (index, sequence) in sequences.iter().enumerate() {
            let pages = sequence.tokens.div_ceil(PAGE);
            let fits = |page: &&Page| (page.kv_heads, page.head_dim) == (self.kv_heads, self.head_dim);
            if sequence.pages.len() < pages || !sequence.pages.iter().all(fits) {
                return shape(format!("{} tokens don't lie in {} pages", sequence.tokens, sequence.pages.len()));
            }
            if sequence.first != next || sequence.rows > sequence.tokens {
                return shape("the rows of the sequences don't follow each other".into());
            }
            next += sequence.rows;
            for head in 0..self.kv_heads {
                tasks.extend((0..sequence.rows).step_by(BLOCK_ROWS).map(|row| (index, head, row)));
            }
        }
        exact("out", product("out", &[next, width])?, out.len())?;
        if next > 0 && (stride < width || q.len() < (next - 1) * stride + width) {
            return Err(KernelError::Length { what: "q", need: next * stride.max(width), got: q.len() });
        }
        // The longest ones first, as the last to end is waited for.
        tasks.sort_by_key(|&(index, _, row)| std::cmp::Reverse(sequences[index].tokens + row));
        let out = SharedMut::new(out);
        ctx.pool().run(tasks.len(), |task| {
            let (index, kv_head, row) = tasks[task];
            let sequence = &sequences[index];
            let rows = BLOCK_ROWS.min(sequence.rows - row);
            let work = Block { shape: self, q, stride, sequence, kv_head, row, rows, out: out.get() };
            // SAFETY: sizes are checked, and blocks write different heads or rows.
            unsafe { dispatch(ctx.isa(), work) }
        });
        Ok(())
    }
}

/// Rows of a task.
const BLOCK_ROWS: usize = 32;

/// Some rows of one head of keys.
struct Block<'a> {
    shape: &'a PagedAttention,
    q: &'a [f32],
    stride: usize,
    sequence: &'a Sequence<'a>,
    kv_head: usize,
    row: usize,
    rows: usize,
    out: *mut f32,
}

/// What a query has seen so far.
struct Running {
    q: *const f32,
    sums: *mut f32,
    /// First and last token that it sees.
    seen: (usize, usize),
    top: f32,
    total: f32,
}

impl Kernel for Block<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        let PagedAttention { heads, kv_heads, head_dim, window, .. } = *self.shape;
        let group = heads / kv_heads;
        let padded = head_dim.next_multiple_of(MAX_LANES);
        let queries = self.rows * group;
        let mut sums = Scratch::of::<f32>(queries * padded);
        let sums = &mut sums.slice_mut::<f32>()[..queries * padded];
        sums.fill(0.0);
        let start = self.sequence.tokens - self.sequence.rows + self.row;
        // Queries of one token are neighbours, so that those worked on together see much the same pages.
        let mut running: Vec<Running> = (0..queries)
            .map(|i| {
                let (row, head) = (i / group, self.kv_head * group + i % group);
                let last = start + row;
                let first = window.map_or(0, |window| (last + 1).saturating_sub(window));
                let q = self.q[(self.sequence.first + self.row + row) * self.stride + head * head_dim..].as_ptr();
                let sums = sums[i * padded..].as_mut_ptr();
                Running { q, sums, seen: (first, last), top: super::LOWEST, total: 0.0 }
            })
            .collect();
        let first_page = running[0].seen.0 / PAGE;
        let last_page = (start + self.rows - 1) / PAGE;
        let mut wide = Scratch::of::<f32>(2 * PAGE * padded);
        for index in first_page..=last_page {
            let page = self.sequence.pages[index];
            let (keys, values) = (self.kv_head * head_dim * PAGE, (kv_heads + self.kv_head) * head_dim * PAGE);
            let len = head_dim * PAGE;
            // SAFETY: heads of the page; every vector is within them.
            unsafe {
                let (k, v) = match &page.store {
                    Store::F32(store) => (store[keys..].as_ptr(), store[values..].as_ptr()),
                    Store::F16(store) => {
                        let to = wide.ptr::<f32>();
                        for c in (0..len).step_by(V::LANES) {
                            V::load_f16(store[keys..].as_ptr().add(c)).store(to.add(c));
                            V::load_f16(store[values..].as_ptr().add(c)).store(to.add(len + c));
                        }
                        (to.cast_const(), to.add(len).cast_const())
                    }
                };
                for some in running.chunks_mut(TOGETHER) {
                    macro_rules! rows {
                        ($($n:literal)*) => {
                            match some.len() {
                                $($n => self.page::<V, $n>(some, index * PAGE, k, v),)*
                                _ => self.page::<V, TOGETHER>(some, index * PAGE, k, v),
                            }
                        };
                    }
                    rows!(1 2 3 4 5);
                }
            }
        }
        for (i, query) in running.iter().enumerate() {
            let (row, head) = (i / group, self.kv_head * group + i % group);
            let factor = super::factor(query.total);
            // SAFETY: this head of this row is ours.
            unsafe {
                let at = (self.sequence.first + self.row + row) * heads * head_dim + head * head_dim;
                let out = std::slice::from_raw_parts_mut(self.out.add(at), head_dim);
                out.iter_mut().zip(&sums[i * padded..]).for_each(|(out, sum)| *out = sum * factor);
            }
        }
    }
}

impl Block<'_> {
    /// Takes a page into account.
    ///
    /// # Safety
    /// `k` is `[head_dim][PAGE]`, `v` is `[PAGE][head_dim]`, and there are `R` queries.
    #[inline(always)]
    unsafe fn page<V: Simd, const R: usize>(&self, queries: &mut [Running], at: usize, k: *const f32, v: *const f32) {
        let dim = self.shape.head_dim;
        let end = queries.iter().map(|q| (q.seen.1 + 1).saturating_sub(at).min(PAGE)).max().unwrap_or(0);
        if end == 0 || queries.iter().all(|q| q.seen.0 >= at + PAGE) {
            return;
        }
        let mut scores = [[0f32; PAGE]; R];
        // SAFETY: by the contract above.
        unsafe {
            // Two vectors at a time keep all sums in registers.
            for c in (0..end).step_by(2 * V::LANES) {
                let mut sums = [[V::splat(0.0); 2]; R];
                for d in 0..dim {
                    let k = k.add(d * PAGE + c);
                    let (k0, k1) = (V::load(k), V::load(k.add(V::LANES)));
                    for r in 0..R {
                        let q = V::splat(*queries[r].q.add(d));
                        sums[r] = [q.fma(k0, sums[r][0]), q.fma(k1, sums[r][1])];
                    }
                }
                for r in 0..R {
                    sums[r][0].store(scores[r].as_mut_ptr().add(c));
                    sums[r][1].store(scores[r].as_mut_ptr().add(c + V::LANES));
                }
            }
            for r in 0..R {
                self.weigh::<V>(&mut queries[r], at, &mut scores[r]);
            }
            let mut c = 0;
            while c < dim {
                let vectors = if c + 2 * V::LANES <= dim { 2 } else { 1 };
                if vectors == 2 {
                    self.add_values::<V, R, 2>(queries, &scores, end, v.add(c), c);
                } else {
                    self.add_values::<V, R, 1>(queries, &scores, end, v.add(c), c);
                }
                c += vectors * V::LANES;
            }
        }
    }

    /// Turns scores into weights and what was seen before into their scale.
    ///
    /// # Safety
    /// The query's sums are valid.
    #[inline(always)]
    unsafe fn weigh<V: Simd>(&self, query: &mut Running, at: usize, scores: &mut [f32; PAGE]) {
        let (first, last) = query.seen;
        let mut top = query.top;
        for (i, score) in scores.iter_mut().enumerate() {
            let token = at + i;
            if token < first || token > last {
                *score = f32::NEG_INFINITY;
                continue;
            }
            *score *= self.shape.scale;
            if let Some(cap) = self.shape.soft_cap {
                *score = cap * (*score / cap).tanh();
            }
            if score.is_nan() || *score > top {
                top = *score;
            }
        }
        // SAFETY: scores are whole vectors, and so are the padded sums.
        unsafe {
            let mut total = V::splat(0.0);
            for c in (0..PAGE).step_by(V::LANES) {
                let at = scores.as_mut_ptr().add(c);
                let weight = math::exp(V::load(at).sub(V::splat(top)));
                weight.store(at);
                total = total.add(weight);
            }
            if top != query.top {
                let mut change = [0f32; MAX_LANES];
                math::exp(V::splat(query.top).sub(V::splat(top))).store(change.as_mut_ptr());
                query.total *= change[0];
                for c in (0..self.shape.head_dim).step_by(V::LANES) {
                    let sum = query.sums.add(c);
                    V::load(sum).mul(V::splat(change[0])).store(sum);
                }
                query.top = top;
            }
            query.total += total.sum();
        }
    }

    /// Adds weighted values to `N` vectors of the sums.
    ///
    /// # Safety
    /// As for `page`; `v` and the sums have these vectors, the last of which may be a part.
    #[inline(always)]
    unsafe fn add_values<V: Simd, const R: usize, const N: usize>(
        &self,
        queries: &mut [Running],
        scores: &[[f32; PAGE]; R],
        end: usize,
        v: *const f32,
        c: usize,
    ) {
        let dim = self.shape.head_dim;
        let part = (dim - c).min(V::LANES);
        // SAFETY: by the contract above.
        unsafe {
            let mut sums = [[V::splat(0.0); N]; R];
            for r in 0..R {
                for n in 0..N {
                    sums[r][n] = V::load(queries[r].sums.add(c + n * V::LANES));
                }
            }
            for token in 0..end {
                let v = v.add(token * dim);
                let mut row = [V::splat(0.0); N];
                for n in 0..N {
                    let v = v.add(n * V::LANES);
                    row[n] = if N == 1 && part < V::LANES { V::load_part(v, part) } else { V::load(v) };
                }
                for r in 0..R {
                    let weight = V::splat(scores[r][token]);
                    for n in 0..N {
                        sums[r][n] = weight.fma(row[n], sums[r][n]);
                    }
                }
            }
            for r in 0..R {
                for n in 0..N {
                    sums[r][n].store(queries[r].sums.add(c + n * V::LANES));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctx::test_support::{contexts, noise, relative_error};

    /// Attention in f64 of one sequence.
    fn plain(shape: &PagedAttention, q: &[f32], k: &[f32], v: &[f32], tokens: usize, rows: usize) -> Vec<f32> {
        let PagedAttention { heads, kv_heads, head_dim: dim, .. } = *shape;
        let mut out = vec![0f32; rows * heads * dim];
        for row in 0..rows {
            let last = tokens - rows + row;
            let first = shape.window.map_or(0, |w| (last + 1).saturating_sub(w));
            for head in 0..heads {
                let at = |t: usize| (t * kv_heads + head / (heads / kv_heads)) * dim;
                let q = &q[(row * heads + head) * dim..][..dim];
                let score = |t: usize| {
                    let dot: f64 = q.iter().zip(&k[at(t)..]).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    let score = dot * f64::from(shape.scale);
                    shape.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
                };
                let weights: Vec<f64> = (first..=last).map(|t| score(t).exp()).collect();
                let total: f64 = weights.iter().sum();
                for d in 0..dim {
                    let sum: f64 = (first..=last).zip(&weights).map(|(t, w)| w * f64::from(v[at(t) + d])).sum();
                    out[(row * heads + head) * dim + d] = (sum / total) as f32;
                }
            }
        }
        out
    }

    fn pages(format: PageFormat, shape: &PagedAttention, k: &[f32], v: &[f32], tokens: usize) -> Vec<Page> {
        let width = shape.kv_heads * shape.head_dim;
        let new = || Page::new(format, shape.kv_heads, shape.head_dim).unwrap();
        let mut pages: Vec<Page> = (0..tokens.div_ceil(PAGE)).map(|_| new()).collect();
        for t in 0..tokens {
            pages[t / PAGE].put(t % PAGE, &k[t * width..][..width], &v[t * width..][..width]).unwrap();
        }
        pages
    }

    #[test]
    fn pages_give_what_plain_attention_gives_in_any_pieces() {
        for ctx in contexts() {
            for (heads, kv_heads, head_dim, window, soft_cap) in [
                (4, 2, 16, None, None),
                (3, 1, 20, Some(70), None),
                (2, 2, 64, None, Some(2.0)),
                (9, 3, 40, Some(5), None),
            ] {
                let shape = PagedAttention { heads, kv_heads, head_dim, scale: 0.4, window, soft_cap };
                let tokens = 150;
                let width = heads * head_dim;
                let q = noise(tokens * width, 1);
                let (k, v) = (noise(tokens * kv_heads * head_dim, 2), noise(tokens * kv_heads * head_dim, 3));
                let want = plain(&shape, &q, &k, &v, tokens, tokens);
                for (format, limit) in [(PageFormat::F32, 1e-5), (PageFormat::F16, 2e-3)] {
                    let pages = pages(format, &shape, &k, &v, tokens);
                    let run = |tokens: usize, rows: usize| {
                        let sequence = Sequence { pages: pages.iter().collect(), tokens, first: 0, rows };
                        let mut out = vec![f32::NAN; rows * width];
                        let q = &q[(tokens - rows) * width..tokens * width];
                        shape.forward(&ctx, q, width, &[sequence], &mut out).unwrap();
                        out
                    };
                    let all = run(tokens, tokens);
                    let error = relative_error(&all, &want);
                    assert!(error < limit, "{} {format:?} {head_dim}: {error}", ctx.isa());
                    for (end, rows) in [(150, 1), (150, 7), (97, 40), (64, 64), (65, 2)] {
                        assert_eq!(run(end, rows), all[(end - rows) * width..end * width], "{}", ctx.isa());
                    }
                }
            }
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_errors() {
        assert!(Page::new(PageFormat::F32, 1, 0).is_err() && Page::new(PageFormat::F16, 1, 4096).is_err());
        let mut page = Page::new(PageFormat::F32, 2, 8).unwrap();
        assert!(page.put(PAGE, &[0.0; 16], &[0.0; 16]).is_err() && page.put(0, &[0.0; 8], &[0.0; 16]).is_err());
        let shape = PagedAttention { heads: 2, kv_heads: 2, head_dim: 8, scale: 1.0, window: None, soft_cap: None };
        let run = |tokens, rows, q: usize| {
            let sequence = Sequence { pages: vec![&page], tokens, first: 0, rows };
            shape.forward(Ctx::global(), &vec![0.0; q], 16, &[sequence], &mut vec![0.0; rows * 16])
        };
        assert!(run(64, 3, 48).is_ok());
        assert!(run(65, 3, 48).is_err() && run(2, 3, 48).is_err() && run(64, 3, 47).is_err());
    }
}
