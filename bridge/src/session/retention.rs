//! What is kept how long (R-DUR-4): a task that now and then removes the events of Turns that ended long ago, or of the oldest where
//! there are too many, and forgets Sessions that were released long ago, with their homes.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use adapters::native::folder;
use tokio::time;

use super::{Answer, Command, Key, Registry, executor::Slot, owner::Owner, storage};
use crate::{
    clock,
    journal::{self, EndedEvents, SessionName},
    refusal::{Reason, Refusal},
    turn::log,
};

/// Turns, and Sessions, that one round looks at.
const ROUND: usize = 256;

/// Turns that are forgotten with one write.
const TURNS_AT_ONCE: usize = 64;

/// Between two rounds while there is more to do than one of them does.
const NEXT_ROUND: Duration = Duration::from_secs(1);

/// How much is kept, and how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retention {
    /// How long a released Session and unacknowledged events are kept.
    pub(crate) life: Duration,
    /// Bytes of event files that are kept.
    pub(crate) state_bytes: u64,
    /// Between two rounds.
    pub(crate) every: Duration,
}

/// Goes on until the daemon stops.
pub(crate) async fn keep(registry: Arc<Registry>, retention: Retention) {
    let stopping = registry.shared().stopping.clone();
    loop {
        let wait = match round(&registry, retention).await {
            Ok(true) => NEXT_ROUND.min(retention.every),
            Ok(false) => retention.every,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "what is old could not be removed");
                retention.every
            }
        };
        // Both are cancel safe.
        tokio::select! {
            () = stopping.cancelled() => return,
            () = time::sleep(wait) => {}
        }
    }
}

/// One round; true when there is more to do.
async fn round(registry: &Registry, retention: Retention) -> journal::Result<bool> {
    let journal = &registry.shared().journal;
    let now = clock::millis(clock::now());
    let before = now.saturating_sub(i64::try_from(retention.life.as_millis()).unwrap_or(i64::MAX));
    journal.note_released(now).await?;
    let released = journal.released_before(before, ROUND).await?;
    let mut more = released.len() == ROUND;
    for session in released {
        registry.forget(&key(&session), before).await;
    }
    let stored = journal.stored_events(ROUND).await?;
    more |= let_go_of_stored(registry, &stored).await? && stored.len() == ROUND;
    let ended = journal.ended_events(ROUND).await?;
    more |= remove_events(registry, &ended, before, retention.state_bytes).await?;
    Ok(more)
}

/// Removes the files of Turns whose events Core has stored: an acknowledgement does that itself, unless the daemon dies in between. False where a file
/// stays, which is tried again with the next ordinary round.
async fn let_go_of_stored(registry: &Registry, stored: &[EndedEvents]) -> journal::Result<bool> {
    let shared = registry.shared();
    let mut gone = Vec::new();
    for turn in stored {
        let path = file_of(&shared.state, turn);
        // ORDER: the file goes first: the journal is what makes the next round look for it.
        match log::let_go(&path) {
            Ok(()) => gone.push(turn.turn),
            Err(error) => tracing::warn!(path = %path.display(), %error, "an acknowledged file could not be removed"),
        }
    }
    let all = gone.len() == stored.len();
    if !gone.is_empty() {
        shared.journal.events_gone(gone).await?;
    }
    Ok(all)
}

/// The file of a Turn.
fn file_of(state: &Path, turn: &EndedEvents) -> PathBuf {
    state.join("sessions").join(&turn.session.directory).join("turns").join(format!("{}.log", turn.number))
}

