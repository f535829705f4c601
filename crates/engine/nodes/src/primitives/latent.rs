//! What a `latent` port carries, and `latent/empty`.

use super::Size;
use engine_graph::{NodeContext, NodeError, NodeRunner, Outputs, PortKind, Value};
use gen_core::{Image, LatentDistribution, Latents};
use serde_json::{Map, Value as Json};
use std::sync::Arc;

/// Latents between two nodes.
pub struct Latent {
    /// Width and height of the pictures that they stand for.
    pub(crate) size: Size,
    pub(crate) content: Content,
    /// What of a picture stays when they are decoded.
    pub(crate) kept: Option<Kept>,
    /// How they came about, for the takes that are made of them.
    pub(crate) record: Map<String, Json>,
}

pub(crate) enum Content {
    /// Nothing yet but a number of rows.
    Empty(u32),
    /// A picture as the VAE sees it, and the picture itself.
    Picture(LatentDistribution, Arc<Image>),
    /// Rows, one a picture.
    Rows(Vec<Latents>),
}

/// The pixels of `picture` that are kept: those where `mask` is black.
#[derive(Clone)]
pub(crate) struct Kept {
    pub(crate) picture: Arc<Image>,
    pub(crate) mask: Arc<Image>,
}

impl Latent {
    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        let row = |latents: &Latents| size_of_val(latents.data());
        let content = match &self.content {
            Content::Empty(_) => 0,
            Content::Picture(picture, image) => row(&picture.mean) + row(&picture.std) + image.pixels().len(),
            Content::Rows(rows) => rows.iter().map(row).sum(),
        };
        content + self.kept.as_ref().map_or(0, |kept| kept.picture.pixels().len() + kept.mask.pixels().len())
    }

    pub(crate) fn into_outputs(self) -> Outputs {
        Outputs::of("latent", Value::object(PortKind::Latent, self))
    }
}

pub(crate) struct EmptyLatent;

impl NodeRunner for EmptyLatent {
    fn run(&self, context: &NodeContext<'_>) -> Result<Outputs, NodeError> {
        let params = context.params();
        let size = (params.count("width")?, params.count("height")?);
        let content = Content::Empty(params.count("batch")?);
        Ok(Latent { size, content, kept: None, record: Map::new() }.into_outputs())
    }
}
