//! Progress reports and cancellation.

use crate::Latents;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a running request is doing. A phase is reported before its slow work starts.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// Weights are being read; the text names the component.
    Loading(&'static str),
    /// Prompts and reference pictures are being encoded.
    Encoding,
    /// A sampler step has ended (or, with `current` 0, the first one starts).
    Step {
        /// Steps done.
        current: usize,
        /// Steps in all, over every image of the request.
        total: usize,
        /// The model's current estimate of the clean latents, when previews were asked for.
        preview: Option<Arc<Latents>>,
    },
    /// Latents are being decoded.
    Decoding,
}

/// A flag that asks running work to stop; clones share it.
#[derive(Debug, Clone, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// A flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the work to stop. It can't be taken back.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the work should stop.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// [`crate::Error::Cancelled`] when the flag is set; for use with `?` between layers.
    pub fn check(&self) -> crate::Result<()> {
        if self.is_cancelled() { Err(crate::Error::Cancelled) } else { Ok(()) }
    }
}
