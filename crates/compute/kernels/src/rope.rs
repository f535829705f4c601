//! Rotary position embedding, after an optional RMS norm of each head.

use crate::ctx::Ctx;
use crate::error::{KernelError, Result, exact, product};
use crate::norm::sum;
use crate::pool::SharedMut;
use crate::simd::{Element, Kernel, MAX_LANES, Simd, dispatch};
use crate::values::ValuesMut;

/// Which elements of a head are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeStyle {
    /// Neighbours, `(x0, x1), (x2, x3), …`: multiplication of complex numbers.
    Interleaved,
    /// The two halves, `(x0, x_h), (x1, x_h+1), …`, as in GPT-NeoX and Llama checkpoints.
    HalfSplit,
}

/// Which part of a buffer holds the heads: row `r`, head `h` starts at `offset + r * row_stride + h * head_dim`.
#[derive(Debug, Clone, Copy)]
pub struct Heads {
    /// Rows: tokens, of all samples.
    pub rows: usize,
    /// Heads of a row.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Elements from one row to the next.
    pub row_stride: usize,
    /// Where the first row starts.
    pub offset: usize,
}

impl Heads {
    /// A buffer that holds only these heads.
    pub fn dense(rows: usize, heads: usize, head_dim: usize) -> Self {
        Heads { rows, heads, head_dim, row_stride: heads.saturating_mul(head_dim), offset: 0 }
    }

    /// Elements up to the end of the last head.
    fn extent(&self) -> Result<usize> {
        let width = product("heads", &[self.heads, self.head_dim])?;
        if self.rows == 0 || width == 0 {
            return Ok(0);
        }
        let last = product("heads", &[self.rows - 1, self.row_stride])?;
        last.checked_add(width)
            .and_then(|end| end.checked_add(self.offset))
            .ok_or(KernelError::Overflow { what: "heads" })
    }
}

/// The rotation: tables of `(positions, rotated / 2)`, where row `r` takes position `r % positions`.
#[derive(Debug, Clone, Copy)]
pub struct Rope<'a> {
    /// Cosines.
    pub cos: &'a [f32],
    /// Sines.
    pub sin: &'a [f32],
    /// Positions in the tables.
    pub positions: usize,
    /// Elements of a head that are rotated, the first ones; even.
    pub rotated: usize,
    /// Which are rotated together.
    pub style: RopeStyle,
}

/// RMS norm of each head.
#[derive(Debug, Clone, Copy)]
pub struct HeadNorm<'a> {
    /// One factor an element of a head.
    pub weight: &'a [f32],
    /// Added to the mean square.
    pub eps: f32,
}

/// Normalises (if asked for) and rotates (if asked for) every head of `x`, in place.
pub fn norm_rope(
    ctx: &Ctx,
    x: ValuesMut<'_>,
    heads: Heads,
    norm: Option<HeadNorm<'_>>,
    rope: Option<Rope<'_>>,
) -> Result<()> {
    let need = heads.extent()?;
    if x.len() < need {
        return Err(KernelError::Length { what: "x", need, got: x.len() });
    }
    if heads.row_stride < heads.heads * heads.head_dim && heads.rows > 1 {
        return Err(KernelError::Shape { what: "heads", why: "rows overlap; the row stride is too small".into() });
    }
    if let Some(norm) = norm {
        exact("head norm", heads.head_dim, norm.weight.len())?;
    }
    if let Some(rope) = rope {
        if rope.rotated % 2 != 0 || rope.rotated > heads.head_dim || rope.positions == 0 {
            let why = format!("{} rotated elements do not fit a head of {}", rope.rotated, heads.head_dim);
            return Err(KernelError::Shape { what: "rope", why });
        }
        let need = product("rope", &[rope.positions, rope.rotated / 2])?;
        exact("cosines", need, rope.cos.len())?;
        exact("sines", need, rope.sin.len())?;
    }
    match x {
        ValuesMut::F32(x) => run(ctx, x, heads, norm, rope),
        ValuesMut::Bf16(x) => run(ctx, x, heads, norm, rope),
    }
    Ok(())
}

