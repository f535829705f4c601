//! Activations, softmax, sums and conversions on their own, for where nothing is there to fuse them with.

use crate::ctx::Ctx;
use crate::error::{KernelError, Result, exact, product};
use crate::linear::{Activation, Gate};
use crate::math;
use crate::pool::SharedMut;
use crate::simd::{Element, Kernel, Simd, dispatch};
use crate::values::{Values, ValuesMut};

/// Elements of one piece of work.
const PIECE: usize = 1 << 14;

/// Applies an activation to every element, in place.
pub fn activate(ctx: &Ctx, x: ValuesMut<'_>, activation: Activation) {
    match x {
        ValuesMut::F32(x) => activate_all(ctx, x, activation),
        ValuesMut::Bf16(x) => activate_all(ctx, x, activation),
    }
}

fn activate_all<T: Element>(ctx: &Ctx, x: &mut [T], activation: Activation) {
    let (len, x) = (x.len(), SharedMut::new(x));
    ctx.pool().run_ranges(len, PIECE, |range| {
        // SAFETY: ranges lie apart, within the slice.
        unsafe { dispatch(ctx.isa(), Activate { x: x.part(range.start, range.len()), activation }) }
    });
}

struct Activate<'a, T> {
    x: &'a mut [T],
    activation: Activation,
}

impl<T: Element> Kernel for Activate<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        // SAFETY: `dispatch` chose vectors that the CPU has.
        unsafe {
            match self.activation {
                Activation::Identity => {}
                Activation::Silu => map::<V, T>(self.x, |x| math::silu(x)),
                Activation::GeluTanh => map::<V, T>(self.x, |x| math::gelu_tanh(x)),
                Activation::GeluErf => map::<V, T>(self.x, |x| math::gelu_erf(x)),
                Activation::QuickGelu => map::<V, T>(self.x, |x| math::quick_gelu(x)),
            }
        }
    }
}

/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
unsafe fn map<V: Simd, T: Element>(x: &mut [T], f: impl Fn(V) -> V) {
    for c in (0..x.len()).step_by(V::LANES) {
        let len = V::LANES.min(x.len() - c);
        // SAFETY: `len` elements are left.
        unsafe {
            let at = x.as_mut_ptr().add(c);
            T::store(f(T::load::<V>(at, len)), at, len);
        }
    }
}

/// Softmax of every row of `x`, `(rows, dim)`, in place. A row of only minus infinities becomes zeros.
pub fn softmax(ctx: &Ctx, x: ValuesMut<'_>, dim: usize) -> Result<()> {
    exact("x", x.len().checked_div(dim).unwrap_or(0) * dim, x.len())?;
    match x {
        ValuesMut::F32(x) => softmax_rows(ctx, x, dim),
        ValuesMut::Bf16(x) => softmax_rows(ctx, x, dim),
    }
    Ok(())
}

fn softmax_rows<T: Element>(ctx: &Ctx, x: &mut [T], dim: usize) {
    let (rows, x) = (x.len().checked_div(dim).unwrap_or(0), SharedMut::new(x));
    ctx.pool().run_ranges(rows, PIECE / dim.max(1), |range| {
        for row in range {
            // SAFETY: rows lie apart, within the slice.
            unsafe { dispatch(ctx.isa(), Softmax { x: x.part(row * dim, dim) }) }
        }
    });
}

struct Softmax<'a, T> {
    x: &'a mut [T],
}

impl<T: Element> Kernel for Softmax<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        let x = self.x;
        // SAFETY: every access is within the row.
        unsafe {
            let mut largest = V::splat(f32::NEG_INFINITY);
            let whole = x.len() / V::LANES * V::LANES;
            for c in (0..whole).step_by(V::LANES) {
                largest = largest.max(T::load::<V>(x.as_ptr().add(c), V::LANES));
            }
            let mut top = largest.largest();
            for c in whole..x.len() {
                top = top.max(T::to_f32(x[c]));
            }
            if top == f32::NEG_INFINITY {
                x.fill(T::zeroed());
                return;
            }
            let total = crate::norm::sum::<V, T>(x.as_ptr(), x.len(), |x| math::exp(x.sub(V::splat(top))));
            let factor = V::splat(1.0 / total);
            map::<V, T>(x, |x| math::exp(x.sub(V::splat(top))).mul(factor));
        }
    }
}

