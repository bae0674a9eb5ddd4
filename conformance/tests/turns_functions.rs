//! Functions of the application: the call, the required action, the result, its receipt, and what the model reads.

use conformance::rig::{Harness, Observed, Rig, Setup, function, scenario, text_result};
use conformance::{for_each_harness, for_every_harness};
use proto::client::{Session, TurnEvents};
use proto::v1;
use proto::v1::event::Kind;

for_each_harness!(
    a_call_waits_for_its_result_and_the_receipt_follows_it,
    calls_side_by_side_are_answered_in_any_order,
    what_the_model_reads_is_the_stated_rendering
);

// The rest is in acp_functions, for agents whose calls have ids of the bridge.
for_every_harness!(
    a_call_that_waits_holds_up_no_other_session,
    the_same_call_id_in_the_next_turn_is_another_call,
    what_is_no_call_of_a_declared_function_is_never_shown
);

const SCHEMA: &str = r#"{"type":"object","properties":{"q":{"type":"string"}},"required":["q"]}"#;

fn a_call_waits_for_its_result_and_the_receipt_follows_it(harness: Harness) {
    let rules = ["R-FN-2", "R-FN-3", "R-FN-5", "R-FN-6", "R-API-3"];
    scenario("function_call", &rules, declaring(harness), async |rig| {
        let arguments = r#"{"z":1.0,"a":12345678901234567890123,"q":"life"}"#;
        rig.provider.script(
            r#"[{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{\"z\":1.0,\"a\":12345678901234567890123,\"q\":\"life\"}"}]}]},
                {"play": [{"gate": "go"}, {"text": {"chunks": ["It is 42."]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let mut events = start(rig, &session, "t-1").await?;
        let mut seen = Observed::default();
        let call = seen.call(&mut events).await?;
        assert_eq!((&*call.call_id, &*call.name, &*call.turn_id), ("c1", "lookup", "t-1"));
        assert_eq!(text(call.arguments.as_ref()), arguments);
        assert!(call.arguments_exact);
        assert_eq!(call.call_id_origin(), v1::CallIdOrigin::Native);
        assert!(!call.idempotency_key.is_empty());
        assert!(rig.provider.model_requests()[0].tools().contains(&"lookup".into()));

        let turn = session.turn("t-1").await?;
        assert_eq!(turn.phase(), v1::TurnPhase::RequiresAction);
        assert_eq!(actions(&turn), std::slice::from_ref(&call));
        // Claude Code asks in the middle of an answer, whose end follows.
        let more = turn.last_sequence - seen.events.len() as u64;
        assert!(more == 0 || harness == Harness::ClaudeCode, "{more} events follow the call before its result");

        let outcomes = session.submit(vec![text_result("t-1", "c1", "the answer is 42")]).await?;
        assert_eq!(outcomes, [outcome("t-1", "c1", v1::ResultOutcome::Accepted)]);
        let applied = seen.until(&mut events, applied).await?;
        assert_eq!((&*applied.call_id, applied.success), ("c1", true));
        assert_eq!(applied.evidence, harness.result_evidence());
        let requests = rig.provider.wait_for(|requests| requests.len() == 2).await?;
        assert_eq!(requests[1].output("c1"), Some("the answer is 42".into()));
        let turn = session.turn("t-1").await?;
        assert_eq!((turn.phase(), actions(&turn)), (v1::TurnPhase::Running, vec![]));

        rig.provider.open_gate("go");
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["It is 42."]);
        assert_eq!(session.turn("t-1").await?.required_actions, []);
        Ok(())
    });
}

fn calls_side_by_side_are_answered_in_any_order(harness: Harness) {
    let setup = declaring(harness).needing(v1::Capability::ParallelFunctionCalls);
    scenario("function_parallel", &["R-FN-3", "R-FN-6"], setup, async |rig| {
        rig.provider.script(
            r#"[{"play": [{"calls": [
                    {"name": "lookup", "call_id": "c1", "arguments": "{\"q\":\"a\"}"},
                    {"name": "lookup", "call_id": "c2", "arguments": "{\"q\":\"b\"}"},
                    {"name": "lookup", "call_id": "c3", "arguments": "{\"q\":\"c\"}"}]}]},
                {"play": [{"text": {"chunks": ["All three."]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let mut events = start(rig, &session, "t-1").await?;
        let mut seen = Observed::default();
        let mut open = Vec::new();
        for _ in 0..3 {
            open.push(seen.call(&mut events).await?.call_id);
        }
        open.sort_unstable();
        assert_eq!(open, ["c1", "c2", "c3"]);
        for call_id in ["c3", "c2", "c1"] {
            assert_eq!(session.turn("t-1").await?.required_actions.len(), open.len());
            session.submit(vec![text_result("t-1", call_id, &format!("result of {call_id}"))]).await?;
            let applied = seen.until(&mut events, applied).await?;
            assert_eq!(applied.call_id, call_id);
            open.pop();
        }
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        let request = &rig.provider.model_requests()[1];
        for call_id in ["c1", "c2", "c3"] {
            assert_eq!(request.output(call_id), Some(format!("result of {call_id}").into()));
        }
        Ok(())
    });
}

fn what_the_model_reads_is_the_stated_rendering(harness: Harness) {
    scenario("function_rendering", &["R-FN-4", "R-FN-6", "R-FN-9"], declaring(harness), async |rig| {
        let parts = |texts: &[&str]| serde_json::Value::from_iter(texts.iter().map(|text| part(text)));
        // Claude Code makes one text of a failure, which it marks by itself, and has a text for nothing.
        let unsaid = if harness == Harness::Codex { "The function failed." } else { "Unknown error" };
        let (failed, nothing): (_, [serde_json::Value; 2]) = match harness {
            Harness::Codex => (parts(&["The function failed.", "half", "boom"]), ["".into(), serde_json::json!([])]),
            Harness::ClaudeCode => {
                let nothing = "(mcp__functions__lookup completed with no output)";
                ("half\nboom".into(), [nothing.into(), nothing.into()])
            }
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        };
        let cases = [
            (result(true, None, Some(text_output("plain"))), "plain".into()),
            (result(true, None, Some(parts_output(&["one", "two"]))), parts(&["one", "two"])),
            (result(true, Some("odd"), Some(text_output("still"))), parts(&["still", "odd"])),
            (result(false, Some("boom"), Some(text_output("half"))), failed),
            (result(false, None, None), unsaid.into()),
            (result(true, None, Some(text_output(""))), nothing[0].clone()),
            (result(true, None, None), nothing[1].clone()),
            (result(true, None, Some(null_output())), nothing[1].clone()),
            (result(true, None, Some(parts_output(&[]))), nothing[1].clone()),
        ];
        let calls: Vec<_> = (0..cases.len())
            .map(|n| format!(r#"{{"name": "lookup", "call_id": "c{n}", "arguments": "{{\"q\":\"{n}\"}}"}}"#))
            .collect();
        rig.provider.script(&format!(
            r#"[{{"play": [{{"calls": [{}]}}]}}, {{"play": [{{"text": {{"chunks": ["Read."]}}}}]}}]"#,
            calls.join(",")
        ))?;
        let session = rig.session().await?;
        let mut events = start(rig, &session, "t-1").await?;
        let mut seen = Observed::default();
        for _ in &cases {
            seen.call(&mut events).await?;
        }
        let results = cases.iter().enumerate();
        let results = results.map(|(n, (result, _))| v1::FunctionResult { call_id: format!("c{n}"), ..result.clone() });
        let outcomes = session.submit(results.collect()).await?;
        assert!(outcomes.iter().all(|one| one.outcome() == v1::ResultOutcome::Accepted), "{outcomes:?}");
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        let request = &rig.provider.model_requests()[1];
        for (n, (result, want)) in cases.iter().enumerate() {
            assert_eq!(request.output(&format!("c{n}")).as_ref(), Some(want), "{result:?}");
        }
        let receipts: Vec<_> = seen.kinds().filter_map(applied).collect();
        assert_eq!(receipts.len(), cases.len());
        for receipt in receipts {
            let n: usize = receipt.call_id[1..].parse()?;
            assert_eq!(Some(receipt.success), cases[n].0.success, "{receipt:?}");
        }
        Ok(())
    });
}

fn a_call_that_waits_holds_up_no_other_session(harness: Harness) {
    scenario("function_waits_alone", &["R-FN-8", "R-EVT-1"], declaring(harness), async |rig| {
        rig.provider.script(
            r#"[{"match": "the one that asks", "play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{\"q\":\"x\"}"}]}]}]"#,
        )?;
        let waiting = rig.session().await?;
        let mut events =
            rig.start_turn(&waiting, rig.configuration(functions()), "t-1", "I am the one that asks").await?;
        let mut seen = Observed::default();
        let call = seen.call(&mut events).await?;

        let working = rig.session().await?;
        let other = rig.whole_turn(&working, "t-1", "work on").await?;
        other.completed()?;
        assert_eq!(other.messages(), ["work on"]);
        assert!(!other.story().contains(&"function_call"), "{:?}", other.story());

        assert_eq!(waiting.turn("t-1").await?.phase(), v1::TurnPhase::RequiresAction);
        waiting.submit(vec![text_result("t-1", &call.call_id, "at last")]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["The answer was: at last"]);
        Ok(())
    });
}

fn the_same_call_id_in_the_next_turn_is_another_call(harness: Harness) {
    scenario("function_same_id_later", &["R-FN-2", "R-FN-5"], declaring(harness), async |rig| {
        let once = r#"{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{\"q\":\"x\"}"}]}]}"#;
        let said = r#"{"play": [{"text": {"chunks": ["Heard."]}}]}"#;
        rig.provider.script(&format!("[{once}, {said}, {once}, {said}]"))?;
        let session = rig.session().await?;
        let mut calls = Vec::new();
        for (turn_id, answer) in [("t-1", "first"), ("t-2", "second")] {
            let mut events = start(rig, &session, turn_id).await?;
            let mut seen = Observed::default();
            let call = seen.call(&mut events).await?;
            let outcomes = session.submit(vec![text_result(turn_id, &call.call_id, answer)]).await?;
            assert_eq!(outcomes, [outcome(turn_id, &call.call_id, v1::ResultOutcome::Accepted)]);
            calls.push(call);
            seen.to_the_end(&mut events).await?.completed()?;
        }
        assert_ne!(calls[0].idempotency_key, calls[1].idempotency_key);
        // An id of the bridge is never used again.
        assert_eq!(calls[0].call_id == calls[1].call_id, Harness::ALL.contains(&harness));
        // Of two calls of one id Claude Code shows the model one.
        let shown = if harness == Harness::ClaudeCode { "first" } else { "second" };
        assert_eq!(rig.provider.model_requests()[3].output("c1"), Some(shown.into()));
        let first = &calls[0].call_id;
        let outcomes = session.submit(vec![text_result("t-1", first, "first")]).await?;
        assert_eq!(outcomes, [outcome("t-1", first, v1::ResultOutcome::Duplicate)]);
        Ok(())
    });
}

#[test]
fn a_call_id_that_the_model_gives_twice_is_shown_once() {
    let setup = Setup::outer().only("what becomes of the second of two calls of one id is Codex's own way");
    scenario("function_same_id_twice", &["R-FN-2", "R-FN-6"], setup, async |rig| {
        for (turn_id, other) in [("t-1", "x"), ("t-2", "y")] {
            rig.provider.script(&format!(
                r#"[{{"play": [{{"calls": [
                        {{"name": "lookup", "call_id": "c1", "arguments": "{{\"q\":\"x\"}}"}},
                        {{"name": "lookup", "call_id": "c1", "arguments": "{{\"q\":\"{other}\"}}"}}]}}]}},
                    {{"play": [{{"text": {{"chunks": ["Heard."]}}}}]}}]"#
            ))?;
            let session = rig.session().await?;
            let mut events = start(rig, &session, turn_id).await?;
            let mut seen = Observed::default();
            let call = seen.call(&mut events).await?;
            // Codex keeps one of the two and cancels the other. Whichever it is, the bridge shows one call with one end.
            if let Err(error) = session.submit(vec![text_result(turn_id, &call.call_id, "only once")]).await {
                assert_eq!(error.reason(), Some(v1::Reason::CallAbandoned), "{error}");
            }
            let seen = seen.to_the_end(&mut events).await?;
            seen.completed()?;
            let calls = seen.kinds().filter(|kind| matches!(kind, Kind::FunctionCall(_))).count();
            assert_eq!(calls, 1, "{:?}", seen.story());
        }
        Ok(())
    });
}

