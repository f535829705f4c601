//! The one error type of this crate.

use crate::isa::Isa;

/// Why a kernel refused to run. Nothing was written when one of these is returned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// The instruction set was asked for by name, but this CPU (or its kernel) does not offer it.
    #[error("this machine can't run {wanted} kernels; the best it offers is {best}")]
    IsaUnavailable {
        /// What was asked for.
        wanted: Isa,
        /// What could be used instead.
        best: Isa,
    },
    /// The name is none of the known ones.
    #[error("unknown instruction set {0:?}; use amx, avx512bf16, avx512, avx2, neon or scalar")]
    UnknownIsa(String),
    /// A slice is shorter or longer than the shape says.
    #[error("{what} holds {got} elements, but its shape needs {need}")]
    Length {
        /// Which argument.
        what: &'static str,
        /// Elements that the shape implies.
        need: usize,
        /// Elements that were passed.
        got: usize,
    },
    /// A product of sizes does not fit in memory.
    #[error("{what}: the sizes overflow")]
    Overflow {
        /// Which argument.
        what: &'static str,
    },
    /// Sizes that contradict each other, or that the kernel does not serve.
    #[error("{what}: {why}")]
    Shape {
        /// Which operation.
        what: &'static str,
        /// What is wrong, and what would be right.
        why: String,
    },
}

/// Result of a kernel call.
pub type Result<T, E = KernelError> = std::result::Result<T, E>;

/// `a * b * …`, or the overflow as an error.
pub(crate) fn product(what: &'static str, sizes: &[usize]) -> Result<usize> {
    // A size is kept below isize::MAX / 8 so that byte counts and padded sizes can't overflow either.
    sizes
        .iter()
        .try_fold(1usize, |total, &size| total.checked_mul(size))
        .filter(|&total| total <= isize::MAX as usize / 8)
        .ok_or(KernelError::Overflow { what })
}

/// Checks that a slice of `got` elements is exactly as long as the shape says.
pub(crate) fn exact(what: &'static str, need: usize, got: usize) -> Result<()> {
    if need == got { Ok(()) } else { Err(KernelError::Length { what, need, got }) }
}
