//! Finds the owner of a Session.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    Answer, Asked, ExecutorState, Front, Key, Load, Scope, Shared, binding, drain::View, owner, standing::Standing,
};
use crate::journal::{SessionRecord, SessionRow};

/// All Sessions of the daemon.
#[derive(Debug)]
pub(crate) struct Registry {
    shared: Arc<Shared>,
    /// In the order in which they are listed.
    sessions: Mutex<BTreeMap<Key, Entry>>,
    unconfirmed: HashMap<SessionRow, String>,
}

#[derive(Debug)]
enum Entry {
    /// In the journal; nobody has asked for it since the start.
    Stored(SessionRow, Box<SessionRecord>),
    /// Has an owner.
    Owned(Front),
}

impl Entry {
    fn is_forgotten(&self) -> bool {
        matches!(self, Self::Owned(front) if front.forgotten.is_cancelled())
    }
}

impl Registry {
    /// The Sessions that the journal has, and the Executors of theirs that an earlier run left behind.
    pub(crate) fn new(
        shared: Arc<Shared>,
        stored: Vec<(SessionRow, SessionRecord)>,
        unconfirmed: HashMap<SessionRow, String>,
    ) -> Self {
        let entry = |(row, record): (SessionRow, SessionRecord)| {
            let key = Key { principal: record.principal.clone(), session_id: record.session_id.clone() };
            (key, Entry::Stored(row, Box::new(record)))
        };
        Self { shared, sessions: Mutex::new(stored.into_iter().map(entry).collect()), unconfirmed }
    }

    /// What Sessions share.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The Session, when this principal has bound it (R-ASG-5).
    pub(crate) fn find(&self, key: &Key) -> Answer<Front> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        match sessions.get_mut(key) {
            Some(entry) if !entry.is_forgotten() => Ok(self.front(key, entry)),
            Some(_) | None => Err(owner::no_session()),
        }
    }

    /// The Session to be bound. One that is not there yet gets an owner only when its placement can be bound, so that refused requests
    /// leave nothing behind.
    pub(crate) async fn find_or_begin(&self, key: Key, asked: &Asked) -> Answer<Front> {
        let known = self.sessions.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&key);
        if !known {
            binding::resolve(&self.shared, asked.clone()).await?;
        }
        Ok(self.begin(key))
    }

    fn begin(&self, key: Key) -> Front {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = sessions.get_mut(&key).filter(|entry| !entry.is_forgotten()) {
            return self.front(&key, entry);
        }
        let front = owner::start(&self.shared, key.clone(), None, None);
        sessions.insert(key, Entry::Owned(front.clone()));
        front
    }

    /// The front of a Session that has an owner.
    pub(super) fn owned(&self, key: &Key) -> Option<Front> {
        match self.sessions.lock().unwrap_or_else(PoisonError::into_inner).get(key) {
            Some(Entry::Owned(front)) => Some(front.clone()),
            Some(Entry::Stored(..)) | None => None,
        }
    }

    /// Drops a Session that retention has forgotten (R-DUR-4) or that could not be recorded, unless it was bound anew meanwhile.
    pub(crate) fn drop_forgotten(&self, key: &Key) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.get(key).is_some_and(Entry::is_forgotten) {
            sessions.remove(key);
        }
    }

    fn front(&self, key: &Key, entry: &mut Entry) -> Front {
        match entry {
            Entry::Owned(front) => front.clone(),
            Entry::Stored(row, record) => {
                let left = self.unconfirmed.get(row).cloned();
                let front = owner::start(&self.shared, key.clone(), Some((*row, (**record).clone())), left);
                *entry = Entry::Owned(front.clone());
                front
            }
        }
    }

    /// Up to so many Sessions of a scope in order, as they are shown. Nothing is started for one that nobody has asked for yet.
    pub(super) fn each<T>(
        &self,
        scope: &Scope,
        begin: Bound<Key>,
        limit: usize,
        show: impl Fn(&Key, &Standing) -> Option<T>,
    ) -> Vec<T> {
        let mut found = Vec::new();
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, entry) in sessions.range((begin, Bound::Unbounded)) {
            if found.len() == limit || scope.is_behind(key) {
                break;
            }
            if scope.has(key) {
                found.extend(match entry {
                    Entry::Owned(front) => show(key, &front.stand.look()),
                    Entry::Stored(row, record) => show(key, &self.stored(*row, record)),
                });
            }
        }
        found
    }

    fn stored(&self, row: SessionRow, record: &SessionRecord) -> Standing {
        let executor = match self.unconfirmed.contains_key(&row) {
            true => ExecutorState::Unconfirmed,
            false => ExecutorState::None,
        };
        Standing { session: Some((row, record.clone())), executor, ..Standing::default() }
    }

    /// What all Sessions carry together.
    pub(crate) fn load(&self) -> Load {
        self.view().load
    }

    /// All Sessions as a drain looks at them.
    pub(super) fn view(&self) -> View {
        let mut view = View::default();
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, entry) in &*sessions {
            let standing = match entry {
                Entry::Owned(front) => front.stand.look(),
                Entry::Stored(row, _) => {
                    if self.unconfirmed.contains_key(row) {
                        view.load.add(ExecutorState::Unconfirmed, None);
                        view.left += 1;
                    }
                    continue;
                }
            };
            view.load.add(standing.executor, standing.turn.as_ref());
            view.left += u32::from(standing.turn.is_some() || standing.executor != ExecutorState::None);
            view.turns.extend(standing.turn.clone().map(|turn| (key.clone(), turn)));
            view.unheard += usize::from(!standing.drains && !standing.is_gone);
        }
        view
    }
}
