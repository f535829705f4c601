//! Opening a checkpoint: every component found, checked and measured from headers, before any weights are read.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use candle_core::{DType, Device};
use gen_core::{
    CancelFlag, ComponentFootprint, Denoiser, DiffusionModel, DiffusionRecipe, Error, Footprint, GuidanceRecipe,
    LoadContext, LoadSpec, ModelDescriptor, Precision, Quant, Result, Role, ScheduleRecipe, TextEncoder, Vae,
    WeightsSource,
};
use layers::decoder::{Decoder, DecoderConfig, Part};
use layers::text::{ChatTemplate, Tokenizer};
use layers::vae::{AutoencoderKl, VaeConfig, VaeDefaults};
use serde_json::Value;
use sha2::{Digest, Sha256};
use weights::{Checkpoint, Weights, describe_unknown, identify, plan_for};

use crate::locate::{self, Place};
use crate::text::Chat;
use crate::transformer::ZImageTransformer;
use crate::{ZImageConfig, ZImageDenoiser, ZImageTextEncoder, ZImageVae};

/// What the released autoencoder has where shapes say nothing.
pub(crate) const VAE_DEFAULTS: VaeDefaults =
    VaeDefaults { norm_groups: 32, scaling_factor: 0.3611, shift_factor: 0.1159 };
/// Time shift of the released schedules.
const SHIFT: f64 = 3.0;

/// Pixels that a latent cell covers, per side, where no VAE is at hand to tell.
const LATENT_FACTOR: usize = 8;
/// Latent cells that a token covers, per side, where no network is at hand to tell.
const PATCH: usize = 2;

/// A component that was opened: its weights, and what is built from them.
struct Opened<C> {
    weights: Weights,
    config: C,
    size: ComponentFootprint,
    fingerprint: String,
}

impl<C: std::fmt::Debug> Opened<C> {
    /// `beside` is what else the component is made from, such as a tokenizer.
    fn new(weights: Weights, config: C, size: ComponentFootprint, quant: Option<Quant>, beside: &[u8]) -> Self {
        let mut identity = Sha256::new();
        identity.update(format!("{} {:?} {quant:?} {config:?}", size.role, weights.dtype()));
        identity.update(weights.checkpoint().fingerprint());
        identity.update(beside);
        Self { weights, config, size, fingerprint: hex::encode(identity.finalize()) }
    }
}

/// A Z-Image checkpoint that was opened and checked, or one component of it.
pub struct ZImageModel {
    descriptor: ModelDescriptor,
    recipe: DiffusionRecipe,
    footprint: Footprint,
    fingerprint: String,
    transformer: Option<Opened<ZImageConfig>>,
    text: Option<(Opened<DecoderConfig>, Place)>,
    vae: Option<Opened<VaeConfig>>,
}

impl ZImageModel {
    /// Opens what `spec` says: a diffusers folder, single files, a file with everything, or files of the program.
    ///
    /// # Errors
    /// A component is missing, foreign or damaged, or the specification asks for what the family can't do.
    pub fn open(descriptor: &ModelDescriptor, spec: &LoadSpec) -> Result<Self> {
        refuse_unsupported(descriptor, spec)?;
        let dtype = dtype_of(spec.precision.unwrap_or_else(layers::best_cpu_precision));
        let wanted = |role: Role| spec.wants(role).then_some(());
        let transformer = wanted(Role::Denoiser).map(|()| open_transformer(spec, dtype)).transpose()?;
        let text = wanted(Role::TextEncoder).map(|()| open_text(spec, dtype)).transpose()?;
        let vae = wanted(Role::Vae).map(|()| open_vae(spec, dtype)).transpose()?;
        if let Some(network) = &transformer {
            let fits = |weights: &Weights, has: usize, takes: usize, what: &dyn Fn(usize) -> String| {
                let message =
                    format!("has {}, and the diffusion model takes {takes}; it belongs to another model", what(has));
                if has == takes { Ok(()) } else { Err(Error::weights(weights.checkpoint().path(), message)) }
            };
            if let Some((text, _)) = &text {
                let what = |width| format!("hidden states of width {width}");
                fits(&text.weights, text.config.heads.dim, network.config.caption_dim, &what)?;
            }
            if let Some(vae) = &vae {
                let what = |channels| format!("{channels} latent channels");
                fits(&vae.weights, vae.config.latent_channels, network.config.latent_channels, &what)?;
            }
        }
        let channels =
            [transformer.as_ref().map(|t| t.config.latent_channels), vae.as_ref().map(|v| v.config.latent_channels)];
        let recipe = DiffusionRecipe {
            // A text encoder knows nothing of latents.
            latent_channels: channels.into_iter().flatten().next().unwrap_or(0),
            latent_factor: vae.as_ref().map_or(LATENT_FACTOR, |vae| vae.config.factor()),
            patch: transformer.as_ref().map_or(PATCH, |network| network.config.patch),
            schedule: ScheduleRecipe::FlowMatch { shift: shift(spec)? },
            guidance: GuidanceRecipe::Extrapolate,
        };
        let opened = [
            text.as_ref().map(|(text, _)| (&text.size, &text.fingerprint)),
            transformer.as_ref().map(|network| (&network.size, &network.fingerprint)),
            vae.as_ref().map(|vae| (&vae.size, &vae.fingerprint)),
        ];
        let mut identity = Sha256::new();
        opened.iter().flatten().for_each(|(_, fingerprint)| identity.update(fingerprint));
        Ok(Self {
            descriptor: descriptor.clone(),
            recipe,
            footprint: Footprint { components: opened.iter().flatten().map(|(size, _)| (*size).clone()).collect() },
            fingerprint: hex::encode(identity.finalize()),
            transformer,
            text,
            vae,
        })
    }

