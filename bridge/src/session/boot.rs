//! Whether the machine was started anew since the last run: only then may a Turn's file lack events that observers saw (R-DUR-2).

use crate::journal::{CallRecord, Journal, Result, TurnRecord};

/// Where the kernel tells which boot this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// This boot, seen from the run before.
#[derive(Debug)]
pub(super) struct Boot {
    id: Option<String>,
    /// What the process before had written is in the system's cache or on the disk.
    is_same: bool,
}

impl Boot {
    /// Compares this boot with the one that the journal has noted.
    ///
    /// # Errors
    ///
    /// What the journal says.
    pub(super) async fn of(journal: &Journal) -> Result<Self> {
        let id = std::fs::read_to_string(BOOT_ID).ok().map(|id| id.trim().to_owned()).filter(|id| !id.is_empty());
        #[cfg(failpoints)]
        let id = if adapters::failpoint::is_another_boot() { Some("another".to_owned()) } else { id };
        let noted = journal.boot_id().await?;
        // Where it cannot be known, it is another one.
        let is_same = id.is_some() && id == noted;
        Ok(Self { id, is_same })
    }

    /// The last sequence that may have been given out, when the file has events up to `found`.
    pub(super) fn last_given(&self, found: u64, given: &Given) -> u64 {
        // A file that lacks what was given out for sure lacks more: it was cut.
        let is_whole = self.is_same && given.at_least <= found;
        if is_whole { found } else { found.max(given.at_most) }
    }

    /// Notes this boot for the next start.
    ///
    /// # Errors
    ///
    /// What the journal says.
    pub(super) async fn note(self, journal: &Journal) -> Result<()> {
        match self.id {
            Some(id) if !self.is_same => journal.note_boot_id(&id).await,
            Some(_) | None => Ok(()),
        }
    }
}

/// What the journal knows of the sequences that an earlier process gave out.
#[derive(Debug)]
pub(super) struct Given {
    /// Up to this one they were given out for sure.
    pub(super) at_least: u64,
    /// None above this one was.
    pub(super) at_most: u64,
}

impl Given {
    /// What the records of a Turn and of its calls say.
    pub(super) fn by(turn: &TurnRecord, calls: &[CallRecord]) -> Self {
        let last_call = calls.iter().map(|call| call.start.sequence).max().unwrap_or(0);
        // What came before a call is given out before it is stored, and the call itself after that.
        let at_least = turn.acknowledged.max(last_call.saturating_sub(1));
        let at_most = turn.reserved.max(turn.acknowledged).max(last_call);
        // The file is known to have lacked events that observers saw.
        let at_least = if turn.unwritten > 0 { at_most } else { at_least };
        Self { at_least, at_most }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_go_on_above_what_may_have_been_given_out() {
        let same = Boot { id: Some("b".into()), is_same: true };
        let other = Boot { id: Some("b".into()), is_same: false };
        for (boot, found, at_least, at_most, want) in [
            (&same, 10, 10, 65_536, 10),
            (&same, 10, 3, 65_536, 10),
            (&same, 10, 11, 65_536, 65_536),
            (&other, 10, 3, 65_536, 65_536),
            (&other, 70_000, 3, 65_536, 70_000),
            (&other, 0, 0, 0, 0),
        ] {
            assert_eq!(boot.last_given(found, &Given { at_least, at_most }), want, "{found} {at_least} {at_most}");
        }
    }

    #[tokio::test]
    async fn another_boot_is_told_from_the_one_that_was_noted() {
        let folder = std::env::temp_dir().join(format!("boot-{}", uuid::Uuid::now_v7()));
        std::fs::create_dir(&folder).unwrap();
        let journal = Journal::open(&folder.join("journal.db")).unwrap();
        let first = Boot::of(&journal).await.unwrap();
        assert!(!first.is_same, "nothing was noted yet");
        first.note(&journal).await.unwrap();
        assert!(Boot::of(&journal).await.unwrap().is_same);
        journal.note_boot_id("another").await.unwrap();
        assert!(!Boot::of(&journal).await.unwrap().is_same);
        journal.close().await;
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
