//! Files that earlier versions wrote. One is checked in for every version of the format that was ever released.

use std::{fs, path::PathBuf};

use bytes::Bytes;

use super::{Folder, Limits, Record, drain, event, events, front, part, put};

/// With this set the newest file is written anew.
const WRITE: &str = "RUNTIME_BRIDGE_WRITE_FIXTURES";

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/turn/log/fixtures").join(name)
}

/// Three events, two payloads and an omission, the last event without its last byte.
fn write(folder: &Folder) -> Vec<u8> {
    let mut log = folder.log(Limits::default());
    let payload = |part, bytes: &'static [u8]| Record::Payload { part, bytes: Bytes::from_static(bytes) };
    put(
        &mut log,
        &[
            Record::Event { bytes: event(1) },
            payload(0, b"first part"),
            payload(513, b"second part"),
            Record::Event { bytes: event(2) },
            Record::Omission { last: 9, bytes: event(9) },
            Record::Event { bytes: event(10) },
        ],
    );
    let mut file = fs::read(folder.path()).unwrap();
    file.pop();
    file
}

#[tokio::test]
async fn a_file_of_version_1_is_read() {
    let folder = Folder::new();
    fs::copy(fixture("v1.log"), folder.path()).unwrap();
    assert_eq!(part(&folder.path(), 2, 513).await.unwrap(), b"second part");
    assert_eq!(drain(&mut front(&folder.path(), 0, 3).open(0, 1)).await.events, events(1..=3));
    let (log, found, cut_bytes) = folder.recover();
    assert_eq!(found, [(1, event(1)), (2, event(2))]);
    assert_eq!((log.next_sequence(), cut_bytes), (3, 23));
}

#[tokio::test]
async fn a_file_of_version_2_is_read() {
    let folder = Folder::new();
    fs::copy(fixture("v2.log"), folder.path()).unwrap();
    assert_eq!(part(&folder.path(), 2, 513).await.unwrap(), b"second part");
    let given = drain(&mut front(&folder.path(), 0, 10).open(0, 1)).await;
    assert_eq!(given.events, [events(1..=2), events(9..=10)].concat());
    let (log, found, cut_bytes) = folder.recover();
    assert_eq!(found, [(1, event(1)), (2, event(2)), (9, event(9))]);
    assert_eq!((log.next_sequence(), cut_bytes), (10, 24));
}

#[test]
fn todays_writer_writes_version_2_byte_by_byte() {
    let written = write(&Folder::new());
    if std::env::var_os(WRITE).is_some() {
        fs::write(fixture("v2.log"), &written).unwrap();
    }
    assert_eq!(written, fs::read(fixture("v2.log")).unwrap());
}

#[test]
fn a_file_of_version_1_goes_on_as_one_of_version_2() {
    let folder = Folder::new();
    fs::copy(fixture("v1.log"), folder.path()).unwrap();
    let (mut log, ..) = folder.recover();
    put(&mut log, &[Record::Omission { last: 5, bytes: event(5) }]);
    assert_eq!(fs::read(folder.path()).unwrap()[4], 2, "an older daemon would take the omission for damage");
    assert_eq!(folder.recover().0.last_sequence(), 5);
}
