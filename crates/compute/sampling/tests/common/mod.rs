//! A toy model whose parts are a line of arithmetic each, and what it was asked.

#![allow(dead_code, clippy::unwrap_used)] // each test file uses its own part

use gen_core::*;
use sampling::{Guidance, SampleJob, SamplerKind, TorchRng};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

/// What happened, in order.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub fn add(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Says when a component is dropped.
pub struct Held(Log, &'static str);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.add(format!("drop {}", self.1));
    }
}

pub type Hook = Arc<dyn Fn(usize) -> Result<()> + Send + Sync>;

pub fn no_hook() -> Hook {
    Arc::new(|_| Ok(()))
}

/// The prompt's length is its meaning.
pub struct ToyEncoder(Held);

impl TextEncoder for ToyEncoder {
    fn encode(&self, prompt: &str, cancel: &CancelFlag) -> Result<Conditioning> {
        self.0.0.add(format!("encode '{prompt}'"));
        cancel.check()?;
        Ok(conditioning(prompt))
    }

    fn resident_bytes(&self) -> u64 {
        1
    }
}

pub fn conditioning(prompt: &str) -> Conditioning {
    Conditioning::new(prompt, prompt.len(), prompt.len() as f32)
}

/// `tanh(x) * sigma + 0.01 * meaning`, row by row.
pub fn toy_velocity(x: f32, sigma: f32, conditioning: &Conditioning) -> f32 {
    x.tanh() * sigma + 0.01 * conditioning.downcast::<f32>().unwrap()
}

pub struct ToyDenoiser {
    /// Called before each forward pass with its number, from 1.
    pub hook: Hook,
    /// Sigma and prompts of every pass.
    pub passes: Mutex<Vec<(f32, Vec<String>)>>,
    held: Option<Held>,
}

impl ToyDenoiser {
    pub fn new(hook: Hook) -> Arc<Self> {
        Arc::new(Self { hook, passes: Mutex::default(), held: None })
    }

    pub fn passes(&self) -> Vec<(f32, Vec<String>)> {
        self.passes.lock().unwrap().clone()
    }
}

impl Denoiser for ToyDenoiser {
    fn predict(
        &self,
        latents: &Latents,
        sigma: f32,
        conditioning: &[&Conditioning],
        context: &StepContext<'_>,
    ) -> Result<Latents> {
        assert_eq!(conditioning.len(), latents.batch());
        let prompts = conditioning.iter().map(|c| c.fingerprint().to_owned()).collect();
        let number = {
            let mut passes = self.passes.lock().unwrap();
            passes.push((sigma, prompts));
            passes.len()
        };
        (self.hook)(number)?;
        context.cancel.check()?;
        let mut values = Vec::with_capacity(latents.data().len());
        for (row, c) in latents.data().chunks(latents.row_len()).zip(conditioning) {
            // A prompt that no network could stand.
            let broken = if c.fingerprint() == "poison" { f32::NAN } else { 0.0 };
            values.extend(row.iter().map(|x| toy_velocity(*x, sigma, c) + broken));
        }
        Latents::new(latents.shape().to_vec(), values)
    }

    fn resident_bytes(&self) -> u64 {
        2
    }
}

/// One latent cell is a pixel in grey.
pub struct ToyVae(Held, Hook);

impl Vae for ToyVae {
    fn encode(&self, image: &Image, cancel: &CancelFlag) -> Result<LatentDistribution> {
        self.0.0.add("encode picture");
        (self.1)(0)?;
        cancel.check()?;
        let shape = vec![1, 1, image.height() as usize, image.width() as usize];
        let mean: Vec<f32> = image.pixels().chunks(3).map(|p| f32::from(p[0]) / 127.5 - 1.0).collect();
        let std = Latents::new(shape.clone(), vec![0.25; mean.len()])?;
        Ok(LatentDistribution { mean: Latents::new(shape, mean)?, std })
    }

    fn decode(&self, latents: &Latents, cancel: &CancelFlag) -> Result<Image> {
        self.0.0.add("decode");
        (self.1)(1)?;
        cancel.check()?;
        let &[1, 1, height, width] = latents.shape() else { panic!("{:?}", latents.shape()) };
        let grey = latents.data().iter().flat_map(|x| [((x + 1.0) * 127.5).round().clamp(0.0, 255.0) as u8; 3]);
        Image::new(width as u32, height as u32, grey.collect())
    }

    fn resident_bytes(&self) -> u64 {
        3
    }
}

pub struct ToyModel {
    pub descriptor: ModelDescriptor,
    pub recipe: DiffusionRecipe,
    pub log: Log,
    /// Before each forward pass.
    pub denoiser_hook: Hook,
    /// 0 for an encode, 1 for a decode.
    pub vae_hook: Hook,
    footprint: Footprint,
}

