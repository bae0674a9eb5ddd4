//! What happens to a native Turn, and what is to be done about it.

use std::{fmt, time::Duration};

use crate::harness::{Exit, Failure, NativeEnd, Report};

/// What happened.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// Everything that must come before the input is done.
    Prepared,
    /// The Harness has the input.
    Accepted { native: Option<String> },
    /// The input was refused; nothing runs.
    Refused { failure: Failure, overloaded: bool },
    /// The native turn has started.
    Started { native: String },
    /// The Turn is to be stopped.
    Interrupt,
    /// An interrupt was refused.
    InterruptRefused,
    /// The native turn has ended, with the number of commands that still run.
    Completed { native: String, end: NativeEnd, open_work: usize },
    /// So many commands run.
    Work { open: usize },
    /// Told to end them, the Harness has answered.
    Cleaned,
    /// Surplus processes were ended; so many are still there.
    SurplusEnded { left: u32 },
    /// The process cannot be used any more.
    Fault(Failure),
    /// The Executor is to close.
    Close,
    /// History proves the end that the process did not tell; it is about to be known as gone.
    Proved(NativeEnd),
    /// A timer ran out.
    Expired(Timer),
    /// The process and everything below it is gone.
    Exited { exit: Exit, foreign_signal: bool, said: String },
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Effect {
    /// Tell the Session.
    Report(Report),
    /// Submit the input.
    Submit,
    /// Interrupt the native turn.
    Interrupt { native: String },
    /// Have commands ended that an interrupt leaves running.
    Clean,
    /// End what was not there before the Turn.
    EndSurplus,
    /// Close stdin, end the process and everything below it.
    Retire,
    /// Set a timer, anew if it is set.
    Arm(Timer, Duration),
    /// Clear a timer.
    Disarm(Timer),
}

/// The timers of a Turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// To submit the input again.
    Resubmit,
    /// To interrupt again.
    InterruptAgain,
    /// For the effect of an interrupt.
    Interrupt,
    /// For open work at a normal end.
    Work,
    /// For stopped work.
    Clean,
    /// For everything after the end.
    Settlement,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prepared => "prepared",
            Self::Accepted { .. } => "accepted",
            Self::Refused { .. } => "refused",
            Self::Started { .. } => "started",
            Self::Interrupt => "interrupt",
            Self::InterruptRefused => "interrupt refused",
            Self::Completed { .. } => "completed",
            Self::Work { .. } => "work",
            Self::Cleaned => "cleaned",
            Self::SurplusEnded { .. } => "surplus ended",
            Self::Fault(_) => "fault",
            Self::Close => "close",
            Self::Proved(_) => "proved",
            Self::Expired(_) => "expired",
            Self::Exited { .. } => "exited",
        })
    }
}
