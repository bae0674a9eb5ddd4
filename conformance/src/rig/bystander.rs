//! A Session that is not concerned by what goes wrong in another one, and must not notice.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;
use proto::client::Session;

use super::{Process, Rig};

/// A Session with an Executor of its own that has had a Turn.
#[derive(Debug)]
pub struct Bystander {
    session: Session,
    family: Vec<Process>,
    turns: AtomicU32,
}

impl Rig {
    /// A Session that has had a Turn, on a rig whose Harness is well at this moment.
    ///
    /// # Errors
    /// When the Turn does not complete.
    pub async fn bystander(&self) -> anyhow::Result<Bystander> {
        let session = self.session().await?;
        self.whole_turn(&session, "b-0", "hello").await?.completed()?;
        let mut family = self.family()?;
        // What the Turn ended may wait for its parent yet.
        family.retain(|process| !process.zombie);
        Ok(Bystander { session, family, turns: AtomicU32::new(0) })
    }
}

impl Bystander {
    /// Nothing but this Session's processes is left, they are those from before, and it does another Turn.
    ///
    /// # Errors
    /// What is otherwise.
    pub async fn undisturbed(&self, rig: &Rig) -> anyhow::Result<()> {
        rig.only(&self.family).await?;
        let number = self.turns.fetch_add(1, Ordering::Relaxed) + 1;
        let observed = rig.whole_turn(&self.session, &format!("b-{number}"), "hello").await?;
        observed.completed().context("the Turn of another Session")?;
        let now = rig.family()?;
        let gone = self.family.iter().find(|one| !now.iter().any(|p| p.pid == one.pid && p.started == one.started));
        anyhow::ensure!(gone.is_none(), "a process of another Session is gone: {gone:?}");
        Ok(())
    }
}
