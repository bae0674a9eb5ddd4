//! What the model reads of a result: dispositions and images, each seen in the provider's next request, and what becomes of an image that cannot
//! be read.

use conformance::for_each_harness;
use conformance::rig::{
    GRAY_JPEG, GRAY_JPEG_URL, Harness, Observed, RED_PNG, RED_PNG_URL, Rig, Setup, UNREADABLE_PNG, function, refused,
    scenario, text_result,
};
use proto::client::{Session, TurnEvents};
use proto::v1::{self, Reason, ResultDisposition, event::Kind};
use serde_json::{Value, json};

for_each_harness!(
    a_disposition_has_its_text_and_stands_among_the_tool_errors,
    images_of_a_result_are_what_the_model_sees
);

const SCHEMA: &str = r#"{"type":"object","properties":{"q":{"type":"string"}}}"#;

fn a_disposition_has_its_text_and_stands_among_the_tool_errors(harness: Harness) {
    scenario(
        "function_dispositions",
        &["R-FN-4", "R-FN-9", "R-FN-5"],
        Setup::outer().of(harness).needing(v1::Capability::FunctionTools),
        async |rig| {
            let cases = [
                (Some(ResultDisposition::NotExecuted), "The function was not run."),
                (
                    Some(ResultDisposition::OutcomeUnknown),
                    "The outcome is unknown: the function may or may not have taken effect.",
                ),
                (
                    Some(ResultDisposition::ConnectionLost),
                    "The connection to the function's server was lost during the call; it may or may not have taken effect.",
                ),
                (Some(ResultDisposition::NotConnected), "No server is connected for this function; it was not run."),
                (None, "The function failed."),
            ];
            let ids: Vec<_> = (0..=cases.len()).map(|n| format!("c{n}")).collect();
            let (session, mut events, seen) = calls(rig, &ids).await?;
            let failed = |n: usize, disposition: Option<ResultDisposition>| v1::FunctionResult {
                success: Some(false),
                output: None,
                error: (n % 2 == 1).then(|| error("it is closed")),
                disposition: disposition.map(Into::into),
                ..text_result("t-1", &ids[n], "")
            };
            // With an output, or with success, it is not taken, and the call stays open.
            let with_output = v1::FunctionResult { success: Some(false), ..text_result("t-1", "c0", "") };
            for wrong in [
                v1::FunctionResult { disposition: Some(1), ..with_output },
                v1::FunctionResult { success: Some(true), ..failed(0, cases[0].0) },
            ] {
                let refusal = refused(session.submit(vec![wrong]).await, Reason::InvalidResult)?;
                assert_eq!(refusal.fields[0].path, "results[0].disposition");
            }
            let mut results: Vec<_> = cases.iter().enumerate().map(|(n, case)| failed(n, case.0)).collect();
            results.push(text_result("t-1", &ids[cases.len()], "all is well"));
            session.submit(results.clone()).await?;
            // Another disposition is other content.
            let other = v1::FunctionResult { disposition: Some(4), ..results[0].clone() };
            refused(session.submit(vec![other]).await, Reason::ResultConflict)?;
            let seen = seen.to_the_end(&mut events).await?;
            seen.completed()?;
            let request = &rig.provider.model_requests()[1];
            for (n, (_, text)) in cases.iter().enumerate() {
                // Claude Code makes one text of it, and marks a failure by itself.
                let want = match (n % 2 == 1, harness) {
                    (false, Harness::ClaudeCode) if *text == "The function failed." => json!("Unknown error"),
                    (false, _) => json!(text),
                    (true, Harness::Codex) => json!([part(text), part("it is closed")]),
                    (true, Harness::ClaudeCode) => json!(format!("{text}\nit is closed")),
                    (_, Harness::MinimaxCode | Harness::Opencode) => harness.has_nothing_here(),
                };
                assert_eq!(request.output(&ids[n]), Some(want));
            }
            let receipts: Vec<_> = seen.kinds().filter_map(applied).collect();
            assert_eq!(receipts.len(), ids.len());
            assert!(receipts.iter().all(|one| one.success == (one.call_id == ids[cases.len()])), "{receipts:?}");

            let mut told: Vec<_> =
                seen.end()?.tool_errors.iter().map(|e| (&*e.call_id, e.code(), &*e.message)).collect();
            // Calls of one answer are asked for in any order.
            told.sort_unstable_by_key(|(call, ..)| *call);
            use v1::ToolErrorCode::{ConnectionLost, Failed, NotConnected, NotExecuted, OutcomeUnknown};
            let closed = "it is closed";
            assert_eq!(
                told,
                [
                    ("c0", NotExecuted, ""),
                    ("c1", OutcomeUnknown, closed),
                    ("c2", ConnectionLost, ""),
                    ("c3", NotConnected, closed),
                    ("c4", Failed, ""),
                ]
            );
            assert!(seen.end()?.tool_errors.iter().all(|error| error.name == "lookup"));
            Ok(())
        },
    );
}

