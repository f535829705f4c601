//! Nodes over the demo model, and pictures to give them.

#![allow(dead_code, clippy::unwrap_used)] // each test file uses its own part; panics are failed tests

use engine_device::{DevicePolicy, Machine, Settings};
use engine_graph::{AssetRef, Execution, Graph, Limits, RunError, RunOutcome, validate};
use engine_nodes::{AssetError, AssetSource, ModelLibrary, Nodes, NodesConfig};
use gen_core::Image;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// Pictures by name: `gradient-WxH`, and `half-WxH`, a mask that is white on its right half.
pub struct Pictures;

impl Pictures {
    pub fn make(name: &str) -> Option<Image> {
        let (kind, size) = name.split_once('-')?;
        let (width, height) = size.split_once('x')?;
        let (width, height): (u32, u32) = (width.parse().ok()?, height.parse().ok()?);
        let pixel = |x: u32, y: u32| match kind {
            "gradient" => Some([(x * 255 / width) as u8, (y * 255 / height) as u8, 128]),
            "half" => Some([if x >= width / 2 { 255 } else { 0 }; 3]),
            _ => None,
        };
        let places = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
        let pixels = places.map(|(x, y)| pixel(x, y)).collect::<Option<Vec<_>>>()?;
        Image::new(width, height, pixels.concat()).ok()
    }
}

impl AssetSource for Pictures {
    fn image(&self, reference: &AssetRef) -> Result<Arc<Image>, AssetError> {
        match reference {
            AssetRef::Id(name) => Self::make(name).map(Arc::new),
            _ => None,
        }
        .ok_or_else(|| AssetError("no such asset".into()))
    }

    fn content_hash(&self, reference: &AssetRef) -> Result<String, AssetError> {
        Ok(format!("{reference:?}"))
    }
}

/// Nodes in f32, so that the golden renders are met.
pub fn nodes(models: &Path) -> Nodes {
    Nodes::new(NodesConfig {
        providers: Arc::new(z_image::provider_registry().unwrap()),
        text: Arc::new(candle_llm::provider_registry().unwrap()),
        policy: DevicePolicy::new(Machine::host(false), Settings::default()).unwrap(),
        library: Arc::new(ModelLibrary::new(models, Vec::new())),
        assets: Arc::new(Pictures),
        sampler: Arc::new(sampling::InlineSampler),
    })
    .unwrap()
}

/// Runs a graph for its last node.
pub fn run_graph(nodes: &Nodes, graph: &Value) -> Result<RunOutcome, RunError> {
    let target = graph["nodes"].as_array().unwrap().last().unwrap()["id"].as_str().unwrap().to_owned();
    let graph = Graph::from_value(graph, &Limits::default()).unwrap();
    let graph = validate(&graph, &nodes.registry(), &target).unwrap();
    Execution::new(nodes.runners()).run(&graph)
}

pub fn picture(outcome: &RunOutcome) -> Arc<Image> {
    outcome.target.get("image").unwrap().downcast::<Image>().unwrap()
}
