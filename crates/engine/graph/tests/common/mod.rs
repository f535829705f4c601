//! A small set of node types for the tests of this crate.

#![allow(dead_code, clippy::unwrap_used)] // each test file uses its own part; panics are failed tests

pub mod run;

use engine_graph::*;
use serde_json::Value as Json;

/// Text and pictures, lists, controls and handles: every way in which ports can meet.
pub fn registry() -> NodeRegistry {
    let text = |id: &str| PortDescriptor::output(id, "Text", PortKind::Text);
    let image = |id: &str| PortDescriptor::output(id, "Image", PortKind::Image);
    NodeRegistry::new([
        NodeDescriptor::new("test/text", "Text")
            .output(text("text"))
            .param(ParamDescriptor::textarea("text", "Text", ""))
            .hidden(),
        NodeDescriptor::new("test/join", "Join")
            .input(PortDescriptor::optional("a", "A", PortKind::Text))
            .input(PortDescriptor::optional("b", "B", PortKind::Text))
            .output(text("text"))
            .output(text("reversed")),
        NodeDescriptor::new("test/paint", "Paint")
            .output_kind(MediaKind::Image)
            .input(PortDescriptor::required("prompt", "Prompt", PortKind::Text))
            .input(PortDescriptor::optional("image", "Image", PortKind::Image))
            .output(image("image"))
            .param(ParamDescriptor::integer("width", "Width", 1024, 256..=2048, 64))
            .param(ParamDescriptor::integer("height", "Height", 1024, 256..=2048, 64).multiple_of(16))
            .param(ParamDescriptor::integer("steps", "Steps", 8, 1..=100, 1))
            .param(ParamDescriptor::float("guidance", "Guidance", 0.0, 0.0..=20.0, 0.5))
            .param(ParamDescriptor::boolean("tiled", "Tiled", false))
            .param(ParamDescriptor::select("sampler", "Sampler", "euler", [("euler", "Euler"), ("heun", "Heun")]))
            .param(ParamDescriptor::seed("seed", "Seed"))
            .param(ParamDescriptor::model("model", "Model", "diffusion_models").advanced()),
        NodeDescriptor::new("test/collage", "Collage")
            .output_kind(MediaKind::Image)
            .input(PortDescriptor::required("images", "Images", PortKind::ImageList))
            .input(PortDescriptor::optional("control", "Control", PortKind::Control))
            .output(image("image")),
        NodeDescriptor::new("test/split", "Split")
            .input(PortDescriptor::required("image", "Image", PortKind::Image))
            .output(PortDescriptor::output("parts", "Parts", PortKind::ImageList)),
        NodeDescriptor::new("test/load", "Load")
            .output(PortDescriptor::output("model", "Model", PortKind::Model))
            .param(ParamDescriptor::asset("file", "File")),
        NodeDescriptor::new("test/use", "Use")
            .input(PortDescriptor::required("model", "Model", PortKind::Model))
            .output(image("image")),
    ])
    .unwrap()
}

pub fn parse(json: &str) -> Result<Graph, GraphError> {
    Graph::from_slice(json.as_bytes(), &Limits::default())
}

pub fn text(id: &str, text: &str) -> Node {
    Node::new(id, "test/text").param("text", text)
}

pub fn paint(id: &str, prompt: &str) -> Node {
    Node::new(id, "test/paint").input("prompt", prompt, "text").param("seed", 7)
}

/// One painter fed by one text, with a param of the painter set.
pub fn painted_with(key: &str, value: impl Into<Json>) -> Graph {
    Graph::new([text("p", "a red apple"), paint("m", "p").param(key, value)])
}
