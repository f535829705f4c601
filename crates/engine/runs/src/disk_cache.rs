//! Outputs of nodes on disk, so that a restart doesn't render again what was rendered.

use engine_graph::{NodeKey, Outputs, PortKind, Value};
use gen_core::Image;
use serde::{Deserialize, Serialize};
use serde_json::Map;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// First bytes of an entry; another layout gets another number.
const MAGIC: &[u8; 8] = b"inlnode1";
/// Bytes of the checksum at the end.
const CHECKSUM: usize = 32;

/// A folder of node outputs with a budget: texts and pictures, least recently used ones go first.
///
/// An entry that is damaged, by a crash or a failing disk, is not an entry: every one has a checksum.
pub struct DiskCache {
    root: PathBuf,
    budget: u64,
    index: Mutex<Index>,
}

#[derive(Default)]
struct Index {
    entries: HashMap<NodeKey, (u64, SystemTime)>,
    bytes: u64,
}

/// What precedes the data of an entry.
#[derive(Serialize, Deserialize)]
struct Header {
    record: Map<String, serde_json::Value>,
    values: Vec<StoredValue>,
}

#[derive(Serialize, Deserialize)]
struct StoredValue {
    port: String,
    items: Vec<Item>,
    /// Whether the port carries a list.
    list: bool,
}

/// An item and where its bytes come from: the next ones, or those of an earlier item.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Item {
    Text {
        bytes: usize,
    },
    Picture {
        width: u32,
        height: u32,
        mask: bool,
    },
    /// The picture of that number, counted from 0.
    Again(usize),
}

impl DiskCache {
    /// The cache at `root` with at most `budget` bytes; what lies there is used on.
    ///
    /// # Errors
    /// The folder can't be made.
    pub fn open(root: &Path, budget: u64) -> io::Result<Self> {
        fs::create_dir_all(root)?;
        let mut index = Index::default();
        for file in fs::read_dir(root)?.filter_map(Result::ok) {
            let name = file.file_name();
            match (name.to_string_lossy().parse::<NodeKey>(), file.metadata()) {
                (Ok(key), Ok(meta)) => {
                    let used = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                    index.entries.insert(key, (meta.len(), used));
                    index.bytes += meta.len();
                }
                // What a write that was cut short left.
                _ => drop(fs::remove_file(file.path())),
            }
        }
        let cache = Self { root: root.to_owned(), budget, index: Mutex::new(index) };
        cache.evict(&mut cache.lock());
        Ok(cache)
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of all entries.
    pub fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    fn path(&self, key: &NodeKey) -> PathBuf {
        self.root.join(key.to_string())
    }

    /// The outputs kept under `key`.
    pub fn get(&self, key: &NodeKey) -> Option<Outputs> {
        if !self.lock().entries.contains_key(key) {
            return None;
        }
        let path = self.path(key);
        let outputs = fs::read(&path).ok().and_then(|bytes| read(&bytes));
        let mut index = self.lock();
        if outputs.is_some() {
            let now = SystemTime::now();
            if let Some((_, used)) = index.entries.get_mut(key) {
                *used = now;
            }
            // The next process starts from these times.
            let _ = File::options().write(true).open(&path).and_then(|file| file.set_modified(now));
        } else {
            tracing::warn!(%key, "a damaged cache entry was dropped");
            self.forget(&mut index, key);
        }
        outputs
    }

    /// Keeps outputs if they are texts and pictures and fit. A disk that can't take them costs a warning.
    pub fn put(&self, key: &NodeKey, outputs: &Outputs) {
        let Some(bytes) = write(outputs) else { return };
        if bytes.len() as u64 > self.budget || self.lock().entries.contains_key(key) {
            return;
        }
        let written = tempfile::NamedTempFile::new_in(&self.root).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.persist(self.path(key)).map_err(|e| e.error)
        });
        if let Err(error) = written {
            tracing::warn!(%error, "a result couldn't be cached");
            return;
        }
        let mut index = self.lock();
        let entry = (bytes.len() as u64, SystemTime::now());
        index.bytes += entry.0;
        if let Some((old, _)) = index.entries.insert(*key, entry) {
            index.bytes -= old;
        }
        self.evict(&mut index);
    }

    fn evict(&self, index: &mut Index) {
        while index.bytes > self.budget {
            let Some(oldest) = index.entries.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| *key) else {
                return;
            };
            self.forget(index, &oldest);
        }
    }

    fn forget(&self, index: &mut Index, key: &NodeKey) {
        if let Some((bytes, _)) = index.entries.remove(key) {
            index.bytes -= bytes;
        }
        let _ = fs::remove_file(self.path(key));
    }
}

fn write(outputs: &Outputs) -> Option<Vec<u8>> {
    let mut data = Vec::new();
    let mut pictures: Vec<&Value> = Vec::new();
    let mut values = Vec::new();
    for (port, value) in outputs.iter() {
        let mut items = Vec::new();
        for item in value.items() {
            items.push(if let Some(text) = item.as_text() {
                data.extend_from_slice(text.as_bytes());
                Item::Text { bytes: text.len() }
            } else if let Some(earlier) = pictures.iter().position(|seen| seen.is_same(item)) {
                Item::Again(earlier)
            } else {
                let image = item.downcast::<Image>()?;
                data.extend_from_slice(image.pixels());
                pictures.push(item);
                Item::Picture { width: image.width(), height: image.height(), mask: item.kind() == PortKind::Mask }
            });
        }
        values.push(StoredValue { port: port.to_owned(), items, list: matches!(value, Value::Images(_)) });
    }
    let header = serde_json::to_vec(&Header { record: outputs.record().clone(), values }).ok()?;
    let mut bytes = Vec::with_capacity(MAGIC.len() + 8 + header.len() + data.len() + CHECKSUM);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&(header.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&header);
    bytes.extend_from_slice(&data);
    let checksum = Sha256::digest(&bytes);
    bytes.extend_from_slice(&checksum);
    Some(bytes)
}

