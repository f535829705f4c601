//! Where source nodes get their media from.

use engine_graph::AssetRef;
use gen_core::Image;
use std::sync::Arc;

/// Why an asset can't be used. The message is for the person who wrote the graph and holds no host path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AssetError(pub String);

/// Finds assets, takes and, where the operator allows it, files. The store of an engine implements it.
pub trait AssetSource: Send + Sync {
    /// The decoded picture behind a reference: upright, RGB, alpha composited over white.
    ///
    /// # Errors
    /// There is no such asset or take, it is no picture, or reading that path is not allowed.
    fn image(&self, reference: &AssetRef) -> Result<Arc<Image>, AssetError>;

    /// The hash of the content behind a reference, for cache keys.
    ///
    /// # Errors
    /// As [`Self::image`].
    fn content_hash(&self, reference: &AssetRef) -> Result<String, AssetError>;
}
