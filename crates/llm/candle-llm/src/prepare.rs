//! Snapshots from safetensors files.

use crate::snapshot::{Snapshot, tokenizer_place};
use core_llm::{CancelFlag, Error, PrepareSpec, Result, SnapshotPreparer, WeightsSource};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use weights::Checkpoint;

/// Copies what a snapshot needs, checked and whole, into a new folder.
pub(crate) struct SafetensorsPreparer;

/// Files beside the weights.
const SETTINGS: &[&str] = &["config.json", "generation_config.json"];
/// Files beside the tokenizer.
const WORDS: &[&str] = &["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"];
/// Bytes that are copied between two looks at the cancel flag.
const BLOCK: u64 = 64 << 20;

impl SnapshotPreparer for SafetensorsPreparer {
    fn prepare(&self, spec: &PrepareSpec) -> Result<()> {
        if let Some(quant) = spec.quant {
            return Err(Error::Unsupported(format!("snapshots can't be quantized to {quant:?} here")));
        }
        let destination = &spec.destination;
        if destination.exists() {
            return Err(Error::weights(destination, "exists already; choose a new folder"));
        }
        let source = WeightsSource::from_path(&spec.source);
        // What can't be loaded is refused before a byte is written.
        Snapshot::open(&source, candle_core::DType::F32, None, &spec.cancel)?;
        if Checkpoint::from_source(&source, None)?.gguf().is_some() {
            return Err(Error::Unsupported("GGUF files can't be made a snapshot yet; they load as they are".into()));
        }
        let parts = parts(&source)?;
        let failed = |e: io::Error| Error::weights(destination, format!("can't be written: {e}"));
        let parent = destination.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(parent).map_err(failed)?;
        // Built beside its place, so that the last step is a rename within one file system; dropped, and so removed, on
        // the way out of an error.
        let building = tempfile::Builder::new().prefix(".prepare-").tempdir_in(parent).map_err(failed)?;
        for (from, name) in &parts {
            copy_synced(from, &building.path().join(name), &spec.cancel, &failed)?;
        }
        sync_folder(building.path()).map_err(failed)?;
        fs::rename(building.path(), destination).map_err(failed)?;
        // It has moved away; there is nothing to remove.
        let _ = building.keep();
        sync_folder(parent).map_err(failed)
    }
}

/// The files of a snapshot, each with its name in it.
fn parts(source: &WeightsSource) -> Result<Vec<(PathBuf, String)>> {
    let mut parts = Vec::new();
    let mut add = |folder: &Path, name: &str| {
        let path = folder.join(name);
        if path.is_file() {
            parts.push((path, name.to_owned()));
        }
    };
    let folder = |source: &WeightsSource| match source {
        WeightsSource::File(file) => file.parent().unwrap_or(Path::new("")).to_owned(),
        other => other.path().to_owned(),
    };
    let home = folder(source);
    SETTINGS.iter().for_each(|name| add(&home, name));
    let words = folder(&tokenizer_place(source));
    WORDS.iter().for_each(|name| add(&words, name));
    if let WeightsSource::File(file) = source {
        parts.push((file.clone(), "model.safetensors".to_owned()));
        return Ok(parts);
    }
    let indexes = fs::read_dir(&home).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.file_name()));
    let indexes = indexes.filter_map(|name| name.into_string().ok());
    indexes.filter(|name| name.ends_with(".safetensors.index.json")).for_each(|name| add(&home, &name));
    for file in Checkpoint::from_source(source, None)?.files() {
        if let Some(name) = file.file_name().and_then(|name| name.to_str()) {
            parts.push((file.to_owned(), name.to_owned()));
        }
    }
    Ok(parts)
}

fn copy_synced(from: &Path, to: &Path, cancel: &CancelFlag, failed: &dyn Fn(io::Error) -> Error) -> Result<()> {
    let unreadable = |e: io::Error| Error::weights(from, format!("can't be read: {e}"));
    let mut source = File::open(from).map_err(unreadable)?;
    let mut target = File::create_new(to).map_err(failed)?;
    loop {
        cancel.check()?;
        // Within one file system this is the kernel's own copy.
        if io::copy(&mut (&mut source).take(BLOCK), &mut target).map_err(failed)? == 0 {
            return target.sync_all().map_err(failed);
        }
    }
}

/// Makes the names in a folder durable, where the system lets folders be opened.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}
