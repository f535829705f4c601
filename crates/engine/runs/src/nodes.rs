//! What the engine needs of its node types.

use engine_graph::{ContentHasher, NodeRegistry, RunnerSet};
use engine_nodes::Nodes;
use std::sync::Arc;

/// Node types with their runners, as of the model files at hand. The engine knows no more of them.
pub trait NodeSet: ContentHasher + Send + Sync {
    /// The types as they are served now.
    fn registry(&self) -> Arc<NodeRegistry>;

    /// A short text that changes with [`Self::registry`] and with the model files behind it.
    fn registry_version(&self) -> String;

    /// Looks which model files there are. Blocking.
    fn refresh(&self);

    /// The runners by type.
    fn runners(&self) -> &RunnerSet;

    /// The type that makes a picture of a prompt when a client names none.
    fn default_image_node(&self) -> String;
}

impl NodeSet for Nodes {
    fn registry(&self) -> Arc<NodeRegistry> {
        Arc::new(Nodes::registry(self))
    }

    fn registry_version(&self) -> String {
        Nodes::registry_version(self)
    }

    fn refresh(&self) {
        self.library().rescan();
    }

    fn runners(&self) -> &RunnerSet {
        Nodes::runners(self)
    }

    fn default_image_node(&self) -> String {
        Nodes::default_image_node(self).to_owned()
    }
}
