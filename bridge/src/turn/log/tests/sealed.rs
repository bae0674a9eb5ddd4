//! Readers of a Turn that ended in an earlier process, or whose file is gone.

use std::{fs, io};

use super::{Folder, Front, LONG, Limits, Next, Why, drain, events, front, grow, omission, terminal};

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
