//! Rotary position embedding (Su et al. 2021).

use candle_core::{DType, Result, Tensor, bail};
use kernels::ValuesMut;
use kernels::rope::{HeadNorm, Heads, Rope};

pub use kernels::rope::RopeStyle;

use crate::decoder::Rotation;
use crate::{RmsNorm, cpu};

/// Cosines and sines of a sequence of positions: a rotation a pair of elements of a head.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    style: RopeStyle,
    positions: usize,
    pairs: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// Frequencies of a head or axis of `dim` elements: `theta^(-2 i / dim)`.
    pub fn frequencies(dim: usize, theta: f64) -> Vec<f64> {
        (0..dim / 2).map(|i| theta.powf(-2.0 * i as f64 / dim as f64)).collect()
    }

    /// Position times frequency for each of `positions`. Angles are products in f64, rounded to f32 as models are
    /// trained.
    pub fn new(style: RopeStyle, frequencies: &[f64], positions: impl IntoIterator<Item = usize>) -> Self {
        Self::multi_axis(style, &[frequencies.to_vec()], positions.into_iter().map(|p| [p]))
    }

    /// The same with sines and cosines multiplied by a factor, as some scalings of long contexts have it.
    pub fn scaled(style: RopeStyle, rotation: &Rotation, positions: impl IntoIterator<Item = usize>) -> Self {
        let mut table = Self::new(style, &rotation.frequencies, positions);
        if rotation.factor != 1.0 {
            let factor = rotation.factor as f32;
            table.cos.iter_mut().chain(&mut table.sin).for_each(|value| *value *= factor);
        }
        table
    }

    /// A position an axis for each token: the pairs of a head are shared out among the axes, in order.
    pub fn multi_axis<const AXES: usize>(
        style: RopeStyle,
        frequencies: &[Vec<f64>; AXES],
        positions: impl IntoIterator<Item = [usize; AXES]>,
    ) -> Self {
        let mut table =
            Self { style, positions: 0, pairs: frequencies.iter().map(Vec::len).sum(), cos: vec![], sin: vec![] };
        for position in positions {
            table.positions += 1;
            for (axis, place) in frequencies.iter().zip(position) {
                for frequency in axis {
                    let angle = f64::from((place as f64 * frequency) as f32);
                    table.cos.push(angle.cos() as f32);
                    table.sin.push(angle.sin() as f32);
                }
            }
        }
        table
    }

    /// The table of the tokens of `self`, then those of `other`.
    pub fn concat(&self, other: &Self) -> Self {
        let mut joined = self.clone();
        joined.positions += other.positions;
        joined.cos.extend_from_slice(&other.cos);
        joined.sin.extend_from_slice(&other.sin);
        joined
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.positions
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.positions == 0
    }

    /// Cosines, `(tokens, pairs)`.
    pub fn cos(&self) -> &[f32] {
        &self.cos
    }

    /// Sines, `(tokens, pairs)`.
    pub fn sin(&self) -> &[f32] {
        &self.sin
    }

    pub(crate) fn fits(&self, tokens: usize, head_dim: usize) -> bool {
        self.positions == tokens && 2 * self.pairs <= head_dim
    }

    pub(crate) fn kernel(&self) -> Rope<'_> {
        Rope { cos: &self.cos, sin: &self.sin, positions: self.positions, rotated: 2 * self.pairs, style: self.style }
    }
}

/// RMS norm of each head, then rotation of its first elements, each if given; `x` is `(batch, tokens, heads,
/// head_dim)` and every row of the batch has the table's positions.
pub fn norm_rope(x: &Tensor, norm: Option<&RmsNorm>, rope: Option<&RopeTable>) -> Result<Tensor> {
    let (batch, tokens, heads, head_dim) = x.dims4()?;
    if let Some(rope) = rope.filter(|rope| !rope.fits(tokens, head_dim)) {
        bail!("rope: a table of {} positions and {} pairs on {:?}", rope.positions, rope.pairs, x.shape());
    }
    if cpu::serves_tensor("rope", x) {
        return cpu::compute(&[x], x.shape(), x.dtype(), |v, mut out| {
            kernels::elementwise::convert(kernels::Ctx::global(), v[0], cpu::reborrow(&mut out))?;
            in_place(out, Heads::dense(batch * tokens, heads, head_dim), norm, rope)
        });
    }
    let x = norm.map_or(Ok(x.clone()), |norm| norm.forward(x))?;
    rope.map_or(Ok(x.clone()), |rope| rotate_candle(&x, rope))
}

