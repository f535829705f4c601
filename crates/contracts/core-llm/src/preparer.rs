//! Turning downloaded files into snapshots that load fast.

use crate::{CancelFlag, Error, Quant, Result};
use runtime_base::by_unique_id;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What to make of what.
#[derive(Debug, Clone)]
pub struct PrepareSpec {
    /// A file or folder with the weights.
    pub source: PathBuf,
    /// The folder to be made; it must not exist.
    pub destination: PathBuf,
    /// Quantization of the big weights.
    pub quant: Option<Quant>,
    /// Stops the work when set.
    pub cancel: CancelFlag,
}

impl PrepareSpec {
    /// A snapshot without quantization.
    pub fn dense(source: impl Into<PathBuf>, destination: impl Into<PathBuf>) -> Self {
        let cancel = CancelFlag::new();
        Self { source: source.into(), destination: destination.into(), quant: None, cancel }
    }

    /// A quantized snapshot.
    pub fn quantized(source: impl Into<PathBuf>, destination: impl Into<PathBuf>, quant: Quant) -> Self {
        Self { quant: Some(quant), ..Self::dense(source, destination) }
    }

    /// Sets the flag that stops the work.
    #[must_use]
    pub fn with_cancel(mut self, cancel: &CancelFlag) -> Self {
        self.cancel = cancel.clone();
        self
    }
}

/// Makes snapshots.
pub trait SnapshotPreparer: Send + Sync {
    /// Makes the snapshot, whole or not at all.
    ///
    /// # Errors
    /// The source can't be used, the destination exists, or writing failed; nothing is left behind then.
    fn prepare(&self, spec: &PrepareSpec) -> Result<()>;
}

/// A preparer and the backend whose snapshots it makes.
pub struct PreparerEntry {
    /// The tensor backend.
    pub backend: String,
    /// The preparer.
    pub preparer: Box<dyn SnapshotPreparer>,
}

/// Collects preparers; a second one for a backend is refused by [`Self::build`].
#[derive(Default)]
pub struct SnapshotPreparerRegistryBuilder {
    entries: Vec<PreparerEntry>,
}

impl SnapshotPreparerRegistryBuilder {
    /// An empty builder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a preparer.
    #[must_use]
    pub fn register_preparer(mut self, entry: PreparerEntry) -> Self {
        self.entries.push(entry);
        self
    }

    /// Freezes the registry.
    ///
    /// # Errors
    /// A backend has two preparers.
    pub fn build(self) -> Result<SnapshotPreparerRegistry> {
        Ok(SnapshotPreparerRegistry { preparers: by_unique_id("snapshot preparer", self.entries, |e| &e.backend)? })
    }
}

/// Preparers by backend.
pub struct SnapshotPreparerRegistry {
    preparers: BTreeMap<String, PreparerEntry>,
}

impl SnapshotPreparerRegistry {
    /// Backends with a preparer, ordered.
    pub fn backends(&self) -> impl Iterator<Item = &str> {
        self.preparers.keys().map(String::as_str)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.preparers.is_empty()
    }

    /// Makes a snapshot with the bundle's preparer.
    ///
    /// # Errors
    /// As [`SnapshotPreparer::prepare`], and when there is no preparer.
    pub fn prepare_snapshot(&self, spec: &PrepareSpec) -> Result<()> {
        let preparer = self.preparers.values().next();
        let preparer = preparer.ok_or_else(|| Error::Unsupported("this build has no snapshot preparer".into()))?;
        preparer.preparer.prepare(spec)
    }
}
