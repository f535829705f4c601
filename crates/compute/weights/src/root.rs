//! The models folder: which files and folders it holds and what each is, by content.

use crate::{Checkpoint, Identity, describe_unknown, identify};
use runtime_base::{Role, WeightsSource};
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashMap};
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;

/// The folders that a models root is looked for in.
pub const CATEGORIES: &[&str] = &[
    "diffusion_models",
    "vae",
    "text_encoders",
    "loras",
    "controlnet",
    "checkpoints",
    "clip_vision",
    "upscale_models",
    "embeddings",
    "llm",
];
/// Folders below a category are searched this deep.
const MAX_DEPTH: usize = 4;

/// A model in the models root: a file, or a folder that is one model.
#[derive(Debug, Clone)]
pub struct ModelFile {
    /// The category's folder name.
    pub category: &'static str,
    /// Path below the category's folder, with `/` between parts.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Whether it is a whole diffusers folder, with one folder a component.
    pub is_snapshot: bool,
    /// Bytes on disk.
    pub bytes: u64,
    /// What it holds, or why it can't be used.
    pub content: Result<Vec<Identity>, String>,
    /// Identity of the content: changes when the file does.
    pub fingerprint: String,
}

impl ModelFile {
    /// How to load it.
    pub fn source(&self) -> WeightsSource {
        WeightsSource::from_path(&self.path)
    }

    /// Whether it has a component of that role and family.
    pub fn has(&self, role: Role, family: &str) -> bool {
        self.content.as_ref().is_ok_and(|found| found.iter().any(|i| i.role == Some(role) && i.family == family))
    }
}

/// One look at the models root.
#[derive(Debug, Clone, Default)]
pub struct Scan {
    /// Everything found, ordered by category and name.
    pub files: Vec<ModelFile>,
    /// Tokenizers (`tokenizer.json`) found.
    pub tokenizers: Vec<PathBuf>,
    /// A hash that changes when any file is added, removed or replaced.
    pub digest: [u8; 32],
}

impl Scan {
    /// The models of a category.
    pub fn category<'a>(&'a self, category: &'a str) -> impl Iterator<Item = &'a ModelFile> {
        self.files.iter().filter(move |file| file.category == category)
    }

    /// The models with a component of that role and family, in every category.
    pub fn find<'a>(&'a self, role: Role, family: &'a str) -> impl Iterator<Item = &'a ModelFile> {
        self.files.iter().filter(move |file| file.has(role, family))
    }
}

#[derive(PartialEq, Eq, Hash)]
struct Stamp {
    path: PathBuf,
    bytes: u64,
    modified: u128,
}

/// A models root. Scans are cheap after the first: a file is looked into again only when its size or time changes.
pub struct ModelsRoot {
    dir: PathBuf,
    known: Mutex<HashMap<Stamp, Result<Vec<Identity>, String>>>,
}

impl ModelsRoot {
    /// The root at `dir`, which need not exist.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), known: Mutex::default() }
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Looks at every category. Headers are read, weights are not; what can't be read is listed with its problem.
    pub fn scan(&self) -> Scan {
        let mut scan = Scan::default();
        for category in CATEGORIES {
            let mut walk = Walk { base: self.dir.join(category), seen: BTreeSet::new(), found: Vec::new() };
            walk.visit(&self.dir.join(category), 0, &mut scan.tokenizers);
            walk.found.sort();
            for path in walk.found {
                scan.files.extend(self.look_at(category, &walk.base, path));
            }
        }
        scan.tokenizers.sort();
        let mut digest = Sha256::new();
        for file in &scan.files {
            digest.update(file.category);
            digest.update([0]);
            digest.update(&file.name);
            digest.update([0]);
            digest.update(&file.fingerprint);
        }
        scan.digest = digest.finalize().into();
        scan
    }

