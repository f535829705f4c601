//! How to load a language model.

use crate::{CancelFlag, Precision, Quant, WeightsSource};
use std::path::PathBuf;

/// Where a snapshot is and how to hold it.
#[derive(Debug, Clone)]
pub struct LoadSpec {
    /// The snapshot.
    pub source: WeightsSource,
    /// Quantization while loading.
    pub quant: Option<Quant>,
    /// Number format; `None` is the best one for the device.
    pub precision: Option<Precision>,
    /// Stops the load when set.
    pub cancel: CancelFlag,
}

impl LoadSpec {
    /// The snapshot at `path`, as it is.
    pub fn dense(path: impl Into<PathBuf>) -> Self {
        Self { source: WeightsSource::from_path(path), quant: None, precision: None, cancel: CancelFlag::new() }
    }

    /// The snapshot at `path`, quantized while loading.
    pub fn quantized(path: impl Into<PathBuf>, quant: Quant) -> Self {
        Self { quant: Some(quant), ..Self::dense(path) }
    }

    /// Sets the number format.
    #[must_use]
    pub fn with_precision(mut self, precision: Precision) -> Self {
        self.precision = Some(precision);
        self
    }

    /// Sets the flag that stops the load.
    #[must_use]
    pub fn with_cancel(mut self, cancel: &CancelFlag) -> Self {
        self.cancel = cancel.clone();
        self
    }
}
