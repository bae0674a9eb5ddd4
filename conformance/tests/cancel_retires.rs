//! An Executor that cannot go on is retired: one that does not answer, one whose Harness or whose keeper is killed. Everything of it is gone, its
//! place is free, and no other Session notices (R-CAN-3, R-CAN-4, R-CAN-6, R-PRE-3).

use std::time::Duration;

use anyhow::Context;
use conformance::for_every_harness;
use conformance::rig::{Bystander, Harness, Observed, Process, Rig, Setup, scenario};
use proto::client::{Session, text_input};
use proto::v1::{self, CancelOutcome, EndCause, FailureCode, ToolStatus, TurnStatus, event::Kind};
use rustix::process::Signal;

for_every_harness!(
    a_harness_that_does_not_answer_is_retired_by_a_cancel,
    a_harness_that_is_killed_while_it_is_cancelled_is_a_failure,
    a_harness_that_somebody_else_kills_is_a_failure,
    what_a_killed_keeper_kept_is_gone_at_the_end_of_the_turn
);

/// Two Executors: the one that is retired, and that of a Session that does not notice.
const ROOM_FOR_TWO: &str = "max_executors = 2";
/// The command is left running; Claude Code waits for it, and Codex has the model think on.
const COMMAND: &str = r#"[{"play": [{"shell": {"command": "setsid sleep 7301 & (trap '' TERM HUP; sleep 7302) & sleep 7300", "yield_ms": 250}}]},
                          {"play": ["hang"]}]"#;

/// A Turn of the real Harness with a running command.
struct Running {
    bystander: Bystander,
    session: Session,
    ready: v1::Ready,
    /// What belongs to its Executor.
    own: Vec<Process>,
}

impl Running {
    async fn start(rig: &Rig) -> anyhow::Result<Self> {
        let bystander = rig.bystander().await?;
        let base = rig.family()?;
        rig.provider.script(COMMAND)?;
        let session = rig.session().await?;
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        session.start(&ready, "t-1", text_input("run it")).await?;
        for command in ["sleep 7300", "sleep 7301", "sleep 7302"] {
            rig.wait_for_process(|process| process.command == command).await?;
        }
        let begun = |kind: &Kind| matches!(kind, Kind::ToolStarted(_)).then_some(());
        Observed::default().until(&mut session.turn_events("t-1"), begun).await?;
        // The Executor that follows goes on with it.
        rig.wait_for_history("run it").await?;
        let now = rig.family()?;
        let known = |process: &Process| base.iter().any(|one| one.pid == process.pid && one.started == process.started);
        let own = now.into_iter().filter(|process| !known(process)).collect();
        Ok(Self { bystander, session, ready, own })
    }

    /// Sends a signal to its keeper.
    fn signal_keeper(&self, signal: Signal) -> anyhow::Result<()> {
        let found = self.own.iter().find(|process| {
            let first = process.command.split(' ').next().unwrap_or_default();
            first.rsplit('/').next() == Some("runtime-bridge-keeper")
        });
        found.with_context(|| format!("no keeper in {:#?}", self.own))?.signal(signal)
    }

    /// Sends a signal to the Harness itself.
    fn signal(&self, rig: &Rig, signal: Signal) -> anyhow::Result<()> {
        let all = rig.harnesses()?;
        let found = all.iter().find(|one| self.own.iter().any(|own| own.pid == one.pid));
        found.with_context(|| format!("no Harness in {:#?}", self.own))?.signal(signal)
    }

    async fn observed(&self) -> anyhow::Result<Observed> {
        Observed::default().to_the_end(&mut self.session.turn_events("t-1")).await
    }

    /// All of the Executor is gone and its place is free; another one goes on with the same native history.
    async fn is_retired(&self, rig: &Rig) -> anyhow::Result<()> {
        let now = rig.family()?;
        let alive: Vec<_> = self.own.iter().filter(|one| one.runs_in(&now)).collect();
        anyhow::ensure!(alive.is_empty(), "it is not gone: {alive:#?}");
        rig.provider.reset();
        self.bystander.undisturbed(rig).await?;
        let native = self.session.turn("t-1").await?.native.context("it never began")?.session_id;
        let ready = rig.resume(&self.session, rig.configuration(Vec::new()), &native).await?;
        anyhow::ensure!(ready.executor_id != self.ready.executor_id && !ready.reused, "{ready:?}");
        let seen = rig.turn_with(&self.session, &ready, "t-2", "go on").await?;
        seen.completed()?;
        anyhow::ensure!(seen.native_session()? == native, "another history");
        let asked = rig.provider.model_requests();
        let known = asked.last().is_some_and(|request| request.body.contains("run it"));
        anyhow::ensure!(known, "the history is gone: {asked:?}");
        Ok(())
    }
}

