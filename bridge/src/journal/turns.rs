//! Turns, from their start to their terminal.

use rusqlite::{Connection, OptionalExtension as _, Row, ToSql};

use super::{EndRecord, Error, Journal, NewTurn, Result, SessionRow, TurnRecord, TurnRow, calls, inputs};

/// Sequences that a new Turn has reserved, and that are reserved at once later: one write for so many events.
#[cfg(not(failpoints))]
pub(crate) const RESERVED: u64 = 1 << 20;
/// So few that a Turn of a test outgrows them, and more than the reports of one batch of it.
#[cfg(failpoints)]
pub(crate) const RESERVED: u64 = 64;

/// The columns that [`read`] wants.
macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT row, session, turn_id, number, executor_id, content, created_ms, native_session_id, \
             native_turn_id, cancel_cause, acknowledged, reserved, events_gone, unwritten, status, ended, \
             last_sequence, ended_ms, usage FROM turn ",
            $rest
        )
    };
}

impl Journal {
    /// Records that a Turn begins, and that its Session has had one. The Session's next number is then at least one
    /// above this Turn's.
    ///
    /// # Errors
    ///
    /// [`Error::Misfit`] when the Session has a Turn of that id or number.
    pub(crate) async fn insert_turn(&self, turn: NewTurn) -> Result<TurnRow> {
        self.run(move |connection| {
            let row = connection
                .prepare_cached(
                    "INSERT INTO turn (session, turn_id, number, executor_id, content, created_ms, reserved) \
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) RETURNING row",
                )?
                .query_row(
                    (
                        turn.session.0,
                        &turn.turn_id,
                        turn.number.cast_signed(),
                        &turn.executor_id,
                        &turn.content,
                        turn.created_ms,
                        RESERVED.cast_signed(),
                    ),
                    |row| row.get(0),
                )?;
            connection
                .prepare_cached(
                    "UPDATE session SET had_turn = 1, next_turn_number = max(next_turn_number, ?2) WHERE row = ?1",
                )?
                .execute((turn.session.0, turn.number.saturating_add(1).cast_signed()))?;
            Ok(TurnRow(row))
        })
        .await
    }

    /// The Turn of this id.
    pub(crate) async fn turn(&self, session: SessionRow, turn_id: &str) -> Result<Option<TurnRecord>> {
        let turn_id = turn_id.to_owned();
        self.run(move |connection| {
            let found = connection
                .prepare_cached(select!("WHERE session = ?1 AND turn_id = ?2"))?
                .query_row((session.0, &turn_id), read)
                .optional()?;
            found.map(|found| inputs::with_inputs(connection, found)).transpose()
        })
        .await
    }

