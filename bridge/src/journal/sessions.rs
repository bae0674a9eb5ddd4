//! Sessions and their assignments.

use rusqlite::{OptionalExtension as _, Row};

use super::{Journal, LastTurn, Placement, Result, SessionRecord, SessionRow};

impl Journal {
    /// Every Session, in the order in which they were first bound.
    pub(crate) async fn sessions(&self) -> Result<Vec<(SessionRow, SessionRecord)>> {
        self.run(|connection| {
            let mut select = connection.prepare_cached(
                "SELECT row, principal, session_id, directory, assignment_id, epoch, released, environment_id, \
                 workspace, had_turn, next_turn_number FROM session ORDER BY row",
            )?;
            let found = select.query_map((), read)?.collect::<rusqlite::Result<_>>()?;
            Ok(found)
        })
        .await
    }

    /// What the newest Turn of each of these Sessions tells.
    pub(crate) async fn last_turns(&self, sessions: Vec<SessionRow>) -> Result<Vec<LastTurn>> {
        self.run(move |connection| {
            let mut newest = connection.prepare_cached(
                "SELECT max(created_ms, coalesce(ended_ms, created_ms)) FROM turn WHERE session = ?1 \
                 ORDER BY number DESC LIMIT 1",
            )?;
            let mut native = connection.prepare_cached(
                "SELECT native_session_id FROM turn WHERE session = ?1 AND native_session_id IS NOT NULL \
                 ORDER BY number DESC LIMIT 1",
            )?;
            let last = sessions.into_iter().map(|session| {
                Ok(LastTurn {
                    active_ms: newest.query_row((session.0,), |row| row.get(0)).optional()?,
                    native_session_id: native.query_row((session.0,), |row| row.get(0)).optional()?,
                })
            });
            last.collect()
        })
        .await
    }

    /// Records a Session, or what became of the one with the same principal and id. `had_turn` and
    /// `next_turn_number` only ever grow; the folder stays the first one.
    pub(crate) async fn put_session(&self, session: SessionRecord) -> Result<SessionRow> {
        self.run(move |connection| {
            let (environment_id, workspace) = match &session.placement {
                Placement::None => (None, None),
                Placement::Workspace { environment_id, directory } => (Some(environment_id), Some(directory)),
            };
            let row = connection
                .prepare_cached(
                    "INSERT INTO session (principal, session_id, directory, assignment_id, epoch, released, \
                     environment_id, workspace, had_turn, next_turn_number) \
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) \
                     ON CONFLICT (principal, session_id) DO UPDATE SET assignment_id = excluded.assignment_id, \
                     epoch = excluded.epoch, released = excluded.released, \
                     environment_id = excluded.environment_id, workspace = excluded.workspace, \
                     had_turn = max(had_turn, excluded.had_turn), \
                     next_turn_number = max(next_turn_number, excluded.next_turn_number) RETURNING row",
                )?
                .query_row(
                    (
                        &session.principal,
                        &session.session_id,
                        &session.directory,
                        &session.assignment_id,
                        session.epoch.cast_signed(),
                        session.released,
                        environment_id,
                        workspace,
                        session.had_turn,
                        session.next_turn_number.cast_signed(),
                    ),
                    |row| row.get(0),
                )?;
            Ok(SessionRow(row))
        })
        .await
    }
}

fn read(row: &Row<'_>) -> rusqlite::Result<(SessionRow, SessionRecord)> {
    let placement = match (row.get("environment_id")?, row.get("workspace")?) {
        (Some(environment_id), Some(directory)) => Placement::Workspace { environment_id, directory },
        // The table has both or none.
        (None, _) | (_, None) => Placement::None,
    };
    let record = SessionRecord {
        principal: row.get("principal")?,
        session_id: row.get("session_id")?,
        directory: row.get("directory")?,
        assignment_id: row.get("assignment_id")?,
        epoch: row.get::<_, i64>("epoch")?.cast_unsigned(),
        released: row.get("released")?,
        placement,
        had_turn: row.get("had_turn")?,
        next_turn_number: row.get::<_, i64>("next_turn_number")?.cast_unsigned(),
    };
    Ok((SessionRow(row.get("row")?), record))
}
