//! A process that is being talked into a conversation: its lines until it is ready, and its end when it does not get there.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    process::ChildStdout,
    sync::mpsc,
    time::{self, Instant},
};
use tokio_util::task::TaskTracker;

use super::{Native, Owner, Parts, start};
use crate::{
    cleaner::Cleaner,
    harness::{
        HistoryFault, Launch, McpKind, ORDER_CAPACITY, Order, PrepareError, REPORT_CAPACITY, Report, Settings, Timing,
    },
    native::{
        lines::{Line, LineError, LineReader, Spooling},
        lock::Lock,
        process::{self, Control, SpawnError},
        rpc::{EncodeError, Writer},
        tree::ProcessId,
    },
};

/// What a failed preparation waits beyond the grace for everything to be gone.
pub(crate) const END_MARGIN: Duration = Duration::from_secs(2);
/// How long a process that closed its output may take to exit.
const EXIT_WAIT: Duration = Duration::from_millis(500);

/// A process on its way to a conversation.
pub(crate) struct Opening {
    name: &'static str,
    limits: Timing,
    /// How long it may take in all.
    limit: Duration,
    deadline: Instant,
    writer: Writer,
    writers: TaskTracker,
    lines: LineReader<ChildStdout>,
    control: Control,
    keeper: Option<ProcessId>,
    servers: Arc<BTreeSet<String>>,
    pub(crate) cleaner: Cleaner,
    /// Changed instructions are on their way into the history.
    pub(crate) changed_history: bool,
}

/// Why a step failed.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The Harness refused, with this text.
    Refused(String),
    /// The same, of the history that was to be gone on with.
    NoHistory(HistoryFault, String),
    /// It went on with another conversation.
    Other,
    /// It closed its output.
    Ended,
    /// It did not answer in time.
    Late,
    /// It said what it must not say.
    Broken(String),
    /// It is not as it has to be: a text for a person.
    Unfit(String),
}

/// The name of a step of a preparation.
pub(crate) type Step = &'static str;

impl Opening {
    /// Starts the process; it has [`Timing::start`] to get ready, and with MCP servers [`Timing::mcp_start`] more.
    ///
    /// # Errors
    /// When it could not be started. Nothing runs then.
    pub(crate) async fn start(
        name: &'static str,
        settings: &Settings,
        launch: &Launch,
        process: process::Launch,
        is_read: fn(&[u8]) -> bool,
    ) -> Result<Self, SpawnError> {
        let declared = &launch.configuration.mcp_servers;
        let limit =
            settings.limits.start + if declared.is_empty() { Duration::ZERO } else { settings.limits.mcp_start };
        let processes = declared.iter().filter(|server| server.transport.kind() == McpKind::Stdio);
        let servers = Arc::new(processes.map(|server| server.label.clone()).collect());
        let deadline = Instant::now() + limit;
        let process = process::spawn(process)?;
        let keeper = start::keeper(&process.control).await;
        let writers = TaskTracker::new();
        Ok(Self {
            name,
            limits: settings.limits,
            limit,
            deadline,
            writer: Writer::start(process.stdin, &writers),
            writers,
            lines: LineReader::new(process.stdout, settings.max_line_bytes).spooling(Spooling {
                folder: launch.temporary.clone(),
                above: settings.spool_bytes,
                room: settings.long_lines.clone(),
                is_read,
            }),
            control: process.control,
            keeper,
            servers,
            cleaner: Cleaner::new(launch.secrets.clone(), &launch.configuration.provider.base_url),
            changed_history: false,
        })
    }

    /// The next line that is whole.
    pub(crate) async fn line(&mut self) -> Result<Line, Trouble> {
        loop {
            match time::timeout_at(self.deadline, self.lines.next()).await {
                Err(_) => return Err(Trouble::Late),
                Ok(Ok(Some(line))) if line.truncated => {}
                Ok(Ok(Some(line))) => return Ok(line),
                Ok(Ok(None) | Err(LineError::Io(_))) => return Err(Trouble::Ended),
                Ok(Err(error @ (LineError::TooLong { .. } | LineError::Spool(_)))) => {
                    return Err(Trouble::Broken(error.to_string()));
                }
            }
        }
    }

