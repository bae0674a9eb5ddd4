//! What stands in the journal: types of the disk, not of the daemon's memory. Changing one of these is changing the
//! schema.

/// Names a Session's row. Only the journal makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionRow(pub(super) i64);

/// Names a Turn's row. Only the journal makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TurnRow(pub(super) i64);

#[cfg(test)]
impl TurnRecord {
    /// A Turn of Core's id `t` that has no end, and of which nothing is known.
    pub(crate) fn of_test() -> Self {
        let (session, turn_id, executor_id) = (SessionRow(1), "t".into(), "e".into());
        Self {
            row: TurnRow(1),
            start: NewTurn { session, turn_id, number: 1, executor_id, content: [0; 32], created_ms: 0 },
            native_session_id: None,
            native_turn_id: None,
            cancel_cause: None,
            acknowledged: 0,
            reserved: 0,
            events_gone: false,
            unwritten: 0,
            end: None,
            inputs: Vec::new(),
        }
    }
}

/// A Session with its assignment (R-ASG-1 to R-ASG-5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionRecord {
    /// Who bound it first.
    pub(crate) principal: String,
    /// Core's id of it; unique within the principal.
    pub(crate) session_id: String,
    /// The name of its folder: 32 hex digits.
    pub(crate) directory: String,
    /// The assignment that holds it, or that last did.
    pub(crate) assignment_id: String,
    /// The epoch of that assignment.
    pub(crate) epoch: u64,
    /// Whether that assignment was released.
    pub(crate) released: bool,
    /// Where its Harness works.
    pub(crate) placement: Placement,
    /// Whether it ever had a Turn. Never goes back to false.
    pub(crate) had_turn: bool,
    /// The number that its next Turn gets. Never goes down.
    pub(crate) next_turn_number: u64,
    /// Its native history, once a native turn has started. Written by [`Journal::put_history`](super::Journal::put_history) alone.
    pub(crate) history: Option<HistoryRecord>,
}

/// The native history of a Session, and what it was made with (R-PRE-4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HistoryRecord {
    /// The native conversation.
    pub(crate) native_session_id: String,
    /// Kind of the Harness.
    pub(crate) harness: String,
    /// Digests of what is frozen, one after the other.
    pub(crate) configuration: Vec<u8>,
    /// Digest of the native settings that were not Core's to choose.
    pub(crate) settings: Vec<u8>,
    /// Digest of the instructions that it was given last; none when that is not known.
    pub(crate) instructions: Option<Vec<u8>>,
}

/// Where a Session's Harness works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// No workspace.
    None,
    /// A folder of an Environment.
    Workspace {
        /// The Environment.
        environment_id: String,
        /// The canonical absolute path.
        directory: String,
    },
}

/// A native resource of a Session, with the mark of the process that keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExecutorRecord {
    /// Our id of it.
    pub(crate) executor_id: String,
    /// SHA-256 of the configuration that it was prepared with.
    pub(crate) fingerprint: [u8; 32],
    /// The Harness's id of the native session, once known.
    pub(crate) native_session_id: Option<String>,
    /// The keeper's process id.
    pub(crate) keeper_pid: u32,
    /// The keeper's start time in clock ticks since boot: with the process id it names one process.
    pub(crate) keeper_start: u64,
    /// Whether its end was proved.
    pub(crate) closed: bool,
}

/// A Turn that begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewTurn {
    /// Its Session.
    pub(crate) session: SessionRow,
    /// Core's id of it; unique in the Session.
    pub(crate) turn_id: String,
    /// Its number in the Session, from 1, which names its file.
    pub(crate) number: u64,
    /// The Executor that serves it.
    pub(crate) executor_id: String,
    /// SHA-256 of what the start asked for (R-API-6).
    pub(crate) content: [u8; 32],
    /// When, in milliseconds of Unix time.
    pub(crate) created_ms: i64,
}

/// All that is recorded of a Turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TurnRecord {
    /// Its row.
    pub(crate) row: TurnRow,
    /// What it began with.
    pub(crate) start: NewTurn,
    /// The Harness's id of the native session, once the native start was seen.
    pub(crate) native_session_id: Option<String>,
    /// The Harness's id of the native turn, where it has one.
    pub(crate) native_turn_id: Option<String>,
    /// Why it was cancelled, when it was.
    pub(crate) cancel_cause: Option<String>,
    /// Up to which sequence Core has stored the events.
    pub(crate) acknowledged: u64,
    /// Up to which sequence events may have been given out.
    pub(crate) reserved: u64,
    /// Whether retention has removed its events.
    pub(crate) events_gone: bool,
    /// From which sequence on its file never had the events; 0 when it took all.
    pub(crate) unwritten: u64,
    /// How it ended, when it has.
    pub(crate) end: Option<EndRecord>,
    /// The inputs that were added to it, in their order.
    pub(crate) inputs: Vec<InputRecord>,
}

/// An input that was added to a Turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InputRecord {
    /// Core's id of it; unique in the Turn.
    pub(crate) input_id: String,
    /// SHA-256 of its content (R-API-6).
    pub(crate) hash: [u8; 32],
    /// How far it came: `received`, `written`, `accepted`, `refused` or `outcome_unknown`.
    pub(crate) phase: String,
    /// What is proved of an accepted one (`consumed`, `admitted`), or why one was refused (`turn_ended`, `unsupported`).
    pub(crate) detail: Option<String>,
}

/// What the newest Turns of a Session tell of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LastTurn {
    /// When the newest one began, or ended, in milliseconds of Unix time.
    pub(crate) active_ms: Option<i64>,
    /// The native session of the newest one that has reached the Harness.
    pub(crate) native_session_id: Option<String>,
}

/// How a Turn ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndRecord {
    /// The status in words.
    pub(crate) status: String,
    /// The encoded terminal event.
    pub(crate) ended: Vec<u8>,
    /// The terminal event's sequence.
    pub(crate) last_sequence: u64,
    /// When, in milliseconds of Unix time.
    pub(crate) ended_ms: i64,
    /// The encoded usage, where the Harness told it.
    pub(crate) usage: Option<Vec<u8>>,
}

/// A call that is about to be shown (R-FN-3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewCall {
    /// Its id, unique in the Turn.
    pub(crate) call_id: String,
    /// The function.
    pub(crate) name: String,
    /// The arguments' JSON text, as it came.
    pub(crate) arguments: String,
    /// The sequence of its event.
    pub(crate) sequence: u64,
}

/// All that is recorded of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallRecord {
    /// What it began with.
    pub(crate) start: NewCall,
    /// How far it came: `pending`, `result_stored`, `written`, `applied`, `abandoned` or `cancelled`.
    pub(crate) phase: String,
    /// Why it was abandoned, when it was.
    pub(crate) reason: Option<String>,
    /// The application's result, once stored; it stays whatever becomes of the call.
    pub(crate) result: Option<StoredResult>,
}

/// A stored result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredResult {
    /// SHA-256 of its content (R-API-6).
    pub(crate) hash: [u8; 32],
    /// The encoded result.
    pub(crate) body: Vec<u8>,
}

/// A result that is to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResultRecord {
    /// The call's Turn.
    pub(crate) turn: TurnRow,
    /// The call.
    pub(crate) call_id: String,
    /// The result.
    pub(crate) result: StoredResult,
}
