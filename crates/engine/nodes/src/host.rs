//! Models opened through the bundle's registry, placed by the device policy, their components shared by every node.

use crate::lock;
use crate::pool::{Component, ComponentPool, Wanted};
use crate::prompts::PromptMemory;
use core_llm::TextLlm;
use engine_device::{DevicePolicy, ModelNeeds, Plan};
use gen_core::{
    CancelFlag, Conditioning, Denoiser, DiffusionModel, Error, Image, Latents, LoadContext, LoadSpec, OffloadPolicy,
    PreviewProjection, ProviderRegistry, Quant, Result, Role, TextEmbedder, TextEncoder, Vae,
};
use sampling::{fit_preview, preview_image};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use weights::source_stamp;

/// Opened checkpoints that are remembered: headers and file maps, no weights.
const REMEMBERED_MODELS: usize = 32;

/// Opens models and keeps their components while they fit beside each other.
pub struct ModelHost {
    registry: Arc<ProviderRegistry>,
    policy: DevicePolicy,
    /// Each with the stamp of what it was opened from, least recently used first.
    models: Mutex<VecDeque<(String, Arc<HostedModel>)>>,
    shared: Arc<Shared>,
}

/// What all models of a host share.
struct Shared {
    pool: ComponentPool,
    prompts: PromptMemory,
    /// Linear maps from latents to colours, by VAE; `None` for one that can't be fitted.
    projections: Mutex<HashMap<String, Option<Arc<PreviewProjection>>>>,
}

impl ModelHost {
    /// A host without models.
    pub fn new(registry: Arc<ProviderRegistry>, policy: DevicePolicy) -> Self {
        let capacity = policy.capacity().saturating_sub(engine_device::ACTIVATION_HEADROOM);
        let shared = Shared {
            pool: ComponentPool::new(capacity),
            prompts: PromptMemory::default(),
            projections: Mutex::default(),
        };
        Self { registry, policy, models: Mutex::default(), shared: Arc::new(shared) }
    }

    /// The policy that places models.
    pub fn policy(&self) -> &DevicePolicy {
        &self.policy
    }

    /// The providers that models are opened with.
    pub fn registry(&self) -> &ProviderRegistry {
        &self.registry
    }

    /// Bytes of the weights in memory.
    pub fn resident_bytes(&self) -> u64 {
        self.shared.pool.bytes()
    }

    /// Opens `spec` as the generator `id`, or finds it open. Only headers are read; the plan is made before any load.
    ///
    /// # Errors
    /// The checkpoint can't be opened, or no rung of the fit ladder can hold it.
    pub fn open(&self, id: &str, spec: LoadSpec) -> Result<Arc<HostedModel>> {
        let stamp = spec_stamp(id, &spec);
        if let Some(hosted) = self.opened(&stamp) {
            return Ok(hosted);
        }
        let precision = self.policy.dtype(spec.only.unwrap_or(Role::Denoiser));
        let spec = spec.with_precision(precision);
        let model = self.registry.open(id, &spec)?;
        let quants: &[Quant] = &model.descriptor().capabilities.quants;
        let needs = ModelNeeds { footprint: model.footprint(), precision, quants, ships_quantized: false };
        let plan = self.policy.plan(&needs).map_err(|refusal| Error::Unsupported(refusal.to_string()))?;
        let model = match plan.placement(Role::Denoiser).quant {
            Some(quant) => self.registry.open(id, &spec.with_quant(quant))?,
            None => model,
        };
        let key = format!("{id} {}", model.fingerprint());
        let hosted = Arc::new(HostedModel { key, model, plan, shared: Arc::clone(&self.shared) });
        let mut models = lock(&self.models);
        models.push_back((stamp, Arc::clone(&hosted)));
        if models.len() > REMEMBERED_MODELS {
            models.pop_front();
        }
        Ok(hosted)
    }

    /// A language model, loaded if need be.
    pub(crate) fn language(
        &self,
        key: &str,
        bytes: u64,
        cancel: &CancelFlag,
        load: impl FnOnce() -> Result<Arc<dyn TextLlm>>,
    ) -> Result<Arc<dyn TextLlm>> {
        match self.shared.pool.get(&Wanted { key, bytes }, cancel, || load().map(Component::Language))? {
            Component::Language(model) => Ok(model),
            _ => Err(mixed_up(Role::TextEncoder)),
        }
    }

    /// A text embedder, loaded if need be.
    pub(crate) fn embedder(
        &self,
        key: &str,
        bytes: u64,
        cancel: &CancelFlag,
        load: impl FnOnce() -> Result<Arc<dyn TextEmbedder>>,
    ) -> Result<Arc<dyn TextEmbedder>> {
        match self.shared.pool.get(&Wanted { key, bytes }, cancel, || load().map(Component::Embedder))? {
            Component::Embedder(model) => Ok(model),
            _ => Err(mixed_up(Role::TextEncoder)),
        }
    }

    fn opened(&self, stamp: &str) -> Option<Arc<HostedModel>> {
        let mut models = lock(&self.models);
        let index = models.iter().position(|(known, _)| known == stamp)?;
        let entry = models.remove(index)?;
        let hosted = Arc::clone(&entry.1);
        models.push_back(entry);
        Some(hosted)
    }
}

