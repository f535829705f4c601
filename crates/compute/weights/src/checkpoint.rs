//! One logical set of tensors: a file, several shards, or bytes of the program.

use crate::{Error, GgufMetadata, Result, StoredDtype, gguf};
use memmap2::Mmap;
use runtime_base::WeightsSource;
use safetensors::SafeTensors;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A tensor's entry in a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name on disk.
    pub name: String,
    /// Number format on disk.
    pub dtype: StoredDtype,
    /// Shape on disk.
    pub shape: Vec<usize>,
    file: usize,
    range: Range<usize>,
}

impl TensorInfo {
    /// Bytes on disk.
    pub fn bytes(&self) -> usize {
        self.range.len()
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        let (block, bytes) = self.dtype.block();
        self.range.len() / bytes * block
    }
}

enum Data {
    Mapped(Mmap),
    Static(&'static [u8]),
}

impl Data {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Static(bytes) => bytes,
        }
    }
}

struct Shard {
    path: PathBuf,
    data: Data,
}

/// One logical set of tensors. Opening it reads headers only; data is mapped and read when a tensor is asked for.
///
/// A file that another process shortens while it is open makes reads fail with a bus error, as with every mapped file:
/// replace model files by renaming, never in place.
pub struct Checkpoint {
    shards: Vec<Shard>,
    tensors: BTreeMap<String, TensorInfo>,
    metadata: BTreeMap<String, String>,
    gguf: Option<GgufMetadata>,
    fingerprint: String,
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checkpoint").field("path", &self.path()).field("tensors", &self.tensors.len()).finish()
    }
}

impl Checkpoint {
    /// Opens a safetensors or GGUF file, or the shards of a folder.
    ///
    /// # Errors
    /// There is nothing to open, or a file is not whole; the message says what it looks like instead.
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_dir() { Self::open_shards(&shard_paths(path)?) } else { Self::open_shards(&[path.to_owned()]) }
    }

    /// Opens `source`, or the part of it in `subfolder`.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn from_source(source: &WeightsSource, subfolder: Option<&str>) -> Result<Self> {
        match source {
            WeightsSource::Dir(dir) => Self::open(&subfolder.map_or(dir.clone(), |s| dir.join(s))),
            WeightsSource::File(file) => Self::open(file),
            WeightsSource::Embedded(files) => {
                let prefix = subfolder.map_or(String::new(), |s| format!("{s}/"));
                let parts = files.iter().filter(|(name, _)| {
                    name.strip_prefix(prefix.as_str()).is_some_and(|n| !n.contains('/') && n.ends_with(".safetensors"))
                });
                let shards = parts.map(|(name, bytes)| Shard { path: PathBuf::from(name), data: Data::Static(bytes) });
                Self::from_shards(shards.collect(), Path::new(subfolder.unwrap_or("<embedded>")))
            }
        }
    }

    /// A checkpoint without tensors.
    pub(crate) fn empty() -> Self {
        let (tensors, metadata) = (BTreeMap::new(), BTreeMap::new());
        Self { shards: Vec::new(), tensors, metadata, gguf: None, fingerprint: String::new() }
    }

    fn open_shards(paths: &[PathBuf]) -> Result<Self> {
        let shards = paths.iter().map(|path| map_file(path)).collect::<Result<Vec<_>>>()?;
        let origin = paths.first().map_or(Path::new(""), PathBuf::as_path);
        Self::from_shards(shards, origin)
    }

    fn from_shards(shards: Vec<Shard>, origin: &Path) -> Result<Self> {
        if shards.is_empty() {
            return Err(Error::weights(origin, "no .safetensors file here"));
        }
        let mut tensors = BTreeMap::new();
        let (mut metadata, mut gguf) = (BTreeMap::new(), None);
        let mut identity = Sha256::new();
        for (file, shard) in shards.iter().enumerate() {
            let bytes = shard.data.bytes();
            let header = read_header(&shard.path, bytes)?;
            identity.update((bytes.len() as u64).to_le_bytes());
            match &shard.data {
                Data::Static(_) => identity.update(bytes),
                Data::Mapped(_) => {
                    identity.update(&bytes[..header.data.min(bytes.len())]);
                    identity.update(modified_nanos(&shard.path).to_le_bytes());
                }
            }
            if header.gguf.is_some() && shards.len() > 1 {
                return Err(Error::weights(&shard.path, "is one GGUF file of several; join them to one first"));
            }
            metadata.extend(header.metadata);
            gguf = header.gguf;
            for (name, dtype, shape, range) in header.tensors {
                let info = TensorInfo { name: name.clone(), dtype, shape, file, range };
                if tensors.insert(name.clone(), info).is_some() {
                    let where_ = if shards.len() > 1 { "in two files of this folder" } else { "twice in this file" };
                    return Err(Error::tensor(&shard.path, name, format!("stands {where_}")));
                }
            }
        }
        Ok(Self { shards, tensors, metadata, gguf, fingerprint: hex::encode(identity.finalize()) })
    }

    /// The first file, for messages.
    pub fn path(&self) -> &Path {
        self.shards.first().map_or(Path::new(""), |shard| &shard.path)
    }

    /// Every file.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().map(|shard| shard.path.as_path())
    }

    /// Names on disk, ordered.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// All entries, ordered by name.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.tensors.values()
    }

    /// One entry.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// Whether there is a tensor of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The `__metadata__` of the headers.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The metadata of a GGUF file, if it is one.
    pub fn gguf(&self) -> Option<&GgufMetadata> {
        self.gguf.as_ref()
    }

    /// The file that holds a tensor.
    pub fn file_of(&self, info: &TensorInfo) -> &Path {
        self.shards.get(info.file).map_or(Path::new(""), |shard| &shard.path)
    }

    /// The bytes of a tensor.
    ///
    /// # Errors
    /// There is no such tensor.
    pub fn raw(&self, name: &str) -> Result<&[u8]> {
        let info = self.info(name).ok_or_else(|| Error::tensor(self.path(), name, "is missing"))?;
        let shard = self.shards.get(info.file);
        shard
            .and_then(|shard| shard.data.bytes().get(info.range.clone()))
            .ok_or_else(|| Error::tensor(self.path(), name, "lies outside its file"))
    }

    /// Cheap identity: a hash of headers, sizes and modification times; of the bytes themselves for embedded data.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// SHA-256 over every byte of every file: slow, and the same wherever the files lie.
    pub fn content_hash(&self) -> String {
        let mut hash = Sha256::new();
        for shard in &self.shards {
            hash.update(shard.data.bytes());
        }
        hex::encode(hash.finalize())
    }
}

