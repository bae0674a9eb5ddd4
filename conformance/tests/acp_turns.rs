//! Turns of agents behind ACP where they differ from other Harnesses: what looks like a command of the agent, messages without ends, and input that is added.

use anyhow::Context;
use conformance::for_each_acp_agent;
use conformance::mcode::{Faults, Steers};
use conformance::rig::{Harness, Observed, Rig, Setup, function, nowhere, scenario, text_result};
use proto::client::{Session, text_input};
use proto::v1::InputEvidence;
use proto::v1::event::Kind;

for_each_acp_agent!(
    what_looks_like_a_command_reaches_the_model,
    each_thing_that_the_model_says_and_does_is_an_item_of_its_own
);

fn what_looks_like_a_command_reaches_the_model(harness: Harness) {
    scenario("acp_slash", &["R-CTL-1", "R-STA-1"], Setup::outer().of(harness), async |rig| {
        let rewrites = rig.declaration().await?.limits.unwrap_or_default().input_rewrites;
        assert_eq!(rewrites.len(), 1, "what is put in is declared: {rewrites:?}");
        let session = rig.session().await?;
        for (turn, text) in [("t-1", "/help"), ("t-2", "/compact and go on"), ("t-3", "no command /help")] {
            rig.provider.reset();
            rig.provider.script(r#"[{"play": [{"text": {"chunks": ["I read it."]}}]}]"#)?;
            let seen = rig.whole_turn(&session, turn, text).await?;
            seen.completed()?;
            assert_eq!(seen.messages(), ["I read it."], "{text}");
            let body = &rig.provider.model_requests()[0].body;
            assert!(body.contains(text), "{text} is not in {body}");
            let rewritten = match harness {
                Harness::Opencode => {
                    body.contains(&format!("\u{200b}{text}")) || body.contains(&format!("\\u200b{text}"))
                }
                _ => body.contains(&format!(r"{text}\n\n")),
            };
            assert_eq!(rewritten, text.starts_with('/'), "{text}: {body}");
        }
        Ok(())
    });
}

fn each_thing_that_the_model_says_and_does_is_an_item_of_its_own(harness: Harness) {
    scenario("acp_items", &["R-EVT-2"], Setup::outer().of(harness), async |rig| {
        rig.provider.script(
            r#"[{"play": [{"text": {"chunks": ["I will ", "run it."]}}, {"shell": {"command": "echo ran", "yield_ms": 30000}}]},
                {"play": [{"text": {"chunks": ["It ", "ran."]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "run it").await?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["I will run it.", "It ran."]);
        let story = seen.story();
        let place = |name: &str| story.iter().position(|one| *one == name).context("it is not there");
        assert!(place("message_completed")? < place("tool_started")?, "{story:?}");
        assert!(seen.tool_output()?.contains("ran"));
        Ok(())
    });
}

/// A Turn of the double whose command waits for a file, and its input.
async fn steered(rig: &Rig, session: &Session) -> anyhow::Result<Observed> {
    rig.provider.script(
        r#"[{"play": [{"shell": {"command": "until test -e go; do read -t 0.01 < /dev/zero; done", "yield_ms": 30000}}]},
            {"always": true, "play": [{"text": {"chunks": ["As you say."]}}]}]"#,
    )?;
    let mut events = rig.start_turn(session, rig.configuration(Vec::new()), "t-1", "wait for it").await?;
    let mut seen = Observed::default();
    seen.until(&mut events, |kind| matches!(kind, Kind::ToolStarted(_)).then_some(())).await?;
    session.steer("t-1", "i-1", text_input("turn left")).await?;
    seen.until(&mut events, |kind| matches!(kind, Kind::InputAccepted(_) | Kind::InputWritten(_)).then_some(()))
        .await?;
    std::fs::write(rig.workspace().join("go"), "")?;
    seen.to_the_end(&mut events).await
}

#[test]
fn what_is_added_is_admitted_and_read_in_the_same_turn() {
    let setup = Setup::double(Faults::default()).only("the other agent takes no input while it works");
    scenario("acp_steer", &["R-STE-1", "R-STE-2"], setup, async |rig| {
        let session = rig.session().await?;
        let seen = steered(rig, &session).await?;
        seen.completed()?;
        let accepted: Vec<_> = seen
            .kinds()
            .filter_map(|kind| match kind {
                Kind::InputAccepted(accepted) => Some((&*accepted.input_id, accepted.evidence())),
                _ => None,
            })
            .collect();
        assert_eq!(accepted, [("i-1", InputEvidence::Admitted)]);
        assert!(rig.provider.model_requests()[1].body.contains("turn left"));
        Ok(())
    });
}

#[test]
fn without_a_workspace_input_is_added_too() {
    let setup = Setup::double(Faults::default()).only("the other agent takes no input while it works");
    scenario("acp_steer_nowhere", &["R-STE-1", "R-STE-2", "R-FN-6"], setup, async |rig| {
        rig.provider.script(
            r#"[{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]},
                {"always": true, "play": [{"text": {"chunks": ["As you say."]}}]}]"#,
        )?;
        let session = rig.session_nowhere().await?;
        let configuration = nowhere(rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)]));
        let mut events = rig.start_turn(&session, configuration, "t-1", "look it up").await?;
        let mut seen = Observed::default();
        let call = seen.call(&mut events).await?;
        session.steer("t-1", "i-1", text_input("turn left")).await?;
        seen.until(&mut events, |kind| matches!(kind, Kind::InputAccepted(_)).then_some(())).await?;
        session.submit(vec![text_result("t-1", &call.call_id, "42")]).await?;
        seen.to_the_end(&mut events).await?.completed()?;
        assert!(rig.provider.model_requests()[1].body.contains("turn left"));
        Ok(())
    });
}

#[test]
fn what_was_added_without_a_receipt_is_unknown_and_never_told_again() {
    let setup = Setup::double(Faults::default()).only("the other agent takes no input while it works");
    scenario("acp_steer_unknown", &["R-STE-3", "R-CAN-3"], setup, async |rig| {
        for steer in [Steers::Lost, Steers::Error, Steers::Unreadable] {
            rig.provider.reset();
            rig.set_faults(&Faults { steer: Some(steer), ..Faults::default() })?;
            let session = rig.session().await?;
            let seen = steered(rig, &session).await?;
            let unknown = seen.kinds().filter(|kind| matches!(kind, Kind::InputOutcomeUnknown(_))).count();
            assert_eq!(unknown, 1, "{steer:?}: {:?}", seen.story());
            assert!(!seen.kinds().any(|kind| matches!(kind, Kind::InputAccepted(_))), "{steer:?}");
            // The process is not used again.
            rig.executor_gone(&session).await?;
            rig.set_faults(&Faults::default())?;
            std::fs::remove_file(rig.workspace().join("go"))?;
            let native = seen.native_session()?;
            let ready = rig.resume(&session, rig.configuration(Vec::new()), &native).await?;
            rig.turn_with(&session, &ready, "t-2", "go on").await?.completed()?;
        }
        Ok(())
    });
}
