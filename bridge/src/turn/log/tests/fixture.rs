//! Files that earlier versions wrote. One is checked in for every version of the format that was ever released.

use std::{fs, path::PathBuf};

use bytes::Bytes;

use super::{Folder, Limits, Record, drain, event, events, front};
use crate::turn::log;

/// With this set the newest file is written anew.
const WRITE: &str = "RUNTIME_BRIDGE_WRITE_FIXTURES";

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/turn/log/fixtures").join(name)
}

/// Three events and two payloads, the last event without its last byte.
fn write(folder: &Folder) -> Vec<u8> {
    let mut log = folder.log(Limits::default());
    let payload = |part, bytes: &'static [u8]| Record::Payload { part, bytes: Bytes::from_static(bytes) };
    log.append(&[
        Record::Event { bytes: event(1) },
        payload(0, b"first part"),
        payload(513, b"second part"),
        Record::Event { bytes: event(2) },
        Record::Event { bytes: event(3) },
    ])
    .unwrap();
    let mut file = fs::read(folder.path()).unwrap();
    file.pop();
    file
}

#[tokio::test]
async fn a_file_of_version_1_is_read() {
    let folder = Folder::new();
    fs::copy(fixture("v1.log"), folder.path()).unwrap();
    assert_eq!(log::payload(&folder.path(), 2, 513).unwrap().as_deref(), Some(&b"second part"[..]));
    assert_eq!(drain(&mut front(&folder.path(), 0, 3).open(0, 1)).await.events, events(1..=3));
    let (log, found, cut_bytes) = folder.recover();
    assert_eq!(found, [(1, event(1)), (2, event(2))]);
    assert_eq!((log.next_sequence(), cut_bytes), (3, 23));
}

#[test]
fn todays_writer_writes_version_1_byte_by_byte() {
    let written = write(&Folder::new());
    if std::env::var_os(WRITE).is_some() {
        fs::write(fixture("v1.log"), &written).unwrap();
    }
    assert_eq!(written, fs::read(fixture("v1.log")).unwrap());
}
