//! Files that are written whole or not at all, named by their content.

use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A folder of immutable files.
#[derive(Debug, Clone)]
pub struct Blobs {
    root: PathBuf,
}

/// `sha256-` and the hash of `bytes` in hex.
pub fn content_id(bytes: &[u8]) -> String {
    format!("sha256-{}", hex::encode(Sha256::digest(bytes)))
}

impl Blobs {
    /// The folder at `root`, made when it is first written to.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Path below the root of the content `id`.
    pub fn uri(id: &str, extension: &str) -> String {
        let hash = id.strip_prefix("sha256-").unwrap_or(id);
        format!("{}/{hash}.{extension}", hash.get(..2).unwrap_or("00"))
    }

    /// Writes bytes below a name made of their content: under a temporary name, synced, then renamed, so that a name that
    /// exists has its bytes even after a crash. Gives the path below the root.
    ///
    /// # Errors
    /// The disk is full or can't be written.
    pub fn put(&self, id: &str, extension: &str, bytes: &[u8]) -> io::Result<String> {
        let uri = Self::uri(id, extension);
        let path = self.root.join(&uri);
        if fs::metadata(&path).is_ok_and(|m| m.len() == bytes.len() as u64) {
            return Ok(uri);
        }
        let folder = path.parent().unwrap_or(&self.root).to_owned();
        fs::create_dir_all(&folder)?;
        let mut file = tempfile::Builder::new().prefix(".writing-").tempfile_in(&folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(&path).map_err(|e| e.error)?;
        // The name must survive a power cut too.
        if let Ok(folder) = File::open(&folder) {
            folder.sync_all()?;
        }
        Ok(uri)
    }

    /// Where a file is.
    pub fn path(&self, uri: &str) -> PathBuf {
        self.root.join(uri)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It isn't there or can't be read.
    pub fn read(&self, uri: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path(uri))
    }

    /// Removes what writes that a crash cut short left behind.
    pub fn sweep(&self) {
        let list = |dir: &Path| fs::read_dir(dir).into_iter().flatten().filter_map(|e| e.ok().map(|e| e.path()));
        for folder in list(&self.root).filter(|p| p.is_dir()) {
            for file in list(&folder) {
                if file.file_name().is_some_and(|n| n.to_string_lossy().starts_with(".writing-")) {
                    let _ = fs::remove_file(file);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_and_leftovers_go() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = Blobs::new(dir.path().join("takes"));
        let uri = blobs.put(&content_id(b"abc"), "png", b"abc").unwrap();
        assert_eq!(blobs.read(&uri).unwrap(), b"abc");
        assert_eq!(blobs.put(&content_id(b"abc"), "png", b"abc").unwrap(), uri);
        let leftover = blobs.path(&uri).with_file_name(".writing-x");
        fs::write(&leftover, b"half").unwrap();
        blobs.sweep();
        assert!(!leftover.exists() && blobs.path(&uri).exists());
    }

    #[test]
    fn an_unwritable_folder_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("takes"), b"a file").unwrap();
        assert!(Blobs::new(dir.path().join("takes")).put(&content_id(b"x"), "png", b"x").is_err());
    }
}