/// `out += gate * x`; the gate is one factor a column (of `dim`) and group of rows, or 1.
pub fn add(ctx: &Ctx, x: Values<'_>, gate: Option<Gate<'_>>, dim: usize, out: ValuesMut<'_>) -> Result<()> {
    exact("x", out.len(), x.len())?;
    let rows = x.len().checked_div(dim).unwrap_or(0);
    exact("x", rows * dim, x.len())?;
    if let Some(gate) = gate {
        if gate.rows == 0 {
            return Err(KernelError::Shape { what: "gate", why: "it must cover at least one row".into() });
        }
        exact("gate", product("gate", &[rows.div_ceil(gate.rows), dim])?, gate.values.len())?;
    }
    match (x, out) {
        (Values::F32(x), ValuesMut::F32(out)) => add_rows(ctx, x, gate, dim, out),
        (Values::F32(x), ValuesMut::Bf16(out)) => add_rows(ctx, x, gate, dim, out),
        (Values::Bf16(x), ValuesMut::F32(out)) => add_rows(ctx, x, gate, dim, out),
        (Values::Bf16(x), ValuesMut::Bf16(out)) => add_rows(ctx, x, gate, dim, out),
    }
    Ok(())
}

fn add_rows<I: Element, O: Element>(ctx: &Ctx, x: &[I], gate: Option<Gate<'_>>, dim: usize, out: &mut [O]) {
    let (rows, out) = (x.len().checked_div(dim).unwrap_or(0), SharedMut::new(out));
    ctx.pool().run_ranges(rows, PIECE / dim.max(1), |range| {
        for row in range {
            let gate = gate.map(|gate| &gate.values[row / gate.rows * dim..][..dim]);
            // SAFETY: rows lie apart, within the slice.
            unsafe { dispatch(ctx.isa(), Add { x: &x[row * dim..][..dim], gate, out: out.part(row * dim, dim) }) }
        }
    });
}

struct Add<'a, I, O> {
    x: &'a [I],
    gate: Option<&'a [f32]>,
    out: &'a mut [O],
}

impl<I: Element, O: Element> Kernel for Add<'_, I, O> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        for c in (0..self.x.len()).step_by(V::LANES) {
            let len = V::LANES.min(self.x.len() - c);
            // SAFETY: all slices are equally long, and `len` elements are left.
            unsafe {
                let x = I::load::<V>(self.x.as_ptr().add(c), len);
                let out = self.out.as_mut_ptr().add(c);
                let y = O::load::<V>(out, len);
                let y = match self.gate {
                    Some(gate) => x.fma(<f32 as Element>::load::<V>(gate.as_ptr().add(c), len), y),
                    None => x.add(y),
                };
                O::store(y, out, len);
            }
        }
    }
}

/// `out = factor * x`.
pub(crate) struct Scale<'a, I, O> {
    pub(crate) x: &'a [I],
    pub(crate) factor: f32,
    pub(crate) out: &'a mut [O],
}

impl<I: Element, O: Element> Kernel for Scale<'_, I, O> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        for c in (0..self.x.len().min(self.out.len())).step_by(V::LANES) {
            let len = V::LANES.min(self.x.len() - c);
            // SAFETY: `len` elements are left.
            unsafe {
                let x = I::load::<V>(self.x.as_ptr().add(c), len);
                O::store(x.mul(V::splat(self.factor)), self.out.as_mut_ptr().add(c), len);
            }
        }
    }
}

/// Copies between element types, rounding to nearest even.
pub fn convert(ctx: &Ctx, x: Values<'_>, out: ValuesMut<'_>) -> Result<()> {
    exact("out", x.len(), out.len())?;
    match (x, out) {
        (Values::F32(x), ValuesMut::F32(out)) => out.copy_from_slice(x),
        (Values::F32(x), ValuesMut::Bf16(out)) => convert_all(ctx, x, out),
        (Values::Bf16(x), ValuesMut::F32(out)) => convert_all(ctx, x, out),
        (Values::Bf16(x), ValuesMut::Bf16(out)) => out.copy_from_slice(x),
    }
    Ok(())
}

