//! The tables, how they came to be, and the opening of the file.
//!
//! A migration is never edited once released: a later version adds one. Counters that Core chooses (epochs,
//! sequences) are 64 bit without sign and stand in SQLite's signed integers by their bits.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    sync::Arc,
    time::Duration,
};

use rusqlite::{Connection, OptionalExtension as _};

use super::{Error, Result};

/// What a file holds.
#[derive(Debug)]
pub(super) struct Schema {
    /// The migration at index n brings schema n to n + 1; `user_version` holds the number of those that were applied.
    migrations: &'static [&'static str],
    /// Marks the file as ours (`application_id`).
    application: i64,
}

/// The journal of a bridge; its mark is "RBJ1".
pub(super) const BRIDGE: Schema = Schema { migrations: &[VERSION_1, VERSION_2, VERSION_3], application: 0x5242_4A31 };

/// The records of a relay; their mark is "RBR1".
pub(super) const RELAY: Schema = Schema { migrations: &[RELAY_VERSION_1], application: 0x5242_5231 };

/// What SQLite's format has in front of the first page's content.
const HEADER_BYTES: usize = 100;

/// The version of the format for databases with a write-ahead log.
const WRITE_AHEAD: u8 = 2;

const VERSION_1: &str = "
CREATE TABLE meta (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE session (
    row              INTEGER PRIMARY KEY,
    principal        TEXT NOT NULL,
    session_id       TEXT NOT NULL,
    directory        TEXT NOT NULL UNIQUE,
    assignment_id    TEXT NOT NULL,
    epoch            INTEGER NOT NULL,
    released         INTEGER NOT NULL,
    environment_id   TEXT,
    workspace        TEXT,
    had_turn         INTEGER NOT NULL,
    next_turn_number INTEGER NOT NULL,
    UNIQUE (principal, session_id),
    CHECK ((environment_id IS NULL) = (workspace IS NULL))
) STRICT;

CREATE TABLE executor (
    executor_id       TEXT NOT NULL PRIMARY KEY,
    session           INTEGER NOT NULL REFERENCES session (row),
    fingerprint       BLOB NOT NULL,
    native_session_id TEXT,
    keeper_pid        INTEGER NOT NULL,
    keeper_start      INTEGER NOT NULL,
    closed            INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX executor_by_session ON executor (session);
CREATE INDEX executor_open ON executor (executor_id) WHERE closed = 0;

CREATE TABLE turn (
    row               INTEGER PRIMARY KEY,
    session           INTEGER NOT NULL REFERENCES session (row),
    turn_id           TEXT NOT NULL,
    number            INTEGER NOT NULL,
    executor_id       TEXT NOT NULL,
    content           BLOB NOT NULL,
    created_ms        INTEGER NOT NULL,
    native_session_id TEXT,
    native_turn_id    TEXT,
    cancel_cause      TEXT,
    acknowledged      INTEGER NOT NULL DEFAULT 0,
    status            TEXT,
    ended             BLOB,
    last_sequence     INTEGER,
    ended_ms          INTEGER,
    usage             BLOB,
    UNIQUE (session, turn_id),
    UNIQUE (session, number),
    CHECK ((status IS NULL) = (ended IS NULL)),
    CHECK ((status IS NULL) = (last_sequence IS NULL)),
    CHECK ((status IS NULL) = (ended_ms IS NULL))
) STRICT;
CREATE INDEX turn_open ON turn (row) WHERE status IS NULL;

CREATE TABLE call (
    row       INTEGER PRIMARY KEY,
    turn      INTEGER NOT NULL REFERENCES turn (row),
    call_id   TEXT NOT NULL,
    name      TEXT NOT NULL,
    arguments TEXT NOT NULL,
    sequence  INTEGER NOT NULL,
    phase     TEXT NOT NULL DEFAULT 'pending'
              CHECK (phase IN ('pending', 'result_stored', 'written', 'applied', 'abandoned', 'cancelled')),
    reason    TEXT,
    UNIQUE (turn, call_id)
) STRICT;

-- A table of its own, so that a result is appended instead of spreading its call over new pages.
CREATE TABLE result (
    call INTEGER PRIMARY KEY REFERENCES call (row),
    hash BLOB NOT NULL,
    body BLOB NOT NULL
) STRICT;
";

/// What resume and retention need.
const VERSION_2: &str = "
-- The native history that the Session goes on with, and what it was made with: set once its first native turn has started.
ALTER TABLE session ADD COLUMN native_session_id TEXT;
ALTER TABLE session ADD COLUMN harness TEXT;
ALTER TABLE session ADD COLUMN configuration BLOB;
ALTER TABLE session ADD COLUMN settings BLOB;
-- The instructions that the history was given last; unknown while others are on their way into it.
ALTER TABLE session ADD COLUMN instructions BLOB;
-- When it was released, in milliseconds of Unix time.
ALTER TABLE session ADD COLUMN released_ms INTEGER;
-- Sequences up to this one may have been given out.
ALTER TABLE turn ADD COLUMN reserved INTEGER NOT NULL DEFAULT 0;
-- Its events were removed before Core had acknowledged them.
ALTER TABLE turn ADD COLUMN events_gone INTEGER NOT NULL DEFAULT 0;
-- From this sequence on its file never had the events; 0 when it took all.
ALTER TABLE turn ADD COLUMN unwritten INTEGER NOT NULL DEFAULT 0;
CREATE INDEX turn_with_events ON turn (ended_ms) WHERE status IS NOT NULL AND events_gone = 0 AND acknowledged < last_sequence;
CREATE INDEX session_released ON session (released_ms) WHERE released = 1;
";

/// What steering needs.
const VERSION_3: &str = "
-- An input that was added to a Turn. Its content is not kept: it is never written again.
CREATE TABLE input (
    row      INTEGER PRIMARY KEY,
    turn     INTEGER NOT NULL REFERENCES turn (row),
    input_id TEXT NOT NULL,
    hash     BLOB NOT NULL,
    phase    TEXT NOT NULL DEFAULT 'received'
             CHECK (phase IN ('received', 'written', 'accepted', 'refused', 'outcome_unknown')),
    -- What is proved of an accepted one, or why one was refused.
    detail   TEXT,
    UNIQUE (turn, input_id)
) STRICT;
";

/// Tokens and enrollments of a relay.
const RELAY_VERSION_1: &str = "
CREATE TABLE meta (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- A one-time token by its digest; the token itself is nowhere.
CREATE TABLE token (
    digest         BLOB NOT NULL PRIMARY KEY,
    environment_id TEXT NOT NULL,
    expires_ms     INTEGER NOT NULL,
    void           INTEGER NOT NULL DEFAULT 0,
    -- Digest of the key that it was used with.
    used_by        BLOB
) STRICT, WITHOUT ROWID;
CREATE INDEX token_by_environment ON token (environment_id);

-- A key that was enrolled for an Environment. One that was revoked stays, so that it is known as such.
CREATE TABLE enrollment (
    row            INTEGER PRIMARY KEY,
    environment_id TEXT NOT NULL,
    key            BLOB NOT NULL,
    not_after_ms   INTEGER NOT NULL,
    revoked        INTEGER NOT NULL DEFAULT 0,
    UNIQUE (environment_id, key)
) STRICT;
CREATE UNIQUE INDEX enrollment_current ON enrollment (environment_id) WHERE revoked = 0;
";

/// Opens and locks the file, brings it up to date, and gives the connection and the state's id.
pub(super) fn open(path: &Path, schema: &Schema) -> Result<(Connection, String)> {
    let failed = |source: Arc<dyn std::error::Error + Send + Sync>| Error::Open { path: path.to_owned(), source };
    let outcome = open_connection(path, schema);
    let (connection, state_id) = outcome.map_err(|error| match error {
        Error::Full(source) | Error::Sql(source) => failed(source),
        other => other,
    })?;
    // The file's name must survive a power loss as its content does.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|source| failed(Arc::new(source)))?;
    Ok((connection, state_id))
}

fn open_connection(path: &Path, schema: &Schema) -> Result<(Connection, String)> {
    // SQLite would make it readable by all; its other files take the mode of this one.
    let made = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path);
    let made = made.and_then(|_| is_foreign(path, schema));
    if made.map_err(|source| Error::Open { path: path.to_owned(), source: Arc::new(source) })? {
        return Err(Error::Corrupt(Arc::from(Box::<dyn std::error::Error + Send + Sync>::from(
            "the file belongs to another program",
        ))));
    }
    let connection = Connection::open(path)?;
    // Nobody else may have the file open for long: who finds it locked says so at once.
    connection.busy_timeout(Duration::ZERO)?;
    connection.set_prepared_statement_cache_capacity(64);
    // ORDER: the locking mode before the first access, so that the lock is taken with it and the index of the
    // write-ahead log lives in this process instead of in a shared file.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        return Err(Error::Corrupt(Arc::from(Box::<dyn std::error::Error + Send + Sync>::from(format!(
            "the file stays in journal mode {mode}"
        )))));
    }
    connection.pragma_update(None, "synchronous", "FULL")?;
    // What undoes one operation of several is kept in memory.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    // LIMIT: of the write-ahead log, in pages of 4 KiB; the writer checkpoints well before, between commits.
    connection.pragma_update_and_check(None, "wal_autocheckpoint", 8192, |row| row.get::<_, i64>(0))?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    migrate(&connection, schema)?;
    let state_id = state_id(&connection)?;
    Ok((connection, state_id))
}

