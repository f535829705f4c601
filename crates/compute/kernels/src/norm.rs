//! RMS and layer norm over rows, fused with the modulation that diffusion transformers put behind them.

use crate::ctx::Ctx;
use crate::error::{KernelError, Result, exact, product};
use crate::pool::SharedMut;
use crate::simd::{Element, Kernel, Simd, dispatch};
use crate::values::{Values, ValuesMut};

/// Which statistics are taken out of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps)`.
    Rms,
    /// `(x - mean) / sqrt(variance + eps)`.
    Layer,
}

/// `y = (norm(x) * weight + bias) * (1 + scale) + shift`, each part optional.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// The statistics.
    pub kind: NormKind,
    /// Added to the mean square or the variance.
    pub eps: f32,
    /// One factor a column.
    pub weight: Option<&'a [f32]>,
    /// One summand a column.
    pub bias: Option<&'a [f32]>,
    /// Scale and shift by groups of rows.
    pub modulation: Option<Modulation<'a>>,
}

/// Scale and shift of adaptive norms, each `(groups, dim)` and shared by consecutive rows (a sample's tokens).
#[derive(Debug, Clone, Copy)]
pub struct Modulation<'a> {
    /// Multiplies by `1 + scale`.
    pub scale: Option<&'a [f32]>,
    /// Added after that.
    pub shift: Option<&'a [f32]>,
    /// Rows of a group.
    pub rows: usize,
}

impl<'a> Norm<'a> {
    /// RMS norm without weights.
    pub fn rms(eps: f32) -> Self {
        Norm { kind: NormKind::Rms, eps, weight: None, bias: None, modulation: None }
    }

    /// Layer norm without weights.
    pub fn layer(eps: f32) -> Self {
        Norm { kind: NormKind::Layer, ..Norm::rms(eps) }
    }

    /// With one factor a column.
    pub fn weight(self, weight: &'a [f32]) -> Self {
        Norm { weight: Some(weight), ..self }
    }

    /// With one summand a column.
    pub fn bias(self, bias: &'a [f32]) -> Self {
        Norm { bias: Some(bias), ..self }
    }

    /// With scale and shift.
    pub fn modulation(self, modulation: Modulation<'a>) -> Self {
        Norm { modulation: Some(modulation), ..self }
    }

    /// Normalises every row of `x`, `(rows, dim)`, into `out` of the same shape.
    pub fn forward(&self, ctx: &Ctx, x: Values<'_>, dim: usize, out: ValuesMut<'_>) -> Result<()> {
        exact("out", x.len(), out.len())?;
        let rows = self.check(x.len(), dim)?;
        match (x, out) {
            (Values::F32(x), ValuesMut::F32(y)) => self.run(ctx, x.as_ptr(), y, rows, dim),
            (Values::F32(x), ValuesMut::Bf16(y)) => self.run(ctx, x.as_ptr(), y, rows, dim),
            (Values::Bf16(x), ValuesMut::F32(y)) => self.run(ctx, x.as_ptr(), y, rows, dim),
            (Values::Bf16(x), ValuesMut::Bf16(y)) => self.run(ctx, x.as_ptr(), y, rows, dim),
        }
        Ok(())
    }

    /// Normalises every row of `x`, `(rows, dim)`, where it is.
    pub fn in_place(&self, ctx: &Ctx, x: ValuesMut<'_>, dim: usize) -> Result<()> {
        let rows = self.check(x.len(), dim)?;
        match x {
            ValuesMut::F32(x) => self.run(ctx, x.as_ptr(), x, rows, dim),
            ValuesMut::Bf16(x) => self.run(ctx, x.as_ptr(), x, rows, dim),
        }
        Ok(())
    }

    /// The number of rows, if all sizes fit.
    fn check(&self, len: usize, dim: usize) -> Result<usize> {
        let rows = len.checked_div(dim).unwrap_or(0);
        exact("x", rows * dim, len)?;
        self.weight.map_or(Ok(()), |weight| exact("weight", dim, weight.len()))?;
        self.bias.map_or(Ok(()), |bias| exact("bias", dim, bias.len()))?;
        if let Some(modulation) = self.modulation {
            if modulation.rows == 0 {
                return Err(KernelError::Shape { what: "modulation", why: "it must cover at least one row".into() });
            }
            let need = product("modulation", &[rows.div_ceil(modulation.rows), dim])?;
            modulation.scale.map_or(Ok(()), |scale| exact("scale", need, scale.len()))?;
            modulation.shift.map_or(Ok(()), |shift| exact("shift", need, shift.len()))?;
        }
        Ok(rows)
    }

    /// `x` may be where `out` is.
    fn run<I: Element, O: Element>(&self, ctx: &Ctx, x: *const I, out: &mut [O], rows: usize, dim: usize) {
        let out = SharedMut::new(out);
        // The pieces read other rows than the ones written elsewhere, even where x and out are the same memory.
        let x = SharedMut::from_ptr(x.cast_mut());
        ctx.pool().run_ranges(rows, (1 << 14) / dim.max(1), |range| {
            for row in range {
                // SAFETY: sizes are checked, and each row is one piece's own.
                unsafe {
                    let (x, out) = (x.get().add(row * dim).cast_const(), out.get().add(row * dim));
                    dispatch(ctx.isa(), Row { norm: self, x, out, row, dim });
                }
            }
        });
    }
}

struct Row<'a, I, O> {
    norm: &'a Norm<'a>,
    x: *const I,
    out: *mut O,
    row: usize,
    dim: usize,
}

