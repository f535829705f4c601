//! Sixteen lanes of AVX-512.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{Kernel, Simd};

/// With `BF16` the CPU rounds to bf16 by itself (subnormal numbers to zero).
#[derive(Clone, Copy)]
pub(crate) struct F32x16<const BF16: bool>(pub(crate) __m512);

/// # Safety
/// The CPU has these features, and the kernel's own contract holds.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: by the contract above.
    unsafe { kernel.run::<F32x16<false>>() }
}

/// # Safety
/// As for `run`, with AVX512-BF16 as well.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn run_bf16<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: by the contract above.
    unsafe { kernel.run::<F32x16<true>>() }
}

// SAFETY (every block): the features are there and the pointers valid by the trait's contract.
#[rustfmt::skip]
impl<const BF16: bool> Simd for F32x16<BF16> {
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self { F32x16(unsafe { _mm512_set1_ps(value) }) }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self { F32x16(unsafe { _mm512_loadu_ps(from) }) }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) { unsafe { _mm512_storeu_ps(to, self.0) } }
    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            F32x16(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16) {
        unsafe {
            if BF16 {
                let rounded = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(self.0));
                return _mm256_storeu_si256(to.cast(), rounded);
            }
            let bits = _mm512_castps_si512(self.0);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
            let high = _mm512_srli_epi32::<16>(_mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0_0000)));
            _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(high));
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(from: *const bf16) -> (Self, Self) {
        unsafe {
            let pairs = _mm512_loadu_si512(from.cast());
            let second = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            (F32x16(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs))), F32x16(_mm512_castsi512_ps(second)))
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self { F32x16(unsafe { _mm512_add_ps(self.0, other.0) }) }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self { F32x16(unsafe { _mm512_sub_ps(self.0, other.0) }) }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self { F32x16(unsafe { _mm512_mul_ps(self.0, other.0) }) }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self { F32x16(unsafe { _mm512_div_ps(self.0, other.0) }) }
    #[inline(always)]
    unsafe fn fma(self, by: Self, plus: Self) -> Self { F32x16(unsafe { _mm512_fmadd_ps(self.0, by.0, plus.0) }) }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self { F32x16(unsafe { _mm512_max_ps(self.0, other.0) }) }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self { F32x16(unsafe { _mm512_min_ps(self.0, other.0) }) }
    #[inline(always)]
    unsafe fn abs(self) -> Self { F32x16(unsafe { _mm512_abs_ps(self.0) }) }
    #[inline(always)]
    unsafe fn with_sign_of(self, sign: Self) -> Self {
        unsafe {
            let mask = _mm512_set1_ps(-0.0);
            F32x16(_mm512_or_ps(_mm512_andnot_ps(mask, self.0), _mm512_and_ps(mask, sign.0)))
        }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        F32x16(unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0) })
    }
    #[inline(always)]
    unsafe fn exp2_of_integer(self) -> Self {
        unsafe {
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(self.0), _mm512_set1_epi32(127));
            F32x16(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent)))
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 { unsafe { _mm512_reduce_add_ps(self.0) } }
    #[inline(always)]
    unsafe fn largest(self) -> f32 { unsafe { _mm512_reduce_max_ps(self.0) } }

    #[inline(always)]
    unsafe fn prefetch(from: *const f32) { unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) } }
    #[inline(always)]
    unsafe fn load_twice(from: *const f32) -> Self {
        unsafe {
            let half = _mm512_castps256_ps512(_mm256_loadu_ps(from));
            let twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
            F32x16(_mm512_permutexvar_ps(twice, half))
        }
    }
    #[inline(always)]
    unsafe fn swap_neighbours(self) -> Self { F32x16(unsafe { _mm512_permute_ps::<0b10_11_00_01>(self.0) }) }
    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        F32x16(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
    }
    #[inline(always)]
    unsafe fn from_sum_i32(from: *const i32, plus: *const i32) -> Self {
        unsafe {
            let sum = _mm512_add_epi32(_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(plus.cast()));
            F32x16(_mm512_cvtepi32_ps(sum))
        }
    }
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8) {
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(self.0))) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) { unsafe { _mm512_stream_ps(to, self.0) } }
    #[inline(always)]
    unsafe fn stream_bf16(first: Self, second: Self, to: *mut bf16) {
        unsafe {
            let halves = if BF16 {
                std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(second.0, first.0))
            } else {
                let mut line = [bf16::ZERO; 32];
                first.store_bf16(line.as_mut_ptr());
                second.store_bf16(line.as_mut_ptr().add(16));
                _mm512_loadu_si512(line.as_ptr().cast())
            };
            _mm512_stream_si512(to.cast(), halves)
        }
    }

    #[inline(always)]
    unsafe fn load_part(from: *const f32, len: usize) -> Self {
        F32x16(unsafe { _mm512_maskz_loadu_ps(first(len), from) })
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, len: usize) {
        unsafe { _mm512_mask_storeu_ps(to, first(len), self.0) }
    }
}

/// A mask of the first `len` of sixteen lanes.
#[inline(always)]
fn first(len: usize) -> __mmask16 {
    ((1u32 << len) - 1) as __mmask16
}
