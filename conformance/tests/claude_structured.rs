//! Final answers by a schema as Claude Code gives them (R-CTL-3): the model calls a tool for it. Which call is the answer, what is told of it, and what
//! becomes of Turns without one. What both Harnesses share is in `output_schema.rs`.

use anyhow::Context;
use conformance::rig::{
    Daemon, Harness, MODEL_KEY, Observed, Rig, Setup, answering_by, deferring, function, nowhere, refusal, scenario,
    text_result,
};
use proto::client::{Error, Session, text_input};
use proto::v1::{self, CancelOutcome, Capability, FailureCode, Finish, Reason, TurnStatus, event::Kind};
use serde_json::{Value, json};

/// Why it is looked at for one Harness alone.
const OWN: &str = "Claude Code has a tool for the answer";

const SCHEMA: &str = r#"{"type":"object","properties":{"x":{"type":"integer"},"more":{}},"required":["x"]}"#;

fn claude() -> Setup {
    let setup = Setup { harness: Harness::ClaudeCode, ..Setup::outer() }.only(OWN);
    setup.needing_under(v1::Placement::None, Capability::StructuredOutput)
}

fn configuration(rig: &Rig) -> v1::ExecutionConfiguration {
    nowhere(answering_by(SCHEMA, rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)])))
}

/// A call of the tool for answers.
fn answer(id: &str, arguments: &str) -> Value {
    json!({"name": "StructuredOutput", "call_id": id, "arguments": arguments})
}

fn lookup(id: &str) -> Value {
    json!({"name": "lookup", "call_id": id, "arguments": "{}"})
}

fn calls(calls: &[Value]) -> Value {
    json!({ "calls": calls })
}

fn text(text: &str) -> Value {
    json!({"text": {"chunks": [text]}})
}

fn step(actions: &[Value]) -> Value {
    json!({ "play": actions })
}

/// The answers of a Turn: id, text, and the deltas before it.
fn answers(seen: &Observed) -> Vec<(String, String, usize)> {
    let final_answer = |kind: &Kind| match kind {
        Kind::MessageCompleted(message) if message.phase() == v1::MessagePhase::FinalAnswer => {
            let text = match message.text.as_ref().and_then(|text| text.place.as_ref()) {
                Some(v1::content::Place::Text(text)) => text.clone(),
                _ => String::new(),
            };
            let of = |kind: &&Kind| matches!(kind, Kind::MessageDelta(delta) if delta.item_id == message.item_id);
            Some((native_id(seen, &message.item_id), text, seen.kinds().filter(of).count()))
        }
        _ => None,
    };
    seen.kinds().filter_map(final_answer).collect()
}

fn native_id(seen: &Observed, item_id: &str) -> String {
    let native = |kind: &Kind| match kind {
        Kind::MessageStarted(started) if started.item_id == item_id => Some(started.native_id.clone()),
        _ => None,
    };
    seen.kinds().find_map(native).unwrap_or_default()
}

/// The messages that are not the answer.
fn prose(seen: &Observed) -> Vec<&str> {
    let answers = answers(seen);
    seen.messages().into_iter().filter(|message| !answers.iter().any(|(_, text, _)| text == message)).collect()
}

/// The one answer is the call of this id, in one delta, and is judged.
fn answered(seen: &Observed, id: &str, text: &str) -> anyhow::Result<()> {
    seen.completed().with_context(|| id.to_owned())?;
    assert_eq!(answers(seen), [(id.to_owned(), text.to_owned(), 1)]);
    let end = seen.end()?;
    assert_eq!((end.output_matches_schema, end.finish()), (Some(true), Finish::Stop));
    Ok(())
}

/// The Turn has no answer, and fails for that.
fn missing(seen: &Observed) -> anyhow::Result<v1::Failure> {
    let end = seen.end()?;
    assert_eq!((end.status(), end.output_matches_schema), (TurnStatus::Failed, None), "{end:?}");
    assert_eq!(answers(seen), []);
    let failure = end.failure.clone().context("no failure")?;
    assert_eq!(failure.code(), FailureCode::StructuredOutputMissing, "{failure:?}");
    Ok(failure)
}

/// A Turn of the conversation with this script of the provider.
async fn turn(rig: &Rig, session: &Session, turn_id: &str, steps: &[Value]) -> anyhow::Result<Observed> {
    rig.provider.script(&json!(steps).to_string())?;
    let ready = rig.prepare(session, configuration(rig)).await?;
    rig.turn_with(session, &ready, turn_id, turn_id).await
}

