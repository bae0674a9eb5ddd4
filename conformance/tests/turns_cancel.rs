//! Cancelling: at every moment of a Turn, once or twice, with and without waiting; nothing native is left, and the
//! Session goes on.

use std::time::Duration;

use anyhow::Context;
use conformance::rig::{Harness, Observed, Rig, Setup, function, refused, scenario, text_result};
use conformance::{for_each_harness, for_every_harness};
use proto::client::{Session, TurnEvents, text_input};
use proto::v1::event::Kind;
use proto::v1::{self, CancelOutcome, Reason, TurnStatus};

for_every_harness!(
    a_cancel_while_the_model_streams_voids_the_message,
    a_cancel_stops_a_command_and_what_it_started,
    a_cancel_abandons_the_call_that_waits,
    a_cancel_right_behind_the_start_is_never_lost,
    a_second_cancel_changes_nothing,
    a_finished_turn_answers_how_it_ended,
    a_cancel_that_does_not_wait_tells_the_phase_and_goes_on,
    a_cancel_works_while_the_provider_says_nothing_at_all
);

// What it looks at is different, or missing, with agents behind ACP.
for_each_harness!(a_cancel_works_while_a_request_is_tried_again);

fn a_cancel_while_the_model_streams_voids_the_message(harness: Harness) {
    let rules = ["R-CAN-1", "R-CAN-2", "R-CAN-3", "R-EVT-2", "R-EVT-3"];
    scenario("cancel_stream", &rules, Setup::outer().of(harness).patient(), async |rig| {
        rig.provider
            .script(r#"[{"play": [{"text": {"chunks": ["half ", "a thought"], "open": true}}, {"gate": "never"}]}]"#)?;
        let session = rig.session().await?;
        let mut events = start(rig, &session, "t-1", "think").await?;
        let mut seen = Observed::default();
        seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
        let answer = session.cancel("t-1", None).await?;
        assert_eq!(answer.outcome(), CancelOutcome::Settled);
        let seen = seen.to_the_end(&mut events).await?;
        cancelled(&seen)?;
        assert_eq!(answer.turn.as_ref().and_then(|turn| turn.ended.clone()).as_ref(), Some(seen.end()?));
        assert!(answer.turn.is_some_and(|turn| turn.cancel_requested));
        let discarded = seen.kinds().find_map(|kind| match kind {
            Kind::MessageDiscarded(discarded) => Some(discarded.reason()),
            _ => None,
        });
        assert_eq!(discarded, Some(v1::DiscardReason::Interrupted));
        // The provider sees its client go.
        rig.provider.wait_for(|requests| requests[0].end.is_some()).await?;
        goes_on(rig, &session, "think").await
    });
}

fn a_cancel_stops_a_command_and_what_it_started(harness: Harness) {
    let rules = ["R-CAN-2", "R-CAN-3", "R-EVT-2", "R-EVT-9"];
    scenario("cancel_command", &rules, Setup::outer().of(harness).patient(), async |rig| {
        rig.provider.script(
            r#"[{"play": [{"shell": {"command": "setsid sleep 63 & (trap '' TERM HUP; sleep 64) & echo up; sleep 60", "yield_ms": 30000}}]}]"#,
        )?;
        let session = rig.session().await?;
        let mut events = start(rig, &session, "t-1", "wait").await?;
        let mut seen = Observed::default();
        seen.until(&mut events, |kind| matches!(kind, Kind::ToolStarted(_)).then_some(())).await?;
        for seconds in [60, 63, 64] {
            appears(rig, &format!("sleep {seconds}")).await?;
        }
        let answer = session.cancel("t-1", None).await?;
        assert_eq!(answer.outcome(), CancelOutcome::Settled);
        // Settled means gone, at this very moment.
        let left: Vec<_> = rig.family()?.into_iter().filter(|process| process.command.starts_with("sleep 6")).collect();
        assert!(left.is_empty(), "{left:#?}");
        let seen = seen.to_the_end(&mut events).await?;
        cancelled(&seen)?;
        let tool = seen.kinds().find_map(|kind| if let Kind::ToolCompleted(end) = kind { Some(end) } else { None });
        assert_eq!(tool.map(v1::ToolCompleted::status), Some(v1::ToolStatus::Incomplete));
        assert_eq!(tool.and_then(|tool| tool.exit_code), None);
        goes_on(rig, &session, "wait").await
    });
}

fn a_cancel_abandons_the_call_that_waits(harness: Harness) {
    scenario("cancel_call", &["R-CAN-1", "R-FN-3", "R-FN-7"], Setup::outer().of(harness).patient(), async |rig| {
        rig.provider.script(r#"[{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]}]"#)?;
        let session = rig.session().await?;
        let configuration = rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)]);
        let mut events = rig.start_turn(&session, configuration.clone(), "t-1", "look it up").await?;
        let mut seen = Observed::default();
        let call = seen.call(&mut events).await?;
        let answer = session.cancel("t-1", None).await?;
        assert_eq!(answer.outcome(), CancelOutcome::Settled);
        assert_eq!(answer.turn.map(|turn| turn.required_actions), Some(vec![]));
        let seen = seen.to_the_end(&mut events).await?;
        cancelled(&seen)?;
        let abandoned = seen.kinds().find_map(|kind| match kind {
            Kind::FunctionCallAbandoned(call) => Some((call.call_id.as_str(), call.reason())),
            _ => None,
        });
        let (call_id, reason) = abandoned.unwrap_or_default();
        assert_eq!(call_id, call.call_id);
        assert_eq!(reason, v1::AbandonReason::NativeCancelled);
        refused(session.submit(vec![text_result("t-1", &call.call_id, "late")]).await, Reason::TurnCancelled)?;
        let ready = rig.prepare_again(&session, configuration).await?;
        rig.turn_with(&session, &ready, "t-2", "and now").await?.completed()
    });
}

