//! What the descriptors and registries of both contracts have in common.

use crate::{Error, Result};
use std::collections::BTreeMap;

/// Why a descriptor is not well-formed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("descriptor '{id}': {problem}")]
pub struct DescriptorProblem {
    /// The descriptor.
    pub id: String,
    /// What is wrong.
    pub problem: String,
}

/// Entries of a registry by id.
///
/// # Errors
/// Two have the same id; `kind` names them in the message.
pub fn by_unique_id<E>(kind: &str, entries: Vec<E>, id: impl Fn(&E) -> &str) -> Result<BTreeMap<String, E>> {
    let mut map = BTreeMap::new();
    for entry in entries {
        let id = id(&entry).to_owned();
        if map.contains_key(&id) {
            return Err(Error::Unsupported(format!("the {kind} id '{id}' is registered twice")));
        }
        map.insert(id, entry);
    }
    Ok(map)
}

/// The answer to an id that isn't in a registry.
pub fn unknown_id<'a>(kind: &str, id: &str, known: impl Iterator<Item = &'a String>) -> Error {
    let known: Vec<_> = known.map(String::as_str).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Error::Unsupported(format!("no {kind} is called '{id}'; this build has: {known}"))
}
