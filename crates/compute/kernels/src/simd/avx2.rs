//! Eight lanes of AVX2 with FMA.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{Kernel, Simd};

#[derive(Clone, Copy)]
pub(crate) struct F32x8(__m256);

/// # Safety
/// The CPU has these features, and the kernel's own contract holds.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: by the contract above.
    unsafe { kernel.run::<F32x8>() }
}

// SAFETY (every block): the features are there and the pointers valid by the trait's contract.
#[rustfmt::skip]
impl Simd for F32x8 {
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self { F32x8(unsafe { _mm256_set1_ps(value) }) }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self { F32x8(unsafe { _mm256_loadu_ps(from) }) }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) { unsafe { _mm256_storeu_ps(to, self.0) } }
    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            F32x8(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)))
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16) {
        unsafe {
            let bits = _mm256_castps_si256(self.0);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0));
            let chosen = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0_0000), nan);
            let high = _mm256_srli_epi32::<16>(chosen);
            let packed = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256::<1>(high));
            _mm_storeu_si128(to.cast(), packed);
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(from: *const bf16) -> (Self, Self) {
        unsafe {
            let pairs = _mm256_loadu_si256(from.cast());
            let second = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            (F32x8(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs))), F32x8(_mm256_castsi256_ps(second)))
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self { F32x8(unsafe { _mm256_add_ps(self.0, other.0) }) }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self { F32x8(unsafe { _mm256_sub_ps(self.0, other.0) }) }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self { F32x8(unsafe { _mm256_mul_ps(self.0, other.0) }) }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self { F32x8(unsafe { _mm256_div_ps(self.0, other.0) }) }
    #[inline(always)]
    unsafe fn fma(self, by: Self, plus: Self) -> Self { F32x8(unsafe { _mm256_fmadd_ps(self.0, by.0, plus.0) }) }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self { F32x8(unsafe { _mm256_max_ps(self.0, other.0) }) }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self { F32x8(unsafe { _mm256_min_ps(self.0, other.0) }) }
    #[inline(always)]
    unsafe fn abs(self) -> Self { F32x8(unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), self.0) }) }
    #[inline(always)]
    unsafe fn with_sign_of(self, sign: Self) -> Self {
        unsafe {
            let mask = _mm256_set1_ps(-0.0);
            F32x8(_mm256_or_ps(_mm256_andnot_ps(mask, self.0), _mm256_and_ps(mask, sign.0)))
        }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        F32x8(unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0) })
    }
    #[inline(always)]
    unsafe fn exp2_of_integer(self) -> Self {
        unsafe {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(self.0), _mm256_set1_epi32(127));
            F32x8(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    unsafe fn prefetch(from: *const f32) { unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) } }
    #[inline(always)]
    unsafe fn load_twice(from: *const f32) -> Self {
        unsafe {
            let half = _mm256_castps128_ps256(_mm_loadu_ps(from));
            F32x8(_mm256_permutevar8x32_ps(half, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)))
        }
    }
    #[inline(always)]
    unsafe fn swap_neighbours(self) -> Self { F32x8(unsafe { _mm256_permute_ps::<0b10_11_00_01>(self.0) }) }
    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        F32x8(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) })
    }
    #[inline(always)]
    unsafe fn from_sum_i32(from: *const i32, plus: *const i32) -> Self {
        unsafe {
            let sum = _mm256_add_epi32(_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(plus.cast()));
            F32x8(_mm256_cvtepi32_ps(sum))
        }
    }
}
