//! Runs: submitted, tried, ended.

use super::{Page, Result, Store, from_json, from_json_or_null, from_name, page, to_json};
use crate::state::{NodeState, RunState, RunStatus, RunSummary};
use serde_json::Value;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use std::collections::BTreeMap;

/// A run to be stored.
#[derive(Debug, Clone, Copy)]
pub struct NewRun<'a> {
    /// Its state, queued.
    pub state: &'a RunState,
    /// The graph as JSON.
    pub graph: &'a str,
}

/// The run that holds a client's id.
#[derive(Debug, Clone)]
pub struct SubmittedRun {
    /// Its id.
    pub id: String,
    /// Where it stands.
    pub status: RunStatus,
    /// The graph as JSON.
    pub graph: String,
    /// The node that it is for.
    pub target: String,
}

/// A run that hasn't ended.
#[derive(Debug, Clone)]
pub struct Unfinished {
    /// Its state, without takes.
    pub state: RunState,
    /// How often it was started.
    pub attempts: u32,
    /// Whether someone asked for its end.
    pub cancel_requested: bool,
}

/// A run that is tried.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// Its graph as JSON.
    pub graph: String,
    /// How often it has been started, this time included.
    pub attempts: u32,
}

/// Which runs to list.
#[derive(Debug, Clone, Default)]
pub struct RunQuery {
    /// Only this status.
    pub status: Option<RunStatus>,
    /// Entries at most.
    pub limit: u32,
    /// Where the last page ended.
    pub cursor: Option<i64>,
}

impl Store {
    /// Adds a run, or finds the one with the same client id.
    ///
    /// # Errors
    /// The database failed.
    pub async fn submit(&self, run: NewRun<'_>) -> Result<Option<SubmittedRun>> {
        let mut transaction = self.writer.begin_with("BEGIN IMMEDIATE").await?;
        let NewRun { state, graph } = run;
        if let Some(client_run_id) = &state.client_run_id {
            let row = sqlx::query("SELECT id, status, graph, target FROM runs WHERE client_run_id = ?")
                .bind(client_run_id)
                .fetch_optional(&mut *transaction)
                .await?;
            if let Some(row) = row {
                return submitted(&row).map(Some);
            }
        }
        sqlx::query(
            "INSERT INTO runs (id, client_run_id, graph, target, meta, status, nodes, created_at) VALUES (?,?,?,?,?,?,?,?)",
        )
        .bind(&state.run_id)
        .bind(&state.client_run_id)
        .bind(graph)
        .bind(&state.target)
        .bind(state.meta.as_ref().map(Value::to_string))
        .bind(state.status.as_str())
        .bind(to_json(&state.nodes)?)
        .bind(state.created_at)
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(None)
    }

    /// The run with that client id.
    ///
    /// # Errors
    /// The database failed.
    pub async fn run_of_client(&self, client_run_id: &str) -> Result<Option<SubmittedRun>> {
        let row = sqlx::query("SELECT id, status, graph, target FROM runs WHERE client_run_id = ?")
            .bind(client_run_id)
            .fetch_optional(&self.readers)
            .await?;
        row.as_ref().map(submitted).transpose()
    }

    /// Counts an attempt, before any work.
    ///
    /// # Errors
    /// The database failed, or has no such run.
    pub async fn start(&self, id: &str) -> Result<Attempt> {
        let row = sqlx::query(
            "UPDATE runs SET status = 'running', attempts = attempts + 1 WHERE id = ? RETURNING graph, attempts",
        )
        .bind(id)
        .fetch_one(&self.writer)
        .await?;
        Ok(Attempt { graph: row.try_get("graph")?, attempts: row.try_get("attempts")? })
    }

    /// Puts a run back whose work was broken off in good order: the attempt doesn't count.
    ///
    /// # Errors
    /// The database failed.
    pub async fn put_back(&self, id: &str) -> Result<()> {
        sqlx::query("UPDATE runs SET status = 'queued', attempts = attempts - 1 WHERE id = ? AND status = 'running'")
            .bind(id)
            .execute(&self.writer)
            .await?;
        Ok(())
    }

    /// Notes that the end of a run in work was asked for, so that it isn't tried again whatever happens.
    ///
    /// # Errors
    /// The database failed.
    pub async fn request_cancel(&self, id: &str) -> Result<()> {
        sqlx::query("UPDATE runs SET cancel_requested = 1 WHERE id = ?").bind(id).execute(&self.writer).await?;
        Ok(())
    }

