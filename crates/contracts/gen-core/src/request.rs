//! What is asked of a media generator.

use crate::{AudioTrack, CancelFlag, Error, Image, Result};
use std::sync::Arc;

/// Which hint a control picture carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ControlKind {
    /// Edges.
    Canny,
    /// Depth.
    Depth,
    /// Human pose.
    Pose,
    /// Soft edges.
    Hed,
    /// Straight lines.
    Mlsd,
    /// A picture to be tiled or upscaled.
    Tile,
}

/// A picture, clip or sound that steers generation. Order is meaning: a prompt may address inputs by number.
#[derive(Debug, Clone)]
pub enum ConditioningInput {
    /// Start from this picture; `strength` in `[0, 1]` says how far to move away from it.
    Reference {
        /// The picture.
        image: Arc<Image>,
        /// 0 keeps it, 1 ignores it.
        strength: f32,
    },
    /// Several numbered pictures for models that edit or combine.
    MultiReference(Vec<Arc<Image>>),
    /// A control hint.
    Control {
        /// The hint.
        image: Arc<Image>,
        /// What it holds.
        kind: ControlKind,
        /// Its weight.
        scale: f32,
    },
    /// White is repainted, black is kept.
    Mask(Arc<Image>),
    /// A depth map.
    Depth(Arc<Image>),
    /// A frame that a clip must pass through.
    Keyframe {
        /// The frame.
        image: Arc<Image>,
        /// Its place, in frames.
        frame: u32,
    },
    /// A clip to continue or restyle.
    VideoClip(Vec<Arc<Image>>),
    /// A voice or sound to follow.
    ReferenceAudio(AudioTrack),
}

impl ConditioningInput {
    /// The kind, as a model's capabilities list it.
    pub fn kind(&self) -> crate::ConditioningKind {
        use crate::ConditioningKind as K;
        match self {
            Self::Reference { .. } => K::Reference,
            Self::MultiReference(_) => K::MultiReference,
            Self::Control { .. } => K::Control,
            Self::Mask(_) => K::Mask,
            Self::Depth(_) => K::Depth,
            Self::Keyframe { .. } => K::Keyframe,
            Self::VideoClip(_) => K::VideoClip,
            Self::ReferenceAudio(_) => K::ReferenceAudio,
        }
    }
}

/// A request to a [`crate::Generator`]. `None` means the model's own default.
#[derive(Debug, Clone)]
pub struct GenerationRequest {
    /// What to make.
    pub prompt: String,
    /// What to avoid; only used with [`Self::true_cfg`].
    pub negative_prompt: String,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Number of images; image `i` uses `seed + i` (wrapping) and equals the single render with that seed.
    pub count: u32,
    /// Seed of the initial noise.
    pub seed: u64,
    /// Sampler steps.
    pub steps: Option<u32>,
    /// Distilled guidance, an input of models that were trained with it.
    pub guidance: Option<f32>,
    /// Classifier-free guidance with a second forward pass; 0 turns it off.
    pub true_cfg: Option<f32>,
    /// Cap on the guided prediction's norm, as a multiple of the conditional one's; 0 turns it off.
    pub cfg_normalization: f32,
    /// Guidance is dropped where the model's time (0 noise .. 1 picture) is past this; 1 keeps it everywhere.
    pub cfg_truncation: f32,
    /// Sampler by name.
    pub sampler: Option<String>,
    /// Sigma schedule by name.
    pub scheduler: Option<String>,
    /// Overrides the schedule's time shift.
    pub scheduler_shift: Option<f32>,
    /// How several predictions are combined.
    pub guidance_method: Option<String>,
    /// Pictures, clips and sounds that steer generation, in order.
    pub conditioning: Vec<ConditioningInput>,
    /// Overrides the strength of a [`ConditioningInput::Reference`].
    pub strength: Option<f32>,
    /// Number of frames of a clip.
    pub frames: Option<u32>,
    /// Frames per second of a clip.
    pub fps: Option<f32>,
    /// Length of a clip or sound in seconds.
    pub duration: Option<f32>,
    /// Whether a clip should have sound.
    pub audio: bool,
    /// Whether [`crate::Progress::Step`] should carry preview latents.
    pub previews: bool,
    /// Stops the work when set.
    pub cancel: CancelFlag,
}

impl Default for GenerationRequest {
    fn default() -> Self {
        Self {
            prompt: String::new(),
            negative_prompt: String::new(),
            width: 1024,
            height: 1024,
            count: 1,
            seed: 0,
            steps: None,
            guidance: None,
            true_cfg: None,
            cfg_normalization: 0.0,
            cfg_truncation: 1.0,
            sampler: None,
            scheduler: None,
            scheduler_shift: None,
            guidance_method: None,
            conditioning: Vec::new(),
            strength: None,
            frames: None,
            fps: None,
            duration: None,
            audio: false,
            previews: false,
            cancel: CancelFlag::new(),
        }
    }
}

impl GenerationRequest {
    /// Refuses NaN and infinity in any float, by field.
    pub fn check_finite(&self) -> Result<()> {
        let optional = [
            ("guidance", self.guidance),
            ("true_cfg", self.true_cfg),
            ("scheduler_shift", self.scheduler_shift),
            ("strength", self.strength),
            ("fps", self.fps),
            ("duration", self.duration),
            ("cfg_normalization", Some(self.cfg_normalization)),
            ("cfg_truncation", Some(self.cfg_truncation)),
        ];
        let inputs = self.conditioning.iter().map(|input| match input {
            ConditioningInput::Reference { strength, .. } => ("strength", Some(*strength)),
            ConditioningInput::Control { scale, .. } => ("scale", Some(*scale)),
            _ => ("conditioning", None),
        });
        for (field, value) in optional.into_iter().chain(inputs) {
            if value.is_some_and(|v| !v.is_finite()) {
                return Err(Error::invalid(field, "must be a finite number"));
            }
        }
        Ok(())
    }

    /// The seed of image `index`.
    pub fn seed_of(&self, index: u32) -> u64 {
        self.seed.wrapping_add(u64::from(index))
    }
}
