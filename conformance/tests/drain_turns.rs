//! Draining (R-DUR-3): nothing new begins, what runs may finish, what only waits holds nothing up; by the RPC and by signals.

use std::time::Duration;

use anyhow::Context;
use conformance::child::fault::{Fault, MARK, Place};
use conformance::rig::{
    Daemon, Ended, Harness, Isolation, MODEL_KEY, Observed, Rig, Setup, function, refusal, scenario, text_result,
};
use conformance::{for_each_harness, for_every_harness};
use proto::client::{Messages, Session, text_input};
use proto::v1::{self, ExecutorState, Reason, event::Kind, watch_runtime_response::News};
use rustix::process::Signal;
use tokio::task::JoinSet;

for_every_harness!(
    a_turn_that_only_waits_holds_nothing_up,
    what_still_runs_at_the_deadline_is_interrupted,
    a_second_signal_does_not_wait_for_what_runs
);

// What it looks at is different, or missing, with agents behind ACP.
for_each_harness!(
    a_turn_that_waits_may_be_answered_while_another_one_runs,
    what_runs_finishes_and_nothing_new_begins,
    health_says_that_a_daemon_which_drains_does_not_serve,
    a_preparation_at_work_is_given_up,
    a_signal_waits_for_what_runs,
    a_drain_goes_on_without_those_who_asked_for_it_and_is_answered_before_the_daemon_leaves
);

/// A first answer that waits for the gate `go` and then breaks off, and a second one that is whole.
const HELD: &str =
    r#"{"match": "please-hold", "play": [{"text": {"chunks": ["so"], "open": true}}, {"gate": "go"}, "drop"]}"#;
/// A call of the function `lookup`.
const CALL: &str =
    r#"{"match": "please-call", "play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]}"#;

const LOOKUP: &str = r#"{"type":"object"}"#;

fn what_runs_finishes_and_nothing_new_begins(harness: Harness) {
    scenario(
        "drain_finishes",
        &["R-DUR-3", "R-PRE-7", "R-API-6"],
        Setup::outer().of(harness).with(LONG),
        async |rig| {
            rig.provider.script(&format!("[{HELD}]"))?;
            let busy = rig.session().await?;
            let mut events = held(rig, &busy).await?;
            let ready_one = rig.session().await?;
            let ready = rig.prepare(&ready_one, rig.configuration(Vec::new())).await?;
            let fresh = rig.session().await?;
            let (mut drain, mut watch) = begin(rig).await?;
            wait_for_drain(&mut watch).await?;
            refusal(fresh.prepare(rig.configuration(Vec::new()), Vec::new()).await, Reason::Draining);
            refusal(ready_one.start(&ready, "t-1", text_input("hello")).await, Reason::Draining);
            // Known identities are answered as ever.
            let again = busy.start(&v1::Ready::default(), "t-1", text_input("please-hold")).await?;
            assert!(again.duplicate);
            // Nobody needs an idle Executor any more.
            executor_becomes(rig, &ready_one, ExecutorState::None).await?;
            assert!(drain.answer().is_none());
            rig.provider.open_gate("go");
            let seen = Observed::default().to_the_end(&mut events).await?;
            seen.completed()?;
            assert_eq!(drain.over().await?, v1::DrainResponse::default());
            // A second one joins the first, and the daemon serves everything else.
            let client = rig.client().await?;
            assert_eq!(client.drain(v1::DrainRequest {}).await?, v1::DrainResponse::default());
            executor_becomes(rig, &busy, ExecutorState::None).await?;
            let again = Observed::default().to_the_end(&mut busy.turn_events("t-1")).await?;
            assert_eq!(again.events, seen.events);
            refusal(busy.prepare(rig.configuration(Vec::new()), Vec::new()).await, Reason::Draining);
            busy.release(false).await?;
            // The stream of a watcher ends with the daemon.
            rig.daemon.signal(Signal::TERM)?;
            while watch.next().await?.is_some() {}
            assert_eq!(rig.daemon.wait(Duration::from_secs(20)).await?, Ended::Code(0));
            rig.daemon = Daemon::start(rig.place()).await?;
            rig.whole_turn(&fresh, "t-1", "hello").await?.completed()
        },
    );
}

