//! Sessions: the fence, the Executor's lifecycle, preparations, and the one task that owns all of it.
//!
//! Others hold a [`Front`] and send messages; nothing but the owner task changes a Session (R-API-8). Knows no wire.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use adapters::{
    harness::{Configuration, FunctionResult, Harness, InputPart, Placement},
    native::user::User,
};
use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    gateway::{Gateway, Guards},
    journal::Journal,
    refusal::{Reason, Refusal},
    turn::{
        event::{Codec, Native, Waiting},
        inputs::InputState,
        log,
        machine::Phase,
    },
};

mod active;
pub(crate) mod assignment;
mod binding;
mod boot;
pub(crate) mod combination;
mod credential;
pub(crate) mod declaring;
pub(crate) mod digest;
mod drain;
mod executor;
mod history;
mod idle;
mod judging;
mod listing;
mod owner;
mod past;
mod preparation;
mod preparing;
mod progress;
mod reconcile;
mod recording;
pub(crate) mod recovery;
mod registry;
mod release;
mod results;
pub(crate) mod retention;
pub(crate) mod servers;
mod standing;
mod starting;
mod steering;
mod storing;
mod supports;
mod unsettled;
pub(crate) mod variables;

pub(crate) use assignment::Fence;
pub(crate) use credential::{Credential, Credentials, check as check_credentials};
pub(crate) use drain::{Drain, Drained, DrainedTurn, State as DrainState};
pub(crate) use idle::IdleExecutors;
pub(crate) use listing::{Listed, Page, Scope, TurnsPage};
pub(crate) use past::events_gone;
pub(crate) use preparation::Grant;
pub(crate) use recording::Bounds;
pub(crate) use registry::Registry;
pub(crate) use standing::{ExecutorState, Load};

/// What all Sessions of a daemon share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// What must survive.
    pub(crate) journal: Journal,
    /// The Harnesses by kind.
    pub(crate) harnesses: BTreeMap<&'static str, Arc<dyn Harness>>,
    /// The form in which events are stored and sent.
    pub(crate) codec: Arc<dyn Codec>,
    /// Whom Harnesses run under, where it is another user than ours (R-SEC-1).
    pub(crate) harness_user: Option<User>,
    /// The state directory, canonical.
    pub(crate) state: PathBuf,
    /// Directories below which a workspace may lie, canonical.
    pub(crate) workspace_roots: Vec<PathBuf>,
    /// Limits.
    pub(crate) limits: Limits,
    /// Room for Executors.
    pub(crate) capacity: Arc<Semaphore>,
    /// Executors that could make room.
    pub(crate) idle: Arc<IdleExecutors>,
    /// What the Harnesses support, for those who watch.
    pub(crate) declared: declaring::Declared,
    /// The daemon's drain.
    pub(crate) drain: Arc<Drain>,
    /// Keepers that live, for the peer check (R-SEC-1).
    pub(crate) keepers: Keepers,
    /// Who judges where Harnesses go.
    pub(crate) guards: Guards,
    /// The gateway to model providers and MCP servers; none where Harnesses hold their keys themselves.
    pub(crate) gateway: Option<Arc<Gateway>>,
    /// Every task of a Session.
    pub(crate) tracker: TaskTracker,
    /// Cancelled when the daemon stops and has drained: Sessions end.
    pub(crate) stopping: CancellationToken,
}

/// Limits of Sessions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Life of an unused handle (R-PRE-2).
    pub(crate) handle_life: Duration,
    /// How long the evidence of a written result may take (R-FN-6).
    pub(crate) evidence: Duration,
    /// How long the answer to an added input waits for its write (R-STE-1).
    pub(crate) input_write: Duration,
    /// How long a Harness may be quiet in a Turn before it is asked (R-EVT-10).
    pub(crate) quiet: Duration,
    /// How long a Harness may ask its provider again without an answer (R-EVT-10).
    pub(crate) retry: Duration,
    /// Executors that may exist at once (R-PRE-3).
    pub(crate) max_executors: u32,
    /// After how long an idle Executor closes (R-PRE-3).
    pub(crate) idle: Duration,
    /// Between two heartbeats.
    pub(crate) watch: Duration,
    /// Limits of a Turn's log.
    pub(crate) log: log::Limits,
    /// Bounds of a Turn's events.
    pub(crate) bounds: Bounds,
    /// How long a call that cannot be stored may wait for storage (R-DUR-4).
    pub(crate) unstored_call: Duration,
}

