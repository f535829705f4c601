//! Runs and takes.

use crate::body::{json_object, read_json};
use crate::{ApiError, AppState};
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use engine_runs::{PageQuery, RunStatus, Take};
use serde::Deserialize;
use serde_json::{Value, json};

/// Rows of a page when nothing is asked for, and at most.
const PAGE: (i64, i64) = (50, 500);

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
    Ok((status, Json(json!({"runId": submitted.run_id, "status": submitted.status}))).into_response())
}

#[derive(Deserialize)]
pub(crate) struct RunsQuery {
    status: Option<String>,
    limit: Option<i64>,
    cursor: Option<i64>,
}

fn page(limit: Option<i64>, cursor: Option<i64>) -> Result<PageQuery, ApiError> {
    let limit = limit.unwrap_or(PAGE.0);
    if !(1..=PAGE.1).contains(&limit) {
        return Err(ApiError::invalid(format!("limit must be from 1 to {}", PAGE.1)));
    }
    Ok(PageQuery { limit, cursor, ..PageQuery::default() })
}

/// Live runs in submission order; with any query parameter, a page of all runs, newest first.
pub(crate) async fn list(
    State(state): State<AppState>,
    Query(query): Query<RunsQuery>,
) -> Result<Json<Value>, ApiError> {
    let engine = state.engine();
    if query.status.is_none() && query.limit.is_none() && query.cursor.is_none() {
        let runs: Vec<Value> = engine
            .live_runs()
            .into_iter()
            .map(|entry| {
                json!({
                    "runId": entry.state.run_id,
                    "status": entry.state.status,
                    "target": entry.state.target,
                    "fraction": entry.state.fraction,
                    "queuePosition": entry.queue_position,
                    "createdAt": entry.state.created_at,
                })
            })
            .collect();
        return Ok(Json(json!({ "runs": runs })));
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
    let runs: Vec<Value> = runs
        .into_iter()
        .map(|(_, run)| {
            let mut run = json!(run);
            run["queuePosition"] = Value::Null;
            run
        })
        .collect();
    Ok(Json(json!({ "runs": runs, "nextCursor": next })))
}

pub(crate) async fn get(State(state): State<AppState>, Path(id): Path<String>) -> Result<Response, ApiError> {
    let run = state.engine().run(&id).await?.ok_or_else(|| unknown_run(&id))?;
    Ok(Json(run).into_response())
}

pub(crate) fn unknown_run(id: &str) -> ApiError {
    ApiError::not_found(format!("there is no run '{}'", short(id)))
}

/// An id from a path, cut to what a message can hold.
pub(crate) fn short(id: &str) -> String {
    id.chars().take(80).collect()
}

pub(crate) async fn cancel(State(state): State<AppState>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let status = state.engine().cancel(&id).await?.ok_or_else(|| unknown_run(&id))?;
    Ok(Json(json!({"runId": id, "status": status})))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TakesQuery {
    node_id: Option<String>,
    kind: Option<String>,
    limit: Option<i64>,
    cursor: Option<i64>,
}

pub(crate) async fn list_takes(
    State(state): State<AppState>,
    Query(query): Query<TakesQuery>,
) -> Result<Json<Value>, ApiError> {
    let page = PageQuery { node_id: query.node_id, kind: query.kind, ..page(query.limit, query.cursor)? };
    let takes = state.engine().list_takes(&page).await?;
    let next = takes.last().filter(|_| takes.len() as i64 == page.limit).map(|(cursor, _)| *cursor);
    let takes: Vec<Take> = takes.into_iter().map(|(_, take)| take).collect();
    Ok(Json(json!({ "takes": takes, "nextCursor": next })))
}

async fn find_take(state: &AppState, id: &str) -> Result<Take, ApiError> {
    state.engine().take(id).await?.ok_or_else(|| ApiError::not_found(format!("there is no take '{}'", short(id))))
}

pub(crate) async fn get_take(State(state): State<AppState>, Path(id): Path<String>) -> Result<Json<Take>, ApiError> {
    Ok(Json(find_take(&state, &id).await?))
}

pub(crate) async fn take_bytes(
    State(state): State<AppState>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let take = find_take(&state, &id).await?;
    let path = state.engine().media().takes().path(&take.uri);
    crate::files::serve(&path, &take.mime, &take.hash, &headers).await
}
