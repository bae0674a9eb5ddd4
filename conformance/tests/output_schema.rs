//! Final answers of a form (R-CTL-3): what the model provider is asked for, what is said of the answer, and what is refused before.

use conformance::child::codex;
use conformance::for_each_harness;
use conformance::rig::{Daemon, Harness, Observed, Rig, Setup, function, nowhere, refusal, scenario, text_result};
use proto::client::{Error, Session, text_input};
use proto::v1::{self, FailureCode, Reason, event::Kind, output_format::Format};

for_each_harness!(
    every_request_of_every_turn_asks_for_the_schema_byte_for_byte,
    without_a_workspace_a_schema_is_asked_for_too,
    without_a_schema_nothing_is_asked_for_and_nothing_is_judged,
    a_schema_is_frozen,
);

/// Order and numbers of a schema are its author's; Codex spells characters of texts as themselves.
const SCHEMA: &str = r#"{"type":"object","required":["z","a"],"properties":{"z":{"type":"number","maximum":1.50,"minimum":-9223372036854775808},"a":{"type":"string","description":"\u00e9"}},"additionalProperties":false,"x-long":0.12345678901234567890123}"#;

fn asking_for(rig: &Rig, format: Option<Format>) -> v1::ExecutionConfiguration {
    let controls = v1::ExecutionControls { output_format: Some(v1::OutputFormat { format }), ..Default::default() };
    let functions = vec![function("lookup", r#"{"type":"object"}"#)];
    let tools = Some(v1::AdmittedTools { functions, controls: Some(controls), ..Default::default() });
    v1::ExecutionConfiguration { tools, ..rig.configuration(Vec::new()) }
}

fn with_schema(rig: &Rig, schema: &str) -> v1::ExecutionConfiguration {
    asking_for(rig, Some(Format::JsonSchema(v1::JsonSchemaFormat { schema: schema.into() })))
}

/// A Turn under a schema.
async fn turn(rig: &Rig, session: &Session, turn_id: &str, schema: &str) -> anyhow::Result<Observed> {
    let ready = rig.prepare(session, with_schema(rig, schema)).await?;
    rig.turn_with(session, &ready, turn_id, turn_id).await
}

/// The daemon dies, and another one starts once its Harness has left, which writes the last of its history then.
async fn killed(rig: &mut Rig) -> anyhow::Result<()> {
    let family = rig.family()?;
    rig.daemon.kill().await?;
    rig.all_gone(&family).await?;
    rig.daemon = Daemon::start(rig.place()).await?;
    Ok(())
}

/// Why most of it is looked at for one Harness alone.
const NATIVE: &str = "Codex asks the provider for the form, Claude Code has a tool for it";

/// One that both Harnesses take as it is.
const PLAIN_SCHEMA: &str = r#"{"type":"object","required":["z","a"],"properties":{"z":{"type":"number","maximum":1.5},"a":{"type":"string"}},"additionalProperties":false}"#;

/// A step of the provider that answers by the schema.
fn answers(harness: Harness, answer: &str) -> String {
    match harness {
        Harness::Codex => says(answer),
        Harness::ClaudeCode => {
            let call = serde_json::json!({"name": "StructuredOutput", "arguments": answer});
            serde_json::json!({"play": [{"calls": [call]}]}).to_string()
        }
        Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
    }
}

/// A step of the provider that answers with a text.
fn says(text: &str) -> String {
    serde_json::json!({"play": [{"text": {"chunks": [text]}}]}).to_string()
}

fn every_request_of_every_turn_asks_for_the_schema_byte_for_byte(harness: Harness) {
    let rules = ["R-CTL-1", "R-CTL-2", "R-CTL-3", "R-API-3", "R-CAP-2", "R-PRE-4"];
    scenario(
        "output_schema_sent",
        &rules,
        Setup::outer().of(harness).needing(v1::Capability::StructuredOutput),
        async |rig| {
            // Claude Code keeps neither the blanks of an answer, nor numbers that no double has.
            let (schema, answer) = match harness {
                Harness::Codex => (SCHEMA, r#"{"z": 1.5, "a": "é"}"#),
                Harness::ClaudeCode => (PLAIN_SCHEMA, r#"{"z":1.5,"a":"é"}"#),
                Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
            };
            let call = r#"{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]}"#;
            rig.provider.script(&format!("[{call}, {0}, {0}, {0}]", answers(harness, answer)))?;

            // A Turn with a function: its second request asks for the same.
            let session = rig.session().await?;
            let mut events = rig.start_turn(&session, with_schema(rig, schema), "t-1", "first").await?;
            let mut seen = Observed::default();
            let called = seen.call(&mut events).await?;
            session.submit(vec![text_result("t-1", &called.call_id, "found")]).await?;
            let first = seen.to_the_end(&mut events).await?;
            // The same Executor, and a new one after the daemon's death.
            let second = turn(rig, &session, "t-2", schema).await?;
            killed(rig).await?;
            let ready = rig.resume(&session, with_schema(rig, schema), &first.native_session()?).await?;
            assert!(!ready.reused);
            let third = rig.turn_with(&session, &ready, "t-3", "third").await?;

            for seen in [&first, &second, &third] {
                seen.completed()?;
                assert_eq!((seen.messages(), seen.end()?.output_matches_schema), (vec![answer], Some(true)));
            }
            let requests = rig.provider.model_requests();
            assert_eq!(requests.len(), 4);
            let arrived = schema.replace(r"\u00e9", "é");
            let asked: serde_json::Value = serde_json::from_str(schema)?;
            for request in &requests {
                assert_eq!(request.output_schema().as_ref(), Some(&asked));
                if harness == Harness::ClaudeCode {
                    continue;
                }
                assert!(request.body.contains(&format!(r#""schema":{arrived}"#)), "{}", request.body);
                let format = &request.json()["text"]["format"];
                assert_eq!((format["type"].as_str(), format["strict"].as_bool()), (Some("json_schema"), Some(true)));
            }
            // What is kept of the end is what was told of it.
            let kept = session.turn("t-2").await?.ended.unwrap_or_default();
            assert_eq!(kept.output_matches_schema, Some(true));
            Ok(())
        },
    );
}

fn without_a_workspace_a_schema_is_asked_for_too(harness: Harness) {
    scenario(
        "output_schema_nowhere",
        &["R-CTL-3", "R-CTL-4", "R-CAP-2"],
        Setup::outer().of(harness).needing_under(v1::Placement::None, v1::Capability::StructuredOutput),
        async |rig| {
            rig.provider.script(&format!("[{0}, {0}]", answers(harness, "{}")))?;
            let session = rig.session_nowhere().await?;
            let schema = if harness == Harness::Codex { "{}" } else { r#"{"type":"object"}"# };
            let nowhere = nowhere(with_schema(rig, schema));
            let ready = rig.prepare(&session, nowhere.clone()).await?;
            let first = rig.turn_with(&session, &ready, "t-1", "first").await?;
            killed(rig).await?;
            let ready = rig.resume(&session, nowhere, &first.native_session()?).await?;
            let second = rig.turn_with(&session, &ready, "t-2", "second").await?;
            for seen in [&first, &second] {
                assert_eq!(seen.end()?.output_matches_schema, Some(true));
            }
            for request in rig.provider.model_requests() {
                assert!(request.output_schema().is_some(), "{}", request.body);
            }
            Ok(())
        },
    );
}

#[test]
fn an_input_that_is_added_joins_under_the_schema() {
    scenario("output_schema_steered", &["R-CTL-3", "R-STE-2"], Setup::outer().only(NATIVE), async |rig| {
        let half = r#"{"match": "think", "play": [{"text": {"chunks": ["{"], "open": true}}, {"gate": "never"}]}"#;
        rig.provider.script(&format!("[{half}, {}]", says("{}")))?;
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, with_schema(rig, SCHEMA), "t-1", "think").await?;
        let mut seen = Observed::default();
        seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
        session.steer("t-1", "i-1", text_input("turn left")).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        // The answer is judged, and lacks what the schema requires.
        assert_eq!((seen.messages(), seen.end()?.output_matches_schema), (vec!["{}"], Some(false)));
        let requests = rig.provider.model_requests();
        let formats: Vec<_> = requests.iter().map(|request| request.json()["text"]["format"].clone()).collect();
        assert_eq!((formats.len(), &formats[0]), (2, &formats[1]));
        assert!(formats[1]["schema"].is_object() && requests[1].body.contains("turn left"), "{}", requests[1].body);
        Ok(())
    });
}

fn without_a_schema_nothing_is_asked_for_and_nothing_is_judged(harness: Harness) {
    let setup = Setup::outer().of(harness);
    scenario("output_schema_none", &["R-CTL-2", "R-CTL-3"], setup, async |rig| {
        rig.provider.script(&format!("[{}]", says("{}")))?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "hello").await?;
        seen.completed()?;
        assert_eq!(seen.end()?.output_matches_schema, None);
        let request = &rig.provider.model_requests()[0];
        assert_eq!(request.output_schema(), None, "{}", request.body);
        Ok(())
    });
}

#[test]
fn an_answer_is_judged_and_left_as_it_is() {
    scenario("output_schema_judged", &["R-CTL-1", "R-CTL-3", "R-EVT-3"], Setup::outer().only(NATIVE), async |rig| {
        let remark = r#"{"play": [{"text": {"chunks": ["{\"z\": 1, \"a\": \"\"}"], "phase": "commentary"}},
            {"text": {"chunks": ["[1]"], "phase": "final_answer"}}]}"#;
        let nothing = r#"{"play": [{"complete": {"usage": {"input": 1, "cached": 0, "output": 1, "reasoning": 0}}}]}"#;
        let cases = [
            (says(r#"{"z":2,"a":""}"#), Some(false)),
            (says("{\"z\":1,\"a\":\"\"}\n"), Some(true)),
            (says("```json\n{\"z\":1,\"a\":\"\"}\n```"), Some(false)),
            (says(r#"{"z":1,"a":"#), Some(false)),
            (remark.to_owned(), Some(false)),
            (nothing.to_owned(), None),
        ];
        let steps: Vec<_> = cases.iter().map(|(step, _)| step.as_str()).collect();
        rig.provider.script(&format!("[{}]", steps.join(",")))?;
        let session = rig.session().await?;
        for (number, (step, want)) in cases.iter().enumerate() {
            let seen = turn(rig, &session, &format!("t-{number}"), SCHEMA).await?;
            seen.completed()?;
            assert_eq!(seen.end()?.output_matches_schema, *want, "{step}");
            // Nothing is asked again, and the deltas are the message.
            assert_eq!(rig.provider.model_requests().len(), number + 1);
            assert_eq!(seen.deltas(), seen.messages().concat());
        }
        Ok(())
    });
}

#[test]
fn what_the_provider_says_of_the_format_is_its_own_error() {
    scenario("output_schema_refused", &["R-CTL-3", "R-EVT-5"], Setup::outer().only(NATIVE), async |rig| {
        let told = r#"{"error": {"message": "Invalid schema for response_format", "type": "invalid_request_error", "param": "text.format.schema", "code": "invalid_json_schema"}}"#;
        let refusal = serde_json::json!({"play": [{"http": {"status": 400, "body": told}}]});
        rig.provider.script(&serde_json::json!([refusal, refusal]).to_string())?;
        let asking = turn(rig, &rig.session().await?, "t-1", SCHEMA).await?;
        assert_eq!(rig.provider.model_requests().len(), 1, "it is not asked again");
        let plain = rig.whole_turn(&rig.session().await?, "t-1", "hello").await?;
        let (asking, plain) = (asking.end()?, plain.end()?);
        assert_eq!((asking.status(), asking.output_matches_schema), (v1::TurnStatus::Failed, None));
        assert_eq!(asking.failure.as_ref().map(v1::Failure::code), Some(FailureCode::InvalidRequest));
        assert_eq!(asking.failure, plain.failure);
        Ok(())
    });
}

#[test]
fn by_a_schema_that_could_take_for_ever_nothing_is_judged() {
    scenario("output_schema_endless", &["R-CTL-3"], Setup::outer().only(NATIVE), async |rig| {
        let double = |at: usize| {
            format!(r##""a{at}":{{"anyOf":[{{"$ref":"#/$defs/a{0}"}},{{"$ref":"#/$defs/a{0}"}}]}}"##, at + 1)
        };
        let doubled = (0..40).map(double).collect::<Vec<_>>().join(",");
        let endless = format!(r##"{{"$ref":"#/$defs/a0","$defs":{{{doubled},"a40":{{"type":"string"}}}}}}"##);
        let remote = r#"{"$ref":"https://schemas.example/x.json"}"#;
        let deep = r##"{"$defs":{"n":{"not":{"not":{"properties":{"c":{"$ref":"#/$defs/n"}}}}}},"$ref":"#/$defs/n"}"##;
        let nested = format!("{}{{}}{}", r#"{"c":"#.repeat(120), "}".repeat(120));
        let cases = [(endless.as_str(), "1", None), (remote, "{}", None), (deep, nested.as_str(), Some(true))];
        rig.provider.script(&format!("[{}]", cases.map(|(_, answer, _)| says(answer)).join(",")))?;
        for (schema, answer, want) in cases {
            let session = rig.session().await?;
            let seen = turn(rig, &session, "t-1", schema).await?;
            seen.completed()?;
            assert_eq!((seen.messages(), seen.end()?.output_matches_schema), (vec![answer], want));
        }
        for (request, (schema, ..)) in rig.provider.model_requests().iter().zip(cases) {
            assert!(request.body.contains(schema), "{}", request.body);
        }
        Ok(())
    });
}

fn a_schema_is_frozen(harness: Harness) {
    let setup = Setup::outer().of(harness).needing(v1::Capability::StructuredOutput);
    scenario("output_schema_frozen", &["R-PRE-2", "R-PRE-6", "R-CTL-3"], setup, async |rig| {
        let session = rig.session().await?;
        let native = turn(rig, &session, "t-1", PLAIN_SCHEMA).await?.native_session()?;
        let respelled = PLAIN_SCHEMA.replace("1.5", "1.50");
        let functions = with_schema(rig, PLAIN_SCHEMA).tools.unwrap_or_default().functions;
        let other = r#"{"type":"object"}"#;
        let others = [with_schema(rig, other), with_schema(rig, &respelled), rig.configuration(functions)];
        let conflict = |answer: Result<v1::Ready, Error>| {
            refusal(answer, Reason::ConfigurationConflict)
                .at("configuration.tools.controls")
                .with("field", "tools.controls");
        };
        for other in others.clone() {
            conflict(session.prepare(other, Vec::new()).await);
        }
        rig.daemon.terminate().await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        for other in others {
            conflict(rig.resume(&session, other, &native).await);
        }
        let ready = rig.resume(&session, with_schema(rig, PLAIN_SCHEMA), &native).await?;
        rig.turn_with(&session, &ready, "t-2", "second").await?.completed()
    });
}

#[test]
fn schemas_are_checked_before_anything_starts() {
    let setup = Setup::faulty(codex::healthy()).bridge("a schema is judged before a Harness is asked");
    scenario("output_schema_checked", &["R-CTL-3", "R-PRE-1", "R-API-3", "R-CAP-6"], setup, async |rig| {
        let session = rig.session().await?;
        let deep = format!("{}1{}", r#"{"x":"#.repeat(124), "}".repeat(124));
        for (schema, want) in [
            ("", "is not JSON"),
            ("{} {}", "is not JSON"),
            ("{", "is not JSON"),
            ("true", "must be a JSON object"),
            ("[]", "must be a JSON object"),
            ("\"{}\"", "must be a JSON object"),
            ("null", "must be a JSON object"),
            (r#"{"type":"array"}"#, "must have \"object\" as its type at the root"),
            (r#"{"properties":{"a":{"maximum":18446744073709551616}}}"#, "2^64-1 at $.properties.a.maximum"),
            (r#"{"properties":{"a":{"minimum":-9223372036854775809}}}"#, "2^64-1 at $.properties.a.minimum"),
            (r#"{"type":"object","type":"object"}"#, "has a member twice at $.type"),
            (r#"{"title":"\ud800"}"#, "no Unicode text at $.title"),
            (&deep, "is nested deeper than 123 levels"),
        ] {
            let refused = prepare(&session, with_schema(rig, schema)).await;
            refusal(refused, Reason::UnsupportedConfiguration)
                .says(want)
                .at("configuration.tools.controls.output_format.json_schema.schema")
                .public(400, "unsupported_or_invalid_configuration");
        }
        let unset = prepare(&session, asking_for(rig, None)).await;
        refusal(unset, Reason::InvalidRequest).at("configuration.tools.controls.output_format.format");
        let started = rig.child.iter().flat_map(|child| child.starts()).flatten().filter(|s| s.args[0] == "app-server");
        assert_eq!(started.count(), 0, "a refused configuration had a native effect");
        rig.whole_turn(&session, "t-1", "hello").await?.completed()
    });
}

async fn prepare(session: &Session, configuration: v1::ExecutionConfiguration) -> Result<v1::Ready, Error> {
    let key = v1::Credential { name: "model".into(), value: conformance::rig::MODEL_KEY.into() };
    session.prepare(configuration, vec![key]).await
}
