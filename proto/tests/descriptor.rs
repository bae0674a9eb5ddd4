//! Every change of a message or an RPC raises the minor version (R-API-1): the descriptors of this version are checked in, without comments.

#![expect(clippy::unwrap_used, reason = "descriptors that cannot be read are a failed test")]

use std::{env, fs, path::PathBuf};

use prost::Message as _;
use prost_types::FileDescriptorSet;

/// Set to write the descriptors of a new version.
const WRITE: &str = "RUNTIME_BRIDGE_WRITE_DESCRIPTORS";

#[test]
fn the_files_say_which_version_they_are() {
    let service = include_str!("../runtime_bridge/v1/runtime.proto");
    assert!(service.contains(&format!("// These files are version {}. ", proto::version::CURRENT)));
}

#[test]
fn the_protocol_is_the_one_that_its_version_stands_for() {
    check(proto::DESCRIPTORS, &format!("{}.bin", proto::version::CURRENT));
}

#[test]
fn so_is_that_of_enrollment() {
    check(proto::enrollment::DESCRIPTORS, &format!("enrollment-{}.bin", proto::enrollment::CURRENT));
}

#[track_caller]
fn check(now: &[u8], released: &str) {
    let mut now = FileDescriptorSet::decode(now).unwrap();
    for file in &mut now.file {
        file.source_code_info = None;
    }
    now.file.sort_by(|a, b| a.name.cmp(&b.name));
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("released").join(released);
    if env::var_os(WRITE).is_some() {
        fs::write(&path, now.encode_to_vec()).unwrap();
    }
    let kept = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; write it with {WRITE}=1", path.display()));
    let kept = FileDescriptorSet::decode(kept.as_slice()).unwrap();
    for (kept, now) in kept.file.iter().zip(&now.file) {
        assert!(
            kept == now,
            "{} has changed: raise the version, then write the descriptors with {WRITE}=1",
            now.name()
        );
    }
    assert_eq!(kept.file.len(), now.file.len(), "files came or went: raise the version");
}
