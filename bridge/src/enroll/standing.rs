//! How the connection to the relay stands, in a file beside the enrollment, so that `enrollment status` can tell it.

use std::{
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

use super::Enrollment;
use crate::{clock, private};

/// How it stands.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(crate) enum Standing {
    /// It is being dialled.
    Dialling,
    /// It is there.
    Connected,
    /// It is not there, and is dialled again soon.
    Waiting {
        /// Why it is not there.
        why: String,
    },
    /// It was refused for good; nothing is dialled until the daemon is started anew.
    Parked {
        /// The refusal, for programs.
        reason: String,
        /// The refusal, for people.
        why: String,
    },
}

/// What stands in the file.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Told {
    /// How it stands.
    #[serde(rename = "link")]
    pub(crate) standing: Standing,
    /// Since when, in milliseconds of Unix time.
    since_ms: i64,
    /// The process that tells it.
    pid: u32,
}

impl Told {
    /// Since when it stands so.
    pub(crate) fn since(&self) -> SystemTime {
        clock::from_millis(self.since_ms)
    }

    /// Whether the process that told it is there. One that was killed takes nothing back.
    pub(crate) fn is_of_a_running_daemon(&self) -> bool {
        let pid = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw);
        pid.is_some_and(|pid| match rustix::process::test_kill_process(pid) {
            Ok(()) => true,
            // It is there, and another user's.
            Err(error) => error == rustix::io::Errno::PERM,
        })
    }
}

/// The file.
#[derive(Debug)]
pub(crate) struct Board {
    path: PathBuf,
}

impl Board {
    /// The board of a state directory.
    pub(crate) fn of(state: &Path) -> Self {
        Self { path: Enrollment::folder(state).join("link.json") }
    }

    /// Tells how it stands.
    pub(crate) fn tell(&self, standing: Standing) {
        let told = Told { standing, since_ms: clock::millis(clock::now()), pid: std::process::id() };
        let written =
            serde_json::to_vec(&told).map_err(io::Error::other).and_then(|text| private::put(&self.path, &text, 0o600));
        if let Err(error) = written {
            tracing::debug!(path = %self.path.display(), %error, "how the link stands could not be written");
        }
    }

    /// What was told last; none where nothing was, or it is gone.
    pub(crate) fn read(&self) -> Option<Told> {
        serde_json::from_slice(&std::fs::read(&self.path).ok()?).ok()
    }
}

impl Board {
    /// Nobody keeps it up to date any more.
    pub(crate) fn clear(&self) {
        // Where it is not there it is clear.
        drop(std::fs::remove_file(&self.path));
    }
}
