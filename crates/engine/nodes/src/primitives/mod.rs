//! The parts of a model node as nodes of their own: for the same settings they give the same pixels.

mod latent;
mod load;
mod sample;
mod text;
mod vae;

use crate::families;
use crate::host::ModelHost;
use crate::library::{FamilyParts, ModelLibrary};
use engine_graph::{
    Contents, MediaKind, NodeDescriptor, NodeError, ParamDescriptor, PortDescriptor, PortKind, RunnerSet, SelectOption,
    ValidNode, Value,
};
use gen_core::{Conditioning, Image, KNOWN_SAMPLERS, KNOWN_SCHEDULERS, Role};
use sampling::SampleService;
use std::sync::Arc;

pub use latent::Latent;
pub(crate) use load::Loaded;
use load::Loader;

/// What every primitive needs from around it.
pub(crate) struct Primitives {
    library: Arc<ModelLibrary>,
    loaders: Vec<(&'static str, Arc<Loader>)>,
}

/// Width and height, as in the nodes that take them.
type Size = (u32, u32);

fn loader(name: &str, title: &str, port: &str, kind: PortKind, category: &str) -> NodeDescriptor {
    let mut file = ParamDescriptor::model("file", "File", category);
    let demo = SelectOption { value: crate::demo::NAME.to_owned(), label: "Demo (built in)".to_owned() };
    file.options.get_or_insert_default().push(demo);
    primitive(&format!("load/{name}"), title).output(PortDescriptor::output(port, title, kind)).param(file)
}

fn primitive(node_type: &str, title: &str) -> NodeDescriptor {
    NodeDescriptor::new(node_type, title).category("primitive").icon("cube").hidden()
}

/// The descriptors of every primitive.
pub(crate) fn descriptors() -> Vec<NodeDescriptor> {
    use PortDescriptor as Port;
    use PortKind::*;
    let side = |key, label| ParamDescriptor::integer(key, label, 1024, 16..=8192, 16);
    let names = |key, label, names: &'static [&'static str]| {
        ParamDescriptor::select(key, label, names[0], names.iter().map(|name| (*name, *name)))
    };
    vec![
        loader("diffusion-model", "Diffusion model", "model", Model, "diffusion_models"),
        loader("vae", "VAE", "vae", Vae, "vae"),
        loader("text-encoder", "Text encoder", "text_encoder", TextEncoder, "text_encoders"),
        primitive("encode/text", "Encode text")
            .input(Port::required("text_encoder", "Text encoder", TextEncoder))
            .input(Port::required("prompt", "Prompt", Text))
            .output(Port::output("conditioning", "Conditioning", PortKind::Conditioning)),
        primitive("latent/empty", "Empty latent")
            .output(Port::output("latent", "Latent", PortKind::Latent))
            .param(side("width", "Width"))
            .param(side("height", "Height"))
            .param(ParamDescriptor::integer("batch", "Batch", 1, 1..=64, 1)),
        primitive("sample", "Sample")
            .input(Port::required("model", "Model", Model))
            .input(Port::required("positive", "Positive", PortKind::Conditioning))
            .input(Port::optional("negative", "Negative", PortKind::Conditioning))
            .input(Port::required("latent", "Latent", PortKind::Latent))
            .input(Port::optional("mask", "Mask", Mask))
            .output(Port::output("latent", "Latent", PortKind::Latent))
            .param(ParamDescriptor::integer("steps", "Steps", 8, 1..=10_000, 1))
            .param(ParamDescriptor::float("cfg", "Guidance", 0.0, 0.0..=100.0, 0.5))
            .param(names("sampler", "Sampler", KNOWN_SAMPLERS))
            .param(names("scheduler", "Scheduler", KNOWN_SCHEDULERS))
            .param(ParamDescriptor::seed("seed", "Seed"))
            .param(ParamDescriptor::float("strength", "Strength", 1.0, 0.0..=1.0, 0.05).advanced())
            // 0 is the model's own.
            .param(ParamDescriptor::float("shift", "Shift", 0.0, 0.0..=100.0, 0.1).advanced()),
        primitive("vae/decode", "Decode")
            .output_kind(MediaKind::Image)
            .input(Port::required("vae", "VAE", Vae))
            .input(Port::required("latent", "Latent", PortKind::Latent))
            .output(Port::output("image", "Image", PortKind::Image))
            .output(Port::output("images", "All images", ImageList)),
        primitive("vae/encode", "Encode")
            .input(Port::required("vae", "VAE", Vae))
            .input(Port::required("image", "Image", PortKind::Image))
            .output(Port::output("latent", "Latent", PortKind::Latent)),
    ]
}

