//! Large texts: no message of the bridge grows beyond its limit, and nothing is lost.

use conformance::for_each_harness;
use conformance::rig::{Daemon, Harness, Observed, Setup, function, refusal, scenario, text_result};
use proto::client::text_input;
use proto::v1;
use proto::v1::event::Kind;
use serde_json::json;

for_each_harness!(
    a_large_message_is_split_and_its_end_refers_to_it,
    large_arguments_and_results_reach_the_other_side_whole,
    the_longest_input_is_taken_and_the_next_longer_one_is_not
);

fn a_large_message_is_split_and_its_end_refers_to_it(harness: Harness) {
    scenario("large_message", &["R-API-7", "R-EVT-2", "R-EVT-11"], Setup::outer().of(harness), async |rig| {
        let limits = rig.client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?.limits;
        let limits = limits.unwrap_or_default();
        // Letters of two bytes, so that a cut could fall into one.
        let text = "ä5ö7".repeat(900_000);
        rig.provider.script(&json!([{"play": [{"text": {"chunks": [text]}}]}]).to_string())?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "talk").await?;
        seen.completed()?;
        let deltas: Vec<_> = seen.kinds().filter_map(delta).collect();
        assert!(deltas.len() > 1, "one delta of {} bytes", text.len());
        for part in &deltas {
            assert!(part.len() as u64 <= limits.max_inline_bytes, "a delta of {} bytes", part.len());
        }
        assert!(deltas.concat() == text, "the deltas are not the text");
        let completed = seen.kinds().find_map(|kind| match kind {
            Kind::MessageCompleted(message) => message.text.clone()?.place,
            _ => None,
        });
        let Some(v1::content::Place::Payload(payload)) = completed else {
            anyhow::bail!("no reference: {completed:?}")
        };
        assert_eq!((payload.size, payload.sha256.len()), (text.len() as u64, 32));
        assert!(session.payload("t-1", &payload).await? == text.into_bytes(), "the payload is not the text");
        // The same again from the file.
        let again = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        assert!(again.events == seen.events, "the second observation differs");
        Ok(())
    });
}

fn large_arguments_and_results_reach_the_other_side_whole(harness: Harness) {
    scenario("large_function", &["R-API-7", "R-FN-2", "R-FN-3", "R-FN-6"], Setup::outer().of(harness), async |rig| {
        let arguments = json!({"q": "x".repeat(5 << 20)}).to_string();
        let calls = json!([{"name": "lookup", "call_id": "c1", "arguments": arguments}]);
        let steps = json!([{"play": [{"calls": calls}]}, {"play": [{"text": {"chunks": ["Read."]}}]}]);
        rig.provider.script(&steps.to_string())?;
        let session = rig.session().await?;
        let configuration = rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)]);
        let mut events = rig.start_turn(&session, configuration, "t-1", "look it up").await?;
        let mut seen = Observed::default();
        let call = seen.call(&mut events).await?;
        let Some(v1::content::Place::Payload(payload)) = call.arguments.and_then(|arguments| arguments.place) else {
            anyhow::bail!("no reference")
        };
        assert_eq!(payload.size, arguments.len() as u64);
        assert!(session.payload("t-1", &payload).await? == arguments.as_bytes(), "the payload is not the arguments");
        let turn = session.turn("t-1").await?;
        assert_eq!((turn.phase(), turn.required_actions.len()), (v1::TurnPhase::RequiresAction, 1));
        // The required action has a reference of its own.
        let Some(v1::required_action::Action::FunctionCall(required)) = turn.required_actions[0].action.clone() else {
            anyhow::bail!("no call: {turn:?}")
        };
        let Some(v1::content::Place::Payload(of_action)) = required.arguments.and_then(|arguments| arguments.place)
        else {
            anyhow::bail!("no reference")
        };
        assert_eq!((of_action.size, &of_action.sha256), (payload.size, &payload.sha256));
        assert!(session.payload("t-1", &of_action).await? == arguments.as_bytes(), "it is not the arguments");
        let other = v1::PayloadRef { payload_id: "999.0".into(), ..payload.clone() };
        refusal(session.payload("t-1", &other).await, v1::Reason::NotFound).at("payload_id");

        // Claude Code takes 500,000 characters.
        let result = "result ".repeat(if harness == Harness::Codex { 300_000 } else { 70_000 });
        session.submit(vec![text_result("t-1", "c1", &result)]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert!(seen.story().contains(&"function_result_applied"), "{:?}", seen.story());
        // How much of it the model reads is the Harness's own affair: the head and the tail.
        let output = rig.provider.model_requests()[1].output("c1").unwrap_or_default();
        let read = output.as_str().unwrap_or_default();
        assert!(read.starts_with("result result") && read.trim_end().ends_with("result"), "{} bytes", read.len());

        // After the end as before, also by another daemon; and no longer than its event.
        rig.daemon.kill().await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        assert!(session.payload("t-1", &payload).await? == arguments.as_bytes(), "it is not the arguments");
        let last = seen.events.len() as u64;
        session.acknowledge("t-1", last).await?;
        refusal(session.payload("t-1", &payload).await, v1::Reason::EventsGone)
            .with("first_available", &last.to_string());
        assert!(session.payload("t-1", &of_action).await? == arguments.as_bytes(), "it is not the arguments");
        Ok(())
    });
}

#[test]
fn a_large_output_of_a_command_is_read_apart() {
    let setup = Setup::outer().only("Claude Code cuts the output of a command before it tells it");
    scenario("large_output", &["R-API-7", "R-EVT-2"], setup, async |rig| {
        // Two MiB; Codex keeps the first and the last half MiB.
        let command = "seq -f 'line %010.0f of the output' 1 60000";
        let shell = json!({"shell": {"command": command, "yield_ms": 30000}});
        rig.provider.script(&json!([{"play": [shell]}, {"play": ["mock"]}]).to_string())?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "count").await?;
        seen.completed()?;
        let output = seen.kinds().find_map(|kind| match kind {
            Kind::ToolCompleted(tool) => tool.output.clone()?.place,
            _ => None,
        });
        let Some(v1::content::Place::Payload(payload)) = output else { anyhow::bail!("no reference") };
        let output = String::from_utf8(session.payload("t-1", &payload).await?)?;
        assert!(output.starts_with("line 0000000001 of the output\n"), "{}", &output[..100]);
        assert!(output.trim_end().ends_with("line 0000060000 of the output"), "{}", &output[output.len() - 100..]);
        Ok(())
    });
}

fn the_longest_input_is_taken_and_the_next_longer_one_is_not(harness: Harness) {
    scenario("large_input", &["R-STA-1", "R-API-4", "R-API-7"], Setup::outer().of(harness), async |rig| {
        let session = rig.session().await?;
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        let longest = "é".repeat(1_048_576);
        let refused = session.start(&ready, "t-1", text_input(format!("{longest}!"))).await;
        conformance::rig::refused(refused, v1::Reason::InvalidRequest)?;
        rig.provider.script(r#"[{"play": [{"text": {"chunks": ["Read."]}}]}]"#)?;
        session.start(&ready, "t-1", text_input(&*longest)).await?;
        let seen = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        seen.completed()?;
        assert!(rig.provider.model_requests()[0].body.contains(&longest), "the input is cut");
        Ok(())
    });
}

fn delta(kind: &Kind) -> Option<&str> {
    if let Kind::MessageDelta(delta) = kind { Some(&delta.text) } else { None }
}
