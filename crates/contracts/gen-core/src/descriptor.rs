//! What a model is and what it can take.

use crate::{ConditioningInput, DescriptorProblem, Error, GenerationRequest, Quant, Result, Role};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Samplers that any descriptor may name.
pub const KNOWN_SAMPLERS: &[&str] =
    &["euler", "euler_ancestral", "heun", "dpmpp_2m", "dpmpp_2m_sde", "dpmpp_sde", "unipc", "lcm", "ddim"];
/// Sigma schedules that any descriptor may name.
pub const KNOWN_SCHEDULERS: &[&str] = &["simple", "normal", "karras", "exponential", "sgm_uniform", "beta"];
/// Ways of combining predictions that any descriptor may name.
pub const KNOWN_GUIDANCE_METHODS: &[&str] = &["cfg", "cfg_norm", "cfg_trunc"];

/// What kind of provider an entry of the registry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderKind {
    /// Text (and more) to media.
    Generator,
    /// Media to media.
    Transform,
    /// Adapters from examples.
    Trainer,
    /// Pictures to text.
    Captioner,
    /// Pictures to vectors.
    ImageEmbedder,
    /// Text to vectors, in a picture model's space.
    TextEmbedder,
}

impl ProviderKind {
    /// The kind in words, for messages.
    pub fn label(self) -> &'static str {
        match self {
            Self::Generator => "generator",
            Self::Transform => "transform",
            Self::Trainer => "trainer",
            Self::Captioner => "captioner",
            Self::ImageEmbedder => "image embedder",
            Self::TextEmbedder => "text embedder",
        }
    }
}

/// What a model makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Modality {
    /// Pictures.
    Image,
    /// Clips, perhaps with sound.
    Video,
    /// Sound.
    Audio,
    /// Text about media.
    Text,
    /// Vectors.
    Embedding,
}

/// Kinds of [`ConditioningInput`].
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConditioningKind {
    Reference,
    MultiReference,
    Control,
    Mask,
    Depth,
    Keyframe,
    VideoClip,
    ReferenceAudio,
}

/// Factorisations of an adapter's change.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdapterKind {
    Lora,
    Lokr,
    Loha,
    Dora,
}

/// Sizes in pixels that a model takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeRule {
    /// Smallest side.
    pub min: u32,
    /// Largest side.
    pub max: u32,
    /// Every side is a multiple of this.
    pub multiple: u32,
    /// Side when nothing is asked for.
    pub default: u32,
}

/// What a model takes. [`ModelDescriptor::validate`] refuses whatever isn't listed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Sizes of the output.
    pub size: SizeRule,
    /// Largest number of images in a request.
    pub max_count: u32,
    /// Steps when nothing is asked for.
    pub default_steps: u32,
    /// Most steps.
    pub max_steps: u32,
    /// Whether a second, unconditional pass with a negative prompt is supported.
    pub true_cfg: bool,
    /// True CFG scale when nothing is asked for; 0 is off.
    pub default_true_cfg: f32,
    /// Whether the model has a distilled guidance input.
    pub distilled_guidance: bool,
    /// Steering inputs.
    pub conditioning: Vec<ConditioningKind>,
    /// Adapters.
    pub adapters: Vec<AdapterKind>,
    /// Samplers; the first is the default.
    pub samplers: Vec<String>,
    /// Sigma schedules; the first is the default.
    pub schedulers: Vec<String>,
    /// Guidance methods; the first is the default.
    pub guidance_methods: Vec<String>,
    /// Quantizations.
    pub quants: Vec<Quant>,
}

/// A model as the catalog lists it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelDescriptor {
    /// Unique id within its kind: lower-case letters, digits and `_`.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// Model family, formed like an id.
    pub family: String,
    /// Tensor backend that runs it.
    pub backend: String,
    /// What it makes.
    pub modality: Modality,
    /// What it takes.
    pub capabilities: Capabilities,
    /// Components without which it can't be loaded.
    pub required_components: Vec<Role>,
}

