//! The events of a Turn at work on their way into its log: numbered, encoded, and bounded in bytes (R-EVT-8, R-DUR-4).
//!
//! What goes beyond a bound is not kept but counted: the event that is kept next, or a moment without one, says which are omitted.

use std::{collections::HashMap, sync::Arc, time::Duration};

use adapters::harness::{Failure, FailureCode};
use bytes::Bytes;
use tokio::time::Instant;

use crate::{
    clock,
    turn::{
        event::{Codec, Event, Omitted},
        log::{Front, Kept, Log, Record},
        split::split,
    },
};

/// Between two tries to write what the file did not take.
const STORE_AGAIN: Duration = Duration::from_millis(250);

/// How long a range of omitted events stays unsaid, so that observers see that the Turn goes on.
const SAY_OMITTED: Duration = Duration::from_secs(1);

/// Bounds of one Turn's events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Bytes of the file from which on deltas and tool output are omitted; at twice as many the Turn is given up.
    pub(crate) log_bytes: u64,
    /// Bytes that are held in memory for a file that does not take them, before the Turn is given up.
    pub(crate) held_bytes: usize,
}

/// The events of one Turn.
#[derive(Debug)]
pub(super) struct Recording {
    turn_id: String,
    codec: Arc<dyn Codec>,
    bounds: Bounds,
    log: Log,
    /// Of the last event, omitted ones included.
    last_sequence: u64,
    /// Encoded events that are not in the log yet.
    pending: Vec<Record>,
    pending_bytes: usize,
    omitting: Option<Range>,
    /// Items whose beginning is omitted: nothing is told of them until their end.
    unseen: HashMap<String, Omitted>,
    store_at: Option<Instant>,
}

/// Events that are omitted, and not said to be yet.
#[derive(Debug)]
struct Range {
    first: u64,
    why: Omitted,
    say_at: Instant,
}

/// How long an event is kept when there is too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    /// A later event has it as a whole.
    Partial,
    /// What the Turn tells.
    Content,
    /// What somebody waits for.
    Needed,
}

impl Recording {
    pub(super) fn new(turn_id: String, codec: Arc<dyn Codec>, bounds: Bounds, log: Log) -> Self {
        let last_sequence = log.last_sequence();
        Self {
            turn_id,
            codec,
            bounds,
            log,
            last_sequence,
            pending: Vec::new(),
            pending_bytes: 0,
            omitting: None,
            unseen: HashMap::new(),
            store_at: None,
        }
    }

    pub(super) fn front(&self) -> Front {
        self.log.reader()
    }

    pub(super) fn acknowledge(&self, through: u64) {
        self.log.acknowledge(through);
    }

    pub(super) fn next_sequence(&self) -> u64 {
        self.last_sequence + 1
    }

    pub(super) fn last_sequence(&self) -> u64 {
        self.last_sequence
    }

    /// Takes an event, in several pieces where it is large.
    pub(super) fn emit(&mut self, event: Event) {
        split(event, |event| {
            self.emit_one(&event);
        });
    }

    /// Takes an event and gives its encoding; none when it is omitted.
    pub(super) fn emit_one(&mut self, event: &Event) -> Option<Bytes> {
        if let Some(why) = self.unseen(event).or_else(|| self.too_much(weight(event))) {
            if let Some((item, Step::Opens)) = step(event) {
                self.unseen.insert(item.to_owned(), why);
            }
            self.omit(why);
            return None;
        }
        self.say_omitted();
        self.last_sequence += 1;
        let encoded = self.codec.encode(&self.turn_id, self.last_sequence, clock::now(), event);
        for (part, bytes) in (0u16..).zip(encoded.payloads) {
            self.pending_bytes += bytes.len();
            self.pending.push(Record::Payload { part, bytes: bytes.into() });
        }
        self.pending_bytes += encoded.bytes.len();
        self.pending.push(Record::Event { bytes: encoded.bytes.clone() });
        Some(encoded.bytes)
    }

    /// Puts what is pending into the log, without giving it out; true when all of the log is in the file.
    pub(super) fn write(&mut self) -> bool {
        if !self.pending.is_empty() {
            match self.log.append(&self.pending) {
                Ok(Kept::File | Kept::Memory) => {}
                Ok(Kept::Refused(error)) => self.refused(&error),
                // The batches are whole and in order, so that this says that the code above is wrong.
                Err(error) => tracing::error!(turn_id = self.turn_id, %error, "events of a Turn are not a batch"),
            }
            self.pending.clear();
            self.pending_bytes = 0;
        }
        self.log.unwritten_bytes() == 0
    }

