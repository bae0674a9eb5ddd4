//! Sessions and their assignments.

use rusqlite::{OptionalExtension as _, Row};

use super::{Error, HistoryRecord, Journal, LastTurn, Placement, Result, SessionRecord, SessionRow};

impl Journal {
    /// Every Session, in the order in which they were first bound.
    pub(crate) async fn sessions(&self) -> Result<Vec<(SessionRow, SessionRecord)>> {
        self.run(|connection| {
            let mut select = connection.prepare_cached(
                "SELECT row, principal, session_id, directory, assignment_id, epoch, released, environment_id, \
                 workspace, had_turn, next_turn_number, native_session_id, harness, configuration, settings, \
                 instructions FROM session ORDER BY row",
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
                     released_ms = CASE WHEN excluded.released THEN released_ms END, \
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

    /// Records the native history of a Session.
    ///
    /// # Errors
    ///
    /// [`Error::Misfit`] for a Session that was never recorded.
    pub(crate) async fn put_history(&self, session: SessionRow, history: HistoryRecord) -> Result<()> {
        self.run(move |connection| {
            let changed = connection
                .prepare_cached(
                    "UPDATE session SET native_session_id = ?2, harness = ?3, configuration = ?4, settings = ?5, \
                     instructions = ?6 WHERE row = ?1",
                )?
                .execute((
                    session.0,
                    &history.native_session_id,
                    &history.harness,
                    &history.configuration,
                    &history.settings,
                    &history.instructions,
                ))?;
            if changed == 1 { Ok(()) } else { Err(Error::Misfit(format!("the history of Session {}", session.0))) }
        })
        .await
    }

    /// The native turn that completed last in a native history: what must be found in it.
    pub(crate) async fn last_native_turn(
        &self,
        session: SessionRow,
        native_session_id: &str,
    ) -> Result<Option<String>> {
        let native_session_id = native_session_id.to_owned();
        self.run(move |connection| {
            let found = connection
                .prepare_cached(
                    "SELECT native_turn_id FROM turn WHERE session = ?1 AND native_session_id = ?2 \
                     AND native_turn_id IS NOT NULL AND status = 'completed' ORDER BY number DESC LIMIT 1",
                )?
                .query_row((session.0, &native_session_id), |row| row.get(0))
                .optional()?;
            Ok(found)
        })
        .await
    }

    /// The native conversations that Turns of a Session were given to, the last one first, with the digest of what their Executors were prepared
    /// with.
    pub(crate) async fn native_sessions(&self, session: SessionRow) -> Result<Vec<(String, [u8; 32])>> {
        self.run(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT executor.native_session_id, executor.fingerprint, max(turn.number) FROM turn \
                 JOIN executor USING (executor_id) WHERE turn.session = ?1 AND executor.native_session_id IS NOT NULL \
                 GROUP BY executor.native_session_id ORDER BY max(turn.number) DESC",
            )?;
            let found = select
                .query_map((session.0,), |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<rusqlite::Result<_>>()?;
            Ok(found)
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
    let history = match (row.get("native_session_id")?, row.get("harness")?) {
        (Some(native_session_id), Some(harness)) => Some(HistoryRecord {
            native_session_id,
            harness,
            configuration: row.get::<_, Option<_>>("configuration")?.unwrap_or_default(),
            settings: row.get::<_, Option<_>>("settings")?.unwrap_or_default(),
            instructions: row.get("instructions")?,
        }),
        (None, _) | (_, None) => None,
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
        history,
    };
    Ok((SessionRow(row.get("row")?), record))
}