    fn look_at(&self, category: &'static str, base: &Path, path: PathBuf) -> Option<ModelFile> {
        let parts = |p: &Path| p.iter().map(|part| part.to_string_lossy().into_owned()).collect::<Vec<_>>().join("/");
        let name = parts(path.strip_prefix(base).ok()?);
        let is_snapshot = path.join("model_index.json").is_file();
        let stamps = stamps(&path);
        let bytes = stamps.iter().map(|stamp| stamp.bytes).sum();
        let mut hash = Sha256::new();
        for stamp in &stamps {
            hash.update(stamp.path.strip_prefix(base).map(parts).unwrap_or_default());
            hash.update(stamp.bytes.to_le_bytes());
            hash.update(stamp.modified.to_le_bytes());
        }
        let newest = stamps.iter().map(|stamp| stamp.modified).max().unwrap_or(0);
        let key = Stamp { path: path.clone(), bytes, modified: newest };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let content = known.entry(key).or_insert_with(|| look_into(&path)).clone();
        Some(ModelFile { category, name, path, is_snapshot, bytes, content, fingerprint: hex::encode(hash.finalize()) })
    }
}

/// What a file or folder holds, component by component.
///
/// # Errors
/// Why it can't be used, as a sentence without a path.
pub fn look_into(path: &Path) -> Result<Vec<Identity>, String> {
    let identify_one = |path: &Path| -> Result<Vec<Identity>, String> {
        let checkpoint = Checkpoint::open(path).map_err(|e| e.to_string())?;
        let found = identify(&checkpoint);
        if found.is_empty() { Err(describe_unknown(&checkpoint)) } else { Ok(found) }
    };
    if !path.join("model_index.json").is_file() {
        return identify_one(path);
    }
    let mut all = Vec::new();
    for part in ["transformer", "unet", "text_encoder", "text_encoder_2", "text_encoder_3", "vae"] {
        let folder = path.join(part);
        if folder.is_dir() {
            let mut found = identify_one(&folder).map_err(|message| format!("{part}: {message}"))?;
            let index = std::fs::read_to_string(path.join("model_index.json")).unwrap_or_default();
            name_variant(&mut found, path, &index);
            all.extend(found);
        }
    }
    if all.is_empty() { Err("has a model_index.json but no component folder".to_owned()) } else { Ok(all) }
}

/// A snapshot of Z-Image says in its index whether it is the turbo model, by the name that it was saved under.
fn name_variant(found: &mut [Identity], path: &Path, index: &str) {
    let said = format!("{index} {}", path.file_name().map(|n| n.to_string_lossy()).unwrap_or_default());
    if said.to_ascii_lowercase().contains("turbo") {
        for identity in found.iter_mut().filter(|i| i.family == "z_image" && i.variant.is_none()) {
            identity.variant = Some("turbo".to_owned());
        }
    }
}

/// Tells whether a source is what it was: places, sizes and times of its files. Cheap, as no file is opened.
pub fn source_stamp(source: &WeightsSource) -> String {
    let line = |stamp: Stamp| format!("{} {} {}\n", stamp.path.display(), stamp.bytes, stamp.modified);
    match source {
        // Part of the program, so its place in memory says which one it is.
        WeightsSource::Embedded(files) => format!("embedded {:p}", files.as_ptr()),
        WeightsSource::Dir(dir) => stamps(dir).into_iter().map(line).collect(),
        WeightsSource::File(file) => {
            // Its config may lie beside it.
            let beside = file.parent().map(stamps).unwrap_or_default();
            let config = beside.into_iter().filter(|stamp| stamp.path.extension().is_some_and(|e| e == "json"));
            stamps(file).into_iter().chain(config).map(line).collect()
        }
    }
}

/// Sizes and times of a model's weight files.
fn stamps(path: &Path) -> Vec<Stamp> {
    let mut files = Vec::new();
    if path.is_dir() {
        let below = |dir: &Path| -> Vec<PathBuf> {
            std::fs::read_dir(dir).into_iter().flatten().filter_map(|e| e.ok().map(|e| e.path())).collect()
        };
        for entry in below(path) {
            if entry.is_dir() { files.extend(below(&entry)) } else { files.push(entry) }
        }
        files.retain(|file| file.extension().is_some_and(|e| e == "safetensors" || e == "json"));
        files.sort();
    } else {
        files.push(path.to_owned());
    }
    let nanos =
        |m: &Metadata| m.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok()).map_or(0, |d| d.as_nanos());
    let stamp = |file: PathBuf| {
        let metadata = std::fs::metadata(&file).ok()?;
        Some(Stamp { bytes: metadata.len(), modified: nanos(&metadata), path: file })
    };
    files.into_iter().filter_map(stamp).collect()
}

