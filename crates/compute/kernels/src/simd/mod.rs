//! Vectors of f32, written once per instruction set, so that a kernel is written once for all of them.
//!
//! A kernel is a [`Kernel`]: its `run` is generic over the vector and always inlined, and [`dispatch`] calls it inside a
//! function that is compiled for the instruction set at hand.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::F32x16;

use crate::isa::Isa;

/// Most lanes that any vector has.
pub(crate) const MAX_LANES: usize = 16;

/// A vector of f32.
///
/// # Safety
/// Every method may only be called on a CPU that has the instruction set; pointers must be valid for `LANES` elements
/// (for the number named, in the `_part` ones) and need no alignment.
pub(crate) trait Simd: Copy {
    const LANES: usize;

    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn load_bf16(from: *const bf16) -> Self;
    /// Rounds to nearest even; a NaN stays one.
    unsafe fn store_bf16(self, to: *mut bf16);
    /// `LANES` pairs of bf16: the first ones of the pairs, and the second ones.
    unsafe fn load_bf16_pairs(from: *const bf16) -> (Self, Self);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    /// `self * by + plus`.
    unsafe fn fma(self, by: Self, plus: Self) -> Self;
    /// The larger one; `other` where `self` is NaN.
    unsafe fn max(self, other: Self) -> Self;
    /// The smaller one; `other` where `self` is NaN.
    unsafe fn min(self, other: Self) -> Self;
    unsafe fn abs(self) -> Self;
    /// Its own magnitude with the sign of `sign`.
    unsafe fn with_sign_of(self, sign: Self) -> Self;
    /// To the nearest integer, ties to even.
    unsafe fn round(self) -> Self;
    /// `2^self` for integers from -126 to 127.
    unsafe fn exp2_of_integer(self) -> Self;
    /// Sum of the lanes, in a fixed order.
    unsafe fn sum(self) -> f32;
    /// The largest lane.
    unsafe fn largest(self) -> f32;

    /// Asks for a line to be brought into L1; any address will do.
    #[inline(always)]
    unsafe fn prefetch(_from: *const f32) {}

    /// Half as many floats, each in two neighbouring lanes.
    #[inline(always)]
    unsafe fn load_twice(from: *const f32) -> Self {
        // SAFETY: valid by the trait's contract, here and below.
        unsafe { from_lanes(|i| from.add(i / 2).read_unaligned()) }
    }

    /// Lanes exchanged with their neighbours: 1, 0, 3, 2, …; not for a single lane.
    #[inline(always)]
    unsafe fn swap_neighbours(self) -> Self {
        let mut lanes = [0f32; MAX_LANES];
        // SAFETY: as above.
        unsafe {
            self.store(lanes.as_mut_ptr());
            from_lanes(|i| lanes[i ^ 1])
        }
    }

    /// 16-bit floats, widened.
    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        // SAFETY: as above.
        unsafe { from_lanes(|i| from.add(i).read_unaligned().to_f32()) }
    }

    /// Sums of two integers as floats.
    #[inline(always)]
    unsafe fn from_sum_i32(from: *const i32, plus: *const i32) -> Self {
        // SAFETY: as above.
        unsafe { from_lanes(|i| (*from.add(i) + *plus.add(i)) as f32) }
    }

    /// Integers from -128 to 127.
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8) {
        let mut lanes = [0f32; MAX_LANES];
        // SAFETY: as above.
        unsafe {
            self.store(lanes.as_mut_ptr());
            (0..Self::LANES).for_each(|i| to.add(i).write(lanes[i] as i8));
        }
    }

    /// Stores a line that will not be read soon, where the CPU can do so without reading it first. Aligned to 64 bytes;
    /// to be followed by [`publish`].
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        // SAFETY: as above.
        unsafe { self.store(to) }
    }

    /// The same for two vectors, one after the other.
    #[inline(always)]
    unsafe fn stream_bf16(first: Self, second: Self, to: *mut bf16) {
        // SAFETY: as above.
        unsafe {
            first.store_bf16(to);
            second.store_bf16(to.add(Self::LANES));
        }
    }

    /// The first `len` elements, zeros after them.
    #[inline(always)]
    unsafe fn load_part(from: *const f32, len: usize) -> Self {
        let mut lanes = [0f32; MAX_LANES];
        // SAFETY: `len <= LANES <= MAX_LANES`, valid by the trait's contract.
        unsafe {
            std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), len);
            Self::load(lanes.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, len: usize) {
        let mut lanes = [0f32; MAX_LANES];
        // SAFETY: as above.
        unsafe {
            self.store(lanes.as_mut_ptr());
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, len);
        }
    }

    #[inline(always)]
    unsafe fn load_bf16_part(from: *const bf16, len: usize) -> Self {
        let mut lanes = [bf16::ZERO; MAX_LANES];
        // SAFETY: as above.
        unsafe {
            std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), len);
            Self::load_bf16(lanes.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn store_bf16_part(self, to: *mut bf16, len: usize) {
        let mut lanes = [bf16::ZERO; MAX_LANES];
        // SAFETY: as above.
        unsafe {
            self.store_bf16(lanes.as_mut_ptr());
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, len);
        }
    }
}