fn map_file(path: &Path) -> Result<Shard> {
    let file = File::open(path).map_err(|e| Error::weights(path, format!("can't be opened: {e}")))?;
    let length = file.metadata().map_err(|e| Error::weights(path, format!("can't be read: {e}")))?.len();
    if length == 0 {
        return Err(Error::weights(path, "is empty; copy or download it again"));
    }
    // SAFETY: the map is read only; that nobody shortens the file meanwhile is documented on `Checkpoint`.
    let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::weights(path, format!("can't be mapped: {e}")))?;
    Ok(Shard { path: path.to_owned(), data: Data::Mapped(map) })
}

fn modified_nanos(path: &Path) -> u128 {
    let modified = std::fs::metadata(path).and_then(|m| m.modified()).ok();
    modified.and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok()).map_or(0, |d| d.as_nanos())
}

/// What a file says of itself, whatever its format.
struct Header {
    metadata: BTreeMap<String, String>,
    gguf: Option<GgufMetadata>,
    /// Name, number format, shape, and bytes of the file.
    tensors: Vec<(String, StoredDtype, Vec<usize>, Range<usize>)>,
    /// Where the tensors' bytes begin.
    data: usize,
}

fn read_header(path: &Path, bytes: &[u8]) -> Result<Header> {
    if bytes.starts_with(b"GGUF") {
        let header = gguf::read_header(bytes).map_err(|message| Error::weights(path, message))?;
        let tensors = header.tensors.into_iter().map(|entry| (entry.name, entry.dtype, entry.shape, entry.range));
        let (gguf, data) = (Some(header.metadata), header.data);
        return Ok(Header { metadata: BTreeMap::new(), gguf, tensors: tensors.collect(), data });
    }
    let (data, header) = read_safetensors(path, bytes)?;
    let metadata = header.metadata().iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect();
    let mut tensors = Vec::new();
    for (name, entry) in header.tensors() {
        let dtype = StoredDtype::from_safetensors(entry.dtype)
            .ok_or_else(|| Error::tensor(path, &name, format!("its number format {:?} can't be read", entry.dtype)))?;
        let (start, end) = entry.data_offsets;
        tensors.push((name, dtype, entry.shape.clone(), data + start..data + end));
    }
    Ok(Header { metadata, gguf: None, tensors, data })
}

