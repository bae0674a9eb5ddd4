//! A probe of the Harness is beside the Sessions: one that hangs holds up nobody but those who need what it finds (R-API-8).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use anyhow::Context;
use conformance::child::codex;
use conformance::child::fault::{Fault, Place};
use conformance::rig::{Observed, Setup, Stands, refusal, scenario};
use proto::v1::{self, CancelOutcome, Reason, event::Kind};
use rustix::process::Signal;
use tokio::task::JoinSet;

/// Why one Harness is enough.
const OWN: &str = "a probe that hangs is any program that hangs";

#[test]
fn a_probe_that_hangs_does_not_hold_up_a_session_that_runs() {
    let setup = Setup { stands: Stands::Faulty(Box::new(codex::healthy())), ..Setup::outer().bridge(OWN) };
    scenario("probe_hangs", &["R-API-8", "R-CAN-1"], setup, async |rig| {
        let child = rig.child.clone().context("a child")?;
        child.play(codex::with_fault(Place::InMessage, Fault::Hangs))?;
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), "t-1", "hello").await?;
        let delta = |kind: &Kind| matches!(kind, Kind::MessageDelta(_)).then_some(());
        Observed::default().until(&mut events, delta).await?;
        // Another program is in its place now, which has to be asked anew and never answers.
        let (path, aside) = (child.path(), child.path().with_extension("new"));
        fs::write(&aside, "#!/bin/sh\nexec sleep 7600\n")?;
        fs::set_permissions(&aside, fs::Permissions::from_mode(0o755))?;
        fs::rename(&aside, &path)?;
        let (same, configuration) = (session.clone(), rig.configuration(Vec::new()));
        let mut asks = JoinSet::new();
        asks.spawn(async move { same.prepare(configuration, Vec::new()).await });
        let probe = rig.wait_for_process(|process| process.command == "sleep 7600").await?;
        assert_eq!(session.turn("t-1").await?.phase(), v1::TurnPhase::Running);
        assert_eq!(session.cancel("t-1", Some(Duration::ZERO)).await?.outcome(), CancelOutcome::Pending);
        assert!(asks.try_join_next().is_none() && probe.runs_in(&rig.family()?), "the probe was waited for");
        probe.signal(Signal::KILL)?;
        let asked = asks.join_next().await.context("nobody asked")?;
        refusal(asked?, Reason::HarnessUnavailable);
        session.release(false).await?;
        Ok(())
    });
}
