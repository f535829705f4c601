//! Takes: added, never changed.

use super::{Page, Result, Store, from_json, from_name, page, to_json};
use crate::state::Take;
use engine_graph::MediaKind;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

/// Which takes to list.
#[derive(Debug, Clone, Default)]
pub struct TakeQuery {
    /// Only takes of nodes with this id.
    pub node_id: Option<String>,
    /// Only takes of this kind.
    pub kind: Option<MediaKind>,
    /// Only takes of this run.
    pub run_id: Option<String>,
    /// Entries at most.
    pub limit: u32,
    /// Where the last page ended.
    pub cursor: Option<i64>,
}

impl Store {
    /// Lists a take, whose bytes must be on disk already.
    ///
    /// # Errors
    /// The database failed.
    pub async fn add_take(&self, take: &Take) -> Result<()> {
        sqlx::query(
            "INSERT INTO takes (id, run_id, node_id, kind, mime, bytes, uri, hash, params, created_at) \
             VALUES (?,?,?,?,?,?,?,?,?,?)",
        )
        .bind(&take.id)
        .bind(&take.run_id)
        .bind(&take.node_id)
        .bind(take.kind.as_str())
        .bind(&take.mime)
        .bind(take.bytes)
        .bind(&take.uri)
        .bind(&take.hash)
        .bind(to_json(&take.params)?)
        .bind(take.created_at)
        .execute(&self.writer)
        .await?;
        Ok(())
    }

    /// One take.
    ///
    /// # Errors
    /// The database failed.
    pub async fn take(&self, id: &str) -> Result<Option<Take>> {
        let row = sqlx::query("SELECT * FROM takes WHERE id = ?").bind(id).fetch_optional(&self.readers).await?;
        row.as_ref().map(take).transpose()
    }

    /// The takes of a run in the order in which they were made.
    ///
    /// # Errors
    /// The database failed.
    pub async fn takes_of_run(&self, run_id: &str) -> Result<Vec<Take>> {
        let rows = sqlx::query("SELECT * FROM takes WHERE run_id = ? ORDER BY seq").bind(run_id);
        rows.fetch_all(&self.readers).await?.iter().map(take).collect()
    }

    /// A page of takes, newest first.
    ///
    /// # Errors
    /// The database failed.
    pub async fn list_takes(&self, query: &TakeQuery) -> Result<Page<Take>> {
        let rows = sqlx::query(
            "SELECT * FROM takes WHERE (?1 IS NULL OR node_id = ?1) AND (?2 IS NULL OR kind = ?2) \
             AND (?3 IS NULL OR run_id = ?3) AND (?4 IS NULL OR seq < ?4) ORDER BY seq DESC LIMIT ?5",
        )
        .bind(&query.node_id)
        .bind(query.kind.map(|kind| kind.as_str()))
        .bind(&query.run_id)
        .bind(query.cursor)
        .bind(i64::from(query.limit) + 1)
        .fetch_all(&self.readers)
        .await?;
        page(&rows, query.limit, take)
    }
}

fn take(row: &SqliteRow) -> Result<Take> {
    Ok(Take {
        id: row.try_get("id")?,
        run_id: row.try_get("run_id")?,
        node_id: row.try_get("node_id")?,
        kind: from_name(row, "kind")?,
        mime: row.try_get("mime")?,
        bytes: row.try_get("bytes")?,
        uri: row.try_get("uri")?,
        hash: row.try_get("hash")?,
        params: from_json(row, "params")?,
        created_at: row.try_get("created_at")?,
    })
}
