//! Runs and takes.

use crate::body::{json_object, read_json};
use crate::error::ErrorBody;
use crate::{ApiError, AppState};
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine_runs::{LiveEntry, PageQuery, RunState, RunStatus, Take};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

/// Rows of a page when nothing is asked for, and at most.
const PAGE: (i64, i64) = (50, 500);

/// A run to be made.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[allow(dead_code)] // for the document; the body is read by hand, so that messages name what is wrong
pub(crate) struct RunBody {
    graph: GraphBody,
    /// Id of the node whose takes are wanted.
    target: String,
    /// Sent again, it gives the run that is there already.
    client_run_id: Option<String>,
    /// Any object; it is kept and given back.
    #[schema(value_type = Option<Object>)]
    meta: Option<Value>,
}

/// Typed nodes and their edges.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase", as = Graph)]
#[allow(dead_code)] // for the document
pub(crate) struct GraphBody {
    /// 1.
    schema_version: u32,
    nodes: Vec<NodeBody>,
}

/// A node.
#[derive(ToSchema)]
#[schema(as = Node)]
#[allow(dead_code)] // for the document
struct NodeBody {
    id: String,
    /// A type of `GET /v1/models`.
    r#type: String,
    /// Values by param; the others have their defaults.
    #[schema(value_type = Option<Object>)]
    params: Option<Value>,
    /// By port, an edge `{from, output}` or a list of edges.
    #[schema(value_type = Option<Object>)]
    inputs: Option<Value>,
}

/// Where a run stands.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunAnswer {
    run_id: String,
    status: RunStatus,
}

/// Queues a run.
#[utoipa::path(post, path = "/v1/runs", tag = "runs", request_body = RunBody, responses(
    (status = 201, body = RunAnswer),
    (status = 200, body = RunAnswer, description = "The clientRunId's first run"),
    (status = 400, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody),
    (status = 415, body = ErrorBody), (status = 422, body = ErrorBody)))]
pub(crate) async fn submit(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = json_object(&read_json(&headers, body, &state.limits).await?)?;
    for key in body.keys() {
        if !["graph", "target", "clientRunId", "meta"].contains(&key.as_str()) {
            return Err(ApiError::invalid(format!(
                "the field '{key}' is not known; a run has graph, target, clientRunId and meta"
            )));
        }
    }
    let text = |key: &str| match body.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(ApiError::invalid(format!("{key} must be a text"))),
    };
    let graph = body.get("graph").ok_or_else(|| ApiError::invalid("graph is missing"))?;
    let target =
        text("target")?.ok_or_else(|| ApiError::invalid("target is missing: name the node whose takes are wanted"))?;
    let client_run_id = text("clientRunId")?;
    if client_run_id.as_ref().is_some_and(|id| id.is_empty() || id.len() > 256) {
        return Err(ApiError::invalid("clientRunId must have 1 to 256 bytes"));
    }
    let meta = match body.get("meta") {
        None | Some(Value::Null) => None,
        Some(object @ Value::Object(_)) => Some(object.clone()),
        Some(_) => return Err(ApiError::invalid("meta must be an object")),
    };
    let engine = state.engine();
    let refresh = std::sync::Arc::clone(&engine);
    let _ = tokio::task::spawn_blocking(move || refresh.refresh_models()).await;
    let submitted = engine.submit(graph, &target, client_run_id, meta).await?;
    let status = if submitted.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(RunAnswer { run_id: submitted.run_id, status: submitted.status })).into_response())
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct RunsQuery {
    /// Only runs of this status.
    #[param(value_type = Option<RunStatus>)]
    status: Option<String>,
    /// Rows at most, 1 to 500; 50 when left out.
    limit: Option<i64>,
    /// `nextCursor` of the page before.
    cursor: Option<i64>,
}

/// Live runs, or a page of all runs.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunList {
    runs: Vec<RunRow>,
    /// The cursor of the next page, on pages; null on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<Option<i64>>,
}

/// A live run in short, or a run of a page in full.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum RunRow {
    /// In the list of live runs.
    Live(LiveRow),
    /// On a page.
    Full(FullRow),
}

/// A live run in short.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LiveRow {
    run_id: String,
    status: RunStatus,
    target: String,
    fraction: f64,
    /// From 0; null once it has started.
    queue_position: Option<usize>,
    created_at: i64,
}

/// A run of a page.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FullRow {
    #[serde(flatten)]
    run: RunState,
    /// From 0; null once it has started.
    queue_position: Option<usize>,
}

fn page(limit: Option<i64>, cursor: Option<i64>) -> Result<PageQuery, ApiError> {
    let limit = limit.unwrap_or(PAGE.0);
    if !(1..=PAGE.1).contains(&limit) {
        return Err(ApiError::invalid(format!("limit must be from 1 to {}", PAGE.1)));
    }
    Ok(PageQuery { limit, cursor, ..PageQuery::default() })
}

#[utoipa::path(get, path = "/v1/runs", tag = "runs", params(RunsQuery),
    responses((status = 200, body = RunList), (status = 422, body = ErrorBody)))]
