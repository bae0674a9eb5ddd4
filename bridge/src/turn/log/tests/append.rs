//! Writing, and opening what was written.

use std::{fs, io, os::unix::fs::PermissionsExt as _};

use bytes::Bytes;

use super::{Folder, Limits, Log, Record, event, events, front, grow, none, read_to, tiny};
use crate::turn::log::{self, file::HEADER_BYTES};

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
    log.append(&[]).unwrap();
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
    log.append(&[Record::Event { bytes: event(1) }]).unwrap();
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

#[test]
fn a_payload_is_found_by_event_and_part_and_is_no_event() {
    let folder = Folder::new();
    let mut log = folder.log(Limits::default());
    let large = Bytes::from(vec![b'x'; 3 << 20]);
    log.append(&[
        Record::Event { bytes: event(1) },
        payload(0, b"first"),
        Record::Payload { part: 7, bytes: large.clone() },
        Record::Event { bytes: event(2) },
        payload(0, b"third"),
        Record::Event { bytes: event(3) },
    ])
    .unwrap();
    let find = |sequence, part| log::payload(&folder.path(), sequence, part).unwrap();
    assert_eq!(find(2, 0).as_deref(), Some(&b"first"[..]));
    assert_eq!(find(2, 7).as_deref(), Some(&large[..]));
    assert_eq!(find(3, 0).as_deref(), Some(&b"third"[..]));
    for (sequence, part) in [(1, 0), (2, 1), (3, 7), (4, 0)] {
        assert_eq!(find(sequence, part), None, "event {sequence} has no part {part}");
    }
    assert_eq!(folder.recover().1, [(1, event(1)), (2, event(2)), (3, event(3))]);
}

#[test]
fn a_damaged_payload_is_not_given_out() {
    let folder = Folder::new();
    let mut log = folder.log(Limits::default());
    log.append(&[payload(0, b"something"), Record::Event { bytes: event(1) }]).unwrap();
    let mut bytes = fs::read(folder.path()).unwrap();
    let at = bytes.windows(9).position(|window| window == b"something").unwrap();
    bytes[at] = b'S';
    fs::write(folder.path(), bytes).unwrap();
    assert_eq!(log::payload(&folder.path(), 1, 0).unwrap_err().kind(), io::ErrorKind::InvalidData);
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

#[test]
fn a_write_that_the_system_refuses_is_an_error_and_changes_nothing() {
    let folder = Folder::new();
    grow(&mut folder.log(tiny()), 2);
    let before = fs::read(folder.path()).unwrap();
    let mut log = folder.recover().0;
    log.refuse_writes(&folder.path());
    let refused = log.append(&[Record::Event { bytes: event(3) }]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::BADF.raw_os_error()));
    assert_eq!((log.next_sequence(), fs::read(folder.path()).unwrap()), (3, before));
}

#[test]
fn a_torn_end_is_cut_at_every_byte() {
    let folder = Folder::new();
    let mut log = folder.log(Limits::default());
    grow(&mut log, 3);
    let good = fs::metadata(folder.path()).unwrap().len();
    log.append(&[payload(3, b"part"), Record::Event { bytes: event(4) }]).unwrap();
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
        other[at] += 1;
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
    log.append(&batch).unwrap();
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
