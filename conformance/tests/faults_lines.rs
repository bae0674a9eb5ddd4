//! Lines that are no messages: not UTF-8, not JSON, unknown, too long (R-EVT-12, R-CAP-5). What can be skipped is skipped and nothing is
//! lost by it; what cannot ends the Turn with its own class.

use anyhow::Context;
use conformance::child::FaultChild;
use conformance::child::fault::{Fault, Place};
use conformance::for_each_harness;
use conformance::rig::{Harness, MODEL_KEY, Observed, Rig, Setup, refusal, scenario};
use conformance::script::child::{Bytes, Program, Stderr, Step};
use proto::client::Session;
use proto::v1::{self, Reason, event::Kind};
use serde_json::json;
use serde_json::value::to_raw_value;

for_each_harness!(
    what_is_no_message_is_skipped_wherever_it_comes,
    unknown_messages_are_skipped_and_unknown_requests_are_answered,
    a_flood_on_standard_error_holds_nothing_up_and_is_not_kept,
    a_line_beyond_the_limit_ends_the_turn_and_the_process,
    a_line_of_65_mib_is_too_long_by_default,
);

/// Where the healthy program stands when something odd is written, from before its first line to behind its last.
const EVERYWHERE: [Place; 12] = [
    Place::Start,
    Place::AtInitialize,
    Place::AfterInitialize,
    Place::AtThreadStart,
    Place::AfterThreadStart,
    Place::AtTurnStart,
    Place::AfterTurnStart,
    Place::InTurn,
    Place::InMessage,
    Place::InCommand,
    Place::BeforeEnd,
    Place::AfterEnd,
];

/// A Turn of a Harness that follows this program from its start on.
async fn turn(rig: &Rig, child: &FaultChild, program: Program) -> anyhow::Result<(Session, Observed)> {
    child.play(program)?;
    let session = rig.session().await?;
    let observed = rig.whole_turn(&session, "t-1", "hello").await?;
    Ok((session, observed))
}

fn line(json: &serde_json::Value) -> anyhow::Result<Step> {
    Ok(Step::Line(to_raw_value(json)?))
}

/// Lines that are JSON and none of what the Harness says, or not as it says it.
fn misshapen(harness: Harness) -> [&'static str; 3] {
    match harness {
        Harness::Codex => [
            "{\"method\":7}\n{\"method\":\"turn/completed\"}\n{\"method\":\"turn/completed\",\"params\":[]}\n",
            "{\"id\":99,\"result\":{}}\n{\"id\":\"x\",\"error\":{\"code\":1,\"message\":\"late\"}}\n",
            "{\"method\":\"item/started\",\"params\":{\"threadId\":1,\"item\":{\"type\":[]}}}\n",
        ],
        Harness::ClaudeCode => [
            "{\"type\":7}\n{\"type\":\"assistant\"}\n{\"type\":\"user\",\"message\":[]}\n{\"type\":\"result\",\"subtype\":[]}\n",
            "{\"type\":\"control_response\",\"response\":{\"subtype\":\"success\",\"request_id\":\"99\"}}\n{\"type\":\"control_response\"}\n{\"type\":\"control_request\"}\n",
            "{\"type\":\"stream_event\",\"event\":{\"type\":\"content_block_start\",\"index\":-1}}\n{\"type\":\"stream_event\"}\n{\"type\":\"command_lifecycle\",\"command_uuid\":1}\n",
        ],
        Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
    }
}

/// The Turn failed since a line was too long for the limit.
fn too_large(observed: &Observed, limit: usize) -> anyhow::Result<()> {
    let end = observed.end()?;
    let failure = end.failure.as_ref().context("no failure")?;
    assert_eq!((end.status(), failure.code()), (v1::TurnStatus::Failed, v1::FailureCode::LineTooLarge), "{end:?}");
    assert!(failure.message.contains(&limit.to_string()), "{failure:?}");
    assert!(failure.exit_code.is_none() && failure.exit_signal.is_none(), "{failure:?}");
    Ok(())
}

