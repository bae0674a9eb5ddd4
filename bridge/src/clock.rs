//! The wall clock, read here and nowhere else, for stamps only. It is never an order.

use std::time::{SystemTime, UNIX_EPOCH};

/// Now.
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

/// Milliseconds since 1970 of a stamp; zero for one before.
pub(crate) fn millis(at: SystemTime) -> i64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}

/// The stamp of a number of milliseconds since 1970.
pub(crate) fn from_millis(millis: i64) -> SystemTime {
    UNIX_EPOCH + std::time::Duration::from_millis(millis.max(0).unsigned_abs())
}
