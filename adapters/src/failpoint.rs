//! Places where a build with `--cfg failpoints` dies, fails or waits on purpose; no other build has any of this.
//!
//! `RUNTIME_BRIDGE_FAILPOINTS` arms them, with entries like `journal.store_results.after=abort@2` between semicolons:
//! a point, when it acts, what it does, and at which pass alone (at each one where none is said).
//!
//! | point | what is passed |
//! | --- | --- |
//! | `journal.OPERATION` | an operation of the journal, named as its method |
//! | `log.create`, `log.append` | a write to the file of a Turn |
//! | `native.METHOD`, `native.answer` | a line to Codex: a request or notification, or an answer to one of its own |
//! | `native.user`, `native.SUBTYPE` | a line to Claude Code: an input, or a request by its subtype |
//! | `native.mcp_response`, `native.control_response` | an answer to Claude Code: of the server of functions, or another one |
//! | `native.METHOD`, `native.answer` | the same of an agent behind ACP |
//! | `clock` | a reading of the wall clock |
//! | `boot` | the start of the daemon on this boot of the machine |
//!
//! | action | what happens |
//! | --- | --- |
//! | `abort` | the process dies |
//! | `error:ENOSPC`, `error:EIO` | the write fails and has no effect; only `before` |
//! | `delay:MS` | the write takes so much longer |
//! | `jump:SECONDS` | the wall clock is off by so much from this pass on; only `clock` |
//! | `another` | the machine seems to have been started anew; only `boot` |

use std::{
    io, process,
    str::FromStr,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::io::Errno;
use serde::{Deserialize, de::IgnoredAny};

const VARIABLE: &str = "RUNTIME_BRIDGE_FAILPOINTS";

static ARMED: LazyLock<Vec<Armed>> = LazyLock::new(|| {
    let text = std::env::var(VARIABLE).unwrap_or_default();
    let armed: Result<_, _> = text.split(';').filter(|entry| !entry.is_empty()).map(str::parse).collect();
    armed.unwrap_or_else(|Malformed(entry)| {
        // A test that arms nothing would show nothing.
        tracing::error!(entry, "{VARIABLE} has an entry that is none");
        process::abort()
    })
});

/// When a point acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Nothing was written.
    Before,
    /// A half was written.
    Within,
    /// It was written, and nobody was told.
    After,
}

#[derive(Debug)]
struct Armed {
    /// With its moment, as in the variable.
    point: String,
    action: Action,
    /// The pass that it acts at; zero is each.
    pass: u64,
    passed: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Abort,
    Fail(Errno),
    Delay(Duration),
    Jump(i64),
    Another,
}

#[derive(Debug)]
struct Malformed(String);

/// Passes a point.
///
/// # Errors
/// What the point is armed with.
pub fn pass(point: &str, when: When) -> io::Result<()> {
    let when = match when {
        When::Before => "before",
        When::Within => "within",
        When::After => "after",
    };
    for armed in ARMED.iter() {
        if armed.point.strip_prefix(point).and_then(|rest| rest.strip_prefix('.')) != Some(when) {
            continue;
        }
        let passed = armed.passed.fetch_add(1, Ordering::Relaxed) + 1;
        if armed.pass != 0 && armed.pass != passed {
            continue;
        }
        tracing::warn!(point = armed.point, passed, action = ?armed.action, "failpoint");
        match armed.action {
            Action::Abort => process::abort(),
            Action::Fail(error) => return Err(error.into()),
            Action::Delay(time) => thread::sleep(time),
            Action::Jump(_) | Action::Another => {}
        }
    }
    Ok(())
}

/// Passes the points of a line to the Harness.
///
/// # Errors
/// As for [`pass`].
pub fn native(line: &[u8], when: When) -> io::Result<()> {
    pass(&format!("native.{}", name(line).as_deref().unwrap_or("answer")), when)
}