    /// Writes a line.
    pub(crate) fn write(&self, line: Result<Bytes, EncodeError>) -> Result<(), Trouble> {
        let line = line.map_err(|error| Trouble::Broken(error.to_string()))?;
        // A process that closed its input is about to exit; its output says so next.
        let _ = self.writer.try_send(line);
        Ok(())
    }

    /// Ends everything and says what happened.
    pub(crate) async fn fail(mut self, step: Step, trouble: Trouble) -> PrepareError {
        let by_itself = match trouble {
            Trouble::Ended => time::timeout(EXIT_WAIT, self.control.exited()).await.ok(),
            Trouble::Refused(_)
            | Trouble::NoHistory(..)
            | Trouble::Other
            | Trouble::Late
            | Trouble::Broken(_)
            | Trouble::Unfit(_) => None,
        };
        self.writer.close();
        self.control.end();
        let limit = self.limits.term_grace + END_MARGIN;
        let clean = time::timeout(limit, self.control.exited()).await.is_ok();
        let said = self.cleaner.clean_tail(&self.control.stderr_tail());
        let said = if said.is_empty() { String::new() } else { format!("; it said: {said}") };
        let history = match &trouble {
            Trouble::NoHistory(fault, _) => Some(*fault),
            Trouble::Other => Some(HistoryFault::Foreign),
            Trouble::Refused(_) | Trouble::Ended | Trouble::Late | Trouble::Broken(_) | Trouble::Unfit(_) => None,
        };
        let name = self.name;
        let message = match trouble {
            Trouble::Other => format!("{name} went on with another conversation than it was asked for"),
            Trouble::Refused(text) | Trouble::NoHistory(_, text) => {
                format!("{name} refused: {}", self.cleaner.clean(&text))
            }
            Trouble::Ended => match by_itself {
                Some(exit) => format!("{name} ended with {} before it answered{said}", exit.status),
                None => format!("{name} closed its output before it answered{said}"),
            },
            Trouble::Late => format!("{name} did not answer within {} ms{said}", self.limit.as_millis()),
            Trouble::Unfit(text) => self.cleaner.clean(&text),
            Trouble::Broken(what) => format!("{name} broke its protocol: {}", self.cleaner.clean(&what)),
        };
        PrepareError { step, message, clean, history, changed_history: self.changed_history }
    }

    /// Hands the process over to its owner.
    ///
    /// # Errors
    /// When the keeper cannot be told from other processes any more.
    pub(crate) async fn own<N: Native>(
        self,
        native: N,
        lock: Lock,
        package: std::path::PathBuf,
        tasks: &TaskTracker,
    ) -> Result<(mpsc::Sender<Order>, mpsc::Receiver<Report>, ProcessId), PrepareError> {
        // R-SEC-1 needs the keeper as a process that cannot be mistaken for a later one of the same number.
        let Some(keeper) = self.keeper else {
            return Err(self.fail("spawn", Trouble::Broken("the keeper is gone".to_owned())).await);
        };
        let (orders, taken_orders) = mpsc::channel(ORDER_CAPACITY);
        let (given_reports, reports) = mpsc::channel(REPORT_CAPACITY);
        let owner = Owner::new(Parts {
            native,
            timing: self.limits,
            writer: self.writer,
            writers: self.writers,
            lines: self.lines,
            control: self.control,
            cleaner: self.cleaner,
            lock,
            package,
            servers: self.servers,
            orders: taken_orders,
            reports: given_reports,
        });
        tasks.spawn(owner.run());
        Ok((orders, reports, keeper))
    }
}

/// A preparation that failed before anything was started.
pub(crate) fn unstarted(step: Step, message: String) -> PrepareError {
    PrepareError { step, message, clean: true, history: None, changed_history: false }
}