/// A vector made lane by lane.
///
/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
unsafe fn from_lanes<V: Simd>(lane: impl Fn(usize) -> f32) -> V {
    let mut lanes = [0f32; MAX_LANES];
    lanes.iter_mut().enumerate().take(V::LANES).for_each(|(i, value)| *value = lane(i));
    // SAFETY: by the contract above.
    unsafe { V::load(lanes.as_ptr()) }
}

/// An element that vectors are read from and written to.
pub(crate) trait Element: bytemuck::Pod + Send + Sync {
    /// # Safety
    /// As for [`Simd`]; `len` is at most `LANES`.
    unsafe fn load<V: Simd>(from: *const Self, len: usize) -> V;
    /// # Safety
    /// As for [`Simd`]; `len` is at most `LANES`.
    unsafe fn store<V: Simd>(value: V, to: *mut Self, len: usize);
    /// # Safety
    /// As for [`Simd::stream`], for twice `LANES`.
    unsafe fn stream_two<V: Simd>(first: V, second: V, to: *mut Self);
    fn to_f32(self) -> f32;
}

/// Makes what was streamed visible to other threads.
pub(crate) fn publish() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has it, and it touches no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    }
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<V: Simd>(from: *const f32, len: usize) -> V {
        // SAFETY: the caller's contract.
        unsafe { if len == V::LANES { V::load(from) } else { V::load_part(from, len) } }
    }

    #[inline(always)]
    unsafe fn store<V: Simd>(value: V, to: *mut f32, len: usize) {
        // SAFETY: the caller's contract.
        unsafe { if len == V::LANES { value.store(to) } else { value.store_part(to, len) } }
    }

    #[inline(always)]
    unsafe fn stream_two<V: Simd>(first: V, second: V, to: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe {
            first.stream(to);
            second.stream(to.add(V::LANES));
        }
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
}

impl Element for bf16 {
    #[inline(always)]
    unsafe fn load<V: Simd>(from: *const bf16, len: usize) -> V {
        // SAFETY: the caller's contract.
        unsafe { if len == V::LANES { V::load_bf16(from) } else { V::load_bf16_part(from, len) } }
    }

    #[inline(always)]
    unsafe fn store<V: Simd>(value: V, to: *mut bf16, len: usize) {
        // SAFETY: the caller's contract.
        unsafe { if len == V::LANES { value.store_bf16(to) } else { value.store_bf16_part(to, len) } }
    }

    #[inline(always)]
    unsafe fn stream_two<V: Simd>(first: V, second: V, to: *mut bf16) {
        // SAFETY: the caller's contract.
        unsafe { V::stream_bf16(first, second, to) }
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }
}

/// A piece of work that is generic over the vector.
pub(crate) trait Kernel {
    type Output;

    /// Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    /// The CPU has `V`'s instruction set, and what the kernel's fields point to is valid.
    unsafe fn run<V: Simd>(self) -> Self::Output;
}

/// Runs a kernel with the vectors of `isa`.
///
/// # Safety
/// What the kernel's fields point to is valid. (`isa` is available: a `Ctx` can't be made with another one.)
#[inline]
pub(crate) unsafe fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    // SAFETY: `isa` is available on this CPU, and the rest is the caller's contract.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::AmxBf16 | Isa::Avx512Bf16 => avx512::run_bf16(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::run(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::run(kernel),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => neon::run(kernel),
            _ => kernel.run::<scalar::F32x1>(),
        }
    }
}