    /// Writes the end of a run; `last_event` is the number of the event that tells of it.
    ///
    /// # Errors
    /// The database failed.
    pub async fn end(&self, state: &RunState, last_event: u64) -> Result<()> {
        sqlx::query(
            "UPDATE runs SET status = ?, fraction = ?, nodes = ?, error = ?, last_event = ?, ended_at = ? WHERE id = ?",
        )
        .bind(state.status.as_str())
        .bind(state.fraction)
        .bind(to_json(&state.nodes)?)
        .bind(state.error.as_ref().map(to_json).transpose()?)
        .bind(last_event as i64)
        .bind(state.ended_at)
        .bind(&state.run_id)
        .execute(&self.writer)
        .await?;
        Ok(())
    }

    /// Runs that haven't ended, in submission order.
    ///
    /// # Errors
    /// The database failed.
    pub async fn unfinished(&self) -> Result<Vec<Unfinished>> {
        let rows = sqlx::query(
            "SELECT id, client_run_id, target, meta, status, fraction, nodes, error, attempts, cancel_requested, last_event, \
             created_at, ended_at FROM runs WHERE status IN ('queued', 'running') ORDER BY seq",
        )
        .fetch_all(&self.readers)
        .await?;
        let entry = |row: &SqliteRow| {
            let (state, _) = run_state(row)?;
            Ok(Unfinished {
                state,
                attempts: row.try_get("attempts")?,
                cancel_requested: row.try_get("cancel_requested")?,
            })
        };
        rows.iter().map(entry).collect()
    }

    /// A run with its takes, as of its end, and the number of its last event.
    ///
    /// # Errors
    /// The database failed.
    pub async fn run(&self, id: &str) -> Result<Option<(RunState, u64)>> {
        let row = sqlx::query(
            "SELECT id, client_run_id, target, meta, status, fraction, nodes, error, last_event, created_at, ended_at \
             FROM runs WHERE id = ?",
        )
        .bind(id)
        .fetch_optional(&self.readers)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let (mut state, last_event) = run_state(&row)?;
        state.takes = self.takes_of_run(id).await?;
        Ok(Some((state, last_event)))
    }

    /// A page of runs, newest first.
    ///
    /// # Errors
    /// The database failed.
    pub async fn list_runs(&self, query: &RunQuery) -> Result<Page<RunSummary>> {
        let rows = sqlx::query(
            "SELECT seq, id, client_run_id, target, status, fraction, error, created_at, ended_at FROM runs \
             WHERE (?1 IS NULL OR status = ?1) AND (?2 IS NULL OR seq < ?2) ORDER BY seq DESC LIMIT ?3",
        )
        .bind(query.status.map(RunStatus::as_str))
        .bind(query.cursor)
        .bind(i64::from(query.limit) + 1)
        .fetch_all(&self.readers)
        .await?;
        page(&rows, query.limit, summary)
    }

    /// Whether the database can be read, for a look at the engine's health.
    ///
    /// # Errors
    /// It can't.
    pub async fn ping(&self) -> Result<()> {
        sqlx::query("SELECT 1").execute(&self.readers).await?;
        Ok(())
    }
}

fn submitted(row: &SqliteRow) -> Result<SubmittedRun> {
    Ok(SubmittedRun {
        id: row.try_get("id")?,
        status: from_name(row, "status")?,
        graph: row.try_get("graph")?,
        target: row.try_get("target")?,
    })
}

fn summary(row: &SqliteRow) -> Result<RunSummary> {
    Ok(RunSummary {
        run_id: row.try_get("id")?,
        status: from_name(row, "status")?,
        target: row.try_get("target")?,
        fraction: row.try_get("fraction")?,
        queue_position: None,
        client_run_id: row.try_get("client_run_id")?,
        error: from_json_or_null(row, "error")?,
        created_at: row.try_get("created_at")?,
        ended_at: row.try_get("ended_at")?,
    })
}

fn run_state(row: &SqliteRow) -> Result<(RunState, u64)> {
    let nodes: BTreeMap<String, NodeState> = from_json(row, "nodes")?;
    let last_event: i64 = row.try_get("last_event")?;
    let state = RunState {
        run_id: row.try_get("id")?,
        status: from_name(row, "status")?,
        target: row.try_get("target")?,
        fraction: row.try_get("fraction")?,
        nodes,
        takes: Vec::new(),
        error: from_json_or_null(row, "error")?,
        client_run_id: row.try_get("client_run_id")?,
        meta: from_json_or_null(row, "meta")?,
        created_at: row.try_get("created_at")?,
        ended_at: row.try_get("ended_at")?,
    };
    Ok((state, last_event.unsigned_abs()))
}
