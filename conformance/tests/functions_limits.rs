//! How long a function may take: its own limits, reports of progress, calls that stay open for as long as they like, and the model's own text of
//! their arguments.

use std::time::{Duration, Instant};

use anyhow::Context;
use conformance::for_every_harness;
use conformance::rig::{Harness, Observed, Setup, function, refusal, scenario, text_result};
use proto::client::Session;
use proto::v1::{self, Reason, ResultOutcome, event::Kind};
use serde_json::json;

for_every_harness!(
    a_call_that_is_silent_for_too_long_is_abandoned_and_answered_by_the_bridge,
    progress_restarts_the_silence_and_not_the_whole,
    a_report_is_judged_like_a_result,
    limits_of_functions_have_their_range_and_are_frozen,
);

const SCHEMA: &str = r#"{"type":"object","properties":{"q":{"type":"string"}}}"#;
const UNKNOWN: &str = "The outcome is unknown: the function may or may not have taken effect.";

fn a_call_that_is_silent_for_too_long_is_abandoned_and_answered_by_the_bridge(harness: Harness) {
    let rules = ["R-FN-8", "R-FN-7", "R-FN-5", "R-FN-9", "R-FN-6"];
    scenario(
        "function_silence",
        &rules,
        Setup::outer().of(harness).needing(v1::Capability::FunctionTools),
        async |rig| {
            let begun = Instant::now();
            // One has a limit, the other is open for as long as it likes.
            let functions = vec![limited("slow", Some(1000), None), function("patient", SCHEMA)];
            let (session, mut events, mut seen) =
                rig.waiting_turn(functions, &[("slow", "c1"), ("patient", "c2")]).await?;
            let [slow, patient] = ["slow", "patient"].map(|name| id_of(&seen, name));
            // It may be over before the other one is asked for.
            let over = seen.kinds().find_map(abandoned);
            let abandoned = match over {
                Some(abandoned) => abandoned,
                None => seen.until(&mut events, abandoned).await?,
            };
            assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
            assert_eq!((&abandoned.call_id, abandoned.reason()), (&slow, v1::AbandonReason::Deadline));
            let turn = session.turn("t-1").await?;
            assert_eq!((turn.phase(), turn.required_actions.len()), (v1::TurnPhase::RequiresAction, 1), "{turn:?}");
            // Whatever comes for it now is too late.
            let late = session.submit(vec![text_result("t-1", &slow, "late")]).await;
            refusal(late, Reason::CallAbandoned);
            refusal(session.progress("t-1", &slow, 1, "").await, Reason::CallAbandoned);
            assert_eq!(outcomes(&session, &patient, "in time").await?, [ResultOutcome::Accepted]);
            let seen = seen.to_the_end(&mut events).await?;
            seen.completed()?;
            let request = &rig.provider.model_requests()[1];
            assert_eq!(request.output("c1"), Some(UNKNOWN.into()));
            assert_eq!(request.output("c2"), Some("in time".into()));
            // The call has one end, and what the model read of it is no receipt of anything that Core gave.
            assert_eq!(seen.kinds().filter(|kind| matches!(kind, Kind::FunctionResultApplied(_))).count(), 1);
            let errors: Vec<_> = seen.end()?.tool_errors.iter().map(|e| (&*e.call_id, &*e.name, e.code())).collect();
            assert_eq!(errors, [(&*slow, "slow", v1::ToolErrorCode::Abandoned)]);
            let late = session.submit(vec![text_result("t-1", &slow, "late")]).await;
            refusal(late, Reason::CallAbandoned);
            Ok(())
        },
    );
}

fn progress_restarts_the_silence_and_not_the_whole(harness: Harness) {
    scenario(
        "function_progress",
        &["R-FN-8", "R-API-6"],
        Setup::outer().of(harness).needing(v1::Capability::FunctionTools),
        async |rig| {
            let functions = vec![limited("slow", Some(5000), Some(10_000))];
            let begun = Instant::now();
            let (session, mut events, mut seen) = rig.waiting_turn(functions, &[("slow", "c1")]).await?;
            let slow = seen.call_id()?.to_owned();
            let (mut number, mut duplicates, mut early) = (0, 0, 0);
            let mut looks = tokio::time::interval(Duration::from_millis(40));
            loop {
                looks.tick().await;
                let reported = session.progress("t-1", &slow, number + 1, "still at it").await;
                match reported {
                    Ok(duplicate) => {
                        assert!(!duplicate);
                        number += 1;
                        duplicates +=
                            u32::from(session.progress("t-1", &slow, number, "again").await.unwrap_or_default());
                    }
                    Err(error) if error.reason() == Some(Reason::Overloaded) => early += 1,
                    Err(error) => {
                        refusal::<(), _>(Err(error), Reason::CallAbandoned);
                        break;
                    }
                }
            }
            let abandoned = seen.until(&mut events, abandoned).await?;
            assert_eq!(abandoned.reason(), v1::AbandonReason::Deadline);
            assert!(begun.elapsed() >= Duration::from_secs(10), "{:?}", begun.elapsed());
            assert!(number > 3 && duplicates >= 3 && early > 0, "{number}, {duplicates} again, {early} too early");
            let told: Vec<_> = seen.kinds().filter_map(progress).collect();
            assert_eq!(told.len() as u64, number, "a duplicate is no event");
            for (number, report) in (1..).zip(&told) {
                let want = v1::FunctionProgress { call_id: slow.clone(), number, message: "still at it".into() };
                assert_eq!(*report, want);
            }
            // Two reports stand at least a quarter of a second apart.
            assert!(u128::from(number) <= begun.elapsed().as_millis() / 250 + 2, "{number}");
            seen.to_the_end(&mut events).await?.completed()?;
            assert_eq!(rig.provider.model_requests()[1].output("c1"), Some(UNKNOWN.into()));
            Ok(())
        },
    );
}

