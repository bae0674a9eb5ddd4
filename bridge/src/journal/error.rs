//! Why the journal refused.

use std::{path::PathBuf, sync::Arc};

use rusqlite::ErrorCode;

/// An operation of the journal had no effect, and why.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The file could not be opened or made.
    #[error("open journal at {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system or SQLite said.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// A later version of the daemon wrote this file.
    #[error("read a journal of schema {found}: this daemon knows schemas up to {known}")]
    NewerSchema {
        /// The version that the file has.
        found: i64,
        /// The newest version that this daemon can read.
        known: i64,
    },
    /// Another process has the file open.
    #[error("lock the journal: another process has it open")]
    Locked,
    /// The disk is full or does not take writes. Trying again later may help.
    #[error("write the journal: the disk is full or failing")]
    Full(#[source] Arc<rusqlite::Error>),
    /// The file was moved or deleted while the daemon runs.
    #[error("write the journal: {} is not where it was opened", path.display())]
    Moved {
        /// Where it was.
        path: PathBuf,
    },
    /// The journal was closed, or its thread is gone.
    #[error("reach the journal: it is closed")]
    Closed,
    /// The file is damaged, or is not a journal.
    #[error("read the journal: the file is damaged or not a journal")]
    Corrupt(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// The operation does not fit what is recorded: a row that must be there is not, or one is there already. The
    /// caller's own picture is wrong.
    #[error("record {0}: it does not fit what is recorded")]
    Misfit(String),
    /// Anything else that SQLite refused.
    #[error("use the journal")]
    Sql(#[source] Arc<rusqlite::Error>),
}

impl Error {
    /// Whether the storage is what failed, so that the answer is `STORAGE_UNAVAILABLE` (R-DUR-4); else the fault is
    /// ours.
    pub(crate) fn is_storage(&self) -> bool {
        match self {
            Self::Open { .. } | Self::Locked | Self::Full(_) | Self::Moved { .. } | Self::Closed | Self::Corrupt(_) => {
                true
            }
            Self::NewerSchema { .. } | Self::Misfit(_) | Self::Sql(_) => false,
        }
    }
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure | ErrorCode::ReadOnly | ErrorCode::CannotOpen) => {
                Self::Full(Arc::new(error))
            }
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Corrupt(Arc::new(error)),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Locked,
            Some(ErrorCode::ConstraintViolation) => Self::Misfit(error.to_string()),
            // A column that does not hold what its table promises.
            None if matches!(
                error,
                rusqlite::Error::FromSqlConversionFailure(..) | rusqlite::Error::InvalidColumnType(..)
            ) =>
            {
                Self::Corrupt(Arc::new(error))
            }
            _ => Self::Sql(Arc::new(error)),
        }
    }
}