impl ToyModel {
    pub fn new() -> Self {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let capabilities = Capabilities {
            size: SizeRule { min: 4, max: 64, multiple: 4, default: 8 },
            max_count: 8,
            default_steps: 4,
            max_steps: 100,
            true_cfg: true,
            default_true_cfg: 0.0,
            distilled_guidance: false,
            conditioning: vec![ConditioningKind::Reference, ConditioningKind::Mask],
            adapters: Vec::new(),
            samplers: names(KNOWN_SAMPLERS),
            schedulers: names(KNOWN_SCHEDULERS),
            guidance_methods: names(KNOWN_GUIDANCE_METHODS),
            quants: Vec::new(),
        };
        let descriptor = ModelDescriptor {
            id: "toy".into(),
            name: "Toy".into(),
            family: "toy".into(),
            backend: "none".into(),
            modality: Modality::Image,
            capabilities,
            required_components: Vec::new(),
        };
        let recipe = DiffusionRecipe {
            latent_channels: 1,
            latent_factor: 1,
            patch: 1,
            schedule: ScheduleRecipe::FlowMatch { shift: 3.0 },
            guidance: GuidanceRecipe::Extrapolate,
        };
        let footprint = Footprint::default();
        let (denoiser_hook, vae_hook) = (no_hook(), no_hook());
        Self { descriptor, recipe, log: Log::default(), denoiser_hook, vae_hook, footprint }
    }

    fn held(&self, name: &'static str, context: &LoadContext<'_>) -> Result<Held> {
        context.cancel.check()?;
        self.log.add(format!("load {name}"));
        Ok(Held(self.log.clone(), name))
    }
}

impl DiffusionModel for ToyModel {
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
        "toy weights"
    }

    fn load_text_encoder(&self, context: &LoadContext<'_>) -> Result<Arc<dyn TextEncoder>> {
        Ok(Arc::new(ToyEncoder(self.held("text encoder", context)?)))
    }

    fn load_denoiser(&self, context: &LoadContext<'_>) -> Result<Arc<dyn Denoiser>> {
        let held = Some(self.held("denoiser", context)?);
        Ok(Arc::new(ToyDenoiser { hook: Arc::clone(&self.denoiser_hook), passes: Mutex::default(), held }))
    }

    fn load_vae(&self, context: &LoadContext<'_>) -> Result<Arc<dyn Vae>> {
        Ok(Arc::new(ToyVae(self.held("vae", context)?, Arc::clone(&self.vae_hook))))
    }
}

/// A job from noise on 4 x 4 latents.
pub fn job(denoiser: &Arc<ToyDenoiser>, prompt: &str, seed: u64, steps: usize) -> SampleJob {
    let guidance = Guidance { recipe: GuidanceRecipe::Extrapolate, scale: 0.0, normalization: 0.0, truncation: 1.0 };
    SampleJob {
        denoiser: Arc::clone(denoiser) as Arc<dyn Denoiser>,
        model_key: "toy".into(),
        latents: TorchRng::new(seed).randn(&[1, 1, 4, 4]).unwrap(),
        positive: conditioning(prompt),
        negative: None,
        guidance,
        sigmas: (0..=steps).map(|step| 1.0 - step as f32 / steps as f32).collect(),
        sampler: SamplerKind::Euler,
        seed,
        drawn: 1,
        mask: None,
        previews: false,
        cancel: CancelFlag::new(),
    }
}

/// Holds forward passes back until they are let through, one by one or all.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<Passes>, Condvar)>);

/// Numbers of the passes that arrived, and how many may go on.
#[derive(Default)]
struct Passes {
    arrived: VecDeque<usize>,
    allowed: usize,
}

impl Gate {
    /// A hook that waits here.
    pub fn hook(&self) -> Hook {
        let gate = self.clone();
        Arc::new(move |number| {
            let (state, changed) = &*gate.0;
            let mut state = state.lock().unwrap();
            state.arrived.push_back(number);
            changed.notify_all();
            while state.allowed == 0 {
                state = changed.wait(state).unwrap();
            }
            state.allowed -= 1;
            Ok(())
        })
    }

    /// Waits until a pass has arrived; its number.
    pub fn arrived(&self) -> usize {
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap();
        loop {
            if let Some(number) = state.arrived.pop_front() {
                return number;
            }
            state = changed.wait(state).unwrap();
        }
    }

    /// Lets `passes` more through.
    pub fn open(&self, passes: usize) {
        let (state, changed) = &*self.0;
        state.lock().unwrap().allowed += passes;
        changed.notify_all();
    }
}
