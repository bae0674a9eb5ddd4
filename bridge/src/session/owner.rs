//! The task that owns one Session. Everything that changes a Session happens here, one message after the other.

use std::{path::PathBuf, sync::Arc, time::Duration};

use adapters::harness::{FailureCode, Report};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc, oneshot},
    time::{Instant, sleep_until},
};

use super::{
    Answer, Command, Front, INBOX, Key, Shared, Snapshot,
    active::Active,
    assignment::{Assignment, Fence},
    executor::{Heard, Prepared, Slot, Unconfirmed},
    idle::Offer,
    past::Past,
    preparation::{Grant, Preparations},
    release::Releasing,
    standing::{Farewell, Stand},
};
use tokio_util::sync::CancellationToken;

use crate::{
    gateway::{Batch, Breach, Called},
    journal::{Placement, SessionRecord, SessionRow},
    refusal::{Reason, Refusal},
    tasks,
    turn::{event::CancelCause, log::Trace, machine},
};

/// Reports that are taken at once; their events are written with one call.
const BATCH: usize = 256;

/// The owner of one Session.
#[derive(Debug)]
pub(super) struct Owner {
    pub(super) shared: Arc<Shared>,
    pub(super) key: Key,
    pub(super) session: Option<Recorded>,
    pub(super) slot: Slot,
    pub(super) preparations: Preparations<Instant>,
    /// Handlers that wait for a preparation.
    pub(super) waiting: Vec<(String, oneshot::Sender<Answer<Grant>>)>,
    pub(super) turn: Option<Active>,
    /// The Turn that ended last, so that it is read without the journal.
    pub(super) past: Option<Past>,
    /// Logs of Turns that are over and are still read.
    pub(super) observed: Vec<Trace>,
    pub(super) release: Option<Releasing>,
    pub(super) internal: mpsc::Sender<Internal>,
    pub(super) stand: Stand,
    /// The Executor among the idle ones of all Sessions.
    pub(super) idle: Option<Offer>,
    /// Who gets the room of the Executor when it is gone.
    pub(super) room_wanted: Option<oneshot::Sender<OwnedSemaphorePermit>>,
    /// Nothing new begins.
    pub(super) drains: bool,
    /// The Turn was not waited for.
    pub(super) is_cut_off: bool,
    /// Set when retention has forgotten the Session: this owner ends, and the next Bind begins another.
    pub(super) forgotten: CancellationToken,
    stopped: bool,
}

/// The Session as the journal has it.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) row: SessionRow,
    pub(super) record: SessionRecord,
}

impl Recorded {
    pub(super) fn assignment(&self) -> Assignment {
        Assignment {
            fence: Fence { assignment_id: self.record.assignment_id.clone(), epoch: self.record.epoch },
            released: self.record.released,
        }
    }
}

/// What tasks of the owner report to it.
#[derive(Debug)]
pub(super) enum Internal {
    /// A preparation's work is over.
    Prepared(Prepared),
    /// The final answer of the Turn of this number is judged, where that was possible.
    Judged { number: u64, verdict: Option<bool> },
    /// The native home was to be removed.
    HomeRemoved(std::io::Result<()>),
    /// Another Session needs the room of an idle Executor.
    MakeRoom(oneshot::Sender<OwnedSemaphorePermit>),
}

