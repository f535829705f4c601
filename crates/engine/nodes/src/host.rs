//! Loaded models: opened through the bundle's registry, placed by the device policy, shared by every node.

use engine_device::{DevicePolicy, ModelNeeds, Plan};
use gen_core::{
    CancelFlag, Conditioning, Denoiser, DiffusionModel, Error, Image, Latents, LoadContext, LoadSpec, OffloadPolicy,
    ProviderRegistry, Quant, Result, Role, TextEncoder, Vae,
};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Prompts whose conditioning is remembered a model.
const REMEMBERED_PROMPTS: usize = 64;

/// Opens models and keeps them while they fit beside each other.
pub struct ModelHost {
    registry: Arc<ProviderRegistry>,
    policy: DevicePolicy,
    models: Mutex<Vec<Arc<HostedModel>>>,
}

impl ModelHost {
    /// A host without models.
    pub fn new(registry: Arc<ProviderRegistry>, policy: DevicePolicy) -> Self {
        Self { registry, policy, models: Mutex::default() }
    }

    /// The policy that places models.
    pub fn policy(&self) -> &DevicePolicy {
        &self.policy
    }

    /// The providers that models are opened with.
    pub fn registry(&self) -> &ProviderRegistry {
        &self.registry
    }

    /// Opens `spec` as the generator `id`, or finds it open. Only headers are read; the plan is made before any load.
    /// Models that no longer fit beside it are dropped, least recently used first.
    ///
    /// # Errors
    /// The checkpoint can't be opened, or no rung of the fit ladder can hold it.
    pub fn open(&self, id: &str, spec: LoadSpec) -> Result<Arc<HostedModel>> {
        let precision = self.policy.dtype(Role::Denoiser);
        let spec = spec.with_precision(precision);
        let model = self.registry.open(id, &spec)?;
        let key = format!("{id} {}", model.fingerprint());
        let mut models = lock(&self.models);
        if let Some(index) = models.iter().position(|hosted| hosted.key == key) {
            let hosted = models.remove(index);
            models.push(Arc::clone(&hosted));
            return Ok(hosted);
        }
        let quants: &[Quant] = &model.descriptor().capabilities.quants;
        let needs = ModelNeeds { footprint: model.footprint(), precision, quants, ships_quantized: false };
        let plan = self.policy.plan(&needs).map_err(|refusal| Error::Unsupported(refusal.to_string()))?;
        let placement = plan.placement(Role::Denoiser);
        let model = match placement.quant {
            Some(quant) => self.registry.open(id, &spec.with_quant(quant))?,
            None => model,
        };
        let capacity = self.policy.capacity().saturating_sub(engine_device::ACTIVATION_HEADROOM);
        let resident = |models: &[Arc<HostedModel>]| models.iter().map(|m| m.plan.device_bytes).sum::<u64>();
        while !models.is_empty() && resident(&models) + plan.device_bytes > capacity {
            let evicted = models.remove(0);
            tracing::info!(model = %evicted.key, "dropped to make room");
        }
        let hosted = Arc::new(HostedModel::new(key, model, plan));
        models.push(Arc::clone(&hosted));
        Ok(hosted)
    }
}

/// A component that is loaded on first use and may be dropped in between.
struct Slot<T: ?Sized>(Mutex<Option<Arc<T>>>);

impl<T: ?Sized> Slot<T> {
    fn get_or_load(&self, load: impl FnOnce() -> Result<Arc<T>>) -> Result<Arc<T>> {
        // Held while loading, so that two runs don't read the same weights twice.
        let mut slot = lock(&self.0);
        if let Some(component) = slot.as_ref() {
            return Ok(Arc::clone(component));
        }
        let component = load()?;
        *slot = Some(Arc::clone(&component));
        Ok(component)
    }

    fn clear(&self) {
        *lock(&self.0) = None;
    }
}

/// An open model with its plan, its loaded components and the prompts that it has encoded.
pub struct HostedModel {
    key: String,
    model: Arc<dyn DiffusionModel>,
    plan: Plan,
    text_encoder: Slot<dyn TextEncoder>,
    denoiser: Slot<dyn Denoiser>,
    vae: Slot<dyn Vae>,
    prompts: Mutex<VecDeque<(String, Conditioning)>>,
}

