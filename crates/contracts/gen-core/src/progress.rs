//! Progress reports.

use crate::Latents;
use std::sync::Arc;

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
