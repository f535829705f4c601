//! Source nodes: texts and media that the user brings.

use crate::AssetSource;
use engine_graph::{
    AssetRef, NodeContext, NodeDescriptor, NodeError, NodeRunner, Outputs, ParamDescriptor, PortDescriptor, PortKind,
    RunnerSet, Value,
};
use gen_core::Image;
use std::sync::Arc;

/// The descriptors of every source node.
pub fn descriptors() -> Vec<NodeDescriptor> {
    let media = |name: &str, title: &str, icon: &str, kind: PortKind| {
        NodeDescriptor::new(format!("input/{name}"), title)
            .category("input")
            .icon(icon)
            .output(PortDescriptor::output(name, title, kind))
            .param(ParamDescriptor::asset("asset", "Asset"))
            .hidden()
    };
    vec![
        NodeDescriptor::new("input/text", "Text")
            .category("input")
            .icon("text")
            .output(PortDescriptor::output("text", "Text", PortKind::Text))
            .param(ParamDescriptor::textarea("text", "Text", ""))
            .hidden(),
        media("image", "Image", "image", PortKind::Image),
        media("mask", "Mask", "mask", PortKind::Mask),
        media("video", "Video", "video", PortKind::Video),
        media("audio", "Audio", "audio", PortKind::Audio),
    ]
}

/// Adds the runners: texts, pictures and masks. Clips and sounds have no consumer yet and so no runner.
pub fn register(runners: &mut RunnerSet, assets: &Arc<dyn AssetSource>) {
    runners.insert("input/text", Arc::new(TextSource));
    for (node_type, port, kind) in [("input/image", "image", PortKind::Image), ("input/mask", "mask", PortKind::Mask)] {
        runners.insert(node_type, Arc::new(PictureSource { assets: Arc::clone(assets), port, kind }));
    }
}

struct TextSource;

impl NodeRunner for TextSource {
    fn run(&self, context: &NodeContext<'_>) -> Result<Outputs, NodeError> {
        Ok(Outputs::of("text", Value::text(context.params().text("text")?)))
    }
}

/// A picture from the asset store; a mask is the same picture on a port of another kind.
struct PictureSource {
    assets: Arc<dyn AssetSource>,
    port: &'static str,
    kind: PortKind,
}

impl NodeRunner for PictureSource {
    fn run(&self, context: &NodeContext<'_>) -> Result<Outputs, NodeError> {
        let reference = context.params().asset("asset")?;
        if *reference == AssetRef::None {
            return Err(NodeError::new(format!("no {} is chosen; set `asset` to an asset or take id", self.port)));
        }
        let image = self.assets.image(reference).map_err(|error| NodeError::new(error.to_string()))?;
        // The store shares decoded pictures; the port's value owns the same allocation.
        let data: Arc<Image> = image;
        Ok(Outputs::of(self.port, Value::Object { kind: self.kind, data }))
    }
}