/// The same on the heads of a larger buffer.
pub(crate) fn in_place(
    x: ValuesMut<'_>,
    heads: Heads,
    norm: Option<&RmsNorm>,
    rope: Option<&RopeTable>,
) -> kernels::Result<()> {
    if norm.is_none() && rope.is_none() {
        return Ok(());
    }
    let norm = norm.map(|norm| HeadNorm { weight: norm.weight(), eps: norm.eps() });
    kernels::rope::norm_rope(kernels::Ctx::global(), x, heads, norm, rope.map(RopeTable::kernel))
}

fn rotate_candle(x: &Tensor, rope: &RopeTable) -> Result<Tensor> {
    let (batch, tokens, heads, head_dim) = x.dims4()?;
    let (pairs, rotated) = (rope.pairs, 2 * rope.pairs);
    let (split, axis) = match rope.style {
        RopeStyle::Interleaved => ([batch, tokens, heads, pairs, 2], 4),
        RopeStyle::HalfSplit => ([batch, tokens, heads, 2, pairs], 3),
    };
    let table = |values: &[f32]| Tensor::from_slice(values, (1, tokens, 1, pairs), x.device());
    let (cos, sin) = (table(&rope.cos)?.unsqueeze(axis)?, table(&rope.sin)?.unsqueeze(axis)?);
    let head = x.narrow(3, 0, rotated)?.to_dtype(DType::F32)?.reshape(&split)?;
    let (a, b) = (head.narrow(axis, 0, 1)?, head.narrow(axis, 1, 1)?);
    let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
    let second = (a.broadcast_mul(&sin)? + b.broadcast_mul(&cos)?)?;
    let turned = Tensor::cat(&[first, second], axis)?.reshape((batch, tokens, heads, rotated))?.to_dtype(x.dtype())?;
    if rotated == head_dim {
        return Ok(turned);
    }
    Tensor::cat(&[turned, x.narrow(3, rotated, head_dim - rotated)?], 3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{noise, relative_error};

    #[test]
    fn kernel_and_candle_rotate_alike() {
        let x = noise(&[2, 5, 3, 16], 1);
        for style in [RopeStyle::Interleaved, RopeStyle::HalfSplit] {
            for dim in [16, 10] {
                let table = RopeTable::new(style, &RopeTable::frequencies(dim, 100.0), [0, 3, 4, 9, 1000]);
                let got = norm_rope(&x, None, Some(&table)).unwrap();
                let want = rotate_candle(&x, &table).unwrap();
                assert!(relative_error(&got, &want) < 1e-6, "{style:?} {dim}");
                // position 0 turns nothing, and what is not rotated stays
                assert!(relative_error(&got.narrow(1, 0, 1).unwrap(), &x.narrow(1, 0, 1).unwrap()) < 1e-7);
                let norms = |t: &Tensor| t.sqr().unwrap().sum_keepdim(3).unwrap();
                assert!(relative_error(&norms(&got), &norms(&x)) < 1e-6);
            }
        }
    }

    #[test]
    fn axes_take_their_share_of_a_head() {
        let frequencies = [RopeTable::frequencies(4, 10.0), RopeTable::frequencies(6, 10.0)];
        let table = RopeTable::multi_axis(RopeStyle::Interleaved, &frequencies, [[2, 0], [0, 3]]);
        assert_eq!((table.len(), table.cos().len()), (2, 10));
        assert_eq!(table.cos()[2..5], [1.0; 3]);
        assert_eq!(table.sin()[5..7], [0.0; 2]);
        assert!((table.sin()[0] - 2f32.sin()).abs() < 1e-7 && (table.sin()[7] - 3f32.sin()).abs() < 1e-7);
        let joined = table.concat(&table);
        assert_eq!((joined.len(), &joined.cos()[10..]), (4, table.cos()));
    }

    #[test]
    fn a_table_of_another_length_is_an_error() {
        let table = RopeTable::new(RopeStyle::Interleaved, &RopeTable::frequencies(16, 100.0), [0, 1]);
        assert!(norm_rope(&noise(&[1, 3, 1, 16], 1), None, Some(&table)).is_err());
        assert!(norm_rope(&noise(&[1, 2, 1, 8], 1), None, Some(&table)).is_err());
    }
}