/// What a line is called: by its method for Codex, for Claude Code by what it asks or is.
fn name(line: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Head {
        method: Option<String>,
        r#type: Option<String>,
        request: Option<Request>,
        response: Option<Response>,
    }
    #[derive(Deserialize)]
    struct Request {
        subtype: String,
    }
    #[derive(Deserialize)]
    struct Response {
        response: Option<Answer>,
    }
    #[derive(Deserialize)]
    struct Answer {
        mcp_response: Option<IgnoredAny>,
    }
    let head = serde_json::from_slice::<Head>(line).ok()?;
    let answer = head.response.and_then(|response| response.response?.mcp_response);
    let asked = head.method.or(head.request.map(|request| request.subtype));
    asked.or(answer.map(|_| "mcp_response".to_owned())).or(head.r#type)
}

/// By how many seconds the wall clock is off at this reading.
#[must_use]
pub fn clock() -> i64 {
    let jumps = ARMED.iter().filter(|armed| armed.point == "clock").filter_map(|armed| match armed.action {
        Action::Jump(seconds) if armed.passed.fetch_add(1, Ordering::Relaxed) + 1 >= armed.pass => Some(seconds),
        Action::Jump(_) | Action::Another | Action::Abort | Action::Fail(_) | Action::Delay(_) => None,
    });
    jumps.sum()
}

/// Whether the machine seems to have been started anew.
#[must_use]
pub fn is_another_boot() -> bool {
    ARMED.iter().any(|armed| armed.action == Action::Another)
}

impl FromStr for Armed {
    type Err = Malformed;

    fn from_str(entry: &str) -> Result<Self, Malformed> {
        let malformed = || Malformed(entry.to_owned());
        let (point, action) = entry.split_once('=').ok_or_else(malformed)?;
        let (action, pass) = match action.split_once('@') {
            Some((action, pass)) => (action, pass.parse().ok().filter(|pass| *pass > 0).ok_or_else(malformed)?),
            None => (action, 0),
        };
        let (name, value) = action.split_once(':').unwrap_or((action, ""));
        let action = match (name, value) {
            ("abort", "") => Action::Abort,
            ("error", "ENOSPC") if point.ends_with(".before") => Action::Fail(Errno::NOSPC),
            ("error", "EIO") if point.ends_with(".before") => Action::Fail(Errno::IO),
            ("delay", value) => Action::Delay(Duration::from_millis(value.parse().map_err(|_| malformed())?)),
            ("another", "") if point == "boot" => Action::Another,
            ("jump", value) if point == "clock" => Action::Jump(value.parse().map_err(|_| malformed())?),
            _ => return Err(malformed()),
        };
        let is_write = [".before", ".within", ".after"].iter().any(|when| point.ends_with(when));
        if is_write == matches!(action, Action::Jump(_) | Action::Another) {
            return Err(malformed());
        }
        Ok(Self { point: point.to_owned(), action, pass, passed: AtomicU64::new(0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_called_by_what_it_asks() {
        for (line, want) in [
            (r#"{"method":"turn/start","id":1,"params":{}}"#, Some("turn/start")),
            (r#"{"id":1,"result":{"response":{}}}"#, None),
            (r#"{"type":"user","uuid":"u","message":{}}"#, Some("user")),
            (r#"{"type":"control_request","request_id":"r","request":{"subtype":"interrupt"}}"#, Some("interrupt")),
            (
                r#"{"type":"control_response","response":{"subtype":"success","response":{"mcp_response":{"id":0}}}}"#,
                Some("mcp_response"),
            ),
            (r#"{"type":"control_response","response":{"subtype":"success","response":{}}}"#, Some("control_response")),
            (r#"{"type":"control_response","response":{"subtype":"error","error":"no"}}"#, Some("control_response")),
        ] {
            assert_eq!(name(line.as_bytes()).as_deref(), want, "{line}");
        }
    }

    #[test]
    fn an_entry_is_read_whole_or_not_at_all() {
        for (entry, action, pass) in [
            ("journal.end_turn.before=error:ENOSPC@2", Action::Fail(Errno::NOSPC), 2),
            ("native.turn/start.after=abort", Action::Abort, 0),
            ("log.append.before=delay:5@1", Action::Delay(Duration::from_millis(5)), 1),
            ("clock=jump:-60@3", Action::Jump(-60), 3),
            ("boot=another", Action::Another, 0),
        ] {
            let armed: Armed = entry.parse().unwrap();
            assert_eq!((armed.action, armed.pass), (action, pass), "{entry}");
        }
        for entry in [
            "x",
            "x=abort",
            "x.after=error:EIO",
            "x.before=error",
            "x.before=abort@0",
            "clock=abort",
            "x.before=jump:1",
            "x.before=another",
            "boot=abort",
        ] {
            assert!(entry.parse::<Armed>().is_err(), "{entry}");
        }
    }
}