/// Starts the owner of a Session and gives its front. `left` names an Executor whose processes an earlier run could not end.
pub(super) fn start(
    shared: &Arc<Shared>,
    key: Key,
    session: Option<(SessionRow, SessionRecord)>,
    left: Option<String>,
) -> Front {
    let slot = left.map_or(Slot::Empty, |executor_id| {
        Slot::Unconfirmed(Unconfirmed::of_earlier_run(
            executor_id,
            Arc::clone(&shared.capacity).try_acquire_owned().ok(),
        ))
    });
    let (front, inbox) = mpsc::channel(INBOX);
    // One preparation, one removal, one judgement and one wish for the room at most are under way.
    let (internal, reports) = mpsc::channel(4);
    let stand = Stand::default();
    let owner = Owner {
        shared: Arc::clone(shared),
        key,
        session: session.map(|(row, record)| Recorded { row, record }),
        slot,
        preparations: Preparations::default(),
        waiting: Vec::new(),
        turn: None,
        past: None,
        observed: Vec::new(),
        release: None,
        internal,
        stand: stand.clone(),
        idle: None,
        room_wanted: None,
        drains: shared.drain.has_begun(),
        is_cut_off: false,
        forgotten: CancellationToken::new(),
        stopped: false,
    };
    owner.tell_standing();
    let forgotten = owner.forgotten.clone();
    drop(tasks::spawn(&shared.tracker, tasks::Kind::Session, owner.run(inbox, reports)));
    Front { inbox: front, stopping: shared.stopping.clone(), stand, forgotten }
}

