//! Folders of immutable files, each written whole or not at all.

use crate::content::ContentId;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{GetOptions, GetRange, MultipartUpload, ObjectStore, ObjectStoreExt};
use std::fs;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// A large file is written in pieces of this many bytes.
const PIECE: usize = 8 << 20;

/// A folder of immutable files, named by their content.
#[derive(Debug, Clone)]
pub struct Blobs {
    root: PathBuf,
    store: Arc<OnceLock<LocalFileSystem>>,
}

impl Blobs {
    /// The folder at `root`, made when it is first written to.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), store: Arc::default() }
    }

    /// Path below the root of the content `id`.
    pub fn uri(id: &ContentId, extension: &str) -> String {
        format!("{}/{}.{extension}", &id.hex()[..2], id.hex())
    }

    /// The folder as an object store that stages under a temporary name, syncs file and folders, and then renames: a name
    /// that exists has its bytes even after the power failed.
    fn store(&self) -> io::Result<&LocalFileSystem> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        let store = LocalFileSystem::new_with_prefix(&self.root).map_err(plain)?.with_fsync(true);
        Ok(self.store.get_or_init(|| store))
    }

    fn store_to_write(&self) -> io::Result<&LocalFileSystem> {
        fs::create_dir_all(&self.root)?;
        self.store()
    }

    /// Writes bytes below the root. What is there already stays: equal names mean equal bytes.
    ///
    /// # Errors
    /// The disk is full or can't be written. Nothing is left behind under that name.
    pub async fn put(&self, uri: &str, bytes: Bytes) -> io::Result<()> {
        let length = bytes.len() as u64;
        let store = self.store_to_write()?;
        if self.length(uri).await.is_ok_and(|there| there == length) {
            return Ok(());
        }
        store.put(&path(uri)?, bytes.into()).await.map_err(plain)?;
        Ok(())
    }

    /// Writes what `source` gives, `length` bytes, below the root; as [`Self::put`], without holding all of it in memory.
    ///
    /// # Errors
    /// As [`Self::put`], and the source failed.
    pub async fn put_from(&self, uri: &str, length: u64, source: &mut (impl io::Read + ?Sized)) -> io::Result<()> {
        let store = self.store_to_write()?;
        if self.length(uri).await.is_ok_and(|there| there == length) {
            return Ok(());
        }
        let mut upload = store.put_multipart(&path(uri)?).await.map_err(plain)?;
        let copied = async {
            loop {
                let mut piece = Vec::with_capacity(PIECE.min(usize::try_from(length).unwrap_or(PIECE)));
                if source.by_ref().take(PIECE as u64).read_to_end(&mut piece)? == 0 {
                    return Ok(());
                }
                upload.put_part(piece.into()).await.map_err(plain)?;
            }
        }
        .await;
        match copied {
            Ok(()) => upload.complete().await.map(|_| ()).map_err(plain),
            Err(error) => {
                let _ = upload.abort().await;
                Err(error)
            }
        }
    }

    /// Number of bytes of a file.
    ///
    /// # Errors
    /// It isn't there or can't be read.
    pub async fn length(&self, uri: &str) -> io::Result<u64> {
        Ok(self.store()?.head(&path(uri)?).await.map_err(plain)?.size)
    }

    /// Reads a whole file.
    ///
    /// # Errors
    /// It isn't there or can't be read.
    pub async fn read(&self, uri: &str) -> io::Result<Bytes> {
        self.store()?.get(&path(uri)?).await.map_err(plain)?.bytes().await.map_err(plain)
    }

    /// Reads part of a file, piece by piece.
    ///
    /// # Errors
    /// It isn't there or can't be read.
    pub async fn stream(&self, uri: &str, range: Range<u64>) -> io::Result<BoxStream<'static, io::Result<Bytes>>> {
        if range.is_empty() {
            return Ok(futures::stream::empty().boxed());
        }
        let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        let found = self.store()?.get_opts(&path(uri)?, options).await.map_err(plain)?;
        Ok(found.into_stream().map(|piece| piece.map_err(plain)).boxed())
    }

    /// Removes what writes that a crash cut short left behind. To be called while nothing is written.
    pub fn sweep(&self) {
        let list = |dir: &Path| fs::read_dir(dir).into_iter().flatten().filter_map(|e| e.ok().map(|e| e.path()));
        for folder in list(&self.root).filter(|p| p.is_dir()) {
            for file in list(&folder) {
                // The store stages under the final name with `#` and a number, which no content id holds.
                if file.file_name().is_some_and(|name| name.to_string_lossy().contains('#')) {
                    let _ = fs::remove_file(file);
                }
            }
        }
    }
}

