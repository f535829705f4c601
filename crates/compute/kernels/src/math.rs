//! Elementary functions over vectors, and the activations made of them.

use crate::simd::Simd;

// SAFETY of every function here: the CPU has `V`'s instruction set, as for `Simd`.

/// `e^x` to about 2 units in the last place; 0 far below, large but finite far above, NaN for NaN.
///
/// Cody-Waite reduction by ln 2 and the Cephes polynomial (Moshier, `expf`).
#[inline(always)]
pub(crate) unsafe fn exp<V: Simd>(x: V) -> V {
    unsafe {
        // Operand order matters: with NaN in the second place it is kept.
        let x = V::splat(88.0).min(V::splat(-87.3).max(x));
        let n = x.mul(V::splat(std::f32::consts::LOG2_E)).round();
        let r = n.fma(V::splat(-0.693_359_4), x);
        let r = n.fma(V::splat(2.121_944_4e-4), r);
        let mut p = V::splat(1.987_569_1e-4);
        p = p.fma(r, V::splat(1.398_199_9e-3));
        p = p.fma(r, V::splat(8.333_452e-3));
        p = p.fma(r, V::splat(4.166_579_6e-2));
        p = p.fma(r, V::splat(1.666_666_5e-1));
        p = p.fma(r, V::splat(0.5));
        let p = p.fma(r.mul(r), r.add(V::splat(1.0)));
        p.mul(n.exp2_of_integer())
    }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) unsafe fn sigmoid<V: Simd>(x: V) -> V {
    unsafe { V::splat(1.0).div(V::splat(1.0).add(exp(V::splat(0.0).sub(x)))) }
}

/// `x * sigmoid(x)`.
#[inline(always)]
pub(crate) unsafe fn silu<V: Simd>(x: V) -> V {
    unsafe { x.div(V::splat(1.0).add(exp(V::splat(0.0).sub(x)))) }
}

/// GELU in its tanh form: `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`, which is `x sigmoid(2 …)`.
#[inline(always)]
pub(crate) unsafe fn gelu_tanh<V: Simd>(x: V) -> V {
    unsafe {
        let inner = x.mul(x).fma(V::splat(0.044_715), V::splat(1.0)).mul(x);
        x.mul(sigmoid(inner.mul(V::splat(std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::SQRT_2))))
    }
}

/// GELU with the error function: `x/2 (1 + erf(x / sqrt 2))`.
#[inline(always)]
pub(crate) unsafe fn gelu_erf<V: Simd>(x: V) -> V {
    unsafe {
        let half = x.mul(V::splat(0.5));
        half.fma(erf(x.mul(V::splat(std::f32::consts::FRAC_1_SQRT_2))), half)
    }
}

/// `x * sigmoid(1.702 x)`.
#[inline(always)]
pub(crate) unsafe fn quick_gelu<V: Simd>(x: V) -> V {
    unsafe { x.mul(sigmoid(x.mul(V::splat(1.702)))) }
}

/// The error function to 1.5e-7 (Abramowitz and Stegun 7.1.26).
#[inline(always)]
unsafe fn erf<V: Simd>(x: V) -> V {
    unsafe {
        let a = x.abs();
        let t = V::splat(1.0).div(a.fma(V::splat(0.327_591_1), V::splat(1.0)));
        let mut p = V::splat(1.061_405_4);
        p = p.fma(t, V::splat(-1.453_152));
        p = p.fma(t, V::splat(1.421_413_7));
        p = p.fma(t, V::splat(-0.284_496_74));
        p = p.fma(t, V::splat(0.254_829_6));
        let tail = p.mul(t).mul(exp(V::splat(0.0).sub(a.mul(a))));
        V::splat(1.0).sub(tail).with_sign_of(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::simd::{Kernel, dispatch};

    struct Map<'a>(&'a [f32], &'a mut [[f32; 4]]);

    impl Kernel for Map<'_> {
        type Output = ();
        #[inline(always)]
        unsafe fn run<V: Simd>(self) {
            for (x, y) in self.0.iter().zip(self.1) {
                let mut lanes = [0f32; 16];
                for (slot, f) in y.iter_mut().zip([exp::<V>, silu::<V>, gelu_tanh::<V>, gelu_erf::<V>]) {
                    unsafe { f(V::splat(*x)).store(lanes.as_mut_ptr()) };
                    *slot = lanes[V::LANES - 1];
                }
            }
        }
    }

    /// erf by its series and continued fraction, good to 1e-12.
    fn erf64(x: f64) -> f64 {
        if x.abs() > 4.0 {
            return x.signum();
        }
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= -x * x / n as f64;
            sum += term / (2 * n + 1) as f64;
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    }

    #[test]
    fn functions_agree_with_f64_on_every_instruction_set() {
        let inputs: Vec<f32> =
            (-1200..=1200).map(|i| i as f32 / 37.0).chain([-1e30, 1e30, -0.0, 80.0, -80.0]).collect();
        for &isa in Isa::available() {
            let mut outputs = vec![[0f32; 4]; inputs.len()];
            unsafe { dispatch(isa, Map(&inputs, &mut outputs)) };
            for (&x, got) in inputs.iter().zip(&outputs) {
                let wide = f64::from(x);
                let tanh = (0.797_884_560_802_865_4 * (wide + 0.044_715 * wide.powi(3))).tanh();
                let want = [
                    wide.clamp(-87.3, 88.0).exp(),
                    wide / (1.0 + (-wide).exp()),
                    wide / 2.0 * (1.0 + tanh),
                    wide / 2.0 * (1.0 + erf64(wide / std::f64::consts::SQRT_2)),
                ];
                for (which, (&got, want)) in got.iter().zip(want).enumerate() {
                    let error = (f64::from(got) - want).abs() / want.abs().max(1.0);
                    assert!(error < 1e-6, "{isa} function {which} of {x}: {got} instead of {want}");
                }
            }
        }
    }

    #[test]
    fn nan_stays_nan() {
        for &isa in Isa::available() {
            let mut outputs = [[0f32; 4]];
            unsafe { dispatch(isa, Map(&[f32::NAN], &mut outputs)) };
            assert!(outputs[0].iter().all(|y| y.is_nan()), "{isa}: {outputs:?}");
        }
    }
}