struct Walk {
    base: PathBuf,
    /// Real paths of the folders visited, against links that lead back.
    seen: BTreeSet<PathBuf>,
    found: Vec<PathBuf>,
}

impl Walk {
    fn visit(&mut self, dir: &Path, depth: usize, tokenizers: &mut Vec<PathBuf>) {
        let first_visit = dir.canonicalize().is_ok_and(|real| self.seen.insert(real));
        if depth > MAX_DEPTH || !first_visit {
            return;
        }
        let entries = std::fs::read_dir(dir).into_iter().flatten().filter_map(|e| e.ok().map(|e| e.path()));
        let mut entries: Vec<PathBuf> = entries.collect();
        entries.sort();
        let named = |name: &str| entries.iter().any(|e| e.file_name().is_some_and(|n| n == name));
        if named("tokenizer.json") {
            tokenizers.push(dir.join("tokenizer.json"));
        }
        if depth > 0 && named("model_index.json") {
            let tokenizer = dir.join("tokenizer").join("tokenizer.json");
            tokenizers.extend(tokenizer.is_file().then_some(tokenizer));
            self.found.push(dir.to_owned());
            return;
        }
        let safetensors = |e: &PathBuf| e.extension().is_some_and(|x| x == "safetensors") && e.is_file();
        let sharded = entries.iter().any(|e| e.to_string_lossy().ends_with(".safetensors.index.json"));
        if depth > 0 && (sharded || (named("config.json") && entries.iter().any(safetensors))) {
            self.found.push(dir.to_owned());
            return;
        }
        for entry in entries {
            if entry.is_dir() {
                self.visit(&entry, depth + 1, tokenizers);
            } else if entry
                .extension()
                .is_some_and(|x| ["safetensors", "gguf", "ckpt", "pt", "pth", "bin"].iter().any(|k| x == *k))
            {
                self.found.push(entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conformance::recipe;

    #[test]
    fn finds_models_by_content_and_notices_changes() {
        let dir = tempfile::tempdir().unwrap();
        let fixture = recipe::fixtures().join("z-image-tiny");
        let models = dir.path();
        recipe::write_folder(&fixture, &models.join("diffusion_models/some turbo model"), recipe::Format::Bf16, 2)
            .unwrap();
        let maps = recipe::read_comfy_map(&fixture).unwrap();
        for category in ["diffusion_models", "vae", "text_encoders"] {
            std::fs::create_dir_all(models.join(category)).unwrap();
        }
        let write = |path: &str, part: &str| {
            recipe::write_safetensors(&models.join(path), &maps[part], recipe::Format::F16).unwrap();
        };
        write("diffusion_models/x.safetensors", "transformer");
        write("vae/y.safetensors", "vae");
        std::fs::write(models.join("vae/bad.ckpt"), b"\x80\x02}").unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(models.join("vae"), models.join("vae/loop")).unwrap();

        let root = ModelsRoot::new(models);
        let scan = root.scan();
        let names = |role, family| scan.find(role, family).map(|f| f.name.as_str()).collect::<Vec<_>>();
        assert_eq!(names(Role::Denoiser, "z_image"), ["some turbo model", "x.safetensors"]);
        assert_eq!(names(Role::Vae, "autoencoder_kl"), ["some turbo model", "y.safetensors"]);
        let turbo = scan.find(Role::Denoiser, "z_image").next().unwrap();
        assert!(turbo.is_snapshot);
        assert_eq!(turbo.content.as_ref().unwrap()[0].variant.as_deref(), Some("turbo"));
        let bad = scan.files.iter().find(|f| f.name == "bad.ckpt").unwrap();
        assert!(bad.content.as_ref().unwrap_err().contains("pickle"));
        assert_eq!(scan.tokenizers.len(), 1);

        assert_eq!(root.scan().digest, scan.digest);
        write("text_encoders/z.safetensors", "text_encoder");
        assert_ne!(root.scan().digest, scan.digest);
    }

    #[test]
    fn a_root_that_is_not_there_is_empty() {
        let scan = ModelsRoot::new("/nonexistent/models").scan();
        assert!(scan.files.is_empty());
    }
}
