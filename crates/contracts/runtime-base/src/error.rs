//! The one error type of the runtime.

use crate::Role;
use std::path::PathBuf;

/// What can go wrong between a request and its result. Every message says what to change.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// The model or build cannot do what was asked, whatever the values.
    #[error("{0}")]
    Unsupported(String),
    /// A field of a request has a value that cannot be used.
    #[error("{field}: {message}")]
    InvalidRequest {
        /// Name of the request's field.
        field: &'static str,
        /// What is wrong with it and what would be right.
        message: String,
    },
    /// A component that the model needs was not found where the load specification says.
    #[error("the {role} is missing: {message}")]
    MissingComponent {
        /// Which component.
        role: Role,
        /// Where it was looked for.
        path: PathBuf,
        /// What was looked for, and what to do.
        message: String,
    },
    /// A weights file cannot be used.
    #[error("{}: {message}{}", .file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default(),
        .tensor.as_ref().map(|t| format!(" (tensor {t})")).unwrap_or_default())]
    Weights {
        /// The file.
        file: PathBuf,
        /// The tensor, when one is at fault.
        tensor: Option<String>,
        /// What is wrong with it.
        message: String,
    },
    /// The caller cancelled.
    #[error("cancelled")]
    Cancelled,
    /// A computation gave NaN or infinity; the result is discarded rather than shown.
    #[error("the {stage} gave values that are not finite{}", .step.map(|s| format!(" at step {s}")).unwrap_or_default())]
    NonFinite {
        /// Stage of the pipeline: `text encoder`, `denoiser`, `vae`.
        stage: &'static str,
        /// 1-based step of the sampler, inside the denoise loop.
        step: Option<usize>,
    },
    /// The work does not fit in memory.
    #[error("this needs {} MB and {} MB are available", .needed / 1_000_000, .available / 1_000_000)]
    OutOfMemory {
        /// Bytes needed.
        needed: u64,
        /// Bytes available.
        available: u64,
    },
    /// The tensor backend failed.
    #[error("compute backend: {0}")]
    Backend(String),
}

/// Result with the contract's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Shorthand for [`Error::InvalidRequest`].
    pub fn invalid(field: &'static str, message: impl Into<String>) -> Self {
        Self::InvalidRequest { field, message: message.into() }
    }

    /// Shorthand for [`Error::Weights`] about a whole file.
    pub fn weights(file: impl Into<PathBuf>, message: impl Into<String>) -> Self {
        Self::Weights { file: file.into(), tensor: None, message: message.into() }
    }

    /// Shorthand for [`Error::Weights`] about one tensor of a file.
    pub fn tensor(file: impl Into<PathBuf>, tensor: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Weights { file: file.into(), tensor: Some(tensor.into()), message: message.into() }
    }
}
