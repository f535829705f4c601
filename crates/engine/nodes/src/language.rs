//! Language models and text embedders of the models folder, held in the same room as every other model.

use crate::host::ModelHost;
use crate::library::ModelLibrary;
use core_llm::{LoadSpec as TextSpec, TextLlm, TextLlmRegistry};
use engine_device::ModelNeeds;
use gen_core::{CancelFlag, ComponentFootprint, Error, Footprint, LoadSpec, Quant, Result, Role, TextEmbedder};
use std::sync::Arc;
use weights::ModelFile;

/// The folder of language models in the models folder.
pub const LANGUAGE_CATEGORY: &str = "llm";
/// Family of text embedders, and the provider that loads them.
const EMBEDDER: (&str, &str) = ("bert", "sentence_bert");

/// The language models and text embedders that the user has.
pub struct LanguageModels {
    pub(crate) registry: Arc<TextLlmRegistry>,
    pub(crate) host: Arc<ModelHost>,
    pub(crate) library: Arc<ModelLibrary>,
}

/// A language model or text embedder of the models folder.
#[derive(Debug, Clone)]
pub struct TextModelFile(ModelFile);

impl TextModelFile {
    /// Its name as clients use it: without what tells the format.
    pub fn id(&self) -> &str {
        id_of(&self.0)
    }

    /// What changes with its content.
    pub fn fingerprint(&self) -> &str {
        &self.0.fingerprint
    }
}

fn id_of(file: &ModelFile) -> &str {
    let name = file.name.as_str();
    [".gguf", ".safetensors"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name)
}

fn embeds(file: &ModelFile) -> bool {
    file.has(Role::TextEncoder, EMBEDDER.0)
}

fn speaks(file: &ModelFile) -> bool {
    file.category == LANGUAGE_CATEGORY && !embeds(file)
}

impl LanguageModels {
    /// The models folder.
    pub(crate) fn dir(&self) -> &std::path::Path {
        self.library.dir()
    }

    /// How a language model would be held, for cache keys.
    ///
    /// # Errors
    /// It can't be held here.
    pub(crate) fn placement(&self, file: &TextModelFile) -> Result<String> {
        let (_, quant) = self.placed(&file.0, &[Quant::Q8])?;
        Ok(format!("{} {quant:?}", self.host.policy().dtype(Role::TextEncoder)))
    }

    /// Names of the language models.
    pub fn speakers(&self) -> Vec<String> {
        self.library.scan().files.iter().filter(|file| speaks(file)).map(|file| id_of(file).to_owned()).collect()
    }

    /// Names of the text embedders.
    pub fn embedders(&self) -> Vec<String> {
        self.library.scan().files.iter().filter(|file| embeds(file)).map(|file| id_of(file).to_owned()).collect()
    }

    /// The file of the language model called `name`, or of the only one if that is empty.
    ///
    /// # Errors
    /// There is none, or several and no name.
    pub fn find(&self, name: &str) -> Result<TextModelFile> {
        self.choose(name, speaks, "language model", "llm/")
    }

    /// The file of the text embedder called `name`, or of the only one if that is empty.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub fn find_embedder(&self, name: &str) -> Result<TextModelFile> {
        self.choose(name, embeds, "text embedder", "embeddings/")
    }

    fn choose(&self, name: &str, wanted: fn(&ModelFile) -> bool, what: &str, folder: &str) -> Result<TextModelFile> {
        let scan = self.library.scan();
        let mut found: Vec<&ModelFile> = scan.files.iter().filter(|file| wanted(file)).collect();
        let names: Vec<&str> = found.iter().map(|file| id_of(file)).collect();
        if !name.is_empty() {
            found.retain(|file| file.name == name || id_of(file) == name);
        }
        match found.as_slice() {
            [one] => Ok(TextModelFile((*one).clone())),
            _ if names.is_empty() => {
                Err(Error::invalid("model", format!("there is no {what}; put one into {folder} of the models folder")))
            }
            [] => Err(Error::invalid("model", format!("there is no {what} '{name}'; there are {}", names.join(", ")))),
            _ => Err(Error::invalid("model", format!("there are several; choose one of {}", names.join(", ")))),
        }
    }

    /// A language model, loaded on first use.
    ///
    /// # Errors
    /// It can't be loaded or held here, or cancelled.
    pub fn language(&self, file: &TextModelFile, cancel: &CancelFlag) -> Result<Arc<dyn TextLlm>> {
        let file = &file.0;
        let (bytes, quant) = self.placed(file, &[Quant::Q8])?;
        let mut spec = TextSpec::dense(&file.path).with_cancel(cancel);
        spec.quant = quant;
        if file.content.is_ok() {
            spec = spec.with_precision(self.host.policy().dtype(Role::TextEncoder));
        }
        let key = format!("language {} {}", file.path.display(), file.fingerprint);
        self.host.language(&key, bytes, cancel, || self.registry.load_for_model(&spec).map(Arc::from))
    }

    /// A text embedder, loaded on first use.
    ///
    /// # Errors
    /// As [`Self::language`].
    pub fn embedder(&self, file: &TextModelFile, cancel: &CancelFlag) -> Result<Arc<dyn TextEmbedder>> {
        let file = &file.0;
        let (bytes, _) = self.placed(file, &[])?;
        let key = format!("embedder {} {}", file.path.display(), file.fingerprint);
        let load = || self.host.registry().load_text_embedder(EMBEDDER.1, &LoadSpec::new(file.source()));
        self.host.embedder(&key, bytes, cancel, || load().map(Arc::from))
    }

    /// Bytes that a model will hold, and its quantization where it must be smaller.
    fn placed(&self, file: &ModelFile, quants: &[Quant]) -> Result<(u64, Option<Quant>)> {
        let policy = self.host.policy();
        let precision = policy.dtype(Role::TextEncoder);
        let dense = file.content.as_ref().ok().map(|found| found.iter().map(|i| i.resident_bytes(precision)).sum());
        let bytes: u64 = dense.unwrap_or(file.bytes);
        let component = ComponentFootprint { role: Role::TextEncoder, parameters: 0, bytes, quantizable_bytes: bytes };
        let needs = ModelNeeds {
            footprint: &Footprint { components: vec![component] },
            precision,
            quants,
            ships_quantized: dense.is_none(),
        };
        let plan = policy.plan(&needs).map_err(|refusal| Error::Unsupported(refusal.to_string()))?;
        let quant = plan.placement(Role::TextEncoder).quant;
        Ok((if quant.is_some() { bytes / 2 } else { bytes }, quant))
    }
}