fn a_report_is_judged_like_a_result(harness: Harness) {
    scenario(
        "function_progress_judged",
        &["R-FN-8", "R-FN-5", "R-API-2"],
        Setup::outer().of(harness).needing(v1::Capability::FunctionTools),
        async |rig| {
            let waiting = rig.waiting_turn(vec![function("lookup", SCHEMA)], &[("lookup", "c1"), ("lookup", "c2")]);
            let (session, mut events, seen) = waiting.await?;
            let ids: Vec<_> = seen.calls().into_iter().map(|call| call.call_id.clone()).collect();
            let [c1, c2] = &ids[..] else { anyhow::bail!("not two calls: {ids:?}") };
            for (turn_id, call_id) in [("t-1", "c9"), ("t-9", c1)] {
                refusal(session.progress(turn_id, call_id, 1, "").await, Reason::UnknownCall);
            }
            refusal(session.progress("t-1", c1, 0, "").await, Reason::InvalidRequest).at("number");
            refusal(session.progress("t-1", "", 1, "").await, Reason::InvalidRequest).at("call_id");
            let long = "x".repeat(4097);
            refusal(session.progress("t-1", c1, 1, &long).await, Reason::InvalidRequest).at("message");
            // A function without a limit has progress, too.
            assert!(!session.progress("t-1", c1, 7, &long[..4096]).await?);
            assert!(session.progress("t-1", c1, 7, "other").await?);
            let impatient = rig.client().await?;
            let request = v1::ReportFunctionProgressRequest {
                assignment: Some(session.assignment().clone()),
                turn_id: "t-1".into(),
                call_id: c2.clone(),
                number: 1,
                message: String::new(),
            };
            assert!(!impatient.report_function_progress(request.clone()).await?.duplicate);
            let second = v1::ReportFunctionProgressRequest { number: 2, ..request };
            if let Err(error) = impatient.report_function_progress(second).await {
                refusal::<(), _>(Err(error), Reason::Overloaded);
            }
            outcomes(&session, c1, "done").await?;
            assert!(session.progress("t-1", c1, 8, "").await?, "it has its result");
            session.cancel("t-1", None).await?;
            refusal(session.progress("t-1", c2, 9, "").await, Reason::TurnCancelled);
            assert!(session.progress("t-1", c1, 9, "").await?, "it has its result");
            let seen = seen.to_the_end(&mut events).await?;
            assert_eq!(seen.end()?.status(), v1::TurnStatus::Cancelled);
            Ok(())
        },
    );
}

fn limits_of_functions_have_their_range_and_are_frozen(harness: Harness) {
    scenario(
        "function_limit_values",
        &["R-FN-8", "R-FN-1", "R-API-2"],
        Setup::outer().of(harness).needing(v1::Capability::FunctionTools),
        async |rig| {
            let session = rig.session().await?;
            let prepare = async |silence, most| {
                rig.prepare(&session, rig.configuration(vec![limited("slow", silence, most)])).await
            };
            let minute = 60_000;
            for silence in [0, 999, 20 * minute + 1] {
                let refused = refusal(prepare(Some(silence), None).await, Reason::InvalidRequest);
                refused.at("configuration.tools.functions[0].silence_timeout");
            }
            for most in [0, 999, 30 * 24 * 60 * minute + 1] {
                let refused = refusal(prepare(None, Some(most)).await, Reason::InvalidRequest);
                refused.at("configuration.tools.functions[0].max_duration");
            }
            let ready = prepare(Some(20 * minute), Some(30 * 24 * 60 * minute)).await?;
            let (assignment, handle) = (Some(session.assignment().clone()), ready.handle);
            rig.client().await?.release_preparation(v1::ReleasePreparationRequest { assignment, handle }).await?;
            for (silence, most) in [(Some(1000), Some(30 * 24 * 60 * minute)), (Some(20 * minute), None), (None, None)]
            {
                refusal(prepare(silence, most).await, Reason::ConfigurationConflict);
            }
            Ok(())
        },
    );
}