    /// The Turns of a Session with a lower number than `before`, or all of them, newest first.
    pub(crate) async fn turns_before(
        &self,
        session: SessionRow,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<TurnRecord>> {
        let before = before.map_or(i64::MAX, u64::cast_signed);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.run(move |connection| {
            let mut select = connection
                .prepare_cached(select!("WHERE session = ?1 AND number < ?2 ORDER BY number DESC LIMIT ?3"))?;
            let found = select.query_map((session.0, before, limit), read)?.collect::<rusqlite::Result<Vec<_>>>()?;
            found.into_iter().map(|found| inputs::with_inputs(connection, found)).collect()
        })
        .await
    }

    /// Every Turn without an end, of all Sessions, oldest first.
    pub(crate) async fn open_turns(&self) -> Result<Vec<TurnRecord>> {
        self.run(|connection| {
            let mut select = connection.prepare_cached(select!("WHERE status IS NULL ORDER BY row"))?;
            let found = select.query_map((), read)?.collect::<rusqlite::Result<Vec<_>>>()?;
            found.into_iter().map(|found| inputs::with_inputs(connection, found)).collect()
        })
        .await
    }

    /// Records the native ids, once the native start was seen.
    pub(crate) async fn turn_started(
        &self,
        turn: TurnRow,
        native_session_id: &str,
        native_turn_id: Option<&str>,
    ) -> Result<()> {
        let native_session_id = native_session_id.to_owned();
        let native_turn_id = native_turn_id.map(ToOwned::to_owned);
        self.run(move |connection| {
            let statement = "UPDATE turn SET native_session_id = ?2, native_turn_id = ?3 WHERE row = ?1";
            update(connection, turn, statement, &[&turn.0, &native_session_id, &native_turn_id])
        })
        .await
    }

    /// Records why a Turn is cancelled. The first cause stays, but Core's own wish stands over every other: results are judged by it
    /// (R-FN-5).
    pub(crate) async fn cancel_requested(&self, turn: TurnRow, cause: &str) -> Result<()> {
        let cause = cause.to_owned();
        self.run(move |connection| {
            let statement = "UPDATE turn SET cancel_cause = CASE WHEN ?2 = 'requested' THEN ?2 ELSE coalesce(cancel_cause, ?2) END WHERE row = ?1";
            update(connection, turn, statement, &[&turn.0, &cause])
        })
        .await
    }

    /// Records up to which sequence Core has stored the events. It never goes back.
    pub(crate) async fn acknowledge(&self, turn: TurnRow, through: u64) -> Result<()> {
        self.run(move |connection| {
            let statement = "UPDATE turn SET acknowledged = max(acknowledged, ?2) WHERE row = ?1";
            update(connection, turn, statement, &[&turn.0, &through.cast_signed()])
        })
        .await
    }

    /// Reserves the sequences up to `through`: a later process goes on above them when it cannot know which were given out (R-DUR-2).
    pub(crate) async fn reserve(&self, turn: TurnRow, through: u64) -> Result<()> {
        self.run(move |connection| {
            let statement = "UPDATE turn SET reserved = max(reserved, ?2) WHERE row = ?1";
            update(connection, turn, statement, &[&turn.0, &through.cast_signed()])
        })
        .await
    }

    /// Records that the Turn's file does not have the events from `first` on.
    pub(crate) async fn events_unwritten(&self, turn: TurnRow, first: u64) -> Result<()> {
        self.run(move |connection| {
            let statement = "UPDATE turn SET unwritten = ?2 WHERE row = ?1";
            update(connection, turn, statement, &[&turn.0, &first.cast_signed()])
        })
        .await
    }

    /// Records a Turn's end and, with a reason, that its calls which are still open are abandoned. One transaction.
    ///
    /// # Errors
    ///
    /// [`Error::Misfit`] for a Turn that has an end already: there is exactly one (R-EVT-2).
    pub(crate) async fn end_turn(&self, turn: TurnRow, end: EndRecord, abandoned: Option<&str>) -> Result<()> {
        let abandoned = abandoned.map(ToOwned::to_owned);
        self.run(move |connection| {
            update(
                connection,
                turn,
                "UPDATE turn SET status = ?2, ended = ?3, last_sequence = ?4, ended_ms = ?5, usage = ?6 \
                 WHERE row = ?1 AND status IS NULL",
                &[&turn.0, &end.status, &end.ended, &end.last_sequence.cast_signed(), &end.ended_ms, &end.usage],
            )?;
            match abandoned {
                Some(reason) => calls::abandon_open(connection, turn, &reason),
                None => Ok(()),
            }
        })
        .await
    }
}

fn update(connection: &Connection, turn: TurnRow, statement: &str, values: &[&dyn ToSql]) -> Result<()> {
    let changed = connection.prepare_cached(statement)?.execute(values)?;
    if changed == 1 { Ok(()) } else { Err(Error::Misfit(format!("a change of the Turn in row {}", turn.0))) }
}

fn read(row: &Row<'_>) -> rusqlite::Result<TurnRecord> {
    let end = match row.get::<_, Option<String>>("status")? {
        None => None,
        Some(status) => Some(EndRecord {
            status,
            ended: row.get("ended")?,
            last_sequence: row.get::<_, i64>("last_sequence")?.cast_unsigned(),
            ended_ms: row.get("ended_ms")?,
            usage: row.get("usage")?,
        }),
    };
    Ok(TurnRecord {
        row: TurnRow(row.get("row")?),
        start: NewTurn {
            session: SessionRow(row.get("session")?),
            turn_id: row.get("turn_id")?,
            number: row.get::<_, i64>("number")?.cast_unsigned(),
            executor_id: row.get("executor_id")?,
            content: row.get("content")?,
            created_ms: row.get("created_ms")?,
        },
        native_session_id: row.get("native_session_id")?,
        native_turn_id: row.get("native_turn_id")?,
        cancel_cause: row.get("cancel_cause")?,
        acknowledged: row.get::<_, i64>("acknowledged")?.cast_unsigned(),
        reserved: row.get::<_, i64>("reserved")?.cast_unsigned(),
        events_gone: row.get("events_gone")?,
        unwritten: row.get::<_, i64>("unwritten")?.cast_unsigned(),
        end,
        inputs: Vec::new(),
    })
}
