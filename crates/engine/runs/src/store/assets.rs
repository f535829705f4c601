//! Assets: files that clients have uploaded.

use super::{Result, Store, from_name};
use crate::state::now_ms;
use engine_graph::MediaKind;
use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

/// An uploaded file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asset {
    /// `sha256-` and the hash of the bytes.
    pub id: String,
    /// What it is.
    pub kind: MediaKind,
    /// Media type.
    pub mime: String,
    /// Number of bytes.
    pub bytes: i64,
}

impl Store {
    /// Lists an asset, whose bytes must be on disk already. One that is listed stays as it is.
    ///
    /// # Errors
    /// The database failed.
    pub async fn add_asset(&self, asset: &Asset) -> Result<()> {
        sqlx::query("INSERT OR IGNORE INTO assets (id, kind, mime, bytes, created_at) VALUES (?,?,?,?,?)")
            .bind(&asset.id)
            .bind(asset.kind.as_str())
            .bind(&asset.mime)
            .bind(asset.bytes)
            .bind(now_ms())
            .execute(&self.writer)
            .await?;
        Ok(())
    }

    /// One asset.
    ///
    /// # Errors
    /// The database failed.
    pub async fn asset(&self, id: &str) -> Result<Option<Asset>> {
        let row = sqlx::query("SELECT * FROM assets WHERE id = ?").bind(id).fetch_optional(&self.readers).await?;
        row.as_ref().map(asset).transpose()
    }
}

fn asset(row: &SqliteRow) -> Result<Asset> {
    Ok(Asset {
        id: row.try_get("id")?,
        kind: from_name(row, "kind")?,
        mime: row.try_get("mime")?,
        bytes: row.try_get("bytes")?,
    })
}