#[test]
fn an_open_call_is_never_too_quiet() {
    let own =
        "the bridge's own clock stands while a call is open; claude_environment has the native ones of Claude Code";
    let setup = Setup::outer().with("[limits]\nquiet_ms = 4000\n").bridge(own);
    scenario("function_open_for_long", &["R-FN-8", "R-EVT-10"], setup, async |rig| {
        let (session, mut events, mut seen) =
            rig.waiting_turn(vec![function("lookup", SCHEMA)], &[("lookup", "c1")]).await?;
        // Twice as long as a quiet Harness is given.
        let until = tokio::time::Instant::now() + Duration::from_secs(8);
        while let Ok(event) = tokio::time::timeout_at(until, events.next()).await {
            seen.events.push(event?.context("the stream has ended")?);
        }
        assert_eq!(session.turn("t-1").await?.phase(), v1::TurnPhase::RequiresAction);
        outcomes(&session, "c1", "at last").await?;
        seen.to_the_end(&mut events).await?.completed()
    });
}

#[test]
fn arguments_are_the_models_own_text_until_the_history_is_resumed() {
    scenario(
        "function_arguments_exact",
        &["R-FN-2", "R-API-3"],
        Setup::outer().only("Codex tells no text of the arguments once its history is resumed"),
        async |rig| {
            let exact = [
                r#"{"z":1.0,"a":12345678901234567890123,"c":1e2,"z":3}"#,
                " {\n  \"q\" : \"\\u00e9\"\n} ",
                "null",
                "[1]",
                r#""s""#,
            ];
            // What Codex makes of them, for those that it tells no text of.
            let respelled =
                [r#"{"z":3,"a":12345678901234567890123,"c":1e+2}"#, r#"{"q":"é"}"#, "null", "[1]", r#""s""#];
            let session = rig.session().await?;
            let mut native = String::new();
            for (turn_id, is_exact) in [("t-1", true), ("t-2", false)] {
                let calls: Vec<_> = (0..)
                    .zip(exact)
                    .map(|(n, text)| json!({"name": "lookup", "call_id": format!("c{n}"), "arguments": text}))
                    .chain([json!({"name": "lookup", "call_id": "empty", "arguments": ""})])
                    .collect();
                let script = json!([{"play": [{"calls": calls}]}, {"play": [{"text": {"chunks": ["Read."]}}]}]);
                rig.provider.script(&script.to_string())?;
                let configuration = rig.configuration(vec![function("lookup", SCHEMA)]);
                let ready = if native.is_empty() {
                    rig.prepare(&session, configuration).await?
                } else {
                    rig.resume(&session, configuration, &native).await?
                };
                session.start(&ready, turn_id, proto::client::text_input("go")).await?;
                let (mut events, mut seen) = (session.turn_events(turn_id), Observed::default());
                for _ in exact {
                    let call = seen.call(&mut events).await?;
                    let n: usize = call.call_id[1..].parse()?;
                    let want = if is_exact { exact[n] } else { respelled[n] };
                    assert_eq!((text(call.arguments.as_ref()), call.arguments_exact), (want, is_exact), "{call:?}");
                    session.submit(vec![text_result(turn_id, &call.call_id, "ok")]).await?;
                }
                let seen = seen.to_the_end(&mut events).await?;
                seen.completed()?;
                native = seen.native_session()?;
                // The process ends, and the next one goes on with the history.
                let family = rig.family()?;
                rig.daemon.kill().await?;
                rig.all_gone(&family).await?;
                rig.daemon = conformance::rig::Daemon::start(rig.place()).await?;
            }
            Ok(())
        },
    );
}

async fn outcomes(session: &Session, call_id: &str, text: &str) -> anyhow::Result<Vec<ResultOutcome>> {
    let outcomes = session.submit(vec![text_result("t-1", call_id, text)]).await?;
    Ok(outcomes.iter().map(v1::FunctionResultOutcome::outcome).collect())
}

/// A function whose calls may be silent for so long and take so long, in milliseconds.
fn limited(name: &str, silence: Option<u64>, most: Option<u64>) -> v1::FunctionTool {
    let wire = |millis: u64| prost_types::Duration::try_from(Duration::from_millis(millis)).unwrap_or_default();
    v1::FunctionTool { silence_timeout: silence.map(wire), max_duration: most.map(wire), ..function(name, SCHEMA) }
}

/// The id of the call of this function, of which there is one.
fn id_of(seen: &Observed, name: &str) -> String {
    let call = seen.calls().into_iter().find(|call| call.name == name);
    call.unwrap_or_else(|| panic!("{name} was not called")).call_id.clone()
}

fn abandoned(kind: &Kind) -> Option<v1::FunctionCallAbandoned> {
    if let Kind::FunctionCallAbandoned(abandoned) = kind { Some(abandoned.clone()) } else { None }
}

fn progress(kind: &Kind) -> Option<v1::FunctionProgress> {
    if let Kind::FunctionProgress(progress) = kind { Some(progress.clone()) } else { None }
}

fn text(content: Option<&v1::Content>) -> &str {
    match content.and_then(|content| content.place.as_ref()) {
        Some(v1::content::Place::Text(text)) => text,
        other => panic!("no text: {other:?}"),
    }
}
