//! A Harness that takes an input later, never, or does not read it at all (R-STE-1, R-STE-3).

use std::time::Duration;

use anyhow::Context;
use conformance::child::FaultChild;
use conformance::child::codex;
use conformance::child::fault::{Fault, Place};
use conformance::for_each_harness;
use conformance::rig::{Harness, Observed, Rig, Setup, scenario};
use conformance::script::child::{Program, Step};
use proto::client::{Session, text_input};
use proto::v1::{self, InputPhase, Reason, event::Kind};
use serde_json::{Value, json};
use tokio::time;

for_each_harness!(
    an_input_that_the_harness_refuses_is_refused_while_the_turn_goes_on,
    an_input_whose_evidence_cannot_be_read_is_not_called_refused,
    an_input_that_is_not_read_is_told_so_in_its_time_and_its_outcome_is_unknown,
);

fn program(harness: Harness, steps: Value) -> anyhow::Result<Program> {
    Ok(harness.with_steps(Place::InMessage, &serde_json::from_value::<Vec<Step>>(steps)?))
}

async fn started(rig: &Rig, child: &FaultChild, program: Program) -> anyhow::Result<Session> {
    child.play(program)?;
    let session = rig.session().await?;
    let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
    session.start(&ready, "t-1", text_input("hello")).await?;
    let delta = |kind: &Kind| matches!(kind, Kind::MessageDelta(_)).then_some(());
    Observed::default().until(&mut session.turn_events("t-1"), delta).await?;
    Ok(session)
}

/// A Turn that ends well, and that an input is added to while the child plays these steps.
async fn steered(rig: &Rig, child: &FaultChild, steps: Value) -> anyhow::Result<(Session, Observed)> {
    let session = started(rig, child, program(rig.kind(), steps)?).await?;
    session.steer("t-1", "i-1", text_input("turn left")).await?;
    let seen = observed(&session).await?;
    seen.completed()?;
    Ok((session, seen))
}

async fn observed(session: &Session) -> anyhow::Result<Observed> {
    Observed::default().to_the_end(&mut session.turn_events("t-1")).await
}

