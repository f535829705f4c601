//! Names of bytes: the hash of what they are.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

const PREFIX: &str = "sha256-";

/// `sha256-` and the hash of some bytes in 64 lowercase hex digits. As an id from outside is only taken in exactly this form,
/// it can name no file but one of its own folder.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContentId(String);

impl ContentId {
    /// The id of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hash = ContentHash::default();
        hash.update(bytes);
        hash.finish()
    }

    /// Reads an id; `None` when it has another form.
    pub fn parse(text: &str) -> Option<Self> {
        let hex = text.strip_prefix(PREFIX)?;
        let digits = hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        digits.then(|| Self(text.to_owned()))
    }

    /// The whole id.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The hash alone.
    pub fn hex(&self) -> &str {
        &self.0[PREFIX.len()..]
    }
}

impl fmt::Display for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<ContentId> for String {
    fn from(id: ContentId) -> Self {
        id.0
    }
}

impl TryFrom<String> for ContentId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or_else(|| format!("{text:?} is not a content id: sha256- and 64 hex digits"))
    }
}

/// The hash of bytes that come piece by piece.
#[derive(Debug, Clone, Default)]
pub struct ContentHash(Sha256);

impl ContentHash {
    /// Adds a piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The id of all pieces together.
    pub fn finish(self) -> ContentId {
        ContentId(format!("{PREFIX}{}", hex::encode(self.0.finalize())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_hashes_and_nothing_else() {
        let id = ContentId::of(b"abc");
        assert_eq!(id.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(ContentId::parse(id.as_str()), Some(id.clone()));
        let path = format!("sha256-{}", "../".repeat(21) + "x");
        for other in ["", "sha256-", "sha256-ab", &id.hex().to_uppercase(), &id.as_str().to_uppercase(), &path] {
            assert_eq!(ContentId::parse(other), None, "{other}");
        }
    }
}
