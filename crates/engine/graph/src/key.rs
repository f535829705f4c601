//! Cache keys: two nodes have the same key exactly when they must give the same outputs.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::params::{AssetRef, ParamValue, Params};
use crate::runner::NodeError;
use crate::validate::{ValidGraph, ValidNode};

/// The identity of a node's outputs, printed as 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeKey([u8; 32]);

impl NodeKey {
    /// The key's bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeKey({self})")
    }
}

impl FromStr for NodeKey {
    type Err = hex::FromHexError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes)?;
        Ok(Self(bytes))
    }
}

/// Everything that a node's outputs depend on beside its type, params and inputs.
#[derive(Debug, Default)]
pub struct Contents {
    parts: Vec<(String, Vec<u8>)>,
    uncacheable: bool,
}

impl Contents {
    /// Adds the content hash of an asset or weight file that the node reads, or another fact that changes its
    /// outputs, such as the engine's version or the dtype of a placement.
    pub fn add(&mut self, name: impl Into<String>, content: impl AsRef<[u8]>) {
        self.parts.push((name.into(), content.as_ref().to_owned()));
    }

    /// The outputs depend on something that can't be named, so they are never cached.
    pub fn mark_uncacheable(&mut self) {
        self.uncacheable = true;
    }
}

/// Tells what lies behind the names in a node's params.
pub trait ContentHasher: Send + Sync {
    /// Adds what the node reads. Called for each node before any runs.
    ///
    /// # Errors
    /// Something that the node needs isn't there: the run fails with it before anything has run.
    fn add_contents(&self, node: &ValidNode, contents: &mut Contents) -> Result<(), NodeError>;
}

/// For graphs whose nodes read no files.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoContents;

impl ContentHasher for NoContents {
    fn add_contents(&self, _: &ValidNode, _: &mut Contents) -> Result<(), NodeError> {
        Ok(())
    }
}

/// The key of each node of the graph, in its order; `None` for one with a random seed, one that the hasher calls
/// uncacheable, and all that read such a node.
///
/// # Errors
/// The index of the node and the hasher's error.
pub fn node_keys(graph: &ValidGraph, hasher: &dyn ContentHasher) -> Result<Vec<Option<NodeKey>>, (usize, NodeError)> {
    let mut keys: Vec<Option<NodeKey>> = Vec::with_capacity(graph.nodes().len());
    for (index, node) in graph.nodes().iter().enumerate() {
        let mut contents = Contents::default();
        hasher.add_contents(node, &mut contents).map_err(|error| (index, error))?;
        let cacheable = !contents.uncacheable && !node.params().has_random_seed();
        keys.push(if cacheable { node_key(node, &keys, contents) } else { None });
    }
    Ok(keys)
}

fn node_key(node: &ValidNode, keys: &[Option<NodeKey>], mut contents: Contents) -> Option<NodeKey> {
    let mut digest = Fields(Sha256::new());
    digest.bytes(b"inline node key 1");
    digest.bytes(node.node_type().as_bytes());
    hash_params(&mut digest, node.params());
    digest.count(node.inputs().len());
    for input in node.inputs() {
        digest.bytes(input.port.as_bytes());
        digest.count(input.sources.len());
        for source in &input.sources {
            digest.bytes(&keys[source.node]?.0);
            digest.bytes(source.output.as_bytes());
        }
    }
    contents.parts.sort();
    digest.count(contents.parts.len());
    for (name, content) in &contents.parts {
        digest.bytes(name.as_bytes());
        digest.bytes(content);
    }
    Some(NodeKey(digest.0.finalize().into()))
}

fn hash_params(digest: &mut Fields, params: &Params) {
    digest.count(params.iter().count());
    for (key, value) in params.iter() {
        digest.bytes(key.as_bytes());
        // A tag for each type, so that a text and a number that print alike differ.
        match value {
            ParamValue::Text(text) => digest.tagged(b'T', text.as_bytes()),
            ParamValue::Integer(number) => digest.tagged(b'I', &number.to_le_bytes()),
            ParamValue::Float(number) => digest.tagged(b'F', &number.to_bits().to_le_bytes()),
            ParamValue::Boolean(value) => digest.tagged(b'B', &[u8::from(*value)]),
            ParamValue::Seed(seed) => digest.tagged(b'S', &seed.value().map(u64::to_le_bytes).unwrap_or_default()),
            ParamValue::Asset(AssetRef::None) => digest.tagged(b'N', b""),
            ParamValue::Asset(AssetRef::Id(id)) => digest.tagged(b'A', id.as_bytes()),
            ParamValue::Asset(AssetRef::Path(path)) => digest.tagged(b'P', path.as_bytes()),
        }
    }
}

/// A hash over fields that can't run into each other: each is preceded by its length.
struct Fields(Sha256);

impl Fields {
    fn count(&mut self, count: usize) {
        self.0.update((count as u64).to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.update(bytes);
    }

    fn tagged(&mut self, tag: u8, bytes: &[u8]) {
        self.0.update([tag]);
        self.bytes(bytes);
    }
}