fn images_of_a_result_are_what_the_model_sees(harness: Harness) {
    scenario(
        "function_images",
        &["R-FN-4", "R-FN-6", "R-FN-9"],
        Setup::outer().of(harness).needing(v1::Capability::FunctionResultImages),
        async |rig| {
            let ids = ["c0".to_owned(), "c1".to_owned()];
            let (session, mut events, seen) = calls(rig, &ids).await?;
            // What is no such image does not consume the call.
            for (media_type, data) in
                [("image/png", GRAY_JPEG), ("image/gif", b"GIF89a"), ("image/png", &RED_PNG[..40])]
            {
                let result = with_parts("c0", vec![image_part(media_type, data)]);
                let refusal = refused(session.submit(vec![result]).await, Reason::InvalidResult)?;
                assert_eq!(refusal.fields[0].path, "results[0].output.parts[0].image");
            }
            assert_eq!(session.turn("t-1").await?.required_actions.len(), 2);
            let both = vec![text_part("before"), image_part("image/png", RED_PNG), image_part("image/jpeg", GRAY_JPEG)];
            let with_image = with_parts("c1", vec![image_part("image/png", RED_PNG)]);
            let failed = v1::FunctionResult { success: Some(false), error: Some(error("boom")), ..with_image };
            // Not every Harness takes an image of a function that failed.
            let taken = rig.declaration().await?.limits.unwrap_or_default().failed_result_images;
            assert_eq!(taken, harness == Harness::Codex);
            let failed = if taken {
                failed
            } else {
                let refusal = refused(session.submit(vec![failed.clone()]).await, Reason::InvalidResult)?;
                assert_eq!(refusal.fields[0].path, "results[0].output.parts[0].image");
                v1::FunctionResult { output: None, ..failed }
            };
            session.submit(vec![with_parts("c0", both), failed]).await?;
            let seen = seen.to_the_end(&mut events).await?;
            seen.completed()?;
            let request = &rig.provider.model_requests()[1];
            let shown = |call_id: &str| {
                let output = request.output(call_id).unwrap_or_default();
                let parts = output.as_array().cloned().unwrap_or_else(|| vec![json!({"text": output})]);
                let text = |part: &Value| part["text"].as_str().or(part["image_url"].as_str()).map(str::to_owned);
                let texts = parts.iter().map(text).collect::<Option<Vec<_>>>().unwrap_or_default();
                // Behind an image Claude Code names its copy.
                texts.into_iter().filter(|text| !text.starts_with("[Image: source: ")).collect::<Vec<_>>()
            };
            assert_eq!(shown("c0"), ["before", RED_PNG_URL, GRAY_JPEG_URL]);
            let failure = match harness {
                Harness::Codex => &["The function failed.", RED_PNG_URL, "boom"][..],
                Harness::ClaudeCode => &["boom"],
                Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
            };
            assert_eq!(shown("c1"), failure);
            let receipts: Vec<_> = seen.kinds().filter_map(applied).map(|one| (one.call_id, one.success)).collect();
            assert!(
                receipts.contains(&("c0".into(), true)) && receipts.contains(&("c1".into(), false)),
                "{receipts:?}"
            );
            Ok(())
        },
    );
}

#[test]
fn an_image_that_the_harness_cannot_read_fails_the_turn() {
    scenario(
        "function_image_unreadable",
        &["R-FN-6"],
        Setup::outer().only("Codex reads the images of a result, Claude Code hands them on"),
        async |rig| {
            let (session, mut events, seen) = calls(rig, &["c0".to_owned()]).await?;
            session.submit(vec![with_parts("c0", vec![image_part("image/png", UNREADABLE_PNG)])]).await?;
            let seen = seen.to_the_end(&mut events).await?;
            let end = seen.end()?;
            assert_eq!(end.status(), v1::TurnStatus::Failed, "{end:?}");
            let failure = end.failure.clone().unwrap_or_default();
            assert_eq!(failure.code(), v1::FailureCode::FunctionResultUnconfirmed);
            assert_eq!(end.tool_errors, [], "only a completed Turn has them");
            Ok(())
        },
    );
}

/// A Turn that has made these calls, and waits.
async fn calls(rig: &Rig, ids: &[String]) -> anyhow::Result<(Session, TurnEvents, Observed)> {
    let calls: Vec<_> = ids.iter().map(|id| ("lookup", id.as_str())).collect();
    rig.waiting_turn(vec![function("lookup", SCHEMA)], &calls).await
}

fn with_parts(call_id: &str, parts: Vec<v1::OutputPart>) -> v1::FunctionResult {
    let value = Some(v1::function_output::Value::Parts(v1::OutputParts { parts }));
    v1::FunctionResult { output: Some(v1::FunctionOutput { value }), ..text_result("t-1", call_id, "") }
}

fn image_part(media_type: &str, data: &[u8]) -> v1::OutputPart {
    let image = v1::Image { media_type: media_type.into(), data: data.to_vec() };
    v1::OutputPart { part: Some(v1::output_part::Part::Image(image)) }
}

fn text_part(text: &str) -> v1::OutputPart {
    v1::OutputPart { part: Some(v1::output_part::Part::Text(text.into())) }
}

fn error(text: &str) -> v1::NullableText {
    v1::NullableText { value: Some(v1::nullable_text::Value::Text(text.into())) }
}

fn part(text: &str) -> Value {
    json!({"type": "input_text", "text": text})
}

fn applied(kind: &Kind) -> Option<v1::FunctionResultApplied> {
    if let Kind::FunctionResultApplied(applied) = kind { Some(applied.clone()) } else { None }
}
