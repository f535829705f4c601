//! `vae/encode` and `vae/decode`: pictures to latents and back.

use super::Loaded;
use super::latent::{Content, Latent};
use crate::scrub;
use engine_graph::{NodeContext, NodeError, NodeRunner, Outputs, Phase, Value};
use gen_core::{Image, Role};
use sampling::{composite, cover, pipeline};
use serde_json::Map;
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) struct Encode {
    pub(crate) models_dir: PathBuf,
}

impl NodeRunner for Encode {
    fn run(&self, context: &NodeContext<'_>) -> Result<Outputs, NodeError> {
        let loaded = context.inputs().object::<Loaded>("vae")?;
        let image = context.inputs().object::<Image>("image")?;
        let recipe = loaded.model.model().recipe();
        let multiple = (recipe.latent_factor * recipe.patch) as u32;
        // What doesn't fill a token is cut off evenly, as when a model node fits a picture into its frame.
        let fit = |side: u32| (side / multiple).max(1) * multiple;
        let size = (fit(image.width()), fit(image.height()));
        let encode = || {
            let image = cover(&image, size.0, size.1)?;
            context.phase(Phase::Loading, 0.0, "loading the vae");
            let vae = loaded.model.vae(context.cancel())?;
            context.phase(Phase::Encode, 0.1, "encoding");
            Ok((pipeline::encode_picture(&*vae, &image, context.cancel())?, Arc::new(image)))
        };
        let encoded = encode();
        loaded.model.release(Role::Vae);
        let (picture, image) = encoded.map_err(|e| scrub(e, &self.models_dir))?;
        Ok(Latent { size, content: Content::Picture(picture, image), kept: None, record: Map::new() }.into_outputs())
    }
}

pub(crate) struct Decode {
    pub(crate) models_dir: PathBuf,
}

impl NodeRunner for Decode {
    fn run(&self, context: &NodeContext<'_>) -> Result<Outputs, NodeError> {
        let loaded = context.inputs().object::<Loaded>("vae")?;
        let latent = context.inputs().object::<Latent>("latent")?;
        let rows = match &latent.content {
            Content::Rows(rows) => rows.clone(),
            Content::Picture(picture, _) => vec![picture.mean.clone()],
            Content::Empty(_) => {
                let message = "this latent is empty, so there is nothing to decode; sample it first";
                return Err(NodeError::new(message).on_port("latent"));
            }
        };
        let decode = || {
            context.phase(Phase::Loading, 0.0, "loading the vae");
            let vae = loaded.model.vae(context.cancel())?;
            context.phase(Phase::Decode, 0.1, "decoding");
            let images = pipeline::decode(&*vae, &rows, context.cancel())?;
            match &latent.kept {
                Some(kept) => images.iter().map(|image| composite(&kept.picture, image, &kept.mask)).collect(),
                None => Ok(images),
            }
        };
        let images: gen_core::Result<Vec<Image>> = decode();
        loaded.model.release(Role::Vae);
        let images = images.map_err(|e| scrub(e, &self.models_dir))?;
        let images: Vec<Value> = images.into_iter().map(Value::image).collect();
        let first = images.first().cloned().ok_or_else(|| NodeError::new("there are no latents to decode"))?;
        let outputs = Outputs::of("image", first).with("images", Value::Images(images));
        Ok(latent.record.iter().fold(outputs, |outputs, (key, value)| outputs.recording(key, value.clone())))
    }
}
