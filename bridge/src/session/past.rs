//! Turns that are over, from memory or from the journal.

use bytes::Bytes;

use super::{
    Answer, Fence, PartOf, Snapshot,
    owner::{Owner, no_turn},
    storage,
};
use crate::{
    clock,
    journal::{EndRecord, InputRecord, TurnRecord, TurnRow},
    refusal::{Reason, Refusal},
    turn::{
        calls::{Digest, Known},
        event::Native,
        inputs::{self, InputState},
        log::{self, FencedBy, Front, Terminal, Trace},
        machine::Phase,
    },
};

/// A Turn that is over.
#[derive(Debug)]
pub(super) struct Past {
    pub(super) row: TurnRow,
    pub(super) number: u64,
    pub(super) content: Digest,
    /// Its events, while somebody observes them.
    pub(super) front: Trace,
    /// The same, where memory alone has the last of them.
    pub(super) held: Option<Front>,
    pub(super) snapshot: Snapshot,
    pub(super) lost: Lost,
}

/// What is not there any more of a Turn's events, but for the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// As far as the journal knows, everything is there.
    Nothing,
    /// From this sequence on nothing reached the file.
    From(u64),
    /// Retention has removed the file (R-DUR-4).
    All,
}

impl Past {
    pub(super) fn from_record(record: TurnRecord) -> Option<Self> {
        let EndRecord { ended, last_sequence, usage, .. } = record.end?;
        let native = record.native_session_id.zip(record.native_turn_id);
        let snapshot = Snapshot {
            turn_id: record.start.turn_id,
            phase: Phase::Ended,
            required: Vec::new(),
            inputs: record.inputs.iter().map(input_state).collect(),
            last_sequence,
            acknowledged: record.acknowledged,
            usage,
            native: native.map(|(session_id, turn_id)| Native { session_id, turn_id }),
            ended: Some(Bytes::from(ended)),
            cancel_requested: record.cancel_cause.as_deref() == Some("requested"),
            created_at: clock::from_millis(record.start.created_ms),
            left: true,
        };
        Some(Self {
            row: record.row,
            number: record.start.number,
            content: record.start.content,
            front: Trace::default(),
            held: None,
            snapshot,
            lost: match (record.events_gone, record.unwritten) {
                (true, _) => Lost::All,
                (false, 0) => Lost::Nothing,
                (false, first) => Lost::From(first),
            },
        })
    }

    fn terminal(&self) -> Terminal {
        let unwritten = if let Lost::From(first) = self.lost { Some(first) } else { None };
        let bytes = self.snapshot.ended.clone().unwrap_or_default();
        Terminal { sequence: self.snapshot.last_sequence, bytes, unwritten }
    }

    /// The first event that is kept; the terminal always is.
    fn first_kept(&self) -> u64 {
        let last = self.snapshot.last_sequence;
        if self.lost == Lost::All { last } else { last.min(self.snapshot.acknowledged + 1) }
    }

    /// Events that Core has not acknowledged may have been removed: who asks for them is told.
    fn check_kept(&self, after: u64) -> Answer<()> {
        let last = self.snapshot.last_sequence;
        let is_gone = self.lost == Lost::All && after.max(self.snapshot.acknowledged) + 1 < last;
        if is_gone { Err(events_gone(last)) } else { Ok(()) }
    }

    fn open(&self, file: &std::path::Path, limits: log::Limits) -> std::io::Result<Front> {
        match Front::from_file(file, self.snapshot.acknowledged, self.terminal(), limits) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Ok(Front::ended(self.snapshot.acknowledged, self.terminal()))
            }
            // Like one that is found at a start.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                log::put_aside(file, &error)?;
                Ok(Front::ended(self.snapshot.acknowledged, self.terminal()))
            }
            opened => opened,
        }
    }
}

/// An input as the journal has it.
pub(super) fn input_state(of: &InputRecord) -> InputState {
    let phase = inputs::Phase::of(&of.phase, of.detail.as_deref());
    InputState { input_id: of.input_id.clone(), content: of.hash, phase, bytes: 0 }
}

/// What is asked for is not kept any more.
pub(crate) fn events_gone(first_available: u64) -> Refusal {
    Refusal::new(Reason::EventsGone, "these events of the Turn are not kept any more")
        .with("first_available", first_available)
}

impl Owner {
    /// A Turn that is over.
    pub(super) async fn past(&mut self, turn_id: &str) -> Answer<&mut Past> {
        if self.past.as_ref().is_none_or(|past| past.snapshot.turn_id != turn_id) {
            let row = self.recorded()?.row;
            let record = self.shared.journal.turn(row, turn_id).await.map_err(|error| storage(&error))?;
            self.past = Some(record.and_then(Past::from_record).ok_or_else(no_turn)?);
        }
        self.past.as_mut().ok_or_else(no_turn)
    }

    /// The state of a Turn.
    pub(super) async fn get(&mut self, fence: &Fence, turn_id: &str) -> Answer<Snapshot> {
        self.admit(fence)?;
        match &self.turn {
            Some(turn) if turn.id() == turn_id => Ok(turn.snapshot()),
            Some(_) | None => Ok(self.past(turn_id).await?.snapshot.clone()),
        }
    }

