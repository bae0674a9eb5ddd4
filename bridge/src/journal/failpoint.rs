//! The failpoints of the journal: one before and one behind each operation, named as its method.

use std::any;

use adapters::failpoint::{self, When};
use rusqlite::{Connection, ffi};

use super::{Error, Result};

/// The same work behind its failpoint, and the point's name.
pub(super) fn guarded<T, F>(work: F) -> (impl FnOnce(&Connection) -> Result<T> + Send + 'static, String)
where
    F: FnOnce(&Connection) -> Result<T> + Send + 'static,
{
    let point = format!("journal.{}", operation::<F>());
    let name = point.clone();
    let guarded = move |connection: &Connection| {
        failpoint::pass(&name, When::Before).map_err(|error| refused(&error))?;
        work(connection)
    };
    (guarded, point)
}

/// Passes the point of an operation that is on disk.
pub(super) fn passed(point: &str) {
    // Nothing fails behind a write.
    drop(failpoint::pass(point, When::After));
}

/// The method that a closure was written in: the type of a closure is named after it.
fn operation<F>() -> &'static str {
    let name = any::type_name::<F>().trim_end_matches("::{{closure}}");
    name.rsplit("::").next().unwrap_or(name)
}

fn refused(error: &std::io::Error) -> Error {
    let full = error.kind() == std::io::ErrorKind::StorageFull;
    let code = if full { ffi::SQLITE_FULL } else { ffi::SQLITE_IOERR };
    rusqlite::Error::SqliteFailure(ffi::Error::new(code), Some("failpoint".into())).into()
}
