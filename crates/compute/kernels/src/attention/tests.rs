use half::bf16;

use super::*;
use crate::ctx::test_support::{contexts, noise, relative_error};

struct Case {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    dim: usize,
    causal: Option<usize>,
}

const fn case(batch: usize, heads: usize, kv_heads: usize, queries: usize, keys: usize, dim: usize) -> Case {
    Case { batch, heads, kv_heads, queries, keys, dim, causal: None }
}

impl Case {
    fn shape<'a>(&self, mask: Option<Mask<'a>>) -> Attention<'a> {
        Attention {
            batch: self.batch,
            heads: self.heads,
            kv_heads: self.kv_heads,
            queries: self.queries,
            keys: self.keys,
            head_dim: self.dim,
            scale: 0.3,
            causal: self.causal,
            mask,
        }
    }

    /// Dense heads-first buffers.
    fn buffers(&self) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        let (q, kv) = (self.batch * self.heads * self.queries, self.batch * self.kv_heads * self.keys);
        let round = |values: Vec<f32>| values.iter().map(|&x| bf16::from_f32(x * 2.0).to_f32()).collect();
        (round(noise(q * self.dim, 1)), round(noise(kv * self.dim, 2)), round(noise(kv * self.dim, 3)))
    }

    fn views(&self) -> (View, View) {
        (View::heads_first(self.heads, self.queries, self.dim), View::heads_first(self.kv_heads, self.keys, self.dim))
    }

    /// Attention in f64; `bias(b, h, i, j)` is added after scaling.
    fn reference(&self, bias: impl Fn(usize, usize, usize, usize) -> f64) -> Vec<f32> {
        let (q, k, v) = self.buffers();
        let (qv, kv) = self.views();
        let mut out = vec![0f32; q.len()];
        for b in 0..self.batch {
            for h in 0..self.heads {
                let kh = h / (self.heads / self.kv_heads);
                for i in 0..self.queries {
                    let q = &q[qv.at(b, h, i)..][..self.dim];
                    let scores: Vec<f64> = (0..self.keys)
                        .map(|j| {
                            let k = &k[kv.at(b, kh, j)..][..self.dim];
                            let dot: f64 = q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                            let hidden = self.causal.is_some_and(|offset| j > i + offset);
                            if hidden { f64::NEG_INFINITY } else { dot * f64::from(0.3f32) + bias(b, h, i, j) }
                        })
                        .collect();
                    let top = scores.iter().fold(f64::NEG_INFINITY, |m, &s| m.max(s));
                    if top == f64::NEG_INFINITY {
                        continue;
                    }
                    let total: f64 = scores.iter().map(|s| (s - top).exp()).sum();
                    for c in 0..self.dim {
                        let sum: f64 =
                            (0..self.keys).map(|j| (scores[j] - top).exp() * f64::from(v[kv.at(b, kh, j) + c])).sum();
                        out[qv.at(b, h, i) + c] = (sum / total) as f32;
                    }
                }
            }
        }
        out
    }

    /// Both element types on every instruction set against the reference.
    fn check(&self, mask: Option<Mask<'_>>, bias: impl Fn(usize, usize, usize, usize) -> f64) {
        let want = self.reference(bias);
        let (q, k, v) = self.buffers();
        let (qv, kv) = self.views();
        let half = |x: &[f32]| x.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>();
        for ctx in contexts() {
            let name = format!("{} {}x{}x{}", ctx.isa(), self.queries, self.keys, self.dim);
            let mut out = vec![f32::NAN; q.len()];
            let shape = self.shape(mask);
            shape
                .forward(&ctx, ((&q).into(), qv), ((&k).into(), kv), ((&v).into(), kv), ((&mut out).into(), qv))
                .unwrap();
            let error = relative_error(&out, &want);
            assert!(error < 5e-6, "{name} f32: {error}");

            let (q, k, v) = (half(&q), half(&k), half(&v));
            let mut out = vec![f32::NAN; q.len()];
            shape
                .forward(&ctx, ((&q).into(), qv), ((&k).into(), kv), ((&v).into(), kv), ((&mut out).into(), qv))
                .unwrap();
            let error = relative_error(&out, &want);
            assert!(error < 4e-3, "{name} bf16: {error}");
            let mut rounded = vec![bf16::NAN; q.len()];
            let to = ((&mut rounded).into(), qv);
            shape.forward(&ctx, ((&q).into(), qv), ((&k).into(), kv), ((&v).into(), kv), to).unwrap();
            assert!(rounded.iter().zip(&out).all(|(a, b)| *a == bf16::from_f32(*b)), "{name} bf16 output");
        }
    }
}

#[test]
fn every_instruction_set_agrees_with_f64_on_ragged_shapes() {
    for case in [
        case(1, 1, 1, 1, 1, 1),
        case(2, 4, 2, 1, 37, 40),
        case(1, 2, 1, 4, 300, 64),
        case(1, 1, 1, 5, 1, 8),
        case(2, 2, 2, 33, 129, 48),
        case(1, 4, 2, 70, 260, 128),
        case(1, 2, 1, 300, 17, 31),
        case(1, 1, 1, 40, 100, 256),
        case(1, 1, 1, 35, 33, 512),
        case(1, 1, 1, 6, 0, 16),
        case(0, 2, 1, 6, 3, 16),
        case(1, 1, 1, 0, 3, 16),
    ] {
        case.check(None, |_, _, _, _| 0.0);
    }
}