/// Whether the file is no journal of ours, as far as its first bytes tell. Asking SQLite would already change a database of somebody else,
/// since the mode of its log is set first. Ours has that mode from its first page on.
fn is_foreign(path: &Path, schema: &Schema) -> io::Result<bool> {
    let mut header = [0; HEADER_BYTES];
    match File::open(path)?.read_exact(&mut header) {
        Ok(()) => {}
        // What was made a moment ago is empty.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(path.metadata()?.len() > 0),
        Err(error) => return Err(error),
    }
    let application = i64::from(u32::from_be_bytes([header[68], header[69], header[70], header[71]]));
    let is_database = header.starts_with(b"SQLite format 3\0") && header[18] == WRITE_AHEAD;
    // The number may still stand in the write-ahead log alone.
    Ok(!is_database || ![0, schema.application].contains(&application))
}

fn migrate(connection: &Connection, schema: &Schema) -> Result<()> {
    let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let known = i64::try_from(schema.migrations.len()).unwrap_or(i64::MAX);
    if found > known {
        return Err(Error::NewerSchema { found, known });
    }
    let application: i64 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let objects: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get(0))?;
    let ours = if found == 0 { objects == 0 } else { application == schema.application };
    if !ours {
        return Err(Error::Corrupt(Arc::from(Box::<dyn std::error::Error + Send + Sync>::from(
            "the database belongs to another program",
        ))));
    }
    let applied = usize::try_from(found).unwrap_or(usize::MAX);
    for (index, migration) in schema.migrations.iter().enumerate().skip(applied) {
        let transaction = connection.unchecked_transaction()?;
        transaction.execute_batch(migration)?;
        transaction.pragma_update(None, "application_id", schema.application)?;
        transaction.pragma_update(None, "user_version", i64::try_from(index + 1).unwrap_or(i64::MAX))?;
        transaction.commit()?;
    }
    Ok(())
}

fn state_id(connection: &Connection) -> Result<String> {
    let recorded =
        connection.query_row("SELECT value FROM meta WHERE name = 'state_id'", (), |row| row.get(0)).optional()?;
    if let Some(recorded) = recorded {
        return Ok(recorded);
    }
    let made = uuid::Uuid::now_v7().to_string();
    connection.execute("INSERT INTO meta (name, value) VALUES ('state_id', ?1)", (&made,))?;
    Ok(made)
}
