//! What the descriptors of both contracts have in common.

/// Why a descriptor is not well-formed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("descriptor '{id}': {problem}")]
pub struct DescriptorProblem {
    /// The descriptor.
    pub id: String,
    /// What is wrong.
    pub problem: String,
}
