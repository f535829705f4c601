//! The library's generator: the pipeline over the components of one loaded model.

use crate::pipeline::{self, Components};
use crate::{InlineSampler, SampleService};
use gen_core::{
    CancelFlag, Denoiser, DiffusionModel, GenerationOutput, GenerationRequest, Generator, LoadContext, ModelDescriptor,
    OffloadPolicy, Progress, Result, Role, TextEncoder, Vae,
};
use std::sync::{Arc, Mutex, PoisonError};

/// A [`Generator`] over any diffusion family.
pub struct DiffusionGenerator {
    model: Arc<dyn DiffusionModel>,
    offload: OffloadPolicy,
    sampler: Arc<dyn SampleService>,
    loaded: Loaded,
}

#[derive(Default)]
struct Loaded {
    text_encoder: Mutex<Option<Arc<dyn TextEncoder>>>,
    denoiser: Mutex<Option<Arc<dyn Denoiser>>>,
    vae: Mutex<Option<Arc<dyn Vae>>>,
}

impl DiffusionGenerator {
    /// Makes a generator of an opened model. When resident, every component is loaded now, so that a damaged checkpoint
    /// fails here and not in mid-render.
    ///
    /// # Errors
    /// A component can't be loaded, or the load was cancelled.
    pub fn open(model: Arc<dyn DiffusionModel>, offload: OffloadPolicy, context: &LoadContext<'_>) -> Result<Self> {
        let generator = Self { model, offload, sampler: Arc::new(InlineSampler), loaded: Loaded::default() };
        if offload == OffloadPolicy::Resident {
            let session = generator.session(context.cancel);
            session.text_encoder()?;
            session.denoiser()?;
            session.vae()?;
        }
        Ok(generator)
    }

    /// Samples through `sampler` instead of the calling thread.
    #[must_use]
    pub fn with_sampler(self, sampler: Arc<dyn SampleService>) -> Self {
        Self { sampler, ..self }
    }

    /// The opened model.
    pub fn model(&self) -> &dyn DiffusionModel {
        &*self.model
    }

    fn session<'a>(&'a self, cancel: &'a CancelFlag) -> Session<'a> {
        Session { generator: self, context: LoadContext { cancel } }
    }
}

impl Generator for DiffusionGenerator {
    fn descriptor(&self) -> &ModelDescriptor {
        self.model.descriptor()
    }

    fn validate(&self, request: &GenerationRequest) -> Result<()> {
        pipeline::plan(self.descriptor(), self.model.recipe(), request).map(|_| ())
    }

    fn generate(&self, request: &GenerationRequest, progress: &mut dyn FnMut(Progress)) -> Result<GenerationOutput> {
        let session = self.session(&request.cancel);
        let (model, recipe) = (self.model.descriptor(), self.model.recipe());
        let images = pipeline::render(model, recipe, &session, &*self.sampler, request, progress)?;
        Ok(GenerationOutput::Images(images))
    }
}

/// The generator's components for one request, whose cancel flag also stops loads.
struct Session<'a> {
    generator: &'a DiffusionGenerator,
    context: LoadContext<'a>,
}

fn get_or_load<T: ?Sized>(slot: &Mutex<Option<Arc<T>>>, load: impl FnOnce() -> Result<Arc<T>>) -> Result<Arc<T>> {
    // Held while loading, so that two requests don't read the same weights twice.
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(component) = slot.as_ref() {
        return Ok(Arc::clone(component));
    }
    let component = load()?;
    *slot = Some(Arc::clone(&component));
    Ok(component)
}

fn clear<T: ?Sized>(slot: &Mutex<Option<Arc<T>>>) {
    *slot.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

impl Components for Session<'_> {
    fn text_encoder(&self) -> Result<Arc<dyn TextEncoder>> {
        let generator = self.generator;
        get_or_load(&generator.loaded.text_encoder, || generator.model.load_text_encoder(&self.context))
    }

    fn denoiser(&self) -> Result<Arc<dyn Denoiser>> {
        let generator = self.generator;
        get_or_load(&generator.loaded.denoiser, || generator.model.load_denoiser(&self.context))
    }

    fn vae(&self) -> Result<Arc<dyn Vae>> {
        let generator = self.generator;
        get_or_load(&generator.loaded.vae, || generator.model.load_vae(&self.context))
    }

    fn release(&self, role: Role) {
        if self.generator.offload == OffloadPolicy::Resident {
            return;
        }
        let loaded = &self.generator.loaded;
        match role {
            Role::TextEncoder => clear(&loaded.text_encoder),
            Role::Denoiser => clear(&loaded.denoiser),
            Role::Vae => clear(&loaded.vae),
            _ => {}
        }
    }

    fn model_key(&self) -> String {
        self.generator.model.fingerprint().to_owned()
    }
}