impl HostedModel {
    fn new(key: String, model: Arc<dyn DiffusionModel>, plan: Plan) -> Self {
        Self {
            key,
            model,
            plan,
            text_encoder: Slot(Mutex::default()),
            denoiser: Slot(Mutex::default()),
            vae: Slot(Mutex::default()),
            prompts: Mutex::default(),
        }
    }

    /// The opened checkpoint.
    pub fn model(&self) -> &dyn DiffusionModel {
        &*self.model
    }

    /// How it is held.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Identity of generator and weights, for batching and caches.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The text encoder, behind the memory of encoded prompts: a known prompt loads nothing.
    pub fn text_encoder(self: &Arc<Self>) -> Arc<dyn TextEncoder> {
        Arc::new(RememberingEncoder(Arc::clone(self)))
    }

    /// The denoiser, loaded on first use.
    pub fn denoiser(&self, cancel: &CancelFlag) -> Result<Arc<dyn Denoiser>> {
        self.denoiser.get_or_load(|| self.model.load_denoiser(&LoadContext { cancel }))
    }

    /// The VAE, loaded on first use.
    pub fn vae(&self, cancel: &CancelFlag) -> Result<Arc<dyn Vae>> {
        self.vae.get_or_load(|| self.model.load_vae(&LoadContext { cancel }))
    }

    /// A small picture of latents, by the VAE's linear map; only when the VAE is loaded and has one.
    pub fn preview(&self, latents: &Latents) -> Option<Image> {
        let projection = lock(&self.vae.0).as_ref()?.preview()?;
        let &[_, channels, height, width] = latents.shape() else { return None };
        let cells = height * width;
        let mut pixels = Vec::with_capacity(cells * 3);
        for cell in 0..cells {
            for rgb in 0..3 {
                let channel = |c: usize| latents.data()[c * cells + cell] * projection.weights[c][rgb];
                let value =
                    projection.bias[rgb] + (0..channels.min(projection.weights.len())).map(channel).sum::<f32>();
                pixels.push((value.clamp(0.0, 1.0) * 255.0).round() as u8);
            }
        }
        Image::new(width as u32, height as u32, pixels).ok()
    }

    /// Drops a component when the plan holds one at a time; otherwise it stays for the next run.
    pub fn release(&self, role: Role) {
        if self.plan.placement(role).offload != OffloadPolicy::Sequential {
            return;
        }
        match role {
            Role::TextEncoder => self.text_encoder.clear(),
            Role::Denoiser => self.denoiser.clear(),
            Role::Vae => self.vae.clear(),
            _ => {}
        }
    }

    fn remembered(&self, prompt: &str) -> Option<Conditioning> {
        let mut prompts = lock(&self.prompts);
        let index = prompts.iter().position(|(known, _)| known == prompt)?;
        let entry = prompts.remove(index)?;
        let conditioning = entry.1.clone();
        prompts.push_back(entry);
        Some(conditioning)
    }

    fn remember(&self, prompt: &str, conditioning: &Conditioning) {
        let mut prompts = lock(&self.prompts);
        prompts.push_back((prompt.to_owned(), conditioning.clone()));
        if prompts.len() > REMEMBERED_PROMPTS {
            prompts.pop_front();
        }
    }
}

struct RememberingEncoder(Arc<HostedModel>);

impl TextEncoder for RememberingEncoder {
    fn encode(&self, prompt: &str, cancel: &CancelFlag) -> Result<Conditioning> {
        let hosted = &self.0;
        if let Some(conditioning) = hosted.remembered(prompt) {
            return Ok(conditioning);
        }
        let load = || hosted.model.load_text_encoder(&LoadContext { cancel });
        let conditioning = hosted.text_encoder.get_or_load(load)?.encode(prompt, cancel)?;
        hosted.remember(prompt, &conditioning);
        Ok(conditioning)
    }

    fn resident_bytes(&self) -> u64 {
        lock(&self.0.text_encoder.0).as_ref().map_or(0, |encoder| encoder.resident_bytes())
    }
}

/// A panic elsewhere doesn't make the caches wrong, so a poisoned lock is used on.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
