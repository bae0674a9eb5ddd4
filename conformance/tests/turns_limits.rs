//! How long a Turn may take and may be quiet (R-EVT-10), and a Turn that is not settled in time (R-EVT-9).

#![expect(clippy::unwrap_used, reason = "what is made before a scenario fails by panicking")]

use std::time::{Duration, Instant};

use conformance::child::claude;
use conformance::child::fault::Place;
use conformance::for_each_harness;
use conformance::rig::{Harness, MODEL_KEY, Observed, Rig, Setup, function, refusal, scenario, text_result};
use conformance::script::child::{Bytes, Program, Read, Step};
use proto::client::{Session, text_input};
use proto::v1::{self, Reason, event::Kind};
use serde_json::json;
use serde_json::value::to_raw_value;

for_each_harness!(
    a_harness_that_says_that_the_turn_goes_on_is_stalled_all_the_same,
    an_end_that_the_harness_tells_when_it_is_asked_is_the_end,
    half_a_line_and_then_silence_is_stalled,
    a_turn_that_takes_too_long_is_interrupted_and_failed,
    a_limit_ends_what_a_turn_waits_for,
    a_limit_is_1_second_to_30_days,
    a_turn_whose_provider_never_answers_is_stalled
);

const SECOND: Option<Duration> = Some(Duration::from_secs(1));
/// A limit by which a Turn has begun what it is interrupted in, also on a machine that has much else to do.
const WHILE: Duration = Duration::from_secs(5);

