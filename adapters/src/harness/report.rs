//! What an adapter reports of native work, in words that every Harness shares.

use std::time::{Duration, SystemTime};

/// A report. Items are named by the Harness's own ids; the Session makes them unique, and closes what the Harness leaves open.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// The Harness has started the Turn. Once a Turn, before anything else of it.
    Started {
        /// The native turn.
        native_turn_id: String,
    },
    /// An assistant message begins.
    MessageStarted {
        /// Native id.
        id: String,
    },
    /// More text of an open message.
    MessageDelta {
        /// Native id.
        id: String,
        /// The text that is added.
        text: String,
    },
    /// A message is complete.
    MessageCompleted {
        /// Native id.
        id: String,
        /// The whole text.
        text: String,
        /// What it is, where the Harness says so.
        phase: Option<MessagePhase>,
    },
    /// The provider's answer broke off and is asked for again: open messages, reasoning and searches of the web are void (R-EVT-2).
    AnswerBroken,
    /// The provider's answer was broken off for an input that was added: open messages and reasoning are void (R-EVT-2).
    AnswerSteered,
    /// The model begins to reason.
    ReasoningStarted {
        /// Native id.
        id: String,
    },
    /// More reasoning.
    ReasoningDelta {
        /// Native id.
        id: String,
        /// Which text.
        kind: ReasoningText,
        /// Which part of it.
        index: u32,
        /// The text that is added.
        text: String,
    },
    /// Reasoning is complete.
    ReasoningCompleted {
        /// Native id.
        id: String,
        /// Parts of the summary.
        summary: Vec<String>,
        /// Parts of the raw reasoning.
        raw: Vec<String>,
    },
    /// A native tool begins to run.
    ToolStarted {
        /// Native id.
        id: String,
        /// What runs.
        tool: Tool,
    },
    /// More output of an open tool.
    ToolOutput {
        /// Native id.
        id: String,
        /// The text that is added.
        text: String,
    },
    /// A native tool has ended.
    ToolCompleted {
        /// Native id.
        id: String,
        /// How.
        end: ToolEnd,
    },
    /// The model calls a function.
    Call {
        /// The native call id.
        call_id: String,
        /// Name of the function.
        name: String,
        /// Arguments as JSON text.
        arguments: String,
        /// Whether they are the model's own text.
        exact: bool,
        /// Whether the bridge made the id, since the Harness has none (R-FN-2).
        named_by_bridge: bool,
    },
    /// The result of a call has been written to the Harness completely; evidence must follow (R-FN-6).
    AnswerWritten {
        /// The call.
        call_id: String,
    },
    /// The native result of a call was seen live, with the flag and the content that were written (R-FN-6).
    AnswerApplied {
        /// The call.
        call_id: String,
        /// The native message that shows it.
        evidence: &'static str,
        /// The flag in it.
        success: bool,
    },
    /// The native result of a call was seen, but it is not what was written.
    AnswerDiffers {
        /// The call.
        call_id: String,
    },
    /// The Harness gave a call up before it had a result.
    CallAbandoned {
        /// The call.
        call_id: String,
        /// Why.
        reason: AbandonReason,
    },
    /// An input that was added to the Turn has been written to the Harness, or may have been (R-STE-1).
    InputWritten {
        /// The input.
        input_id: String,
    },
    /// The Harness shows that it has the input now.
    InputAccepted {
        /// The input.
        input_id: String,
        /// What is proved.
        evidence: InputEvidence,
        /// The native message that proves it.
        native_id: String,
    },
    /// It is proved that the input takes no part in the Turn, and never will in another one (R-STE-3).
    InputRefused {
        /// The input.
        input_id: String,
        /// Why.
        why: InputRefusal,
    },
    /// The Harness tries a provider request again.
    ProviderRetry(RetryOf),
    /// Usage of this Turn so far; replaces the one before (R-EVT-4).
    Usage(Usage),
    /// Something worth knowing.
    Notice {
        /// A stable name.
        code: &'static str,
        /// For a person, without addresses and bodies.
        message: String,
    },
    /// The answer to [`Order::Ask`](super::Order::Ask). It is no native message, and begins and ends nothing.
    Standing(Standing),
    /// The native end of the Turn is known. Settlement follows as [`Report::Settled`]. An input that no report called written by now was not
    /// written and will not be; of one that was there is no more evidence (R-STE-3).
    Ended(NativeEnd),
    /// The native end of the Turn stands in native history; the Harness itself did not live to tell it (R-EVT-7). Settlement follows as after
    /// [`Report::Ended`].
    Proved(NativeEnd),
    /// All native work of the Turn is gone, or the limit for that is over. The last report of a Turn.
    Settled(Settlement),
    /// The Executor is gone. The last report of all; after it nothing native is left unless `survivors` says so.
    Closed {
        /// How the process ended.
        exit: Option<Exit>,
        /// Processes that could not be ended.
        survivors: u32,
    },
}

