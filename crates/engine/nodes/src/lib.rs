//! Source nodes, primitives and one runner per model family, on top of a bundle's registry.
//!
//! [`Nodes::new`] puts them together: descriptors for the graph layer, runners for its executor, and the contents that a
//! node's cache key depends on.

mod assets;
pub mod demo;
mod families;
mod host;
mod image_node;
mod language;
mod library;
mod pool;
mod primitives;
mod prompts;
mod reporter;
mod sources;
mod text_node;

use core_llm::TextLlmRegistry;
use engine_device::DevicePolicy;
use engine_graph::{ContentHasher, Contents, NodeError, NodeRegistry, ParamValue, RegistryError, RunnerSet, ValidNode};
use families::{IMAGE_NODES, Origin};
use gen_core::{Error, ProviderRegistry, Role};
use image_node::ImageRunner;
use primitives::Primitives;
use sampling::SampleService;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use text_node::TextRunner;

pub use assets::{AssetError, AssetSource};
pub use families::DEMO_NODE;
pub use host::{HostedModel, ModelHost};
pub use language::{LANGUAGE_CATEGORY, LanguageModels, TextModelFile};
pub use library::{Choice, ComponentKind, FamilyParts, ModelLibrary};
pub use primitives::{Latent, value_bytes};

/// Everything that nodes need from around them.
pub struct NodesConfig {
    /// The bundle's providers.
    pub providers: Arc<ProviderRegistry>,
    /// The bundle's language models.
    pub text: Arc<TextLlmRegistry>,
    /// Decides where models live.
    pub policy: DevicePolicy,
    /// The models that the user has.
    pub library: Arc<ModelLibrary>,
    /// Where source nodes get their media.
    pub assets: Arc<dyn AssetSource>,
    /// Runs denoise loops.
    pub sampler: Arc<dyn SampleService>,
}

/// The node types of an engine with their runners.
pub struct Nodes {
    base: NodeRegistry,
    runners: RunnerSet,
    image_runners: BTreeMap<&'static str, Arc<ImageRunner>>,
    primitives: Primitives,
    library: Arc<ModelLibrary>,
    assets: Arc<dyn AssetSource>,
    host: Arc<ModelHost>,
    language: Arc<LanguageModels>,
    text_runner: Arc<TextRunner>,
}

impl Nodes {
    /// Puts the nodes together. Nothing is loaded and the models folder isn't looked at.
    ///
    /// # Errors
    /// A descriptor is malformed: a mistake in the program, found by its tests.
    pub fn new(config: NodesConfig) -> Result<Self, RegistryError> {
        let host = Arc::new(ModelHost::new(config.providers, config.policy));
        let (shared, library) = (Arc::clone(&host), Arc::clone(&config.library));
        let language = Arc::new(LanguageModels { registry: config.text, host: shared, library });
        let mut runners = RunnerSet::new();
        sources::register(&mut runners, &config.assets);
        let mut image_runners = BTreeMap::new();
        let mut descriptors = sources::descriptors();
        for node in IMAGE_NODES {
            let runner = Arc::new(ImageRunner {
                node,
                host: Arc::clone(&host),
                library: Arc::clone(&config.library),
                sampler: Arc::clone(&config.sampler),
            });
            runners.insert(node.node_type, Arc::clone(&runner) as _);
            image_runners.insert(node.node_type, runner);
            descriptors.push(node.descriptor());
        }
        let text_runner = Arc::new(TextRunner { language: Arc::clone(&language) });
        runners.insert(text_node::TYPE, Arc::clone(&text_runner) as _);
        descriptors.push(text_node::descriptor());
        let primitives = Primitives::new(&host, &config.library);
        primitives.register(&mut runners, &config.sampler);
        descriptors.extend(primitives::descriptors());
        let base = NodeRegistry::new(descriptors)?;
        Ok(Self {
            base,
            runners,
            image_runners,
            primitives,
            library: config.library,
            assets: config.assets,
            host,
            language,
            text_runner,
        })
    }

    /// The node types as they are to be served: with the files of the models folder among their options, as of its last
    /// scan.
    pub fn registry(&self) -> NodeRegistry {
        self.base.with_options(|_, category| self.library.options(category))
    }

    /// The version of [`Self::registry`] and the model files behind it.
    pub fn registry_version(&self) -> String {
        self.registry().registry_version(&self.library.digest())
    }

    /// The runners.
    pub fn runners(&self) -> &RunnerSet {
        &self.runners
    }

    /// The models that the user has.
    pub fn library(&self) -> &ModelLibrary {
        &self.library
    }

    /// The language models and text embedders.
    pub fn language(&self) -> &Arc<LanguageModels> {
        &self.language
    }

    /// The loaded models.
    pub fn host(&self) -> &ModelHost {
        &self.host
    }

    /// The node to render with when the user names none: the first whose model is installed, else the demo.
    pub fn default_image_node(&self) -> &'static str {
        let installed = |node: &&families::ImageNode| match node.origin {
            Origin::Library(parts) => self.library.has(&parts),
            Origin::Demo => true,
        };
        IMAGE_NODES.iter().find(installed).map_or(DEMO_NODE, |node| node.node_type)
    }
}

impl ContentHasher for Nodes {
    fn add_contents(&self, node: &ValidNode, contents: &mut Contents) -> Result<(), NodeError> {
        for (key, value) in node.params().iter() {
            if let ParamValue::Asset(reference) = value
                && *reference != engine_graph::AssetRef::None
            {
                let hash = self.assets.content_hash(reference).map_err(|e| NodeError::new(e.to_string()))?;
                contents.add(key, hash);
            }
        }
        if let Some(runner) = self.image_runners.get(node.node_type()) {
            let chosen = runner.choose(node.params())?;
            let placement = chosen.model.plan().placement(Role::Denoiser);
            contents.add("checkpoint", chosen.model.key());
            contents.add("placement", format!("{} {:?}", placement.dtype, placement.quant));
            contents.add("engine", env!("CARGO_PKG_VERSION"));
        }
        if node.node_type() == text_node::TYPE {
            self.text_runner.add_contents(node.params(), contents)?;
        }
        self.primitives.add_contents(node, contents)
    }
}

/// An error as a node reports it: the models folder's path, which clients must not see, becomes its name.
pub(crate) fn scrub(error: Error, models_dir: &Path) -> NodeError {
    match NodeError::from(error) {
        NodeError::Failed { message, port } => {
            let mut message = message;
            let absolute = models_dir.canonicalize().unwrap_or_else(|_| models_dir.to_owned());
            for dir in [absolute.as_path(), models_dir] {
                let dir = dir.display().to_string();
                if dir.len() > 1 {
                    message = message.replace(&dir, "the models folder");
                }
            }
            NodeError::Failed { message, port }
        }
        other => other,
    }
}

/// A panic elsewhere doesn't make caches wrong, so a poisoned lock is used on.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
