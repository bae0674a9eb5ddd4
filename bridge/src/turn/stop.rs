//! Why the bridge stops a Turn that nobody cancelled (R-EVT-10), and what becomes of it when the Harness obeys.

use adapters::harness::{Failure, FailureCode};

use super::event::{Status, UnknownCause};

/// A stop by the bridge. What the Harness says of the end by itself stands above it: a completion on its way wins, a native failure stays one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// `max_duration` is over.
    Deadline,
    /// The Harness was silent for too long and proved nothing when it was asked.
    Stalled,
}

impl Stop {
    /// How the Turn ends when nothing but the stop ended it.
    pub(super) fn status(self) -> Status {
        match self {
            Self::Deadline => Status::Failed(Failure {
                code: FailureCode::DeadlineExceeded,
                message: "the Turn took longer than its max_duration".into(),
                http_status: None,
                exit: None,
            }),
            Self::Stalled => Status::Unknown(UnknownCause::Stalled),
        }
    }
}
