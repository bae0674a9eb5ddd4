//! A Session goes on with its native history after its Executor is gone, whatever ended it (R-PRE-4): the real Harness, and what the model
//! provider receives.

use std::time::Duration;

use anyhow::Context;
use conformance::provider::Recorded;
use conformance::rig::{Daemon, Harness, Observed, Rig, Setup, function, refusal, scenario, text_result};
use conformance::{for_each_harness, for_every_harness};
use proto::client::{Session, text_input};
use proto::v1::{self, Reason, ResultOutcome, event::Kind};
use rustix::process::Signal;

for_every_harness!(a_session_whose_turns_never_ran_begins_anew);

// What it looks at is different, or missing, with agents behind ACP.
for_each_harness!(
    after_a_restart_everything_is_as_it_was,
    after_a_kill_of_the_daemon_in_a_call_the_session_goes_on,
    after_a_kill_of_the_harness_the_session_goes_on,
    after_a_cancel_that_took_the_ladder_the_session_goes_on
);

const SCHEMA: &str = r#"{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"number"}},"required":["z"]}"#;

fn configuration(rig: &Rig) -> v1::ExecutionConfiguration {
    let functions = vec![function("lookup", SCHEMA), function("alpha", SCHEMA)];
    v1::ExecutionConfiguration { instructions: "Answer in one word.".into(), ..rig.configuration(functions) }
}

/// The first Turn of a Session, and the native history that it began.
async fn first_turn(rig: &Rig, session: &Session) -> anyhow::Result<String> {
    let ready = rig.prepare(session, configuration(rig)).await?;
    let seen = rig.turn_with(session, &ready, "t-1", "first").await?;
    seen.completed()?;
    // A Harness tells of the end a moment before it stands in its history, and may be killed soon.
    rig.wait_for_history(match rig.kind() {
        Harness::Codex => "task_complete",
        Harness::ClaudeCode => r#""stop_reason":"end_turn""#,
        Harness::MinimaxCode | Harness::Opencode => rig.kind().has_nothing_here(),
    })
    .await?;
    seen.native_session()
}

/// The later request repeats all that the earlier one had, with the same tools and settings, and adds to it.
fn goes_on_from(earlier: &Recorded, later: &Recorded) {
    let (before, after) = (earlier.conversation(), later.conversation());
    assert!(after.len() > before.len() + 1, "{after:#?}");
    assert_eq!(after[..before.len()], before[..]);
    for part in
        ["tools", "model", "instructions", "tool_choice", "parallel_tool_calls", "reasoning", "text", "thinking"]
    {
        assert_eq!(earlier.json()[part], later.json()[part], "{part}");
    }
}

/// A new Executor, once the daemon knows that the old one is gone.
async fn anew(rig: &Rig, session: &Session, native: &str) -> anyhow::Result<v1::Ready> {
    let client = rig.client().await?;
    let mut looks = tokio::time::interval(Duration::from_millis(10));
    loop {
        looks.tick().await;
        let ready = match rig.resume(session, configuration(rig), native).await {
            Err(error) if error.reason() == Some(Reason::SessionBusy) => continue,
            ready => ready?,
        };
        if !ready.reused {
            return Ok(ready);
        }
        let (assignment, handle) = (Some(session.assignment().clone()), ready.handle);
        match client.release_preparation(v1::ReleasePreparationRequest { assignment, handle }).await {
            // The end of the Executor ends its handles.
            Err(error) if error.reason() == Some(Reason::HandleExpired) => {}
            released => drop(released?),
        }
    }
}

