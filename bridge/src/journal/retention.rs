//! What is kept how long (R-DUR-4): what is old enough to go, and letting go of it.

use rusqlite::Row;

use super::{Error, Journal, Result, SessionRow, TurnRow};

/// The columns that [`Journal::ended`] wants, of Turns that are over and whose events are not removed as far as the journal knows.
macro_rules! ended {
    ($rest:literal) => {
        concat!(
            "SELECT turn.row, turn_id, number, ended_ms, principal, session_id, directory FROM turn \
             JOIN session ON session.row = turn.session \
             WHERE status IS NOT NULL AND events_gone = 0 AND ",
            $rest
        )
    };
}

/// A Turn that is over, with its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndedEvents {
    /// The Turn.
    pub(crate) turn: TurnRow,
    /// Core's id of it.
    pub(crate) turn_id: String,
    /// Its number in the Session, which names its file.
    pub(crate) number: u64,
    /// When it ended, in milliseconds of Unix time.
    pub(crate) ended_ms: i64,
    /// Its Session.
    pub(crate) session: SessionName,
}

/// What names a Session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionName {
    /// Who bound it.
    pub(crate) principal: String,
    /// Core's id of it.
    pub(crate) session_id: String,
    /// The name of its folder.
    pub(crate) directory: String,
}

impl Journal {
    /// Turns that are over and whose events are still wanted, those that ended first before the others; `limit` of them at most.
    pub(crate) async fn ended_events(&self, limit: usize) -> Result<Vec<EndedEvents>> {
        self.ended(ended!("acknowledged < last_sequence ORDER BY ended_ms LIMIT ?1"), limit).await
    }

    /// Turns that are over and whose events Core has stored as a whole, `limit` of them at most. Their files are gone, unless a process died
    /// before it had removed them.
    pub(crate) async fn stored_events(&self, limit: usize) -> Result<Vec<EndedEvents>> {
        self.ended(ended!("acknowledged >= last_sequence LIMIT ?1"), limit).await
    }

    async fn ended(&self, statement: &'static str, limit: usize) -> Result<Vec<EndedEvents>> {
        self.run(move |connection| {
            let mut select = connection.prepare_cached(statement)?;
            let read = |row: &Row<'_>| {
                Ok(EndedEvents {
                    turn: TurnRow(row.get("row")?),
                    turn_id: row.get("turn_id")?,
                    number: row.get::<_, i64>("number")?.cast_unsigned(),
                    ended_ms: row.get("ended_ms")?,
                    session: name(row)?,
                })
            };
            let found = select.query_map((bound(limit),), read)?.collect::<rusqlite::Result<_>>()?;
            Ok(found)
        })
        .await
    }

    /// Records that the events of these Turns are removed.
    pub(crate) async fn events_gone(&self, turns: Vec<TurnRow>) -> Result<()> {
        self.run(move |connection| {
            let mut update = connection.prepare_cached("UPDATE turn SET events_gone = 1 WHERE row = ?1")?;
            for turn in turns {
                update.execute((turn.0,))?;
            }
            Ok(())
        })
        .await
    }

    /// Notes the time for every Session that was released since it was last noted.
    pub(crate) async fn note_released(&self, now_ms: i64) -> Result<()> {
        self.run(move |connection| {
            connection
                .prepare_cached("UPDATE session SET released_ms = ?1 WHERE released = 1 AND released_ms IS NULL")?
                .execute((now_ms,))?;
            Ok(())
        })
        .await
    }

    /// Sessions that were released at `before_ms` or earlier, `limit` of them at most.
    pub(crate) async fn released_before(&self, before_ms: i64, limit: usize) -> Result<Vec<SessionName>> {
        self.run(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT principal, session_id, directory FROM session \
                 WHERE released = 1 AND released_ms <= ?1 ORDER BY released_ms LIMIT ?2",
            )?;
            let found = select.query_map((before_ms, bound(limit)), name)?.collect::<rusqlite::Result<_>>()?;
            Ok(found)
        })
        .await
    }

    /// Forgets some of a Session's Turns, `limit` of them at most, with their calls, results and inputs; and the Session itself when it has no
    /// more. True when it is forgotten as a whole.
    ///
    /// # Errors
    ///
    /// [`Error::Misfit`] for a Session that is not released, or was later than `before_ms`.
    pub(crate) async fn forget(&self, session: SessionRow, before_ms: i64, limit: usize) -> Result<bool> {
        self.run(move |connection| {
            let is_due: bool = connection
                .prepare_cached("SELECT count(*) FROM session WHERE row = ?1 AND released = 1 AND released_ms <= ?2")?
                .query_row((session.0, before_ms), |row| row.get(0))?;
            if !is_due {
                return Err(Error::Misfit(format!("the forgetting of the Session in row {}", session.0)));
            }
            let turns: Vec<i64> = connection
                .prepare_cached("SELECT row FROM turn WHERE session = ?1 AND status IS NOT NULL LIMIT ?2")?
                .query_map((session.0, bound(limit)), |row| row.get(0))?
                .collect::<rusqlite::Result<_>>()?;
            for statement in [
                "DELETE FROM result WHERE call IN (SELECT row FROM call WHERE turn = ?1)",
                "DELETE FROM call WHERE turn = ?1",
                "DELETE FROM input WHERE turn = ?1",
                "DELETE FROM turn WHERE row = ?1",
            ] {
                let mut delete = connection.prepare_cached(statement)?;
                for turn in &turns {
                    delete.execute((turn,))?;
                }
            }
            if turns.len() == limit {
                return Ok(false);
            }
            for statement in ["DELETE FROM executor WHERE session = ?1", "DELETE FROM session WHERE row = ?1"] {
                connection.prepare_cached(statement)?.execute((session.0,))?;
            }
            Ok(true)
        })
        .await
    }
}

fn bound(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn name(row: &Row<'_>) -> rusqlite::Result<SessionName> {
    Ok(SessionName {
        principal: row.get("principal")?,
        session_id: row.get("session_id")?,
        directory: row.get("directory")?,
    })
}
