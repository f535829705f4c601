//! Sound, and what a generator gives back.

use crate::Image;

/// Interleaved `f32` samples in `[-1, 1]`.
#[derive(Debug, Clone, PartialEq)]
pub struct AudioTrack {
    /// Samples per second and channel.
    pub sample_rate: u32,
    /// Number of interleaved channels.
    pub channels: u16,
    /// The samples.
    pub samples: Vec<f32>,
}

/// What a [`crate::Generator`] gives back.
#[derive(Debug, Clone, PartialEq)]
pub enum GenerationOutput {
    /// `count` pictures; number `i` was made with `seed + i`.
    Images(Vec<Image>),
    /// One clip.
    Video {
        /// Frames of one size.
        frames: Vec<Image>,
        /// Frames per second.
        fps: f32,
        /// Sound, when the model makes it.
        audio: Option<AudioTrack>,
    },
    /// One sound.
    Audio(AudioTrack),
}
