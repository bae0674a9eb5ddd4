//! The log against real files.

mod append;
mod fixture;
mod properties;
mod reading;
mod sealed;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;

use super::{
    FencedBy, Front, Kept, Limits, Log, Next, Omission, Payload, Reader, Record, Recovered, Terminal, Unread, Why,
};

/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(600);

/// A fresh folder of this test beside the test program, which goes when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let program = std::env::current_exe().unwrap();
        let folder = program.parent().unwrap().join(format!("log-{}", uuid::Uuid::now_v7()));
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    fn path(&self) -> PathBuf {
        self.0.join("1.log")
    }

    fn log(&self, limits: Limits) -> Log {
        Log::create(&self.path(), limits).unwrap()
    }

    fn recover(&self) -> (Log, Vec<(u64, Bytes)>, u64) {
        let mut events = Vec::new();
        let each = |sequence, event| events.push((sequence, event));
        let Recovered { log, cut_bytes, .. } = Log::recover(&self.path(), Limits::default(), each).unwrap();
        (log, events, cut_bytes)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// So small that nearly all is read from the file.
fn tiny() -> Limits {
    Limits { memory_bytes: 200, batch_bytes: 400 }
}

/// Nothing stays in memory.
fn none() -> Limits {
    Limits { memory_bytes: 0, ..Limits::default() }
}

fn event(sequence: u64) -> Bytes {
    Bytes::from(format!("event {sequence}"))
}

/// Appends and publishes the next `count` events, each with its own sequence for content.
fn grow(log: &mut Log, count: u64) {
    let next = log.next_sequence();
    let batch: Vec<_> = (next..next + count).map(|sequence| Record::Event { bytes: event(sequence) }).collect();
    put(log, &batch);
    log.publish();
}

/// Appends a batch that the file must take.
#[track_caller]
fn put(log: &mut Log, records: &[Record]) {
    let kept = log.append(records).unwrap();
    assert!(matches!(kept, Kept::File), "{kept:?}");
}

/// All bytes of a part.
async fn read(mut payload: Payload) -> Result<Vec<u8>, Unread> {
    let mut bytes = Vec::new();
    while let Some(piece) = payload.next().await? {
        assert!((1..=256 << 10).contains(&piece.len()), "a piece of {}", piece.len());
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// A part in a file that nobody writes.
async fn part(path: &Path, sequence: u64, part: u16) -> Result<Vec<u8>, Unread> {
    read(front(path, 0, 1_000).payload(sequence, part, 1)).await
}

/// What a reader gave, until it had nothing more to give.
#[derive(Debug, Default, PartialEq, Eq)]
struct Given {
    events: Vec<Bytes>,
    omitted: Vec<Omission>,
    batches: Vec<usize>,
}

/// Reads until the reader ends.
async fn drain(reader: &mut Reader) -> Given {
    let mut given = Given::default();
    loop {
        match reader.next(LONG).await {
            Next::Events { omitted, events, .. } => take(&mut given, omitted, events),
            Next::Ended => return given,
            other => panic!("{other:?}"),
        }
    }
}

/// Reads until the reader has given `sequence`.
async fn read_to(reader: &mut Reader, sequence: u64) -> Given {
    let mut given = Given::default();
    loop {
        match reader.next(LONG).await {
            Next::Events { omitted, events, last_sequence } => {
                take(&mut given, omitted, events);
                assert!(last_sequence <= sequence, "{last_sequence} was not published");
                if last_sequence == sequence {
                    return given;
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

fn take(given: &mut Given, omitted: Option<Omission>, events: Vec<Bytes>) {
    assert!(omitted.is_some() || !events.is_empty(), "an answer says something");
    given.omitted.extend(omitted);
    if !events.is_empty() {
        given.batches.push(events.iter().map(Bytes::len).sum());
    }
    given.events.extend(events);
}

fn events(sequences: std::ops::RangeInclusive<u64>) -> Vec<Bytes> {
    sequences.map(event).collect()
}

fn terminal(sequence: u64) -> Terminal {
    Terminal { sequence, bytes: event(sequence), unwritten: None }
}

fn omission(first: u64, last: u64, why: Why) -> Omission {
    Omission { first, last, why }
}

fn front(path: &Path, acknowledged: u64, last: u64) -> Front {
    Front::from_file(path, acknowledged, terminal(last), Limits::default()).unwrap()
}
