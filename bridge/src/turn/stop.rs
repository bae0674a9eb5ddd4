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
    /// The Harness asked its provider again and again, and nothing came of it in time. How the last try failed.
    Unanswered {
        /// Its class.
        code: FailureCode,
        /// Its HTTP status.
        http_status: Option<u16>,
    },
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
            Self::Unanswered { code, http_status } => Status::Failed(Failure {
                code,
                message: "the model provider was asked again for as long as that may take, and gave no answer".into(),
                http_status,
                exit: None,
            }),
        }
    }
}