/// Length of the header with its length field, and the header.
fn read_safetensors(path: &Path, bytes: &[u8]) -> Result<(usize, safetensors::tensor::Metadata)> {
    use safetensors::SafeTensorError as E;
    if let Some(other) = foreign_format(bytes) {
        return Err(Error::weights(path, other));
    }
    let (length, header) = SafeTensors::read_metadata(bytes).map_err(|error| {
        let message = match error {
            E::MetadataIncompleteBuffer | E::InvalidHeaderLength => {
                "is cut off or has bytes too many; copy or download it again".to_owned()
            }
            E::HeaderTooSmall | E::HeaderTooLarge | E::InvalidHeader(_) | E::InvalidHeaderDeserialization(_) => {
                "is not a safetensors file, or its header is damaged".to_owned()
            }
            other => format!("has a damaged safetensors header: {other}"),
        };
        Error::weights(path, message)
    })?;
    Ok((length + 8, header))
}

/// What a file that isn't safetensors looks like.
fn foreign_format(bytes: &[u8]) -> Option<&'static str> {
    const PICKLE: &str = "is a pickle file, which can run code and is never loaded; convert it to safetensors";
    match bytes {
        [b'P', b'K', 3, 4, ..] | [0x80, 2..=5, ..] => Some(PICKLE),
        [b'<', ..] => Some("is a web page, not a model; download the file itself"),
        _ if bytes.starts_with(b"version https://git-lfs") => {
            Some("is a Git LFS pointer, not the model; fetch the file with `git lfs pull`")
        }
        _ => None,
    }
}

/// The safetensors files of a folder: those of its index, else all of them.
fn shard_paths(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir).map_err(|e| Error::weights(dir, format!("can't be read: {e}")))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|e| e.path())).collect();
    files.sort();
    let named = |suffix: &str| {
        let matches = |p: &&PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().ends_with(suffix));
        files.iter().filter(matches).cloned().collect::<Vec<_>>()
    };
    let indexes = named(".safetensors.index.json");
    let [index] = indexes.as_slice() else {
        let found = named(".safetensors");
        return match (indexes.is_empty(), found.is_empty()) {
            (false, _) => Err(Error::weights(dir, "has several index files; keep one variant in the folder")),
            (true, true) => match named(".gguf").as_slice() {
                [] => Err(Error::weights(dir, no_tensors_message(&files))),
                [_] => Ok(named(".gguf")),
                _ => Err(Error::weights(dir, "holds several GGUF files; name the one to use")),
            },
            (true, false) => Ok(found),
        };
    };
    let damaged = |what: String| Error::weights(index, format!("is a damaged index: {what}"));
    let text = std::fs::read(index).map_err(|e| damaged(e.to_string()))?;
    let json: serde_json::Value = serde_json::from_slice(&text).map_err(|e| damaged(e.to_string()))?;
    let map = json.get("weight_map").and_then(|m| m.as_object()).ok_or_else(|| damaged("no weight_map".into()))?;
    let mut shards = std::collections::BTreeSet::new();
    for name in map.values() {
        let name = name.as_str().filter(|n| Path::new(n).components().count() == 1 && !n.contains(".."));
        shards.insert(name.ok_or_else(|| damaged("a shard is not a plain file name".into()))?);
    }
    shards
        .into_iter()
        .map(|name| {
            let path = dir.join(name);
            if path.is_file() {
                Ok(path)
            } else {
                Err(Error::weights(&path, "is named by the index but isn't there; copy or download it"))
            }
        })
        .collect()
}

fn no_tensors_message(files: &[PathBuf]) -> &'static str {
    let pickled = |p: &PathBuf| p.extension().is_some_and(|e| e == "bin" || e == "pt" || e == "ckpt" || e == "pth");
    if files.iter().any(pickled) {
        "holds pickle files only, which can run code and are never loaded; convert them to safetensors"
    } else {
        "holds no .safetensors or .gguf file"
    }
}

/// A JSON file of a source, such as `transformer/config.json`; for a single file, the one of that last name beside it.
///
/// # Errors
/// The file is there but isn't JSON.
pub fn load_config(source: &WeightsSource, relative: &str) -> Result<Option<serde_json::Value>> {
    let (path, bytes) = match source {
        WeightsSource::Embedded(files) => match files.iter().find(|(name, _)| *name == relative) {
            Some((name, bytes)) => (PathBuf::from(name), bytes.to_vec()),
            None => return Ok(None),
        },
        WeightsSource::Dir(dir) => match read_optional(&dir.join(relative))? {
            Some(bytes) => (dir.join(relative), bytes),
            None => return Ok(None),
        },
        WeightsSource::File(file) => {
            let name = Path::new(relative).file_name().unwrap_or_default();
            let path = file.with_file_name(name);
            match read_optional(&path)? {
                Some(bytes) => (path, bytes),
                None => return Ok(None),
            }
        }
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|e| Error::weights(path, format!("is not valid JSON: {e}")))
}

fn read_optional(path: &Path) -> Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::weights(path, format!("can't be read: {e}"))),
    }
}
