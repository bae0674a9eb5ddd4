//! Faults of a daemon that was built with failpoints: it dies, or a write of it fails, at one point; and tables of them, each row a
//! point with its faults.

use std::time::Duration;

use anyhow::Context;

use crate::rig::{Ended, Rig, Setup, is_long, scenario};

/// Why one Harness is enough for a fault of the daemon's storage.
pub const OWN: &str = "the journal, the event files and the clock are the daemon's own";
/// A daemon that aborts ends of this signal.
const ABORT: i32 = 6;
/// How long it may take to be gone.
const END: Duration = Duration::from_secs(20);

/// One thing that goes wrong at one point.
#[derive(Debug, Clone)]
pub struct Fault {
    /// What the daemon is armed with.
    pub armed: String,
    /// The daemon dies of it.
    pub dies: bool,
    /// The point and its moment, as the daemon's log names them.
    point: String,
}

impl Fault {
    /// An action at this pass of a point (`journal.end_turn.before`).
    #[must_use]
    pub fn at(point: &str, action: &str, pass: u32) -> Self {
        Self { armed: format!("{point}={action}@{pass}"), dies: action == "abort", point: point.into() }
    }

    /// The same, armed together with something else.
    #[must_use]
    pub fn beside(&self, other: &str) -> Self {
        Self { armed: format!("{other};{}", self.armed), ..self.clone() }
    }

    /// The real Codex under a daemon that is armed with it from its start, where any Harness would do.
    #[must_use]
    pub fn setup(&self) -> Setup {
        self.arm(Setup::outer().bridge(OWN))
    }

    /// This setup with a daemon that is armed with it from its start.
    #[must_use]
    pub fn arm(&self, setup: Setup) -> Setup {
        Setup { failpoints: Some(self.armed.clone()), ..setup }
    }

    /// The daemon has met it, and is dead, as far as the fault goes. Else it is killed. What it had started is gone, and the next daemon is armed
    /// with nothing.
    ///
    /// # Errors
    /// When the point was not passed, or the daemon has another end.
    pub async fn ended(&self, rig: &mut Rig) -> anyhow::Result<()> {
        if self.dies {
            let ended = rig.daemon.wait(END).await?;
            anyhow::ensure!(ended == Ended::Signal(ABORT), "the daemon ended with {ended:?}");
        } else {
            anyhow::ensure!(rig.daemon.is_running(), "the daemon is gone");
        }
        self.was_met(rig)?;
        let family = rig.family()?;
        if !self.dies {
            rig.daemon.kill().await?;
        }
        rig.all_gone(&family).await?;
        rig.disarm();
        Ok(())
    }

    /// Checks that a daemon of this rig has passed the point.
    ///
    /// # Errors
    /// When it has not.
    pub fn was_met(&self, rig: &Rig) -> anyhow::Result<()> {
        let met = rig.daemon.logs().iter().any(|line| line["message"] == "failpoint" && line["point"] == *self.point);
        anyhow::ensure!(met, "{} was not passed", self.point);
        Ok(())
    }
}

/// The daemon dies before and behind a pass of a point, or it fails.
#[must_use]
pub fn faults(point: &str, pass: u32, error: &str) -> Vec<Fault> {
    let at = |when: &str, action: &str| Fault::at(&format!("{point}.{when}"), action, pass);
    vec![at("before", "abort"), at("after", "abort"), at("before", &format!("error:{error}"))]
}

/// Runs a course of events for each row of a table with one of its faults, in turn, or with all of them where there is time.
///
/// # Panics
/// When a scenario fails.
pub fn table(
    group: &str,
    rules: &[&str],
    rows: &[Vec<Fault>],
    setup: impl Fn(&Fault) -> Setup,
    course: impl AsyncFn(&mut Rig, &Fault) -> anyhow::Result<()>,
) {
    for (index, row) in rows.iter().enumerate() {
        for (_, fault) in row.iter().enumerate().filter(|(n, _)| is_long() || *n == index % row.len()) {
            let name = fault.armed.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
            scenario(&format!("failpoint_{group}_{name}"), rules, setup(fault), async |rig| {
                course(rig, fault).await.with_context(|| format!("{fault:?}"))
            });
        }
    }
}