fn what_is_no_message_is_skipped_wherever_it_comes(harness: Harness) {
    scenario("fault_garbage", &["R-EVT-2", "R-EVT-12", "R-CAP-5"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let bystander = rig.bystander().await?;
        let text = |text: &str| Step::Bytes(Bytes { text: Some(text.into()), ..Bytes::default() });
        let garbage = [
            Step::Bytes(Bytes { hex: Some("7b22 ff fe 22 7d 0a".into()), ..Bytes::default() }),
            Step::Bytes(Bytes { hex: Some("00 01 02 0a".into()), ..Bytes::default() }),
            text("thread panicked at nothing in particular\n"),
            text("\n\n \r\n"),
            text("null\n[]\n1\n\"text\"\n{}\n{\"id\":null}\n"),
            text(&format!("{}{}\n", "[".repeat(5000), "]".repeat(5000))),
        ];
        let garbage: Vec<_> = garbage.into_iter().chain(misshapen(harness).map(text)).collect();
        for place in EVERYWHERE {
            let (session, observed) = turn(rig, &child, harness.with_steps(place, &garbage)).await?;
            observed.completed().with_context(|| format!("{place:?}"))?;
            assert_eq!(observed.messages(), ["Let me look.", "All is well."], "{place:?}");
            assert_eq!(observed.deltas(), "Let me look.All is well.");
            // The Executor is as good as before.
            rig.whole_turn(&session, "t-2", "again").await?.completed()?;
            release(rig, &session).await?;
            bystander.undisturbed(rig).await?;
        }
        Ok(())
    });
}

async fn release(rig: &Rig, session: &Session) -> anyhow::Result<()> {
    let fence = v1::AssignmentRef { epoch: 2, ..session.assignment().clone() };
    let request = v1::ReleaseAssignmentRequest { assignment: Some(fence), remove_home: true, principal: None };
    let released = rig.client().await?.release_assignment(request).await?;
    anyhow::ensure!(released.outcome() == v1::ReleaseOutcome::Confirmed && released.home_removed, "{released:?}");
    Ok(())
}

fn unknown_messages_are_skipped_and_unknown_requests_are_answered(harness: Harness) {
    scenario("fault_unknown", &["R-CAP-5", "R-PLC-1"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let bystander = rig.bystander().await?;
        for place in EVERYWHERE {
            let (session, observed) = turn(rig, &child, harness.with_fault(place, Fault::SendsUnknownMessages)).await?;
            observed.completed().with_context(|| format!("{place:?}"))?;
            assert_eq!(observed.messages(), ["Let me look.", "All is well."], "{place:?}");
            let (id, refusal) = match harness {
                Harness::Codex => ("\"id\":900", "-32601"),
                Harness::ClaudeCode => ("\"request_id\":\"900\"", "not supported"),
                Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
            };
            let received = child.wait_for_received(child.last(harness)?.pid, id).await?;
            let answer = received.lines().find(|line| line.contains(id)).context("no answer")?;
            assert!(answer.contains(refusal), "{answer}");
            if place == Place::InMessage {
                let notices = observed.kinds().filter_map(|kind| match kind {
                    Kind::Notice(notice) => Some(notice.code.as_str()),
                    _ => None,
                });
                assert_eq!(notices.collect::<Vec<_>>(), ["request_declined"]);
                // An item of Codex of a kind that nobody knows is shown by its name, and closed when the Turn ends.
                let tools = observed.kinds().filter_map(|kind| match kind {
                    Kind::ToolCompleted(done) => Some((done.tool.clone()?.kind?, done.status())),
                    _ => None,
                });
                let tools: Vec<_> = tools.collect();
                let hologram = v1::tool::Kind::Other(v1::OtherTool { name: "hologram".into() });
                let shown = tools.contains(&(hologram, v1::ToolStatus::Incomplete));
                assert_eq!(shown, harness == Harness::Codex, "{tools:?}");
            }
            release(rig, &session).await?;
        }
        bystander.undisturbed(rig).await
    });
}

