//! What the journal notes of the machine.

use rusqlite::OptionalExtension as _;

use super::{Journal, Result};

impl Journal {
    /// Writes something that changes nothing, so that work is not begun which could not be recorded (R-DUR-4).
    ///
    /// # Errors
    ///
    /// What a write fails with.
    pub(crate) async fn check(&self) -> Result<()> {
        self.run(|connection| {
            connection.prepare_cached("UPDATE meta SET value = value WHERE name = 'state_id'")?.execute(())?;
            Ok(())
        })
        .await
    }

    /// The boot of the machine in which the daemon last started.
    pub(crate) async fn boot_id(&self) -> Result<Option<String>> {
        self.run(|connection| {
            let mut select = connection.prepare_cached("SELECT value FROM meta WHERE name = 'boot_id'")?;
            Ok(select.query_row((), |row| row.get(0)).optional()?)
        })
        .await
    }

    /// Notes the boot of the machine.
    pub(crate) async fn note_boot_id(&self, boot_id: &str) -> Result<()> {
        let boot_id = boot_id.to_owned();
        self.run(move |connection| {
            connection
                .prepare_cached("INSERT OR REPLACE INTO meta (name, value) VALUES ('boot_id', ?1)")?
                .execute((boot_id,))?;
            Ok(())
        })
        .await
    }
}
