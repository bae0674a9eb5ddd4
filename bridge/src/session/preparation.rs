//! Preparations and their handles: a pure state machine, `preparing → ready → started | released | expired | failed` (R-PRE-2, R-PRE-7).

use std::time::{Duration, SystemTime};

use crate::{
    refusal::{Reason, Refusal},
    turn::calls::Digest,
};

/// Ended preparations that a Session remembers, so that a repeated request gets its answer.
const REMEMBERED: usize = 64;

/// The preparations of one Session. `I` is the instant type of the clock that the owner uses.
#[derive(Debug)]
pub(crate) struct Preparations<I> {
    all: Vec<Preparation<I>>,
}

/// One preparation.
#[derive(Debug)]
pub(crate) struct Preparation<I> {
    pub(crate) id: String,
    pub(crate) content: Digest,
    pub(crate) executor_id: String,
    pub(crate) revision: u32,
    pub(crate) state: State<I>,
}

/// Where a preparation is.
#[derive(Debug)]
pub(crate) enum State<I> {
    Preparing,
    Ready {
        grant: Grant,
        expires: I,
    },
    Started {
        grant: Grant,
    },
    Released {
        grant: Grant,
    },
    Expired {
        grant: Grant,
    },
    /// With the grant of a handle that was unused when its Executor ended.
    Failed {
        refusal: Refusal,
        grant: Option<Grant>,
    },
}

/// What `ready` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) executor_id: String,
    pub(crate) handle: String,
    pub(crate) revision: u32,
    pub(crate) expires_at: SystemTime,
    pub(crate) reused: bool,
    pub(crate) version: String,
    /// The history is resumed with other native settings than before (R-PRE-2).
    pub(crate) settings_changed: bool,
}

/// How an Executor came to be ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadyKind {
    /// It was idle.
    Reused,
    /// It began a native history.
    Begun,
    /// It goes on with one.
    Resumed { settings_changed: bool },
}

impl<I> Default for Preparations<I> {
    fn default() -> Self {
        Self { all: Vec::new() }
    }
}

impl<I: Copy + Ord + std::ops::Add<Duration, Output = I>> Preparations<I> {
    /// The preparation of an id; another content under the id is a conflict (R-API-6).
    pub(crate) fn find(&mut self, id: &str, content: Digest) -> Result<Option<&mut Preparation<I>>, Refusal> {
        match self.all.iter_mut().find(|p| p.id == id) {
            Some(found) if found.content == content => Ok(Some(found)),
            Some(_) => {
                Err(Refusal::new(Reason::PreparationConflict, "the preparation's id was used with other content")
                    .at("preparation_id"))
            }
            None => Ok(None),
        }
    }

    /// Whether a preparation is under way or a handle is unused.
    pub(crate) fn pending(&self) -> Option<&str> {
        self.all.iter().find(|p| matches!(p.state, State::Preparing | State::Ready { .. })).map(|p| p.id.as_str())
    }

    /// Begins a preparation.
    pub(crate) fn begin(&mut self, id: String, content: Digest, executor_id: String) {
        if self.all.len() >= REMEMBERED
            && let Some(oldest) =
                self.all.iter().position(|p| !matches!(p.state, State::Preparing | State::Ready { .. }))
        {
            self.all.remove(oldest);
        }
        self.all.push(Preparation { id, content, executor_id, revision: 1, state: State::Preparing });
    }

    /// The preparations that wait for an Executor become ready, each with a handle of its own.
    pub(crate) fn ready(
        &mut self,
        executor_id: &str,
        version: &str,
        kind: ReadyKind,
        life: (I, SystemTime),
    ) -> Vec<(String, Grant)> {
        let mut granted = Vec::new();
        let waiting =
            self.all.iter_mut().filter(|p| p.executor_id == executor_id && matches!(p.state, State::Preparing));
        for preparation in waiting {
            preparation.revision += u32::from(kind != ReadyKind::Reused);
            let grant = Grant {
                executor_id: executor_id.to_owned(),
                handle: format!("hdl_{}", uuid::Uuid::now_v7().simple()),
                revision: preparation.revision,
                expires_at: life.1,
                reused: kind == ReadyKind::Reused,
                version: version.to_owned(),
                settings_changed: kind == ReadyKind::Resumed { settings_changed: true },
            };
            preparation.state = State::Ready { grant: grant.clone(), expires: life.0 };
            granted.push((preparation.id.clone(), grant));
        }
        granted
    }