/// Removes the events of Turns that ended before a time, and of the oldest until the others fit. True when these Turns were not enough.
async fn remove_events(
    registry: &Registry,
    ended: &[EndedEvents],
    before: i64,
    state_bytes: u64,
) -> journal::Result<bool> {
    let shared = registry.shared();
    let walked = shared.state.join("sessions");
    // What a daemon that stops leaves behind is one walk, which nobody needs to wait for.
    let walk = tokio::task::spawn_blocking(move || bytes_of(&walked)).await;
    let mut bytes = walk.map_or(0, |walked| {
        walked.unwrap_or_else(|error| {
            tracing::warn!(%error, "the event files could not be measured");
            0
        })
    });
    for turn in ended {
        if turn.ended_ms > before && bytes <= state_bytes {
            return Ok(false);
        }
        let path = file_of(&shared.state, turn);
        let size = fs::metadata(&path).map_or(0, |meta| meta.len());
        // ORDER: it is told that the events are gone before they are.
        shared.journal.events_gone(vec![turn.turn]).await?;
        match log::let_go(&path) {
            Ok(()) => tracing::info!(turn_id = turn.turn_id, size, "the events of a Turn are not kept any longer"),
            Err(error) => tracing::warn!(path = %path.display(), %error, "an event file could not be removed"),
        }
        bytes = bytes.saturating_sub(size);
        registry.events_gone(&key(&turn.session), &turn.turn_id).await;
    }
    Ok(ended.len() == ROUND)
}

fn key(session: &SessionName) -> Key {
    Key { principal: session.principal.clone(), session_id: session.session_id.clone() }
}

/// The bytes of all event files.
fn bytes_of(sessions: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for session in entries(sessions)? {
        for turn in entries(&session.join("turns"))? {
            // A file may go while it is looked at.
            bytes += fs::metadata(turn).map_or(0, |meta| meta.len());
        }
    }
    Ok(bytes)
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

impl Registry {
    /// Lets a Session that was released at `before` or earlier be forgotten, when nothing of it is at work.
    async fn forget(&self, key: &Key, before: i64) {
        let Ok(front) = self.find(key) else { return };
        match front.ask(|reply| Command::Forget { before, reply }).await {
            Ok(true) => {
                self.drop_forgotten(key);
                tracing::info!(session_id = key.session_id, "a released Session is forgotten");
            }
            Ok(false) => {}
            Err(refusal) => tracing::warn!(session_id = key.session_id, %refusal, "a Session could not be forgotten"),
        }
    }

    /// Tells the owner of a Session, where there is one, that the events of a Turn are gone.
    async fn events_gone(&self, key: &Key, turn_id: &str) {
        if let Some(front) = self.owned(key) {
            let turn_id = turn_id.to_owned();
            // Who cannot take this has the Turn's file open for a while longer.
            drop(front.ask(|reply| Command::EventsGone { turn_id, reply }).await);
        }
    }
}

impl Owner {
    /// Forgets the Session with everything of it, when that is due and nothing of it is at work.
    pub(super) async fn forget(&mut self, before: i64) -> Answer<bool> {
        let row = match &self.session {
            Some(session) if session.record.released => session.row,
            Some(_) | None => return Ok(false),
        };
        if self.turn.is_some() || self.release.is_some() || !matches!(self.slot, Slot::Empty) {
            return Ok(false);
        }
        let journal = self.shared.journal.clone();
        // Nothing is forgotten by this; it only tells whether it is due.
        match journal.forget(row, before, 0).await {
            Ok(_) => {}
            Err(journal::Error::Misfit(_)) => return Ok(false),
            Err(error) => return Err(storage(&error)),
        }
        // ORDER: the folder goes first: the journal is what makes the next round look for it.
        let gone = self.folder();
        let removed = tokio::task::spawn_blocking(move || folder::remove_all(&gone)).await;
        if let Err(error) = removed.unwrap_or_else(|error| Err(error.into())) {
            let text = format!("the folder of a Session could not be removed: {error}");
            return Err(Refusal::new(Reason::StorageUnavailable, text));
        }
        while !journal.forget(row, before, TURNS_AT_ONCE).await.map_err(|error| storage(&error))? {}
        (self.session, self.past) = (None, None);
        self.tell_standing();
        self.forgotten.cancel();
        Ok(true)
    }

    /// The file of a Turn is gone: what is kept of it is looked up again.
    pub(super) fn forget_events(&mut self, turn_id: &str) {
        self.past.take_if(|past| past.snapshot.turn_id == turn_id);
    }
}
