//! Attention of a few queries (a step of text generation): keys and values are read once, as they are.

use super::{LOWEST, Work};
use crate::ctx::Ctx;
use crate::memory::Scratch;
use crate::simd::{Element, Kernel, Simd, dispatch};
use crate::{elementwise, math};

/// Queries up to which packing the keys would cost more than it saves.
pub(super) const MOST_QUERIES: usize = 4;

pub(super) fn run<T: Element, O: Element>(ctx: &Ctx, work: &Work<'_, T, O>) {
    let shape = work.shape;
    let group = shape.heads / shape.kv_heads;
    ctx.pool().run(shape.batch * shape.kv_heads, |task| {
        let (batch, kv_head) = (task / shape.kv_heads, task % shape.kv_heads);
        let mut scores = Scratch::of::<f32>(shape.keys);
        for query in 0..shape.queries {
            for head in kv_head * group..(kv_head + 1) * group {
                let scores = &mut scores.slice_mut::<f32>()[..work.visible_keys(query)];
                // SAFETY: the views were checked; no two heads share an element of the output.
                unsafe {
                    let out = work.out.part(work.views.out.at(batch, head, query), shape.head_dim);
                    dispatch(ctx.isa(), One { work, batch, head, kv_head, query, scores, out });
                }
            }
        }
    });
}

/// One query of one head.
struct One<'a, T, O> {
    work: &'a Work<'a, T, O>,
    batch: usize,
    head: usize,
    kv_head: usize,
    query: usize,
    scores: &'a mut [f32],
    out: &'a mut [O],
}

impl<T: Element, O: Element> Kernel for One<'_, T, O> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        let One { work, batch, head, kv_head, query, scores, out } = self;
        let (shape, dim) = (work.shape, work.shape.head_dim);
        let q = work.q[work.views.q.at(batch, head, query)..][..dim].as_ptr();
        let key = |key: usize| work.k[work.views.k.at(batch, kv_head, key)..][..dim].as_ptr();
        let value = |key: usize| work.v[work.views.v.at(batch, kv_head, key)..][..dim].as_ptr();
        let whole = dim / V::LANES * V::LANES;
        // SAFETY: every access is within a head, and `dispatch` chose vectors that the CPU has.
        unsafe {
            let mut top = LOWEST;
            for (at, score) in scores.iter_mut().enumerate() {
                let k = key(at);
                let mut sum = V::splat(0.0);
                for c in (0..whole).step_by(V::LANES) {
                    sum = T::load::<V>(q.add(c), V::LANES).fma(T::load::<V>(k.add(c), V::LANES), sum);
                }
                if whole < dim {
                    sum = T::load::<V>(q.add(whole), dim - whole).fma(T::load::<V>(k.add(whole), dim - whole), sum);
                }
                *score = sum.sum() * shape.scale + work.bias(batch, head, query, at);
                if score.is_nan() || *score > top {
                    top = *score;
                }
            }
            let mut sum = V::splat(0.0);
            for c in (0..scores.len()).step_by(V::LANES) {
                let len = V::LANES.min(scores.len() - c);
                let at = scores.as_mut_ptr().add(c);
                let mut lanes = [f32::NEG_INFINITY; crate::simd::MAX_LANES];
                lanes[..len].copy_from_slice(&scores[c..c + len]);
                let weight = math::exp(V::load(lanes.as_ptr()).sub(V::splat(top)));
                <f32 as Element>::store(weight, at, len);
                sum = sum.add(weight);
            }
            let total = sum.sum();
            let factor = super::factor(total);
            let mut row = [0f32; super::MAX_HEAD_DIM + crate::simd::MAX_LANES];
            for (at, &weight) in scores.iter().enumerate() {
                let (v, weight) = (value(at), V::splat(weight));
                for c in (0..dim).step_by(V::LANES) {
                    let to = row.as_mut_ptr().add(c);
                    T::load::<V>(v.add(c), V::LANES.min(dim - c)).fma(weight, V::load(to)).store(to);
                }
            }
            elementwise::Scale { x: &row[..dim], factor, out }.run::<V>();
        }
    }
}
