//! The owner of one Executor: a task that reads the process for ever, takes orders, gives reports, and performs what the Turn's state machine
//! asks for. Nothing holds it up but a full channel of reports, and even then it takes orders. What a line means and what is written, the
//! [`Native`] side of it knows.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio::{
    process::ChildStdout,
    sync::mpsc,
    time::{self, Instant},
};
use tokio_util::task::TaskTracker;

use crate::{
    cleaner::Cleaner,
    harness::{BoxFuture, Failure, FailureCode, InputPart, Order, Report, Timing},
    native::{
        lines::{Line, LineError, LineReader},
        lock::Lock,
        process::{self, Control},
        rpc::{SendError, Writer},
        tree::{self, ProcessId, Surplus},
    },
};

pub(crate) use self::{
    inputs::{Answer, Inputs},
    native::{Native, Parts, Skipped},
    opening::{END_MARGIN, Opening, Step, Trouble, unstarted},
    turn::{Event, Manner, Timer, Turn},
};

mod aftermath;
mod inputs;
mod native;
mod opening;
mod standing;
pub(crate) mod start;
mod turn;

use self::turn::Effect;

/// How long ending the surplus may take before everything is ended.
const SURPLUS_LIMIT: Duration = Duration::from_secs(5);
/// How long an idle process may take to leave by itself once its input is closed; it takes less than 100 ms.
const EOF_WAIT: Duration = Duration::from_secs(1);
/// How long output is read after the exit, and an exit waited for after the output's end (R-EVT-7).
const DRAIN: Duration = Duration::from_millis(400);
/// The same in all: what stands in the pipe is read also where the Session takes its time with each report.
const DRAIN_AT_MOST: Duration = Duration::from_secs(10);
/// Between two tries to queue a line for a process that does not read.
const QUEUE_AGAIN: Duration = Duration::from_millis(20);
/// Orders that are taken while the Session does not take reports.
const BACKLOG: usize = 2048;
/// Native turns that are over and whose late messages are known as such.
const PAST: usize = 64;

/// LIMIT: answers that the process was given and has not read, beside those that the Session waits for. Far more than a process asks for at once:
/// one with so many asks and asks, and reads nothing.
const UNREAD: usize = 1024;

/// How many reports are kept for a Turn that has not started.
const EARLY: usize = 16;

/// The owner task's state.
pub(crate) struct Owner<N> {
    pub(crate) native: N,
    pub(crate) cleaner: Cleaner,
    pub(crate) turn: Option<Turn>,
    /// The input of a Turn, until the Harness has taken it.
    pub(crate) input: Option<FirstInput>,
    /// The inputs that are added to the Turn.
    pub(crate) inputs: Inputs,
    pub(crate) skipped: Skipped,
    pub(crate) quiet: standing::Quiet,
    timing: Timing,
    writer: Writer,
    writers: TaskTracker,
    lines: LineReader<ChildStdout>,
    control: Control,
    orders: mpsc::Receiver<Order>,
    /// Orders that were taken while a report waited.
    backlog: VecDeque<Order>,
    /// Nobody gives orders any more.
    orphaned: bool,
    reports: mpsc::Sender<Report>,
    lock: Lock,
    package: PathBuf,
    /// Labels of the declared MCP servers that are processes.
    servers: Arc<BTreeSet<String>>,
    /// Lines on their way into the pipe, with what they carry.
    writes: FuturesUnordered<BoxFuture<'static, Written>>,
    /// How many of them carry nothing that anybody waits for.
    unread: usize,
    /// Work on the process tree; at most one at a time.
    background: Option<BoxFuture<'static, Background>>,
    timers: BTreeMap<Timer, Instant>,
    life: Life,
    /// What descended from the keeper before the Turn.
    before: BTreeSet<ProcessId>,
    /// Said before the native turn has started: `turn_started` is the first of a Turn (R-EVT-2).
    early: Vec<Report>,
    past: VecDeque<String>,
}

