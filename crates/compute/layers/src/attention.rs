//! Scaled dot-product attention (Vaswani et al. 2017), with grouped heads (Ainslie et al. 2023).

use candle_core::{D, DType, Result, Tensor, bail};
use kernels::attention::{Attention, Mask as KernelMask, MaskValues, View};

use crate::cpu;
use crate::wide_attention::wide_attention;

/// Which keys a query sees. With fewer queries than keys, the queries are the last ones.
#[derive(Debug, Clone, Copy)]
pub enum Mask<'a> {
    /// All.
    None,
    /// Those up to its own position and, with a window, only the last `window` of them.
    Causal {
        /// Keys that a query sees at most, its own included.
        window: Option<usize>,
    },
    /// Summands of the scores, `(queries, keys)`.
    Additive(&'a Tensor),
}

/// `softmax(scale * q k^T + mask) v`, head by head.
///
/// `q` is `(batch, queries, heads, head_dim)`, `k` and `v` are `(batch, keys, kv_heads, head_dim)`; `heads` is a
/// multiple of `kv_heads`, and head `h` uses key head `h / (heads / kv_heads)`. The result has the shape and type of
/// `q`.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32, mask: Mask<'_>) -> Result<Tensor> {
    let (batch, _, heads, dim) = q.dims4()?;
    let (_, keys, kv_heads, _) = k.dims4()?;
    if k.dims() != v.dims()
        || k.dims() != [batch, keys, kv_heads, dim]
        || kv_heads == 0
        || !heads.is_multiple_of(kv_heads)
    {
        bail!("attention: {:?} on keys {:?} and values {:?}", q.shape(), k.shape(), v.shape());
    }
    let one_type = q.dtype() == k.dtype() && q.dtype() == v.dtype();
    if one_type && cpu::serves(q.device(), q.dtype()) {
        if dim <= MAX_KERNEL_HEAD {
            return attention_kernel(q, k, v, scale, mask);
        }
        if matches!(mask, Mask::None) && keys > 0 {
            return wide_attention(q, k, v, scale);
        }
    }
    cpu::note("attention", q);
    attention_candle(q, k, v, scale, mask)
}

/// Longest head that the kernel takes.
const MAX_KERNEL_HEAD: usize = 256;

fn attention_kernel(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32, mask: Mask<'_>) -> Result<Tensor> {
    let (batch, queries, heads, head_dim) = q.dims4()?;
    let (_, keys, kv_heads, _) = k.dims4()?;
    let Some(past) = keys.checked_sub(queries).or_else(|| (!matches!(mask, Mask::Causal { .. })).then_some(0)) else {
        bail!("attention: {queries} queries on {keys} keys");
    };
    let (mut visible, mut summands) = (Vec::new(), Vec::new());
    match mask {
        Mask::Causal { window: Some(window) } => {
            visible = (0..queries).flat_map(|i| (0..keys).map(move |j| past + i < window.saturating_add(j))).collect();
        }
        Mask::Additive(mask) if mask.dims() != [queries, keys] => bail!("attention: a mask of {:?}", mask.shape()),
        Mask::Additive(mask) => summands = cpu::vector(mask)?,
        Mask::None | Mask::Causal { window: None } => {}
    }
    let kernel_mask = match mask {
        Mask::Causal { window: Some(_) } => {
            Some(KernelMask { values: MaskValues::Visible(&visible), batch: 0, head: 0, query: keys })
        }
        Mask::Additive(_) => Some(KernelMask::add(&summands, keys)),
        Mask::None | Mask::Causal { window: None } => None,
    };
    let causal = matches!(mask, Mask::Causal { .. }).then_some(past);
    let kernel = Attention { batch, heads, kv_heads, queries, keys, head_dim, scale, causal, mask: kernel_mask };
    let [q, k, v] = [q, k, v].map(cpu::rows_together);
    let views = View::tokens_first(heads, queries, head_dim);
    cpu::compute_strided(&[&q?, &k?, &v?], (batch, queries, heads, head_dim), |inputs, out| {
        let [q, k, v] = [0, 1, 2].map(|i| {
            let (values, layout) = inputs[i];
            let stride = layout.stride();
            (values, View { offset: layout.start_offset(), batch: stride[0], head: stride[2], token: stride[1] })
        });
        kernel.forward(kernels::Ctx::global(), q, k, v, (out, views))
    })
}

