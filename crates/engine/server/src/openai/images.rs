//! `POST /v1/images/generations`, and what it shares with the edits: each picture is an ordinary run.

use super::pictures::{Answer, answer};
use super::{OpenAiError, read};
use crate::AppState;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use engine_graph::{Graph, Node, NodeDescriptor};
use engine_runs::SubmitError;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Pictures of one request at most, as OpenAI has it.
const MAX_COUNT: u32 = 10;

/// What to paint.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImageBody {
    /// What to paint.
    pub prompt: String,
    /// A node type of `GET /v1/models`; the installed model, else the demo, when left out.
    pub model: Option<String>,
    /// Number of pictures, 1 to 10; picture i uses seed + i.
    pub n: Option<u32>,
    /// `<width>x<height>`, or `auto` for the model's own size.
    pub size: Option<String>,
    /// Whether the answer holds addresses or the pictures themselves.
    #[serde(default)]
    pub response_format: Option<ResponseFormat>,
    /// Only PNG.
    #[allow(dead_code)] // reading it checks it
    pub output_format: Option<OutputFormat>,
    /// Kept with the run.
    pub user: Option<String>,
    /// The first picture's seed, 0 to 2^64-1, or -1 for a random one (not OpenAI's).
    pub seed: Option<Value>,
    /// What to avoid; needs guidance (not OpenAI's).
    pub negative_prompt: Option<String>,
    /// Sampler steps (not OpenAI's).
    pub steps: Option<u32>,
    /// Guidance scale, 0 for none (not OpenAI's).
    pub guidance: Option<f64>,
    /// How far to move away from the picture, 0 to 1; edits only (not OpenAI's).
    pub strength: Option<f64>,
}

/// How pictures are given back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ResponseFormat {
    /// The address of the take's bytes.
    #[default]
    Url,
    /// The bytes in base64.
    B64Json,
}

/// Format of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OutputFormat {
    /// Lossless, with the settings embedded.
    Png,
}

/// Pictures to start from: ids of assets.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    pub image: Option<String>,
    /// White is painted anew.
    pub mask: Option<String>,
}

/// Paints pictures and waits for them. Each is an ordinary run, which goes on when the client goes away.
#[utoipa::path(post, path = "/v1/images/generations", tag = "openai", request_body = ImageBody,
    params(("Idempotency-Key" = Option<String>, Header, description = "Sent again, it gives the first request's pictures")),
    responses((status = 200, body = Answer), (status = 404, body = crate::error::ErrorBody),
        (status = 422, body = crate::error::ErrorBody)))]
pub(crate) async fn generations(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Answer>, OpenAiError> {
    let body: ImageBody = read(&state, &headers, body).await?;
    if body.strength.is_some() {
        return Err(OpenAiError::field("strength", "strength says how far to move away from a picture; this has none"));
    }
    let node = image_node(&state, body.model.as_deref()).await?;
    let size = match wanted_size(body.size.as_deref())? {
        Some(size) => Some(checked_size(&node, size)?),
        None => None,
    };
    let runs = submit(&state, &headers, &body, &node, size, &Sources::default()).await?;
    answer(&state, &headers, runs, body.response_format.unwrap_or_default()).await.map(Json)
}

/// The node type that a model's name means.
pub(crate) async fn image_node(state: &AppState, name: Option<&str>) -> Result<Arc<NodeDescriptor>, OpenAiError> {
    let (registry, _) = crate::models::registry(state).await;
    let name = name.unwrap_or_else(|| state.engine.nodes().default_image_node());
    let paints = |node: &&Arc<NodeDescriptor>| {
        !node.hidden && node.find_input("prompt").is_some() && node.find_output("image").is_some()
    };
    registry.get(name).filter(paints).cloned().ok_or_else(|| OpenAiError::unknown_model(name))
}

/// Width and height as they were asked for; `None` for the model's own.
pub(crate) fn wanted_size(size: Option<&str>) -> Result<Option<(u32, u32)>, OpenAiError> {
    let Some(size) = size.filter(|size| *size != "auto") else { return Ok(None) };
    let sides = size.split_once('x').and_then(|(width, height)| Some((width.parse().ok()?, height.parse().ok()?)));
    sides.map(Some).ok_or_else(|| OpenAiError::field("size", "size must be auto or <width>x<height>, such as 512x512"))
}

/// Smallest and largest side of a node's pictures, and what sides are multiples of.
pub(crate) fn sides(node: &NodeDescriptor) -> (u32, u32, u32) {
    let width = node.find_param("width");
    let number = |value: Option<&serde_json::Number>, otherwise: u64| {
        value.and_then(serde_json::Number::as_u64).unwrap_or(otherwise) as u32
    };
    let min = number(width.and_then(|p| p.min.as_ref()), 16);
    let max = number(width.and_then(|p| p.max.as_ref()), 4096);
    (min, max, width.and_then(|p| p.multiple_of).unwrap_or(1).max(1))
}

/// The size if the node can paint it.
pub(crate) fn checked_size(node: &NodeDescriptor, size: (u32, u32)) -> Result<(u32, u32), OpenAiError> {
    let (min, max, multiple) = sides(node);
    let fits = |side: u32| (min..=max).contains(&side) && side.is_multiple_of(multiple);
    if fits(size.0) && fits(size.1) {
        return Ok(size);
    }
    Err(OpenAiError::field(
        "size",
        format!("{} paints sides from {min} to {max} pixels in multiples of {multiple}", node.node_type),
    ))
}

/// Queues a run for every picture that is asked for, and gives their ids. Runs of one request differ in their seeds
/// only, so that they share passes through the model.
pub(crate) async fn submit(
    state: &AppState,
    headers: &HeaderMap,
    body: &ImageBody,
    node: &NodeDescriptor,
    size: Option<(u32, u32)>,
    sources: &Sources,
) -> Result<Vec<String>, OpenAiError> {
    let count = body.n.unwrap_or(1);
    if !(1..=MAX_COUNT).contains(&count) {
        return Err(OpenAiError::field("n", format!("n must be from 1 to {MAX_COUNT}")));
    }
    let key = idempotency_key(headers)?;
    let engine = state.engine();
    let mut runs = Vec::new();
    for index in 0..count {
        let graph = graph(body, node, size, sources, index)?.to_value();
        let client_run_id = key.map(|key| format!("{key}/{index}"));
        let meta = body.user.as_ref().map(|user| json!({ "user": user }));
        let submitted = engine.submit(&graph, TARGET, client_run_id, meta).await;
        runs.push(submitted.map_err(|error| about_field(node, error))?.run_id);
    }
    Ok(runs)
}

/// A key under which a repeated request gets the first one's pictures.
fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, OpenAiError> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    let key = key.to_str().ok().filter(|key| (1..=200).contains(&key.len()));
    key.map(Some).ok_or_else(|| crate::ApiError::invalid("Idempotency-Key must have 1 to 200 plain characters").into())
}

