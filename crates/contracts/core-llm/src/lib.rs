//! The text contract of the inference runtime: requests and streams, descriptors, and the registries that a bundle composes.
//!
//! There is no tensor library below this crate. All traits are object-safe, blocking and `Send + Sync`.

mod descriptor;
mod load;
mod message;
mod preparer;
mod registry;
mod request;
mod stream;
mod tools;

pub use descriptor::{TextCapabilities, TextLlmDescriptor, ThinkingSupport};
pub use load::LoadSpec;
pub use message::{ContentPart, Message, MessageRole, ToolCall};
pub use preparer::{
    PrepareSpec, PreparerEntry, SnapshotPreparer, SnapshotPreparerRegistry, SnapshotPreparerRegistryBuilder,
};
pub use registry::{TextLlm, TextLlmEntry, TextLlmRegistry, TextLlmRegistryBuilder};
pub use request::{Constraint, MAX_TOP_LOGPROBS, SamplingParams, TextLlmRequest, Thinking, ToolChoice};
pub use runtime_base::{CancelFlag, DescriptorProblem, Error, Image, Precision, Quant, Result, WeightsSource};
pub use stream::{Channel, FinishReason, StreamEvent, TextLlmOutput, TokenChoice, TokenLogprob, Usage};