/// How far the process is from its end.
#[derive(Debug, Default)]
struct Life {
    /// Its input is closed.
    retiring: bool,
    /// When the keeper is asked for the end.
    end_at: Option<Instant>,
    /// When its end is given up on.
    give_up_at: Option<Instant>,
    /// Its output has ended.
    silent: bool,
    exit: Option<process::Exit>,
    /// Until when output is read after the exit.
    drain_until: Option<Instant>,
    /// The same, however much there is to be read.
    drain_at_most: Option<Instant>,
}

/// The input of a Turn.
pub(crate) struct FirstInput {
    pub(crate) parts: Vec<InputPart>,
    pub(crate) client_id: String,
}

/// What became of a line, and what it carried.
type Written = (Option<Carried>, Result<(), SendError>);

/// What a line carries whose writing is waited for.
#[derive(Debug)]
pub(crate) enum Carried {
    /// The result of this call.
    Result(String),
    /// This input.
    Input(String),
}

enum Background {
    Snapshot(BTreeSet<ProcessId>),
    Surplus(Surplus),
}

/// What happened; `B` is what came on another way than in a line.
enum Happened<B> {
    Ordered(Option<Order>),
    Read(Result<Option<Line>, LineError>),
    Written(Written),
    Done(Background),
    Exited(process::Exit),
    Due,
    Came(B),
}

impl<N: Native> Owner<N> {
    pub(crate) fn new(parts: Parts<N>) -> Self {
        let Parts { native, timing, writer, writers, lines, control, cleaner, lock, package, servers, orders, reports } =
            parts;
        Self {
            native,
            cleaner,
            turn: None,
            input: None,
            inputs: Inputs::default(),
            skipped: Skipped::default(),
            quiet: standing::Quiet::new(),
            timing,
            writer,
            writers,
            lines,
            control,
            orders,
            backlog: VecDeque::new(),
            orphaned: false,
            reports,
            lock,
            package,
            servers,
            writes: FuturesUnordered::new(),
            unread: 0,
            background: None,
            timers: BTreeMap::new(),
            life: Life::default(),
            before: BTreeSet::new(),
            early: Vec::new(),
            past: VecDeque::new(),
        }
    }

    /// Works until the process is gone.
    pub(crate) async fn run(mut self) {
        while !self.is_over() {
            match self.next().await {
                Happened::Ordered(Some(order)) => self.ordered(order).await,
                Happened::Ordered(None) => self.orphan().await,
                Happened::Read(line) => self.read(line).await,
                Happened::Written(written) => self.written(written).await,
                Happened::Done(background) => self.done(background).await,
                Happened::Exited(exit) => {
                    self.life.exit = Some(exit);
                    self.life.drain_at_most = Some(Instant::now() + DRAIN_AT_MOST);
                    // An idle process has nothing to say that anybody waits for.
                    let drain = if self.turn.is_some() { DRAIN } else { Duration::ZERO };
                    self.life.drain_until = Some(Instant::now() + drain);
                }
                Happened::Due => self.due().await,
                Happened::Came(what) => N::came(&mut self, what).await,
            }
        }
        self.close().await;
    }

    /// The process is gone and everything that it wrote is read, or its end is given up on.
    fn is_over(&self) -> bool {
        let now = Instant::now();
        let drained = self.life.silent || self.life.drain_until.is_some_and(|until| until <= now);
        (self.life.exit.is_some() && drained) || self.life.give_up_at.is_some_and(|at| at <= now)
    }