fn run<T: Element>(ctx: &Ctx, x: &mut [T], heads: Heads, norm: Option<HeadNorm<'_>>, rope: Option<Rope<'_>>) {
    let width = heads.heads * heads.head_dim;
    if width == 0 {
        return;
    }
    let x = SharedMut::new(x);
    ctx.pool().run_ranges(heads.rows, (1 << 13) / width, |range| {
        // SAFETY: rows do not overlap and lie within the buffer.
        unsafe { dispatch(ctx.isa(), Rows { x: x.get(), first: range.start, end: range.end, heads, norm, rope }) }
    });
}

struct Rows<'a, T> {
    x: *mut T,
    first: usize,
    end: usize,
    heads: Heads,
    norm: Option<HeadNorm<'a>>,
    rope: Option<Rope<'a>>,
}

impl<T: Element> Kernel for Rows<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        let Heads { heads, head_dim, row_stride, offset, .. } = self.heads;
        for row in self.first..self.end {
            for head in 0..heads {
                // SAFETY: see `norm_rope`; vectors never reach past the head.
                unsafe {
                    let x = self.x.add(offset + row * row_stride + head * head_dim);
                    if let Some(norm) = self.norm {
                        normalise::<V, T>(x, head_dim, norm);
                    }
                    if let Some(rope) = self.rope {
                        let at = row % rope.positions * (rope.rotated / 2);
                        rotate::<V, T>(x, rope, at);
                    }
                }
            }
        }
    }
}

/// # Safety
/// `x` is a head of `dim` elements, and so is the weight.
#[inline(always)]
unsafe fn normalise<V: Simd, T: Element>(x: *mut T, dim: usize, norm: HeadNorm<'_>) {
    // SAFETY: by the contract above.
    unsafe {
        let square = sum::<V, T>(x, dim, |x| x.mul(x));
        let factor = V::splat(1.0 / (square / dim as f32 + norm.eps).sqrt());
        for c in (0..dim).step_by(V::LANES) {
            let len = V::LANES.min(dim - c);
            let weight = <f32 as Element>::load::<V>(norm.weight.as_ptr().add(c), len);
            T::store(T::load::<V>(x.add(c), len).mul(factor).mul(weight), x.add(c), len);
        }
    }
}

/// # Safety
/// `x` is a head of at least `rope.rotated` elements; the tables are valid from `at` on for half as many.
#[inline(always)]
unsafe fn rotate<V: Simd, T: Element>(x: *mut T, rope: Rope<'_>, at: usize) {
    let half = rope.rotated / 2;
    // SAFETY: by the contract above.
    unsafe {
        let (cos, sin) = (rope.cos.as_ptr().add(at), rope.sin.as_ptr().add(at));
        if rope.style == RopeStyle::Interleaved && V::LANES > 1 {
            return rotate_neighbours::<V, T>(x, cos, sin, half);
        }
        // A vector of one lane finds neighbours like halves.
        let (step, distance) = if rope.style == RopeStyle::HalfSplit { (1, half) } else { (2, 1) };
        for c in (0..half).step_by(V::LANES) {
            let len = V::LANES.min(half - c);
            let (cos, sin) = (f32::load::<V>(cos.add(c), len), f32::load::<V>(sin.add(c), len));
            let (first, second) = (x.add(c * step), x.add(c * step + distance));
            let (a, b) = (T::load::<V>(first, len), T::load::<V>(second, len));
            T::store(a.mul(cos).sub(b.mul(sin)), first, len);
            T::store(a.mul(sin).add(b.mul(cos)), second, len);
        }
    }
}

