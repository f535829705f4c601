//! How to load a model, and what it takes in memory.

use runtime_base::{OffloadPolicy, Precision, Quant, Role, WeightsSource};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

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
    /// The one component that is wanted; `None` for all of them.
    pub only: Option<Role>,
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
            only: None,
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

    /// Opens the component of `role` alone (a text encoder with its tokenizer); the others need not be there.
    pub fn with_only(mut self, role: Role) -> Self {
        self.only = Some(role);
        self
    }

    /// Whether the component of `role` is wanted.
    pub fn wants(&self, role: Role) -> bool {
        self.only.is_none_or(|only| only == role)
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
