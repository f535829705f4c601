//! The typed node graph: schema, descriptors, validation, order, cache keys and executor.
//!
//! A [`Graph`] is what a client writes. [`validate`] checks it against a [`NodeRegistry`] and keeps what a target
//! needs as a [`ValidGraph`]; an [`Execution`] runs that over a [`RunnerSet`]. The crate knows node types only by
//! their descriptors, media and engine handles only as opaque values, and neither HTTP nor tensors.
//!
//! ```
//! use engine_graph::*;
//!
//! struct Text;
//! impl NodeRunner for Text {
//!     fn run(&self, context: &NodeContext<'_>) -> Result<Outputs, NodeError> {
//!         Ok(Outputs::of("text", Value::text(context.params().text("text")?)))
//!     }
//! }
//!
//! let registry = NodeRegistry::new([NodeDescriptor::new("input/text", "Text")
//!     .output(PortDescriptor::output("text", "Text", PortKind::Text))
//!     .param(ParamDescriptor::textarea("text", "Text", ""))])?;
//! let graph = br#"{"schemaVersion": 1, "nodes": [
//!     {"id": "p1", "type": "input/text", "params": {"text": "a red apple"}}]}"#;
//! let graph = Graph::from_slice(graph, &Limits::default())?;
//! let graph = validate(&graph, &registry, "p1")?;
//! let runners = RunnerSet::new().with("input/text", Text);
//! let outcome = Execution::new(&runners).run(&graph)?;
//! assert_eq!(outcome.target.get("text").and_then(Value::as_text), Some("a red apple"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod descriptor;
mod error;
mod executor;
pub mod json;
mod key;
mod kind;
mod order;
mod params;
mod registry;
mod runner;
mod schema;
mod validate;
mod value;

pub use descriptor::{NodeDescriptor, ParamDescriptor, ParamKind, PortDescriptor, SelectOption, Widget};
pub use error::{GraphError, GraphRule};
pub use executor::{
    DrawnSeed, Event, Execution, Ignore, NodeCache, NodeOutput, Observer, OutputSink, RunError, RunOutcome, random_seed,
};
pub use key::{ContentHasher, Contents, NoContents, NodeKey, node_keys};
pub use kind::{MediaKind, PortKind};
pub use params::{AssetRef, ParamValue, Params, Seed};
pub use registry::{NodeRegistry, RegistryError};
pub use runner::{NodeContext, NodeError, NodeRunner, Phase, Progress, RunnerSet};
pub use schema::{Edge, Graph, Input, Limits, MAX_SCHEMA_VERSION, MIN_SCHEMA_VERSION, Node};
pub use validate::{ValidGraph, ValidInput, ValidNode, ValidSource, validate};
pub use value::{Inputs, Outputs, Value};
