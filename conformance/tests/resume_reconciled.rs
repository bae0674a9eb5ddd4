//! The end of a Turn that nobody was told, found in the Harness's own history: after a `kill -9` of the daemon (R-DUR-2) with the real Codex, and
//! where the Harness itself ended before it told (R-EVT-7) with a fault child, since the real one has no moment in between that could be held.

use std::fs;
use std::time::Duration;

use anyhow::Context;
use conformance::child::codex;
use conformance::child::fault::Place;
use conformance::for_each_harness;
use conformance::rig::{Daemon, Harness, Observed, Rig, Setup, function, nowhere, refusal, scenario, text_result};
use conformance::script::child::{Signal, Step};
use proto::client::{Session, text_input};
use proto::v1::{self, Reason, TurnStatus, event::Kind};
use rustix::process;
use serde_json::json;

for_each_harness!(
    a_turn_that_completed_while_the_daemon_died_is_completed,
    a_turn_that_completed_nowhere_while_the_daemon_died_is_completed,
    the_calls_that_did_not_succeed_are_told_after_a_restart_too,
    a_message_that_was_seen_and_is_lost_is_told_under_another_id,
    a_turn_of_which_only_the_journal_has_the_start_begins_with_it,
);

/// Whether a message can stay open while others follow (in Claude Code blocks follow each other), and what the history has where a Turn completed:
/// for Claude Code the reason to stop, which its last row has.
fn manner(harness: Harness) -> (bool, &'static str) {
    match harness {
        Harness::Codex => (true, "task_complete"),
        Harness::ClaudeCode => (false, r#""stop_reason":"end_turn""#),
        Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
    }
}

/// A Turn that the model answers while the daemon does not run, and the daemon's death before it does again.
async fn ended_unseen(
    rig: &mut Rig,
    session: &Session,
    configuration: v1::ExecutionConfiguration,
    script: &str,
    end: &str,
) -> anyhow::Result<Observed> {
    rig.provider.script(script)?;
    let ready = rig.prepare(session, configuration).await?;
    session.start(&ready, "t-1", text_input("think")).await?;
    let (mut events, mut seen) = (session.turn_events("t-1"), Observed::default());
    seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
    die_before(rig, end).await?;
    Ok(seen)
}

/// Opens the gate while the daemon stands still (so the Harness asks its provider past it, without the gateway), and has it die once the history has this, and start again.
async fn die_before(rig: &mut Rig, end: &str) -> anyhow::Result<()> {
    rig.daemon.signal(process::Signal::STOP)?;
    rig.provider.open_gate("go");
    rig.wait_for_history(end).await?;
    let family = rig.family()?;
    rig.daemon.kill().await?;
    rig.all_gone(&family).await?;
    rig.daemon = Daemon::start(rig.place()).await?;
    Ok(())
}

fn a_turn_that_completed_while_the_daemon_died_is_completed(harness: Harness) {
    let rules = ["R-DUR-2", "R-EVT-1", "R-EVT-2", "R-EVT-4", "R-PRE-4", "R-CAP-2"];
    scenario(
        "reconciled_completed",
        &rules,
        Setup::outer().of(harness).needing(v1::Capability::NativeSessionRecovery).without_gateway(),
        async |rig| {
            let session = rig.session().await?;
            completed_unseen(rig, &session, rig.configuration(Vec::new())).await
        },
    );
}

/// The same without a workspace (R-CTL-4).
fn a_turn_that_completed_nowhere_while_the_daemon_died_is_completed(harness: Harness) {
    let rules = ["R-DUR-2", "R-CAP-2", "R-CTL-4"];
    scenario(
        "reconciled_nowhere",
        &rules,
        Setup::outer()
            .of(harness)
            .needing_under(v1::Placement::None, v1::Capability::NativeSessionRecovery)
            .without_gateway(),
        async |rig| {
            let session = rig.session_nowhere().await?;
            completed_unseen(rig, &session, nowhere(rig.configuration(Vec::new()))).await
        },
    );
}

async fn completed_unseen(
    rig: &mut Rig,
    session: &Session,
    configuration: v1::ExecutionConfiguration,
) -> anyhow::Result<()> {
    let (open, last) = manner(rig.kind());
    let script = json!([{"play": [
        {"text": {"chunks": ["one ", "two ", "three"], "delay_ms": 1, "open": open, "id": "msg_a"}},
        {"gate": "go"}, {"text": {"chunks": ["the answer"], "phase": "final_answer"}}]}]);
    let seen = ended_unseen(rig, session, configuration.clone(), &script.to_string(), last).await?;
    let whole = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
    whole.completed()?;
    assert_eq!(whole.events[..seen.events.len()], seen.events);
    let end = whole.end()?;
    assert!(end.reconciled && end.failure.is_none(), "{end:?}");
    if rig.kind() == Harness::Codex {
        assert!(end.native_completed_at.is_some(), "{end:?}");
        assert_eq!(end.usage.and_then(|usage| usage.total_tokens), Some(120));
    }
    assert_eq!(whole.messages().last(), Some(&"the answer"));
    let turn = session.turn("t-1").await?;
    assert_eq!(turn.ended.as_ref(), Some(end));
    assert_eq!(turn.last_sequence, whole.events.len() as u64);
    // The history goes on behind it.
    let native = whole.native_session()?;
    let ready = rig.resume(session, configuration, &native).await?;
    rig.turn_with(session, &ready, "t-2", "and then").await?.completed()?;
    assert!(rig.provider.model_requests()[1].body.contains("the answer"));
    Ok(())
}

/// The daemon stands still once the journal has the native start, and the event file has nothing.
fn a_turn_of_which_only_the_journal_has_the_start_begins_with_it(harness: Harness) {
    let armed = "journal.put_history.after=delay:50000";
    let setup = Setup { failpoints: Some(armed.into()), ..Setup::outer().of(harness) };
    let setup = setup.needing(v1::Capability::NativeSessionRecovery).without_gateway();
    scenario("reconciled_start", &["R-DUR-2", "R-EVT-2", "R-EVT-4"], setup, async |rig| {
        let session = rig.session().await?;
        rig.provider.script(r#"[{"play": [{"text": {"chunks": ["the answer"], "phase": "final_answer"}}]}]"#)?;
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        session.start(&ready, "t-1", text_input("think")).await?;
        rig.wait_for_history(manner(harness).1).await?;
        let family = rig.family()?;
        rig.daemon.kill().await?;
        rig.all_gone(&family).await?;
        rig.disarm();
        rig.daemon = Daemon::start(rig.place()).await?;
        let whole = rig.observe(&session, "t-1", 0).await?;
        assert_eq!(whole.story(), ["turn_started", "message_started", "message_completed", "turn_ended"]);
        whole.check_order()?;
        whole.completed()?;
        assert!(whole.end()?.reconciled, "{:?}", whole.end());
        let native = session.turn("t-1").await?.native.context("no native ids")?.session_id;
        assert_eq!(whole.native_session()?, native);
        Ok(())
    });
}

fn the_calls_that_did_not_succeed_are_told_after_a_restart_too(harness: Harness) {
    let rules = ["R-FN-5", "R-FN-8", "R-FN-9", "R-DUR-2"];
    scenario(
        "reconciled_tool_errors",
        &rules,
        Setup::outer().of(harness).needing(v1::Capability::NativeSessionRecovery).without_gateway(),
        async |rig| {
            let (open, last) = manner(harness);
            let call = |name: &str, id: &str| json!({"name": name, "call_id": id, "arguments": "{}"});
            let script = json!([
                {"play": [{"calls": [call("lookup", "c1"), call("lookup", "c2"), call("slow", "c3")]}]},
                {"play": [{"text": {"chunks": ["half"], "open": open}}, {"gate": "go"}, {"text": {"chunks": ["Read."]}}]},
            ]);
            rig.provider.script(&script.to_string())?;
            let session = rig.session().await?;
            let second = Some(prost_types::Duration { seconds: 1, nanos: 0 });
            let slow = v1::FunctionTool { max_duration: second, ..function("slow", "{}") };
            let configuration = rig.configuration(vec![function("lookup", "{}"), slow]);
            let mut events = rig.start_turn(&session, configuration, "t-1", "look it up").await?;
            let mut seen = Observed::default();
            for _ in 0..3 {
                seen.call(&mut events).await?;
            }
            let failed = v1::FunctionResult {
                success: Some(false),
                output: None,
                error: Some(v1::NullableText { value: Some(v1::nullable_text::Value::Text("it is closed".into())) }),
                disposition: Some(v1::ResultDisposition::NotConnected.into()),
                ..text_result("t-1", "c1", "")
            };
            session.submit(vec![failed.clone(), text_result("t-1", "c2", "found")]).await?;
            seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
            die_before(rig, last).await?;

            let whole = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
            whole.completed()?;
            let end = whole.end()?;
            assert!(end.reconciled, "{end:?}");
            let told: Vec<_> = end.tool_errors.iter().map(|e| (&*e.call_id, &*e.name, e.code(), &*e.message)).collect();
            let (closed, late) = (v1::ToolErrorCode::NotConnected, v1::ToolErrorCode::Abandoned);
            assert_eq!(told, [("c1", "lookup", closed, "it is closed"), ("c3", "slow", late, "")]);
            let outcomes = session.submit(vec![failed.clone()]).await?;
            assert_eq!(outcomes[0].outcome(), v1::ResultOutcome::Duplicate);
            let other = v1::FunctionResult { disposition: None, ..failed };
            refusal(session.submit(vec![other]).await, Reason::ResultConflict);
            refusal(session.submit(vec![text_result("t-1", "c3", "late")]).await, Reason::CallAbandoned);
            Ok(())
        },
    );
}

fn a_message_that_was_seen_and_is_lost_is_told_under_another_id(harness: Harness) {
    scenario(
        "reconciled_cut",
        &["R-DUR-2", "R-EVT-4"],
        Setup::outer().of(harness).needing(v1::Capability::NativeSessionRecovery).without_gateway(),
        async |rig| {
            let session = rig.session().await?;
            rig.provider.script(
                r#"[{"play": [{"text": {"chunks": ["the answer"], "phase": "final_answer"}}, {"gate": "go"}]}]"#,
            )?;
            let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
            session.start(&ready, "t-1", text_input("think")).await?;
            let (mut events, mut seen) = (session.turn_events("t-1"), Observed::default());
            let told = |kind: &Kind| match kind {
                Kind::MessageCompleted(message) => Some(message.item_id.clone()),
                _ => None,
            };
            let item = seen.until(&mut events, told).await?;
            session.acknowledge("t-1", seen.events.len() as u64).await?;
            rig.daemon.signal(process::Signal::STOP)?;
            rig.provider.open_gate("go");
            rig.wait_for_history(manner(harness).1).await?;
            let family = rig.family()?;
            rig.daemon.kill().await?;
            rig.all_gone(&family).await?;
            // The file loses the message from its start on, as in a power loss.
            let turns = rig.place().event_file()?;
            let content = fs::read(&turns)?;
            let start = content.windows(item.len()).position(|window| window == item.as_bytes());
            fs::write(&turns, &content[..start.context("the file has no message")?])?;
            rig.daemon = Daemon::start(rig.place()).await?;

            let rest = Observed::default().to_the_end(&mut events).await?;
            assert_eq!(rest.story(), ["events_omitted", "message_started", "message_completed", "turn_ended"]);
            rest.completed()?;
            assert!(rest.end()?.reconciled, "{:?}", rest.end());
            assert_eq!(rest.messages(), ["the answer"]);
            let again: Vec<_> = rest.kinds().filter_map(told).collect();
            assert!(again.len() == 1 && again[0] != item, "{again:?} and {item}");
            Ok(())
        },
    );
}

#[test]
fn a_turn_that_failed_while_the_daemon_died_is_failed() {
    scenario(
        "reconciled_failed",
        &["R-DUR-2", "R-EVT-5"],
        Setup::outer().only("what is found stands in lines as Codex writes them").without_gateway(),
        async |rig| {
            let session = rig.session().await?;
            let script = r#"[{"play": [{"text": {"chunks": ["one"], "open": true}}, {"gate": "go"},
            {"failed": {"code": "context_length_exceeded", "message": "too long"}}]}]"#;
            ended_unseen(rig, &session, rig.configuration(Vec::new()), script, "task_complete").await?;
            let end = session.turn("t-1").await?.ended.context("it goes on")?;
            assert!(end.status() == TurnStatus::Failed && end.reconciled, "{end:?}");
            let failure = end.failure.context("no failure")?;
            assert_eq!(failure.code(), v1::FailureCode::ContextLengthExceeded, "{failure:?}");
            Ok(())
        },
    );
}