/// Scores that are held at once, over all heads.
const SCORES: usize = 1 << 25;

fn attention_candle(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32, mask: Mask<'_>) -> Result<Tensor> {
    let (batch, queries, heads, dim) = q.dims4()?;
    let (_, keys, kv_heads, _) = k.dims4()?;
    let (group, dtype) = (heads / kv_heads, q.dtype());
    // (batch, kv_heads, tokens, dim) in f32
    let heads_first = |t: &Tensor| t.transpose(1, 2)?.to_dtype(DType::F32)?.contiguous();
    let (k, v) = (heads_first(k)?.transpose(2, 3)?, heads_first(v)?);
    let q = (heads_first(q)? * f64::from(scale))?;
    let step = (SCORES / (batch * heads * keys).max(1)).clamp(1, queries.max(1));
    let mut parts = Vec::new();
    for first in (0..queries).step_by(step) {
        let count = step.min(queries - first);
        let q = q.narrow(2, first, count)?.reshape((batch, kv_heads, group * count, dim))?;
        let mut scores = q.matmul(&k)?;
        if let Some(mask) = summands(mask, first, count, queries, keys)? {
            let mask = mask.to_device(scores.device())?;
            scores = scores.reshape((batch, kv_heads, group, count, keys))?.broadcast_add(&mask)?;
            scores = scores.reshape((batch, kv_heads, group * count, keys))?;
        }
        let part = candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&v)?;
        parts.push(part.reshape((batch, heads, count, dim))?);
    }
    let all = if parts.is_empty() { q.zeros_like()? } else { Tensor::cat(&parts, 2)? };
    all.to_dtype(dtype)?.transpose(1, 2)?.contiguous()
}