    /// Reads the text encoder and tokenizer.
    ///
    /// # Errors
    /// As [`DiffusionModel::load_text_encoder`].
    pub fn text_encoder(&self, cancel: &CancelFlag) -> Result<ZImageTextEncoder> {
        cancel.check()?;
        let (text, tokenizer) = self.text.as_ref().ok_or_else(|| not_opened(Role::TextEncoder))?;
        let Place { source, folder } = tokenizer;
        let has_template = tokenizer.has("chat_template.jinja") || tokenizer.has("tokenizer_config.json");
        let tokenizer = Tokenizer::load(source, *folder)?;
        let template = if has_template { ChatTemplate::load(source, *folder)? } else { None };
        let chat = template.map_or(Chat::Turns, |template| Chat::Template(Box::new(template)));
        let Opened { weights, config, size, fingerprint } = text;
        let decoder = Decoder::new(&weights.clone().with_cancel(cancel), config.clone(), encoder_part(config))?;
        let (tokenizer, chat) = (Arc::new(tokenizer), Arc::new(chat));
        Ok(ZImageTextEncoder::new(tokenizer, chat, decoder, weights.dtype(), fingerprint.clone(), size.bytes))
    }

    /// Reads the denoiser.
    ///
    /// # Errors
    /// As [`DiffusionModel::load_denoiser`].
    pub fn denoiser(&self, cancel: &CancelFlag) -> Result<ZImageDenoiser> {
        let Opened { weights, config, size, .. } =
            self.transformer.as_ref().ok_or_else(|| not_opened(Role::Denoiser))?;
        let network = ZImageTransformer::new(&weights.clone().with_cancel(cancel), config.clone())?;
        Ok(ZImageDenoiser::new(network, size.bytes))
    }

    /// Reads the VAE.
    ///
    /// # Errors
    /// As [`DiffusionModel::load_vae`].
    pub fn vae(&self, cancel: &CancelFlag) -> Result<ZImageVae> {
        let Opened { weights, config, size, .. } = self.vae.as_ref().ok_or_else(|| not_opened(Role::Vae))?;
        let network = AutoencoderKl::new(&weights.clone().with_cancel(cancel), config.clone())?;
        Ok(ZImageVae::new(network, weights.dtype(), weights.device().clone(), size.bytes))
    }
}

impl DiffusionModel for ZImageModel {
    fn descriptor(&self) -> &ModelDescriptor {
        &self.descriptor
    }

    fn recipe(&self) -> &DiffusionRecipe {
        &self.recipe
    }

    fn footprint(&self) -> &Footprint {
        &self.footprint
    }

    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    fn component_fingerprint(&self, role: Role) -> String {
        let found = match role {
            Role::Denoiser => self.transformer.as_ref().map(|part| &part.fingerprint),
            Role::TextEncoder => self.text.as_ref().map(|(part, _)| &part.fingerprint),
            Role::Vae => self.vae.as_ref().map(|part| &part.fingerprint),
            _ => None,
        };
        found.cloned().unwrap_or_default()
    }