fn after_a_restart_everything_is_as_it_was(harness: Harness) {
    let rules = ["R-PRE-2", "R-PRE-4", "R-FN-1", "R-EVT-4", "R-CAP-2"];
    scenario(
        "resume_restart",
        &rules,
        Setup::outer().of(harness).needing(v1::Capability::SessionResume),
        async |rig| {
            let session = rig.session().await?;
            let native = first_turn(rig, &session).await?;
            rig.daemon.terminate().await?;
            rig.daemon = Daemon::start(rig.place()).await?;

            // Nothing is replaced: the history must be named, and nothing is started before.
            let refused = session.prepare(configuration(rig), Vec::new()).await;
            let refused = refusal(refused, Reason::NativeHistoryUnavailable).at("resume").with("history", "not_named");
            refused.with("native_session_id", &native);
            rig.only(&[]).await?;

            let ready = rig.resume(&session, configuration(rig), &native).await?;
            assert!(!ready.reused && !ready.settings_changed, "{ready:?}");
            assert_eq!(rig.provider.model_requests().len(), 1, "a preparation asks no model");
            let second = rig.turn_with(&session, &ready, "t-2", "second").await?;
            second.completed()?;
            assert_eq!(second.native_session()?, native);
            let requests = rig.provider.model_requests();
            goes_on_from(&requests[0], &requests[1]);
            // Usage is that of this Turn, not of the whole history.
            let usage = second.end()?.usage.context("no usage")?;
            assert_eq!((usage.input_tokens, usage.total_tokens), (Some(100), Some(120)));

            // With an Executor the history may be named or not, as long as it is this one.
            let third = rig.prepare(&session, configuration(rig)).await?;
            assert!(third.reused);
            rig.turn_with(&session, &third, "t-3", "third").await?.completed()?;
            let fourth = rig.resume(&session, configuration(rig), &native).await?;
            assert!(fourth.reused);
            rig.turn_with(&session, &fourth, "t-4", "fourth").await?.completed()?;
            let requests = rig.provider.model_requests();
            goes_on_from(&requests[1], &requests[3]);
            Ok(())
        },
    );
}

fn after_a_kill_of_the_daemon_in_a_call_the_session_goes_on(harness: Harness) {
    let rules = ["R-DUR-2", "R-PRE-4", "R-FN-5", "R-API-6"];
    scenario("resume_kill", &rules, Setup::outer().of(harness).needing(v1::Capability::SessionResume), async |rig| {
        let session = rig.session().await?;
        let native = first_turn(rig, &session).await?;
        rig.provider.script(
            r#"[{"play": [{"calls": [
                {"name": "lookup", "call_id": "c1", "arguments": "{\"z\":\"a\"}"},
                {"name": "alpha", "call_id": "c2", "arguments": "{\"z\":\"b\"}"}]}]},
                {"after": "outputs", "match": "interrupted before a result was received", "play": ["hang"]}]"#,
        )?;
        let ready = rig.prepare(&session, configuration(rig)).await?;
        session.start(&ready, "t-2", text_input("look it up")).await?;
        let (mut events, mut seen) = (session.turn_events("t-2"), Observed::default());
        seen.call(&mut events).await?;
        seen.call(&mut events).await?;
        session.submit(vec![text_result("t-2", "c1", "42")]).await?;
        seen.until(&mut events, |kind| matches!(kind, Kind::FunctionResultApplied(_)).then_some(())).await?;
        // A Harness tells of the result a moment before it stands in its history.
        rig.wait_for_result("c1").await?;
        let family = rig.family()?;
        rig.daemon.kill().await?;
        rig.all_gone(&family).await?;
        rig.daemon = Daemon::start(rig.place()).await?;

        let turn = session.turn("t-2").await?;
        let ended = turn.ended.context("it goes on")?;
        assert_eq!((ended.status(), ended.reconciled), (v1::TurnStatus::Unknown, false));
        assert!(session.start(&ready, "t-2", text_input("look it up")).await?.duplicate);
        let ready = rig.resume(&session, configuration(rig), &native).await?;
        let again = session.submit(vec![text_result("t-2", "c1", "42")]).await?;
        assert_eq!(again[0].outcome(), ResultOutcome::Duplicate);
        refusal(session.submit(vec![text_result("t-2", "c2", "42")]).await, Reason::CallAbandoned);
        let seen = rig.turn_with(&session, &ready, "t-3", "go on").await?;
        seen.completed()?;
        assert_eq!(seen.native_session()?, native);
        // The model reads the stored result once, and of the other call that it came to nothing.
        let requests = rig.provider.model_requests();
        let last = requests.last().context("no request")?;
        goes_on_from(&requests[1], last);
        assert_eq!(last.output("c1"), Some("42".into()));
        assert!(last.output("c2").is_some_and(|output| output.is_string()), "{:?}", last.output("c2"));
        Ok(())
    });
}