    /// Ids of the preparations that wait for an Executor.
    pub(crate) fn waiting_for(&self, executor_id: &str) -> Vec<String> {
        let waiting = self.all.iter().filter(|p| p.executor_id == executor_id && matches!(p.state, State::Preparing));
        waiting.map(|p| p.id.clone()).collect()
    }

    /// The preparations of an Executor fail, and their unused handles with them.
    pub(crate) fn fail(&mut self, executor_id: &str, refusal: &Refusal) {
        for preparation in self.all.iter_mut().filter(|p| p.executor_id == executor_id) {
            match &preparation.state {
                State::Preparing | State::Ready { .. } => {
                    preparation.revision += 1;
                    let grant = preparation.grant().cloned();
                    preparation.state = State::Failed { refusal: refusal.clone(), grant };
                }
                State::Started { .. } | State::Released { .. } | State::Expired { .. } | State::Failed { .. } => {}
            }
        }
    }

    /// Forgets what failed for want of room: the same may be asked for again later (R-PRE-3).
    pub(crate) fn forget_failed(&mut self, executor_id: &str) {
        self.all.retain(|p| p.executor_id != executor_id || !matches!(p.state, State::Failed { .. }));
    }

    /// A preparation goes back to `preparing` with another Executor, since a newer credential came before its handle was used.
    pub(crate) fn again(&mut self, id: &str, executor_id: String) {
        if let Some(preparation) = self.all.iter_mut().find(|p| p.id == id) {
            preparation.executor_id = executor_id;
            preparation.revision += 1;
            preparation.state = State::Preparing;
        }
    }

    /// Looks at a handle that is to be used now.
    pub(crate) fn check(&mut self, handle: &str, now: I) -> Result<&str, Refusal> {
        self.expire(now);
        let preparation = self.of_handle(handle).ok_or_else(unknown)?;
        match &preparation.state {
            State::Ready { grant, .. } => Ok(&grant.executor_id),
            State::Started { .. } => Err(over("the handle was used")),
            State::Released { .. } => Err(over("the handle was given back")),
            State::Expired { .. } => Err(over("the handle has expired")),
            State::Preparing | State::Failed { .. } => Err(over("the Executor of the handle is gone")),
        }
    }

    /// Uses a handle up.
    pub(crate) fn start(&mut self, handle: &str) {
        self.turn(handle, |grant| State::Started { grant });
    }

    /// Gives a handle back; true when it was unused, false when it had been given back before.
    pub(crate) fn release(&mut self, handle: &str, now: I) -> Result<bool, Refusal> {
        self.expire(now);
        let preparation = self.of_handle(handle).ok_or_else(unknown)?;
        match &preparation.state {
            State::Ready { .. } => {
                self.turn(handle, |grant| State::Released { grant });
                Ok(true)
            }
            State::Released { .. } => Ok(false),
            State::Started { .. } => Err(over("the handle was used")),
            State::Expired { .. } => Err(over("the handle has expired")),
            State::Preparing | State::Failed { .. } => Err(over("the Executor of the handle is gone")),
        }
    }

    /// Forgets everything: a take-over voids the handles of the epochs below (R-ASG-2).
    pub(crate) fn clear(&mut self) {
        self.all.clear();
    }

    /// Expires what is over.
    pub(crate) fn expire(&mut self, now: I) {
        for preparation in &mut self.all {
            if let State::Ready { grant, expires } = &preparation.state
                && *expires <= now
            {
                preparation.revision += 1;
                preparation.state = State::Expired { grant: grant.clone() };
            }
        }
    }

    /// When the next handle expires.
    pub(crate) fn next_expiry(&self) -> Option<I> {
        let expiries = self.all.iter().filter_map(|p| match &p.state {
            State::Ready { expires, .. } => Some(*expires),
            State::Preparing
            | State::Started { .. }
            | State::Released { .. }
            | State::Expired { .. }
            | State::Failed { .. } => None,
        });
        expiries.min()
    }

    fn of_handle(&self, handle: &str) -> Option<&Preparation<I>> {
        self.all.iter().find(|p| p.grant().is_some_and(|g| g.handle == handle))
    }

    fn turn(&mut self, handle: &str, into: impl FnOnce(Grant) -> State<I>) {
        if let Some(preparation) = self.all.iter_mut().find(|p| p.grant().is_some_and(|g| g.handle == handle))
            && let Some(grant) = preparation.grant().cloned()
        {
            preparation.revision += 1;
            preparation.state = into(grant);
        }
    }
}

