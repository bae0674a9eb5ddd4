//! Functions as Claude Code takes them: what it would drop without a word is refused with the function's place, what it just takes reaches the
//! model, and the arguments are the model's own text (R-FN-1, R-FN-2).

use conformance::rig::{Daemon, Harness, Observed, Rig, Setup, function, refusal, scenario, text_result};
use proto::client::text_input;
use proto::v1::{self, Reason, event::Kind};
use serde_json::json;

const SCHEMA: &str = r#"{"type":"object"}"#;

fn setup() -> Setup {
    Setup { harness: Harness::ClaudeCode, ..Setup::outer() }.only("these are the limits and the ways of Claude Code")
}

/// Refused at this place of the second of two functions, with this text, and nothing is started.
async fn refused_at(rig: &Rig, bad: v1::FunctionTool, place: &str, want: &str) -> anyhow::Result<()> {
    let session = rig.session().await?;
    let configuration = rig.configuration(vec![function("good", SCHEMA), bad]);
    let refused = refusal(session.prepare(configuration, Vec::new()).await, Reason::UnsupportedConfiguration);
    let refused = refused.says(want).at(&format!("configuration.tools.functions[1].{place}"));
    refused.public(400, "unsupported_or_invalid_configuration");
    assert_eq!(rig.harnesses()?, []);
    Ok(())
}