    /// A reader of a Turn's events.
    pub(super) async fn observe(&mut self, fence: &Fence, turn_id: &str, after: u64) -> Answer<log::Reader> {
        self.admit(fence)?;
        let front = match &self.turn {
            Some(turn) if turn.id() == turn_id => turn.front(),
            Some(_) | None => {
                self.past(turn_id).await?.check_kept(after)?;
                self.past_front(turn_id).await?
            }
        };
        if after > front.last_sequence() {
            return Err(Refusal::invalid("after_sequence", "the Turn has no such event yet")
                .with("last_sequence", front.last_sequence()));
        }
        if self.turn.as_ref().is_none_or(|turn| turn.id() != turn_id) {
            self.remember_readers(&front);
        }
        Ok(front.open(after, fence.epoch))
    }

    /// Keeps in mind that a Turn which is over may be read.
    pub(super) fn remember_readers(&mut self, front: &Front) {
        let trace = front.trace();
        self.observed.retain(|log| log.find().is_some() && !log.is(&trace));
        self.observed.push(trace);
    }

    /// Fences whoever reads events of the Session under a lower epoch, also those of Turns that are over (R-ASG-2).
    pub(super) fn fence_readers(&mut self, epoch: u64, by: FencedBy) {
        if let Some(turn) = &mut self.turn {
            turn.fence(epoch, by);
        }
        let ended = self.observed.drain(..).filter_map(|log| log.find());
        ended.for_each(|front| front.fence(epoch, by));
    }

    /// A large part of an event or of a call (R-API-7).
    pub(super) async fn read_payload(
        &mut self,
        fence: &Fence,
        turn_id: &str,
        part: Answer<PartOf>,
    ) -> Answer<log::Payload> {
        self.admit(fence)?;
        let (row, first_kept, front) = match &self.turn {
            Some(turn) if turn.id() == turn_id => (turn.row, turn.acknowledged() + 1, turn.front()),
            Some(_) | None => {
                let past = self.past(turn_id).await?;
                let (row, first_kept) = (past.row, past.first_kept());
                (row, first_kept, self.past_front(turn_id).await?)
            }
        };
        if self.turn.as_ref().is_none_or(|turn| turn.id() != turn_id) {
            self.remember_readers(&front);
        }
        let unknown = || Refusal::new(Reason::NotFound, "the Turn has no such part").at("payload_id");
        match part? {
            PartOf::Event(sequence, _) if sequence > front.last_sequence() => Err(unknown()),
            PartOf::Event(sequence, _) if sequence < first_kept => Err(events_gone(first_kept)),
            PartOf::Event(sequence, part) => Ok(front.payload(sequence, part, fence.epoch)),
            PartOf::Call(call_id) => {
                let call = self.shared.journal.call(row, &call_id).await.map_err(|error| storage(&error))?;
                let arguments = call.ok_or_else(unknown)?.start.arguments;
                Ok(front.at_hand(arguments.into_bytes().into(), fence.epoch))
            }
        }
    }

    async fn past_front(&mut self, turn_id: &str) -> Answer<Front> {
        let number = self.past(turn_id).await?.number;
        let (file, limits) = (self.turn_file(number), self.shared.limits.log);
        let past = self.past(turn_id).await?;
        match past.held.clone().or_else(|| past.front.find()) {
            Some(front) => Ok(front),
            None => {
                let front = past.open(&file, limits).map_err(|error| {
                    tracing::error!(turn_id, %error, "the events of a Turn cannot be read");
                    Refusal::new(Reason::StorageUnavailable, "the events of the Turn cannot be read")
                })?;
                past.front = front.trace();
                Ok(front)
            }
        }
    }

    /// Records what Core has stored; an ended Turn whose events are all stored needs its file no more (R-DUR-4).
    pub(super) async fn acknowledge(&mut self, fence: &Fence, turn_id: &str, through: u64) -> Answer<u64> {
        self.admit(fence)?;
        let beyond = |last: u64| {
            Err(Refusal::invalid("through_sequence", "the Turn has no such event yet").with("last_sequence", last))
        };
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.id() == turn_id) {
            let last = turn.front().last_sequence();
            return if through > last { beyond(last) } else { turn.acknowledge(through).await };
        }
        let journal = self.shared.journal.clone();
        let past = self.past(turn_id).await?;
        let last = past.snapshot.last_sequence;
        if through > last {
            return beyond(last);
        }
        journal.acknowledge(past.row, through).await.map_err(|error| storage(&error))?;
        past.snapshot.acknowledged = past.snapshot.acknowledged.max(through);
        match &past.held {
            Some(held) => held.acknowledge(through),
            // Opened anew at the next observation, with what is acknowledged now.
            None => past.front = Trace::default(),
        }
        let (acknowledged, number) = (past.snapshot.acknowledged, past.number);
        if acknowledged == last
            && let Err(error) = log::let_go(&self.turn_file(number))
        {
            tracing::warn!(turn_id, %error, "an acknowledged file could not be removed; it is tried again");
        }
        Ok(acknowledged)
    }

    /// What is known of a call of a Turn that is over.
    pub(super) async fn known_past(&mut self, turn_id: &str, call_id: &str) -> Answer<Option<(TurnRow, Known)>> {
        let (row, cancelled) = match self.past(turn_id).await {
            Ok(past) => (past.row, past.snapshot.cancel_requested),
            Err(refusal) if refusal.reason == Reason::NotFound => return Ok(None),
            Err(refusal) => return Err(refusal),
        };
        let call = self.shared.journal.call(row, call_id).await.map_err(|error| storage(&error))?;
        Ok(call.map(|call| (row, Known { stored: call.result.map(|r| r.hash), cancelled, closed: true })))
    }
}