    /// Whether some of the log is in memory alone.
    pub(super) fn is_unwritten(&self) -> bool {
        self.log.unwritten_bytes() > 0
    }

    /// Gives out what is in the log.
    pub(super) fn publish(&self) {
        self.log.publish();
    }

    /// Tries once more to get everything into the file.
    pub(super) fn write_all(&mut self) -> bool {
        self.write() || self.store()
    }

    /// Says that the last event is the terminal.
    pub(super) fn end(&mut self) {
        self.log.end();
    }

    /// The first sequence that the file does not have.
    pub(super) fn first_unwritten(&self) -> u64 {
        self.log.stored_sequence() + 1
    }

    /// Why the Turn cannot go on, when it cannot. `waiting` more bytes wait elsewhere for storage.
    pub(super) fn breach(&self, waiting: usize) -> Option<Failure> {
        let failure = |code, message: &str| Failure { code, message: message.into(), http_status: None, exit: None };
        if self.log.unwritten_bytes() + waiting > self.bounds.held_bytes {
            return Some(failure(FailureCode::StorageUnavailable, "the events of the Turn could not be stored"));
        }
        (self.bytes() > self.bounds.log_bytes.saturating_mul(2))
            .then(|| failure(FailureCode::StreamLimitExceeded, "the Turn wrote more events than may be kept"))
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.omitting.iter().map(|range| range.say_at).chain(self.store_at).min()
    }

    /// Does what is due. What it adds is to be written.
    pub(super) fn overdue(&mut self, now: Instant) {
        if self.omitting.as_ref().is_some_and(|range| range.say_at <= now) {
            self.say_omitted();
        }
        if self.store_at.is_some_and(|at| at <= now) {
            self.store();
        }
    }

    fn store(&mut self) -> bool {
        match self.log.store() {
            Ok(()) => {
                tracing::info!(turn_id = self.turn_id, "the events of a Turn are stored again");
                self.store_at = None;
                true
            }
            Err(error) => {
                self.refused(&error);
                false
            }
        }
    }

    fn refused(&mut self, error: &std::io::Error) {
        if self.store_at.is_none() {
            tracing::error!(turn_id = self.turn_id, %error, "events of a Turn could not be written; they are held in memory");
        }
        self.store_at = Some(Instant::now() + STORE_AGAIN);
    }

    fn bytes(&self) -> u64 {
        self.log.bytes() + self.pending_bytes as u64
    }

    /// Why the beginning of an event's item is omitted, when it is: then so is the rest of it.
    fn unseen(&mut self, event: &Event) -> Option<Omitted> {
        match step(event)? {
            (item, Step::Closes) => self.unseen.remove(item),
            (item, Step::Opens | Step::Grows) => self.unseen.get(item).copied(),
        }
    }

    /// Why an event is not kept, when it is not.
    fn too_much(&self, weight: Weight) -> Option<Omitted> {
        // LIMIT: past a bound what is only a part goes, past twice the bound everything that nobody waits for. The Turn is given up by
        // then, and what still comes until it is settled must not fill the memory or the disk.
        let (held, bound) = (self.log.unwritten_bytes() + self.pending_bytes, self.bounds.held_bytes);
        let is_behind = self.log.unwritten_bytes() > 0;
        if is_behind && weight < kept_from(held as u64, bound as u64) {
            return Some(Omitted::Storage);
        }
        (weight < kept_from(self.bytes(), self.bounds.log_bytes)).then_some(Omitted::LogLimit)
    }

    fn omit(&mut self, why: Omitted) {
        if self.omitting.as_ref().is_some_and(|range| range.why != why) {
            self.say_omitted();
        }
        self.last_sequence += 1;
        let first = self.last_sequence;
        self.omitting.get_or_insert_with(|| Range { first, why, say_at: Instant::now() + SAY_OMITTED });
    }

    /// Says which events are omitted: the statement stands at the last sequence of its range (R-EVT-1).
    pub(super) fn say_omitted(&mut self) {
        let Some(Range { first, why, .. }) = self.omitting.take() else { return };
        let last = self.last_sequence;
        let event = Event::EventsOmitted { first, last, why };
        let bytes = self.codec.encode(&self.turn_id, last, clock::now(), &event).bytes;
        self.pending_bytes += bytes.len();
        self.pending.push(Record::Omission { last, bytes });
    }
}

