//! Inputs that are added to a Turn.

use rusqlite::{Connection, Row};

use super::{Error, InputRecord, Journal, Result, TurnRecord, TurnRow};

impl Journal {
    /// Records an input, received. When this returns it may be written to the Harness (R-STE-1).
    ///
    /// # Errors
    ///
    /// [`Error::Misfit`] when the Turn has an input of that id.
    pub(crate) async fn insert_input(&self, turn: TurnRow, input_id: &str, hash: [u8; 32]) -> Result<()> {
        let input_id = input_id.to_owned();
        self.run(move |connection| {
            connection
                .prepare_cached("INSERT INTO input (turn, input_id, hash) VALUES (?1, ?2, ?3)")?
                .execute((turn.0, &input_id, &hash))?;
            Ok(())
        })
        .await
    }

    /// Records how far inputs of a Turn came. Whether the step is allowed is the caller's to know.
    ///
    /// # Errors
    ///
    /// [`Error::Misfit`] for an input that the Turn does not have, and for a word that is no phase; then nothing is changed.
    pub(crate) async fn input_phases(&self, turn: TurnRow, inputs: Vec<InputRecord>) -> Result<()> {
        self.run(move |connection| {
            let mut update = connection
                .prepare_cached("UPDATE input SET phase = ?3, detail = ?4 WHERE turn = ?1 AND input_id = ?2")?;
            for InputRecord { input_id, phase, detail, .. } in &inputs {
                if update.execute((turn.0, input_id, phase, detail))? != 1 {
                    return Err(Error::Misfit(format!("the phase of input {input_id}")));
                }
            }
            Ok(())
        })
        .await
    }
}

/// The same Turn with its inputs, in the order in which they came.
pub(super) fn with_inputs(connection: &Connection, turn: TurnRecord) -> Result<TurnRecord> {
    let mut select =
        connection.prepare_cached("SELECT input_id, hash, phase, detail FROM input WHERE turn = ?1 ORDER BY row")?;
    let inputs = select.query_map((turn.row.0,), read)?.collect::<rusqlite::Result<_>>()?;
    Ok(TurnRecord { inputs, ..turn })
}

fn read(row: &Row<'_>) -> rusqlite::Result<InputRecord> {
    Ok(InputRecord {
        input_id: row.get("input_id")?,
        hash: row.get("hash")?,
        phase: row.get("phase")?,
        detail: row.get("detail")?,
    })
}
