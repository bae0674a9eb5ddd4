//! Writing, and opening what was written.

use std::{fs, io, os::unix::fs::PermissionsExt as _};

use bytes::Bytes;

use super::{
    Folder, Kept, Limits, Log, Record, Unread, event, events, front, grow, none, part, put, read, read_to, tiny,
};
use crate::turn::log::file::HEADER_BYTES;

fn payload(part: u16, bytes: &'static [u8]) -> Record {
    Record::Payload { part, bytes: Bytes::from_static(bytes) }
}

#[tokio::test]
async fn sequences_begin_at_one_and_have_no_holes() {
    let folder = Folder::new();
    let mut log = folder.log(Limits::default());
    assert_eq!((log.next_sequence(), log.last_sequence()), (1, 0));
    grow(&mut log, 3);
    assert_eq!((log.next_sequence(), log.last_sequence()), (4, 3));
    put(&mut log, &[]);
    assert_eq!(log.next_sequence(), 4);
}

#[test]
fn only_this_user_may_read_a_log_and_none_is_overwritten() {
    let folder = Folder::new();
    let _log = folder.log(Limits::default());
    assert_eq!(fs::metadata(folder.path()).unwrap().permissions().mode() & 0o777, 0o600);
    let refused = Log::create(&folder.path(), Limits::default()).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
}

#[test]
fn what_is_appended_is_in_the_file_before_it_is_published() {
    let folder = Folder::new();
    let mut log = folder.log(Limits::default());
    put(&mut log, &[Record::Event { bytes: event(1) }]);
    assert_eq!(log.reader().last_sequence(), 0);
    assert_eq!(folder.recover().1, [(1, event(1))]);
    log.publish();
    assert_eq!(log.reader().last_sequence(), 1);
}

#[tokio::test]
async fn a_log_goes_on_after_its_last_event() {
    let folder = Folder::new();
    let mut log = folder.log(Limits::default());
    grow(&mut log, 100);
    drop(log);
    let (mut log, found, cut_bytes) = folder.recover();
    assert_eq!(cut_bytes, 0);
    assert_eq!(found, (1..=100).map(|sequence| (sequence, event(sequence))).collect::<Vec<_>>());
    assert_eq!(log.next_sequence(), 101);
    grow(&mut log, 10);
    let given = read_to(&mut log.reader().open(0, 1), 110).await;
    assert_eq!(given.events, events(1..=110));
}

#[tokio::test]
async fn a_payload_is_found_by_event_and_part_and_is_no_event() {
    let folder = Folder::new();
    let mut log = folder.log(Limits::default());
    let large = Bytes::from(vec![b'x'; 3 << 20]);
    put(
        &mut log,
        &[
            Record::Event { bytes: event(1) },
            payload(0, b"first"),
            Record::Payload { part: 7, bytes: large.clone() },
            Record::Event { bytes: event(2) },
            payload(0, b"third"),
            Record::Event { bytes: event(3) },
        ],
    );
    log.publish();
    for (sequence, number, want) in [(2, 0, &b"first"[..]), (2, 7, &large[..]), (3, 0, b"third")] {
        assert_eq!(part(&folder.path(), sequence, number).await.unwrap(), want);
        assert_eq!(read(log.reader().payload(sequence, number, 1)).await.unwrap(), want, "while the Turn runs");
    }
    for (sequence, number) in [(1, 0), (2, 1), (3, 7), (1000, 0)] {
        let absent = part(&folder.path(), sequence, number).await.unwrap_err();
        assert!(matches!(absent, Unread::Absent), "event {sequence} has no part {number}: {absent:?}");
    }
    assert_eq!(folder.recover().1, [(1, event(1)), (2, event(2)), (3, event(3))]);
}

#[tokio::test]
async fn a_damaged_payload_is_not_given_out() {
    let folder = Folder::new();
    let mut log = folder.log(Limits::default());
    put(&mut log, &[payload(0, b"something"), Record::Event { bytes: event(1) }]);
    let mut bytes = fs::read(folder.path()).unwrap();
    let at = bytes.windows(9).position(|window| window == b"something").unwrap();
    bytes[at] = b'S';
    fs::write(folder.path(), bytes).unwrap();
    let damaged = part(&folder.path(), 1, 0).await.unwrap_err();
    assert!(matches!(&damaged, Unread::Failed(error) if error.kind() == io::ErrorKind::InvalidData), "{damaged:?}");
}