impl<I> Preparation<I> {
    fn grant(&self) -> Option<&Grant> {
        match &self.state {
            State::Ready { grant, .. }
            | State::Started { grant }
            | State::Released { grant }
            | State::Expired { grant }
            | State::Failed { grant: Some(grant), .. } => Some(grant),
            State::Preparing | State::Failed { grant: None, .. } => None,
        }
    }
}

fn unknown() -> Refusal {
    Refusal::new(Reason::HandleUnknown, "no such handle; prepare again").at("handle")
}

fn over(text: &str) -> Refusal {
    Refusal::new(Reason::HandleExpired, format!("{text}; prepare again")).at("handle")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds stand for instants.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct At(u64);

    impl std::ops::Add<Duration> for At {
        type Output = Self;
        fn add(self, by: Duration) -> Self {
            Self(self.0 + by.as_secs())
        }
    }

    fn prepared() -> (Preparations<At>, String) {
        let mut all = Preparations::default();
        all.begin("p".into(), [1; 32], "e".into());
        let granted = all.ready("e", "1", ReadyKind::Begun, (At(300), SystemTime::UNIX_EPOCH));
        (all, granted[0].1.handle.clone())
    }

    #[track_caller]
    fn refused<T: std::fmt::Debug>(result: Result<T, Refusal>, reason: Reason) {
        assert_eq!(result.unwrap_err().reason, reason);
    }

    #[test]
    fn a_handle_is_used_once() {
        let (mut all, handle) = prepared();
        assert_eq!(all.check(&handle, At(299)).unwrap(), "e");
        all.start(&handle);
        refused(all.check(&handle, At(299)), Reason::HandleExpired);
        refused(all.release(&handle, At(299)), Reason::HandleExpired);
        refused(all.check("hdl_other", At(0)), Reason::HandleUnknown);
        assert_eq!(all.pending(), None);
    }

    #[test]
    fn a_handle_expires_and_looking_at_it_does_not_extend_it() {
        let (mut all, handle) = prepared();
        assert_eq!(all.next_expiry(), Some(At(300)));
        all.check(&handle, At(299)).unwrap();
        refused(all.check(&handle, At(300)), Reason::HandleExpired);
        assert_eq!(all.next_expiry(), None);
    }

    #[test]
    fn giving_a_handle_back_twice_is_one_giving_back() {
        let (mut all, handle) = prepared();
        assert!(all.release(&handle, At(1)).unwrap());
        assert!(!all.release(&handle, At(1)).unwrap());
        refused(all.check(&handle, At(1)), Reason::HandleExpired);
    }

    #[test]
    fn a_handle_whose_executor_ended_is_over_and_not_unknown() {
        let (mut all, handle) = prepared();
        all.fail("e", &unknown());
        refused(all.check(&handle, At(1)), Reason::HandleExpired);
        refused(all.release(&handle, At(1)), Reason::HandleExpired);
        assert_eq!((all.pending(), all.next_expiry()), (None, None));
    }

    #[test]
    fn what_failed_for_want_of_room_may_be_asked_for_again() {
        let (mut all, handle) = prepared();
        all.start(&handle);
        all.begin("q".into(), [1; 32], "f".into());
        all.fail("f", &unknown());
        all.forget_failed("f");
        assert!(all.find("q", [2; 32]).unwrap().is_none());
        assert!(all.find("p", [1; 32]).unwrap().is_some());
    }

    #[test]
    fn the_same_id_with_other_content_is_a_conflict() {
        let (mut all, _) = prepared();
        assert!(all.find("p", [1; 32]).unwrap().is_some());
        refused(all.find("p", [2; 32]), Reason::PreparationConflict);
        assert!(all.find("q", [2; 32]).unwrap().is_none());
    }

    #[test]
    fn ended_preparations_are_forgotten_oldest_first() {
        let mut all: Preparations<At> = Preparations::default();
        for n in 0..200 {
            all.begin(format!("p{n}"), [0; 32], format!("e{n}"));
            all.fail(&format!("e{n}"), &unknown());
        }
        assert_eq!(all.all.len(), REMEMBERED);
        assert!(all.find("p199", [0; 32]).unwrap().is_some());
        assert!(all.find("p0", [0; 32]).unwrap().is_none());
    }
}
