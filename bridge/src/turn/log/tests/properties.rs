//! Whatever the sizes, the bounds and the moments: each event once and in order, and any beginning of a file is a
//! beginning of its events.

use std::{fs, ops::Range};

use bytes::Bytes;
use proptest::{collection, prelude::*};

use super::{Folder, Limits, Log, Next, Record};

/// The events of one batch, by their sizes, each with the size of a payload before it.
type Sizes = Vec<(usize, Option<usize>)>;

fn batches() -> impl Strategy<Value = Vec<Sizes>> {
    let size = prop_oneof![8 => 0..300usize, 1 => 60_000..70_000usize, 1 => 250_000..300_000usize];
    let payload = proptest::option::weighted(0.2, 0..5_000usize);
    collection::vec(collection::vec((size, payload), 0..6), 1..12)
}

fn content(sequence: u64, size: usize) -> Bytes {
    let seed = u8::try_from(sequence % 251).unwrap();
    Bytes::from(vec![seed; size])
}

/// Appends a batch, publishes it, and notes its events.
fn append(log: &mut Log, sizes: &Sizes, written: &mut Vec<Bytes>) {
    let mut records = Vec::new();
    for (sequence, (size, payload)) in (log.next_sequence()..).zip(sizes) {
        if let Some(size) = payload {
            records.push(Record::Payload { part: 1, bytes: content(sequence + 1, *size) });
        }
        let bytes = content(sequence, *size);
        written.push(bytes.clone());
        records.push(Record::Event { bytes });
    }
    super::put(log, &records);
    log.publish();
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// A reader that comes and goes while the log grows, from the memory or from the file.
    #[test]
    fn a_reader_that_reconnects_sees_each_event_once(
        batches in batches(),
        memory_bytes in prop_oneof![Just(0), 0..1_000usize, 0..600_000usize],
        batch_bytes in 1..300_000usize,
        patience in 1..4usize,
    ) {
        block_on(async move {
            let folder = Folder::new();
            let mut log = folder.log(Limits { memory_bytes, batch_bytes });
            let (mut written, mut given) = (Vec::new(), Vec::new());
            let mut batches = batches.iter();
            loop {
                // As far as it comes with its patience, then it is gone; the log grows; another joins.
                let mut reader = log.reader().open(given.len() as u64, 1);
                for _ in 0..patience {
                    if given.len() == written.len() {
                        break;
                    }
                    match reader.next(super::LONG).await {
                        Next::Events { omitted: None, events, last_sequence } => {
                            let bytes: usize = events.iter().map(Bytes::len).sum();
                            assert!(bytes <= batch_bytes || events.len() == 1, "{bytes} in {}", events.len());
                            given.extend(events);
                            assert_eq!(last_sequence, given.len() as u64);
                        }
                        other => panic!("{other:?}"),
                    }
                }
                match batches.next() {
                    Some(sizes) => append(&mut log, sizes, &mut written),
                    None if given.len() == written.len() => break,
                    None => {}
                }
            }
            assert_eq!(given, written);
            assert!(log.reader().memory_bytes() <= memory_bytes);
        });
    }

    /// Cut anywhere, the file opens to the events that are whole in it, and goes on.
    #[test]
    fn any_beginning_of_a_file_opens_to_a_beginning_of_its_events(
        batches in batches(),
        cut in any::<prop::sample::Index>(),
        garbage in collection::vec(any::<u8>(), 0..40),
    ) {
        let folder = Folder::new();
        let mut log = folder.log(Limits::default());
        let mut written = Vec::new();
        for sizes in &batches {
            append(&mut log, sizes, &mut written);
        }
        drop(log);
        let mut file = fs::read(folder.path()).unwrap();
        file.truncate(cut.index(file.len() + 1));
        let length = file.len();
        if length >= 16 {
            file.extend_from_slice(&garbage);
        }
        fs::write(folder.path(), &file).unwrap();

        let (mut log, found, cut_bytes) = folder.recover();
        let count = found.len();
        prop_assert_eq!(found, numbered(&written, 0..count));
        prop_assert_eq!(log.last_sequence(), count as u64);
        let mut expected = written[..count].to_vec();
        append(&mut log, &vec![(10, Some(10))], &mut expected);
        drop(log);
        let (_, found, cut_again) = folder.recover();
        prop_assert_eq!(found, numbered(&expected, 0..count + 1));
        prop_assert_eq!(cut_again, 0);
        if length >= 16 && file.len() as u64 == 16 + cut_bytes {
            prop_assert_eq!(count, 0, "all behind the header was cut");
        }
    }

    /// A changed byte is found: what stands before it is given, it and what follows is not.
    #[test]
    fn a_changed_byte_ends_the_log_there(sizes in collection::vec((0..50usize, Just(None)), 1..8), at in any::<prop::sample::Index>(), by in 1..=255u8) {
        let folder = Folder::new();
        let mut log = folder.log(Limits::default());
        let mut written = Vec::new();
        append(&mut log, &sizes, &mut written);
        drop(log);
        let mut file = fs::read(folder.path()).unwrap();
        let at = 16 + at.index(file.len() - 16);
        file[at] = file[at].wrapping_add(by);
        fs::write(folder.path(), &file).unwrap();
        let mut end = 16;
        let whole = written.iter().take_while(|event| {
            end += 17 + event.len();
            end <= at
        }).count();
        let (_, found, _) = folder.recover();
        prop_assert_eq!(found, numbered(&written, 0..whole));
    }
}

fn numbered(events: &[Bytes], range: Range<usize>) -> Vec<(u64, Bytes)> {
    events[range].iter().zip(1..).map(|(event, sequence)| (sequence, event.clone())).collect()
}
