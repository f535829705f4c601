//! Runs, takes and assets in SQLite.

mod assets;
mod runs;
mod takes;

pub use assets::Asset;
pub use runs::{Attempt, NewRun, RunQuery, SubmittedRun, Unfinished};
pub use takes::TakeQuery;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteRow, SqliteSynchronous,
};
use sqlx::{ColumnIndex, Row};
use std::path::Path;
use std::time::Duration;

/// Connections that only read.
const READERS: u32 = 4;

/// Why the store failed. Not for clients: the log has it, they get a plain sentence.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database failed.
    #[error("the run database failed: {0}")]
    Database(#[from] sqlx::Error),
    /// The database is of a newer or foreign version.
    #[error("the run database can't be opened: {0}; was it made by a newer version?")]
    Migration(#[from] sqlx::migrate::MigrateError),
    /// A file or folder of the data directory failed.
    #[error("the data directory can't be used: {0}")]
    Io(#[from] std::io::Error),
    /// Another engine works on the data directory.
    #[error("another engine is running on this data directory; stop it, or choose another --data-dir")]
    InUse,
}

impl StoreError {
    /// Whether there is no room left on the disk.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Io(error) => {
                matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
            }
            // SQLITE_FULL
            Self::Database(sqlx::Error::Database(error)) => error.code().is_some_and(|code| code == "13"),
            _ => false,
        }
    }
}

pub(crate) type Result<T, E = StoreError> = std::result::Result<T, E>;

/// The database of a data directory.
#[derive(Debug, Clone)]
pub struct Store {
    /// One connection, so that writers wait for each other in order instead of polling SQLite's lock.
    writer: SqlitePool,
    readers: SqlitePool,
}

impl Store {
    /// Opens or makes `runs.db` in `data_dir`, which must exist.
    ///
    /// # Errors
    /// The folder can't be written, or the database is of a newer version.
    pub async fn open(data_dir: &Path) -> Result<Self> {
        let options = SqliteConnectOptions::new()
            .filename(data_dir.join("runs.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // A listed take must survive a power cut, so every commit is synced.
            .synchronous(SqliteSynchronous::Full)
            // Other processes may look into the database.
            .busy_timeout(Duration::from_secs(10));
        let writer = SqlitePoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
        let writer = writer.connect_with(options.clone()).await?;
        sqlx::migrate!("./migrations").run(&writer).await?;
        let readers = SqlitePoolOptions::new().max_connections(READERS).max_lifetime(None);
        let readers = readers.connect_lazy_with(options.create_if_missing(false).read_only(true));
        Ok(Self { writer, readers })
    }

    /// Waits for what is being written, and lets go of the files.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

/// A page of a list, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// Its entries.
    pub items: Vec<T>,
    /// Where the next page begins; `None` when this is the last.
    pub next: Option<i64>,
}

/// Makes a page of `limit` of rows that were asked for with one more than that.
fn page<T>(rows: &[SqliteRow], limit: u32, entry: impl Fn(&SqliteRow) -> Result<T>) -> Result<Page<T>> {
    let shown = &rows[..rows.len().min(limit as usize)];
    let next = match shown.last() {
        Some(last) if rows.len() > shown.len() => Some(last.try_get("seq")?),
        _ => None,
    };
    Ok(Page { items: shown.iter().map(entry).collect::<Result<_>>()?, next })
}

/// Text of a JSON column.
fn to_json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|e| sqlx::Error::Encode(e.into()).into())
}

/// A JSON column.
fn from_json<'r, T: DeserializeOwned>(row: &'r SqliteRow, column: &'static str) -> Result<T>
where
    &'static str: ColumnIndex<SqliteRow>,
{
    let text: &'r str = row.try_get(column)?;
    parse(column, text)
}

/// A JSON column that may be null.
fn from_json_or_null<T: DeserializeOwned>(row: &SqliteRow, column: &'static str) -> Result<Option<T>> {
    let text: Option<&str> = row.try_get(column)?;
    text.map(|text| parse(column, text)).transpose()
}

/// A column with the name of an enum's variant.
fn from_name<T: DeserializeOwned>(row: &SqliteRow, column: &'static str) -> Result<T> {
    let name: String = row.try_get(column)?;
    serde_json::from_value(serde_json::Value::String(name)).map_err(|e| decode(column, e))
}

fn parse<T: DeserializeOwned>(column: &'static str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| decode(column, e))
}

fn decode(column: &'static str, error: serde_json::Error) -> StoreError {
    sqlx::Error::ColumnDecode { index: column.to_owned(), source: error.into() }.into()
}