#[test]
fn a_turn_that_was_cancelled_when_the_daemon_died_is_cancelled() {
    scenario(
        "reconciled_cancelled",
        &["R-DUR-2", "R-EVT-3", "R-CAN-1"],
        Setup::outer().only("what is found stands in lines as Codex writes them").without_gateway(),
        async |rig| {
            let session = rig.session().await?;
            rig.half_way(&session, rig.configuration(Vec::new()), "t-1").await?;
            // Codex is held, so that it is the daemon's death that ends it, with the cancel on disk.
            let harness = rig.harness()?;
            harness.signal(process::Signal::STOP)?;
            let pending = session.cancel("t-1", Some(Duration::ZERO)).await?;
            assert_eq!(pending.outcome(), v1::CancelOutcome::Pending);
            let family = rig.family()?;
            rig.daemon.signal(process::Signal::KILL)?;
            // At once: what is held for longer than the keeper waits is killed, and writes nothing.
            harness.signal(process::Signal::CONT)?;
            rig.daemon.wait(Duration::from_secs(40)).await?;
            rig.all_gone(&family).await?;
            rig.daemon = Daemon::start(rig.place()).await?;
            let turn = session.turn("t-1").await?;
            let end = turn.ended.context("it goes on")?;
            assert_eq!((end.status(), end.cause()), (TurnStatus::Cancelled, v1::EndCause::Requested), "{end:?}");
            assert!(end.reconciled && turn.cancel_requested, "{end:?}");
            Ok(())
        },
    );
}

