//! Where source nodes find assets, takes and files.

use crate::blobs::{Blobs, content_id};
use crate::picture;
use crate::store::Store;
use engine_graph::AssetRef;
use engine_nodes::{AssetError, AssetSource};
use gen_core::Image;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Handle;

/// Which files of the machine a graph may name by path.
#[derive(Debug, Clone, Default)]
pub enum PathAccess {
    /// None.
    #[default]
    None,
    /// Those below these folders.
    Below(Vec<PathBuf>),
    /// Any: for graphs that the machine's own user runs.
    Any,
}

/// The media of an engine's data directory, and the files that its operator allows.
pub struct Media {
    assets: Blobs,
    takes: Blobs,
    cache_dir: PathBuf,
    store: Option<(Store, Handle)>,
    paths: PathAccess,
}

impl Media {
    /// The media of `data_dir`. Runners call from threads of their own, which wait for `handle`'s runtime.
    pub fn new(data_dir: &Path, store: Store, handle: Handle, paths: PathAccess) -> Self {
        Self { store: Some((store, handle)), ..Self::without_store(data_dir, paths) }
    }

    /// The same without a database: assets and files only.
    pub fn without_store(data_dir: &Path, paths: PathAccess) -> Self {
        Self {
            assets: Blobs::new(data_dir.join("assets")),
            takes: Blobs::new(data_dir.join("takes")),
            cache_dir: data_dir.join("cache"),
            store: None,
            paths,
        }
    }

    /// The asset files.
    pub fn assets(&self) -> &Blobs {
        &self.assets
    }

    /// The take files.
    pub fn takes(&self) -> &Blobs {
        &self.takes
    }

    /// Where results that can be made again are kept.
    pub fn cache_dir(&self) -> &Path {
        &self.cache_dir
    }

    fn take(&self, id: &str) -> Result<crate::Take, AssetError> {
        let unknown = || AssetError(format!("there is no take '{id}'"));
        let (store, handle) = self.store.as_ref().ok_or_else(unknown)?;
        let take = handle.block_on(store.take(id)).map_err(|error| {
            tracing::error!(%error, "looking up a take");
            AssetError("the run database failed; the engine's log has the details".into())
        })?;
        take.ok_or_else(unknown)
    }

    fn bytes(&self, reference: &AssetRef) -> Result<Vec<u8>, AssetError> {
        match reference {
            AssetRef::None => Err(AssetError("no asset is chosen".into())),
            AssetRef::Id(id) if id.starts_with("sha256-") => {
                let uri = Blobs::uri(id, ASSET_EXTENSION);
                self.assets.read(&uri).map_err(|_| AssetError(format!("there is no asset '{id}'; upload it first")))
            }
            AssetRef::Id(id) => {
                let take = self.take(id)?;
                self.takes
                    .read(&take.uri)
                    .map_err(|e| AssetError(format!("the bytes of take '{id}' can't be read: {e}")))
            }
            AssetRef::Path(path) => {
                let refused =
                    || AssetError("reading files by path is not allowed here; upload the file as an asset".into());
                let real = Path::new(path).canonicalize();
                let allowed = match &self.paths {
                    PathAccess::None => return Err(refused()),
                    PathAccess::Any => true,
                    PathAccess::Below(folders) => real.as_ref().is_ok_and(|real| {
                        folders.iter().filter_map(|f| f.canonicalize().ok()).any(|folder| real.starts_with(folder))
                    }),
                };
                if !allowed {
                    return Err(refused());
                }
                let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned();
                let unreadable = |e: std::io::Error| AssetError(format!("{name} can't be read: {e}"));
                std::fs::read(real.map_err(unreadable)?).map_err(unreadable)
            }
        }
    }
}

/// Assets are kept without their name, so their file names say nothing of their kind.
pub(crate) const ASSET_EXTENSION: &str = "bin";

impl AssetSource for Media {
    fn image(&self, reference: &AssetRef) -> Result<Arc<Image>, AssetError> {
        let bytes = self.bytes(reference)?;
        picture::decode(&bytes).map(Arc::new).map_err(|e| AssetError(e.to_string()))
    }

    fn content_hash(&self, reference: &AssetRef) -> Result<String, AssetError> {
        match reference {
            // An asset's id is its hash.
            AssetRef::Id(id) if id.starts_with("sha256-") => Ok(id.clone()),
            AssetRef::Id(id) => Ok(self.take(id)?.hash),
            _ => Ok(content_id(&self.bytes(reference)?)),
        }
    }
}