fn a_cancel_right_behind_the_start_is_never_lost(harness: Harness) {
    scenario("cancel_at_once", &["R-CAN-1", "R-CAN-3", "R-STA-2"], Setup::outer().of(harness).patient(), async |rig| {
        rig.provider
            .script(r#"[{"always": true, "play": [{"text": {"chunks": ["on and on"], "open": true}}, "hang"]}]"#)?;
        let session = rig.session().await?;
        // A process that is replaced with each cancel is not so often.
        let rounds = if harness.outlives_a_cancel() { 20 } else { 4 };
        for round in 1..=rounds {
            let turn_id = format!("t-{round}");
            let configuration = rig.configuration(Vec::new());
            let ready = match round {
                1 => rig.prepare(&session, configuration).await,
                _ => rig.prepare_again(&session, configuration).await,
            };
            let ready = ready.with_context(|| format!("round {round}"))?;
            session.start(&ready, &turn_id, text_input("go on for ever")).await?;
            let answer = session.cancel(&turn_id, None).await?;
            assert_eq!(answer.outcome(), CancelOutcome::Settled, "round {round}");
            let seen = Observed::default().to_the_end(&mut session.turn_events(&turn_id)).await?;
            cancelled(&seen)?;
        }
        Ok(())
    });
}

fn a_second_cancel_changes_nothing(harness: Harness) {
    scenario("cancel_twice", &["R-CAN-1", "R-API-6"], Setup::outer().of(harness), async |rig| {
        rig.provider.script(r#"[{"play": [{"text": {"chunks": ["half"], "open": true}}, "hang"]}]"#)?;
        let session = rig.session().await?;
        let mut events = start(rig, &session, "t-1", "think").await?;
        let mut seen = Observed::default();
        seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
        let (one, two) = tokio::join!(session.cancel("t-1", None), session.cancel("t-1", None));
        let three = session.cancel("t-1", Some(Duration::ZERO)).await?;
        let seen = seen.to_the_end(&mut events).await?;
        cancelled(&seen)?;
        for answer in [one?, two?, three] {
            assert_eq!(answer.outcome(), CancelOutcome::Settled);
            assert_eq!(answer.turn.and_then(|turn| turn.ended).as_ref(), Some(seen.end()?));
        }
        Ok(())
    });
}

fn a_finished_turn_answers_how_it_ended(harness: Harness) {
    scenario("cancel_finished", &["R-CAN-1", "R-CAN-5"], Setup::outer().of(harness), async |rig| {
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "hello").await?;
        let answer = session.cancel("t-1", None).await?;
        assert_eq!(answer.outcome(), CancelOutcome::Settled);
        assert_eq!(answer.turn.and_then(|turn| turn.ended).as_ref(), Some(seen.end()?));
        seen.completed()?;
        refused(session.cancel("t-9", None).await, Reason::NotFound)?;
        Ok(())
    });
}

fn a_cancel_that_does_not_wait_tells_the_phase_and_goes_on(harness: Harness) {
    scenario("cancel_pending", &["R-CAN-1"], Setup::outer().of(harness), async |rig| {
        rig.provider.script(
            r#"[{"play": [{"shell": {"command": "(trap '' TERM HUP; sleep 65) & sleep 66", "yield_ms": 30000}}]}]"#,
        )?;
        let session = rig.session().await?;
        let mut events = start(rig, &session, "t-1", "wait").await?;
        let mut seen = Observed::default();
        seen.until(&mut events, |kind| matches!(kind, Kind::ToolStarted(_)).then_some(())).await?;
        appears(rig, "sleep 65").await?;
        let answer = session.cancel("t-1", Some(Duration::ZERO)).await?;
        assert_eq!(answer.outcome(), CancelOutcome::Pending);
        let turn = answer.turn.unwrap_or_default();
        assert_eq!((turn.phase(), turn.ended), (v1::TurnPhase::Settling, None));
        // Nobody waits, and it settles all the same.
        cancelled(&seen.to_the_end(&mut events).await?)?;
        let answer = session.cancel("t-1", Some(Duration::ZERO)).await?;
        assert_eq!(answer.outcome(), CancelOutcome::Settled);
        refused(session.cancel("t-1", Some(Duration::from_secs(61))).await, Reason::InvalidRequest)?;
        Ok(())
    });
}

fn a_cancel_works_while_the_provider_says_nothing_at_all(harness: Harness) {
    scenario("cancel_silent_provider", &["R-CAN-1", "R-CAN-3"], Setup::outer().of(harness).patient(), async |rig| {
        rig.provider.script(r#"[{"play": ["hang"]}]"#)?;
        let session = rig.session().await?;
        let mut events = start(rig, &session, "t-1", "anybody there").await?;
        rig.provider.wait_for(|requests| requests.len() == 1).await?;
        assert_eq!(session.cancel("t-1", None).await?.outcome(), CancelOutcome::Settled);
        let seen = Observed::default().to_the_end(&mut events).await?;
        cancelled(&seen)?;
        goes_on(rig, &session, "anybody there").await
    });
}

fn a_cancel_works_while_a_request_is_tried_again(harness: Harness) {
    scenario("cancel_retry", &["R-CAN-1", "R-CAN-3", "R-EVT-10"], Setup::outer().of(harness).patient(), async |rig| {
        rig.provider.script(
            r#"[{"match": "try it", "times": 2, "play": [{"text": {"chunks": ["half"], "open": true}}, "drop"]}, {"match": "try it", "play": ["hang"]}]"#,
        )?;
        let session = rig.session().await?;
        let mut events = start(rig, &session, "t-1", "try it").await?;
        let mut seen = Observed::default();
        for _ in 0..2 {
            seen.until(&mut events, |kind| matches!(kind, Kind::ProviderRetry(_)).then_some(())).await?;
        }
        assert_eq!(session.cancel("t-1", None).await?.outcome(), CancelOutcome::Settled);
        let seen = seen.to_the_end(&mut events).await?;
        cancelled(&seen)?;
        assert_eq!(seen.messages(), [""; 0]);
        rig.provider.reset();
        goes_on(rig, &session, "try it").await
    });
}

async fn start(rig: &Rig, session: &Session, turn_id: &str, prompt: &str) -> anyhow::Result<TurnEvents> {
    rig.start_turn(session, rig.configuration(Vec::new()), turn_id, prompt).await
}

/// The Turn is cancelled because Core asked for it.
fn cancelled(seen: &Observed) -> anyhow::Result<()> {
    let end = seen.end()?;
    let want = (TurnStatus::Cancelled, v1::EndCause::Requested);
    anyhow::ensure!((end.status(), end.cause()) == want && end.failure.is_none(), "it ended so: {end:?}");
    Ok(())
}

/// The next Turn runs on the same Executor and knows what was said before.
async fn goes_on(rig: &Rig, session: &Session, said: &str) -> anyhow::Result<()> {
    let ready = rig.prepare_again(session, rig.configuration(Vec::new())).await?;
    session.start(&ready, "t-next", text_input("go on")).await?;
    let seen = Observed::default().to_the_end(&mut session.turn_events("t-next")).await?;
    seen.completed()?;
    anyhow::ensure!(seen.messages() == ["go on"], "{:?}", seen.messages());
    // What was on its way to the provider when its Turn was cancelled may come late.
    let mut requests = rig.provider.model_requests();
    requests.retain(|request| request.user_texts().iter().any(|text| text == "go on"));
    let [request] = &requests[..] else { anyhow::bail!("{} requests instead of one", requests.len()) };
    anyhow::ensure!(request.body.contains(said), "{said:?} is not in the history: {}", request.body);
    Ok(())
}

/// Waits until a process with this command line runs below the daemon.
async fn appears(rig: &Rig, command: &str) -> anyhow::Result<()> {
    rig.wait_for_process(|process| process.command == command).await.map(drop)
}