/// Rotates pairs of neighbours: `x * (cos, cos) + (x1, x0) * (-sin, sin)`.
///
/// # Safety
/// `x` has `2 * half` elements and the tables have `half`.
#[inline(always)]
unsafe fn rotate_neighbours<V: Simd, T: Element>(x: *mut T, cos: *const f32, sin: *const f32, half: usize) {
    static SIGNS: [f32; MAX_LANES] = [-1., 1., -1., 1., -1., 1., -1., 1., -1., 1., -1., 1., -1., 1., -1., 1.];
    let pairs = V::LANES / 2;
    // SAFETY: by the contract above; the last, shorter piece of the tables is copied before it is read as a whole.
    unsafe {
        let signs = V::load(SIGNS.as_ptr());
        for c in (0..half).step_by(pairs) {
            let len = pairs.min(half - c);
            let (mut cosines, mut sines) = ([0f32; MAX_LANES], [0f32; MAX_LANES]);
            let (mut cos, mut sin) = (cos.add(c), sin.add(c));
            if len < pairs {
                std::ptr::copy_nonoverlapping(cos, cosines.as_mut_ptr(), len);
                std::ptr::copy_nonoverlapping(sin, sines.as_mut_ptr(), len);
                (cos, sin) = (cosines.as_ptr(), sines.as_ptr());
            }
            let at = x.add(2 * c);
            let x = T::load::<V>(at, 2 * len);
            let y = x.mul(V::load_twice(cos)).add(x.swap_neighbours().mul(V::load_twice(sin).mul(signs)));
            T::store(y, at, 2 * len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctx::test_support::{contexts, noise, relative_error};

    #[test]
    fn norm_and_rotation_agree_with_f64_on_every_instruction_set() {
        for ctx in contexts() {
            for (rows, count, dim, rotated) in [(1, 1, 2, 2), (6, 3, 10, 6), (5, 2, 128, 128), (7, 1, 70, 66)] {
                let heads = Heads { rows, heads: count, head_dim: dim, row_stride: count * dim + 5, offset: 3 };
                let x = noise(rows * heads.row_stride + 3, 1);
                let positions = rows.div_ceil(2);
                let (angles, weight) = (noise(positions * rotated / 2, 2), noise(dim, 3));
                let cos: Vec<f32> = angles.iter().map(|a| a.cos()).collect();
                let sin: Vec<f32> = angles.iter().map(|a| a.sin()).collect();
                for style in [RopeStyle::Interleaved, RopeStyle::HalfSplit] {
                    let mut want = x.clone();
                    for (row, head) in (0..rows).flat_map(|row| (0..count).map(move |head| (row, head))) {
                        let head = &mut want[3 + row * heads.row_stride + head * dim..][..dim];
                        let mean = head.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / dim as f64;
                        for (x, w) in head.iter_mut().zip(&weight) {
                            *x = (f64::from(*x) / (mean + 1e-6).sqrt() * f64::from(*w)) as f32;
                        }
                        for i in 0..rotated / 2 {
                            let (p, q) = match style {
                                RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                                RopeStyle::HalfSplit => (i, i + rotated / 2),
                            };
                            let at = row % positions * rotated / 2 + i;
                            let (a, b) = (head[p], head[q]);
                            (head[p], head[q]) = (a * cos[at] - b * sin[at], a * sin[at] + b * cos[at]);
                        }
                    }
                    let mut got = x.clone();
                    let norm = HeadNorm { weight: &weight, eps: 1e-6 };
                    let rope = Rope { cos: &cos, sin: &sin, positions, rotated, style };
                    norm_rope(&ctx, (&mut got).into(), heads, Some(norm), Some(rope)).unwrap();
                    let error = relative_error(&got, &want);
                    assert!(error < 1e-6, "{} {style:?} {rows}x{count}x{dim}: {error}", ctx.isa());
                }
            }
        }
    }

    #[test]
    fn wrong_sizes_are_typed_errors() {
        let ctx = Ctx::global();
        let mut x = vec![0f32; 12];
        let table = [1f32; 6];
        let rope = Rope { cos: &table, sin: &table, positions: 2, rotated: 6, style: RopeStyle::HalfSplit };
        let mut go = |heads, rope| norm_rope(ctx, (&mut x).into(), heads, None, Some(rope));
        assert!(go(Heads::dense(2, 1, 6), rope).is_ok());
        assert!(go(Heads::dense(3, 1, 6), rope).is_err());
        assert!(go(Heads::dense(2, 1, 4), rope).is_err());
        assert!(go(Heads::dense(usize::MAX, 2, 6), rope).is_err());
        assert!(go(Heads { row_stride: 3, ..Heads::dense(2, 1, 6) }, rope).is_err());
        assert!(go(Heads::dense(2, 1, 6), Rope { positions: 3, ..rope }).is_err());
    }
}
