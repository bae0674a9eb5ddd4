//! One observer's way through a Turn's events.

use std::{fs::File, io, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::watch,
    task,
    time::{self, Instant},
};

use super::{
    Batch,
    file::{self, Scan},
    tail::{FencedBy, Found, Mark, Place, Shared},
};

/// A longer wait than this is cut to it, so that no point in time is beyond what a clock can hold.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Gives out the events after a sequence, each once and in order.
#[derive(Debug)]
pub(crate) struct Reader {
    shared: Arc<Shared>,
    mark: watch::Receiver<Mark>,
    epoch: u64,
    /// The last sequence that was given out or stated as omitted.
    after: u64,
    /// Where the file is to be read on.
    place: Option<Place>,
    /// When something was last given out.
    quiet_since: Instant,
}

/// What comes next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Events that have not been given out yet.
    Events {
        /// Stands before the events.
        omitted: Option<Omission>,
        /// The encoded events in order; none when only an omission is to be said.
        events: Vec<Bytes>,
        /// Where the reader now stands: the sequence of the last of the above.
        last_sequence: u64,
    },
    /// There was nothing for as long as asked.
    Idle {
        /// The last sequence that there is.
        last_sequence: u64,
    },
    /// The terminal was given out.
    Ended,
    /// The caller's epoch is over.
    Fenced {
        /// The higher one.
        epoch: u64,
        /// What it did.
        by: FencedBy,
    },
    /// The log was dropped before the Turn's end: the stream is lost and nothing is said about the Turn (R-EVT-11).
    Lost,
    /// The file could not be read. The same may be tried again.
    Failed(io::Error),
}

/// Events that are not given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Omission {
    /// The first.
    pub(crate) first: u64,
    /// The last; a statement about it stands at this sequence (R-EVT-1).
    pub(crate) last: u64,
    /// Why.
    pub(crate) why: Why,
}

/// Why events are not given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Core said that it has stored them.
    Acknowledged,
    /// The file does not have them any more.
    Gone,
    /// The file never took them.
    Unwritten,
}

/// What a look at the file found.
#[derive(Debug)]
struct Look {
    events: Vec<(u64, Bytes)>,
    /// Where to read on.
    place: Place,
    /// No whole record follows.
    is_over: bool,
}

impl Reader {
    pub(super) fn new(shared: Arc<Shared>, after: u64, epoch: u64) -> Self {
        let mark = shared.mark.subscribe();
        Self { shared, mark, epoch, after, place: None, quiet_since: Instant::now() }
    }

    /// What comes next; [`Next::Idle`] once nothing was given out for `keep_alive`.
    ///
    /// Cancel safe: what a dropped call had found is found again.
    pub(crate) async fn next(&mut self, keep_alive: Duration) -> Next {
        let next = loop {
            let mark = *self.mark.borrow_and_update();
            if mark.fence > self.epoch {
                return Next::Fenced { epoch: mark.fence, by: mark.fenced_by };
            }
            let from = self.after.saturating_add(1);
            let acknowledged = if mark.is_ended {
                // The terminal is always given out.
                mark.acknowledged.min(mark.published.saturating_sub(1))
            } else {
                mark.acknowledged
            };
            let omitted =
                (acknowledged >= from).then_some(Omission { first: from, last: acknowledged, why: Why::Acknowledged });
            let from = omitted.map_or(from, |omitted| omitted.last + 1);
            if from <= mark.published {
                match self.collect(from, mark.published, omitted).await {
                    Some(next) => break next,
                    None => continue,
                }
            }
            if let Some(omitted) = omitted {
                break self.give(Some(omitted), Vec::new());
            }
            if mark.is_ended {
                return Next::Ended;
            }
            if mark.is_closed {
                return Next::Lost;
            }
            let quiet_until = self.quiet_since + keep_alive.min(LONGEST_WAIT);
            // A changed mark and a deadline may both be waited for again.
            if let Ok(changed) = time::timeout_at(quiet_until, self.mark.changed()).await {
                // The sender lives as long as `shared` does.
                if changed.is_err() {
                    return Next::Lost;
                }
                continue;
            }
            break Next::Idle { last_sequence: mark.published };
        };
        self.quiet_since = Instant::now();
        next
    }

    /// Events from `from` on. `None` when the file was read without finding one yet.
    async fn collect(&mut self, from: u64, published: u64, omitted: Option<Omission>) -> Option<Next> {
        let (start, last) = match self.shared.find(from, published, self.place) {
            Found::Memory(batch) => return Some(self.give(omitted, batch.events)),
            Found::File { from: start, last } => (start, last),
        };
        let look = match self.look(start, from, last).await {
            Ok(look) => look,
            Err(error) => return Some(Next::Failed(error)),
        };
        self.place = Some(look.place);
        if !look.events.is_empty() {
            return Some(self.give(omitted, look.events));
        }
        if !look.is_over {
            return None;
        }
        let Some(unwritten) = self.shared.sealed else {
            return Some(Next::Failed(file::invalid(format!("event {from} is not in the log"))));
        };
        let why = if from >= unwritten { Why::Unwritten } else { Why::Gone };
        // What is acknowledged is said first, on its own.
        let gone = omitted.unwrap_or(Omission { first: from, last, why });
        Some(self.give(Some(gone), Vec::new()))
    }

    /// Reads the file from `start` for events from `from` to `last`, off the runtime's threads.
    async fn look(&self, start: Place, from: u64, last: u64) -> io::Result<Look> {
        let shared = Arc::clone(&self.shared);
        // A call that is dropped leaves behind one read of bounded size, which nobody needs to wait for.
        task::spawn_blocking(move || match &shared.file {
            Some((_, file)) => look(file, start, from, last, shared.limits.batch_bytes),
            None => Ok(Look { events: Vec::new(), place: start, is_over: true }),
        })
        .await
        .map_err(io::Error::other)?
    }

    fn give(&mut self, omitted: Option<Omission>, events: Vec<(u64, Bytes)>) -> Next {
        let last = events.last().map(|(sequence, _)| *sequence);
        self.after = last.or(omitted.map(|omitted| omitted.last)).unwrap_or(self.after);
        let events = events.into_iter().map(|(_, event)| event).collect();
        Next::Events { omitted, events, last_sequence: self.after }
    }
}

fn look(file: &File, start: Place, from: u64, last: u64, batch_bytes: usize) -> io::Result<Look> {
    let mut batch = Batch::new(batch_bytes);
    let mut scan = Scan::new(file, start.offset)?;
    let mut place = start;
    let mut is_over = false;
    loop {
        let Some(head) = scan.next()? else {
            is_over = true;
            break;
        };
        if head.sequence > last {
            is_over = true;
            break;
        }
        if head.kind.is_event() && head.sequence >= from {
            if !batch.events.is_empty() && !scan.is_at_hand(&head) {
                break;
            }
            let Some(event) = scan.content(&head)? else {
                is_over = true;
                break;
            };
            if !batch.offer(head.sequence, &event) {
                break;
            }
        }
        place = Place { sequence: head.sequence + u64::from(head.kind.is_event()), offset: head.end };
        // What is read in vain is bounded as well: the caller looks again from here.
        let is_enough = batch.events.is_empty() && head.end - start.offset > batch_bytes as u64;
        if is_enough || (head.sequence == last && head.kind.is_event()) {
            break;
        }
    }
    Ok(Look { events: batch.events, place, is_over })
}
