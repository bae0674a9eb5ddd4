//! Lists of Sessions and of Turns, page by page. Listing a Session starts no owner for it.

use std::{ops::Bound, time::SystemTime};

use super::{
    Answer, ExecutorState, Fence, Key, Registry, Snapshot, owner::Owner, past::Past, standing::Standing, storage,
};
use crate::{
    clock,
    journal::{Placement, SessionRow},
};

/// Which Sessions are asked for.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    /// Those of this principal; of all when absent.
    pub(crate) principal: Option<String>,
    /// Those with this id; all when absent.
    pub(crate) session_id: Option<String>,
}

impl Scope {
    pub(super) fn has(&self, key: &Key) -> bool {
        self.principal.as_ref().is_none_or(|principal| *principal == key.principal)
            && self.session_id.as_ref().is_none_or(|session_id| *session_id == key.session_id)
    }

    /// Where the first Session of the scope can stand.
    fn begin(&self) -> Key {
        Key {
            principal: self.principal.clone().unwrap_or_default(),
            session_id: self.session_id.clone().filter(|_| self.principal.is_some()).unwrap_or_default(),
        }
    }

    /// Whether no Session behind this one is in the scope.
    pub(super) fn is_behind(&self, key: &Key) -> bool {
        self.principal.as_ref().is_some_and(|principal| {
            key.principal != *principal
                || self.session_id.as_ref().is_some_and(|session_id| key.session_id > *session_id)
        })
    }
}

/// One Session of a list.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) key: Key,
    pub(crate) assignment_id: String,
    pub(crate) epoch: u64,
    pub(crate) released: bool,
    pub(crate) placement: Placement,
    pub(crate) executor: ExecutorState,
    pub(crate) running_turn_id: Option<String>,
    pub(crate) native_session_id: Option<String>,
    pub(crate) last_activity: Option<SystemTime>,
    row: SessionRow,
}

impl Listed {
    fn of(key: &Key, standing: &Standing) -> Option<Self> {
        let (row, record) = standing.session.as_ref()?;
        Some(Self {
            key: key.clone(),
            assignment_id: record.assignment_id.clone(),
            epoch: record.epoch,
            released: record.released,
            placement: record.placement.clone(),
            executor: standing.executor,
            running_turn_id: standing.turn.as_ref().map(|turn| turn.turn_id.clone()),
            native_session_id: None,
            last_activity: None,
            row: *row,
        })
    }
}

/// Some Sessions.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) sessions: Vec<Listed>,
    /// Whether there are more behind them.
    pub(crate) has_more: bool,
}

/// Some Turns of a Session, newest first, each with its number.
#[derive(Debug)]
pub(crate) struct TurnsPage {
    pub(crate) turns: Vec<(u64, Snapshot)>,
    /// Whether there are older ones.
    pub(crate) has_more: bool,
}

impl Registry {
    /// The Sessions of a scope behind one of them, or from the first, in the order of their keys.
    pub(crate) async fn list(&self, scope: &Scope, after: Option<Key>, limit: usize) -> Answer<Page> {
        let begin = after.map_or_else(|| Bound::Included(scope.begin()), Bound::Excluded);
        let mut sessions = self.each(scope, begin, limit + 1, Listed::of);
        let has_more = sessions.len() > limit;
        sessions.truncate(limit);
        let rows = sessions.iter().map(|listed| listed.row).collect();
        let last = self.shared().journal.last_turns(rows).await.map_err(|error| storage(&error))?;
        for (listed, last) in sessions.iter_mut().zip(last) {
            listed.native_session_id = last.native_session_id;
            listed.last_activity = last.active_ms.map(clock::from_millis);
        }
        Ok(Page { sessions, has_more })
    }
}

