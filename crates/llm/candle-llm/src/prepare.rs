//! Snapshots from safetensors folders.

use core_llm::{Error, PrepareSpec, Result, SnapshotPreparer};
use std::fs::{self, File};
use std::io;
use std::path::Path;
use weights::Checkpoint;

/// Copies what a snapshot needs, checked and whole, into a new folder.
pub(crate) struct SafetensorsPreparer;

/// Files beside the weights that a snapshot is loaded with.
const COMPANIONS: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
];

impl SnapshotPreparer for SafetensorsPreparer {
    fn prepare(&self, spec: &PrepareSpec) -> Result<()> {
        if let Some(quant) = spec.quant {
            return Err(Error::Unsupported(format!("snapshots can't be quantized to {quant:?} here")));
        }
        let destination = &spec.destination;
        if destination.exists() {
            return Err(Error::weights(destination, "exists already; choose a new folder"));
        }
        // Opening checks headers, shards and sizes before a byte is written.
        let checkpoint = Checkpoint::open(&spec.source)?;
        let folder =
            if spec.source.is_dir() { spec.source.as_path() } else { spec.source.parent().unwrap_or(Path::new(".")) };
        let config = folder.join("config.json");
        if !config.is_file() {
            return Err(Error::weights(config, "is missing; a snapshot needs the model's config"));
        }
        let failed = |e: io::Error| Error::weights(destination, format!("can't be written: {e}"));
        let parent = destination.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(parent).map_err(failed)?;
        // Built beside its place, so that the last step is a rename within one file system.
        let building = tempfile::Builder::new().prefix(".prepare-").tempdir_in(parent).map_err(failed)?;
        let mut sources: Vec<_> = checkpoint.files().map(Path::to_owned).collect();
        sources.extend(COMPANIONS.iter().map(|name| folder.join(name)).filter(|path| path.is_file()));
        let index = fs::read_dir(folder).into_iter().flatten().filter_map(|e| e.ok().map(|e| e.path()));
        sources.extend(index.filter(|p| p.to_string_lossy().ends_with(".safetensors.index.json")));
        for source in sources {
            let Some(name) = source.file_name() else { continue };
            copy_synced(&source, &building.path().join(name)).map_err(failed)?;
        }
        File::open(building.path()).and_then(|dir| dir.sync_all()).map_err(failed)?;
        let built = building.keep();
        fs::rename(&built, destination).map_err(|e| {
            let _ = fs::remove_dir_all(&built);
            failed(e)
        })?;
        File::open(parent).and_then(|dir| dir.sync_all()).map_err(failed)
    }
}

fn copy_synced(from: &Path, to: &Path) -> io::Result<()> {
    let mut target = File::create_new(to)?;
    io::copy(&mut File::open(from)?, &mut target)?;
    target.sync_all()
}