/// The keepers that live.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keepers(Arc<Mutex<BTreeSet<u32>>>);

impl Keepers {
    /// Adds one.
    pub(crate) fn add(&self, pid: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(pid);
    }

    /// Takes one out.
    pub(crate) fn remove(&self, pid: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&pid);
    }

    /// All of them.
    pub(crate) fn all(&self) -> BTreeSet<u32> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Names a Session: the same id of two principals is two Sessions (R-ASG-5).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// Who bound it.
    pub(crate) principal: String,
    /// Core's id.
    pub(crate) session_id: String,
}

/// The answer to a request.
pub(crate) type Answer<T> = Result<T, Refusal>;

/// Where the answer goes.
pub(crate) type Reply<T> = oneshot::Sender<Answer<T>>;

/// Requests to one Session that may wait; more are refused with `OVERLOADED`.
const INBOX: usize = 128;

/// A request to a Session's owner.
#[derive(Debug)]
pub(crate) enum Command {
    Bind {
        fence: Fence,
        placement: Asked,
        reply: Reply<Bound>,
    },
    Release {
        fence: Fence,
        remove_home: bool,
        reply: Reply<ReleaseDone>,
    },
    Prepare {
        fence: Fence,
        request: Box<PrepareRequest>,
        reply: Reply<Progress>,
    },
    UpdateCredential {
        fence: Fence,
        fresh: Credential,
        reply: Reply<bool>,
    },
    ReleasePreparation {
        fence: Fence,
        handle: String,
        reply: Reply<()>,
    },
    Start {
        fence: Fence,
        request: StartRequest,
        reply: Reply<(Snapshot, bool)>,
    },
    Observe {
        fence: Fence,
        turn_id: String,
        after: u64,
        reply: Reply<log::Reader>,
    },
    Acknowledge {
        fence: Fence,
        turn_id: String,
        through: u64,
        reply: Reply<u64>,
    },
    ReadPayload {
        fence: Fence,
        turn_id: String,
        part: Answer<PartOf>,
        reply: Reply<log::Payload>,
    },
    Submit {
        fence: Fence,
        results: Vec<Submitted>,
        reply: Reply<Vec<ResultOutcome>>,
    },
    Steer {
        fence: Fence,
        request: SteerRequest,
        reply: Reply<Steered>,
    },
    Progress {
        fence: Fence,
        report: CallProgress,
        reply: Reply<bool>,
    },
    Cancel {
        fence: Fence,
        turn_id: String,
        wait: Duration,
        reply: Reply<Snapshot>,
    },
    Get {
        fence: Fence,
        turn_id: String,
        reply: Reply<Snapshot>,
    },
    List {
        fence: Fence,
        before: Option<u64>,
        limit: usize,
        reply: Reply<TurnsPage>,
    },
    /// Retention: forget the Session when it was released at this time or earlier, in milliseconds of Unix time.
    Forget {
        before: i64,
        reply: Reply<bool>,
    },
    /// Retention: the events of a Turn are removed.
    EventsGone {
        turn_id: String,
        reply: Reply<()>,
    },
}

/// A part that was too large for where it belongs (R-API-7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PartOf {
    /// Of the event of this sequence, by its number.
    Event(u64, u16),
    /// The arguments of this call.
    Call(String),
}

/// A placement as Core asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    None,
    Workspace { environment_id: String, directory: PathBuf },
}

/// What is recorded after a Bind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) epoch: u64,
    pub(crate) placement: Placement,
    pub(crate) took_over: bool,
}

/// How a release went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReleaseDone {
    /// What is left, for a person; nothing when all is proved.
    pub(crate) left: Option<String>,
    /// Whether the native home is gone.
    pub(crate) home_removed: bool,
}

/// A request to prepare.
#[derive(Debug)]
pub(crate) struct PrepareRequest {
    pub(crate) preparation_id: String,
    /// Everything but the directory, which the binding has.
    pub(crate) configuration: Configuration,
    pub(crate) on_workspace: bool,
    pub(crate) credentials: Credentials,
    /// The native history to go on with.
    pub(crate) resume: Option<String>,
}

