//! What came in and what became of it, kept for the tests.

use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// One request as it came, and its fate so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// The position in the record, from 0.
    pub number: usize,
    /// When it had come in whole, in milliseconds of the Unix clock.
    pub at_ms: u64,
    /// The HTTP method.
    pub method: String,
    /// The version of HTTP, such as `HTTP/1.1`.
    pub version: String,
    /// Path and query.
    pub path: String,
    /// The headers in their order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body; what is not UTF-8 is replaced.
    pub body: String,
    /// What answered: `script` (a step of the queue), `mock`, `count` (of tokens), or `none` (no such path).
    pub answered_by: String,
    /// The status that was sent; absent while none was.
    pub status: Option<u16>,
    /// How many server-sent events were handed to the connection.
    pub events: u64,
    /// How the answer ended; absent while it goes on.
    pub end: Option<End>,
    /// When it ended, in milliseconds of the Unix clock.
    pub ended_at_ms: Option<u64>,
}

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// It was sent to its proper end.
    Sent,
    /// The script broke it off.
    Broken,
    /// The client went away before.
    ClientGone,
}

impl Recorded {
    /// The first header of this name (in lower case).
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON, `null` when it is none. For looking; the text is `body`.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }
}

/// All requests, with a bell that rings at every change.
#[derive(Debug, Default)]
pub(super) struct Record {
    kept: Mutex<Kept>,
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Kept {
    /// How many were forgotten: numbers are never used twice.
    forgotten: usize,
    requests: Vec<Recorded>,
}

impl Record {
    fn with<T>(&self, act: impl FnOnce(&mut Kept) -> T) -> T {
        let done = act(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        self.changes.send_modify(|changes| *changes += 1);
        done
    }

    /// Adds a request and gives its number.
    pub(super) fn add(&self, mut request: Recorded) -> usize {
        self.with(|kept| {
            request.number = kept.forgotten + kept.requests.len();
            kept.requests.push(request);
            kept.forgotten + kept.requests.len() - 1
        })
    }

    /// Changes a request, unless it was forgotten.
    pub(super) fn change(&self, number: usize, change: impl FnOnce(&mut Recorded)) {
        self.with(|kept| {
            let place = number.checked_sub(kept.forgotten);
            place.and_then(|place| kept.requests.get_mut(place)).map(change);
        });
    }

    /// Notes the end of an answer; the first one counts.
    pub(super) fn end(&self, number: usize, end: End) {
        self.change(number, |request| {
            if request.end.is_none() {
                request.end = Some(end);
                request.ended_at_ms = Some(now_ms());
            }
        });
    }

    pub(super) fn all(&self) -> Vec<Recorded> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).requests.clone()
    }

    pub(super) fn clear(&self) {
        self.with(|kept| {
            kept.forgotten += kept.requests.len();
            kept.requests.clear();
        });
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

/// The Unix clock in milliseconds.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
