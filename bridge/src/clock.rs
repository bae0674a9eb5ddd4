//! The wall clock, read here and nowhere else, for stamps only. It is never an order.

use std::time::{SystemTime, UNIX_EPOCH};

/// Now.
#[cfg(not(failpoints))]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

/// Now, by a clock that may have been set wrong.
#[cfg(failpoints)]
pub(crate) fn now() -> SystemTime {
    let jump = adapters::failpoint::clock();
    let by = std::time::Duration::from_secs(jump.unsigned_abs());
    let now = SystemTime::now();
    if jump < 0 { now.checked_sub(by) } else { now.checked_add(by) }.unwrap_or(UNIX_EPOCH)
}

/// Milliseconds since 1970 of a stamp; zero for one before.
pub(crate) fn millis(at: SystemTime) -> i64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}

/// The stamp of a number of milliseconds since 1970.
pub(crate) fn from_millis(millis: i64) -> SystemTime {
    UNIX_EPOCH + std::time::Duration::from_millis(millis.max(0).unsigned_abs())
}