fn a_flood_on_standard_error_holds_nothing_up_and_is_not_kept(harness: Harness) {
    scenario("fault_stderr", &["R-EVT-8", "R-SEC-6"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let flood = Stderr { text: Some(format!("key {MODEL_KEY}\n")), bytes: 10 << 20 };
        for place in [Place::Start, Place::AtInitialize, Place::InMessage, Place::InCommand] {
            let steps = [Step::Stderr(flood.clone())];
            let (session, observed) = turn(rig, &child, harness.with_steps(place, &steps)).await?;
            observed.completed().with_context(|| format!("{place:?}"))?;
            release(rig, &session).await?;
        }
        // The last lines of it are in the text of an end, and a key in them is not.
        let last = Stderr { text: Some(format!("the last word, {MODEL_KEY}\n")), bytes: 0 };
        let steps = [Step::Stderr(flood), Step::Stderr(last), Step::Exit(1)];
        let (_, observed) = turn(rig, &child, harness.with_steps(Place::InMessage, &steps)).await?;
        let failure = observed.end()?.failure.clone().context("no failure")?;
        assert!(failure.message.contains("the last word"), "{failure:?}");
        assert!(failure.message.len() < 1024 && !failure.message.contains(MODEL_KEY), "{failure:?}");
        let logs = rig.daemon.log_text();
        assert!(logs.len() < 1 << 20 && !logs.contains(MODEL_KEY), "{} bytes of logs", logs.len());
        Ok(())
    });
}

fn a_line_beyond_the_limit_ends_the_turn_and_the_process(harness: Harness) {
    let setup = Setup { more: "limits.max_line_bytes = 65536".into(), ..Setup::child_of(harness) };
    scenario("fault_long_line", &["R-EVT-12", "R-PRE-4", "R-CAN-4"], setup, async |rig| {
        let child = rig.child.clone().context("a child")?;
        let bystander = rig.bystander().await?;
        // Just below the limit is a message like any other.
        let (session, observed) =
            turn(rig, &child, harness.with_steps(Place::InMessage, &[harness.delta("${fill:65000}")])).await?;
        observed.completed()?;
        assert_eq!(observed.deltas().len(), "Let me look.All is well.".len() + 65000);
        release(rig, &session).await?;
        let unended = Step::Bytes(Bytes { text: Some("${fill:70000}".into()), ..Bytes::default() });
        let unknown = line(&json!({"method": "unknown", "type": "unknown", "params": "${fill:66000}"}))?;
        for long in [harness.delta("${fill:66000}"), unended, unknown] {
            let (session, observed) =
                turn(rig, &child, harness.with_steps(Place::InMessage, &[long, Step::Hang])).await?;
            too_large(&observed, 65536)?;
            let story = ["turn_started", "message_started", "message_delta", "message_discarded", "turn_ended"];
            assert_eq!(observed.story(), story);
            let refused = session.prepare(rig.configuration(Vec::new()), Vec::new()).await;
            refusal(refused, Reason::NativeHistoryUnavailable);
            bystander.undisturbed(rig).await?;
        }
        // On the way to an Executor it fails the preparation.
        let opens = if harness == Harness::Codex { "session" } else { "initialize" };
        child.play(harness.with_steps(Place::AtThreadStart, &[line(&json!({"method": "${fill:66000}"}))?]))?;
        let session = rig.session().await?;
        let refused = session.prepare(rig.configuration(Vec::new()), Vec::new()).await;
        refusal(refused, Reason::PreparationFailed).with("step", opens).says("65536");
        bystander.undisturbed(rig).await
    });
}

fn a_line_of_65_mib_is_too_long_by_default(harness: Harness) {
    scenario("fault_65_mib", &["R-EVT-12", "R-API-7"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let bystander = rig.bystander().await?;
        let (_, observed) = turn(rig, &child, harness.with_fault(Place::InMessage, Fault::WritesALineOf65MiB)).await?;
        too_large(&observed, 64 << 20)?;
        bystander.undisturbed(rig).await?;
        // Long and within the limit: split into events that a client can take.
        let long = [harness.delta("${fill:6291456}")];
        let (_, observed) = turn(rig, &child, harness.with_steps(Place::InMessage, &long)).await?;
        observed.completed()?;
        assert_eq!(observed.deltas().len(), "Let me look.All is well.".len() + (6 << 20));
        Ok(())
    });
}
