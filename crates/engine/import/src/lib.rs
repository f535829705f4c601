//! Reads ComfyUI workflows into graphs of the engine's primitives.
//!
//! Both formats are read: the API format (an object of nodes by id) and the UI format (lists of nodes and links, with
//! subgraphs). [`import`] maps what the saved or shown pictures need; whatever has no counterpart is listed node by
//! node. A graph comes out when everything before at least one picture could be mapped.
//!
//! | ComfyUI | here |
//! | --- | --- |
//! | CheckpointLoaderSimple | `load/diffusion-model`, `load/text-encoder` and `load/vae` of one file |
//! | UNETLoader, DiffusionModelLoader, UnetLoaderGGUF | `load/diffusion-model` |
//! | CLIPLoader, CLIPLoaderGGUF | `load/text-encoder` |
//! | VAELoader | `load/vae` |
//! | CLIPTextEncode | `encode/text`, with an `input/text` for a text of its own |
//! | EmptyLatentImage, EmptySD3LatentImage, EmptyFlux2LatentImage | `latent/empty` |
//! | KSampler; KSamplerAdvanced over all steps | `sample` |
//! | ModelSamplingAuraFlow, ModelSamplingSD3 | the `shift` of `sample` |
//! | ConditioningZeroOut | nothing, as the negative of a sampler at cfg 1 |
//! | VAEDecode, VAEEncode, tiled or not | `vae/decode`, `vae/encode` |
//! | LoadImage | `input/image`, whose asset has to be supplied |
//! | SaveImage, PreviewImage | targets |
//! | PrimitiveString and other constants | `input/text`, or the value where it is used |
//! | Reroute, bypassed nodes, subgraphs | what they stand for |
//!
//! Guidance and denoise have other conventions in ComfyUI; they are converted so that the arithmetic is the same.
//!
//! ```
//! let workflow = br#"{
//!   "1": {"class_type": "UNETLoader", "inputs": {"unet_name": "z.safetensors", "weight_dtype": "default"}},
//!   "2": {"class_type": "CLIPLoader", "inputs": {"clip_name": "qwen.safetensors", "type": "lumina2"}},
//!   "3": {"class_type": "VAELoader", "inputs": {"vae_name": "ae.safetensors"}},
//!   "4": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["2", 0], "text": "a red apple"}},
//!   "5": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 1024, "height": 1024, "batch_size": 1}},
//!   "6": {"class_type": "KSampler", "inputs": {"model": ["1", 0], "positive": ["4", 0], "negative": ["4", 0],
//!     "latent_image": ["5", 0], "seed": 7, "steps": 8, "cfg": 1.0, "sampler_name": "euler", "scheduler": "simple",
//!     "denoise": 1.0}},
//!   "7": {"class_type": "VAEDecode", "inputs": {"samples": ["6", 0], "vae": ["3", 0]}},
//!   "8": {"class_type": "SaveImage", "inputs": {"images": ["7", 0], "filename_prefix": "apple"}}}"#;
//! let imported = engine_import::import(workflow)?;
//! assert_eq!(imported.targets, ["7"]);
//! assert_eq!(imported.graph.nodes.len(), 8);
//! assert!(imported.unmapped.is_empty());
//! # Ok::<(), engine_import::ImportError>(())
//! ```

mod api;
mod classes;
mod error;
mod map;
mod sampling;
mod ui;
mod workflow;

use engine_graph::{Graph, json};
use serde_json::Value;

pub use error::{ImportError, Unmapped};

/// What a workflow became.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// What the targets need, sources before readers. Ids are those of the workflow; a node that was added beside one
    /// has its id with a suffix.
    pub graph: Graph,
    /// Ids of the nodes whose pictures the workflow saves or shows: at least one, each once, saved ones first.
    pub targets: Vec<String>,
    /// What isn't the same as in ComfyUI or has to be supplied, for the user to read.
    pub notes: Vec<String>,
    /// Nodes without a counterpart, in the order of the workflow. None of the targets needs them.
    pub unmapped: Vec<Unmapped>,
}

/// Reads a ComfyUI workflow, in API or UI format, from JSON text.
///
/// # Errors
/// The bytes aren't a workflow, it passes a limit, or no picture of it could be mapped; then the error has every node
/// that is in the way ([`ImportError::unmapped`]).
pub fn import(json: &[u8]) -> Result<Imported, ImportError> {
    const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
    let document = json::parse(json.strip_prefix(BYTE_ORDER_MARK).unwrap_or(json))?;
    let Value::Object(fields) = &document else {
        let found = json::type_name(&document);
        return Err(ImportError::shape(format!("a ComfyUI workflow is an object of nodes, not {found}")));
    };
    let mut workflow = match (fields.get("nodes"), fields.get("prompt")) {
        (Some(Value::Array(_)), _) => ui::read(fields)?,
        // The body that is posted to ComfyUI holds the workflow as its prompt.
        (_, Some(Value::Object(prompt))) if !prompt.contains_key("class_type") => api::read(prompt)?,
        _ if fields.is_empty() => return Err(ImportError::shape("the workflow is empty")),
        _ => api::read(fields)?,
    };
    map::map(&mut workflow)
}
