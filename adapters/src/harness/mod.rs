//! The Harness contract: what the daemon asks of an adapter, and what an adapter reports.
//!
//! A control goes down as an [`Order`], everything native comes up as a [`Report`]. The adapter reports, the Session decides: nothing
//! here knows of sequences, journals or the wire. One [`Executor`] serves one Session and one Turn at a time.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
};

use tokio::sync::mpsc;

mod configuration;
mod declaration;
mod function;
mod history;
mod image;
mod input;
mod report;
mod secrets;
mod settings;
mod timing;

pub use configuration::{
    Configuration, ContextSize, Controls, FunctionTool, Location, McpKind, McpOrigin, McpServer, McpTransport,
    ModelProtocol, ModelProvider, NotAdmitted, Placement, TextVerbosity, TokenLimits, WebSearch, WebSearchMode,
};
pub(crate) use declaration::Row;
pub use declaration::{
    AcceptedValues, Availability, Capability, Declaration, FunctionNames, Isolation, JsonFidelity, Limits, McpLimits,
    Proved, SearchLimits,
};
pub use function::{Disposition, FunctionOutput, FunctionResult, OutputPart, Presence, render};
pub use history::{HistoryFault, Proof, ProvedInput, ProvedInputs, ProvedMessage, Resume};
pub use input::{Image, InputPart, MediaType};
pub use report::{
    AbandonReason, Exit, Failure, FailureCode, FileEdit, FileEditKind, Finish, InputEvidence, InputRefusal, McpCall,
    MessagePhase, NativeEnd, ReasoningText, Report, RetryOf, Settlement, Standing, Tool, ToolEnd, ToolStatus, Usage,
    WebAction,
};
pub use secrets::Secrets;
pub use settings::Settings;
pub use timing::Timing;

/// A future that an adapter returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One kind of Harness on this machine.
pub trait Harness: fmt::Debug + Send + Sync {
    /// The kind, as declarations and configurations name it.
    fn kind(&self) -> &'static str;

    /// Looks at the machine anew and says what the Harness supports here. Never fails: a Harness that cannot be used is declared as
    /// unavailable, with the reason. A probe may clear a capability, never add one (R-CAP-3).
    fn declare(&self) -> BoxFuture<'_, Declaration>;

    /// Checks a configuration against a declaration, without any native effect. The first thing that is not admitted is the answer, always
    /// the same one for the same configuration.
    fn admit(&self, declaration: &Declaration, configuration: &Configuration) -> Result<(), NotAdmitted>;

    /// What it is built for, whatever this machine has: `Admit` judges by it. None where that is known without the daemon that hosts it.
    fn built(&self) -> Option<crate::admission::built::Built> {
        None
    }

    /// Checks that an Executor of this placement may hold a model key by itself under this declaration; asked beside [`admit`](Self::admit) for a configuration that
    /// comes with one (R-PLC-1).
    fn admit_key(&self, declaration: &Declaration, placement: &Placement) -> Result<(), NotAdmitted> {
        let _ = (declaration, placement);
        Ok(())
    }

    /// Whether the instructions of a conversation stand in its native history: they can be replaced there, but not taken back (R-PRE-6).
    fn keeps_instructions(&self) -> bool {
        true
    }

    /// The function of the application that is meant where a model provider's answer asks for this tool, behind its namespace and a point where it has one; none
    /// where the tool cannot be one (R-FN-10).
    fn function_of<'a>(&self, tool: &'a str) -> Option<&'a str>;

    /// Looks whether a native history is in this home and is the one that is meant, without starting anything (R-PRE-4). Asked before
    /// [`prepare`](Self::prepare) with that history, and where it must be known whether there is one.
    fn check_history(&self, home: &Path, resume: &Resume) -> BoxFuture<'_, Result<(), HistoryFault>>;

    /// Looks up in native history how a native turn ended, without starting anything. `None` where history does not prove an end. Nothing
    /// native of it runs any more.
    fn reconcile(&self, home: &Path, native_session_id: &str, native_turn_id: &str) -> BoxFuture<'_, Option<Proof>>;

    /// Looks up in native history which inputs of a native turn were read (R-STE-3). `None` where history cannot be read. Nothing native of it
    /// runs any more.
    fn inputs_read(
        &self,
        home: &Path,
        native_session_id: &str,
        native_turn_id: &str,
    ) -> BoxFuture<'_, Option<ProvedInputs>>;

    /// Starts the native process and its conversation, or goes on with the one of [`Launch::resume`] and with no other. No model input is sent. Whatever was started is gone again when this fails, or when
    /// the future is dropped.
    fn prepare(&self, launch: Launch) -> BoxFuture<'_, Result<Executor, PrepareError>>;
}