fn path(uri: &str) -> io::Result<ObjectPath> {
    ObjectPath::parse(uri).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "not a path of this store"))
}

/// The store's messages hold host paths; what the operating system said does not.
fn plain(error: object_store::Error) -> io::Error {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(cause) = source {
        if let Some(cause) = cause.downcast_ref::<io::Error>() {
            return cause.raw_os_error().map_or_else(|| cause.kind().into(), io::Error::from_raw_os_error);
        }
        source = cause.source();
    }
    match error {
        object_store::Error::NotFound { .. } => io::ErrorKind::NotFound.into(),
        _ => io::Error::other("the file store failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, Blobs) {
        let dir = tempfile::tempdir().unwrap();
        let blobs = Blobs::new(dir.path().join("takes"));
        (dir, blobs)
    }

    #[tokio::test]
    async fn bytes_come_back_whole_and_in_parts_and_leftovers_go() {
        let (_dir, blobs) = folder();
        let uri = Blobs::uri(&ContentId::of(b"abcdef"), "png");
        assert!(blobs.read(&uri).await.is_err());
        blobs.put(&uri, Bytes::from_static(b"abcdef")).await.unwrap();
        blobs.put(&uri, Bytes::from_static(b"abcdef")).await.unwrap();
        assert_eq!(blobs.read(&uri).await.unwrap(), b"abcdef"[..]);
        assert_eq!(blobs.length(&uri).await.unwrap(), 6);
        let parts: Vec<Bytes> = blobs.stream(&uri, 2..5).await.unwrap().map(|p| p.unwrap()).collect().await;
        assert_eq!(parts.concat(), b"cde");
        assert_eq!(blobs.stream(&uri, 6..6).await.unwrap().count().await, 0);

        let leftover = blobs.root.join(format!("{uri}#1"));
        fs::write(&leftover, b"half").unwrap();
        blobs.sweep();
        assert!(!leftover.exists());
        assert_eq!(blobs.read(&uri).await.unwrap(), b"abcdef"[..]);
    }

    #[tokio::test]
    async fn large_files_pass_through_in_pieces() {
        let (_dir, blobs) = folder();
        let bytes: Vec<u8> = (0..PIECE + 12345).map(|i| (i % 251) as u8).collect();
        let uri = Blobs::uri(&ContentId::of(&bytes), "bin");
        blobs.put_from(&uri, bytes.len() as u64, &mut &bytes[..]).await.unwrap();
        assert_eq!(blobs.read(&uri).await.unwrap(), bytes);
    }

    #[tokio::test]
    async fn an_unwritable_folder_is_an_error_without_its_path() {
        let (dir, blobs) = folder();
        fs::write(dir.path().join("takes"), b"a file").unwrap();
        let failed = blobs.put("ab/x.png", Bytes::from_static(b"x")).await.unwrap_err().to_string();
        assert!(!failed.contains(dir.path().to_str().unwrap()), "{failed}");

        let (dir, blobs) = folder();
        fs::create_dir(dir.path().join("takes")).unwrap();
        fs::write(dir.path().join("takes/ab"), b"a file").unwrap();
        let failed = blobs.put("ab/x.png", Bytes::from_static(b"x")).await.unwrap_err().to_string();
        assert!(!failed.contains(dir.path().to_str().unwrap()), "{failed}");
    }

    #[tokio::test]
    async fn no_name_leads_out_of_the_folder() {
        let (dir, blobs) = folder();
        fs::write(dir.path().join("secret"), b"s").unwrap();
        blobs.put("ab/x.png", Bytes::from_static(b"x")).await.unwrap();
        for name in ["../secret", "ab/../../secret", "/etc/passwd"] {
            assert!(blobs.read(name).await.is_err(), "{name}");
        }
    }
}