/// Who routes by health sends nothing more to a daemon that drains, and what is under way goes on.
fn health_says_that_a_daemon_which_drains_does_not_serve(harness: Harness) {
    scenario("drain_health", &["R-DUR-3", "R-OBS-1"], Setup::outer().of(harness).with(LONG), async |rig| {
        rig.provider.script(&format!("[{HELD}]"))?;
        let session = rig.session().await?;
        let mut events = held(rig, &session).await?;
        let mut told = Vec::new();
        for service in ["", "runtime_bridge.v1.Runtime"] {
            let mut health = rig.daemon.watch_health(service).await?;
            assert!(health.serves().await?, "{service:?} before the drain");
            told.push((service, health));
        }
        let (drain, _watch) = begin(rig).await?;
        for (service, health) in &mut told {
            assert!(!health.serves().await?, "{service:?} in the drain");
        }
        rig.provider.open_gate("go");
        Observed::default().to_the_end(&mut events).await?.completed()?;
        drain.over().await?;
        for (service, _) in told {
            assert!(!rig.daemon.watch_health(service).await?.serves().await?, "{service:?} after the drain");
        }
        Ok(())
    });
}

fn a_turn_that_only_waits_holds_nothing_up(harness: Harness) {
    scenario("drain_waiting", &["R-DUR-3", "R-FN-7", "R-EVT-3"], Setup::outer().of(harness).with(LONG), async |rig| {
        rig.provider.script(&format!("[{CALL}]"))?;
        let session = rig.session().await?;
        let (mut events, mut seen) = called(rig, &session).await?;
        // The scenario's own limit is far below the drain timeout.
        let answer = rig.client().await?.drain(v1::DrainRequest {}).await?;
        assert_eq!(named(&answer.waiting_turns), [(session.assignment().session_id.as_str(), "t-1")]);
        assert_eq!((answer.interrupted_turns.len(), answer.executors_unconfirmed), (0, 0));
        seen = seen.to_the_end(&mut events).await?;
        is_stopped(&seen)?;
        let abandoned = seen.kinds().find_map(|kind| match kind {
            Kind::FunctionCallAbandoned(abandoned) => Some(abandoned.reason()),
            _ => None,
        });
        assert_eq!(abandoned, Some(v1::AbandonReason::ExecutionLost));
        refusal(session.submit(vec![text_result("t-1", seen.call_id()?, "42")]).await, Reason::CallAbandoned);
        assert_eq!(rig.client().await?.drain(v1::DrainRequest {}).await?, answer, "the same answer again");
        Ok(())
    });
}

fn a_turn_that_waits_may_be_answered_while_another_one_runs(harness: Harness) {
    scenario("drain_answered", &["R-DUR-3", "R-FN-5"], Setup::outer().of(harness).with(LONG), async |rig| {
        rig.provider.script(&format!("[{HELD}, {CALL}]"))?;
        let busy = rig.session().await?;
        let mut held = held(rig, &busy).await?;
        let waiting = rig.session().await?;
        let (mut events, seen) = called(rig, &waiting).await?;
        let (drain, mut watch) = begin(rig).await?;
        wait_for_drain(&mut watch).await?;
        waiting.submit(vec![text_result("t-1", seen.call_id()?, "42")]).await?;
        seen.to_the_end(&mut events).await?.completed()?;
        rig.provider.open_gate("go");
        Observed::default().to_the_end(&mut held).await?.completed()?;
        assert_eq!(drain.over().await?, v1::DrainResponse::default());
        Ok(())
    });
}

fn a_preparation_at_work_is_given_up(harness: Harness) {
    let setup = Setup { isolation: Isolation::Outer, ..Setup::child_of(harness) }.with(LONG);
    scenario("drain_preparing", &["R-DUR-3", "R-PRE-7", "R-CAN-4"], setup, async |rig| {
        let child = rig.child.clone().context("a child")?;
        child.play(harness.with_fault(Place::AtThreadStart, Fault::Hangs))?;
        let session = rig.session().await?;
        let (preparing, configuration) = (session.clone(), rig.configuration(Vec::new()));
        let mut prepared = JoinSet::new();
        prepared.spawn(async move { preparing.prepare(configuration, Vec::new()).await });
        child.wait_for_mark(MARK).await?;
        let answer = rig.client().await?.drain(v1::DrainRequest {}).await?;
        assert_eq!(answer, v1::DrainResponse::default());
        rig.only(&[]).await?;
        refusal(prepared.join_next().await.context("nobody waits")??, Reason::Draining);
        Ok(())
    });
}

