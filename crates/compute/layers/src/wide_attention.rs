//! Attention of heads that are too long for the streaming kernel, as autoencoders have them: two products with keys and
//! values packed like weights, over a few queries at a time, so that the matrix of scores is never whole.

use candle_core::{DType, Result, Tensor};
use kernels::linear::{Epilogue, PackedLinear, PackedLinearBuilder, WeightFormat};
use kernels::{Ctx, Values, ValuesMut};

use crate::cpu;

/// Queries whose scores are held at a time.
const QUERIES: usize = 128;
/// Rows of the transposed values that are gathered at a time.
const ROWS: usize = 16;

/// `softmax(scale * q k^T) v`, head by head, for shapes as in [`attention`](crate::attention).
pub(crate) fn wide_attention(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32) -> Result<Tensor> {
    let (batch, queries, heads, dim) = q.dims4()?;
    let (_, keys, kv_heads, _) = k.dims4()?;
    let format = if q.dtype() == DType::BF16 { WeightFormat::Bf16 } else { WeightFormat::F32 };
    cpu::compute(&[q, k, v], q.shape(), q.dtype(), |inputs, mut out| {
        let ctx = Ctx::global();
        let [mut rows, mut scores, mut sums] = [dim, keys, dim].map(|width| vec![0f32; QUERIES * width]);
        for (b, head) in (0..batch).flat_map(|b| (0..heads).map(move |head| (b, head))) {
            let kv_head = head / (heads / kv_heads);
            let key_at = |key: usize| ((b * keys + key) * kv_heads + kv_head) * dim;
            let key_rows = pack(format, keys, dim, |key, d| scale * value(inputs[1], key_at(key) + d))?;
            let value_columns = pack(format, dim, keys, |d, key| value(inputs[2], key_at(key) + d))?;
            for first in (0..queries).step_by(QUERIES) {
                let count = QUERIES.min(queries - first);
                let at = |query: usize| ((b * queries + first + query) * heads + head) * dim;
                let (rows, scores) = (&mut rows[..count * dim], &mut scores[..count * keys]);
                let sums = &mut sums[..count * dim];
                for (query, row) in rows.chunks_exact_mut(dim).enumerate() {
                    row.iter_mut().enumerate().for_each(|(d, x)| *x = value(inputs[0], at(query) + d));
                }
                let plain = Epilogue::default();
                key_rows.forward(ctx, (&*rows).into(), count, (&mut *scores).into(), &plain)?;
                kernels::elementwise::softmax(ctx, (&mut *scores).into(), keys)?;
                value_columns.forward(ctx, (&*scores).into(), count, (&mut *sums).into(), &plain)?;
                for (query, row) in sums.chunks_exact(dim).enumerate() {
                    match &mut out {
                        ValuesMut::F32(out) => out[at(query)..][..dim].copy_from_slice(row),
                        ValuesMut::Bf16(out) => {
                            let to = out[at(query)..][..dim].iter_mut();
                            to.zip(row).for_each(|(to, x)| *to = half::bf16::from_f32(*x));
                        }
                    }
                }
            }
        }
        Ok(())
    })
}

fn value(values: Values<'_>, at: usize) -> f32 {
    match values {
        Values::F32(values) => values[at],
        Values::Bf16(values) => values[at].to_f32(),
    }
}

/// Packs `(outputs, inputs)` weights that are computed element by element.
fn pack(
    format: WeightFormat,
    outputs: usize,
    inputs: usize,
    element: impl Fn(usize, usize) -> f32,
) -> kernels::Result<PackedLinear> {
    let mut builder = PackedLinearBuilder::new(format, outputs, inputs)?;
    let mut rows = Vec::with_capacity(ROWS * inputs);
    for first in (0..outputs).step_by(ROWS) {
        rows.clear();
        let part = first..outputs.min(first + ROWS);
        rows.extend(part.flat_map(|row| (0..inputs).map(move |column| (row, column))).map(|(r, c)| element(r, c)));
        builder.push(Ctx::global(), (&rows).into())?;
    }
    builder.finish()
}
