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

/// An adapter file and its weight.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterSpec {
    /// The safetensors file.
    pub path: PathBuf,
    /// Multiplier on the adapter's change; 1 is as trained.
    pub scale: f32,
    /// The kind of factorisation.
    pub kind: crate::AdapterKind,
}

/// How to load a model.
#[derive(Debug, Clone)]
pub struct LoadSpec {
    /// The model's own files.
    pub source: WeightsSource,
    /// Quantization of the big weights.
    pub quant: Option<Quant>,
    /// Number format; `None` is the best one for the device.
    pub precision: Option<Precision>,
    /// Staging of components.
    pub offload: OffloadPolicy,
    /// Control model.
    pub control: Option<WeightsSource>,
    /// Further control models.
    pub extra_controls: Vec<WeightsSource>,
    /// Picture-prompt adapter.
    pub ip_adapter: Option<WeightsSource>,
    /// Adapters, applied in order.
    pub adapters: Vec<AdapterSpec>,
    /// Components from elsewhere, by role.
    pub components: Vec<(Role, WeightsSource)>,
}

impl LoadSpec {
    /// Loads `source` with every default.
    pub fn new(source: WeightsSource) -> Self {
        Self {
            source,
            quant: None,
            precision: None,
            offload: OffloadPolicy::default(),
            control: None,
            extra_controls: Vec::new(),
            ip_adapter: None,
            adapters: Vec::new(),
            components: Vec::new(),
        }
    }

    /// Quantizes the big weights while they load.
    pub fn with_quant(mut self, quant: Quant) -> Self {
        self.quant = Some(quant);
        self
    }

    /// Sets the number format.
    pub fn with_precision(mut self, precision: Precision) -> Self {
        self.precision = Some(precision);
        self
    }

    /// Sets how components are staged.
    pub fn with_offload_policy(mut self, offload: OffloadPolicy) -> Self {
        self.offload = offload;
        self
    }

    /// Adds the control model.
    pub fn with_control(mut self, source: WeightsSource) -> Self {
        self.control = Some(source);
        self
    }

    /// Adds a further control model.
    pub fn with_extra_control(mut self, source: WeightsSource) -> Self {
        self.extra_controls.push(source);
        self
    }

    /// Adds a picture-prompt adapter.
    pub fn with_ip_adapter(mut self, source: WeightsSource) -> Self {
        self.ip_adapter = Some(source);
        self
    }

    /// Replaces the list of adapters.
    pub fn with_adapters(mut self, adapters: Vec<AdapterSpec>) -> Self {
        self.adapters = adapters;
        self
    }

    /// Takes a component from elsewhere than the model's own folder.
    pub fn with_component(mut self, role: Role, source: WeightsSource) -> Self {
        self.components.retain(|(r, _)| *r != role);
        self.components.push((role, source));
        self
    }

    /// The source given for `role` with [`Self::with_component`].
    pub fn component(&self, role: Role) -> Option<&WeightsSource> {
        self.components.iter().find(|(r, _)| *r == role).map(|(_, source)| source)
    }
}

/// Resident size of one component, counted from headers as the weights will be held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentFootprint {
    /// The component.
    pub role: Role,
    /// Number of parameters.
    pub parameters: u64,
    /// Bytes that stay in memory, after dequantization, pruning and casting.
    pub bytes: u64,
    /// The part of `bytes` that quantization can shrink: the matrices of repeated blocks.
    pub quantizable_bytes: u64,
}

/// Resident size of a model, component by component.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Footprint {
    /// The components.
    pub components: Vec<ComponentFootprint>,
}

impl Footprint {
    /// Bytes of all components together.
    pub fn total(&self) -> u64 {
        self.components.iter().map(|c| c.bytes).sum()
    }

    /// Bytes of one component, 0 if the model has none of that role.
    pub fn bytes(&self, role: Role) -> u64 {
        self.components.iter().filter(|c| c.role == role).map(|c| c.bytes).sum()
    }
}