    fn load_text_encoder(&self, context: &LoadContext<'_>) -> Result<Arc<dyn TextEncoder>> {
        Ok(Arc::new(self.text_encoder(context.cancel)?))
    }

    fn load_denoiser(&self, context: &LoadContext<'_>) -> Result<Arc<dyn Denoiser>> {
        Ok(Arc::new(self.denoiser(context.cancel)?))
    }

    fn load_vae(&self, context: &LoadContext<'_>) -> Result<Arc<dyn Vae>> {
        Ok(Arc::new(self.vae(context.cancel)?))
    }
}

pub(crate) fn dtype_of(precision: Precision) -> DType {
    match precision {
        Precision::F32 => DType::F32,
        Precision::Bf16 => DType::BF16,
        Precision::F16 => DType::F16,
    }
}

fn refuse_unsupported(descriptor: &ModelDescriptor, spec: &LoadSpec) -> Result<()> {
    let capabilities = &descriptor.capabilities;
    let refusal = if spec.quant.is_some_and(|quant| !capabilities.quants.contains(&quant)) {
        format!("{} can't be quantized while it loads", descriptor.id)
    } else if spec.control.is_some() || !spec.extra_controls.is_empty() {
        format!("{} takes no control model", descriptor.id)
    } else if spec.ip_adapter.is_some() {
        format!("{} takes no picture-prompt adapter", descriptor.id)
    } else if spec.adapters.iter().any(|adapter| !capabilities.adapters.contains(&adapter.kind)) {
        format!("{} takes no adapters of that kind", descriptor.id)
    } else {
        return Ok(());
    };
    Err(Error::Unsupported(refusal))
}

/// The component at `place`, which must be of that role and family.
fn view(place: &Place, role: Role, family: &str, dtype: DType) -> Result<Weights> {
    let checkpoint = Checkpoint::from_source(&place.source, place.folder)?;
    let found = identify(&checkpoint);
    let Some(identity) = found.iter().find(|i| i.role == Some(role) && i.family == family) else {
        let seen = match found.first() {
            Some(other) => format!(
                "is {} of the family {}",
                other.role.map_or("an adapter".into(), |r| format!("a {r}")),
                other.family
            ),
            None => describe_unknown(&checkpoint),
        };
        return Err(Error::weights(
            checkpoint.path(),
            format!("{seen}; a {role} of the family {family} is needed here"),
        ));
    };
    let mut plan = plan_for(identity, &checkpoint)
        .ok_or_else(|| Error::weights(checkpoint.path(), format!("has a layout of {family} that can't be read")))?;
    if found.len() > 1 {
        plan = plan.within(identity.prefix);
    }
    Weights::new(Arc::new(checkpoint), &plan, dtype, Device::Cpu)
}

/// All layers but the last, whose output the family doesn't use.
fn encoder_part(config: &DecoderConfig) -> Part {
    Part::Layers(config.layers.saturating_sub(1))
}

fn not_opened(role: Role) -> Error {
    Error::Unsupported(format!("this model was opened without its {role}"))
}

fn open_transformer(spec: &LoadSpec, dtype: DType) -> Result<Opened<ZImageConfig>> {
    let place = locate::component(spec, Role::Denoiser, "transformer")?;
    let weights = view(&place, Role::Denoiser, "z_image", dtype)?.with_quant(spec.quant);
    let config = ZImageConfig::new(&weights, place.config("_class_name", "ZImage")?.as_ref())?;
    let dry = weights.dry_run();
    ZImageTransformer::new(&dry, config.clone())?;
    let size = measure(&dry, Role::Denoiser, |_| false)?;
    Ok(Opened::new(weights, config, size, spec.quant, &[]))
}

fn open_text(spec: &LoadSpec, dtype: DType) -> Result<(Opened<DecoderConfig>, Place)> {
    let place = locate::component(spec, Role::TextEncoder, "text_encoder")?;
    let tokenizer = locate::tokenizer(spec, &place)?;
    let weights = view(&place, Role::TextEncoder, "qwen3", dtype)?.with_quant(spec.quant);
    let config = DecoderConfig::new(&weights, place.config("model_type", "qwen3")?.as_ref())?;
    let size = measure_text(&weights, &config)?;
    let mut identity = Sha256::new();
    identify_tokenizer(&tokenizer, &mut identity)?;
    Ok((Opened::new(weights, config, size, spec.quant, &identity.finalize()), tokenizer))
}

