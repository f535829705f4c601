//! Which instructions this machine runs, and which of them the kernels shall use.
//!
//! The choice is made once a process, from the CPU and from `INLINE_CPU_ISA`; tests name one through
//! [`Ctx::new`](crate::Ctx::new).

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use crate::error::{KernelError, Result};

/// An instruction set that kernels are written for. On x86-64 each one includes those listed after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isa {
    /// bf16 (and int8) tiles on top of AVX512-BF16: Intel Sapphire Rapids and later.
    AmxBf16,
    /// AVX-512 with bf16 dot products: Cooper Lake, Zen 4 and later.
    Avx512Bf16,
    /// AVX-512 F, BW, DQ and VL, arithmetic in f32.
    Avx512,
    /// AVX2 with FMA and F16C, arithmetic in f32.
    Avx2,
    /// Arm's 128-bit vectors, arithmetic in f32.
    Neon,
    /// Plain Rust, the reference that the others are tested against.
    Scalar,
}

impl Isa {
    /// Every instruction set, best first.
    pub const ALL: [Isa; 6] = [Isa::AmxBf16, Isa::Avx512Bf16, Isa::Avx512, Isa::Avx2, Isa::Neon, Isa::Scalar];

    /// The name used by `INLINE_CPU_ISA` and in logs.
    pub fn name(self) -> &'static str {
        match self {
            Isa::AmxBf16 => "amx",
            Isa::Avx512Bf16 => "avx512bf16",
            Isa::Avx512 => "avx512",
            Isa::Avx2 => "avx2",
            Isa::Neon => "neon",
            Isa::Scalar => "scalar",
        }
    }

    /// The best instruction set that this machine offers.
    pub fn best() -> Isa {
        Isa::available()[0]
    }

    /// What this machine offers, best first; never empty.
    pub fn available() -> &'static [Isa] {
        static AVAILABLE: OnceLock<Vec<Isa>> = OnceLock::new();
        AVAILABLE.get_or_init(|| Isa::ALL.into_iter().filter(|isa| isa.detected()).collect())
    }

    /// Whether this machine offers it.
    pub fn is_available(self) -> bool {
        Isa::available().contains(&self)
    }

    /// Itself where this machine offers it, and a typed error where not.
    pub fn require(self) -> Result<Isa> {
        if self.is_available() {
            Ok(self)
        } else {
            Err(KernelError::IsaUnavailable { wanted: self, best: Isa::best() })
        }
    }

    /// The instruction set of this process: what `INLINE_CPU_ISA` names, or the best one.
    ///
    /// A name that is unknown or that this machine lacks is reported by a warning, and the best one is used.
    pub fn active() -> Isa {
        static ACTIVE: OnceLock<Isa> = OnceLock::new();
        *ACTIVE.get_or_init(|| match std::env::var("INLINE_CPU_ISA") {
            Ok(name) if !name.trim().is_empty() => Isa::choose(&name).unwrap_or_else(|error| {
                tracing::warn!(target: "kernels", "INLINE_CPU_ISA={name}: {error}; using {}", Isa::best());
                Isa::best()
            }),
            _ => Isa::best(),
        })
    }

    /// The named instruction set if this machine offers it.
    pub fn choose(name: &str) -> Result<Isa> {
        name.parse::<Isa>()?.require()
    }

    #[cfg(target_arch = "x86_64")]
    fn detected(self) -> bool {
        let avx2 =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        let bf16 = avx512 && is_x86_feature_detected!("avx512bf16");
        match self {
            Isa::AmxBf16 => bf16 && amx::usable(),
            Isa::Avx512Bf16 => bf16,
            Isa::Avx512 => avx512,
            Isa::Avx2 => avx2,
            Isa::Neon => false,
            Isa::Scalar => true,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn detected(self) -> bool {
        match self {
            Isa::Scalar => true,
            // Every aarch64 CPU has it.
            Isa::Neon => cfg!(target_arch = "aarch64"),
            _ => false,
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = KernelError;

    fn from_str(name: &str) -> Result<Isa> {
        let wanted = name.trim().to_ascii_lowercase();
        Isa::ALL.into_iter().find(|isa| isa.name() == wanted).ok_or_else(|| KernelError::UnknownIsa(name.to_string()))
    }
}

/// Whether 8-bit dot products of 512 bits (`vpdpbusd`) can be used together with the AVX-512 kernels.
pub(crate) fn has_avx512_vnni() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        is_x86_feature_detected!("avx512vnni")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Whether the tile unit multiplies int8 as well as bf16.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_amx_int8() -> bool {
    amx::int8()
}

#[cfg(target_arch = "x86_64")]
mod amx {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    /// `ARCH_REQ_XCOMP_PERM`: ask the kernel for a dynamically enabled part of the register state.
    const REQUEST_PERMISSION: libc::c_long = 0x1023;
    /// XSAVE component of the tile data registers.
    const TILE_DATA: libc::c_long = 18;
    /// Tile configuration and tile data in XCR0.
    const XCR0_TILES: u64 = 0b11 << 17;

    fn cpuid7_edx() -> u32 {
        if __cpuid(0).eax < 7 { 0 } else { __cpuid_count(7, 0).edx }
    }

    pub(super) fn int8() -> bool {
        cpuid7_edx() & (1 << 25) != 0
    }

    /// Whether the CPU has bf16 tiles, the kernel saves them, and this process was granted them.
    pub(super) fn usable() -> bool {
        let edx = cpuid7_edx();
        let (bf16, tile) = (edx & (1 << 22) != 0, edx & (1 << 24) != 0);
        let osxsave = __cpuid(1).ecx & (1 << 27) != 0;
        if !(bf16 && tile && osxsave) {
            return false;
        }
        // SAFETY: OSXSAVE is set, so xgetbv exists and XCR0 may be read.
        let xcr0 = unsafe { xcr0() };
        if xcr0 & XCR0_TILES != XCR0_TILES {
            return false;
        }
        let granted = request();
        if !granted {
            tracing::warn!(target: "kernels", "the kernel refused the AMX tile registers; using AVX-512 instead");
        }
        granted
    }

    #[target_feature(enable = "xsave")]
    unsafe fn xcr0() -> u64 {
        // SAFETY: the caller checked OSXSAVE.
        unsafe { _xgetbv(0) }
    }

    #[cfg(target_os = "linux")]
    fn request() -> bool {
        // SAFETY: arch_prctl with this code only changes a permission bit of the process.
        unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0 }
    }

    #[cfg(not(target_os = "linux"))]
    fn request() -> bool {
        let _ = (REQUEST_PERMISSION, TILE_DATA);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_ones_are_refused() {
        for isa in Isa::ALL {
            assert_eq!(isa.name().parse(), Ok(isa));
        }
        assert_eq!(" AVX2 ".parse(), Ok(Isa::Avx2));
        assert_eq!(Isa::choose("sse9"), Err(KernelError::UnknownIsa("sse9".into())));
    }

    #[test]
    fn scalar_is_always_there_and_a_lacking_one_is_a_typed_error() {
        assert!(Isa::Scalar.is_available());
        assert_eq!(Isa::available().last(), Some(&Isa::Scalar));
        let lacking = if cfg!(target_arch = "x86_64") { Isa::Neon } else { Isa::Avx2 };
        assert_eq!(lacking.require(), Err(KernelError::IsaUnavailable { wanted: lacking, best: Isa::best() }));
    }
}
