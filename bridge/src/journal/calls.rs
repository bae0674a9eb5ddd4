//! Function calls and the results that the application gave.

use rusqlite::{Connection, OptionalExtension as _, Row};

use super::{CallRecord, Error, Journal, NewCall, Result, ResultRecord, StoredResult, TurnRow};

/// The columns that [`read`] wants.
macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT call_id, name, arguments, sequence, phase, reason, hash, body FROM call \
             LEFT JOIN result ON result.call = call.row ",
            $rest
        )
    };
}

impl Journal {
    /// Records a call, pending. When this returns it may be shown (R-FN-3).
    ///
    /// # Errors
    ///
    /// [`Error::Misfit`] when the Turn has a call of that id.
    pub(crate) async fn insert_call(&self, turn: TurnRow, call: NewCall) -> Result<()> {
        self.run(move |connection| {
            connection
                .prepare_cached(
                    "INSERT INTO call (turn, call_id, name, arguments, sequence) VALUES (?1, ?2, ?3, ?4, ?5)",
                )?
                .execute((turn.0, &call.call_id, &call.name, &call.arguments, call.sequence.cast_signed()))?;
            Ok(())
        })
        .await
    }

    /// Stores a batch of results, all or none. When this returns they may be acknowledged (R-DUR-1).
    ///
    /// # Errors
    ///
    /// [`Error::Misfit`] when one of the calls is not pending; then nothing is stored.
    pub(crate) async fn store_results(&self, results: Vec<ResultRecord>) -> Result<()> {
        self.run(move |connection| {
            let mut advance = connection.prepare_cached(
                "UPDATE call SET phase = 'result_stored' WHERE turn = ?1 AND call_id = ?2 AND phase = 'pending' \
                 RETURNING row",
            )?;
            let mut store = connection.prepare_cached("INSERT INTO result (call, hash, body) VALUES (?1, ?2, ?3)")?;
            for ResultRecord { turn, call_id, result } in &results {
                let advanced: Option<i64> = advance.query_row((turn.0, call_id), |row| row.get(0)).optional()?;
                let Some(call) = advanced else {
                    return Err(Error::Misfit(format!("a result of call {call_id}")));
                };
                store.execute((call, &result.hash, &result.body))?;
            }
            Ok(())
        })
        .await
    }

    /// Records how far a call came (one of the words of [`CallRecord::phase`]), and why when it was abandoned. Whether
    /// the step is allowed is the caller's to know; a stored result stays.
    ///
    /// # Errors
    ///
    /// [`Error::Misfit`] for a call that the Turn does not have, and for another word.
    pub(crate) async fn call_phase(
        &self,
        turn: TurnRow,
        call_id: &str,
        phase: &str,
        reason: Option<&str>,
    ) -> Result<()> {
        let (call_id, phase) = (call_id.to_owned(), phase.to_owned());
        let reason = reason.map(ToOwned::to_owned);
        self.run(move |connection| {
            let changed = connection
                .prepare_cached("UPDATE call SET phase = ?3, reason = ?4 WHERE turn = ?1 AND call_id = ?2")?
                .execute((turn.0, &call_id, &phase, &reason))?;
            if changed == 1 { Ok(()) } else { Err(Error::Misfit(format!("the phase of call {call_id}"))) }
        })
        .await
    }

    /// The call of this id.
    pub(crate) async fn call(&self, turn: TurnRow, call_id: &str) -> Result<Option<CallRecord>> {
        let call_id = call_id.to_owned();
        self.run(move |connection| {
            let found = connection
                .prepare_cached(select!("WHERE turn = ?1 AND call_id = ?2"))?
                .query_row((turn.0, &call_id), read)
                .optional()?;
            Ok(found)
        })
        .await
    }

    /// Every call of a Turn, in the order in which they were made.
    pub(crate) async fn calls_of(&self, turn: TurnRow) -> Result<Vec<CallRecord>> {
        self.run(move |connection| {
            let mut select = connection.prepare_cached(select!("WHERE turn = ?1 ORDER BY call.row"))?;
            let found = select.query_map((turn.0,), read)?.collect::<rusqlite::Result<_>>()?;
            Ok(found)
        })
        .await
    }
}

/// Abandons every call of a Turn that has not come to an end of its own.
pub(super) fn abandon_open(connection: &Connection, turn: TurnRow, reason: &str) -> Result<()> {
    connection
        .prepare_cached(
            "UPDATE call SET phase = 'abandoned', reason = ?2 \
             WHERE turn = ?1 AND phase IN ('pending', 'result_stored', 'written')",
        )?
        .execute((turn.0, reason))?;
    Ok(())
}

fn read(row: &Row<'_>) -> rusqlite::Result<CallRecord> {
    let result = match row.get("hash")? {
        None => None,
        Some(hash) => Some(StoredResult { hash, body: row.get("body")? }),
    };
    Ok(CallRecord {
        start: NewCall {
            call_id: row.get("call_id")?,
            name: row.get("name")?,
            arguments: row.get("arguments")?,
            sequence: row.get::<_, i64>("sequence")?.cast_unsigned(),
        },
        phase: row.get("phase")?,
        reason: row.get("reason")?,
        result,
    })
}