/// How a Turn stands whose Harness was asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The Harness wrote something so long ago, which led to no report, or the adapter is ending the Turn.
    Heard {
        /// How long ago.
        ago: std::time::Duration,
    },
    /// The Harness says that the Turn goes on.
    Active,
    /// The Harness says that the Turn is over; [`Report::Ended`] follows.
    Over,
    /// The Harness did not answer in time, or not so that it could be understood.
    Silent,
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessagePhase {
    /// A remark on the way.
    Commentary,
    /// Part of the answer.
    PartialAnswer,
    /// The answer.
    FinalAnswer,
}

/// Which reasoning text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningText {
    /// The provider's summary.
    Summary,
    /// The model's own reasoning.
    Raw,
}

/// What a native tool does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tool {
    /// A shell command.
    Command {
        /// The command line.
        command: String,
        /// Its directory, or empty.
        directory: String,
    },
    /// Changes to files.
    FileChange {
        /// The files.
        edits: Vec<FileEdit>,
    },
    /// A call of a tool of an MCP server (R-MCP-5).
    Mcp(McpCall),
    /// A search of the web, or a look at a page of it.
    WebSearch {
        /// What is searched for, in one text, or empty.
        query: String,
        /// What is done, once it is known.
        action: Option<WebAction>,
    },
    /// Anything else.
    Other {
        /// The Harness's name for it.
        name: String,
    },
}

/// A call of a tool of an MCP server, under its original names (R-MCP-5).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct McpCall {
    /// Label of the server.
    pub server: String,
    /// Name of the tool at the server.
    pub tool: String,
    /// The arguments as JSON text, or empty.
    pub arguments: String,
    /// The native result as JSON text, once there is one.
    pub result: Option<String>,
    /// Why it failed without a result, for a person, without addresses and secrets; or empty.
    pub error: String,
}

/// A change to one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEdit {
    /// Path as the Harness tells it.
    pub path: String,
    /// What happens to it.
    pub kind: FileEditKind,
    /// The difference as the Harness tells it.
    pub diff: String,
    /// New path of a moved file.
    pub moved_to: Option<String>,
}

/// What happens to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileEditKind {
    /// Made.
    Add,
    /// Removed.
    Delete,
    /// Changed.
    Update,
    /// Something that the bridge does not know.
    Other,
}

/// What a web search does. At its start a Harness may not know it yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebAction {
    /// A search.
    Search {
        /// Every text that is searched for.
        queries: Vec<String>,
    },
    /// A page is opened.
    OpenPage {
        /// Its address, or empty.
        url: String,
    },
    /// A text is looked for in a page.
    FindInPage {
        /// The page's address, or empty.
        url: String,
        /// The text, or empty.
        pattern: String,
    },
    /// Something that the bridge does not know.
    Other {
        /// The Harness's name for it.
        name: String,
    },
}

/// What is proved about an input that was added to a Turn (R-STE-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputEvidence {
    /// It stands in the native history of the Turn.
    Consumed,
    /// The Harness has taken it into its queue.
    Admitted,
}

/// Why an input took no part in its Turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputRefusal {
    /// The Turn ended before the Harness read it.
    TurnEnded,
    /// The Harness does not take it.
    NotTaken {
        /// For a person, without addresses and bodies.
        message: String,
    },
}

/// How a native tool ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolEnd {
    /// How.
    pub status: ToolStatus,
    /// What ran, as it stands at the end.
    pub tool: Tool,
    /// The whole output.
    pub output: Option<String>,
    /// Exit code of a command.
    pub exit_code: Option<i32>,
    /// How long it ran.
    pub duration: Option<Duration>,
}

/// How a native tool ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolStatus {
    /// Succeeded.
    Completed,
    /// Failed.
    Failed,
    /// Not allowed.
    Declined,
    /// Closed by the bridge without a native end.
    Incomplete,
    /// Something that the bridge does not know.
    Other,
}

