//! Where weights come from and how they are to be held.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// A local file or folder. Inference never downloads and never derives a cache location.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum WeightsSource {
    /// A folder: a diffusers snapshot or a sharded component.
    Dir(PathBuf),
    /// A single file.
    File(PathBuf),
    /// Bytes that are part of the program, as named files of a folder.
    Embedded(&'static [(&'static str, &'static [u8])]),
}

impl WeightsSource {
    /// A folder or a file, by looking at the path.
    pub fn from_path(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        if path.is_dir() { Self::Dir(path) } else { Self::File(path) }
    }

    /// The path, for messages; embedded weights have a name in angle brackets.
    pub fn path(&self) -> &Path {
        match self {
            Self::Dir(path) | Self::File(path) => path,
            Self::Embedded(_) => Path::new("<embedded>"),
        }
    }
}

/// Quantization to apply to the big weights while they load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Quant {
    /// 4-bit integers in blocks.
    Q4,
    /// 8-bit integers, one scale a channel.
    Q8,
    /// 4-bit normal floats in blocks.
    Nf4,
    /// NVIDIA's 4-bit floats.
    Nvfp4,
}

/// Number format of the computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floats.
    F32,
    /// 16-bit brain floats.
    Bf16,
    /// 16-bit half floats.
    F16,
}

impl Precision {
    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        })
    }
}

/// Whether the components of a model live together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OffloadPolicy {
    /// All components stay in memory.
    #[default]
    Resident,
    /// One component at a time: encode, free the encoder, sample, free the denoiser, decode.
    Sequential,
}

/// The part that a component plays in a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Text to token ids.
    Tokenizer,
    /// Prompts to conditioning.
    TextEncoder,
    /// The diffusion network.
    Denoiser,
    /// Pictures to latents and back.
    Vae,
    /// ControlNet and the like.
    Control,
    /// Picture-prompt adapters.
    IpAdapter,
    /// Sigma schedule settings.
    Scheduler,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tokenizer => "tokenizer",
            Self::TextEncoder => "text encoder",
            Self::Denoiser => "diffusion model",
            Self::Vae => "vae",
            Self::Control => "control model",
            Self::IpAdapter => "picture-prompt adapter",
            Self::Scheduler => "scheduler",
        })
    }
}