/// What decides what opening `spec` gives, as of now: everything that nodes set, and the files' sizes and times.
fn spec_stamp(id: &str, spec: &LoadSpec) -> String {
    let mut stamp = format!("{id} {:?}\n{}", spec.only, source_stamp(&spec.source));
    for (role, source) in &spec.components {
        stamp.push_str(&format!("{role} {}", source_stamp(source)));
    }
    stamp
}

/// An open model with its plan. Its components are the host's.
pub struct HostedModel {
    key: String,
    model: Arc<dyn DiffusionModel>,
    plan: Plan,
    shared: Arc<Shared>,
}

impl HostedModel {
    /// The opened checkpoint.
    pub fn model(&self) -> &dyn DiffusionModel {
        &*self.model
    }

    /// How it is held.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Identity of generator and weights, for caches.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Identity of the diffusion network as it is held, for batching: the same in every model that shares it.
    pub fn network_key(&self) -> String {
        self.model.component_fingerprint(Role::Denoiser)
    }

    /// The text encoder, behind the memory of encoded prompts: a known prompt loads nothing.
    pub fn text_encoder(self: &Arc<Self>) -> Arc<dyn TextEncoder> {
        Arc::new(RememberingEncoder(Arc::clone(self)))
    }

    /// The denoiser, loaded on first use.
    ///
    /// # Errors
    /// The weights can't be read, or cancelled.
    pub fn denoiser(&self, cancel: &CancelFlag) -> Result<Arc<dyn Denoiser>> {
        let load = || Ok(Component::Denoiser(self.model.load_denoiser(&LoadContext { cancel })?));
        match self.component(Role::Denoiser, cancel, load)? {
            Component::Denoiser(denoiser) => Ok(denoiser),
            _ => Err(mixed_up(Role::Denoiser)),
        }
    }

    /// The VAE, loaded on first use.
    ///
    /// # Errors
    /// As [`Self::denoiser`].
    pub fn vae(&self, cancel: &CancelFlag) -> Result<Arc<dyn Vae>> {
        let load = || Ok(Component::Vae(self.model.load_vae(&LoadContext { cancel })?));
        match self.component(Role::Vae, cancel, load)? {
            Component::Vae(vae) => Ok(vae),
            _ => Err(mixed_up(Role::Vae)),
        }
    }

    fn component(
        &self,
        role: Role,
        cancel: &CancelFlag,
        load: impl FnOnce() -> Result<Component>,
    ) -> Result<Component> {
        let key = self.model.component_fingerprint(role);
        self.shared.pool.get(&Wanted { key: &key, bytes: self.model.footprint().bytes(role) }, cancel, load)
    }

    /// A small picture of one row of latents, by a linear map that is fitted to the VAE when it is first needed and there
    /// is room for the VAE; `None` until then.
    pub fn preview(&self, latents: &Latents, cancel: &CancelFlag) -> Option<Image> {
        preview_image(&*self.projection(cancel)?, latents)
    }

    fn projection(&self, cancel: &CancelFlag) -> Option<Arc<PreviewProjection>> {
        // A network that was opened alone has no VAE to ask.
        self.model.footprint().components.iter().find(|component| component.role == Role::Vae)?;
        let key = self.model.component_fingerprint(Role::Vae);
        if let Some(known) = lock(&self.shared.projections).get(&key) {
            return known.clone();
        }
        let load = || Ok(Component::Vae(self.model.load_vae(&LoadContext { cancel })?));
        let wanted = Wanted { key: &key, bytes: self.model.footprint().bytes(Role::Vae) };
        // The caller holds the denoiser; waiting for more room than there is could last for ever.
        let fitted = match self.shared.pool.get_without_waiting(&wanted, cancel, load) {
            Ok(Some(Component::Vae(vae))) => fit_preview(&*vae, self.model.recipe().latent_factor, cancel),
            Ok(_) => return None,
            Err(error) => Err(error),
        };
        if matches!(fitted, Err(Error::Cancelled)) {
            return None;
        }
        let projection = fitted.map(Arc::new).inspect_err(|error| tracing::warn!(%error, "no previews")).ok();
        lock(&self.shared.projections).insert(key, projection.clone());
        projection
    }

    /// Drops a component when the plan holds one at a time; otherwise it stays for the next run.
    pub fn release(&self, role: Role) {
        if self.plan.placement(role).offload == OffloadPolicy::Sequential {
            self.shared.pool.drop_idle(&self.model.component_fingerprint(role));
        }
    }
}

fn mixed_up(role: Role) -> Error {
    Error::Backend(format!("what is held under the {role}'s fingerprint is another component"))
}

struct RememberingEncoder(Arc<HostedModel>);

impl TextEncoder for RememberingEncoder {
    fn encode(&self, prompt: &str, cancel: &CancelFlag) -> Result<Conditioning> {
        let hosted = &*self.0;
        let key = hosted.model.component_fingerprint(Role::TextEncoder);
        if let Some(conditioning) = hosted.shared.prompts.get(&key, prompt) {
            return Ok(conditioning);
        }
        let load = || Ok(Component::TextEncoder(hosted.model.load_text_encoder(&LoadContext { cancel })?));
        let Component::TextEncoder(encoder) = hosted.component(Role::TextEncoder, cancel, load)? else {
            return Err(mixed_up(Role::TextEncoder));
        };
        let conditioning = encoder.encode(prompt, cancel)?;
        hosted.shared.prompts.put(&key, prompt, &conditioning);
        Ok(conditioning)
    }

    fn resident_bytes(&self) -> u64 {
        self.0.model.footprint().bytes(Role::TextEncoder)
    }
}