#[test]
fn a_payload_needs_its_event() {
    let folder = Folder::new();
    let mut log = folder.log(Limits::default());
    let refused = log.append(&[Record::Event { bytes: event(1) }, payload(0, b"lost")]).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(log.next_sequence(), 1);
}

#[test]
fn nothing_follows_the_terminal() {
    let folder = Folder::new();
    let mut log = folder.log(Limits::default());
    grow(&mut log, 1);
    log.end();
    assert_eq!(log.append(&[Record::Event { bytes: event(2) }]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

#[tokio::test]
async fn after_a_failed_write_the_log_goes_on_as_if_it_had_not_been_tried() {
    let folder = Folder::new();
    let mut log = folder.log(none());
    grow(&mut log, 2);
    let before = fs::read(folder.path()).unwrap();
    // As after a write of whole records that failed in the end, with a file that could not be cut.
    let ghost = [event(3), event(4)].map(|bytes| Record::Event { bytes });
    log.fail_after(&ghost);
    assert!(fs::read(folder.path()).unwrap().len() > before.len());
    grow(&mut log, 1);
    let (recovered, found, cut_bytes) = folder.recover();
    assert_eq!((found.len(), cut_bytes), (3, 0), "the second record of the failed write did not come back");
    assert_eq!(recovered.next_sequence(), 4);
    assert_eq!(read_to(&mut log.reader().open(0, 1), 3).await.events, events(1..=3));
}

#[tokio::test]
async fn what_the_system_refuses_is_given_out_from_memory_and_written_later() {
    let folder = Folder::new();
    let mut log = folder.log(tiny());
    grow(&mut log, 50);
    let before = fs::read(folder.path()).unwrap();
    log.refuse_writes(&folder.path());
    let mut present = log.reader().open(0, 1);
    let refused = log.append(&[payload(2, b"part"), Record::Event { bytes: event(51) }]).unwrap();
    let Kept::Refused(error) = refused else { panic!("{refused:?}") };
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::BADF.raw_os_error()));
    for sequence in 52..=99 {
        let kept = log.append(&[Record::Event { bytes: event(sequence) }]).unwrap();
        assert!(matches!(kept, Kept::Memory), "it is tried again when it is asked for: {kept:?}");
    }
    log.store().unwrap_err();
    log.publish();
    assert_eq!((log.last_sequence(), log.stored_sequence(), fs::read(folder.path()).unwrap()), (99, 50, before));
    assert_eq!(log.unwritten_bytes(), 4 + events(51..=99).concat().len());
    assert_eq!(read_to(&mut present, 99).await.events, events(1..=99), "half from the file, half from memory");
    assert_eq!(read(log.reader().payload(51, 2, 1)).await.unwrap(), b"part");

    log.allow_writes(&folder.path());
    log.store().unwrap();
    assert_eq!((log.unwritten_bytes(), log.stored_sequence()), (0, 99));
    assert!(log.reader().memory_bytes() <= tiny().memory_bytes);
    grow(&mut log, 1);
    assert_eq!(read_to(&mut log.reader().open(0, 1), 100).await.events, events(1..=100));
    assert_eq!(read(log.reader().payload(51, 2, 1)).await.unwrap(), b"part");
    assert_eq!(folder.recover().1.len(), 100);
}

#[test]
fn a_file_that_lacks_events_is_marked_until_it_has_them() {
    let folder = Folder::new();
    let mut log = folder.log(Limits::default());
    let mode = || fs::metadata(folder.path()).unwrap().permissions().mode() & 0o777;
    let is_lacking = || Log::recover(&folder.path(), Limits::default(), |_, _| ()).unwrap().is_lacking;
    grow(&mut log, 2);
    assert_eq!((mode(), is_lacking()), (0o600, false));
    log.refuse_writes(&folder.path());
    for sequence in 3..=4 {
        log.append(&[Record::Event { bytes: event(sequence) }]).unwrap();
        assert_eq!((mode(), is_lacking()), (0o700, true), "before event {sequence} is given out");
    }
    log.store().unwrap_err();
    assert_eq!((mode(), is_lacking()), (0o700, true));
    log.allow_writes(&folder.path());
    log.store().unwrap();
    assert_eq!((mode(), is_lacking()), (0o600, false));
}

#[tokio::test]
async fn an_omission_stands_for_its_whole_range() {
    for limits in [Limits::default(), none()] {
        let folder = Folder::new();
        let mut log = folder.log(limits);
        grow(&mut log, 2);
        put(&mut log, &[Record::Omission { last: 9, bytes: event(9) }, Record::Event { bytes: event(10) }]);
        log.publish();
        for (after, want) in [(0, [events(1..=2), events(9..=10)].concat()), (5, events(9..=10)), (9, events(10..=10))]
        {
            assert_eq!(read_to(&mut log.reader().open(after, 1), 10).await.events, want, "after {after}");
        }
        let refused = log.append(&[Record::Omission { last: 10, bytes: event(10) }]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        log.end();
        drop(log);
        let given = super::drain(&mut front(&folder.path(), 0, 10).open(0, 1)).await;
        assert_eq!((given.omitted, given.events), (vec![], [events(1..=2), events(9..=10)].concat()));
        let (log, found, cut_bytes) = folder.recover();
        assert_eq!(found.iter().map(|(sequence, _)| *sequence).collect::<Vec<_>>(), [1, 2, 9, 10]);
        assert_eq!((log.last_sequence(), cut_bytes), (10, 0));
    }
}

#[test]
fn a_torn_end_is_cut_at_every_byte() {
    let folder = Folder::new();
    let mut log = folder.log(Limits::default());
    grow(&mut log, 3);
    let good = fs::metadata(folder.path()).unwrap().len();
    put(&mut log, &[payload(3, b"part"), Record::Event { bytes: event(4) }]);
    drop(log);
    let whole = fs::read(folder.path()).unwrap();
    for length in usize::try_from(good).unwrap()..whole.len() {
        fs::write(folder.path(), &whole[..length]).unwrap();
        let (log, found, cut_bytes) = folder.recover();
        assert_eq!((found.len(), log.next_sequence()), (3, 4), "cut at {length}");
        assert_eq!(cut_bytes, length as u64 - good);
        assert_eq!(fs::metadata(folder.path()).unwrap().len(), good);
    }
}

#[test]
fn a_log_whose_making_was_interrupted_is_empty() {
    let folder = Folder::new();
    drop(folder.log(Limits::default()));
    let header = fs::read(folder.path()).unwrap();
    for length in 0..header.len() {
        fs::write(folder.path(), &header[..length]).unwrap();
        let (log, found, cut_bytes) = folder.recover();
        assert_eq!((found.len(), log.next_sequence(), cut_bytes), (0, 1, length as u64));
        assert_eq!(fs::read(folder.path()).unwrap(), header);
    }
}

#[test]
fn a_file_that_is_no_log_of_a_known_version_is_left_alone() {
    let folder = Folder::new();
    drop(folder.log(Limits::default()));
    let header = fs::read(folder.path()).unwrap();
    for at in [0, 4] {
        let mut other = header.clone();
        other[at] += 9;
        other.extend_from_slice(b"more");
        fs::write(folder.path(), &other).unwrap();
        let refused = Log::recover(&folder.path(), Limits::default(), |_, _| {}).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        assert_eq!(fs::read(folder.path()).unwrap(), other);
    }
}

#[tokio::test]
async fn a_large_event_is_given_out_whole_and_alone() {
    let folder = Folder::new();
    let mut log = folder.log(Limits::default());
    let large = Bytes::from(vec![b'x'; 3 << 20]);
    let batch = [event(1), large.clone(), event(3)].map(|bytes| Record::Event { bytes });
    put(&mut log, &batch);
    log.publish();
    let given = read_to(&mut log.reader().open(0, 1), 3).await;
    assert_eq!(given.events, [event(1), large, event(3)]);
    assert_eq!(given.batches, [7, 3 << 20, 7]);
    log.end();
    drop(log);
    let given = super::drain(&mut front(&folder.path(), 0, 3).open(0, 1)).await;
    assert_eq!(given.batches, [7, 3 << 20, 7]);
    assert!(fs::metadata(folder.path()).unwrap().len() > HEADER_BYTES);
}