/// An owner that is at work while the drain begins hears of it and of a newer credential in either order.
#[test]
fn a_newer_credential_prepares_nothing_in_a_drain() {
    let setup = Setup {
        failpoints: Some("journal.acknowledge.before=delay:500".into()),
        ..Setup::outer().with(LONG).without_gateway().bridge("a credential and a drain meet in the Session's owner")
    };
    scenario("drain_credential", &["R-DUR-3", "R-PRE-6", "R-PRE-7", "R-CAN-4"], setup, async |rig| {
        let client = rig.client().await?;
        let (mut preparations, mut acknowledged) = (Vec::new(), JoinSet::new());
        for _ in 0..4 {
            let session = rig.session().await?;
            rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
            let preparation = |key: &str| v1::PrepareExecutionRequest {
                assignment: Some(session.assignment().clone()),
                preparation_id: "p-1".into(),
                configuration: Some(rig.configuration(Vec::new())),
                credentials: vec![v1::Credential { name: "model".into(), value: key.into() }],
                resume: None,
            };
            assert!(client.prepare(preparation(MODEL_KEY)).await?.reused);
            preparations.push((session.clone(), preparation("sk-newer")));
        }
        for (session, _) in &preparations {
            let session = session.clone();
            acknowledged.spawn(async move { session.acknowledge("t-1", 1).await });
        }
        let (drain, mut watch) = begin(rig).await?;
        wait_for_drain(&mut watch).await?;
        let mut answers = JoinSet::new();
        for (_, preparation) in preparations {
            let client = client.clone();
            answers.spawn(async move { client.prepare(preparation).await });
        }
        while let Some(answer) = answers.join_next().await {
            let error = answer?.err().context("something was prepared")?;
            // The end of its Executor ends a handle.
            assert!(matches!(error.reason(), Some(Reason::Draining | Reason::HandleExpired)), "{error:?}");
        }
        while let Some(through) = acknowledged.join_next().await {
            assert_eq!(through??, 1);
        }
        assert_eq!(drain.over().await?, v1::DrainResponse::default());
        rig.only(&[]).await
    });
}

fn what_still_runs_at_the_deadline_is_interrupted(harness: Harness) {
    scenario(
        "drain_deadline",
        &["R-DUR-3", "R-EVT-3", "R-CAN-4"],
        Setup::outer().of(harness).with(SHORT),
        async |rig| {
            rig.provider.script(&format!("[{HELD}, {CALL}]"))?;
            let busy = rig.session().await?;
            let mut held = held(rig, &busy).await?;
            let waiting = rig.session().await?;
            let (mut events, seen) = called(rig, &waiting).await?;
            let family = rig.family()?;
            let answer = rig.client().await?.drain(v1::DrainRequest {}).await?;
            assert_eq!(named(&answer.interrupted_turns), [(busy.assignment().session_id.as_str(), "t-1")]);
            assert_eq!(named(&answer.waiting_turns), [(waiting.assignment().session_id.as_str(), "t-1")]);
            // Over means over: nothing native is left, at this very moment.
            let alive: Vec<_> = rig.family()?.into_iter().filter(|process| family.contains(process)).collect();
            assert!(alive.is_empty(), "{alive:#?}");
            is_stopped(&Observed::default().to_the_end(&mut held).await?)?;
            is_stopped(&seen.to_the_end(&mut events).await?)
        },
    );
}

fn a_signal_waits_for_what_runs(harness: Harness) {
    for signal in [Signal::TERM, Signal::INT] {
        let name = if signal == Signal::TERM { "drain_sigterm" } else { "drain_sigint" };
        scenario(name, &["R-DUR-3"], Setup::outer().of(harness).with(LONG), async |rig| {
            rig.provider.script(&format!("[{HELD}]"))?;
            let session = rig.session().await?;
            let mut events = held(rig, &session).await?;
            let mut watch = watch(rig).await?;
            rig.daemon.signal(signal)?;
            wait_for_drain(&mut watch).await?;
            let fresh = rig.session().await?;
            refusal(fresh.prepare(rig.configuration(Vec::new()), Vec::new()).await, Reason::Draining);
            rig.provider.open_gate("go");
            Observed::default().to_the_end(&mut events).await?.completed()?;
            while watch.next().await?.is_some() {}
            assert_eq!(rig.daemon.wait(Duration::from_secs(20)).await?, Ended::Code(0));
            Ok(())
        });
    }
}

fn a_drain_goes_on_without_those_who_asked_for_it_and_is_answered_before_the_daemon_leaves(harness: Harness) {
    scenario("drain_joined", &["R-DUR-3", "R-API-5", "R-API-8"], Setup::outer().of(harness).with(LONG), async |rig| {
        rig.provider.script(&format!("[{HELD}]"))?;
        let session = rig.session().await?;
        let mut events = held(rig, &session).await?;
        let (dropped, mut watch) = begin(rig).await?;
        wait_for_drain(&mut watch).await?;
        drop(dropped);
        let (joined, mut again) = begin(rig).await?;
        // A later watcher is told as well.
        wait_for_drain(&mut again).await?;
        rig.daemon.signal(Signal::TERM)?;
        rig.provider.open_gate("go");
        Observed::default().to_the_end(&mut events).await?.completed()?;
        assert_eq!(joined.over().await?, v1::DrainResponse::default());
        assert_eq!(rig.daemon.wait(Duration::from_secs(20)).await?, Ended::Code(0));
        Ok(())
    });
}