    async fn next(&mut self) -> Happened<N::Beside> {
        if let Some(order) = self.backlog.pop_front() {
            return Happened::Ordered(Some(order));
        }
        if self.orphaned && !self.life.retiring {
            return Happened::Ordered(None);
        }
        let due = self.next_due();
        // CANCEL: each arm keeps what it has when another one wins: channels and the line reader by themselves, the background work because it
        // is only borrowed.
        // ORDER: an interrupt that is there goes before an input that is ready to be written (R-CAN-1), and a flood of lines holds up nothing.
        tokio::select! {
            biased;
            order = self.orders.recv(), if !self.orphaned => Happened::Ordered(order),
            Some(written) = self.writes.next(), if !self.writes.is_empty() => Happened::Written(written),
            done = working(&mut self.background), if self.background.is_some() => {
                self.background = None;
                Happened::Done(done)
            }
            () = time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => Happened::Due,
            exit = self.control.exited(), if self.life.exit.is_none() => Happened::Exited(exit),
            what = self.native.beside() => Happened::Came(what),
            line = self.lines.next(), if !self.life.silent => Happened::Read(line),
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let life = [self.life.end_at, self.life.give_up_at, self.life.drain_until, self.quiet.answer_until];
        let life = life.into_iter().chain([self.native.next_due()]);
        self.timers.values().copied().chain(life.flatten()).min()
    }

    async fn due(&mut self) {
        let now = Instant::now();
        if self.life.end_at.is_some_and(|at| at <= now) {
            self.life.end_at = None;
            self.control.end();
        }
        if self.quiet.answer_until.is_some_and(|at| at <= now) {
            self.silent_standing().await;
        }
        N::due(self, now).await;
        while let Some(timer) = self.timers.iter().find(|(_, at)| **at <= now).map(|(timer, _)| *timer) {
            self.timers.remove(&timer);
            self.feed(Event::Expired(timer)).await;
        }
    }

    async fn ordered(&mut self, order: Order) {
        match order {
            Order::Start { input, client_id } if self.turn.is_none() && !self.life.retiring => {
                self.native.begin();
                self.inputs = Inputs::default();
                self.early.clear();
                self.turn = Some(Turn::new(self.native.manner(), self.timing));
                self.input = Some(FirstInput { parts: input, client_id });
                // What is there before the input is submitted is not of this Turn (R-CAN-2).
                let keeper = self.control.keeper_pid();
                self.background = Some(Box::pin(async move {
                    let snapshot = tokio::task::spawn_blocking(move || tree::descendants(keeper)).await;
                    Background::Snapshot(snapshot.unwrap_or_else(|_| tree::descendants(keeper)))
                }));
            }
            Order::Start { .. } => tracing::error!("a Turn was started on an Executor that is not idle"),
            Order::Answer { call_id, .. } if !self.turn.as_ref().is_some_and(Turn::is_open) => {
                tracing::debug!(%call_id, "a result came after the end of its Turn");
            }
            Order::Answer { call_id, result } => {
                let lines = self.native.answer(&call_id, &result);
                for (index, line) in lines.into_iter().enumerate() {
                    self.write(line, (index == 0).then(|| Carried::Result(call_id.clone())));
                }
            }
            Order::Steer { input_id, client_id, input } => self.steer(input_id, client_id, input),
            Order::Interrupt => {
                self.inputs.stop();
                self.feed(Event::Interrupt).await;
            }
            Order::Ask { quiet } => self.ask_standing(quiet).await,
            Order::Close if self.turn.is_some() => self.feed(Event::Close).await,
            Order::Close => self.retire(EOF_WAIT),
        }
    }

    /// The Session let go of the Executor.
    async fn orphan(&mut self) {
        self.orphaned = true;
        if self.turn.is_some() {
            self.feed(Event::Close).await;
        }
        self.retire(Duration::ZERO);
    }

    async fn written(&mut self, written: Written) {
        self.unread -= usize::from(written.0.is_none());
        match written {
            (Some(Carried::Result(call)), Ok(())) => {
                if let Some(report) = self.native.answer_written(&call) {
                    self.emit(report).await;
                }
            }
            (Some(Carried::Input(input)), Ok(())) => {
                if let Some(report) = self.inputs.written(&input) {
                    self.emit(report).await;
                }
            }
            (None, Ok(())) => {}
            (Some(Carried::Input(input)), Err(SendError::Closed)) => self.inputs.unwritten(&input),
            // The process is going or gone, and its exit ends the Turn.
            (_, Err(error)) => tracing::debug!(%error, "a line was not written"),
        }
    }

    async fn done(&mut self, background: Background) {
        match background {
            Background::Snapshot(before) => {
                self.before = before;
                self.feed(Event::Prepared).await;
            }
            Background::Surplus(Surplus { ended, left }) => {
                if ended + left > 0 {
                    tracing::info!(ended, left, "processes of a Turn were still there after its end");
                }
                self.feed(Event::SurplusEnded { left }).await;
            }
        }
    }

    /// Gives an event to the Turn and performs what it asks for.
    pub(crate) async fn feed(&mut self, event: Event) {
        if matches!(event, Event::Fault(_)) {
            self.inputs.doubt();
        }
        let Some(turn) = &mut self.turn else { return };
        let mut effects = Vec::new();
        if let Err(misfit) = turn.on(event, &mut effects) {
            tracing::debug!(%misfit, "skipped");
            self.skipped.late += 1;
        }
        for effect in effects {
            match effect {
                Effect::Report(report @ Report::Started { .. }) => {
                    self.emit(report).await;
                    for early in std::mem::take(&mut self.early) {
                        self.emit(early).await;
                    }
                    N::write_input(self);
                }
                Effect::Report(report @ (Report::Ended(_) | Report::Proved(_))) => {
                    self.leave_inputs().await;
                    self.emit(report).await;
                }
                Effect::Report(report) => self.emit(report).await,
                Effect::Submit => N::submit(self),
                Effect::Interrupt { native } => N::interrupt(self, &native),
                Effect::Clean => N::clean(self),
                Effect::EndSurplus => {
                    let (keeper, before) = (self.control.keeper_pid(), std::mem::take(&mut self.before));
                    let (package, servers) = (self.package.clone(), Arc::clone(&self.servers));
                    self.background = Some(Box::pin(async move {
                        // A name alone would spare whatever the model starts under it.
                        let kind = |name: &str, id| {
                            let is_helper = N::HELPERS.contains(&name)
                                && tree::program(id).is_some_and(|program| program.starts_with(&package));
                            if is_helper { tree::Kind::Spared } else { tree::of_server(id, keeper, &before, &servers) }
                        };
                        Background::Surplus(tree::end_surplus(keeper, &before, kind, SURPLUS_LIMIT).await)
                    }));
                }
                Effect::Retire => self.retire(self.native.manner().close),
                Effect::Arm(timer, after) => {
                    self.timers.insert(timer, Instant::now() + after);
                }
                Effect::Disarm(timer) => {
                    self.timers.remove(&timer);
                }
            }
        }
        if self.turn.as_ref().is_some_and(Turn::is_settled) {
            self.settled();
        }
    }

    fn settled(&mut self) {
        let native = self.turn.take().and_then(|turn| turn.native().map(str::to_owned));
        if self.past.len() == PAST {
            self.past.pop_front();
        }
        self.past.extend(native);
        self.native.settled();
        self.quiet.answer_until = None;
        self.background = None;
        self.input = None;
        tracing::debug!(skipped = ?self.skipped, "the Turn is settled");
    }

    /// Queues a line behind those before it; one that finds no room is queued as soon as there is.
    pub(crate) fn write(&mut self, line: Bytes, carried: Option<Carried>) {
        let writer = self.writer.clone();
        self.unread += usize::from(carried.is_none());
        let mut notice = writer.send_noticed(line.clone());
        self.writes.push(Box::pin(async move {
            loop {
                match notice.await {
                    Err(SendError::Full) => {
                        time::sleep(QUEUE_AGAIN).await;
                        notice = writer.send_noticed(line.clone());
                    }
                    outcome => return (carried, outcome),
                }
            }
        }));
    }

    /// Closes the input and, after `wait`, has everything ended (R-CAN-4).
    fn retire(&mut self, wait: Duration) {
        let now = Instant::now();
        if !self.life.retiring {
            self.life.retiring = true;
            self.writer.close();
            self.life.give_up_at = Some(now + self.timing.settlement);
        }
        if wait.is_zero() {
            self.life.end_at = None;
            self.control.end();
        } else if self.life.end_at.is_none() {
            self.life.end_at = Some(now + wait);
        }
    }

    /// Gives a report. While the Session does not take it, its orders are taken and kept, so that neither waits for the other.
    pub(crate) async fn emit(&mut self, report: Report) {
        loop {
            tokio::select! {
                biased;
                room = self.reports.reserve() => {
                    // Without a listener the missing orders end the process.
                    if let Ok(room) = room {
                        room.send(report);
                    }
                    return;
                }
                order = self.orders.recv(), if !self.orphaned && self.backlog.len() < BACKLOG => match order {
                    Some(order) => self.backlog.push_back(order),
                    None => self.orphaned = true,
                },
            }
        }
    }

    /// A line was read, or there are no more.
    async fn read(&mut self, line: Result<Option<Line>, LineError>) {
        self.quiet.heard_at = Instant::now();
        match line {
            // Cut by the end of the process: a whole message ends with a newline.
            Ok(Some(line)) if line.truncated => self.skipped.malformed += 1,
            Ok(Some(line)) => {
                N::message(self, &line).await;
                if let (Some(until), Some(most)) = (&mut self.life.drain_until, self.life.drain_at_most) {
                    *until = most.min(Instant::now() + DRAIN);
                }
                if self.unread > UNREAD && !self.life.retiring {
                    let message = format!("{} asks and does not read the answers", self.native.manner().name);
                    let code = FailureCode::HarnessProtocolError;
                    self.feed(Event::Fault(Failure { code, message, http_status: None, exit: None })).await;
                    self.retire(Duration::ZERO);
                }
            }
            Ok(None) | Err(LineError::Io(_)) => self.silence(),
            Err(LineError::Spool(error)) => {
                let message =
                    format!("a long line of {} could not be kept: {}", self.native.manner().name, error.kind());
                let failure = Failure { code: FailureCode::StorageUnavailable, message, http_status: None, exit: None };
                self.feed(Event::Fault(failure)).await;
                self.retire(Duration::ZERO);
            }
            Err(LineError::TooLong { limit }) => {
                let message = format!("{} wrote a line of more than {limit} bytes", self.native.manner().name);
                let failure = Failure { code: FailureCode::LineTooLarge, message, http_status: None, exit: None };
                self.feed(Event::Fault(failure)).await;
                self.retire(Duration::ZERO);
            }
        }
    }

    /// The Session adds an input.
    fn steer(&mut self, input_id: String, client_id: String, input: Vec<InputPart>) {
        if !self.turn.as_ref().is_some_and(Turn::is_open) {
            // The end that was reported says that it is not written.
            return tracing::debug!(%input_id, "an input came after the end of its Turn");
        }
        self.inputs.add(input_id, client_id, input);
        N::write_input(self);
    }

    /// The last word about inputs, before the end is reported.
    async fn leave_inputs(&mut self) {
        for report in self.inputs.leave() {
            self.emit(report).await;
        }
    }

    /// Something could not be read: it may have been the evidence for an input (R-STE-3).
    pub(crate) fn unread(&mut self) {
        self.skipped.malformed += 1;
        self.inputs.doubt();
    }

    /// Something of the native turn was seen: then it has started.
    pub(crate) async fn begun(&mut self, native: &str) {
        if self.turn.as_ref().is_some_and(|turn| !turn.has_started()) {
            self.feed(Event::Started { native: native.to_owned() }).await;
        }
    }

    /// Whether a native turn is over.
    pub(crate) fn is_past(&self, native: &str) -> bool {
        self.past.iter().any(|past| past == native)
    }

    /// Reports of something that may come before the native turn has started, and belongs to no other Turn.
    pub(crate) async fn tell(&mut self, report: Report) {
        match &self.turn {
            Some(turn) if turn.has_started() => self.emit(report).await,
            Some(_) if self.early.len() < EARLY => self.early.push(report),
            Some(_) | None => {}
        }
    }

    /// The output has ended. The process should be gone in a moment; if it is not, it is of no use.
    fn silence(&mut self) {
        self.life.silent = true;
        if self.life.exit.is_none() {
            self.retire(DRAIN);
        }
    }
}

async fn working(background: &mut Option<BoxFuture<'static, Background>>) -> Background {
    match background {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}