/// A script of one Turn, the call that is its answer, the text of the answer, and the messages beside it.
type Case = (Vec<Value>, &'static str, &'static str, Vec<&'static str>);

/// Turns of one conversation, one for each case.
async fn check(rig: &Rig, cases: Vec<Case>) -> anyhow::Result<()> {
    let session = rig.session_nowhere().await?;
    let mut asked = 0;
    for (steps, id, want, beside) in cases {
        let seen = turn(rig, &session, &format!("t-{id}"), &steps).await?;
        answered(&seen, id, want)?;
        assert_eq!(prose(&seen), beside, "{id}");
        // The answer stands behind all else, and the tool for it is no item.
        let story = seen.story();
        assert!(!story.contains(&"tool_started"), "{story:?}");
        assert!(story.ends_with(&["message_started", "message_delta", "message_completed", "turn_ended"]), "{story:?}");
        asked += steps.len();
        assert_eq!(rig.provider.model_requests().len(), asked, "{id}");
    }
    Ok(())
}

#[test]
fn the_answer_is_claudes_own_text_and_prose_keeps_its_own_id() {
    let rules = ["R-CTL-1", "R-CTL-3", "R-EVT-2", "R-EVT-3"];
    scenario("structured_answer", &rules, claude(), async |rig| {
        let good = |id| answer(id, r#"{"x":1}"#);
        // Numbers pass through doubles, and blanks are lost.
        let (spelled, told) = (
            r#"{ "x": 1.0, "more": [12345678901234567890, 1e2, "é"] }"#,
            r#"{"x":1,"more":[12345678901234567000,100,"é"]}"#,
        );
        let cases = vec![
            (vec![step(&[text("I think."), calls(&[good("a1")])])], "a1", r#"{"x":1}"#, vec!["I think."]),
            // It ends the Turn, whatever is said behind it.
            (vec![step(&[calls(&[good("b1")]), text("That was it.")])], "b1", r#"{"x":1}"#, vec!["That was it."]),
            // A word of Claude Code's own brings the call.
            (vec![step(&[text("Well.")]), step(&[calls(&[good("c1")])])], "c1", r#"{"x":1}"#, vec!["Well."]),
            (vec![step(&[calls(&[answer("d1", spelled)])])], "d1", told, vec![]),
        ];
        check(rig, cases).await
    });
}

#[test]
fn calls_that_did_not_hold_or_were_replaced_are_not_the_answer() {
    scenario("structured_candidates", &["R-CTL-3", "R-EVT-2"], claude(), async |rig| {
        let good = |id| answer(id, r#"{"x":1}"#);
        let wrong = |id| answer(id, r#"{"x":"one"}"#);
        let no_json = answer("d1", "no JSON");
        let cases = vec![
            (vec![step(&[calls(&[good("a1"), answer("a2", r#"{"x":2}"#)])])], "a2", r#"{"x":2}"#, vec![]),
            (vec![step(&[calls(&[good("b1"), wrong("b2")])])], "b1", r#"{"x":1}"#, vec![]),
            (vec![step(&[calls(&[wrong("c1")])]), step(&[calls(&[good("c2")])])], "c2", r#"{"x":1}"#, vec![]),
            (vec![step(&[calls(&[no_json])]), step(&[calls(&[good("d2")])])], "d2", r#"{"x":1}"#, vec![]),
        ];
        check(rig, cases).await
    });
}

#[test]
fn a_turn_without_the_call_has_failed() {
    scenario("structured_missing", &["R-CTL-3", "R-EVT-5"], claude(), async |rig| {
        let session = rig.session_nowhere().await?;
        let never = turn(rig, &session, "t-1", &[step(&[text("{\"x\":1}")]), step(&[text("No.")])]).await?;
        missing(&never)?;
        assert_eq!((never.messages(), rig.provider.model_requests().len()), (vec!["{\"x\":1}", "No."], 2));
        let wrong: Vec<_> = (0..5).map(|n| step(&[calls(&[answer(&format!("w{n}"), "{}")])])).collect();
        let exhausted = turn(rig, &session, "t-2", &wrong).await?;
        let failure = missing(&exhausted)?;
        assert!(failure.message.contains("after 5 attempts"), "{failure:?}");
        assert_eq!((exhausted.messages(), rig.provider.model_requests().len()), (vec![], 7));
        // The conversation goes on.
        let ready = rig.prepare(&session, configuration(rig)).await?;
        assert!(ready.reused);
        rig.provider.script(&json!([step(&[calls(&[answer("n1", r#"{"x":3}"#)])])]).to_string())?;
        answered(&rig.turn_with(&session, &ready, "t-3", "and now").await?, "n1", r#"{"x":3}"#)
    });
}

/// The real Claude Code, which is gone once the `result` of a native turn was heard.
const GONE_AT_THE_END: &str = r#""$REAL" "$@" | { sed -u '/"type":"result"/q9' || kill "$$"; }"#;

#[test]
fn a_process_that_goes_behind_its_result_has_given_its_answer_or_none() {
    let rules = ["R-CTL-3", "R-EVT-7", "R-CAN-3"];
    scenario("structured_lost", &rules, claude().behind(GONE_AT_THE_END), async |rig| {
        for (prompt, steps) in [
            ("answer", vec![step(&[text("Hm."), calls(&[answer("a1", r#"{"x":1}"#)])])]),
            ("no answer", vec![step(&[text("Hm.")]), step(&[text("No.")])]),
        ] {
            rig.provider.script(&json!(steps).to_string())?;
            let session = rig.session_nowhere().await?;
            let mut events = rig.start_turn(&session, configuration(rig), "t-1", prompt).await?;
            let seen = Observed::default().to_the_end(&mut events).await?;
            assert!(seen.end()?.reconciled);
            match prompt {
                "answer" => answered(&seen, "a1", r#"{"x":1}"#)?,
                _ => _ = missing(&seen)?,
            }
            rig.only(&[]).await?;
        }
        Ok(())
    });
}

#[test]
fn an_answer_beside_calls_waits_for_them() {
    let rules = ["R-CTL-3", "R-FN-3", "R-FN-6"];
    scenario("structured_beside", &rules, claude(), async |rig| {
        let session = rig.session_nowhere().await?;
        for (turn_id, made) in
            [("t-1", [answer("a1", r#"{"x":1}"#), lookup("c1")]), ("t-2", [lookup("c1"), answer("a1", r#"{"x":1}"#)])]
        {
            rig.provider.script(&json!([step(&[calls(&made)])]).to_string())?;
            let mut events = rig.start_turn(&session, configuration(rig), turn_id, "answer").await?;
            let mut seen = Observed::default();
            let call = seen.call(&mut events).await?;
            assert_eq!(session.turn(turn_id).await?.phase(), v1::TurnPhase::RequiresAction);
            assert_eq!(answers(&seen), []);
            session.submit(vec![text_result(turn_id, &call.call_id, "found")]).await?;
            let seen = seen.to_the_end(&mut events).await?;
            answered(&seen, "a1", r#"{"x":1}"#)?;
            assert!(seen.story().contains(&"function_result_applied"), "{:?}", seen.story());
        }
        // The provider was not asked for more.
        assert_eq!(rig.provider.model_requests().len(), 2);
        Ok(())
    });
}

#[test]
fn an_answer_that_a_cancel_overtakes_is_none() {
    scenario("structured_cancelled", &["R-CTL-3", "R-CAN-1"], claude().patient(), async |rig| {
        let session = rig.session_nowhere().await?;
        let made = calls(&[answer("a1", r#"{"x":1}"#), lookup("c1")]);
        rig.provider.script(&json!([step(&[made])]).to_string())?;
        let mut events = rig.start_turn(&session, configuration(rig), "t-1", "answer").await?;
        let mut seen = Observed::default();
        seen.call(&mut events).await?;
        assert_eq!(session.cancel("t-1", None).await?.outcome(), CancelOutcome::Settled);
        let seen = seen.to_the_end(&mut events).await?;
        assert_eq!((seen.end()?.status(), answers(&seen)), (TurnStatus::Cancelled, vec![]));
        let ready = rig.prepare_again(&session, configuration(rig)).await?;
        rig.provider.script(&json!([step(&[calls(&[answer("a1", r#"{"x":2}"#)])])]).to_string())?;
        let next = rig.turn_with(&session, &ready, "t-2", "t-2").await?;
        answered(&next, "a1", r#"{"x":2}"#)
    });
}

#[test]
fn an_input_that_is_added_has_the_last_word() {
    let rules = ["R-CTL-3", "R-STE-2", "R-EVT-2"];
    scenario("structured_steered", &rules, claude(), async |rig| {
        let session = rig.session_nowhere().await?;
        // It comes while the model streams; what was held to be the answer is replaced, or, at a boundary, was none yet.
        // Only a request that has read the input gets the later steps.
        for (turn_id, arguments, then) in [
            ("t-1", r#"{"x":1}"#, Some(r#"{"x":2}"#)),
            ("t-2", r#"{"x":"one"}"#, Some(r#"{"x":2}"#)),
            ("t-3", r#"{"x":1}"#, None),
        ] {
            // A provider gives no id twice in a conversation.
            let [first, second] = ["first", "second"].map(|place| format!("{turn_id}-{place}"));
            let play = [text("Hm."), json!({ "gate": turn_id }), calls(&[answer(&first, arguments)])];
            let behind = match then {
                Some(arguments) => vec![step(&[calls(&[answer(&second, arguments)])])],
                None => vec![step(&[text("Left.")]), step(&[text("I said so.")])],
            };
            let added = format!("turn left in {turn_id}");
            let behind = behind.into_iter().map(|mut step| {
                step["match"] = json!(added);
                step
            });
            let steps: Vec<_> = std::iter::once(step(&play)).chain(behind).collect();
            rig.provider.script(&json!(steps).to_string())?;
            let mut events = rig.start_turn(&session, configuration(rig), turn_id, "go").await?;
            let mut seen = Observed::default();
            seen.until(&mut events, |kind| matches!(kind, Kind::MessageCompleted(_)).then_some(())).await?;
            session.steer(turn_id, "i-1", text_input(&added)).await?;
            rig.provider.open_gate(turn_id);
            let seen = seen.to_the_end(&mut events).await?;
            let read = rig.provider.model_requests().pop().context("no request")?;
            assert!(read.user_texts().contains(&added), "{:?}", read.user_texts());
            if then.is_some() {
                answered(&seen, &second, r#"{"x":2}"#)?;
            } else {
                missing(&seen)?;
                assert_eq!(seen.messages(), ["Hm.", "Left.", "I said so."]);
            }
        }
        Ok(())
    });
}

#[test]
fn an_answer_stands_beside_functions_that_are_found() {
    let rules = ["R-CTL-3", "R-CTL-5", "R-FN-1", "R-PRE-4"];
    let setup = claude().needing(Capability::StructuredOutput).needing(Capability::ToolSearch);
    scenario("structured_tool_search", &rules, setup, async |rig| {
        let functions = ["eager", "find"].map(|name| function(name, r#"{"type":"object"}"#)).into();
        let configuration = answering_by(SCHEMA, deferring(&["find"], rig.configuration(functions)));
        let search =
            json!({"name": "ToolSearch", "call_id": "s1", "arguments": r#"{"query":"select:mcp__functions__find"}"#});
        let find = json!({"name": "find", "call_id": "c1", "arguments": "{}"});
        let done = |id: &str| step(&[calls(&[answer(id, r#"{"x":1}"#)])]);
        let steps = json!([step(&[calls(&[search])]), step(&[calls(&[find])]), done("a1"), done("a2")]);
        rig.provider.script(&steps.to_string())?;
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, configuration.clone(), "t-1", "find it").await?;
        let mut seen = Observed::default();
        assert_eq!(seen.call(&mut events).await?.name, "find");
        session.submit(vec![text_result("t-1", "c1", "found")]).await?;
        let first = seen.to_the_end(&mut events).await?;
        answered(&first, "a1", r#"{"x":1}"#)?;
        // Claude Code writes its history a little behind what it tells.
        rig.wait_for_history(r#""id":"a1""#).await?;
        rig.daemon.kill().await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        let ready = rig.resume(&session, configuration, &first.native_session()?).await?;
        answered(&rig.turn_with(&session, &ready, "t-2", "again").await?, "a2", r#"{"x":1}"#)?;
        let requests = rig.provider.model_requests();
        assert_eq!(requests.len(), 4);
        for request in &requests {
            assert_eq!(request.output_schema(), Some(serde_json::from_str(SCHEMA)?));
        }
        Ok(())
    });
}

async fn prepare(rig: &Rig, session: &Session, schema: &str) -> Result<v1::Ready, Error> {
    let key = v1::Credential { name: "model".into(), value: MODEL_KEY.into() };
    session.prepare(nowhere(answering_by(schema, rig.configuration(Vec::new()))), vec![key]).await
}

#[test]
fn a_schema_that_cannot_hold_is_refused_before_anything_is_asked() {
    let rules = ["R-CTL-3", "R-PRE-1", "R-CAP-6", "R-API-3", "R-API-4"];
    scenario("structured_refused", &rules, claude(), async |rig| {
        let session = rig.session_nowhere().await?;
        let deep = format!("{}1{}", r#"{"x":"#.repeat(129), "}".repeat(129));
        for (schema, want) in [
            ("nope", "is not JSON"),
            ("true", "must be a JSON object"),
            ("{}", "must have \"object\" as its type at the root"),
            (r#"{"type":["object"]}"#, "must have \"object\" as its type at the root"),
            (r#"{"type":"array"}"#, "must have \"object\" as its type at the root"),
            (
                r#"{"type":"object","properties":{"a":{"maximum":9007199254740993}}}"#,
                "a number that binary64 would change at $.properties.a.maximum",
            ),
            (
                r#"{"type":"object","properties":{"a":{"const":0.12345678901234567890123}}}"#,
                "a number that binary64 would change at $.properties.a.const",
            ),
            (r#"{"type":"object","type":"object"}"#, "has a member twice at $.type"),
            (&deep, "is nested deeper than 128 levels"),
        ] {
            refusal(prepare(rig, &session, schema).await, Reason::UnsupportedConfiguration)
                .at("configuration.tools.controls.output_format.json_schema.schema")
                .says(want)
                .public(400, "unsupported_or_invalid_configuration");
        }
        assert_eq!(rig.harnesses()?.len(), 0, "a refused configuration had a native effect");
        // What only Claude Code can tell is found by Claude Code, and nothing runs afterwards.
        for (schema, want) in [
            (r#"{"type":"object","properties":{"a":{"prefixItems":[{}]}}}"#, "prefixItems"),
            (r#"{"type":"object","properties":{"a":{"pattern":"("}}}"#, "claude_code"),
            (r#"{"type":"object","$schema":"https://json-schema.org/draft/2020-12/schema"}"#, "claude_code"),
        ] {
            refusal(prepare(rig, &session, schema).await, Reason::PreparationFailed).with("step", "schema").says(want);
            rig.only(&[]).await?;
        }
        assert_eq!(rig.provider.requests().len(), 0);
        // The Session is none the worse.
        let ready = prepare(rig, &session, SCHEMA).await?;
        rig.provider.script(&json!([step(&[calls(&[answer("a1", r#"{"x":1}"#)])])]).to_string())?;
        answered(&rig.turn_with(&session, &ready, "t-1", "hello").await?, "a1", r#"{"x":1}"#)
    });
}

/// A schema that is too long for an argument of a program, with something more in it.
fn long(more: &str) -> String {
    let told = "x".repeat(128 << 10);
    format!(
        r#"{{"type":"object","properties":{{"x":{{"type":"integer"{more}}}}},"required":["x"],"description":"{told}"}}"#
    )
}

#[test]
fn a_schema_too_long_to_be_looked_at_is_judged_by_the_first_inventory() {
    let rules = ["R-CTL-3", "R-CTL-4", "R-EVT-5"];
    scenario("structured_long", &rules, claude(), async |rig| {
        let session = rig.session_nowhere().await?;
        rig.provider.script(&json!([step(&[calls(&[answer("a1", r#"{"x":1}"#)])])]).to_string())?;
        let ready = prepare(rig, &session, &long("")).await?;
        answered(&rig.turn_with(&session, &ready, "t-1", "hello").await?, "a1", r#"{"x":1}"#)?;
        session.release(true).await?;
        // Claude Code passes over it without a word.
        let session = rig.session_nowhere().await?;
        let asked = rig.provider.model_requests().len();
        rig.provider.script(&json!([step(&[json!({"gate": "over"}), text("Prose.")])]).to_string())?;
        let ready = prepare(rig, &session, &long(r#","x-made-up":1"#)).await?;
        let seen = rig.turn_with(&session, &ready, "t-1", "hello").await?;
        rig.provider.open_gate("over");
        let end = seen.end()?;
        assert_eq!((end.status(), seen.messages()), (TurnStatus::Failed, vec![]));
        let failure = end.failure.clone().context("no failure")?;
        assert_eq!(failure.code(), FailureCode::HarnessProtocolError, "{failure:?}");
        assert!(failure.message.ends_with("missing: StructuredOutput"), "{failure:?}");
        assert!(rig.provider.model_requests().len() <= asked + 1);
        rig.only(&[]).await
    });
}
