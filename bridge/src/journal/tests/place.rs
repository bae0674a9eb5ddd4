//! Files that are taken away from under a journal that is open.

use std::fs;

use super::{Folder, session};
use crate::journal::Error;

#[tokio::test]
async fn what_went_into_a_moved_file_is_not_acknowledged() {
    for name in ["journal.db", "journal.db-wal"] {
        let folder = Folder::new();
        let journal = folder.journal();
        journal.put_session(session("s-1")).await.unwrap();
        let (here, there) = (folder.0.join(name), folder.0.join("elsewhere"));
        fs::rename(&here, &there).unwrap();
        let refused = journal.put_session(session("s-2")).await.unwrap_err();
        assert!(matches!(&refused, Error::Moved { path } if *path == here) && refused.is_storage(), "{refused}");
        // Another file in its place is not it either.
        fs::write(&here, "other").unwrap();
        assert!(matches!(journal.check().await, Err(Error::Moved { .. })));

        fs::rename(&there, &here).unwrap();
        journal.put_session(session("s-3")).await.unwrap();
        journal.close().await;
        let ids: Vec<_> = folder.journal().sessions().await.unwrap().into_iter().map(|(_, s)| s.session_id).collect();
        assert_eq!(ids, ["s-1", "s-3"], "{name}");
    }
}

#[tokio::test]
async fn a_deleted_file_takes_nothing_more() {
    let folder = Folder::new();
    let journal = folder.journal();
    fs::remove_dir_all(&folder.0).unwrap();
    assert!(matches!(journal.put_session(session("s-1")).await, Err(Error::Moved { .. })));
    journal.close().await;
    assert!(!folder.0.exists());
}