impl Primitives {
    pub(crate) fn new(host: &Arc<ModelHost>, library: &Arc<ModelLibrary>) -> Self {
        let families: Vec<(FamilyParts, &'static str)> = families::families().collect();
        let loader = |role, category, port, kind, what| {
            let (host, library) = (Arc::clone(host), Arc::clone(library));
            Arc::new(Loader { host, library, families: families.clone(), role, category, port, kind, what })
        };
        let loaders = vec![
            (
                "load/diffusion-model",
                loader(Role::Denoiser, "diffusion_models", "model", PortKind::Model, "diffusion model"),
            ),
            ("load/vae", loader(Role::Vae, "vae", "vae", PortKind::Vae, "VAE")),
            (
                "load/text-encoder",
                loader(Role::TextEncoder, "text_encoders", "text_encoder", PortKind::TextEncoder, "text encoder"),
            ),
        ];
        Self { library: Arc::clone(library), loaders }
    }

    /// Adds the runners.
    pub(crate) fn register(&self, runners: &mut RunnerSet, sampler: &Arc<dyn SampleService>) {
        for (node_type, loader) in &self.loaders {
            runners.insert(*node_type, Arc::clone(loader) as _);
        }
        let dir = self.library.dir();
        runners.insert("encode/text", Arc::new(text::EncodeText { models_dir: dir.to_owned() }));
        runners.insert("latent/empty", Arc::new(latent::EmptyLatent));
        runners.insert("sample", Arc::new(sample::Sample { sampler: Arc::clone(sampler), models_dir: dir.to_owned() }));
        runners.insert("vae/decode", Arc::new(vae::Decode { models_dir: dir.to_owned() }));
        runners.insert("vae/encode", Arc::new(vae::Encode { models_dir: dir.to_owned() }));
    }

    /// Adds what a primitive's outputs depend on beside params and inputs.
    pub(crate) fn add_contents(&self, node: &ValidNode, contents: &mut Contents) -> Result<(), NodeError> {
        if let Some((_, loader)) = self.loaders.iter().find(|(node_type, _)| *node_type == node.node_type()) {
            let loaded = loader.open(node.params())?;
            let placement = loaded.model.plan().placement(loader.role);
            contents.add("component", loaded.model.key());
            contents.add("placement", format!("{} {:?}", placement.dtype, placement.quant));
            contents.add("engine", env!("CARGO_PKG_VERSION"));
        }
        Ok(())
    }
}

/// Bytes that a port's value holds, for caches; `None` for one that would hold a model in memory.
pub fn value_bytes(value: &Value) -> Option<usize> {
    /// Bytes a token at the widths of today's encoders; what a family keeps of a prompt is its own secret.
    const TOKEN: usize = 16 << 10;
    match value {
        Value::Text(text) => Some(text.len()),
        // A list repeats the pictures of other ports; counting twice errs on the safe side.
        Value::Images(images) => images.iter().map(value_bytes).sum(),
        Value::Object { .. } => None
            .or_else(|| value.downcast::<Image>().map(|image| image.pixels().len()))
            .or_else(|| value.downcast::<Latent>().map(|latent| latent.bytes()))
            .or_else(|| value.downcast::<Conditioning>().map(|conditioning| conditioning.tokens() * TOKEN)),
    }
}