fn read(bytes: &[u8]) -> Option<Outputs> {
    let (content, checksum) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM)?)?;
    if Sha256::digest(content).as_slice() != checksum {
        return None;
    }
    let (length, rest) = content.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
    let (header, mut data) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    let header: Header = serde_json::from_slice(header).ok()?;
    let mut take = |count: usize| {
        let (taken, rest) = data.split_at_checked(count)?;
        data = rest;
        Some(taken)
    };
    let mut pictures: Vec<Value> = Vec::new();
    let mut outputs = Outputs::new();
    for stored in header.values {
        let mut items = Vec::new();
        for item in stored.items {
            items.push(match item {
                Item::Text { bytes } => Value::text(std::str::from_utf8(take(bytes)?).ok()?),
                Item::Again(earlier) => pictures.get(earlier)?.clone(),
                Item::Picture { width, height, mask } => {
                    let pixels = take(width as usize * height as usize * 3)?.to_vec();
                    let kind = if mask { PortKind::Mask } else { PortKind::Image };
                    pictures.push(Value::object(kind, Image::new(width, height, pixels).ok()?));
                    pictures.last()?.clone()
                }
            });
        }
        let value = if stored.list { Value::Images(items) } else { items.pop()? };
        outputs = outputs.with(stored.port, value);
    }
    Some(header.record.into_iter().fold(outputs, |outputs, (key, value)| outputs.recording(key, value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: u8) -> NodeKey {
        hex::encode([name; 32]).parse().unwrap()
    }

    fn picture(shade: u8) -> Value {
        Value::image(Image::new(2, 1, vec![shade; 6]).unwrap())
    }

    fn outputs(shade: u8) -> Outputs {
        let first = picture(shade);
        let list = Value::Images(vec![first.clone(), picture(shade + 1)]);
        Outputs::of("image", first).with("images", list).with("text", Value::text("é")).recording("seed", 7)
    }

    fn shades(outputs: &Outputs) -> Vec<u8> {
        let shade = |value: &Value| value.downcast::<Image>().unwrap().pixels()[0];
        outputs.get("images").unwrap().items().iter().map(shade).collect()
    }

    #[test]
    fn outputs_come_back_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        DiskCache::open(dir.path(), 1 << 20).unwrap().put(&key(1), &outputs(10));
        let cache = DiskCache::open(dir.path(), 1 << 20).unwrap();
        let got = cache.get(&key(1)).unwrap();
        assert_eq!(shades(&got), [10, 11]);
        assert_eq!(got.get("text").unwrap().as_text(), Some("é"));
        assert_eq!(got.record()["seed"], 7);
        assert!(got.get("image").unwrap().is_same(&got.get("images").unwrap().items()[0]));
        assert!(cache.get(&key(2)).is_none());
    }

    #[test]
    fn handles_are_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let cache = DiskCache::open(dir.path(), 1 << 20).unwrap();
        cache.put(&key(1), &Outputs::of("vae", Value::object(PortKind::Vae, 5_u8)));
        assert!(cache.get(&key(1)).is_none());
    }

    #[test]
    fn damage_is_noticed_and_leftovers_go() {
        let dir = tempfile::tempdir().unwrap();
        let cache = DiskCache::open(dir.path(), 1 << 20).unwrap();
        cache.put(&key(1), &outputs(10));
        let file = dir.path().join(key(1).to_string());
        let whole = fs::read(&file).unwrap();
        for at in [0, 9, 20, whole.len() - 40, whole.len() - 1] {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            assert!(read(&bytes).is_none(), "byte {at}");
            assert!(read(&whole[..at]).is_none(), "cut at {at}");
        }
        fs::write(&file, &whole[..30]).unwrap();
        assert!(cache.get(&key(1)).is_none() && !file.exists());
        fs::write(dir.path().join(".tmpabc"), b"half").unwrap();
        DiskCache::open(dir.path(), 1 << 20).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_budget_holds_and_what_was_used_last_stays() {
        let dir = tempfile::tempdir().unwrap();
        let size = write(&outputs(0)).unwrap().len() as u64;
        let cache = DiskCache::open(dir.path(), size * 2).unwrap();
        for name in [1, 2] {
            cache.put(&key(name), &outputs(name));
        }
        assert!(cache.get(&key(1)).is_some());
        cache.put(&key(3), &outputs(3));
        assert_eq!([1, 2, 3].map(|name| cache.get(&key(name)).is_some()), [true, false, true]);
        // A smaller budget holds from the start.
        let cache = DiskCache::open(dir.path(), size).unwrap();
        assert_eq!([1, 3].map(|name| cache.get(&key(name)).is_some()), [false, true]);
    }
}