/// Progress of a preparation.
#[derive(Debug)]
pub(crate) enum Progress {
    Preparing { executor_id: String, revision: u32, done: oneshot::Receiver<Answer<Grant>> },
    Ready(Grant),
}

/// A request to start.
#[derive(Debug)]
pub(crate) struct StartRequest {
    pub(crate) handle: String,
    pub(crate) turn_id: String,
    pub(crate) input: Vec<InputPart>,
    pub(crate) max_duration: Option<Duration>,
}

/// A request to add an input to a Turn.
#[derive(Debug)]
pub(crate) struct SteerRequest {
    pub(crate) turn_id: String,
    pub(crate) input_id: String,
    pub(crate) input: Vec<InputPart>,
}

/// An input that was added to a Turn, as it stands.
#[derive(Debug)]
pub(crate) struct Steered {
    pub(crate) input: InputState,
    /// Whether it was there before.
    pub(crate) duplicate: bool,
}

/// One submitted result; a result whose content is wrong is judged like the others before that is said (R-FN-5).
#[derive(Debug)]
pub(crate) struct Submitted {
    pub(crate) turn_id: String,
    pub(crate) call_id: String,
    pub(crate) result: Result<FunctionResult, Refusal>,
    /// The stored form.
    pub(crate) body: Vec<u8>,
}

/// A report about a call that the application still works on.
#[derive(Debug)]
pub(crate) struct CallProgress {
    pub(crate) turn_id: String,
    pub(crate) call_id: String,
    pub(crate) number: u64,
    pub(crate) message: String,
}

/// What became of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultOutcome {
    Accepted,
    Duplicate,
}

/// A Turn as it stands.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) turn_id: String,
    pub(crate) phase: Phase,
    pub(crate) required: Vec<Waiting>,
    /// The inputs that were added, in their order.
    pub(crate) inputs: Vec<InputState>,
    pub(crate) last_sequence: u64,
    pub(crate) acknowledged: u64,
    /// Encoded by the codec.
    pub(crate) usage: Option<Vec<u8>>,
    pub(crate) native: Option<Native>,
    /// The encoded terminal.
    pub(crate) ended: Option<Bytes>,
    pub(crate) cancel_requested: bool,
    pub(crate) created_at: SystemTime,
    /// What an unsettled Turn had started may still be there. Only a cancel asks anew (R-CAN-2).
    pub(crate) left: bool,
}

/// A cheap front of one Session. Dropping it ends nothing.
#[derive(Clone, Debug)]
pub(crate) struct Front {
    inbox: mpsc::Sender<Command>,
    stopping: CancellationToken,
    stand: standing::Stand,
    /// The Session was forgotten by retention, and the owner is gone.
    forgotten: CancellationToken,
}

impl Front {
    /// Asks the owner and waits for its reply. What was asked goes on when the waiting is dropped.
    pub(crate) async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Answer<T> {
        let (reply, answer) = oneshot::channel();
        match self.inbox.try_send(command(reply)) {
            Ok(()) => answer.await.unwrap_or_else(|_gone| Err(self.gone())),
            Err(mpsc::error::TrySendError::Full(_)) => {
                Err(Refusal::new(Reason::Overloaded, "too many requests wait for this Session").with("retry_ms", 100))
            }
            Err(mpsc::error::TrySendError::Closed(_)) => Err(self.gone()),
        }
    }

    /// The owner is gone: with the daemon, or because of a fault of ours that ends this Session alone.
    fn gone(&self) -> Refusal {
        if self.forgotten.is_cancelled() {
            // The next try finds no Session, or a new one.
            Refusal::new(Reason::Overloaded, "the Session is being forgotten").with("retry_ms", 100)
        } else if self.stopping.is_cancelled() {
            Refusal::new(Reason::Draining, "the bridge is stopping")
        } else {
            Refusal::new(
                Reason::Internal,
                "the Session broke by a fault of the bridge, whose log has the details; it is settled at the next start",
            )
        }
    }
}

/// The refusal for a failure of the journal.
fn storage(error: &crate::journal::Error) -> Refusal {
    tracing::error!(error = error as &dyn std::error::Error, "the journal refused");
    if error.is_storage() {
        Refusal::new(Reason::StorageUnavailable, "the bridge's storage does not take writes")
    } else {
        Refusal::new(Reason::Internal, "the bridge could not record this; its log has the details")
    }
}
