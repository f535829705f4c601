//! Four lanes of Arm's vectors.

use std::arch::aarch64::*;

use half::bf16;

use super::{Kernel, Simd};

#[derive(Clone, Copy)]
pub(crate) struct F32x4(float32x4_t);

/// # Safety
/// The kernel's own contract holds.
#[target_feature(enable = "neon")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: by the contract above; every aarch64 CPU has these vectors.
    unsafe { kernel.run::<F32x4>() }
}

// SAFETY (every block): the pointers are valid by the trait's contract.
#[rustfmt::skip]
impl Simd for F32x4 {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self { F32x4(unsafe { vdupq_n_f32(value) }) }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self { F32x4(unsafe { vld1q_f32(from) }) }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) { unsafe { vst1q_f32(to, self.0) } }
    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        unsafe { F32x4(vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from.cast())))) }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16) {
        unsafe {
            let bits = vreinterpretq_u32_f32(self.0);
            let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
            let rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
            let number = vceqq_f32(self.0, self.0);
            let chosen = vbslq_u32(number, rounded, vdupq_n_u32(0x7fc0_0000));
            vst1_u16(to.cast(), vshrn_n_u32::<16>(chosen));
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(from: *const bf16) -> (Self, Self) {
        unsafe {
            let pairs = vreinterpretq_u32_u16(vld1q_u16(from.cast()));
            let second = vandq_u32(pairs, vdupq_n_u32(0xffff_0000));
            (F32x4(vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs))), F32x4(vreinterpretq_f32_u32(second)))
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self { F32x4(unsafe { vaddq_f32(self.0, other.0) }) }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self { F32x4(unsafe { vsubq_f32(self.0, other.0) }) }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self { F32x4(unsafe { vmulq_f32(self.0, other.0) }) }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self { F32x4(unsafe { vdivq_f32(self.0, other.0) }) }
    #[inline(always)]
    unsafe fn fma(self, by: Self, plus: Self) -> Self { F32x4(unsafe { vfmaq_f32(plus.0, self.0, by.0) }) }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        F32x4(unsafe { vbslq_f32(vcgtq_f32(self.0, other.0), self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        F32x4(unsafe { vbslq_f32(vcltq_f32(self.0, other.0), self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self { F32x4(unsafe { vabsq_f32(self.0) }) }
    #[inline(always)]
    unsafe fn with_sign_of(self, sign: Self) -> Self {
        F32x4(unsafe { vbslq_f32(vdupq_n_u32(0x8000_0000), sign.0, self.0) })
    }
    #[inline(always)]
    unsafe fn round(self) -> Self { F32x4(unsafe { vrndnq_f32(self.0) }) }
    #[inline(always)]
    unsafe fn exp2_of_integer(self) -> Self {
        unsafe {
            let exponent = vaddq_s32(vcvtq_s32_f32(self.0), vdupq_n_s32(127));
            F32x4(vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent)))
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 { unsafe { vaddvq_f32(self.0) } }
    #[inline(always)]
    unsafe fn largest(self) -> f32 { unsafe { vmaxvq_f32(self.0) } }
}
