//! What flows along edges at run time.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value as Json};

use crate::kind::PortKind;
use crate::runner::NodeError;

/// A value of a port. Clones share the data.
///
/// Media and engine handles are carried without being looked into. By convention an `image` holds a
/// [`gen_core::Image`] and an `audio` a [`gen_core::AudioTrack`]; what a handle holds is between the runners.
#[derive(Clone)]
pub enum Value {
    /// A text.
    Text(Arc<str>),
    /// One medium or handle of a kind.
    Object {
        /// The kind.
        kind: PortKind,
        /// The data, for [`Value::downcast`].
        data: Arc<dyn Any + Send + Sync>,
    },
    /// Pictures in order, of kind `image[]`.
    Images(Vec<Value>),
}

impl Value {
    /// A text.
    pub fn text(text: impl Into<Arc<str>>) -> Self {
        Self::Text(text.into())
    }

    /// A medium or handle.
    pub fn object<T: Any + Send + Sync>(kind: PortKind, data: T) -> Self {
        Self::Object { kind, data: Arc::new(data) }
    }

    /// One picture.
    pub fn image(image: gen_core::Image) -> Self {
        Self::object(PortKind::Image, image)
    }

    /// The kind of port that the value belongs to.
    pub fn kind(&self) -> PortKind {
        match self {
            Self::Text(_) => PortKind::Text,
            Self::Object { kind, .. } => *kind,
            Self::Images(_) => PortKind::ImageList,
        }
    }

    /// The text, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The medium or handle, if it is of Rust type `T`.
    pub fn downcast<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        match self {
            Self::Object { data, .. } => Arc::clone(data).downcast().ok(),
            _ => None,
        }
    }

    /// Whether both share their data.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Object { data: a, .. }, Self::Object { data: b, .. }) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// The pictures of a list, or the value alone.
    pub fn items(&self) -> &[Value] {
        match self {
            Self::Images(images) => images,
            single => std::slice::from_ref(single),
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.debug_tuple("Text").field(text).finish(),
            Self::Object { kind, .. } => f.debug_struct("Object").field("kind", kind).finish_non_exhaustive(),
            Self::Images(images) => f.debug_tuple("Images").field(&images.len()).finish(),
        }
    }
}

/// What a node gives: a value for each output port, and what is only known after running.
#[derive(Clone, Debug, Default)]
pub struct Outputs {
    values: BTreeMap<String, Value>,
    record: Map<String, Json>,
}

impl Outputs {
    /// No values yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A single value.
    pub fn of(port: impl Into<String>, value: Value) -> Self {
        Self::new().with(port, value)
    }

    /// Sets the value of an output port.
    #[must_use]
    pub fn with(mut self, port: impl Into<String>, value: Value) -> Self {
        self.values.insert(port.into(), value);
        self
    }

    /// Adds to the record: what a take's params need beyond the node's params to be rendered again, such as sigmas,
    /// checkpoint hash and dtype.
    #[must_use]
    pub fn recording(mut self, key: impl Into<String>, value: impl Into<Json>) -> Self {
        self.record.insert(key.into(), value.into());
        self
    }

    /// The value of an output port.
    pub fn get(&self, port: &str) -> Option<&Value> {
        self.values.get(port)
    }

    /// The values by port.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(port, value)| (port.as_str(), value))
    }

    /// What the runner recorded.
    pub fn record(&self) -> &Map<String, Json> {
        &self.record
    }
}

/// The values that arrive at a node's input ports, lists flattened in edge order.
#[derive(Clone, Debug, Default)]
pub struct Inputs(BTreeMap<String, Vec<Value>>);

impl Inputs {
    pub(crate) fn push(&mut self, port: &str, value: &Value) {
        self.0.entry(port.to_owned()).or_default().extend_from_slice(value.items());
    }

    /// The value of a port that takes one; `None` when it isn't wired.
    pub fn get(&self, port: &str) -> Option<&Value> {
        self.0.get(port)?.first()
    }

    /// The values of a list port in order; empty when it isn't wired.
    pub fn list(&self, port: &str) -> &[Value] {
        self.0.get(port).map_or(&[], Vec::as_slice)
    }

    /// The text of a required port.
    ///
    /// # Errors
    /// Nothing is wired there, or no text: a mistake in a runner or descriptor, as validation checked the graph.
    pub fn text(&self, port: &str) -> Result<&str, NodeError> {
        self.get(port).and_then(Value::as_text).ok_or_else(|| mismatch(port))
    }

    /// The medium or handle of a required port.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub fn object<T: Any + Send + Sync>(&self, port: &str) -> Result<Arc<T>, NodeError> {
        self.optional(port)?.ok_or_else(|| mismatch(port))
    }

    /// The medium or handle of an optional port; `None` when it isn't wired.
    ///
    /// # Errors
    /// Something else than a `T` is wired there: a mistake in a runner.
    pub fn optional<T: Any + Send + Sync>(&self, port: &str) -> Result<Option<Arc<T>>, NodeError> {
        self.get(port).map(|value| value.downcast().ok_or_else(|| mismatch(port))).transpose()
    }
}

fn mismatch(port: &str) -> NodeError {
    NodeError::new("internal error: this input doesn't hold what the node expects").on_port(port)
}
