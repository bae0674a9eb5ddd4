//! Readers of a Turn that ended in an earlier process, or whose file is gone.

use std::{fs, io};

use super::{
    FencedBy, Folder, Front, LONG, Limits, Next, Payload, Record, Unread, Why, drain, event, events, front, grow,
    omission, put, terminal,
};

fn ended(folder: &Folder, count: u64) {
    let mut log = folder.log(Limits::default());
    grow(&mut log, count);
    log.end();
}

#[tokio::test]
async fn an_ended_turn_is_observed_from_its_file() {
    let folder = Folder::new();
    ended(&folder, 300);
    let front = front(&folder.path(), 0, 300);
    assert_eq!(front.last_sequence(), 300);
    for after in [0, 1, 150, 298, 299, 300] {
        let given = drain(&mut front.open(after, 1)).await;
        assert_eq!((given.omitted, given.events), (vec![], events(after + 1..=300)), "after {after}");
    }
}

#[tokio::test]
async fn what_was_acknowledged_of_an_ended_turn_is_an_omission() {
    let folder = Folder::new();
    ended(&folder, 10);
    let given = drain(&mut front(&folder.path(), 4, 10).open(2, 1)).await;
    assert_eq!((given.omitted, given.events), (vec![omission(3, 4, Why::Acknowledged)], events(5..=10)));
    let given = drain(&mut front(&folder.path(), 10, 10).open(0, 1)).await;
    assert_eq!((given.omitted, given.events), (vec![omission(1, 9, Why::Acknowledged)], events(10..=10)));
}

#[tokio::test]
async fn what_a_shortened_file_lacks_is_gone_and_the_terminal_is_not() {
    let folder = Folder::new();
    ended(&folder, 7);
    let end = fs::metadata(folder.path()).unwrap().len();
    fs::OpenOptions::new().write(true).open(folder.path()).unwrap().set_len(end - 1).unwrap();
    let given = drain(&mut front(&folder.path(), 2, 12).open(0, 1)).await;
    let omitted = vec![omission(1, 2, Why::Acknowledged), omission(7, 11, Why::Gone)];
    assert_eq!(given.omitted, omitted);
    assert_eq!(given.events, [events(3..=6), events(12..=12)].concat());

    // All that is there was acknowledged.
    let given = drain(&mut front(&folder.path(), 8, 12).open(0, 1)).await;
    assert_eq!(given.omitted, [omission(1, 8, Why::Acknowledged), omission(9, 11, Why::Gone)]);
    assert_eq!(given.events, events(12..=12));
}

#[tokio::test]
async fn a_deleted_file_leaves_the_terminal() {
    let folder = Folder::new();
    assert!(matches!(
        Front::from_file(&folder.path(), 3, terminal(3), Limits::default()),
        Err(error) if error.kind() == io::ErrorKind::NotFound
    ));
    let front = Front::ended(6, terminal(9));
    assert_eq!(front.last_sequence(), 9);
    let given = drain(&mut front.open(0, 1)).await;
    let omitted = vec![omission(1, 6, Why::Acknowledged), omission(7, 8, Why::Gone)];
    assert_eq!((given.omitted, given.events), (omitted, events(9..=9)));
    assert!(matches!(front.open(9, 1).next(LONG).await, Next::Ended));
    let given = drain(&mut Front::ended(1, terminal(1)).open(0, 1)).await;
    assert_eq!((given.omitted, given.events), (vec![], events(1..=1)));
}

#[tokio::test]
async fn a_file_that_is_deleted_meanwhile_is_read_to_its_end() {
    let folder = Folder::new();
    ended(&folder, 5);
    let front = front(&folder.path(), 0, 5);
    fs::remove_file(folder.path()).unwrap();
    assert_eq!(drain(&mut front.open(0, 1)).await.events, events(1..=5));
}

#[tokio::test]
async fn joining_late_in_a_long_file_needs_many_looks_and_finds_its_place() {
    let folder = Folder::new();
    let limits = Limits { batch_bytes: 1000, ..Limits::default() };
    let mut log = folder.log(limits);
    for _ in 0..100 {
        grow(&mut log, 100);
    }
    log.end();
    let front = Front::from_file(&folder.path(), 0, terminal(10_000), limits).unwrap();
    assert_eq!(drain(&mut front.open(9_900, 1)).await.events, events(9_901..=10_000));
}

async fn gone(mut payload: Payload) -> u64 {
    match payload.next().await {
        Err(Unread::Gone { first_available }) => first_available,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_part_whose_event_is_lost_is_gone() {
    let folder = Folder::new();
    let mut log = folder.log(Limits::default());
    grow(&mut log, 2);
    put(&mut log, &[Record::Omission { last: 9, bytes: event(9) }]);
    grow(&mut log, 1);
    log.end();
    // The file has less than there was: what stands in its place, and what is behind its end.
    let front = front(&folder.path(), 0, 20);
    for (sequence, next) in [(3, 10), (9, 10), (11, 20), (19, 20)] {
        assert_eq!(gone(front.payload(sequence, 0, 1)).await, next, "event {sequence}");
    }
    assert_eq!(gone(Front::ended(0, terminal(20)).payload(2, 0, 1)).await, 20);
}

#[tokio::test]
async fn a_higher_epoch_ends_who_reads_a_part() {
    let folder = Folder::new();
    ended(&folder, 2);
    let front = front(&folder.path(), 0, 2);
    let mut read = front.at_hand(vec![b'x'; 1 << 20].into(), 1);
    assert!(read.next().await.unwrap().is_some());
    front.fence(2, FencedBy::TakeOver);
    for mut late in [read, front.payload(1, 0, 1)] {
        assert!(matches!(late.next().await, Err(Unread::Fenced { epoch: 2, by: FencedBy::TakeOver })));
    }
    assert!(front.at_hand(vec![b'x'].into(), 2).next().await.unwrap().is_some());
}