/// The weight from which on events are kept when there are so many bytes.
fn kept_from(bytes: u64, bound: u64) -> Weight {
    if bytes <= bound {
        Weight::Partial
    } else if bytes <= bound.saturating_mul(2) {
        Weight::Content
    } else {
        Weight::Needed
    }
}

fn weight(event: &Event) -> Weight {
    match (event, step(event)) {
        (_, Some((_, Step::Grows))) => Weight::Partial,
        // What is open is few, and is closed for whoever saw its beginning.
        (_, Some((_, Step::Closes))) => Weight::Needed,
        (_, Some((_, Step::Opens)))
        | (Event::FunctionProgress { .. } | Event::ProviderRetry(_) | Event::Usage(_) | Event::Notice { .. }, None) => {
            Weight::Content
        }
        (_, None) => Weight::Needed,
    }
}

/// What an event does to an item.
#[derive(Clone, Copy, Debug)]
enum Step {
    Opens,
    Grows,
    Closes,
}

fn step(event: &Event) -> Option<(&str, Step)> {
    match event {
        Event::MessageStarted { item, .. } | Event::ReasoningStarted { item, .. } | Event::ToolStarted { item, .. } => {
            Some((item, Step::Opens))
        }
        Event::MessageDelta { item, .. } | Event::ReasoningDelta { item, .. } | Event::ToolOutput { item, .. } => {
            Some((item, Step::Grows))
        }
        Event::MessageCompleted { item, .. }
        | Event::MessageDiscarded { item, .. }
        | Event::ReasoningCompleted { item, .. }
        | Event::ToolCompleted { item, .. } => Some((item, Step::Closes)),
        Event::TurnStarted { .. }
        | Event::FunctionCall { .. }
        | Event::FunctionResultApplied { .. }
        | Event::FunctionCallAbandoned { .. }
        | Event::FunctionProgress { .. }
        | Event::InputWritten { .. }
        | Event::InputAccepted { .. }
        | Event::InputRefused { .. }
        | Event::InputOutcomeUnknown { .. }
        | Event::ProviderRetry(_)
        | Event::Usage(_)
        | Event::Notice { .. }
        | Event::EventsOmitted { .. }
        | Event::TurnEnded(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{
        service::Protobuf,
        turn::{
            event::Discard,
            log::{self, Record as Written},
        },
    };

    /// What a Turn says that is far beyond its bound, and which of it is kept.
    #[test]
    fn past_twice_the_bound_an_item_is_told_of_as_a_whole_or_not_at_all() {
        let folder = std::env::temp_dir().join(format!("recording-{}", uuid::Uuid::now_v7()));
        fs::create_dir(&folder).unwrap();
        let log = Log::create(&folder.join("1.log"), log::Limits::default()).unwrap();
        let bounds = Bounds { log_bytes: 1000, held_bytes: 1000 };
        let mut recording = Recording::new("t".into(), Arc::new(Protobuf), bounds, log);
        let text = |bytes: usize| "x".repeat(bytes);
        let started = |item: &str| Event::MessageStarted { item: item.into(), native: item.into() };
        let delta = |item: &str, bytes| Event::MessageDelta { item: item.into(), text: text(bytes) };
        let completed =
            |item: &str, bytes| Event::MessageCompleted { item: item.into(), text: text(bytes), phase: None };
        let discarded = |item: &str| Event::MessageDiscarded { item: item.into(), reason: Discard::TurnEnded };
        let mut kept = Vec::new();
        for event in [
            started("a"),
            delta("a", 1200),
            // Past the bound.
            delta("a", 10),
            started("b"),
            completed("b", 1200),
            // Past twice the bound.
            started("c"),
            delta("c", 10),
            completed("c", 10),
            completed("a", 10),
            started("d"),
            discarded("d"),
        ] {
            kept.push(recording.emit_one(&event).is_some());
        }
        assert_eq!(kept, [true, true, false, true, true, false, false, false, true, false, false]);
        recording.say_omitted();
        let omissions: Vec<u64> = recording
            .pending
            .iter()
            .filter_map(|record| if let Written::Omission { last, .. } = record { Some(*last) } else { None })
            .collect();
        assert_eq!((omissions, recording.next_sequence()), (vec![3, 8, 11], 12));
        assert!(recording.write());
        assert!(recording.breach(0).is_some_and(|failure| failure.code == FailureCode::StreamLimitExceeded));
        fs::remove_dir_all(&folder).unwrap();
    }
}