/// Id of the node that paints.
const TARGET: &str = "image";

fn graph(
    body: &ImageBody,
    node: &NodeDescriptor,
    size: Option<(u32, u32)>,
    sources: &Sources,
    index: u32,
) -> Result<Graph, OpenAiError> {
    let mut params = Map::new();
    if let Some((width, height)) = size {
        params.insert("width".to_owned(), width.into());
        params.insert("height".to_owned(), height.into());
    }
    let optional = [
        ("seed", body.seed.as_ref().map(|seed| seed_of(seed, index)).transpose()?),
        ("negative_prompt", body.negative_prompt.as_ref().map(|text| json!(text))),
        ("steps", body.steps.map(|steps| json!(steps))),
        ("guidance", body.guidance.map(|scale| json!(scale))),
        // A part that is painted anew owes nothing to what was there.
        ("strength", body.strength.or(sources.mask.as_ref().map(|_| 1.0)).map(|strength| json!(strength))),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            params.insert(name.to_owned(), value);
        }
    }
    let painter = Node::new(TARGET, &node.node_type).input("prompt", "prompt", "text");
    let mut painter = params.into_iter().fold(painter, |node, (key, value)| node.param(&key, value));
    let mut nodes = vec![Node::new("prompt", "input/text").param("text", body.prompt.as_str())];
    for (port, asset) in [("image", &sources.image), ("mask", &sources.mask)] {
        if let Some(asset) = asset {
            let id = format!("source-{port}");
            nodes.push(Node::new(&id, format!("input/{port}")).param("asset", asset.as_str()));
            painter = painter.input(port, &id, port);
        }
    }
    nodes.push(painter);
    Ok(Graph::new(nodes))
}

/// The seed of picture `index`: the first one's and so many more; random ones stay random.
fn seed_of(first: &Value, index: u32) -> Result<Value, OpenAiError> {
    let number = match first {
        Value::String(text) => text.parse::<i128>().ok(),
        other => other.as_u64().map(i128::from).or(other.as_i64().map(i128::from)),
    };
    match number {
        Some(-1) => Ok(json!(-1)),
        Some(seed) if (0..=i128::from(u64::MAX)).contains(&seed) => {
            Ok(json!((seed as u64).wrapping_add(u64::from(index))))
        }
        _ => Err(OpenAiError::field("seed", "seed must be a whole number from -1 (random) to 2^64-1")),
    }
}

/// A refused graph in terms of the body: a param of the painting node is the field of that name.
fn about_field(node: &NodeDescriptor, error: SubmitError) -> OpenAiError {
    let field = match &error {
        SubmitError::Graph(found) if found.node_id.as_deref() == Some(TARGET) => {
            node.params.iter().map(|p| &p.key).find(|key| found.message.contains(key.as_str())).cloned()
        }
        SubmitError::Graph(found) if found.node_id.as_deref() == Some("prompt") => Some("prompt".to_owned()),
        _ => None,
    };
    match (field, error) {
        (Some(field), SubmitError::Graph(error)) => OpenAiError::field(field, error.message),
        (_, error) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_strictly() {
        assert_eq!(wanted_size(None).unwrap(), None);
        assert_eq!(wanted_size(Some("auto")).unwrap(), None);
        assert_eq!(wanted_size(Some("64x128")).unwrap(), Some((64, 128)));
        for bad in ["", "64", "64x", "64x64x64", "-1x64", "64X64", "99999999999x1"] {
            assert!(wanted_size(Some(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn seeds_count_up_and_random_ones_do_not() {
        assert_eq!(seed_of(&json!(7), 2).unwrap(), json!(9));
        assert_eq!(seed_of(&json!(u64::MAX), 1).unwrap(), json!(0));
        assert_eq!(seed_of(&json!("7"), 0).unwrap(), json!(7));
        assert_eq!(seed_of(&json!(-1), 3).unwrap(), json!(-1));
        for bad in [json!(-2), json!(1.5), json!("x"), json!(true)] {
            assert!(seed_of(&bad, 0).is_err(), "{bad}");
        }
    }
}
