//! The start of a Turn (R-STA-1, R-STA-2).

use tokio::time::Instant;

use super::{
    Answer, Fence, Snapshot, StartRequest,
    active::{Active, Begin, Deadlines},
    digest, drain,
    executor::Slot,
    owner::Owner,
    storage,
};
use crate::{
    clock,
    journal::NewTurn,
    refusal::{Reason, Refusal},
    turn::{calls::Digest, log::Log},
};

impl Owner {
    /// Starts a Turn, or tells the state of the one that has this id; true when it was there before.
    pub(super) async fn start(&mut self, fence: &Fence, request: StartRequest) -> Answer<(Snapshot, bool)> {
        self.admit(fence)?;
        let StartRequest { handle, turn_id, input, max_duration } = request;
        let content = digest::turn(&input, max_duration);
        if let Some(found) = self.known_turn(&turn_id, content).await? {
            return Ok((found, true));
        }
        if self.is_draining() {
            return Err(drain::draining());
        }
        let executor_id = self.preparations.check(&handle, Instant::now())?.to_owned();
        if self.turn.is_some() {
            return Err(Refusal::new(Reason::SessionBusy, "a Turn of the Session runs"));
        }
        let (native_session_id, deadlines, judge, supports, max_calls) = match &self.slot {
            Slot::Live(live) if live.executor_id == executor_id && !live.closing => {
                let deadlines = Deadlines::new(&live.configuration.functions);
                let max_calls = live.configuration.controls.max_function_calls;
                (live.executor.native_session_id.clone(), deadlines, live.judge.clone(), live.supports, max_calls)
            }
            Slot::Live(_) | Slot::Preparing(_) | Slot::Empty | Slot::Unconfirmed(_) => {
                return Err(Refusal::new(Reason::HandleExpired, "the Executor of the handle is gone; prepare again")
                    .at("handle"));
            }
        };
        supports.start(&input)?;

        let (session_row, number) = {
            let recorded = self.recorded()?;
            (recorded.row, recorded.record.next_turn_number)
        };
        // As the journal keeps it, so that it is the same after a restart.
        let created_at = clock::from_millis(clock::millis(clock::now()));
        let log = self.create_log(number)?;
        let start = NewTurn {
            session: session_row,
            turn_id: turn_id.clone(),
            number,
            executor_id,
            content,
            created_ms: clock::millis(created_at),
        };
        let row = self.shared.journal.insert_turn(start).await.map_err(|error| storage(&error))?;

        // From here on the Turn exists and is tracked to its settlement (R-STA-2).
        self.preparations.start(&handle);
        if let Some(session) = &mut self.session {
            session.record.had_turn = true;
            session.record.next_turn_number = number + 1;
        }
        let history = self.history_to_record().map(|history| (session_row, history));
        let idempotency_prefix = format!("{}/{turn_id}", self.key.session_id);
        let begin = Begin {
            row,
            turn_id,
            content,
            created_at,
            number,
            native_session_id,
            history,
            idempotency_prefix,
            log,
            max_duration,
            max_calls,
            deadlines,
            judge,
            supports,
        };
        let turn = Active::begin(&self.shared, begin, input);
        let snapshot = turn.snapshot();
        self.turn = Some(turn);
        self.follow().await;
        Ok((snapshot, false))
    }

    async fn known_turn(&mut self, turn_id: &str, content: Digest) -> Answer<Option<Snapshot>> {
        let (found, snapshot) = match &self.turn {
            Some(turn) if turn.id() == turn_id => (turn.content(), turn.snapshot()),
            Some(_) | None => match self.past(turn_id).await {
                Ok(past) => (past.content, past.snapshot.clone()),
                Err(refusal) if refusal.reason == Reason::NotFound => return Ok(None),
                Err(refusal) => return Err(refusal),
            },
        };
        if found == content {
            Ok(Some(snapshot))
        } else {
            Err(Refusal::new(Reason::TurnConflict, "the Turn's id was used with other input").at("turn_id"))
        }
    }

    fn create_log(&self, number: u64) -> Answer<Log> {
        let path = self.turn_file(number);
        // A file under a number that no recorded Turn has is left from a start that never came about.
        let removed = std::fs::remove_file(&path);
        let created = Log::create(&path, self.shared.limits.log);
        created.map_err(|error| {
            tracing::error!(path = %path.display(), %error, ?removed, "the file of a Turn could not be made");
            Refusal::new(Reason::StorageUnavailable, "the bridge's state directory does not take writes")
        })
    }
}