/// Live runs in submission order; with any query parameter, a page of all runs, newest first.
pub(crate) async fn list(
    State(state): State<AppState>,
    Query(query): Query<RunsQuery>,
) -> Result<Json<RunList>, ApiError> {
    let engine = state.engine();
    if query.status.is_none() && query.limit.is_none() && query.cursor.is_none() {
        let row = |entry: LiveEntry| {
            RunRow::Live(LiveRow {
                run_id: entry.run_id,
                status: entry.status,
                target: entry.target,
                fraction: entry.fraction,
                queue_position: entry.queue_position,
                created_at: entry.created_at,
            })
        };
        return Ok(Json(RunList { runs: engine.live_runs().into_iter().map(row).collect(), next_cursor: None }));
    }
    let status = match query.status.as_deref() {
        None => None,
        Some(name) => Some(RunStatus::from_name(name).ok_or_else(|| {
            ApiError::invalid(format!("'{name}' is not a status; use queued, running, done, error or cancelled"))
        })?),
    };
    let page = PageQuery { status, ..page(query.limit, query.cursor)? };
    let runs = engine.list_runs(&page).await?;
    let next = runs.last().filter(|_| runs.len() as i64 == page.limit).map(|(cursor, _)| *cursor);
    let places = engine.queue_positions();
    let row = |run: RunState| RunRow::Full(FullRow { queue_position: places.get(&run.run_id).copied(), run });
    Ok(Json(RunList { runs: runs.into_iter().map(|(_, run)| row(run)).collect(), next_cursor: Some(next) }))
}

/// Where a run stands, and what it has made.
#[utoipa::path(get, path = "/v1/runs/{id}", tag = "runs", params(("id" = String, Path)),
    responses((status = 200, body = RunState), (status = 404, body = ErrorBody)))]
pub(crate) async fn get(State(state): State<AppState>, Path(id): Path<String>) -> Result<Response, ApiError> {
    let run = state.engine().run_json(&id).await?.ok_or_else(|| unknown_run(&id))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], run.to_string()).into_response())
}

pub(crate) fn unknown_run(id: &str) -> ApiError {
    ApiError::not_found(format!("there is no run '{}'", short(id)))
}

/// An id from a path, cut to what a message can hold.
pub(crate) fn short(id: &str) -> String {
    id.chars().take(80).collect()
}

/// Stops a run, queued or in work. One that has ended stays as it is.
#[utoipa::path(delete, path = "/v1/runs/{id}", tag = "runs", params(("id" = String, Path)),
    responses((status = 200, body = RunAnswer), (status = 404, body = ErrorBody)))]
pub(crate) async fn cancel(State(state): State<AppState>, Path(id): Path<String>) -> Result<Json<RunAnswer>, ApiError> {
    let status = state.engine().cancel(&id).await?.ok_or_else(|| unknown_run(&id))?;
    Ok(Json(RunAnswer { run_id: id, status }))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[serde(rename_all = "camelCase")]
pub(crate) struct TakesQuery {
    /// Only takes of the node of this id.
    node_id: Option<String>,
    /// Only takes of this kind.
    kind: Option<String>,
    /// Rows at most, 1 to 500; 50 when left out.
    limit: Option<i64>,
    /// `nextCursor` of the page before.
    cursor: Option<i64>,
}

/// A page of takes, newest first.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TakeList {
    takes: Vec<Take>,
    /// The cursor of the next page; null on the last one.
    next_cursor: Option<i64>,
}

/// Takes, newest first.
#[utoipa::path(get, path = "/v1/takes", tag = "takes", params(TakesQuery),
    responses((status = 200, body = TakeList), (status = 422, body = ErrorBody)))]
pub(crate) async fn list_takes(
    State(state): State<AppState>,
    Query(query): Query<TakesQuery>,
) -> Result<Json<TakeList>, ApiError> {
    let page = PageQuery { node_id: query.node_id, kind: query.kind, ..page(query.limit, query.cursor)? };
    let takes = state.engine().list_takes(&page).await?;
    let next = takes.last().filter(|_| takes.len() as i64 == page.limit).map(|(cursor, _)| *cursor);
    let takes: Vec<Take> = takes.into_iter().map(|(_, take)| take).collect();
    Ok(Json(TakeList { takes, next_cursor: next }))
}

async fn find_take(state: &AppState, id: &str) -> Result<Take, ApiError> {
    state.engine().take(id).await?.ok_or_else(|| ApiError::not_found(format!("there is no take '{}'", short(id))))
}

/// One take.
#[utoipa::path(get, path = "/v1/takes/{id}", tag = "takes", params(("id" = String, Path)),
    responses((status = 200, body = Take), (status = 404, body = ErrorBody)))]
pub(crate) async fn get_take(State(state): State<AppState>, Path(id): Path<String>) -> Result<Json<Take>, ApiError> {
    Ok(Json(find_take(&state, &id).await?))
}

/// The bytes of a take, with ETag and ranges.
#[utoipa::path(get, path = "/v1/takes/{id}/bytes", tag = "takes", params(("id" = String, Path)),
    responses((status = 200, content_type = "image/png", body = Vec<u8>),
        (status = 206, description = "The range asked for"), (status = 304, description = "`If-None-Match` names the hash"),
        (status = 404, body = ErrorBody), (status = 416, body = ErrorBody)))]
pub(crate) async fn take_bytes(
    State(state): State<AppState>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let take = find_take(&state, &id).await?;
    let path = state.engine().media().takes().path(&take.uri);
    crate::files::serve(&path, &take.mime, &take.hash, &headers).await
}
