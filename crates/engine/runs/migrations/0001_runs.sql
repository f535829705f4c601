-- Runs in submission order. `graph` and `meta` are JSON as they came; `nodes` and `error` are JSON as served.
CREATE TABLE runs (
  seq           INTEGER PRIMARY KEY AUTOINCREMENT,
  id            TEXT NOT NULL UNIQUE,
  client_run_id TEXT UNIQUE,
  graph         TEXT NOT NULL,
  target        TEXT NOT NULL,
  meta          TEXT,
  status        TEXT NOT NULL,
  nodes         TEXT,
  error         TEXT,
  attempts      INTEGER NOT NULL DEFAULT 0,
  created_at    INTEGER NOT NULL,
  ended_at      INTEGER
);
CREATE INDEX runs_by_status ON runs (status, seq);

-- Takes are never changed and never removed.
CREATE TABLE takes (
  seq        INTEGER PRIMARY KEY AUTOINCREMENT,
  id         TEXT NOT NULL UNIQUE,
  run_id     TEXT NOT NULL,
  node_id    TEXT NOT NULL,
  kind       TEXT NOT NULL,
  mime       TEXT NOT NULL,
  uri        TEXT NOT NULL,
  hash       TEXT NOT NULL,
  params     TEXT NOT NULL,
  created_at INTEGER NOT NULL
);
CREATE INDEX takes_by_run ON takes (run_id, seq);
CREATE INDEX takes_by_node ON takes (node_id, seq);

CREATE TABLE assets (
  id         TEXT PRIMARY KEY,
  kind       TEXT NOT NULL,
  mime       TEXT NOT NULL,
  bytes      INTEGER NOT NULL,
  created_at INTEGER NOT NULL
);