/// What Codex would have written of this Turn, as a history of the fault child.
fn write_history(rig: &Rig, native: &v1::NativeIdentity, lines: &[&str]) -> anyhow::Result<()> {
    let (thread, turn) = (native.session_id.as_str(), native.turn_id.as_str());
    let day = rig.histories()?.join("2026/11/30");
    fs::create_dir_all(&day)?;
    let head = r#"{"type":"session_meta","payload":{"id":"THREAD"}}"#;
    let begun = r#"{"type":"event_msg","payload":{"type":"task_started","turn_id":"TURN"}}"#;
    let text = [&[head, begun], lines].concat().join("\n").replace("THREAD", thread).replace("TURN", turn);
    Ok(fs::write(day.join(format!("rollout-2026-11-30T00-00-00-{thread}.jsonl")), text + "\n")?)
}

/// Why the Harness that dies in between is Codex.
const PLAYED: &str = "the history is written in the lines of Codex; claude_history has those of Claude Code";

#[test]
fn a_harness_that_died_before_it_told_the_end_is_asked_in_its_history() {
    let setup = Setup::faulty(codex::healthy()).only(PLAYED);
    scenario("reconciled_exit", &["R-EVT-7", "R-EVT-2", "R-CAN-6"], setup, async |rig| {
        let child = rig.child.clone().context("a child")?;
        const MESSAGE: &str = r#"{"type":"event_msg","payload":{"type":"item_completed","turn_id":"TURN","item":{"type":"AgentMessage","id":"msg_1","content":[{"type":"Text","text":"Let me look. Done."}],"phase":"final_answer"}}}"#;
        const COMPLETED: &str =
            r#"{"type":"event_msg","payload":{"type":"task_complete","turn_id":"TURN","completed_at":1796024259}}"#;
        const FAILED: &str = r#"{"type":"event_msg","payload":{"type":"task_complete","turn_id":"TURN","error":{"message":"m","codex_error_info":"usage_limit_exceeded"}}}"#;
        const ABORTED: &str =
            r#"{"type":"event_msg","payload":{"type":"turn_aborted","turn_id":"TURN","reason":"interrupted"}}"#;
        const OF_ANOTHER: &str = r#"{"type":"event_msg","payload":{"type":"task_complete","turn_id":"another"}}"#;
        type Want = (TurnStatus, Option<v1::FailureCode>, bool);
        let exited: Want = (TurnStatus::Failed, Some(v1::FailureCode::HarnessExited), false);
        let cases: [(&[&str], Want, &[&str]); 6] = [
            (&[MESSAGE, COMPLETED], (TurnStatus::Completed, None, true), &["Let me look. Done."]),
            (&[COMPLETED], (TurnStatus::Completed, None, true), &[]),
            (&[FAILED], (TurnStatus::Failed, Some(v1::FailureCode::UsageLimitExceeded), true), &[]),
            // Nobody had asked for it, so the exit is what is known.
            (&[ABORTED], exited, &[]),
            (&[OF_ANOTHER], exited, &[]),
            (&[MESSAGE], exited, &[]),
        ];
        for (number, (lines, want, messages)) in cases.into_iter().enumerate() {
            let gate = format!("go-{number}");
            let steps = [Step::Mark(format!("reached-{number}")), Step::Gate(gate.clone()), Step::Die(Signal::Kill)];
            child.play(codex::with_steps(Place::InMessage, &steps))?;
            let session = rig.session().await?;
            let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
            session.start(&ready, "t-1", text_input("hello")).await?;
            let (mut events, mut seen) = (session.turn_events("t-1"), Observed::default());
            seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
            let native = session.turn("t-1").await?.native.context("no native id")?;
            write_history(rig, &native, lines)?;
            child.open_gate(&gate)?;
            let seen = seen.to_the_end(&mut events).await?;
            let end = seen.end()?;
            let code = end.failure.as_ref().map(v1::Failure::code);
            assert_eq!((end.status(), code, end.reconciled), want, "{lines:?} {end:?}");
            assert_eq!(seen.messages(), messages, "{lines:?}");
            session.release(true).await?;
        }
        Ok(())
    });
}
