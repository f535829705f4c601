//! One lane: the reference.

use half::bf16;

use super::Simd;

#[derive(Clone, Copy)]
pub(crate) struct F32x1(f32);

// Plain arithmetic: without a fused instruction `mul_add` would be a slow library call.
impl Simd for F32x1 {
    const LANES: usize = 1;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        F32x1(value)
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: valid by the trait's contract.
        F32x1(unsafe { from.read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: valid by the trait's contract.
        unsafe { to.write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: valid by the trait's contract.
        F32x1(unsafe { from.read_unaligned() }.to_f32())
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16) {
        // SAFETY: valid by the trait's contract.
        unsafe { to.write_unaligned(bf16::from_f32(self.0)) }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(from: *const bf16) -> (Self, Self) {
        // SAFETY: valid by the trait's contract.
        unsafe { (Self::load_bf16(from), Self::load_bf16(from.add(1))) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        F32x1(self.0 + other.0)
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        F32x1(self.0 - other.0)
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        F32x1(self.0 * other.0)
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        F32x1(self.0 / other.0)
    }
    #[inline(always)]
    unsafe fn fma(self, by: Self, plus: Self) -> Self {
        F32x1(self.0 * by.0 + plus.0)
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        if self.0 > other.0 { self } else { other }
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        if self.0 < other.0 { self } else { other }
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        F32x1(self.0.abs())
    }
    #[inline(always)]
    unsafe fn with_sign_of(self, sign: Self) -> Self {
        F32x1(self.0.copysign(sign.0))
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        F32x1(self.0.round_ties_even())
    }
    #[inline(always)]
    unsafe fn exp2_of_integer(self) -> Self {
        F32x1(f32::from_bits(((self.0 as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        self.0
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        self.0
    }
}