/// Why a call takes no result any more (R-FN-7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbandonReason {
    /// The Harness gave it up at its own limit.
    NativeTimeout,
    /// Its own deadline is over (R-FN-8).
    Deadline,
    /// The Harness cancelled it.
    NativeCancelled,
    /// The Executor is gone.
    ExecutionLost,
    /// The Turn ended.
    TurnEnded,
}

/// A provider request that is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryOf {
    /// What failed.
    pub code: FailureCode,
    /// Its HTTP status.
    pub http_status: Option<u16>,
    /// The Harness's own text, without addresses and bodies.
    pub message: String,
}

/// Tokens of a Turn; what the Harness does not tell is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Input, cached included.
    pub input: Option<u64>,
    /// Cached input.
    pub cached_input: Option<u64>,
    /// Output, reasoning included.
    pub output: Option<u64>,
    /// Reasoning output.
    pub reasoning_output: Option<u64>,
    /// All.
    pub total: Option<u64>,
}

/// How the Harness ended the Turn.
#[derive(Clone, Debug, PartialEq)]
pub enum NativeEnd {
    /// It completed.
    Completed {
        /// How the answer ended, from a field of its own.
        finish: Option<Finish>,
        /// When, by the Harness.
        at: Option<SystemTime>,
    },
    /// It failed.
    Failed {
        /// What.
        failure: Failure,
        /// How the answer ended, from a field of its own.
        finish: Option<Finish>,
        /// When, by the Harness.
        at: Option<SystemTime>,
    },
    /// It was interrupted, as we asked: by its own word, or because we ended the process after asking.
    Interrupted {
        /// When, by the Harness.
        at: Option<SystemTime>,
    },
}

/// How the model's answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// By itself.
    Stop,
    /// Cut short at the limit of its length.
    Incomplete,
    /// The model refused to answer.
    Refused,
    /// There is no answer: the Harness showed neither a message nor a tool.
    NoOutput,
}

/// What failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The class.
    pub code: FailureCode,
    /// For a person, without addresses and bodies.
    pub message: String,
    /// HTTP status of the provider.
    pub http_status: Option<u16>,
    /// How the Harness exited, for [`FailureCode::HarnessExited`].
    pub exit: Option<Exit>,
}

/// Classes of failures (R-EVT-5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureCode {
    /// Key refused.
    AuthenticationError,
    /// Too many requests.
    RateLimitExceeded,
    /// Quota used up.
    UsageLimitExceeded,
    /// Provider overloaded.
    ServerOverloaded,
    /// Provider failed.
    ServerError,
    /// Request refused.
    InvalidRequest,
    /// Model or route not found.
    ResourceNotFound,
    /// Provider gave up waiting.
    RequestTimeout,
    /// Input too long.
    ContextLengthExceeded,
    /// Refused by policy.
    CyberPolicy,
    /// Provider not reached, or its answer broke off.
    ConnectionFailed,
    /// Harness exited.
    HarnessExited,
    /// Harness broke its protocol.
    HarnessProtocolError,
    /// The Harness ended well without the structured answer that was asked for.
    StructuredOutputMissing,
    /// A written result was never shown as taken over.
    FunctionResultUnconfirmed,
    /// The Turn took longer than it may.
    DeadlineExceeded,
    /// A line above the limit.
    LineTooLarge,
    /// What had to be stored could not be.
    StorageUnavailable,
    /// More than may be kept of one Turn.
    StreamLimitExceeded,
}

impl FailureCode {
    /// The class of an HTTP status of the provider.
    pub(crate) fn of_status(status: u16) -> Self {
        match status {
            401 | 403 => Self::AuthenticationError,
            404 => Self::ResourceNotFound,
            408 => Self::RequestTimeout,
            429 => Self::RateLimitExceeded,
            400..=499 => Self::InvalidRequest,
            500..=599 => Self::ServerError,
            _ => Self::ConnectionFailed,
        }
    }
}

/// How a native process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// With this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// Whether all native work of a Turn is gone, and whether the Executor can take another one (R-CAN-2, R-CAN-3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// True when nothing of the Turn runs any more.
    pub confirmed: bool,
    /// True when the Executor takes another Turn; else [`Report::Closed`] follows without an order.
    pub reusable: bool,
}
