//! Readers of a Turn that runs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::FutureExt as _;
use tokio::task::JoinSet;

use super::{
    FencedBy, Folder, Given, LONG, Limits, Next, Why, drain, event, events, grow, none, omission, read_to, tiny,
};

#[tokio::test]
async fn every_event_is_given_once_from_every_sequence_on() {
    for limits in [Limits::default(), tiny(), none()] {
        let folder = Folder::new();
        let mut log = folder.log(limits);
        for _ in 0..20 {
            grow(&mut log, 10);
        }
        log.end();
        for after in 0..=200 {
            let given = drain(&mut log.reader().open(after, 1)).await;
            assert_eq!(given.events, events(after + 1..=200), "after {after} with {limits:?}");
            assert_eq!(given.omitted, []);
        }
    }
}

#[tokio::test]
async fn a_reader_that_waits_is_given_a_batch_with_one_wake_up() {
    let folder = Folder::new();
    let mut log = folder.log(Limits::default());
    let mut reader = log.reader().open(0, 1);
    let mut next = Box::pin(reader.next(LONG));
    assert!(next.as_mut().now_or_never().is_none());
    grow(&mut log, 3);
    match next.await {
        Next::Events { omitted: None, events: given, last_sequence: 3 } => assert_eq!(given, events(1..=3)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_batch_has_no_more_than_a_message_may_hold() {
    let folder = Folder::new();
    for limits in [Limits { batch_bytes: 400, ..Limits::default() }, Limits { batch_bytes: 400, ..none() }] {
        std::fs::remove_file(folder.path()).ok();
        let mut log = folder.log(limits);
        grow(&mut log, 200);
        let given = read_to(&mut log.reader().open(0, 1), 200).await;
        assert_eq!(given.events, events(1..=200));
        assert!(given.batches.iter().all(|bytes| *bytes <= 400), "{:?}", given.batches);
        assert!(given.batches.len() < 20, "batches are filled: {:?}", given.batches);
    }
}

#[tokio::test]
async fn a_reader_may_begin_above_what_there_is() {
    let folder = Folder::new();
    let mut log = folder.log(Limits::default());
    grow(&mut log, 1);
    let mut reader = log.reader().open(3, 1);
    grow(&mut log, 4);
    log.end();
    assert_eq!(drain(&mut reader).await.events, events(4..=5));
    assert!(matches!(log.reader().open(u64::MAX, 1).next(LONG).await, Next::Ended));
}

#[tokio::test]
async fn a_quiet_reader_says_where_it_stands_when_the_time_is_over() {
    let folder = Folder::new();
    let mut log = folder.log(Limits::default());
    grow(&mut log, 2);
    let mut reader = log.reader().open(0, 1);
    read_to(&mut reader, 2).await;
    for _ in 0..2 {
        let began = Instant::now();
        let keep_alive = Duration::from_millis(20);
        let next = reader.next(keep_alive).await;
        assert!(matches!(next, Next::Idle { last_sequence: 2 }), "{next:?}");
        assert!(began.elapsed() >= keep_alive / 2);
    }
    grow(&mut log, 1);
    assert_eq!(read_to(&mut reader, 3).await.events, events(3..=3));
}

#[tokio::test]
async fn a_dropped_call_neither_loses_an_event_nor_starts_the_wait_anew() {
    let folder = Folder::new();
    let mut log = folder.log(none());
    grow(&mut log, 2);
    // The file is being read when the call is dropped, unless it was read in no time.
    let mut reader = loop {
        let mut reader = log.reader().open(0, 1);
        if reader.next(LONG).now_or_never().is_none() {
            break reader;
        }
    };
    assert_eq!(read_to(&mut reader, 2).await.events, events(1..=2));

    let began = tokio::time::Instant::now();
    let keep_alive = Duration::from_millis(50);
    let mut calls = 0;
    loop {
        calls += 1;
        // Shorter than the keep-alive: only a wait that goes on over calls ever ends.
        match tokio::time::timeout(keep_alive / 5, reader.next(keep_alive)).await {
            Err(_) => assert!(began.elapsed() < LONG),
            Ok(Next::Idle { last_sequence: 2 }) => break,
            Ok(other) => panic!("{other:?}"),
        }
    }
    assert!(calls > 1);
}

#[tokio::test]
async fn a_fence_ends_the_readers_of_lower_epochs_at_once() {
    let folder = Folder::new();
    let mut log = folder.log(Limits::default());
    grow(&mut log, 5);
    let (mut old, mut current) = (log.reader().open(0, 1), log.reader().open(0, 2));
    let mut waiting = log.reader().open(5, 1);
    let mut next = Box::pin(waiting.next(LONG));
    assert!(next.as_mut().now_or_never().is_none());
    log.reader().fence(2, FencedBy::Release);
    log.reader().fence(1, FencedBy::TakeOver);
    assert!(matches!(next.await, Next::Fenced { epoch: 2, by: FencedBy::Release }));
    assert!(
        matches!(old.next(LONG).await, Next::Fenced { epoch: 2, by: FencedBy::Release }),
        "what it has not read is not its to read"
    );
    assert_eq!(read_to(&mut current, 5).await.events, events(1..=5));
    assert!(matches!(log.reader().open(0, 1).next(LONG).await, Next::Fenced { epoch: 2, by: FencedBy::Release }));
}

#[tokio::test]
async fn what_core_has_stored_is_given_as_an_omission() {
    for limits in [Limits::default(), none()] {
        let folder = Folder::new();
        let mut log = folder.log(limits);
        grow(&mut log, 10);
        let mut behind = log.reader().open(3, 1);
        log.acknowledge(6);
        log.acknowledge(2);
        let given = read_to(&mut behind, 10).await;
        assert_eq!(given.omitted, [omission(4, 6, Why::Acknowledged)]);
        assert_eq!(given.events, events(7..=10));
        assert_eq!(read_to(&mut log.reader().open(6, 1), 10).await.omitted, []);

        // More than there is counts as all.
        log.acknowledge(99);
        let mut late = log.reader().open(0, 1);
        let given = read_to(&mut late, 10).await;
        assert_eq!((given.omitted, given.events), (vec![omission(1, 10, Why::Acknowledged)], vec![]));
        grow(&mut log, 1);
        assert_eq!(read_to(&mut late, 11).await.events, events(11..=11));
    }
}

#[tokio::test]
async fn the_terminal_is_given_even_when_it_was_acknowledged() {
    for limits in [Limits::default(), none()] {
        let folder = Folder::new();
        let mut log = folder.log(limits);
        grow(&mut log, 10);
        log.end();
        log.acknowledge(10);
        let given = drain(&mut log.reader().open(0, 1)).await;
        assert_eq!((given.omitted, given.events), (vec![omission(1, 9, Why::Acknowledged)], events(10..=10)));
        let given = drain(&mut log.reader().open(9, 1)).await;
        assert_eq!((given.omitted, given.events), (vec![], events(10..=10)));
        assert_eq!(drain(&mut log.reader().open(10, 1)).await, Given::default());
    }
}

#[tokio::test]
async fn readers_end_after_the_terminal_and_are_lost_without_one() {
    let folder = Folder::new();
    let mut log = folder.log(Limits::default());
    grow(&mut log, 2);
    let (front, mut reader) = (log.reader(), log.reader().open(0, 1));
    drop(log);
    assert_eq!(read_to(&mut reader, 2).await.events, events(1..=2));
    assert!(matches!(reader.next(LONG).await, Next::Lost));

    let (mut log, ..) = folder.recover();
    let mut reader = log.reader().open(1, 1);
    grow(&mut log, 1);
    log.end();
    drop(log);
    assert_eq!(drain(&mut reader).await.events, events(2..=3));
    assert!(matches!(reader.next(LONG).await, Next::Ended));
    assert_eq!(front.last_sequence(), 2);
}

#[tokio::test]
async fn a_file_that_lost_an_event_under_way_is_a_failure_and_no_end() {
    let folder = Folder::new();
    let mut log = folder.log(none());
    grow(&mut log, 3);
    std::fs::OpenOptions::new().write(true).open(folder.path()).unwrap().set_len(30).unwrap();
    match log.reader().open(0, 1).next(LONG).await {
        Next::Failed(error) => assert_eq!(error.kind(), std::io::ErrorKind::InvalidData),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_loses_nothing_for_slow_readers_and_stays_in_its_memory() {
    const COUNT: u64 = 50_000;
    let folder = Folder::new();
    let limits = Limits { memory_bytes: 64 << 10, ..Limits::default() };
    let mut log = folder.log(limits);
    let front = log.reader();
    let most = Arc::new(AtomicUsize::new(0));
    let mut readers = JoinSet::new();
    for slowness in [0, 1, 40] {
        let mut reader = front.open(0, 1);
        let (front, most) = (front.clone(), Arc::clone(&most));
        readers.spawn(async move {
            let mut expected = 0;
            loop {
                match reader.next(LONG).await {
                    Next::Events { omitted: None, events, last_sequence } => {
                        for given in events {
                            expected += 1;
                            assert_eq!(given, event(expected));
                        }
                        assert_eq!(expected, last_sequence);
                    }
                    Next::Ended => return expected,
                    other => panic!("{other:?}"),
                }
                most.fetch_max(front.memory_bytes(), Ordering::Relaxed);
                // Slow by the writer's measure, whatever the machine: it goes on after so many other steps.
                for _ in 0..slowness {
                    tokio::task::yield_now().await;
                }
            }
        });
    }
    for _ in 0..COUNT / 50 {
        grow(&mut log, 50);
        most.fetch_max(front.memory_bytes(), Ordering::Relaxed);
        tokio::task::yield_now().await;
    }
    log.end();
    assert_eq!(readers.join_all().await, [COUNT; 3]);
    assert!(most.load(Ordering::Relaxed) <= limits.memory_bytes);
}
