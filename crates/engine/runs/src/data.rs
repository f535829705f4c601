//! The data directory: database, takes, assets, and the lock that keeps it to one engine.

use crate::media::{Media, PathAccess};
use crate::store::{Store, StoreError};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Handle;

/// An open data directory. Only one process at a time has it open: another would take up the runs that this one works on.
pub struct DataDir {
    path: PathBuf,
    store: Store,
    media: Arc<Media>,
    /// Locked as long as it is open; the system unlocks it whatever ends the process.
    _lock: File,
}

impl DataDir {
    /// Opens or makes the directory. To be called within a tokio runtime, whose threads then read for nodes.
    ///
    /// # Errors
    /// It can't be written, is in use, or its database is of a newer version.
    pub async fn open(path: &Path, paths: PathAccess) -> Result<Self, StoreError> {
        let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        fs::create_dir_all(path).map_err(at)?;
        let lock = File::options().create(true).truncate(false).write(true).open(path.join("lock")).map_err(at)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::InUse),
            // Some network file systems have no locks; SQLite's own are all that is left there.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                tracing::warn!(path = %path.display(), "the data directory can't be locked; run one engine on it only");
            }
            Err(TryLockError::Error(error)) => return Err(at(error).into()),
        }
        let store = Store::open(path).await?;
        let media = Media::new(path, store.clone(), Handle::current(), paths);
        media.takes().sweep();
        media.assets().sweep();
        Ok(Self { path: path.to_owned(), store, media: Arc::new(media), _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The database.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The takes and assets, which source nodes read.
    pub fn media(&self) -> &Arc<Media> {
        &self.media
    }
}