fn is_closed(seen: &Observed) -> anyhow::Result<()> {
    let closed = seen.kinds().any(|kind| match kind {
        Kind::ToolCompleted(tool) => tool.status() == ToolStatus::Incomplete && tool.exit_code.is_none(),
        _ => false,
    });
    anyhow::ensure!(closed, "the command is not closed: {:?}", seen.story());
    Ok(())
}

fn a_harness_that_does_not_answer_is_retired_by_a_cancel(harness: Harness) {
    let rules = ["R-CAN-1", "R-CAN-2", "R-CAN-3", "R-CAN-4", "R-PRE-3"];
    scenario("retire_stopped", &rules, Setup::outer().of(harness).with(ROOM_FOR_TWO), async |rig| {
        let running = Running::start(rig).await?;
        running.signal(rig, Signal::STOP)?;
        let answer = running.session.cancel("t-1", Some(Duration::from_secs(30))).await?;
        assert_eq!(answer.outcome(), CancelOutcome::Settled, "{answer:?}");
        let seen = running.observed().await?;
        let end = seen.end()?;
        assert_eq!((end.status(), end.cause()), (TurnStatus::Cancelled, EndCause::Requested), "{end:?}");
        is_closed(&seen)?;
        running.is_retired(rig).await
    });
}

fn a_harness_that_is_killed_while_it_is_cancelled_is_a_failure(harness: Harness) {
    let rules = ["R-CAN-3", "R-CAN-4", "R-CAN-6", "R-EVT-7", "R-PRE-3"];
    scenario("retire_killed", &rules, Setup::outer().of(harness).with(ROOM_FOR_TWO), async |rig| {
        let running = Running::start(rig).await?;
        // It is stopped first, so that the cancel is under way when it dies.
        running.signal(rig, Signal::STOP)?;
        let pending = running.session.cancel("t-1", Some(Duration::ZERO)).await?;
        assert_eq!(pending.outcome(), CancelOutcome::Pending);
        running.signal(rig, Signal::KILL)?;
        let answer = running.session.cancel("t-1", Some(Duration::from_secs(30))).await?;
        assert_eq!(answer.outcome(), CancelOutcome::Settled, "{answer:?}");
        let seen = running.observed().await?;
        let end = seen.end()?;
        let code = end.failure.as_ref().map(v1::Failure::code);
        assert_eq!((end.status(), code), (TurnStatus::Failed, Some(FailureCode::HarnessExited)), "{end:?}");
        is_closed(&seen)?;
        running.is_retired(rig).await
    });
}

fn a_harness_that_somebody_else_kills_is_a_failure(harness: Harness) {
    let rules = ["R-CAN-2", "R-CAN-4", "R-CAN-6", "R-EVT-7", "R-EVT-9", "R-PRE-3"];
    scenario("retire_foreign_kill", &rules, Setup::outer().of(harness).with(ROOM_FOR_TWO), async |rig| {
        let running = Running::start(rig).await?;
        running.signal(rig, Signal::KILL)?;
        let seen = running.observed().await?;
        let end = seen.end()?;
        let code = end.failure.as_ref().map(v1::Failure::code);
        assert_eq!((end.status(), code), (TurnStatus::Failed, Some(FailureCode::HarnessExited)), "{end:?}");
        is_closed(&seen)?;
        running.is_retired(rig).await
    });
}

fn what_a_killed_keeper_kept_is_gone_at_the_end_of_the_turn(harness: Harness) {
    let rules = ["R-CAN-2", "R-CAN-4", "R-EVT-7", "R-EVT-9", "R-PRE-3"];
    scenario("retire_keeper", &rules, Setup::outer().of(harness).with(ROOM_FOR_TWO), async |rig| {
        let running = Running::start(rig).await?;
        running.signal_keeper(Signal::KILL)?;
        let seen = running.observed().await?;
        let end = seen.end()?;
        let code = end.failure.as_ref().map(v1::Failure::code);
        assert_eq!((end.status(), code), (TurnStatus::Failed, Some(FailureCode::HarnessExited)), "{end:?}");
        is_closed(&seen)?;
        running.is_retired(rig).await
    });
}