/// Prepares and starts `t-1` with a limit.
async fn within(rig: &Rig, session: &Session, functions: &[&str], most: Option<Duration>) -> anyhow::Result<v1::Ready> {
    let functions = functions.iter().map(|name| function(name, r#"{"type":"object"}"#)).collect();
    let ready = rig.prepare(session, rig.configuration(functions)).await?;
    let started = session.start_within(&ready, "t-1", text_input("go"), most).await?;
    anyhow::ensure!(!started.duplicate, "{started:?}");
    Ok(ready)
}

async fn to_the_end(session: &Session) -> anyhow::Result<Observed> {
    Observed::default().to_the_end(&mut session.turn_events("t-1")).await
}

fn code(end: &v1::TurnEnded) -> (v1::TurnStatus, Option<v1::FailureCode>) {
    (end.status(), end.failure.as_ref().map(v1::Failure::code))
}

const OVER: (v1::TurnStatus, Option<v1::FailureCode>) =
    (v1::TurnStatus::Failed, Some(v1::FailureCode::DeadlineExceeded));

fn stalled(end: &v1::TurnEnded) {
    assert_eq!((end.status(), end.cause), (v1::TurnStatus::Unknown, Some(v1::EndCause::Stalled.into())), "{end:?}");
    assert!(end.failure.is_none() && !end.reconciled, "{end:?}");
}

fn a_turn_that_takes_too_long_is_interrupted_and_failed(harness: Harness) {
    let rules = ["R-EVT-10", "R-API-6", "R-CAN-2", "R-CAN-3", "R-EVT-2"];
    // It is asked whether the Executor goes on, so the Harness has its time.
    let setup = Setup::outer().of(harness).with("limits.interrupt_ms = 15000");
    scenario("limit_duration", &rules, setup, async |rig| {
        rig.provider.script(r#"[{"play": [{"text": {"chunks": ["half "], "open": true}}, {"gate": "never"}]}]"#)?;
        let session = rig.session().await?;
        let begun = Instant::now();
        let ready = within(rig, &session, &[], Some(WHILE)).await?;
        // The limit is a part of what the Turn is.
        let again = async |most| session.start_within(&ready, "t-1", text_input("go"), most).await;
        assert!(again(Some(WHILE)).await?.duplicate);
        for other in [None, Some(WHILE + Duration::from_millis(1))] {
            refusal(again(other).await, Reason::TurnConflict).at("turn_id");
        }
        let seen = to_the_end(&session).await?;
        assert!(begun.elapsed() >= WHILE, "{:?}", begun.elapsed());
        assert_eq!(code(seen.end()?), OVER, "{:?}", seen.end());
        assert!(seen.end()?.cause.is_none() && seen.story().contains(&"message_discarded"), "{:?}", seen.story());
        // The provider sees its client go, and the Executor takes the next Turn.
        rig.provider.wait_for(|requests| requests[0].end.is_some()).await?;
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        assert!(ready.reused);
        let most = Some(Duration::from_secs(50));
        session.start_within(&ready, "t-2", text_input("hello"), most).await?;
        Observed::default().to_the_end(&mut session.turn_events("t-2")).await?.completed()
    });
}

fn a_limit_ends_what_a_turn_waits_for(harness: Harness) {
    scenario("limit_waiting", &["R-EVT-10", "R-FN-5", "R-FN-7", "R-CAN-2"], Setup::outer().of(harness), async |rig| {
        rig.provider.script(
            r#"[{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]},
                {"play": [{"shell": {"command": "sleep 67", "yield_ms": 30000}}]}]"#,
        )?;
        let session = rig.session().await?;
        within(rig, &session, &["lookup"], Some(WHILE)).await?;
        let seen = to_the_end(&session).await?;
        assert_eq!(code(seen.end()?), OVER, "{:?}", seen.end());
        assert!(seen.story().contains(&"function_call_abandoned"), "{:?}", seen.story());
        let late = session.submit(vec![text_result("t-1", "c1", "late")]).await;
        refusal(late, Reason::CallAbandoned);
        // A command is gone when the Turn is over.
        let other = rig.session().await?;
        within(rig, &other, &[], SECOND).await?;
        let seen = to_the_end(&other).await?;
        assert_eq!(code(seen.end()?), OVER, "{:?}", seen.end());
        let left: Vec<_> = rig.family()?.into_iter().filter(|process| process.command.contains("sleep 67")).collect();
        assert!(left.is_empty(), "{left:#?}");
        Ok(())
    });
}

fn a_limit_is_1_second_to_30_days(harness: Harness) {
    scenario("limit_values", &["R-EVT-10", "R-API-2"], Setup::outer().of(harness), async |rig| {
        let session = rig.session().await?;
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        for most in [0, 999, 30 * 24 * 3600 * 1000 + 1, u64::MAX] {
            let most = Some(Duration::from_millis(most));
            let refused = session.start_within(&ready, "t-1", text_input("go"), most).await;
            refusal(refused, Reason::InvalidRequest).at("max_duration");
        }
        let client = rig.client().await?;
        for duration in [(-1, 0), (1, -1), (i64::MAX, 0)] {
            let request = v1::StartTurnRequest {
                assignment: Some(session.assignment().clone()),
                handle: ready.handle.clone(),
                turn_id: "t-1".into(),
                input: text_input("go"),
                max_duration: Some(prost_types::Duration { seconds: duration.0, nanos: duration.1 }),
            };
            refusal(client.start_turn(request).await, Reason::InvalidRequest).at("max_duration");
        }
        session.start_within(&ready, "t-1", text_input("go"), Some(Duration::from_secs(30 * 24 * 3600))).await?;
        to_the_end(&session).await?.completed()
    });
}

/// A real Harness on a provider that never answers; what else is open for as long is not stalled.
fn a_turn_whose_provider_never_answers_is_stalled(harness: Harness) {
    let setup =
        Setup::outer().of(harness).with("limits.quiet_ms = 6000\nlimits.retry_ms = 10000\nlimits.interrupt_ms = 15000");
    scenario("limit_quiet", &["R-EVT-10", "R-EVT-3", "R-CAN-3"], setup, async |rig| {
        let step = |name: &str, play: &str| format!(r#"{{"match": "only {name}", "play": [{play}]}}"#);
        let steps = [
            step("silence", r#""hang""#),
            step("retry", r#"{"http": {"status": 500}}"#),
            step("retry", r#""hang""#),
            step("call", r#"{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}"#),
            step("command", r#"{"shell": {"command": "sleep 9", "yield_ms": 30000}}"#),
        ];
        rig.provider.script(&format!("[{}]", steps.join(",")))?;
        let rig = &*rig;
        let start = async |name: &str| -> anyhow::Result<Session> {
            let session = rig.session().await?;
            let lookup = vec![function("lookup", r#"{"type":"object"}"#)];
            rig.start_turn(&session, rig.configuration(lookup), "t-1", &format!("only {name}")).await?;
            Ok(session)
        };
        let begun = Instant::now();
        let (call, command, silence, retry) =
            tokio::try_join!(start("call"), start("command"), start("silence"), start("retry"))?;
        let seen = to_the_end(&silence).await?;
        stalled(seen.end()?);
        assert_eq!(seen.story(), ["turn_started", "turn_ended"]);
        // By now a call has waited for as long, and nobody has stopped it.
        assert_eq!(call.turn("t-1").await?.phase(), v1::TurnPhase::RequiresAction);
        call.submit(vec![text_result("t-1", "c1", "42")]).await?;
        to_the_end(&call).await?.completed()?;
        to_the_end(&command).await?.completed()?;
        // An answer that is asked for again and never begins has a limit of its own; Codex itself would wait for ever.
        let seen = to_the_end(&retry).await?;
        assert_eq!(seen.story(), ["turn_started", "provider_retry", "turn_ended"]);
        let failure = seen.end()?.failure.clone().unwrap_or_default();
        // Claude Code tells the status of what it tries again.
        let code = match harness {
            Harness::Codex => v1::FailureCode::ConnectionFailed,
            Harness::ClaudeCode => v1::FailureCode::ServerError,
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        };
        assert_eq!((seen.end()?.status(), failure.code()), (v1::TurnStatus::Failed, code));
        assert!(begun.elapsed() >= Duration::from_secs(10), "{:?}", begun.elapsed());
        // The Harness obeyed, so it goes on.
        let lookup = vec![function("lookup", r#"{"type":"object"}"#)];
        assert!(rig.prepare(&silence, rig.configuration(lookup)).await?.reused);
        Ok(())
    });
}

fn faulty(harness: Harness, program: Program) -> Setup {
    Setup::faulty(program).of(harness).with("limits.quiet_ms = 3000")
}

/// The end is lost, and the answer to the question for it is that the Turn is over, or that it goes on.
fn asked(harness: Harness, over: bool) -> anyhow::Result<Vec<Step>> {
    let read = |method: &str| Step::Read(Read { method: Some(method.into()), answer_to: None });
    let status = if over { "completed" } else { "inProgress" };
    let newest = json!({"id": "${turn}", "items": [], "status": status, "error": null, "completedAt": 1_790_000_000});
    let page = to_raw_value(&json!({"data": [newest], "nextCursor": null, "backwardsCursor": null}))?;
    Ok(match harness {
        Harness::Codex => vec![read("thread/turns/list"), Step::Result(page), read("exit")],
        // The idle state is what is lost; its rule says how it stands.
        Harness::ClaudeCode => {
            let mut end = claude::end();
            end.truncate(if over { end.len() - 1 } else { 0 });
            end.into_iter().chain([read("exit")]).collect()
        }
        Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
    })
}

fn half_a_line_and_then_silence_is_stalled(harness: Harness) {
    let half = Step::Bytes(Bytes { text: Some(harness.half_a_line().into()), ..Bytes::default() });
    let program = harness.with_steps(Place::InMessage, &[half, Step::Hang]);
    scenario("limit_half_a_line", &["R-EVT-10", "R-CAN-4", "R-EVT-2"], faulty(harness, program), async |rig| {
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "hello").await?;
        stalled(seen.end()?);
        let story = ["turn_started", "message_started", "message_delta", "message_discarded", "turn_ended"];
        assert_eq!(seen.story(), story);
        let cancelled = session.cancel("t-1", None).await?;
        assert_eq!(cancelled.outcome(), v1::CancelOutcome::Settled, "{cancelled:?}");
        rig.only(&[]).await
    });
}

/// A Harness that lost the end of a turn and tells it when it is asked (B-001).
fn an_end_that_the_harness_tells_when_it_is_asked_is_the_end(harness: Harness) {
    let program = harness.with_steps(Place::BeforeEnd, &asked(harness, true).unwrap());
    scenario("limit_asked", &["R-EVT-10", "R-EVT-9"], faulty(harness, program), async |rig| {
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "hello").await?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["Let me look.", "All is well."]);
        assert!(seen.end()?.reconciled, "{:?}", seen.end());
        let at = seen.end()?.native_completed_at.map(|at| at.seconds);
        // Claude Code tells no time.
        assert_eq!(at, (harness == Harness::Codex).then_some(1_790_000_000));
        Ok(())
    });
}

fn a_harness_that_says_that_the_turn_goes_on_is_stalled_all_the_same(harness: Harness) {
    let program = harness.with_steps(Place::BeforeEnd, &asked(harness, false).unwrap());
    let setup = faulty(harness, program).with("limits.quiet_ms = 3000\nlimits.interrupt_ms = 15000");
    scenario("limit_in_progress", &["R-EVT-10", "R-CAN-3"], setup, async |rig| {
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "hello").await?;
        stalled(seen.end()?);
        assert_eq!(seen.messages(), ["Let me look.", "All is well."]);
        // It obeyed the interrupt.
        assert!(rig.prepare(&session, rig.configuration(Vec::new())).await?.reused);
        Ok(())
    });
}

#[test]
fn a_turn_that_is_not_settled_in_time_is_unknown_and_a_release_tells_the_later_truth() {
    let setup = Setup::outer()
        .with("limits.settlement_ms = 300")
        .only("the item that stays open beside what is left is a background terminal of Codex");
    let rules = ["R-EVT-9", "R-EVT-3", "R-CAN-2", "R-ASG-4"];
    scenario("limit_settlement", &rules, setup, async |rig| {
        // What is left in the background has 2 s at a normal end, which is more than there is.
        rig.provider.script(
            r#"[{"play": [{"shell": {"command": "sleep 68", "yield_ms": 250}}]}, {"play": [{"text": {"chunks": ["It runs on."]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "leave it running").await?;
        let end = seen.end()?;
        let unsettled = (v1::TurnStatus::Unknown, Some(v1::EndCause::Unsettled.into()));
        assert_eq!((end.status(), end.cause), unsettled, "{end:?}");
        assert!(end.native_completed_at.is_some(), "{end:?}");
        let tool = seen.kinds().find_map(|kind| if let Kind::ToolCompleted(end) = kind { Some(end) } else { None });
        assert_eq!(tool.map(v1::ToolCompleted::status), Some(v1::ToolStatus::Incomplete));
        let cancelled = session.cancel("t-1", None).await?;
        // What was left may be gone by now.
        let outcomes = [v1::CancelOutcome::Unconfirmed, v1::CancelOutcome::Settled];
        assert!(outcomes.contains(&cancelled.outcome()), "{cancelled:?}");
        // The Executor is retired: it never takes another Turn.
        let key = v1::Credential { name: "model".into(), value: MODEL_KEY.into() };
        let next = session.prepare(rig.configuration(Vec::new()), vec![key]).await;
        anyhow::ensure!(!next.is_ok_and(|ready| ready.reused), "the Executor is used again");
        // A release is tried until all is gone; then it says so.
        let begun = Instant::now();
        loop {
            let released = session.release(true).await?;
            if released.outcome() == v1::ReleaseOutcome::Confirmed {
                break;
            }
            anyhow::ensure!(begun.elapsed() < Duration::from_secs(20), "it is never confirmed: {released:?}");
        }
        let left: Vec<_> = rig.family()?.into_iter().filter(|process| process.command.contains("sleep 68")).collect();
        assert!(left.is_empty(), "{left:#?}");
        Ok(())
    });
}