fn a_second_signal_does_not_wait_for_what_runs(harness: Harness) {
    scenario("drain_hurried", &["R-DUR-3"], Setup::outer().of(harness).with(LONG), async |rig| {
        rig.provider.script(&format!("[{HELD}]"))?;
        let session = rig.session().await?;
        let mut events = held(rig, &session).await?;
        let mut watch = watch(rig).await?;
        rig.daemon.signal(Signal::TERM)?;
        wait_for_drain(&mut watch).await?;
        assert!(session.turn("t-1").await?.ended.is_none());
        rig.daemon.signal(Signal::TERM)?;
        is_stopped(&Observed::default().to_the_end(&mut events).await?)?;
        assert_eq!(rig.daemon.wait(Duration::from_secs(20)).await?, Ended::Code(0));
        Ok(())
    });
}

/// A drain that would wait for longer than a scenario may take.
const LONG: &str = "[limits]\ndrain_timeout_ms = 600000\nwatch_ms = 100";
const SHORT: &str = "[limits]\ndrain_timeout_ms = 300";

/// A Turn `t-1` that runs until the gate is opened.
async fn held(rig: &Rig, session: &Session) -> anyhow::Result<proto::client::TurnEvents> {
    let mut events = rig.start_turn(session, rig.configuration(Vec::new()), "t-1", "please-hold").await?;
    Observed::default().until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
    Ok(session.turn_events("t-1"))
}

/// A Turn `t-1` that waits for the result of a call.
async fn called(rig: &Rig, session: &Session) -> anyhow::Result<(proto::client::TurnEvents, Observed)> {
    let configuration = rig.configuration(vec![function("lookup", LOOKUP)]);
    let mut events = rig.start_turn(session, configuration, "t-1", "please-call").await?;
    let mut seen = Observed::default();
    seen.call(&mut events).await?;
    Ok((events, seen))
}

/// A drain on its way.
struct Draining(JoinSet<Result<v1::DrainResponse, proto::client::Error>>);

impl Draining {
    /// Its answer, when it is there.
    fn answer(&mut self) -> Option<Result<v1::DrainResponse, proto::client::Error>> {
        self.0.try_join_next().and_then(Result::ok)
    }

    async fn over(mut self) -> anyhow::Result<v1::DrainResponse> {
        Ok(self.0.join_next().await.context("it is over already")???)
    }
}

/// Begins a drain beside a watcher.
async fn begin(rig: &Rig) -> anyhow::Result<(Draining, Messages<v1::WatchRuntimeResponse>)> {
    let watch = watch(rig).await?;
    let client = rig.client().await?;
    let mut draining = JoinSet::new();
    draining.spawn(async move { client.drain(v1::DrainRequest {}).await });
    Ok((Draining(draining), watch))
}

async fn watch(rig: &Rig) -> anyhow::Result<Messages<v1::WatchRuntimeResponse>> {
    Ok(rig.client().await?.watch_runtime(v1::WatchRuntimeRequest {}).await?)
}

async fn wait_for_drain(watch: &mut Messages<v1::WatchRuntimeResponse>) -> anyhow::Result<()> {
    loop {
        let message = watch.next().await?.context("the bridge left")?;
        if let Some(News::Drain(notice)) = message.news {
            anyhow::ensure!(notice.deadline.is_some(), "no deadline");
            return Ok(());
        }
    }
}

/// Waits until a Session is listed with this state; the heartbeats give the rhythm.
async fn executor_becomes(rig: &Rig, session: &Session, state: ExecutorState) -> anyhow::Result<()> {
    let mut rhythm = watch(rig).await?;
    let session_id = Some(session.assignment().session_id.clone());
    loop {
        let request = v1::ListSessionsRequest { session_id: session_id.clone(), ..Default::default() };
        let listed = rig.client().await?.list_sessions(request).await?.sessions;
        if listed.first().context("it is not listed")?.executor() == state {
            return Ok(());
        }
        rhythm.next().await?.context("the bridge left")?;
    }
}

fn named(turns: &[v1::DrainedTurn]) -> Vec<(&str, &str)> {
    turns.iter().map(|turn| (turn.session_id.as_str(), turn.turn_id.as_str())).collect()
}

fn is_stopped(seen: &Observed) -> anyhow::Result<()> {
    let end = seen.end()?;
    let want = (v1::TurnStatus::Cancelled, v1::EndCause::BridgeStopped);
    anyhow::ensure!((end.status(), end.cause()) == want, "{end:?}");
    Ok(())
}