impl<I: Element, O: Element> Kernel for Row<'_, I, O> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        let Row { norm, x, out, row, dim } = self;
        // SAFETY: all pointers are valid for `dim` elements; see `Norm::check`.
        unsafe {
            let mean = match norm.kind {
                NormKind::Rms => 0.0,
                NormKind::Layer => sum::<V, I>(x, dim, |x| x) / dim as f32,
            };
            let center = V::splat(mean);
            let square = sum::<V, I>(x, dim, |x| {
                let x = x.sub(center);
                x.mul(x)
            });
            let factor = V::splat(1.0 / (square / dim as f32 + norm.eps).sqrt());
            let optional = |values: Option<&[f32]>, at: usize, len: usize, default: f32| match values {
                Some(values) => <f32 as Element>::load::<V>(values.as_ptr().add(at), len),
                None => V::splat(default),
            };
            for c in (0..dim).step_by(V::LANES) {
                let len = V::LANES.min(dim - c);
                // A lane past the end holds no centre, so it must not be stored; `store` takes care.
                let mut y = I::load::<V>(x.add(c), len).sub(center).mul(factor);
                if norm.weight.is_some() || norm.bias.is_some() {
                    y = y.fma(optional(norm.weight, c, len, 1.0), optional(norm.bias, c, len, 0.0));
                }
                if let Some(modulation) = norm.modulation {
                    let at = row / modulation.rows * dim + c;
                    let scale = optional(modulation.scale, at, len, 0.0).add(V::splat(1.0));
                    y = y.fma(scale, optional(modulation.shift, at, len, 0.0));
                }
                O::store(y, out.add(c), len);
            }
        }
    }
}

/// Sum of `f` over a row, in four interleaved partial sums.
///
/// # Safety
/// `x` is valid for `len` elements.
#[inline(always)]
pub(crate) unsafe fn sum<V: Simd, I: Element>(x: *const I, len: usize, f: impl Fn(V) -> V) -> f32 {
    // SAFETY: by the contract above.
    unsafe {
        let mut parts = [V::splat(0.0); 4];
        let mut at = 0;
        while at + 4 * V::LANES <= len {
            for (i, part) in parts.iter_mut().enumerate() {
                *part = part.add(f(I::load::<V>(x.add(at + i * V::LANES), V::LANES)));
            }
            at += 4 * V::LANES;
        }
        while at + V::LANES <= len {
            parts[0] = parts[0].add(f(I::load::<V>(x.add(at), V::LANES)));
            at += V::LANES;
        }
        let mut total = parts[0].add(parts[1]).add(parts[2].add(parts[3])).sum();
        if at < len {
            // Lanes past the end must not count, whatever `f` makes of zero.
            let mut lanes = [0f32; crate::simd::MAX_LANES];
            f(I::load::<V>(x.add(at), len - at)).store(lanes.as_mut_ptr());
            total += lanes[..len - at].iter().sum::<f32>();
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::ctx::test_support::{contexts, noise, relative_error};

    #[test]
    fn norms_agree_with_f64_on_every_instruction_set() {
        for ctx in contexts() {
            for (rows, dim) in [(0, 8), (1, 1), (3, 7), (5, 64), (7, 133), (2, 3840)] {
                let x: Vec<f32> = noise(rows * dim, 1).iter().map(|x| x * 3.0 + 5.0).collect();
                let (w, b) = (noise(dim, 2), noise(dim, 3));
                let groups = rows.div_ceil(2);
                let (scale, shift) = (noise(groups * dim, 4), noise(groups * dim, 5));
                let modulation = Modulation { scale: Some(&scale), shift: Some(&shift), rows: 2 };
                for kind in [NormKind::Rms, NormKind::Layer] {
                    let norm = Norm { kind, eps: 1e-5, weight: Some(&w), bias: Some(&b), modulation: Some(modulation) };
                    let want: Vec<f32> = (0..rows * dim)
                        .map(|i| {
                            let row: Vec<f64> = x[i / dim * dim..][..dim].iter().map(|&x| f64::from(x)).collect();
                            let mean = if kind == NormKind::Rms { 0.0 } else { row.iter().sum::<f64>() / dim as f64 };
                            let var = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / dim as f64;
                            let y = (row[i % dim] - mean) / (var + 1e-5).sqrt();
                            let at = i / dim / 2 * dim + i % dim;
                            let y = y * f64::from(w[i % dim]) + f64::from(b[i % dim]);
                            (y * (1.0 + f64::from(scale[at])) + f64::from(shift[at])) as f32
                        })
                        .collect();
                    let mut y = vec![0f32; rows * dim];
                    norm.forward(&ctx, (&x).into(), dim, (&mut y).into()).unwrap();
                    let error = relative_error(&y, &want);
                    assert!(error < 5e-6, "{} {kind:?} {rows}x{dim}: {error}", ctx.isa());
                    let mut own = x.clone();
                    norm.in_place(&ctx, (&mut own).into(), dim).unwrap();
                    assert_eq!(own, y);
                    let mut half = vec![bf16::ZERO; rows * dim];
                    norm.forward(&ctx, (&x).into(), dim, (&mut half).into()).unwrap();
                    assert!(half.iter().zip(&y).all(|(half, y)| *half == bf16::from_f32(*y)));
                }
            }
        }
    }

    #[test]
    fn wrong_sizes_are_typed_errors() {
        let ctx = Ctx::global();
        let mut x = vec![0f32; 7];
        assert!(Norm::rms(1e-6).in_place(ctx, (&mut x).into(), 2).is_err());
        assert!(Norm::rms(1e-6).in_place(ctx, (&mut x).into(), 0).is_err());
        assert!(Norm::rms(1e-6).weight(&[1.0; 6]).in_place(ctx, (&mut x).into(), 7).is_err());
        let none = Modulation { scale: Some(&[0.0; 7]), shift: None, rows: 0 };
        assert!(Norm::layer(1e-6).modulation(none).in_place(ctx, (&mut x).into(), 7).is_err());
    }
}