fn open_vae(spec: &LoadSpec, dtype: DType) -> Result<Opened<VaeConfig>> {
    let place = locate::component(spec, Role::Vae, "vae")?;
    let weights = view(&place, Role::Vae, "autoencoder_kl", dtype)?;
    let config = VaeConfig::new(&weights, place.config("_class_name", "AutoencoderKL")?.as_ref(), VAE_DEFAULTS)?;
    let dry = weights.dry_run();
    AutoencoderKl::new(&dry, config.clone())?;
    let size = measure(&dry, Role::Vae, |_| false)?;
    Ok(Opened::new(weights, config, size, None, &[]))
}

fn measure_text(weights: &Weights, config: &DecoderConfig) -> Result<ComponentFootprint> {
    let dry = weights.dry_run();
    Decoder::new(&dry, config.clone(), encoder_part(config))?;
    let last = format!("layers.{}.", config.layers.saturating_sub(1));
    // Read row by row from the file when a prompt is encoded.
    dry.get(&[config.vocabulary, config.heads.dim], "embed_tokens.weight")?;
    let mut size = measure(&dry, Role::TextEncoder, |name| {
        name.starts_with(&last) || matches!(name, "norm.weight" | "lm_head.weight")
    })?;
    size.bytes = size.bytes.saturating_sub(dry.held_bytes("embed_tokens.weight"));
    Ok(size)
}

/// Sizes of everything that a rehearsal asked for. What it didn't ask for must be `droppable`.
fn measure(dry: &Weights, role: Role, droppable: impl Fn(&str) -> bool) -> Result<ComponentFootprint> {
    let unused = dry.unused();
    let unknown: Vec<&String> = unused.iter().filter(|name| !droppable(name)).collect();
    if let Some(first) = unknown.first() {
        let message =
            format!("is one of {} tensors that the {role} doesn't know; this is another variant of it", unknown.len());
        return Err(Error::tensor(dry.checkpoint().path(), *first, message));
    }
    let unused: BTreeSet<&str> = unused.iter().map(String::as_str).collect();
    let mut size = ComponentFootprint { role, parameters: 0, bytes: 0, quantizable_bytes: 0 };
    for name in dry.names().filter(|name| !unused.contains(name)) {
        size.parameters += dry.shape(name).unwrap_or_default().iter().product::<usize>() as u64;
        size.bytes += dry.held_bytes(name);
        size.quantizable_bytes += dry.quantizable_bytes(name);
    }
    Ok(size)
}

/// The static shift of the model's own schedule, else the released models'.
fn shift(spec: &LoadSpec) -> Result<f32> {
    let place = Place { source: spec.source.clone(), folder: Some("scheduler") };
    let config =
        if matches!(spec.source, WeightsSource::File(_)) { None } else { place.json("scheduler_config.json")? };
    let shift = config.as_ref().and_then(|c| c.get("shift")).and_then(Value::as_f64).unwrap_or(SHIFT);
    if !(shift.is_finite() && shift > 0.0) {
        return Err(Error::weights(place.path().join("scheduler_config.json"), format!("has a shift of {shift}")));
    }
    Ok(shift as f32)
}

/// Bytes of a tokenizer that is part of the program, else size and time of its files.
fn identify_tokenizer(place: &Place, identity: &mut Sha256) -> Result<()> {
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        if let Some(bytes) = place.embedded(name) {
            identity.update(bytes);
        } else if place.has(name) {
            let path = place.file(name);
            let unreadable = |e: std::io::Error| Error::weights(&path, format!("can't be read: {e}"));
            let mut file = File::open(&path).map_err(unreadable)?;
            let meta = file.metadata().map_err(unreadable)?;
            let modified = meta.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            identity.update(meta.len().to_le_bytes());
            identity.update(modified.map_or(0, |time| time.as_nanos()).to_le_bytes());
            if name.ends_with(".json") && !ends_with_brace(&mut file, meta.len()).map_err(unreadable)? {
                return Err(Error::weights(&path, "is cut off; copy or download it again"));
            }
        }
    }
    Ok(())
}

/// Whether the last character is the end of a JSON object: cheap for files of many megabytes.
fn ends_with_brace(file: &mut File, len: u64) -> std::io::Result<bool> {
    let mut tail = Vec::new();
    file.seek(SeekFrom::Start(len.saturating_sub(64)))?;
    file.read_to_end(&mut tail)?;
    Ok(tail.trim_ascii_end().last() == Some(&b'}'))
}
