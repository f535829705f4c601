//! Checkpoint files: inspect, identify, key plans and streaming loads.
//!
//! A [`Checkpoint`] is one logical set of tensors, from a safetensors or GGUF file, the shards of a folder, or bytes of the program; opening
//! it reads headers only. A [`KeyPlan`] says how its names map to the canonical ones that models are written with, and a
//! [`Weights`] is the view that a model is built from: tensors by canonical name, cast to the compute type as they are read.

mod checkpoint;
mod dtype;
mod gguf;
mod identify;
mod plan;
pub mod plans;
mod root;
mod view;

pub use checkpoint::{Checkpoint, TensorInfo, load_config};
pub use dtype::StoredDtype;
pub use gguf::{GgufMetadata, GgufValue};
pub use identify::{Identity, Layout, describe_unknown, identify, plan_for, ships_quantized};
pub use plan::{KeyPlan, Resolved, Rule, Source};
pub use root::{CATEGORIES, ModelFile, ModelsRoot, Scan, look_into, source_stamp};
pub use runtime_base::{Error, Result};
pub use view::{RowBlock, Weights};