impl Owner {
    async fn run(mut self, mut inbox: mpsc::Receiver<Command>, mut internal: mpsc::Receiver<Internal>) {
        let stopping = self.shared.stopping.clone();
        let (draining, cut) = (self.shared.drain.begun(), self.shared.drain.cut());
        let _farewell = Farewell { stand: self.stand.clone(), drain: Arc::clone(&self.shared.drain) };
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let deadline = self.next_deadline();
            // Every arm is cancel safe: `recv`, `hear`, `cancelled` and `sleep_until`.
            tokio::select! {
                Some(command) = inbox.recv() => self.command(command).await,
                Some(news) = internal.recv() => self.news(news).await,
                heard = self.slot.hear(&mut batch, BATCH) => match heard {
                    Heard::Reports(count) => self.reports(&mut batch, count).await,
                    Heard::Breach => {
                        self.breached().await;
                        self.follow().await;
                    }
                },
                () = sleep_until(deadline.unwrap_or_else(far)), if deadline.is_some() => self.overdue(Instant::now()).await,
                () = draining.cancelled(), if !self.drains => self.begin_draining(),
                () = cut.cancelled(), if !self.is_cut_off => self.cut_off().await,
                () = stopping.cancelled(), if !self.stopped => self.stopped = true,
            }
            if self.forgotten.is_cancelled() {
                return;
            }
            self.advance_release().await;
            if self.drains && self.turn.is_none() {
                self.close_executor("the bridge drains").await;
            }
            self.note_idle();
            self.tell_standing();
            if self.stopped && self.turn.is_none() && self.slot.is_over() && self.release.is_none() {
                return;
            }
        }
    }

    async fn command(&mut self, command: Command) {
        // A reply that nobody waits for any more changes nothing: what was asked has happened (R-API-8).
        match command {
            Command::Bind { fence, placement, reply } => {
                let answer = self.bind(fence, placement).await;
                if self.session.is_none() {
                    // Nothing is recorded, so nothing is left behind: the next Bind begins anew.
                    self.forgotten.cancel();
                }
                self.answer(reply, answer);
            }
            Command::Release { fence, remove_home, reply } => self.release(fence, remove_home, reply).await,
            Command::Prepare { fence, request, reply } => {
                let answer = self.prepare(&fence, *request).await;
                self.answer(reply, answer);
            }
            Command::UpdateCredential { fence, fresh, reply } => {
                drop(reply.send(self.update_credential(&fence, fresh)));
            }
            Command::ReleasePreparation { fence, handle, reply } => {
                let answer = self.admit(&fence).and_then(|()| self.preparations.release(&handle, Instant::now()));
                self.answer(reply, answer.map(drop));
            }
            Command::Start { fence, request, reply } => {
                let answer = self.start(&fence, request).await;
                self.answer(reply, answer);
            }
            Command::Observe { fence, turn_id, after, reply } => {
                drop(reply.send(self.observe(&fence, &turn_id, after).await));
            }
            Command::Acknowledge { fence, turn_id, through, reply } => {
                drop(reply.send(self.acknowledge(&fence, &turn_id, through).await));
            }
            Command::ReadPayload { fence, turn_id, part, reply } => {
                drop(reply.send(self.read_payload(&fence, &turn_id, part).await));
            }
            Command::Submit { fence, results, reply } => drop(reply.send(self.submit(&fence, results).await)),
            Command::Steer { fence, request, reply } => self.steer(&fence, request, reply).await,
            Command::Progress { fence, report, reply } => drop(reply.send(self.progress(&fence, report).await)),
            Command::Cancel { fence, turn_id, wait, reply } => self.cancel(&fence, &turn_id, wait, reply).await,
            Command::Forget { before, reply } => drop(reply.send(self.forget(before).await)),
            Command::EventsGone { turn_id, reply } => {
                self.forget_events(&turn_id);
                drop(reply.send(Ok(())));
            }
            Command::Get { fence, turn_id, reply } => drop(reply.send(self.get(&fence, &turn_id).await)),
            Command::List { fence, before, limit, reply } => {
                drop(reply.send(self.list(&fence, before, limit).await));
            }
        }
    }

    /// Answers a request that may have changed how the Session stands. Who has the answer finds that in every list.
    fn answer<T>(&mut self, reply: super::Reply<T>, answer: Answer<T>) {
        self.note_idle();
        self.tell_standing();
        drop(reply.send(answer));
    }

    async fn news(&mut self, news: Internal) {
        match news {
            Internal::Prepared(prepared) => self.prepared(prepared).await,
            Internal::Judged { number, verdict } => self.judgement(number, verdict).await,
            Internal::HomeRemoved(result) => self.home_removed(result),
            Internal::MakeRoom(reply) => self.make_room(reply).await,
        }
    }

    /// Checks the fence of a request (R-ASG-1). A Session that was never bound by this caller does not exist for it.
    pub(super) fn admit(&self, fence: &Fence) -> Answer<()> {
        self.recorded()?.assignment().admit(fence)
    }

    pub(super) fn recorded(&self) -> Answer<&Recorded> {
        self.session.as_ref().ok_or_else(no_session)
    }

    /// The folder of this Session.
    pub(super) fn folder(&self) -> PathBuf {
        let name = super::digest::directory(&self.key.principal, &self.key.session_id);
        self.shared.state.join("sessions").join(name)
    }

    /// The file of a Turn.
    pub(super) fn turn_file(&self, number: u64) -> PathBuf {
        self.folder().join("turns").join(format!("{number}.log"))
    }

    pub(super) fn placement(&self) -> Option<&Placement> {
        self.session.as_ref().map(|s| &s.record.placement)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let turn = self.turn.as_ref().and_then(Active::next_deadline);
        [self.preparations.next_expiry(), self.idle_until(), turn].into_iter().flatten().min()
    }

    async fn overdue(&mut self, now: Instant) {
        self.preparations.expire(now);
        self.close_idle(now).await;
        if let Some(turn) = &mut self.turn {
            turn.overdue(now).await;
            if self.stopped && turn.is_unstored() {
                // Nobody has seen its end; the next start finds it in the file, or calls it unknown.
                tracing::error!(turn_id = turn.id(), "the bridge stops before the end of a Turn could be stored");
                self.turn = None;
            }
        }
        self.follow().await;
    }

    /// Takes what the adapter reported.
    async fn reports(&mut self, batch: &mut Vec<Report>, count: usize) {
        if count == 0 {
            // The adapter is gone without a word, so nothing is proved about what it had started.
            batch.push(Report::Closed { exit: None, survivors: 1 });
        }
        // ORDER: a breach is noted before its answer breaks off, and taken before what the Harness makes of that.
        self.breached().await;
        self.tell_batches().await;
        let closed = batch.iter().find_map(|report| match report {
            Report::Closed { survivors, .. } => Some(*survivors),
            _ => None,
        });
        if batch.iter().any(|report| matches!(report, Report::Settled(settlement) if !settlement.reusable)) {
            // Its end follows without an order; until then it takes no other Turn (R-CAN-3).
            self.slot.retiring();
        }
        if let Slot::Live(live) = &self.slot {
            live.access.explain(batch);
        }
        match &mut self.turn {
            Some(turn) => turn.take(batch.drain(..)).await,
            None => batch.clear(),
        }
        self.note_history();
        if let Some(survivors) = closed {
            self.executor_closed(survivors).await;
        }
        self.follow().await;
    }

    /// Fails the Turn whose model provider sent what it may not (R-SEC-5).
    async fn breached(&mut self) {
        if let Some((breach, turn)) = self.slot.take_breach().zip(self.turn.as_mut()) {
            // The provider broke its own protocol there, and nothing was too much.
            let is_flaw = matches!(breach, Breach::Calling(_));
            let code = if is_flaw { FailureCode::ServerError } else { FailureCode::StreamLimitExceeded };
            turn.fail(code, breach.to_string()).await;
        }
    }

    /// Tells the Turn which calls are on their way to the Harness, before what that makes of them (R-FN-10).
    async fn tell_batches(&mut self) {
        let Slot::Live(live) = &self.slot else { return };
        let (batches, configuration) = (live.access.take_batches(), &live.configuration);
        let harness = self.shared.harnesses.get(configuration.harness.as_str());
        let Some((turn, harness)) = self.turn.as_mut().zip(harness).filter(|_| !batches.is_empty()) else { return };
        let is_function = |tool: &str| {
            let name = harness.function_of(tool);
            name.is_some_and(|name| configuration.functions.iter().any(|function| function.name == name))
        };
        let told = |call: Called| (call.call_id, is_function(&call.name));
        let batches = batches.into_iter();
        let batches =
            batches.map(|Batch { id, calls }| machine::Batch { id, calls: calls.into_iter().map(told).collect() });
        turn.batches(batches).await;
    }

    /// Does what follows from a Turn's last step: orders to the adapter, and what its end frees.
    pub(super) async fn follow(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.answer_for_inputs(Instant::now());
            for order in turn.orders() {
                self.slot.order(order);
            }
            if let Some((judge, answer)) = turn.take_answer() {
                let number = turn.number;
                self.begin_judging(number, judge, answer);
            }
        }
        if self.turn.as_ref().is_some_and(Active::is_over)
            && let Some(turn) = self.turn.take()
        {
            self.note_idle();
            self.tell_standing();
            let past = turn.into_past();
            if let Some(front) = past.front.find() {
                self.remember_readers(&front);
            }
            self.past = Some(past);
        }
    }

    async fn cancel(&mut self, fence: &Fence, turn_id: &str, wait: Duration, reply: super::Reply<Snapshot>) {
        if let Err(refusal) = self.admit(fence) {
            return drop(reply.send(Err(refusal)));
        }
        match &mut self.turn {
            Some(turn) if turn.id() == turn_id => {
                match turn.cancel(CancelCause::Requested).await {
                    Ok(()) => turn.wait(Instant::now() + wait, reply),
                    Err(refusal) => drop(reply.send(Err(refusal))),
                }
                self.follow().await;
            }
            Some(_) | None => {
                // A later call tells what is known then (R-CAN-2).
                self.clean_up_again().await;
                let left = self.slot.holds_leftovers();
                drop(reply.send(self.get(fence, turn_id).await.map(|turn| Snapshot { left, ..turn })));
            }
        }
    }
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

pub(super) fn no_session() -> Refusal {
    Refusal::new(Reason::NotFound, "no such Session; bind it first")
        .at("assignment.session_id")
        .with("http_status", 404)
}

pub(super) fn no_turn() -> Refusal {
    Refusal::new(Reason::NotFound, "no such Turn in this Session").at("turn_id").with("http_status", 404)
}