/// How often the Harness was asked to take an input.
fn asked(child: &FaultChild, harness: Harness) -> anyhow::Result<usize> {
    let (line, first) = match harness {
        Harness::Codex => (r#""method":"turn/steer""#, 0),
        // The input of the Turn itself is asked for in the same way.
        Harness::ClaudeCode => (r#""type":"user""#, 1),
        Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
    };
    let received = String::from_utf8(child.received(child.last(harness)?.pid)?)?;
    Ok(received.lines().filter(|text| text.contains(line)).count() - first)
}

/// The word of Claude Code on the input that it read last.
fn lifecycle(uuid: Value, state: &str) -> Value {
    json!({"line": {"type": "command_lifecycle", "command_uuid": uuid, "state": state, "session_id": "${session}"}})
}

#[test]
fn an_input_that_is_not_taken_now_is_written_again() {
    let setup = Setup::faulty(codex::healthy()).only("Claude Code takes an input whenever it comes");
    scenario("fault_steer_later", &["R-STE-1", "R-STE-3"], setup, async |rig| {
        let child = rig.child.clone().context("a child")?;
        let busy = json!({"code": -32001, "message": "Server overloaded; retry later."});
        let compact = json!({"code": -32600, "message": "cannot steer a compact turn",
            "data": {"codexErrorInfo": {"activeTurnNotSteerable": {"turnKind": "compact"}}}});
        let read = json!({"read": {"method": "turn/steer"}});
        let user = json!({"type": "userMessage", "id": "u2", "clientId": "t-1/i-1", "content": []});
        let (_, seen) = steered(
            rig,
            &child,
            json!([
                read, {"error": busy}, read, {"error": compact}, read, {"result": {"turnId": "${turn}"}},
                {"line": {"method": "item/completed",
                    "params": {"threadId": "${thread}", "turnId": "${turn}", "item": user}}},
            ]),
        )
        .await?;
        let accepted = seen.kinds().find_map(|kind| match kind {
            Kind::InputAccepted(e) => Some((&*e.input_id, &*e.native_id)),
            _ => None,
        });
        assert_eq!(accepted, Some(("i-1", "u2")));
        assert_eq!(asked(&child, Harness::Codex)?, 3);
        assert_eq!(seen.kinds().filter(|kind| matches!(kind, Kind::InputWritten(_))).count(), 1);
        Ok(())
    });
}

fn an_input_that_the_harness_refuses_is_refused_while_the_turn_goes_on(harness: Harness) {
    scenario("fault_steer_refused", &["R-STE-1", "R-STE-3"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let refusal = |message: &str| {
            let refusal = json!({"code": -32600, "message": message});
            json!([{"read": {"method": "turn/steer"}}, {"error": refusal}])
        };
        let uuid = || json!("${.uuid}");
        let cases = match harness {
            Harness::Codex => vec![
                (refusal("no active turn to steer"), Reason::TurnEnded),
                (refusal("expected active turn id `x` but found `y`"), Reason::TurnEnded),
                (refusal("this is beyond me, see https://example.com/help"), Reason::Unsupported),
            ],
            Harness::ClaudeCode => {
                let read = json!({"read": {"method": "user"}});
                let queued = json!([read, lifecycle(uuid(), "queued"), lifecycle(uuid(), "cancelled")]);
                let at_once = json!([read, lifecycle(uuid(), "cancelled")]);
                vec![(queued, Reason::TurnEnded), (at_once, Reason::TurnEnded)]
            }
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        };
        for (steps, reason) in cases {
            let message = steps.to_string();
            let (session, seen) = steered(rig, &child, steps).await?;
            let refused = seen.kinds().find_map(|kind| if let Kind::InputRefused(e) = kind { Some(e) } else { None });
            let refused = refused.context("it was not refused")?;
            assert_eq!((refused.reason(), &*refused.input_id), (reason, "i-1"), "{message}");
            assert!(!refused.message.contains("example.com"), "{refused:?}");
            assert_eq!(asked(&child, harness)?, 1);
            let turn = session.turn("t-1").await?;
            assert_eq!((turn.inputs[0].phase(), turn.inputs[0].refusal()), (InputPhase::Refused, reason));
        }
        Ok(())
    });
}

fn an_input_whose_evidence_cannot_be_read_is_not_called_refused(harness: Harness) {
    scenario("fault_steer_unreadable", &["R-STE-3"], Setup::child_of(harness), async |rig| {
        let child = rig.child.clone().context("a child")?;
        let item = json!({"type": "userMessage", "id": "u2", "clientId": ["t-1/i-1"], "content": []});
        let of_codex = json!([
            {"read": {"method": "turn/steer"}}, {"result": {"turnId": "${turn}"}},
            {"line": {"method": "item/completed",
                "params": {"threadId": "${thread}", "turnId": "${turn}", "item": item}}},
        ]);
        let odd = lifecycle(json!(["${.uuid}"]), "started");
        let of_claude = json!([{"read": {"method": "user"}}, lifecycle(json!("${.uuid}"), "queued"), odd]);
        let (session, seen) = match harness {
            Harness::Codex => steered(rig, &child, of_codex).await?,
            // It has read the input or has it still, so what it does next may be of this Turn or not.
            Harness::ClaudeCode => {
                let session = started(rig, &child, program(harness, of_claude)?).await?;
                session.steer("t-1", "i-1", text_input("turn left")).await?;
                let seen = observed(&session).await?;
                let code = seen.end()?.failure.as_ref().map(v1::Failure::code);
                assert_eq!(code, Some(v1::FailureCode::HarnessProtocolError), "{:?}", seen.end());
                (session, seen)
            }
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        };
        let unknown = seen.kinds().filter(|kind| matches!(kind, Kind::InputOutcomeUnknown(_))).count();
        assert_eq!(unknown, 1, "{:?}", seen.story());
        assert_eq!(session.turn("t-1").await?.inputs[0].phase(), InputPhase::OutcomeUnknown);
        Ok(())
    });
}

fn an_input_that_is_not_read_is_told_so_in_its_time_and_its_outcome_is_unknown(harness: Harness) {
    let setup = Setup::child_of(harness).with("limits.input_write_ms = 300");
    scenario("fault_steer_unread", &["R-STE-1", "R-STE-3", "R-CAN-1"], setup, async |rig| {
        let child = rig.child.clone().context("a child")?;
        let session = started(rig, &child, harness.with_fault(Place::InMessage, Fault::Hangs)).await?;
        // More than a pipe takes.
        let long = "x".repeat(1 << 20);
        let answer = time::timeout(Duration::from_secs(10), session.steer("t-1", "i-1", text_input(long.clone())));
        let input = answer.await.context("nobody answers")??.input.context("no input")?;
        assert_eq!(input.phase(), InputPhase::Received);
        let again = session.steer("t-1", "i-1", text_input(long)).await?;
        assert_eq!((again.duplicate, again.input.map(|input| input.phase())), (true, Some(InputPhase::Received)));
        session.cancel("t-1", None).await?;
        let seen = observed(&session).await?;
        let unknown = seen.kinds().filter(|kind| matches!(kind, Kind::InputOutcomeUnknown(_))).count();
        assert_eq!(unknown, 1, "{:?}", seen.story());
        let turn = session.turn("t-1").await?;
        let phases: Vec<_> = turn.inputs.iter().map(v1::TurnInput::phase).collect();
        assert_eq!(phases, [InputPhase::OutcomeUnknown]);
        Ok(())
    });
}
