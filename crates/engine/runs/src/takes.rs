//! From a node's outputs to takes: bytes first, then the listing.

use crate::blobs::{Blobs, content_id};
use crate::picture::{encode_png, parameters_text};
use crate::state::{Take, now_ms};
use engine_graph::{Graph, MediaKind, NodeError, NodeOutput, Value as PortValue};
use gen_core::Image;
use serde_json::{Map, Value};
use uuid::Uuid;

/// An encoded output that isn't listed yet.
pub struct Encoded {
    /// What it is.
    pub kind: MediaKind,
    /// Media type.
    pub mime: &'static str,
    /// Usual end of a file name.
    pub extension: &'static str,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Everything needed to make it again.
    pub params: Map<String, Value>,
}

/// Encodes the media on a node's outputs. Equal graphs and seeds give equal bytes, wherever they run.
///
/// # Errors
/// An output can't be encoded.
pub fn encode(graph: &Graph, output: &NodeOutput<'_>) -> Result<Vec<Encoded>, NodeError> {
    let params = take_params(output);
    let graph = with_drawn_seeds(graph, output).to_value().to_string();
    let count = output.takes().count();
    let encode = |(index, (port, kind, value)): (usize, (&str, MediaKind, &PortValue))| {
        let image = value.downcast::<Image>().filter(|_| kind == MediaKind::Image);
        let image = image.ok_or_else(|| NodeError::new(format!("{kind} takes can't be written")).on_port(port))?;
        let params = if count > 1 { row_params(&params, index) } else { params.clone() };
        let bytes = encode_png(&image, &parameters_text(&params), &graph);
        let bytes = bytes.map_err(|e| NodeError::new(format!("the picture can't be encoded: {e}")))?;
        Ok(Encoded { kind, mime: "image/png", extension: "png", bytes, params })
    };
    output.takes().enumerate().map(encode).collect()
}

/// The params of one picture of several: row `index` is what its own seed gives alone.
fn row_params(params: &Map<String, Value>, index: usize) -> Map<String, Value> {
    let mut params = params.clone();
    if let Some(seed) = params.get("seed").and_then(Value::as_u64) {
        params.insert("seed".to_owned(), seed.wrapping_add(index as u64).into());
    }
    params.insert("batchIndex".to_owned(), index.into());
    params
}

/// The node's params with the seeds that were drawn, and what its runner recorded.
fn take_params(output: &NodeOutput<'_>) -> Map<String, Value> {
    let mut params = output.params.to_json();
    for (key, value) in output.outputs.record() {
        params.insert(key.clone(), value.clone());
    }
    params
}

/// The graph with the random seeds that the run drew put in, so that it gives the same take again.
fn with_drawn_seeds(graph: &Graph, output: &NodeOutput<'_>) -> Graph {
    let mut graph = graph.clone();
    for drawn in output.drawn {
        if let Some(node) = graph.nodes.iter_mut().find(|node| node.id == drawn.node_id) {
            node.params.insert(drawn.param.clone(), drawn.seed.into());
        }
    }
    graph
}

/// Writes an encoded output and makes the take that is to be listed.
///
/// # Errors
/// The disk is full or can't be written.
pub fn write(blobs: &Blobs, encoded: Encoded, run_id: &str, node_id: &str) -> std::io::Result<Take> {
    let hash = content_id(&encoded.bytes);
    let uri = blobs.put(&hash, encoded.extension, &encoded.bytes)?;
    Ok(Take {
        id: format!("take_{}", Uuid::new_v4().simple()),
        run_id: run_id.to_owned(),
        node_id: node_id.to_owned(),
        kind: encoded.kind,
        uri,
        hash,
        params: encoded.params,
        created_at: now_ms(),
        mime: encoded.mime.to_owned(),
    })
}
