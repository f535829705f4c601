//! From a node's outputs to takes: bytes first, then the listing.

use crate::blobs::Blobs;
use crate::content::ContentId;
use crate::parameters::parameters_text;
use crate::picture::encode_png;
use crate::state::{Take, now_ms};
use bytes::Bytes;
use engine_graph::{MediaKind, NodeError, NodeOutput, Value as PortValue};
use gen_core::Image;
use serde_json::{Map, Value};
use uuid::Uuid;

/// An encoded output that isn't listed yet.
#[derive(Debug, Clone)]
pub struct Encoded {
    /// What it is.
    pub kind: MediaKind,
    /// Media type.
    pub mime: &'static str,
    /// Usual end of a file name.
    pub extension: &'static str,
    /// The bytes.
    pub bytes: Bytes,
    /// Everything needed to make it again.
    pub params: Map<String, Value>,
}

/// Encodes the media on a node's outputs. `graph` is the run's graph as JSON, its seeds drawn. Equal graphs give equal bytes,
/// wherever they run: nothing of the run, the time or the machine goes in.
///
/// # Errors
/// An output can't be encoded.
pub(crate) fn encode(graph: &str, output: &NodeOutput<'_>) -> Result<Vec<Encoded>, NodeError> {
    let mut params = output.params.to_json();
    params.extend(output.outputs.record().iter().map(|(key, value)| (key.clone(), value.clone())));
    let encode = |(port, kind, value): (&str, MediaKind, &PortValue)| {
        let image = value.downcast::<Image>().filter(|_| kind == MediaKind::Image);
        let image = image.ok_or_else(|| NodeError::new(format!("{kind} takes can't be written")).on_port(port))?;
        let bytes = encode_png(&image, &parameters_text(&params), graph);
        let bytes = bytes.map_err(|e| NodeError::new(format!("the picture can't be encoded: {e}")))?;
        Ok(Encoded { kind, mime: "image/png", extension: "png", bytes: bytes.into(), params: params.clone() })
    };
    output.takes().map(encode).collect()
}

/// Writes an encoded output and makes the take that is to be listed.
///
/// # Errors
/// The disk is full or can't be written.
pub(crate) async fn write(blobs: &Blobs, encoded: Encoded, run_id: &str, node_id: &str) -> std::io::Result<Take> {
    let hash = ContentId::of(&encoded.bytes);
    let uri = Blobs::uri(&hash, encoded.extension);
    let bytes = encoded.bytes.len() as i64;
    blobs.put(&uri, encoded.bytes).await?;
    Ok(Take {
        id: format!("take_{}", Uuid::new_v4().simple()),
        run_id: run_id.to_owned(),
        node_id: node_id.to_owned(),
        kind: encoded.kind,
        uri,
        hash: hash.into(),
        params: encoded.params,
        created_at: now_ms(),
        mime: encoded.mime.to_owned(),
        bytes,
    })
}
