//! Source nodes, primitives and one runner per model family, on top of a bundle's catalog.

mod assets;

pub use assets::{AssetError, AssetSource};