fn what_is_no_call_of_a_declared_function_is_never_shown(harness: Harness) {
    scenario("function_undeclared", &["R-FN-2", "R-FN-11"], declaring(harness), async |rig| {
        rig.provider.script(
            r#"[{"play": [{"calls": [
                    {"name": "undeclared", "call_id": "c1", "arguments": "{}"},
                    {"name": "lookup", "call_id": "c2", "arguments": "this is no JSON"}]}]},
                {"play": [{"text": {"chunks": ["Call lookup({\"q\":\"x\"}) <tool_call>{\"name\":\"lookup\"}</tool_call>"]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let mut events = start(rig, &session, "t-1").await?;
        let seen = Observed::default().to_the_end(&mut events).await?;
        seen.completed()?;
        assert!(!seen.story().contains(&"function_call"), "{:?}", seen.story());
        assert_eq!(rig.provider.model_requests().len(), 2);
        Ok(())
    });
}

/// A Harness that has functions.
fn declaring(harness: Harness) -> Setup {
    Setup::outer().of(harness).needing(v1::Capability::FunctionTools)
}

async fn start(rig: &Rig, session: &Session, turn_id: &str) -> anyhow::Result<TurnEvents> {
    rig.start_turn(session, rig.configuration(functions()), turn_id, "look it up").await
}

fn functions() -> Vec<v1::FunctionTool> {
    vec![function("lookup", SCHEMA)]
}

fn applied(kind: &Kind) -> Option<v1::FunctionResultApplied> {
    if let Kind::FunctionResultApplied(applied) = kind { Some(applied.clone()) } else { None }
}

fn actions(turn: &v1::Turn) -> Vec<v1::FunctionCall> {
    let call = |action: &v1::RequiredAction| match &action.action {
        Some(v1::required_action::Action::FunctionCall(call)) => call.clone(),
        None => panic!("an action without a kind"),
    };
    turn.required_actions.iter().map(call).collect()
}

fn outcome(turn_id: &str, call_id: &str, outcome: v1::ResultOutcome) -> v1::FunctionResultOutcome {
    v1::FunctionResultOutcome { turn_id: turn_id.into(), call_id: call_id.into(), outcome: outcome.into() }
}

fn result(success: bool, error: Option<&str>, output: Option<v1::function_output::Value>) -> v1::FunctionResult {
    let error = error.map(|text| v1::NullableText { value: Some(v1::nullable_text::Value::Text(text.into())) });
    let output = output.map(|value| v1::FunctionOutput { value: Some(value) });
    v1::FunctionResult {
        turn_id: "t-1".into(),
        call_id: String::new(),
        success: Some(success),
        error,
        output,
        disposition: None,
    }
}

fn text_output(text: &str) -> v1::function_output::Value {
    v1::function_output::Value::Text(text.into())
}

fn null_output() -> v1::function_output::Value {
    v1::function_output::Value::Null(v1::Null {})
}

fn parts_output(texts: &[&str]) -> v1::function_output::Value {
    let part = |text: &&str| v1::OutputPart { part: Some(v1::output_part::Part::Text((*text).into())) };
    v1::function_output::Value::Parts(v1::OutputParts { parts: texts.iter().map(part).collect() })
}

fn part(text: &str) -> serde_json::Value {
    serde_json::json!({"type": "input_text", "text": text})
}

fn text(content: Option<&v1::Content>) -> &str {
    match content.and_then(|content| content.place.as_ref()) {
        Some(v1::content::Place::Text(text)) => text,
        other => panic!("no text: {other:?}"),
    }
}