#[test]
fn causal_attention_hides_the_future() {
    for (queries, keys, offset) in [(1, 20, 19), (3, 3, 0), (100, 100, 0), (40, 300, 260), (300, 300, 0)] {
        Case { causal: Some(offset), ..case(1, 2, 1, queries, keys, 32) }.check(None, |_, _, _, _| 0.0);
    }
}

#[test]
fn masks_hide_keys_and_add_to_scores() {
    for (queries, keys) in [(2, 50), (45, 140)] {
        let case = case(2, 2, 1, queries, keys, 24);
        // The second sample sees nothing at all, and so becomes zeros.
        let visible: Vec<bool> = (0..2 * keys).map(|i| i < keys && i % 3 != 0).collect();
        let hide = |b: usize, j: usize| if visible[b * keys + j] { 0.0 } else { f64::NEG_INFINITY };
        case.check(Some(Mask::keys(&visible, keys)), |b, _, _, j| hide(b, j));

        let added = noise(queries * keys, 7);
        case.check(Some(Mask::add(&added, keys)), |_, _, i, j| f64::from(added[i * keys + j]));

        let each = noise(2 * 2 * queries * keys, 8);
        let head = queries * keys;
        let mask = Mask { values: MaskValues::Add(&each), batch: 2 * head, head, query: keys };
        case.check(Some(mask), |b, h, i, j| f64::from(each[(b * 2 + h) * head + i * keys + j]));
    }
}

#[test]
fn strides_and_threads_change_nothing() {
    let case = case(2, 4, 2, 67, 190, 40);
    let (q, k, v) = case.buffers();
    let (qv, kv) = case.views();
    let shape = case.shape(None);
    let other = |values: &[f32], heads: usize, tokens: usize| {
        let (from, to) = (View::heads_first(heads, tokens, 40), View::tokens_first(heads, tokens, 40));
        let mut moved = vec![0f32; values.len()];
        for (b, h, t) in (0..2).flat_map(|b| (0..heads).flat_map(move |h| (0..tokens).map(move |t| (b, h, t)))) {
            moved[to.at(b, h, t)..][..40].copy_from_slice(&values[from.at(b, h, t)..][..40]);
        }
        moved
    };
    let (q2, k2, v2) = (other(&q, 4, 67), other(&k, 2, 190), other(&v, 2, 190));
    let (qv2, kv2) = (View::tokens_first(4, 67, 40), View::tokens_first(2, 190, 40));
    for &isa in Isa::available() {
        for half in [false, true] {
            let run = |threads, q: &[f32], k: &[f32], v: &[f32], qv, kv| {
                let ctx = Ctx::new(isa, threads).unwrap();
                let mut out = vec![0f32; q.len()];
                let to = |x: &[f32]| x.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>();
                let o = ((&mut out).into(), qv);
                if half {
                    let (q, k, v) = (to(q), to(k), to(v));
                    shape.forward(&ctx, ((&q).into(), qv), ((&k).into(), kv), ((&v).into(), kv), o).unwrap();
                } else {
                    shape.forward(&ctx, (q.into(), qv), (k.into(), kv), (v.into(), kv), o).unwrap();
                }
                out
            };
            let plain = run(1, &q, &k, &v, qv, kv);
            assert_eq!(plain, run(5, &q, &k, &v, qv, kv), "{isa}");
            assert_eq!(other(&plain, 4, 67), run(2, &q2, &k2, &v2, qv2, kv2), "{isa}");
        }
    }
}

#[test]
fn wrong_sizes_are_typed_errors() {
    let ctx = Ctx::global();
    let x = vec![0f32; 24];
    let mut out = vec![0f32; 24];
    let view = View::heads_first(2, 3, 4);
    let mut go = |shape: Attention, view: View, to: View| {
        let x = || ((&x).into(), view);
        shape.forward(ctx, x(), x(), x(), ((&mut out).into(), to))
    };
    let good = Attention::full(1, 2, 3, 4);
    assert!(go(good, view, view).is_ok());
    assert!(go(Attention { heads: 3, ..good }, view, view).is_err());
    assert!(go(Attention { kv_heads: 0, ..good }, view, view).is_err());
    assert!(go(Attention { scale: 0.0, ..good }, view, view).is_err());
    assert!(go(Attention { head_dim: 513, ..good }, view, view).is_err());
    assert!(go(Attention { queries: 4, ..good }, view, view).is_err());
    assert!(go(Attention { keys: usize::MAX, ..good }, view, view).is_err());
    assert!(go(good, View { token: usize::MAX, ..view }, view).is_err());
    assert!(go(good, view, View { token: 3, ..view }).is_err());
    assert!(go(Attention { mask: Some(Mask::keys(&[true; 2], 3)), ..good }, view, view).is_err());
}