impl Owner {
    /// The Turns of the Session before a number, or from the newest.
    pub(super) async fn list(&mut self, fence: &Fence, before: Option<u64>, limit: usize) -> Answer<TurnsPage> {
        self.admit(fence)?;
        let row = self.recorded()?.row;
        let found = self.shared.journal.turns_before(row, before, limit + 1).await.map_err(|error| storage(&error))?;
        let has_more = found.len() > limit;
        let mut turns = Vec::with_capacity(found.len().min(limit));
        for record in found.into_iter().take(limit) {
            let number = record.start.number;
            match &self.turn {
                Some(turn) if turn.id() == record.start.turn_id => turns.push((number, turn.snapshot())),
                Some(_) | None => turns.extend(Past::from_record(record).map(|past| (number, past.snapshot))),
            }
        }
        Ok(TurnsPage { turns, has_more })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeMap, HashMap},
        path::PathBuf,
        sync::Arc,
        time::Duration,
    };

    use tokio::sync::Semaphore;
    use tokio_util::{sync::CancellationToken, task::TaskTracker};

    use super::*;
    use crate::{
        journal::{Journal, SessionRecord},
        session::{Drain, IdleExecutors, Keepers, Limits, Load, Shared, declaring::Declared},
        turn::log,
    };

    /// Sessions of three principals as a start finds them in the journal.
    async fn registry(folder: &std::path::Path) -> Registry {
        let journal = Journal::open(&folder.join("journal.db")).unwrap();
        for number in 0..7 {
            let principal = format!("uid:{}", 1000 + number % 3);
            let session = SessionRecord {
                directory: format!("{number:032}"),
                principal,
                session_id: format!("s-{}", number / 3),
                assignment_id: "a-1".into(),
                epoch: 4,
                released: number == 6,
                placement: Placement::None,
                had_turn: false,
                next_turn_number: 1,
                history: None,
            };
            journal.put_session(session).await.unwrap();
        }
        let stored = journal.sessions().await.unwrap();
        let left = HashMap::from([(stored[0].0, "exe_left".to_owned())]);
        let limits = Limits {
            handle_life: Duration::ZERO,
            evidence: Duration::ZERO,
            input_write: Duration::ZERO,
            quiet: Duration::ZERO,
            retry: Duration::ZERO,
            max_executors: 1,
            idle: Duration::ZERO,
            watch: Duration::ZERO,
            log: log::Limits::default(),
            bounds: crate::session::Bounds { log_bytes: 0, held_bytes: 0 },
            unstored_call: Duration::ZERO,
        };
        let shared = Shared {
            journal,
            harnesses: BTreeMap::new(),
            codec: Arc::new(crate::service::Protobuf),
            state: PathBuf::new(),
            workspace_roots: Vec::new(),
            limits,
            capacity: Arc::new(Semaphore::new(1)),
            idle: Arc::new(IdleExecutors::default()),
            declared: Declared::default(),
            drain: Arc::new(Drain::new(Duration::ZERO, Duration::ZERO)),
            guards: crate::gateway::Guards::default(),
            gateway: None,
            keepers: Keepers::default(),
            tracker: TaskTracker::new(),
            stopping: CancellationToken::new(),
        };
        Registry::new(Arc::new(shared), stored, left)
    }

    /// All pages of a scope.
    async fn pages(registry: &Registry, scope: &Scope, limit: usize) -> Vec<String> {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = registry.list(scope, after, limit).await.unwrap();
            assert!(page.sessions.len() == limit || !page.has_more);
            after = page.sessions.last().map(|listed| listed.key.clone());
            found.extend(page.sessions.into_iter().map(|l| format!("{}/{}", l.key.principal, l.key.session_id)));
            if !page.has_more {
                return found;
            }
        }
    }

    #[tokio::test]
    async fn listing_starts_no_owner_and_shows_a_principal_its_own() {
        let folder = std::env::current_exe().unwrap().with_file_name(format!("list-{}", uuid::Uuid::now_v7()));
        std::fs::create_dir(&folder).unwrap();
        let registry = registry(&folder).await;
        let all = ["1000/s-0", "1000/s-1", "1000/s-2", "1001/s-0", "1001/s-1", "1002/s-0", "1002/s-1"];
        let all = all.map(|name| format!("uid:{name}"));
        for limit in 1..=8 {
            assert_eq!(pages(&registry, &scope(None, None), limit).await, all, "{limit}");
            assert_eq!(pages(&registry, &scope(Some("uid:1001"), None), limit).await, all[3..5], "{limit}");
            assert_eq!(pages(&registry, &scope(None, Some("s-2")), limit).await, all[2..3], "{limit}");
        }
        // A token of another question shows nothing that is not the caller's.
        let foreign = Key { principal: "uid:1000".into(), session_id: "s-0".into() };
        let page = registry.list(&scope(Some("uid:1001"), None), Some(foreign), 10).await.unwrap();
        assert!(page.sessions.iter().all(|listed| listed.key.principal == "uid:1001"));
        let listed = registry.list(&scope(Some("uid:1000"), None), None, 10).await.unwrap().sessions;
        assert_eq!(listed.iter().map(|l| l.released).collect::<Vec<_>>(), [false, false, true]);
        assert_eq!((listed[0].epoch, listed[0].executor), (4, ExecutorState::Unconfirmed));
        assert_eq!(registry.load(), Load { unconfirmed: 1, ..Load::default() });
        assert!(registry.shared().tracker.is_empty(), "an owner was started");
        registry.shared().journal.clone().close().await;
        std::fs::remove_dir_all(folder).unwrap();
    }

    fn scope(principal: Option<&str>, session_id: Option<&str>) -> Scope {
        Scope { principal: principal.map(str::to_owned), session_id: session_id.map(str::to_owned) }
    }

    /// What a walk in order finds from the beginning of a scope to its end.
    #[track_caller]
    fn finds(scope: &Scope, want: &[&str]) {
        let all = ["a/x", "a/y", "b/x", "b/y", "b/z", "c/y"].map(|name| {
            let (principal, session_id) = name.split_once('/').unwrap();
            Key { principal: principal.into(), session_id: session_id.into() }
        });
        assert!(all.is_sorted());
        let from_begin = all.iter().filter(|key| **key >= scope.begin());
        let found = from_begin.take_while(|key| !scope.is_behind(key)).filter(|key| scope.has(key));
        let found: Vec<_> = found.map(|key| format!("{}/{}", key.principal, key.session_id)).collect();
        assert_eq!(found, want, "{scope:?}");
    }

    #[test]
    fn a_scope_is_one_stretch_or_a_choice_of_all() {
        finds(&scope(None, None), &["a/x", "a/y", "b/x", "b/y", "b/z", "c/y"]);
        finds(&scope(Some("b"), None), &["b/x", "b/y", "b/z"]);
        finds(&scope(Some("b"), Some("y")), &["b/y"]);
        finds(&scope(None, Some("y")), &["a/y", "b/y", "c/y"]);
        finds(&scope(Some("bb"), None), &[]);
        finds(&scope(Some("b"), Some("w")), &[]);
    }
}
