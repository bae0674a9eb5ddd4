//! Executors and the marks of their processes.

use rusqlite::Row;

use super::{Error, ExecutorRecord, Journal, Result, SessionRow};

impl Journal {
    /// Records an Executor of `session`, or what became of the one with the same id.
    pub(crate) async fn put_executor(&self, session: SessionRow, executor: ExecutorRecord) -> Result<()> {
        self.run(move |connection| {
            connection
                .prepare_cached(
                    "INSERT INTO executor (executor_id, session, fingerprint, native_session_id, keeper_pid, \
                     keeper_start, closed) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) \
                     ON CONFLICT (executor_id) DO UPDATE SET fingerprint = excluded.fingerprint, \
                     native_session_id = excluded.native_session_id, keeper_pid = excluded.keeper_pid, \
                     keeper_start = excluded.keeper_start, closed = excluded.closed",
                )?
                .execute((
                    &executor.executor_id,
                    session.0,
                    &executor.fingerprint,
                    &executor.native_session_id,
                    executor.keeper_pid,
                    executor.keeper_start.cast_signed(),
                    executor.closed,
                ))?;
            Ok(())
        })
        .await
    }

    /// Records that an Executor's processes are proved to be gone.
    ///
    /// # Errors
    ///
    /// [`Error::Misfit`] for an Executor that was never recorded.
    pub(crate) async fn close_executor(&self, executor_id: &str) -> Result<()> {
        let executor_id = executor_id.to_owned();
        self.run(move |connection| {
            let changed = connection
                .prepare_cached("UPDATE executor SET closed = 1 WHERE executor_id = ?1")?
                .execute((&executor_id,))?;
            if changed == 1 { Ok(()) } else { Err(Error::Misfit(format!("the end of Executor {executor_id}"))) }
        })
        .await
    }

    /// Every Executor whose end is not proved, with its Session.
    pub(crate) async fn open_executors(&self) -> Result<Vec<(SessionRow, ExecutorRecord)>> {
        self.run(|connection| {
            let mut select = connection.prepare_cached(
                "SELECT executor_id, session, fingerprint, native_session_id, keeper_pid, keeper_start, closed \
                 FROM executor WHERE closed = 0 ORDER BY executor_id",
            )?;
            let found = select.query_map((), read)?.collect::<rusqlite::Result<_>>()?;
            Ok(found)
        })
        .await
    }
}

fn read(row: &Row<'_>) -> rusqlite::Result<(SessionRow, ExecutorRecord)> {
    let record = ExecutorRecord {
        executor_id: row.get("executor_id")?,
        fingerprint: row.get("fingerprint")?,
        native_session_id: row.get("native_session_id")?,
        keeper_pid: row.get("keeper_pid")?,
        keeper_start: row.get::<_, i64>("keeper_start")?.cast_unsigned(),
        closed: row.get("closed")?,
    };
    Ok((SessionRow(row.get("session")?), record))
}
