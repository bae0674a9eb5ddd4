//! The MCP sessions of a server, so that they stay few: a client that comes anew does not always end the one before, and none of them ends by itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// LIMIT: MCP sessions of one server. With one more, the one that was not used for the longest time ends; never one with a request that is open.
pub(super) const SESSIONS: usize = 64;

/// All that have begun, those first that were not used for the longest time.
#[derive(Clone, Debug, Default)]
pub(super) struct Sessions(Arc<Mutex<Vec<Session>>>);

#[derive(Debug)]
struct Session {
    id: String,
    /// Requests of it that are open.
    open: usize,
    /// Its client has listed the functions, and has not left since.
    listed: bool,
    /// Its client has listed them once.
    knows: bool,
}

/// A request in a session. It is over when this is dropped.
#[derive(Debug)]
pub(super) struct Use {
    sessions: Sessions,
    id: String,
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, Vec<Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One begins. Gives the one that is to end for it.
    pub(super) fn begin(&self, id: &str) -> Option<String> {
        let mut all = self.lock();
        all.push(Session { id: id.to_owned(), open: 0, listed: false, knows: false });
        let others = all.len() - 1;
        let surplus = all[..others].iter().position(|session| session.open == 0);
        surplus.filter(|_| others >= SESSIONS).map(|at| all.remove(at).id)
    }

    /// The functions are listed in one of them.
    pub(super) fn listed(&self, id: &str) {
        if let Some(session) = self.lock().iter_mut().find(|session| session.id == id) {
            (session.listed, session.knows) = (true, true);
        }
    }

    /// Whether one is there in which they are listed.
    pub(super) fn are_listed(&self) -> bool {
        self.lock().iter().any(|session| session.listed)
    }

    /// The client of one leaves: its standing stream has ended, or it says so.
    pub(super) fn leave(&self, id: &str) {
        if let Some(session) = self.lock().iter_mut().find(|session| session.id == id) {
            session.listed = false;
        }
    }

    /// The client of one is back, with what it knew. True where the functions are listed by that.
    pub(super) fn back(&self, id: &str) -> bool {
        let mut all = self.lock();
        let Some(session) = all.iter_mut().find(|session| session.id == id && session.knows) else { return false };
        session.listed = true;
        true
    }

    /// A request comes in one of them.
    pub(super) fn enter(&self, id: &str) -> Option<Use> {
        let mut all = self.lock();
        let at = all.iter().position(|session| session.id == id)?;
        let session = all.remove(at);
        all.push(Session { open: session.open + 1, ..session });
        Some(Use { sessions: self.clone(), id: id.to_owned() })
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        if let Some(session) = self.sessions.lock().iter_mut().find(|session| session.id == self.id) {
            session.open -= 1;
        }
    }
}