/// What an adapter needs to prepare an Executor.
#[derive(Debug)]
pub struct Launch {
    /// Id of the Executor: goes into the mark of its processes.
    pub executor_id: String,
    /// Folder of the Session for native state, made by the daemon and its own, also where the Harness has another user: who is given folders in it;
    /// outside of the temp folder.
    pub home: PathBuf,
    /// Private folder for temporary files of the native process, made by the daemon and given to the user of the Harness.
    pub temporary: PathBuf,
    /// Canonical directory of the workspace; none under the placement `none`.
    pub workspace: Option<PathBuf>,
    /// The frozen configuration; admitted before.
    pub configuration: Arc<Configuration>,
    /// What the Harness is given for a key of the model provider, where it is given one.
    pub model_key: Option<secrecy::SecretString>,
    /// Whether that is the key itself and not what a gateway replaces (R-SEC-3, R-PLC-1).
    pub holds_key: bool,
    /// Bearers that the Harness itself sends to MCP servers, by their labels. By a gateway it sends none (R-MCP-2, R-SEC-3).
    pub mcp_bearers: BTreeMap<String, secrecy::SecretString>,
    /// Variables of the Environment that MCP servers name, all of them there (R-MCP-3, R-MCP-4).
    pub mcp_variables: BTreeMap<String, secrecy::SecretString>,
    /// What is cut out of native texts before they leave (R-SEC-6).
    pub secrets: Secrets,
    /// Marks every process of the Executor (R-DUR-2).
    pub mark: crate::native::environment::Mark,
    /// The native history to go on with; none begins one.
    pub resume: Option<Resume>,
}

/// A prepared native process with its conversation. Dropping it ends everything that it started.
#[derive(Debug)]
pub struct Executor {
    /// Orders to the adapter. Bounded; the adapter always takes them soon, whatever the Harness does.
    pub orders: mpsc::Sender<Order>,
    /// Reports of the adapter in their order. [`Report::Closed`] is the last.
    pub reports: mpsc::Receiver<Report>,
    /// Version of the Harness that runs.
    pub version: String,
    /// The native conversation.
    pub native_session_id: String,
    /// The native settings that the bridge and its operator chose, as a text to be compared: no secrets, nothing of the configuration.
    pub settings: String,
    /// The keeper that holds the process tree; the peer check of the local socket knows its descendants (R-SEC-1).
    pub keeper: crate::native::tree::ProcessId,
}

/// Room for orders: a Turn has at most 1024 results in one batch, so a full channel never holds up the Session for long.
pub const ORDER_CAPACITY: usize = 256;

/// Room for reports: a burst of the Harness is taken in while the Session stores a call.
pub const REPORT_CAPACITY: usize = 1024;

/// An order to an adapter.
#[derive(Debug)]
pub enum Order {
    /// Begin a Turn with this input. Never given while another Turn is not settled.
    Start {
        /// Ordered parts.
        input: Vec<InputPart>,
        /// Stands beside the native input message, so that its arrival can be recognised.
        client_id: String,
    },
    /// Give the result of a call to the Harness.
    Answer {
        /// The call.
        call_id: String,
        /// The result; the adapter renders it (R-FN-9).
        result: FunctionResult,
    },
    /// Add an input to the Turn that runs, behind those before it. It is written once the Harness can take it, and never to another Turn
    /// (R-STE-2).
    Steer {
        /// The input, unique in the Turn.
        input_id: String,
        /// Stands beside the native message, so that its arrival can be recognised.
        client_id: String,
        /// Ordered parts.
        input: Vec<InputPart>,
    },
    /// Stop the Turn: never sent to the Harness before it can take it, and followed by the ladder when the Harness does not obey (R-CAN-4).
    Interrupt,
    /// The Harness was quiet for so long: ask it how the Turn stands, with a bound of the adapter's own, and answer with [`Report::Standing`] in any
    /// case. A Harness that was heard within `quiet` need not be asked (R-EVT-10).
    Ask {
        /// The limit that is over.
        quiet: std::time::Duration,
    },
    /// Stop everything and end with [`Report::Closed`].
    Close,
}

/// A preparation failed; nothing of it is left.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {message}")]
pub struct PrepareError {
    /// Where: `spawn`, `initialize`, `session`, …; a stable name.
    pub step: &'static str,
    /// What happened, for a person, without secrets.
    pub message: String,
    /// False when it could not be proved that everything native is gone.
    pub clean: bool,
    /// What is wrong with the native history that was to be gone on with, where that is the reason.
    pub history: Option<HistoryFault>,
    /// Whether changed instructions may be in the native history, although this failed.
    pub changed_history: bool,
}
