//! The model nodes: what each looks like and which checkpoint it means. Adding a family is adding an entry.

use crate::library::FamilyParts;
use engine_graph::{MediaKind, NodeDescriptor, ParamDescriptor, PortDescriptor, PortKind};

/// Where a node's checkpoint comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Origin {
    /// Compiled in.
    Demo,
    /// The models folder.
    Library(FamilyParts),
}

/// A node that makes pictures with one model family.
pub(crate) struct ImageNode {
    pub(crate) node_type: &'static str,
    title: &'static str,
    icon: &'static str,
    /// Id in the bundle's registry.
    pub(crate) generator: &'static str,
    pub(crate) origin: Origin,
    /// Smallest, largest and default side, and the step that clients use.
    size: [i64; 4],
    steps: i64,
    guidance: f64,
}

const Z_IMAGE: FamilyParts = FamilyParts {
    family: "z_image",
    title: "Z-Image",
    text_encoder: "qwen3",
    vae: ("autoencoder_kl", "flux"),
    setting: "INLINE_ZIMAGE_MODEL",
};

/// The node that is used when no model is named and none is installed.
pub const DEMO_NODE: &str = "inline/demo";

/// Every model node, in the order in which an installed model is preferred.
pub(crate) static IMAGE_NODES: &[ImageNode] = &[
    ImageNode {
        node_type: "alibaba/z-image-turbo",
        title: "Z-Image Turbo",
        icon: "image",
        generator: "z_image_turbo",
        origin: Origin::Library(Z_IMAGE),
        size: [256, 2048, 1024, 64],
        steps: 8,
        guidance: 0.0,
    },
    ImageNode {
        node_type: "alibaba/z-image",
        title: "Z-Image",
        icon: "image",
        generator: "z_image",
        origin: Origin::Library(Z_IMAGE),
        size: [256, 2048, 1024, 64],
        steps: 50,
        guidance: 4.0,
    },
    ImageNode {
        node_type: DEMO_NODE,
        title: "Demo (emoji)",
        icon: "sparkles",
        generator: crate::demo::GENERATOR,
        origin: Origin::Demo,
        size: [64, 512, 128, 16],
        steps: 9,
        guidance: 0.0,
    },
];

/// The families of installed models, each with the generator that opens it.
pub(crate) fn families() -> impl Iterator<Item = (FamilyParts, &'static str)> {
    IMAGE_NODES.iter().filter_map(|node| match node.origin {
        Origin::Library(parts) => Some((parts, node.generator)),
        Origin::Demo => None,
    })
}

impl ImageNode {
    pub(crate) fn descriptor(&self) -> NodeDescriptor {
        let [min, max, default, step] = self.size;
        // Clients count in coarse steps; the models take every multiple of 16.
        let side = |key, label| ParamDescriptor::integer(key, label, default, min..=max, step as u32).multiple_of(16);
        let node = NodeDescriptor::new(self.node_type, self.title)
            .category("image")
            .icon(self.icon)
            .output_kind(MediaKind::Image)
            .input(PortDescriptor::required("prompt", "Prompt", PortKind::Text))
            .input(PortDescriptor::optional("image", "Image", PortKind::Image))
            .input(PortDescriptor::optional("mask", "Mask", PortKind::Mask))
            .output(PortDescriptor::output("image", "Image", PortKind::Image))
            .param(ParamDescriptor::textarea("negative_prompt", "Negative prompt", ""))
            .param(side("width", "Width"))
            .param(side("height", "Height"))
            .param(ParamDescriptor::integer("steps", "Steps", self.steps, 1..=100, 1))
            .param(ParamDescriptor::float("guidance", "Guidance", self.guidance, 0.0..=20.0, 0.5))
            .param(ParamDescriptor::float("strength", "Strength", 0.6, 0.0..=1.0, 0.05).advanced())
            .param(ParamDescriptor::seed("seed", "Seed"));
        match self.origin {
            Origin::Demo => node,
            Origin::Library(_) => node.param(ParamDescriptor::model("model", "Model", "diffusion_models").advanced()),
        }
    }
}
