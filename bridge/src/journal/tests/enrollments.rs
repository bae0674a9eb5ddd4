//! The records of a relay.

use super::Folder;
use crate::journal::{
    Enrolled, Enrollments, Error, Journal, Renewed, Standing,
    enrollments::{EnvironmentRecord, RevokedRecord},
};

const KEY: [u8; 32] = [1; 32];
const OTHER: [u8; 32] = [2; 32];

#[tokio::test]
async fn a_token_is_used_once_and_an_answer_may_be_asked_for_again() {
    let folder = Folder::new();
    let records = Enrollments::open(&folder.path()).unwrap();
    records.put_token([7; 32], "env", 100).await.unwrap();
    let enroll = |token: u8, of: &'static str, key: [u8; 32], now: i64| {
        let records = records.clone();
        async move { records.enroll([token; 32], of, key, now, 1000).await.unwrap() }
    };
    assert_eq!(enroll(8, "env", KEY, 1).await, Enrolled::Foreign);
    assert_eq!(enroll(7, "other", KEY, 1).await, Enrolled::OtherEnvironment);
    assert_eq!(enroll(7, "env", KEY, 100).await, Enrolled::Expired);
    assert_eq!(enroll(7, "env", KEY, 99).await, Enrolled::Now);
    // Also when its time is over: the key is enrolled, and nobody else gets anything.
    assert_eq!(enroll(7, "env", KEY, 500).await, Enrolled::Again);
    assert_eq!(enroll(7, "env", OTHER, 1).await, Enrolled::Used);
    records.put_token([9; 32], "env", 100).await.unwrap();
    assert_eq!(enroll(9, "env", OTHER, 1).await, Enrolled::OtherKey);
    assert_eq!(records.standing("env", KEY).await.unwrap(), Standing::Enrolled);
    assert_eq!(records.standing("env", OTHER).await.unwrap(), Standing::Unknown);
    assert_eq!(records.standing("other", KEY).await.unwrap(), Standing::Unknown);
    records.close().await;
}

#[tokio::test]
async fn what_is_revoked_stays_so_and_the_environment_can_enroll_anew() {
    let folder = Folder::new();
    let records = Enrollments::open(&folder.path()).unwrap();
    for token in [7, 8] {
        records.put_token([token; 32], "env", 100).await.unwrap();
    }
    assert_eq!(records.enroll([7; 32], "env", KEY, 1, 1000).await.unwrap(), Enrolled::Now);
    assert_eq!(records.renew("env", KEY, 2000).await.unwrap(), Renewed::Yes);
    assert_eq!(records.renew("env", OTHER, 2000).await.unwrap(), Renewed::No(Standing::Unknown));
    let revoked = records.revoke("env").await.unwrap();
    assert_eq!(revoked, RevokedRecord { is_known: true, was_enrolled: true, tokens: 1 });
    let nothing = records.revoke("none").await.unwrap();
    assert_eq!(nothing, RevokedRecord { is_known: false, was_enrolled: false, tokens: 0 });
    assert_eq!(records.renew("env", KEY, 2000).await.unwrap(), Renewed::No(Standing::Revoked));
    // The token that was not used is void, and the key is known as revoked whatever token it brings.
    assert_eq!(records.enroll([8; 32], "env", OTHER, 1, 1000).await.unwrap(), Enrolled::Foreign);
    assert_eq!(records.enroll([7; 32], "env", KEY, 1, 1000).await.unwrap(), Enrolled::Revoked);
    records.put_token([9; 32], "env", 100).await.unwrap();
    assert_eq!(records.enroll([9; 32], "env", KEY, 1, 1000).await.unwrap(), Enrolled::Revoked);
    assert_eq!(records.enroll([9; 32], "env", OTHER, 1, 3000).await.unwrap(), Enrolled::Now);
    let listed = records.environments(1).await.unwrap();
    let want = EnvironmentRecord {
        environment_id: "env".into(),
        is_enrolled: true,
        is_invited: false,
        not_after_ms: Some(3000),
    };
    assert_eq!(listed, [want]);
    records.close().await;
    // They are no journal of a bridge.
    assert!(matches!(Journal::open(&folder.path()), Err(Error::Corrupt(_))));
    let again = Enrollments::open(&folder.path()).unwrap();
    assert_eq!(again.standing("env", KEY).await.unwrap(), Standing::Revoked);
    again.close().await;
}

/// With this set the newest file is written anew.
const WRITE: &str = "RUNTIME_BRIDGE_WRITE_FIXTURES";

#[tokio::test]
async fn a_file_of_the_first_schema_opens_and_todays_writer_fills_it_in_the_same_way() {
    let fixture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/journal/fixtures/relay-v1.db");
    let folder = Folder::new();
    let records = Enrollments::open(&folder.path()).unwrap();
    records.put_token([7; 32], "env", 100).await.unwrap();
    records.put_token([8; 32], "other", 100).await.unwrap();
    records.enroll([7; 32], "env", KEY, 1, 1000).await.unwrap();
    let want = records.environments(1).await.unwrap();
    records.close().await;
    if std::env::var_os(WRITE).is_some() {
        std::fs::copy(folder.path(), &fixture).unwrap();
    }
    let folder = Folder::new();
    std::fs::copy(fixture, folder.path()).unwrap();
    let kept = Enrollments::open(&folder.path()).unwrap();
    assert_eq!(kept.environments(1).await.unwrap(), want);
    assert_eq!(kept.standing("env", KEY).await.unwrap(), Standing::Enrolled);
    kept.close().await;
}