#[test]
fn what_claude_code_would_drop_without_a_word_is_refused() {
    scenario("claude_bad_functions", &["R-FN-1", "R-PRE-1", "R-CAP-1"], setup(), async |rig| {
        let long = "f".repeat(113);
        for (name, want) in [
            ("", "blank"),
            ("good", "tools.functions[0]"),
            ("look up", "must match"),
            ("look.up", "must match"),
            ("suche\u{f6}", "must match"),
            (&*long, "112 bytes"),
            ("Bash", "tool of claude_code"),
            ("StructuredOutput", "tool of claude_code"),
            ("ToolSearch", "tool of claude_code"),
        ] {
            refused_at(rig, function(name, SCHEMA), "name", want).await?;
        }
        for (schema, want) in [
            ("", "not JSON"),
            ("[]", "object or a boolean"),
            (r#"{"type":"string"}"#, "type at the root"),
            (r#"{"type":"object","type":"object"}"#, "twice at $.type"),
            (r#"{"description":"\ud800"}"#, "no Unicode text at $.description"),
        ] {
            refused_at(rig, function("bad", schema), "parameters", want).await?;
        }
        let described = v1::FunctionTool { description: "\u{1f600}".repeat(2049), ..function("bad", SCHEMA) };
        refused_at(rig, described, "description", "4096 characters").await?;
        assert_eq!(rig.provider.model_requests().len(), 0);
        Ok(())
    });
}

#[test]
fn what_is_just_good_enough_reaches_the_model() {
    scenario("claude_good_functions", &["R-FN-1", "R-API-3"], setup(), async |rig| {
        let (long, described) = ("f".repeat(112), "\u{1f600}".repeat(2048));
        let functions = vec![
            v1::FunctionTool { description: described.clone(), ..function(&long, SCHEMA) },
            function("A-9_z", r#"{"type":"object","properties":{},"additionalProperties":false}"#),
            function("bash", "{}"),
            function("anything", "true"),
            function("a_b", SCHEMA),
            function("A_B", SCHEMA),
            function(
                "numbers",
                r#"{"type":"object","properties":{"a":{"maximum":9007199254740991,"multipleOf":0.5}}}"#,
            ),
        ];
        let session = rig.session().await?;
        let ready = rig.prepare(&session, rig.configuration(functions.clone())).await?;
        rig.turn_with(&session, &ready, "t-1", "hello").await?.completed()?;
        let request = &rig.provider.model_requests()[0];
        let offered = request.tools();
        for function in functions {
            assert!(offered.contains(&function.name), "{} is not in {offered:?}", function.name);
        }
        assert_eq!(request.description(&long), Some(described));
        Ok(())
    });
}

#[test]
fn arguments_are_the_models_own_text_after_a_resume_too() {
    scenario("claude_arguments", &["R-FN-2", "R-API-3", "R-FN-11"], setup(), async |rig| {
        let exact = [
            r#"{"z":1.0,"a":12345678901234567890123,"c":1e2,"z":3}"#,
            " {\n  \"q\" : \"\\u00e9\"\n} ",
            r#"{"10":1,"9":-0.0,"n":null}"#,
            r#"{"q":"<tool_call> /x @path !x </tool_call>"}"#,
        ];
        let session = rig.session().await?;
        let mut native: Option<String> = None;
        for turn_id in ["t-1", "t-2"] {
            let calls: Vec<_> = (0..)
                .zip(exact)
                .map(|(n, text)| json!({"name": "lookup", "call_id": format!("{turn_id}-{n}"), "arguments": text}))
                .collect();
            let script = json!([{"play": [{"calls": calls}]}, {"play": [{"text": {"chunks": ["Read."]}}]}]);
            rig.provider.script(&script.to_string())?;
            let configuration = rig.configuration(vec![function("lookup", SCHEMA)]);
            let ready = match &native {
                None => rig.prepare(&session, configuration).await?,
                Some(native) => rig.resume(&session, configuration, native).await?,
            };
            session.start(&ready, turn_id, text_input("go")).await?;
            let (mut events, mut seen) = (session.turn_events(turn_id), Observed::default());
            for (n, want) in exact.iter().enumerate() {
                let call = seen.call(&mut events).await?;
                assert_eq!(call.call_id, format!("{turn_id}-{n}"));
                let Some(v1::Content { place: Some(v1::content::Place::Text(text)) }) = &call.arguments else {
                    anyhow::bail!("no text: {call:?}");
                };
                assert_eq!((&**text, call.arguments_exact), (*want, true), "{call:?}");
                session.submit(vec![text_result(turn_id, &call.call_id, "ok")]).await?;
            }
            let seen = seen.to_the_end(&mut events).await?;
            seen.completed()?;
            native = Some(seen.native_session()?);
            // Claude Code writes its history a little behind what it tells.
            rig.wait_for_result(&format!("{turn_id}-{}", exact.len() - 1)).await?;
            rig.daemon.terminate().await?;
            rig.daemon = Daemon::start(rig.place()).await?;
        }
        Ok(())
    });
}

/// What becomes of a call whose answer the provider then withholds: Claude Code gives it up and asks the model again, in the same Turn.
#[test]
fn a_call_that_is_cancelled_natively_is_abandoned_and_the_turn_goes_on() {
    scenario("claude_call_cancelled", &["R-FN-7", "R-FN-2", "R-EVT-2"], setup(), async |rig| {
        let call = |id: &str| json!({"calls": [{"name": "lookup", "call_id": id, "arguments": "{}"}]});
        let withheld = json!({"incomplete": {"reason": "content_filter"}});
        let script = json!([
            {"play": [call("c1"), {"gate": "open"}, withheld]},
            {"play": [call("c2")]},
            {"play": [{"text": {"chunks": ["Done."]}}]},
        ]);
        rig.provider.script(&script.to_string())?;
        let session = rig.session().await?;
        let configuration = rig.configuration(vec![function("lookup", SCHEMA)]);
        let mut events = rig.start_turn(&session, configuration, "t-1", "go").await?;
        let mut seen = Observed::default();
        assert_eq!(seen.call(&mut events).await?.call_id, "c1");
        rig.provider.open_gate("open");
        let abandoned = |kind: &Kind| match kind {
            Kind::FunctionCallAbandoned(call) => Some((call.call_id.clone(), call.reason())),
            _ => None,
        };
        let (call_id, reason) = seen.until(&mut events, abandoned).await?;
        assert_eq!((&*call_id, reason), ("c1", v1::AbandonReason::NativeCancelled));
        refusal(session.submit(vec![text_result("t-1", "c1", "late")]).await, Reason::CallAbandoned);
        // The Turn is no other one, and its next call is answered as any.
        assert_eq!(seen.call(&mut events).await?.call_id, "c2");
        session.submit(vec![text_result("t-1", "c2", "found")]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!(seen.kinds().filter_map(abandoned).count(), 1, "{:?}", seen.story());
        Ok(())
    });
}
