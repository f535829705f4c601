//! Runs, takes and assets in SQLite.

use crate::state::{RunFailure, RunState, RunStatus, Take, now_ms};
use serde_json::Value;
use sqlx::Row;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteRow, SqliteSynchronous,
};
use std::path::Path;
use std::time::Duration;

/// Why the store failed. Not for clients: the log has it, they get a plain sentence.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database failed.
    #[error("the run database failed: {0}")]
    Database(#[from] sqlx::Error),
    /// The database is of a newer or foreign version.
    #[error("the run database can't be opened: {0}")]
    Migration(#[from] sqlx::migrate::MigrateError),
    /// A file or folder of the data directory failed.
    #[error("the data directory can't be used: {0}")]
    Io(#[from] std::io::Error),
}

type Result<T, E = StoreError> = std::result::Result<T, E>;

/// A run as it was submitted.
#[derive(Debug, Clone)]
pub struct StoredRun {
    /// Random id.
    pub id: String,
    /// Id given by the client.
    pub client_run_id: Option<String>,
    /// The graph as it came.
    pub graph: Value,
    /// The node that it is for.
    pub target: String,
    /// The object given with it.
    pub meta: Option<Value>,
    /// Where it stands.
    pub status: RunStatus,
    /// How often it was started.
    pub attempts: i64,
    /// Unix milliseconds.
    pub created_at: i64,
}

/// An uploaded file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asset {
    /// `sha256-` and the hash of the bytes.
    pub id: String,
    /// `image`, `video`, `audio` or `file`.
    pub kind: String,
    /// Media type.
    pub mime: String,
    /// Number of bytes.
    pub bytes: i64,
}

/// A page of a list: rows before `cursor`, newest first.
#[derive(Debug, Clone, Default)]
pub struct PageQuery {
    /// Only this status.
    pub status: Option<RunStatus>,
    /// Only takes of this node.
    pub node_id: Option<String>,
    /// Only takes of this kind.
    pub kind: Option<String>,
    /// Rows at most.
    pub limit: i64,
    /// Where the last page ended.
    pub cursor: Option<i64>,
}

/// The database of a data directory.
#[derive(Debug, Clone)]
pub struct Store {
    pool: SqlitePool,
}

impl Store {
    /// Opens or makes `runs.db` in `data_dir`.
    ///
    /// # Errors
    /// The folder can't be written, or the database is of a newer version.
    pub async fn open(data_dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(data_dir)?;
        let options = SqliteConnectOptions::new()
            .filename(data_dir.join("runs.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // A listed take must survive a power cut, so every commit is synced.
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(Duration::from_secs(10));
        // All at once: a connection's thread has the priority of the thread that opens it.
        let pool = SqlitePoolOptions::new().min_connections(4).max_connections(4).connect_with(options).await?;
        sqlx::migrate!("./migrations").run(&pool).await?;
        Ok(Self { pool })
    }

    /// Adds a run, or finds the one with the same client id.
    ///
    /// # Errors
    /// The database failed.
    pub async fn submit(&self, run: &StoredRun) -> Result<Option<StoredRun>> {
        // One statement and no transaction: a full disk can't leave a connection in the middle of one.
        let added = sqlx::query(
            "INSERT INTO runs (id, client_run_id, graph, target, meta, status, created_at) VALUES (?,?,?,?,?,?,?) \
             ON CONFLICT (client_run_id) DO NOTHING",
        )
        .bind(&run.id)
        .bind(&run.client_run_id)
        .bind(run.graph.to_string())
        .bind(&run.target)
        .bind(run.meta.as_ref().map(Value::to_string))
        .bind(run.status.as_str())
        .bind(run.created_at)
        .execute(&self.pool)
        .await?;
        if added.rows_affected() > 0 {
            return Ok(None);
        }
        let first = sqlx::query("SELECT * FROM runs WHERE client_run_id = ?").bind(&run.client_run_id);
        first.fetch_optional(&self.pool).await?.as_ref().map(stored_run).transpose()
    }

    /// Counts an attempt, before any work.
    ///
    /// # Errors
    /// The database failed.
    pub async fn start(&self, id: &str) -> Result<()> {
        let query = sqlx::query("UPDATE runs SET status = 'running', attempts = attempts + 1 WHERE id = ?");
        query.bind(id).execute(&self.pool).await?;
        Ok(())
    }

    /// Takes an attempt back: the process is about to end for a reason that isn't the run's.
    ///
    /// # Errors
    /// The database failed.
    pub async fn give_back(&self, id: &str) -> Result<()> {
        let query = "UPDATE runs SET status = 'queued', attempts = attempts - 1 WHERE id = ? AND status = 'running'";
        sqlx::query(query).bind(id).execute(&self.pool).await?;
        Ok(())
    }

    /// Writes the end of a run.
    ///
    /// # Errors
    /// The database failed.
    pub async fn end(&self, state: &RunState) -> Result<()> {
        sqlx::query("UPDATE runs SET status = ?, nodes = ?, error = ?, ended_at = ? WHERE id = ?")
            .bind(state.status.as_str())
            .bind(serde_json::to_string(&state.nodes).unwrap_or_default())
            .bind(state.error.as_ref().and_then(|e| serde_json::to_string(e).ok()))
            .bind(now_ms())
            .bind(&state.run_id)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Runs that haven't ended, in submission order.
    ///
    /// # Errors
    /// The database failed.
    pub async fn unfinished(&self) -> Result<Vec<StoredRun>> {
        let query = sqlx::query("SELECT * FROM runs WHERE status IN ('queued', 'running') ORDER BY seq");
        query.fetch_all(&self.pool).await?.iter().map(stored_run).collect()
    }

    /// A run with its takes, as of its end.
    ///
    /// # Errors
    /// The database failed.
    pub async fn run(&self, id: &str) -> Result<Option<RunState>> {
        let row = sqlx::query("SELECT * FROM runs WHERE id = ?").bind(id).fetch_optional(&self.pool).await?;
        let Some(row) = row else { return Ok(None) };
        let mut state = run_state(&row)?;
        state.takes = self.takes_of_run(id).await?;
        Ok(Some(state))
    }

    /// A page of runs, newest first, each with its cursor.
    ///
    /// # Errors
    /// The database failed.
    pub async fn list_runs(&self, page: &PageQuery) -> Result<Vec<(i64, RunState)>> {
        let rows = sqlx::query(
            "SELECT * FROM runs WHERE (?1 IS NULL OR status = ?1) AND (?2 IS NULL OR seq < ?2) ORDER BY seq DESC LIMIT ?3",
        )
        .bind(page.status.map(RunStatus::as_str))
        .bind(page.cursor)
        .bind(page.limit)
        .fetch_all(&self.pool)
        .await?;
        rows.iter().map(|row| Ok((row.try_get("seq")?, run_state(row)?))).collect()
    }

    /// Lists a take, whose bytes must be on disk already.
    ///
    /// # Errors
    /// The database failed.
    pub async fn add_take(&self, take: &Take) -> Result<()> {
        sqlx::query(
            "INSERT INTO takes (id, run_id, node_id, kind, mime, uri, hash, params, created_at) VALUES (?,?,?,?,?,?,?,?,?)",
        )
        .bind(&take.id)
        .bind(&take.run_id)
        .bind(&take.node_id)
        .bind(take.kind.as_str())
        .bind(&take.mime)
        .bind(&take.uri)
        .bind(&take.hash)
        .bind(Value::Object(take.params.clone()).to_string())
        .bind(take.created_at)
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// One take.
    ///
    /// # Errors
    /// The database failed.
    pub async fn take(&self, id: &str) -> Result<Option<Take>> {
        let row = sqlx::query("SELECT * FROM takes WHERE id = ?").bind(id).fetch_optional(&self.pool).await?;
        row.as_ref().map(take).transpose()
    }

    /// The takes of a run in the order in which they were made.
    ///
    /// # Errors
    /// The database failed.
    pub async fn takes_of_run(&self, run_id: &str) -> Result<Vec<Take>> {
        let rows = sqlx::query("SELECT * FROM takes WHERE run_id = ? ORDER BY seq").bind(run_id).fetch_all(&self.pool);
        rows.await?.iter().map(take).collect()
    }

    /// A page of takes, newest first, each with its cursor.
    ///
    /// # Errors
    /// The database failed.
    pub async fn list_takes(&self, page: &PageQuery) -> Result<Vec<(i64, Take)>> {
        let rows = sqlx::query(
            "SELECT * FROM takes WHERE (?1 IS NULL OR node_id = ?1) AND (?2 IS NULL OR kind = ?2) \
             AND (?3 IS NULL OR seq < ?3) ORDER BY seq DESC LIMIT ?4",
        )
        .bind(&page.node_id)
        .bind(&page.kind)
        .bind(page.cursor)
        .bind(page.limit)
        .fetch_all(&self.pool)
        .await?;
        rows.iter().map(|row| Ok((row.try_get("seq")?, take(row)?))).collect()
    }

    /// Lists an asset, whose bytes must be on disk already.
    ///
    /// # Errors
    /// The database failed.
    pub async fn add_asset(&self, asset: &Asset) -> Result<()> {
        let query = sqlx::query("INSERT OR IGNORE INTO assets (id, kind, mime, bytes, created_at) VALUES (?,?,?,?,?)");
        let query = query.bind(&asset.id).bind(&asset.kind).bind(&asset.mime).bind(asset.bytes).bind(now_ms());
        query.execute(&self.pool).await?;
        Ok(())
    }

    /// One asset.
    ///
    /// # Errors
    /// The database failed.
    pub async fn asset(&self, id: &str) -> Result<Option<Asset>> {
        let row = sqlx::query("SELECT * FROM assets WHERE id = ?").bind(id).fetch_optional(&self.pool).await?;
        row.map(|row| {
            Ok(Asset {
                id: row.try_get("id")?,
                kind: row.try_get("kind")?,
                mime: row.try_get("mime")?,
                bytes: row.try_get("bytes")?,
            })
        })
        .transpose()
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

fn status(row: &SqliteRow) -> Result<RunStatus> {
    Ok(RunStatus::from_name(row.try_get("status")?).unwrap_or(RunStatus::Error))
}

fn stored_run(row: &SqliteRow) -> Result<StoredRun> {
    Ok(StoredRun {
        id: row.try_get("id")?,
        client_run_id: row.try_get("client_run_id")?,
        graph: json(row.try_get("graph")?),
        target: row.try_get("target")?,
        meta: row.try_get::<Option<String>, _>("meta")?.as_deref().map(json),
        status: status(row)?,
        attempts: row.try_get("attempts")?,
        created_at: row.try_get("created_at")?,
    })
}

fn run_state(row: &SqliteRow) -> Result<RunState> {
    let nodes: Option<String> = row.try_get("nodes")?;
    let error: Option<String> = row.try_get("error")?;
    let mut state = RunState {
        run_id: row.try_get("id")?,
        status: status(row)?,
        target: row.try_get("target")?,
        fraction: 0.0,
        nodes: nodes.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default(),
        takes: Vec::new(),
        error: error.and_then(|text| serde_json::from_str::<RunFailure>(&text).ok()),
        client_run_id: row.try_get("client_run_id")?,
        meta: row.try_get::<Option<String>, _>("meta")?.as_deref().map(json),
        created_at: row.try_get("created_at")?,
    };
    state.refresh_fraction();
    Ok(state)
}

fn take(row: &SqliteRow) -> Result<Take> {
    let kind: String = row.try_get("kind")?;
    let params: String = row.try_get("params")?;
    Ok(Take {
        id: row.try_get("id")?,
        run_id: row.try_get("run_id")?,
        node_id: row.try_get("node_id")?,
        kind: serde_json::from_value(Value::String(kind)).unwrap_or(engine_graph::MediaKind::Image),
        mime: row.try_get("mime")?,
        uri: row.try_get("uri")?,
        hash: row.try_get("hash")?,
        params: serde_json::from_str(&params).unwrap_or_default(),
        created_at: row.try_get("created_at")?,
    })
}
