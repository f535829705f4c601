//! Providers by id. Composition is explicit: a bundle calls each family's `register_providers`.

use crate::{
    Captioner, DiffusionModel, Error, Footprint, Generator, ImageEmbedder, LoadSpec, ModelDescriptor, ProviderKind,
    Result, TextEmbedder, Trainer, Transform,
};
use runtime_base::{by_unique_id, unknown_id};
use std::collections::BTreeMap;
use std::sync::Arc;

type Loader<T> = fn(&ModelDescriptor, &LoadSpec) -> Result<T>;

/// A generator that can be loaded.
#[derive(Clone)]
pub struct GeneratorEntry {
    /// What it is, without loading.
    pub descriptor: ModelDescriptor,
    /// Loads it whole.
    pub load: Loader<Box<dyn Generator>>,
    /// Opens it as components, for callers that run the denoise loop themselves.
    pub open: Option<Loader<Arc<dyn DiffusionModel>>>,
    /// Counts its resident bytes from headers.
    pub footprint: Loader<Footprint>,
}

/// Any other provider that can be loaded.
pub struct TypedEntry<T: ?Sized> {
    /// What it is, without loading.
    pub descriptor: ModelDescriptor,
    /// Loads it.
    pub load: Loader<Box<T>>,
}

/// Collects entries; duplicate ids within a kind are refused by [`Self::build`].
#[derive(Default)]
pub struct ProviderRegistryBuilder {
    generators: Vec<GeneratorEntry>,
    trainers: Vec<TypedEntry<dyn Trainer>>,
    captioners: Vec<TypedEntry<dyn Captioner>>,
    image_embedders: Vec<TypedEntry<dyn ImageEmbedder>>,
    text_embedders: Vec<TypedEntry<dyn TextEmbedder>>,
    transforms: Vec<TypedEntry<dyn Transform>>,
}

macro_rules! typed {
    ($($register:ident $load:ident $list:ident $field:ident $trait:ident $kind:ident;)*) => {
        impl ProviderRegistryBuilder {$(
            #[doc = concat!("Adds a [`", stringify!($trait), "`].")]
            pub fn $register(mut self, entry: TypedEntry<dyn $trait>) -> Self {
                self.$field.push(entry);
                self
            }
        )*}
        impl ProviderRegistry {$(
            #[doc = concat!("Loads the [`", stringify!($trait), "`] named `id`.")]
            pub fn $load(&self, id: &str, spec: &LoadSpec) -> Result<Box<dyn $trait>> {
                let entry = self.$field.get(id).ok_or_else(|| unknown_id(ProviderKind::$kind.label(), id, self.$field.keys()))?;
                (entry.load)(&entry.descriptor, spec)
            }
            #[doc = concat!("Descriptors of every [`", stringify!($trait), "`], ordered by id.")]
            pub fn $list(&self) -> impl Iterator<Item = &ModelDescriptor> {
                self.$field.values().map(|entry| &entry.descriptor)
            }
        )*}
    };
}

typed! {
    register_trainer load_trainer trainers trainers Trainer Trainer;
    register_captioner load_captioner captioners captioners Captioner Captioner;
    register_image_embedder load_image_embedder image_embedders image_embedders ImageEmbedder ImageEmbedder;
    register_text_embedder load_text_embedder text_embedders text_embedders TextEmbedder TextEmbedder;
    register_transform load_transform transforms transforms Transform Transform;
}

impl ProviderRegistryBuilder {
    /// An empty builder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a generator.
    pub fn register_generator(mut self, entry: GeneratorEntry) -> Self {
        self.generators.push(entry);
        self
    }

    /// Freezes the registry; an id that stands twice within a kind is an error.
    pub fn build(self) -> Result<ProviderRegistry> {
        use ProviderKind as K;
        fn typed<T: ?Sized>(kind: K, list: Vec<TypedEntry<T>>) -> Result<BTreeMap<String, TypedEntry<T>>> {
            by_unique_id(kind.label(), list, |e| &e.descriptor.id)
        }
        Ok(ProviderRegistry {
            generators: by_unique_id(K::Generator.label(), self.generators, |e| &e.descriptor.id)?,
            trainers: typed(K::Trainer, self.trainers)?,
            captioners: typed(K::Captioner, self.captioners)?,
            image_embedders: typed(K::ImageEmbedder, self.image_embedders)?,
            text_embedders: typed(K::TextEmbedder, self.text_embedders)?,
            transforms: typed(K::Transform, self.transforms)?,
        })
    }
}

/// Providers by kind and id.
pub struct ProviderRegistry {
    generators: BTreeMap<String, GeneratorEntry>,
    trainers: BTreeMap<String, TypedEntry<dyn Trainer>>,
    captioners: BTreeMap<String, TypedEntry<dyn Captioner>>,
    image_embedders: BTreeMap<String, TypedEntry<dyn ImageEmbedder>>,
    text_embedders: BTreeMap<String, TypedEntry<dyn TextEmbedder>>,
    transforms: BTreeMap<String, TypedEntry<dyn Transform>>,
}

impl ProviderRegistry {
    fn generator(&self, id: &str) -> Result<&GeneratorEntry> {
        self.generators.get(id).ok_or_else(|| unknown_id(ProviderKind::Generator.label(), id, self.generators.keys()))
    }

    /// Every generator, ordered by id; nothing is loaded.
    pub fn generators(&self) -> impl Iterator<Item = &GeneratorEntry> {
        self.generators.values()
    }

    /// Loads the generator named `id`. A missing component fails here, not in mid-render.
    pub fn load(&self, id: &str, spec: &LoadSpec) -> Result<Box<dyn Generator>> {
        let entry = self.generator(id)?;
        (entry.load)(&entry.descriptor, spec)
    }

    /// Opens the diffusion generator named `id` as components that load one by one.
    pub fn open(&self, id: &str, spec: &LoadSpec) -> Result<Arc<dyn DiffusionModel>> {
        let entry = self.generator(id)?;
        let open =
            entry.open.ok_or_else(|| Error::Unsupported(format!("'{id}' is not made of diffusion components")))?;
        open(&entry.descriptor, spec)
    }

    /// Resident bytes per component of the generator named `id`, counted from headers.
    pub fn footprint(&self, id: &str, spec: &LoadSpec) -> Result<Footprint> {
        let entry = self.generator(id)?;
        (entry.footprint)(&entry.descriptor, spec)
    }

    /// Every descriptor with its kind, ordered by kind and id.
    pub fn descriptors(&self) -> Vec<(ProviderKind, &ModelDescriptor)> {
        let mut all: Vec<(ProviderKind, &ModelDescriptor)> = Vec::new();
        all.extend(self.generators.values().map(|e| (ProviderKind::Generator, &e.descriptor)));
        all.extend(self.transforms().map(|d| (ProviderKind::Transform, d)));
        all.extend(self.trainers().map(|d| (ProviderKind::Trainer, d)));
        all.extend(self.captioners().map(|d| (ProviderKind::Captioner, d)));
        all.extend(self.image_embedders().map(|d| (ProviderKind::ImageEmbedder, d)));
        all.extend(self.text_embedders().map(|d| (ProviderKind::TextEmbedder, d)));
        all
    }
}
