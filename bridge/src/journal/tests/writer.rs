//! The thread: what is committed together, and what undoes what.

use std::sync::mpsc;

use tokio::task::JoinSet;

use super::{Folder, begin, call, session};
use crate::journal::{Error, Journal, SessionRecord};

/// Holds the writer up until the sender is dropped. The set has the task that asked for it.
async fn hold(journal: &Journal) -> (mpsc::SyncSender<()>, JoinSet<()>) {
    let (release, released) = mpsc::sync_channel::<()>(1);
    let (holds, held) = tokio::sync::oneshot::channel();
    let journal = journal.clone();
    let mut asking = JoinSet::new();
    asking.spawn(async move {
        let holding = journal.run(move |_| {
            let _held = holds.send(());
            let _released = released.recv();
            Ok(())
        });
        holding.await.unwrap();
    });
    held.await.unwrap();
    (release, asking)
}

#[tokio::test]
async fn writers_that_wait_together_share_a_commit() {
    let folder = Folder::new();
    let journal = folder.journal();
    let (release, _holding) = hold(&journal).await;
    let before = journal.commits();
    let mut writers = JoinSet::new();
    for n in 0..64 {
        let journal = journal.clone();
        writers.spawn(async move { journal.put_session(session(&format!("s-{n}"))).await.unwrap() });
    }
    // Every writer has its place in the queue once it has been polled.
    tokio::task::yield_now().await;
    drop(release);
    let rows = writers.join_all().await;
    assert_eq!(rows.len(), 64);
    let commits = journal.commits() - before;
    assert!(commits < 64, "{commits} commits for 64 writes");
    assert_eq!(journal.sessions().await.unwrap().len(), 64);
}

#[tokio::test]
async fn an_operation_that_fails_does_not_undo_its_neighbours() {
    let folder = Folder::new();
    let journal = folder.journal();
    let (_, turn) = begin(&journal).await;
    let (release, _holding) = hold(&journal).await;
    let doubtful = |id: &'static str| {
        let journal = journal.clone();
        async move { journal.insert_call(turn, call(id)).await }
    };
    // Half of an operation is done before it fails.
    let half = journal.run(|connection| {
        connection.execute("UPDATE session SET epoch = 99", ())?;
        Err::<(), _>(Error::Misfit("on purpose".to_owned()))
    });
    let release = async move { drop(release) };
    let (first, again, half, second, ()) =
        tokio::join!(doubtful("c-1"), doubtful("c-1"), half, doubtful("c-2"), release);
    first.unwrap();
    assert!(matches!(again, Err(Error::Misfit(_))));
    assert!(matches!(half, Err(Error::Misfit(_))));
    second.unwrap();
    assert_eq!(journal.calls_of(turn).await.unwrap().len(), 2);
    assert_eq!(journal.sessions().await.unwrap()[0].1.epoch, 1);
}

#[tokio::test]
async fn a_transaction_that_sqlite_ends_fails_for_all_and_the_next_one_works() {
    let folder = Folder::new();
    let journal = folder.journal();
    let (release, _holding) = hold(&journal).await;
    // The way that a full disk ends a transaction: from under the operation.
    let ended = journal.run(|connection| {
        connection.execute_batch("ROLLBACK")?;
        Err::<(), _>(Error::Closed)
    });
    let release = async move { drop(release) };
    let (before, ended, after, ()) =
        tokio::join!(journal.put_session(session("s-1")), ended, journal.put_session(session("s-2")), release);
    assert!(before.is_err() && ended.is_err() && after.is_err());
    assert_eq!(journal.sessions().await.unwrap(), []);
    journal.put_session(session("s-1")).await.unwrap();
}

#[tokio::test]
async fn a_full_disk_is_said_and_has_no_effect() {
    let folder = Folder::new();
    let journal = folder.journal();
    journal.put_session(session("s-1")).await.unwrap();
    journal
        .run(|connection| {
            let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0))?;
            // The setting is answered with the limit that holds.
            connection.pragma_update_and_check(None, "max_page_count", pages, |row| row.get::<_, i64>(0))?;
            Ok(())
        })
        .await
        .unwrap();
    let large = SessionRecord { assignment_id: "a".repeat(1 << 16), ..session("s-2") };
    let refused = journal.put_session(large).await.unwrap_err();
    assert!(matches!(refused, Error::Full(_)), "{refused:?}");
    assert!(refused.is_storage());
    assert_eq!(journal.sessions().await.unwrap().len(), 1);
}

#[tokio::test]
async fn an_operation_whose_caller_left_is_carried_out() {
    let folder = Folder::new();
    let journal = folder.journal();
    let (release, _holding) = hold(&journal).await;
    let mut asked = Box::pin(journal.put_session(session("s-1")));
    tokio::select! {
        biased;
        _ = &mut asked => panic!("the writer is held up"),
        () = tokio::task::yield_now() => {}
    }
    drop(asked);
    drop(release);
    assert_eq!(journal.sessions().await.unwrap().len(), 1);
}