fn is_identifier(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

fn repeats<T: Ord>(list: &[T]) -> bool {
    list.iter().collect::<BTreeSet<_>>().len() != list.len()
}

impl ModelDescriptor {
    /// The conformance sweep: ids and names well-formed, sizes ordered and non-zero, lists without repeats, every
    /// sampler, schedule and guidance method known.
    pub fn check(&self) -> Result<(), DescriptorProblem> {
        let c = &self.capabilities;
        let quants: Vec<String> = c.quants.iter().map(|q| format!("{q:?}")).collect();
        let problem = if !is_identifier(&self.id) {
            "the id must be lower-case letters, digits and '_'".into()
        } else if !is_identifier(&self.family) {
            format!("the family '{}' must be lower-case letters, digits and '_'", self.family)
        } else if self.name.trim().is_empty() || self.name.trim() != self.name {
            "the name must not be empty or padded".into()
        } else if !is_identifier(&self.backend) {
            format!("the backend '{}' is not a name", self.backend)
        } else if c.size.min == 0 || c.size.multiple == 0 || c.size.min > c.size.default || c.size.default > c.size.max
        {
            "sizes must be non-zero with min <= default <= max".into()
        } else if [c.size.min, c.size.max, c.size.default].iter().any(|s| s % c.size.multiple != 0) {
            format!("sizes must be multiples of {}", c.size.multiple)
        } else if c.max_count == 0 || c.default_steps == 0 || c.default_steps > c.max_steps {
            "counts and steps must be non-zero with default_steps <= max_steps".into()
        } else if !c.default_true_cfg.is_finite() || c.default_true_cfg < 0.0 {
            "default_true_cfg must be finite and not negative".into()
        } else if repeats(&c.conditioning)
            || repeats(&c.adapters)
            || repeats(&c.samplers)
            || repeats(&c.schedulers)
            || repeats(&c.guidance_methods)
            || repeats(&quants)
            || repeats(&self.required_components)
        {
            "a list repeats an entry".into()
        } else if let Some(unknown) = [
            (&c.samplers, KNOWN_SAMPLERS),
            (&c.schedulers, KNOWN_SCHEDULERS),
            (&c.guidance_methods, KNOWN_GUIDANCE_METHODS),
        ]
        .into_iter()
        .find_map(|(list, known)| list.iter().find(|name| !known.contains(&name.as_str())))
        {
            format!("'{unknown}' is not a known sampler, schedule or guidance method")
        } else {
            return Ok(());
        };
        Err(DescriptorProblem { id: self.id.clone(), problem })
    }

    /// Refuses whatever the capabilities don't list; the error names the field and what would be right.
    pub fn validate(&self, request: &GenerationRequest) -> Result<()> {
        request.check_finite()?;
        let c = &self.capabilities;
        for (field, value) in [("width", request.width), ("height", request.height)] {
            if value < c.size.min || value > c.size.max || value % c.size.multiple != 0 {
                return Err(Error::invalid(
                    field,
                    format!(
                        "{value} is not a size that {} can make; use a multiple of {} from {} to {}",
                        self.id, c.size.multiple, c.size.min, c.size.max
                    ),
                ));
            }
        }
        if request.count == 0 || request.count > c.max_count {
            return Err(Error::invalid(
                "count",
                format!("{} is out of range; use 1 to {}", request.count, c.max_count),
            ));
        }
        if let Some(steps) = request.steps.filter(|s| *s == 0 || *s > c.max_steps) {
            return Err(Error::invalid("steps", format!("{steps} is out of range; use 1 to {}", c.max_steps)));
        }
        if request.guidance.is_some_and(|g| g != 0.0) && !c.distilled_guidance {
            return Err(Error::invalid("guidance", format!("{} has no distilled guidance; use true_cfg", self.id)));
        }
        if request.true_cfg.is_some_and(|g| g < 0.0 || (g > 0.0 && !c.true_cfg)) {
            return Err(Error::invalid("true_cfg", "must be 0, or positive for a model that supports it"));
        }
        if request.cfg_normalization < 0.0 {
            return Err(Error::invalid("cfg_normalization", "must not be negative"));
        }
        if request.scheduler_shift.is_some_and(|s| s <= 0.0) {
            return Err(Error::invalid("scheduler_shift", "must be positive"));
        }
        for (field, asked, offered) in [
            ("sampler", &request.sampler, &c.samplers),
            ("scheduler", &request.scheduler, &c.schedulers),
            ("guidance_method", &request.guidance_method, &c.guidance_methods),
        ] {
            if let Some(name) = asked.as_ref().filter(|name| !offered.contains(name)) {
                return Err(Error::invalid(
                    field,
                    format!("'{name}' is not offered; use one of {}", offered.join(", ")),
                ));
            }
        }
        if request.strength.is_some_and(|s| !(0.0..=1.0).contains(&s)) {
            return Err(Error::invalid("strength", "must be from 0 to 1"));
        }
        self.validate_conditioning(&request.conditioning)?;
        let clip = [
            ("frames", request.frames.is_some()),
            ("fps", request.fps.is_some()),
            ("duration", request.duration.is_some()),
            ("audio", request.audio),
        ];
        if self.modality == Modality::Image
            && let Some((field, _)) = clip.into_iter().find(|(_, set)| *set)
        {
            return Err(Error::invalid(field, format!("{} makes pictures; leave it out", self.id)));
        }
        Ok(())
    }

    fn validate_conditioning(&self, inputs: &[ConditioningInput]) -> Result<()> {
        for input in inputs {
            if !self.capabilities.conditioning.contains(&input.kind()) {
                return Err(Error::invalid("conditioning", format!("{} takes no {:?} input", self.id, input.kind())));
            }
            if let ConditioningInput::Reference { strength, .. } = input
                && !(0.0..=1.0).contains(strength)
            {
                return Err(Error::invalid("strength", "must be from 0 to 1"));
            }
        }
        let references = inputs.iter().filter(|i| i.kind() == ConditioningKind::Reference).count();
        if references > 1 {
            return Err(Error::invalid("conditioning", "one Reference input at most; use MultiReference for several"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