/// Rows `first..first + count` of the mask, `(count, keys)`.
fn summands(mask: Mask<'_>, first: usize, count: usize, queries: usize, keys: usize) -> Result<Option<Tensor>> {
    let window = match mask {
        Mask::None => return Ok(None),
        Mask::Additive(mask) => return mask.narrow(0, first, count)?.to_dtype(DType::F32).map(Some),
        Mask::Causal { window } => window.unwrap_or(usize::MAX),
    };
    let Some(past) = keys.checked_sub(queries) else { bail!("attention: {queries} queries on {keys} keys") };
    let sees = |query: usize, key: usize| key <= query && query - key < window;
    let rows = (0..count)
        .flat_map(|i| (0..keys).map(move |key| if sees(past + first + i, key) { 0f32 } else { f32::NEG_INFINITY }));
    Tensor::from_vec(rows.collect::<Vec<_>>(), (count, keys), &candle_core::Device::Cpu).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{noise, relative_error};
    use candle_core::Device;

    /// Attention by its definition, in f64, on nested loops.
    fn plain(q: &Tensor, k: &Tensor, v: &Tensor, scale: f64, sees: impl Fn(usize, usize) -> f64) -> Vec<f32> {
        let (batch, queries, heads, dim) = q.dims4().unwrap();
        let (_, keys, kv_heads, _) = k.dims4().unwrap();
        let host = |t: &Tensor| t.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
        let (q, k, v) = (host(q), host(k), host(v));
        let at = |t: usize, tokens: usize, heads: usize, b: usize, h: usize| ((b * tokens + t) * heads + h) * dim;
        let mut out = Vec::new();
        for b in 0..batch {
            for i in 0..queries {
                for h in 0..heads {
                    let kv = h / (heads / kv_heads);
                    let scores: Vec<f64> = (0..keys)
                        .map(|j| {
                            let (x, y) = (&q[at(i, queries, heads, b, h)..], &k[at(j, keys, kv_heads, b, kv)..]);
                            scale * (0..dim).map(|d| x[d] * y[d]).sum::<f64>() + sees(i, j)
                        })
                        .collect();
                    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
                    let total: f64 = weights.iter().sum();
                    out.extend((0..dim).map(|d| {
                        let sum = (0..keys).map(|j| weights[j] * v[at(j, keys, kv_heads, b, kv) + d]).sum::<f64>();
                        (sum / total) as f32
                    }));
                }
            }
        }
        out
    }

    #[test]
    fn agrees_with_the_definition_for_every_mask() {
        for (batch, queries, keys, heads, kv_heads, dim) in
            [(1, 5, 5, 2, 2, 8), (2, 7, 7, 6, 2, 24), (1, 3, 9, 4, 1, 16), (1, 1, 33, 4, 4, 64), (1, 40, 40, 2, 1, 128)]
        {
            let q = noise(&[batch, queries, heads, dim], 1);
            let (k, v) = (noise(&[batch, keys, kv_heads, dim], 2), noise(&[batch, keys, kv_heads, dim], 3));
            let scale = 1.0 / (dim as f32).sqrt();
            let past = keys - queries;
            let additive = noise(&[queries, keys], 4);
            let summands = additive.to_vec2::<f32>().unwrap();
            let hide = |visible: bool| if visible { 0.0 } else { f64::NEG_INFINITY };
            let check = |mask: Mask<'_>, sees: &dyn Fn(usize, usize) -> f64| {
                let want = plain(&q, &k, &v, f64::from(scale), sees);
                for run in [attention, attention_candle] {
                    let got = run(&q, &k, &v, scale, mask).unwrap();
                    assert_eq!((got.dims(), got.dtype()), (q.dims(), q.dtype()));
                    let error = relative_error(&got, &Tensor::new(&*want, &Device::Cpu).unwrap());
                    assert!(error < 1e-5, "{mask:?} {queries}x{keys} {heads}/{kv_heads}x{dim}: {error}");
                }
            };
            check(Mask::None, &|_, _| 0.0);
            check(Mask::Causal { window: None }, &|i, j| hide(j <= past + i));
            check(Mask::Causal { window: Some(3) }, &|i, j| hide(j <= past + i && past + i - j < 3));
            check(Mask::Additive(&additive), &|i, j| f64::from(summands[i][j]));
        }
    }

    #[test]
    fn long_heads_agree_in_both_number_formats() {
        for (queries, keys) in [(3, 5), (130, 33), (128, 1)] {
            let (q, k, v) =
                (noise(&[2, queries, 2, 300], 1), noise(&[2, keys, 1, 300], 2), noise(&[2, keys, 1, 300], 3));
            let want = plain(&q, &k, &v, 0.1, |_, _| 0.0);
            let want = Tensor::new(&*want, &Device::Cpu).unwrap();
            let got = attention(&q, &k, &v, 0.1, Mask::None).unwrap();
            assert!(relative_error(&got, &want) < 1e-5);
            let [q, k, v] = [q, k, v].map(|t| t.to_dtype(DType::BF16).unwrap());
            let got = attention(&q, &k, &v, 0.1, Mask::None).unwrap();
            assert!(got.dtype() == DType::BF16 && relative_error(&got, &want) < 2e-2);
        }
    }

    #[test]
    fn views_of_one_tensor_need_no_copy() {
        let qkv = noise(&[2, 5, 3 * 4, 8], 1);
        let part = |i: usize| qkv.narrow(2, 4 * i, 4).unwrap();
        let dense = |i: usize| part(i).contiguous().unwrap();
        let got = attention(&part(0), &part(1), &part(2), 0.3, Mask::None).unwrap();
        let want = attention_candle(&dense(0), &dense(1), &dense(2), 0.3, Mask::None).unwrap();
        assert!(relative_error(&got, &want) < 1e-6);
        let turned = |i: usize| dense(i).transpose(1, 3).unwrap().contiguous().unwrap().transpose(1, 3).unwrap();
        let got = attention(&turned(0), &part(1), &turned(2), 0.3, Mask::None).unwrap();
        assert!(relative_error(&got, &want) < 1e-6);
    }

    #[test]
    fn shapes_that_do_not_fit_are_errors() {
        let q = noise(&[1, 2, 3, 4], 1);
        let k = noise(&[1, 2, 2, 4], 2);
        assert!(attention(&q, &k, &k, 1.0, Mask::None).is_err());
        let k = noise(&[1, 1, 3, 4], 2);
        assert!(attention(&q, &k, &k, 1.0, Mask::Causal { window: None }).is_err());
        assert!(attention(&q, &k, &k, 1.0, Mask::Additive(&noise(&[2, 2], 3))).is_err());
        let (k, v) = (noise(&[1, 2, 3, 4], 2), noise(&[1, 3, 3, 4], 2));
        assert!(attention(&q, &k, &v, 1.0, Mask::None).is_err());
    }
}
