//! Errors of a forward pass.

use runtime_base::Error as Contract;

/// Why a forward pass ended early: the tensor backend failed, or something that the contract has a word for (cancelled,
/// not finite).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The tensor backend failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// Everything else.
    #[error(transparent)]
    Contract(#[from] Contract),
}

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<Error> for Contract {
    fn from(error: Error) -> Self {
        match error {
            Error::Tensor(error) => Contract::Backend(error.to_string()),
            Error::Contract(error) => error,
        }
    }
}

/// A tensor error in the contract's words, for code that returns the contract's [`Result`](runtime_base::Result).
pub fn backend(error: impl std::fmt::Display) -> Contract {
    Contract::Backend(error.to_string())
}