fn convert_all<I: Element, O: Element>(ctx: &Ctx, x: &[I], out: &mut [O]) {
    let (len, out) = (x.len(), SharedMut::new(out));
    ctx.pool().run_ranges(len, PIECE, |range| {
        // SAFETY: ranges lie apart, within the slice.
        let out = unsafe { out.part(range.start, range.len()) };
        // SAFETY: both slices are equally long.
        unsafe { dispatch(ctx.isa(), Convert { x: &x[range], out }) }
    });
}

struct Convert<'a, I, O> {
    x: &'a [I],
    out: &'a mut [O],
}

impl<I: Element, O: Element> Kernel for Convert<'_, I, O> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        for c in (0..self.x.len()).step_by(V::LANES) {
            let len = V::LANES.min(self.x.len() - c);
            // SAFETY: both slices are equally long, and `len` elements are left.
            unsafe { O::store(I::load::<V>(self.x.as_ptr().add(c), len), self.out.as_mut_ptr().add(c), len) }
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::ctx::test_support::{contexts, noise, relative_error};

    #[test]
    fn softmax_agrees_with_f64_and_empty_rows_become_zero() {
        for ctx in contexts() {
            for (rows, dim) in [(0, 4), (1, 1), (3, 15), (4, 16), (2, 100), (2, 1000)] {
                let x: Vec<f32> = noise(rows * dim, 1).iter().map(|x| x * 30.0).collect();
                let want: Vec<f32> = (0..rows * dim)
                    .map(|i| {
                        let row = &x[i / dim * dim..][..dim];
                        let top = row.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x));
                        let exp = |x: f32| (f64::from(x) - f64::from(top)).exp();
                        (exp(x[i]) / row.iter().map(|&x| exp(x)).sum::<f64>()) as f32
                    })
                    .collect();
                let mut y = x.clone();
                softmax(&ctx, (&mut y).into(), dim).unwrap();
                assert!(relative_error(&y, &want) < 1e-5, "{} {rows}x{dim}", ctx.isa());
            }
            let mut masked = vec![f32::NEG_INFINITY; 20];
            softmax(&ctx, (&mut masked).into(), 20).unwrap();
            assert_eq!(masked, [0f32; 20]);
            assert!(softmax(&ctx, (&mut masked).into(), 3).is_err());
        }
    }

    #[test]
    fn sums_conversions_and_activations_agree_with_plain_arithmetic() {
        for ctx in contexts() {
            let (x, y, gate) = (noise(5 * 37, 1), noise(5 * 37, 2), noise(3 * 37, 3));
            let mut got = y.clone();
            add(&ctx, (&x).into(), Some(Gate { values: &gate, rows: 2 }), 37, (&mut got).into()).unwrap();
            let want: Vec<f32> = (0..5 * 37).map(|i| y[i] + gate[i / 37 / 2 * 37 + i % 37] * x[i]).collect();
            assert!(relative_error(&got, &want) < 1e-6);
            assert!(add(&ctx, (&x).into(), Some(Gate { values: &gate, rows: 0 }), 37, (&mut got).into()).is_err());

            let mut half = vec![bf16::ZERO; x.len()];
            convert(&ctx, (&x).into(), (&mut half).into()).unwrap();
            assert!(half.iter().zip(&x).all(|(half, x)| *half == bf16::from_f32(*x)));
            let mut back = vec![0f32; x.len()];
            convert(&ctx, (&half).into(), (&mut back).into()).unwrap();
            assert!(back.iter().zip(&half).all(|(back, half)| *back == half.to_f32()));

            let mut silu = x.clone();
            activate(&ctx, (&mut silu).into(), Activation::Silu);
            let want: Vec<f32> = x.iter().map(|x| x / (1.0 + (-x).exp())).collect();
            assert!(relative_error(&silu, &want) < 1e-6);
        }
    }
}