fn after_a_kill_of_the_harness_the_session_goes_on(harness: Harness) {
    let rules = ["R-EVT-7", "R-PRE-4", "R-CAN-3", "R-CAN-6"];
    scenario(
        "resume_harness",
        &rules,
        Setup::outer().of(harness).needing(v1::Capability::SessionResume),
        async |rig| {
            let session = rig.session().await?;
            let native = first_turn(rig, &session).await?;
            let (mut events, seen) = rig.half_way(&session, configuration(rig), "t-2").await?;
            rig.harness()?.signal(Signal::KILL)?;
            let seen = seen.to_the_end(&mut events).await?;
            let failed = seen.end()?;
            assert_eq!((failed.status(), failed.reconciled), (v1::TurnStatus::Failed, false), "{failed:?}");
            rig.only(&[]).await?;

            refusal(session.prepare(configuration(rig), Vec::new()).await, Reason::NativeHistoryUnavailable);
            let ready = rig.resume(&session, configuration(rig), &native).await?;
            rig.provider.script(r#"[{"play": [{"text": {"chunks": ["said again"]}}]}]"#)?;
            rig.turn_with(&session, &ready, "t-3", "again").await?.completed()?;
            // It is killed while it is idle, too, with all of the Turn in its history.
            rig.wait_for_history(match harness {
                Harness::Codex => r#""last_agent_message":"said again""#,
                Harness::ClaudeCode => r#""text":"said again""#,
                Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
            })
            .await?;
            rig.harness()?.signal(Signal::KILL)?;
            let ready = anew(rig, &session, &native).await?;
            rig.turn_with(&session, &ready, "t-4", "and again").await?.completed()?;
            let requests = rig.provider.model_requests();
            goes_on_from(&requests[0], &requests[2]);
            goes_on_from(&requests[2], &requests[3]);
            Ok(())
        },
    );
}

fn after_a_cancel_that_took_the_ladder_the_session_goes_on(harness: Harness) {
    let rules = ["R-CAN-3", "R-CAN-4", "R-PRE-4"];
    scenario("resume_ladder", &rules, Setup::outer().of(harness).needing(v1::Capability::SessionResume), async |rig| {
        let session = rig.session().await?;
        let native = first_turn(rig, &session).await?;
        rig.half_way(&session, configuration(rig), "t-2").await?;
        // It hears neither the interrupt nor anything gentler than a kill.
        rig.harness()?.signal(Signal::STOP)?;
        let answer = session.cancel("t-2", None).await?;
        assert_eq!(answer.outcome(), v1::CancelOutcome::Settled);
        let ended = answer.turn.and_then(|turn| turn.ended).context("no end")?;
        assert_eq!(ended.status(), v1::TurnStatus::Cancelled, "{ended:?}");
        let ready = anew(rig, &session, &native).await?;
        rig.turn_with(&session, &ready, "t-3", "again").await?.completed()?;
        let requests = rig.provider.model_requests();
        goes_on_from(&requests[0], &requests[2]);
        Ok(())
    });
}

fn a_session_whose_turns_never_ran_begins_anew(harness: Harness) {
    scenario(
        "resume_nothing",
        &["R-PRE-4", "R-DUR-2"],
        Setup::outer().of(harness).needing(v1::Capability::SessionResume),
        async |rig| {
            let session = rig.session().await?;
            let ready = rig.prepare(&session, configuration(rig)).await?;
            let none = rig.resume(&session, configuration(rig), "01a22b63-4fd1-7d92-b9c4-22060c57f91f").await;
            refusal(none, Reason::SessionBusy);
            let release = v1::ReleasePreparationRequest {
                assignment: Some(session.assignment().clone()),
                handle: ready.handle.clone(),
            };
            rig.client().await?.release_preparation(release).await?;
            rig.daemon.kill().await?;
            rig.daemon = Daemon::start(rig.place()).await?;
            rig.whole_turn(&session, "t-1", "hello").await?.completed()
        },
    );
}
