//! The verbs of the media contract, one trait a kind of provider.

use crate::{CancelFlag, GenerationOutput, GenerationRequest, Image, ModelDescriptor, Progress, Result};
use std::path::PathBuf;
use std::sync::Arc;

/// Makes pictures, clips or sound.
pub trait Generator: Send + Sync {
    /// What it is and takes.
    fn descriptor(&self) -> &ModelDescriptor;
    /// Refuses a request that it can't serve, before any work.
    fn validate(&self, request: &GenerationRequest) -> Result<()>;
    /// Runs a request. Blocking; reports progress from the calling thread; stops within one layer when cancelled.
    fn generate(&self, request: &GenerationRequest, progress: &mut dyn FnMut(Progress)) -> Result<GenerationOutput>;
}

/// A request to a [`Trainer`].
#[derive(Debug, Clone)]
pub struct TrainRequest {
    /// Pictures and their captions.
    pub examples: Vec<(Arc<Image>, String)>,
    /// Rank of the factorisation.
    pub rank: u32,
    /// Optimiser steps.
    pub steps: u32,
    /// Learning rate.
    pub learning_rate: f32,
    /// Where the adapter is written.
    pub output: PathBuf,
    /// Seed of noise and order.
    pub seed: u64,
    /// Stops the work when set.
    pub cancel: CancelFlag,
}

/// What a [`Trainer`] gives back.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingOutput {
    /// The adapter file.
    pub path: PathBuf,
    /// Mean loss of the last tenth of the steps.
    pub loss: f32,
}

/// Trains adapters.
pub trait Trainer: Send + Sync {
    /// What it is and takes.
    fn descriptor(&self) -> &ModelDescriptor;
    /// Refuses a request that it can't serve.
    fn validate(&self, request: &TrainRequest) -> Result<()>;
    /// Trains and writes the adapter.
    fn train(&self, request: &TrainRequest, progress: &mut dyn FnMut(Progress)) -> Result<TrainingOutput>;
}

/// A request to a [`Captioner`].
#[derive(Debug, Clone)]
pub struct CaptionRequest {
    /// The picture.
    pub image: Arc<Image>,
    /// What to say about it; empty is the model's own default.
    pub prompt: String,
    /// Longest answer in tokens.
    pub max_new_tokens: usize,
    /// Stops the work when set.
    pub cancel: CancelFlag,
}

/// Describes pictures.
pub trait Captioner: Send + Sync {
    /// What it is and takes.
    fn descriptor(&self) -> &ModelDescriptor;
    /// Refuses a request that it can't serve.
    fn validate(&self, request: &CaptionRequest) -> Result<()>;
    /// Describes the picture.
    fn caption(&self, request: &CaptionRequest) -> Result<String>;
}

/// Turns pictures into vectors.
pub trait ImageEmbedder: Send + Sync {
    /// What it is and takes.
    fn descriptor(&self) -> &ModelDescriptor;
    /// Refuses a picture that it can't take.
    fn validate(&self, image: &Image) -> Result<()>;
    /// The picture's unit vector.
    fn embed(&self, image: &Image) -> Result<Vec<f32>>;
}

/// Turns text into vectors, of a picture model's space or to compare texts by.
pub trait TextEmbedder: Send + Sync {
    /// What it is and takes.
    fn descriptor(&self) -> &ModelDescriptor;
    /// Refuses a text that it can't take.
    fn validate(&self, text: &str) -> Result<()>;
    /// Tokens of the text.
    fn tokens(&self, text: &str) -> Result<usize>;
    /// The text's unit vector.
    fn embed(&self, text: &str) -> Result<Vec<f32>>;
}

/// A request to a [`Transform`].
#[derive(Debug, Clone)]
pub struct TransformRequest {
    /// One picture, or the frames of a clip.
    pub frames: Vec<Arc<Image>>,
    /// Factor of the output's sides.
    pub scale: f32,
    /// Seed of any noise.
    pub seed: u64,
    /// Stops the work when set.
    pub cancel: CancelFlag,
}

/// Upscales or restores.
pub trait Transform: Send + Sync {
    /// What it is and takes.
    fn descriptor(&self) -> &ModelDescriptor;
    /// Refuses a request that it can't serve.
    fn validate(&self, request: &TransformRequest) -> Result<()>;
    /// Runs a request.
    fn transform(&self, request: &TransformRequest, progress: &mut dyn FnMut(Progress)) -> Result<GenerationOutput>;
}
