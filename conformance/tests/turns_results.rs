//! How results are judged: duplicates, conflicts, unknown calls, batches, and results that come too late.

use std::time::Duration;

use conformance::for_every_harness;
use conformance::rig::{Harness, Observed, Rig, Setup, function, refused, scenario, text_result};
use proto::client::{Refusal, Session, TurnEvents};
use proto::v1::{self, Reason, ResultOutcome};

for_every_harness!(
    the_same_result_is_a_duplicate_and_another_one_a_conflict,
    a_call_that_nobody_made_is_unknown,
    one_bad_result_refuses_its_batch_and_names_its_place,
    a_result_after_a_cancel_is_refused,
    a_result_for_a_turn_that_failed_finds_its_call_abandoned
);

const SCHEMA: &str = r#"{"type":"object","properties":{"q":{"type":"string"}}}"#;

fn the_same_result_is_a_duplicate_and_another_one_a_conflict(harness: Harness) {
    scenario("result_duplicate", &["R-FN-5", "R-API-6"], declaring(harness), async |rig| {
        let (session, mut events, seen, [c1, c2]) = calls(rig).await?;
        let first = text_result("t-1", &c1, "one");
        // c2 stays open, so the Turn runs on whatever becomes of c1.
        assert_eq!(submit(&session, &[&first]).await?, [ResultOutcome::Accepted]);
        assert_eq!(submit(&session, &[&first]).await?, [ResultOutcome::Duplicate]);
        let other = text_result("t-1", &c1, "two");
        let refusal = refused(session.submit(vec![other]).await, Reason::ResultConflict)?;
        public(&refusal, "409", "conflict_error");
        // Absent and null are different contents, and so is an error beside the same output.
        let null = v1::NullableText { value: Some(v1::nullable_text::Value::Null(v1::Null {})) };
        let with_null = v1::FunctionResult { error: Some(null), ..first.clone() };
        refused(session.submit(vec![with_null]).await, Reason::ResultConflict)?;

        let second = text_result("t-1", &c2, "two");
        assert_eq!(submit(&session, &[&first, &second]).await?, [ResultOutcome::Duplicate, ResultOutcome::Accepted]);
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        let request = &rig.provider.model_requests()[1];
        let mut read = ["c1", "c2"].map(|native| request.output(native));
        // Of two calls that are equal an agent behind ACP may ask in any order.
        if Harness::ACP.contains(&harness) && read[0] == Some("two".into()) {
            read.reverse();
        }
        assert_eq!(read, [Some("one".into()), Some("two".into())], "the first result stands");
        // The Turn is over; nothing about the answers changes.
        assert_eq!(submit(&session, &[&first, &second]).await?, [ResultOutcome::Duplicate; 2]);
        refused(session.submit(vec![text_result("t-1", &c2, "three")]).await, Reason::ResultConflict)?;
        Ok(())
    });
}

fn a_call_that_nobody_made_is_unknown(harness: Harness) {
    scenario("result_unknown", &["R-FN-5", "R-ASG-1"], declaring(harness), async |rig| {
        let (session, mut events, seen, [c1]) = calls(rig).await?;
        for (turn_id, call_id) in [("t-1", "c9"), ("t-9", &*c1)] {
            let refusal = refused(session.submit(vec![text_result(turn_id, call_id, "x")]).await, Reason::UnknownCall)?;
            public(&refusal, "400", "invalid_request_error");
        }
        // Another Session's Turn and call are unknown, too.
        let stranger = rig.session().await?;
        refused(stranger.submit(vec![text_result("t-1", &c1, "x")]).await, Reason::UnknownCall)?;
        assert_eq!(session.turn("t-1").await?.required_actions.len(), 1, "the pending call is unchanged");
        submit(&session, &[&text_result("t-1", &c1, "mine")]).await?;
        seen.to_the_end(&mut events).await?.completed()?;
        assert_eq!(rig.provider.model_requests()[1].output("c1"), Some("mine".into()));
        Ok(())
    });
}

fn one_bad_result_refuses_its_batch_and_names_its_place(harness: Harness) {
    scenario("result_batch", &["R-FN-5", "R-API-4"], declaring(harness), async |rig| {
        let (session, mut events, seen, [c1, c2, c3]) = calls(rig).await?;
        let good = |call_id: &str| text_result("t-1", call_id, "good");
        let without_success = v1::FunctionResult { success: None, ..good(&c2) };
        let no_value = v1::FunctionOutput { value: None };
        let without_value = v1::FunctionResult { output: Some(no_value), ..good(&c2) };
        for (bad, reason, place) in [
            (without_success, Reason::InvalidResult, "results[1]"),
            (without_value, Reason::InvalidRequest, "results[1]"),
            (good("c9"), Reason::UnknownCall, "results[1]"),
            (good(&c1), Reason::InvalidRequest, "results[1]"),
        ] {
            let batch = vec![good(&c1), bad.clone(), good(&c3)];
            let refusal = refused(session.submit(batch).await, reason)?;
            let paths: Vec<_> = refusal.fields.iter().map(|field| field.path.as_str()).collect();
            assert!(paths.iter().any(|path| path.starts_with(place)), "{bad:?}: {paths:?}");
            assert_eq!(session.turn("t-1").await?.required_actions.len(), 3, "nothing is consumed");
        }
        refused(session.submit(Vec::new()).await, Reason::InvalidRequest)?;
        let outcomes = submit(&session, &[&good(&c1), &good(&c2), &good(&c3)]).await?;
        assert_eq!(outcomes, [ResultOutcome::Accepted; 3]);
        seen.to_the_end(&mut events).await?.completed()
    });
}

fn a_result_after_a_cancel_is_refused(harness: Harness) {
    scenario("result_cancelled", &["R-FN-5", "R-FN-7"], declaring(harness), async |rig| {
        let (session, mut events, seen, [c1, c2]) = calls(rig).await?;
        let answered = text_result("t-1", &c1, "in time");
        submit(&session, &[&answered]).await?;
        let cancelled = session.cancel("t-1", Some(Duration::ZERO)).await?;
        assert!(cancelled.turn.is_some_and(|turn| turn.cancel_requested && turn.required_actions.is_empty()));
        let late = text_result("t-1", &c2, "too late");
        let refusal = refused(session.submit(vec![late.clone()]).await, Reason::TurnCancelled)?;
        public(&refusal, "409", "conflict_error");
        let seen = seen.to_the_end(&mut events).await?;
        assert_eq!(seen.end()?.status(), v1::TurnStatus::Cancelled);
        // The same after the end: the stored one is a duplicate, the other one was cancelled.
        assert_eq!(submit(&session, &[&answered]).await?, [ResultOutcome::Duplicate]);
        refused(session.submit(vec![late]).await, Reason::TurnCancelled)?;
        Ok(())
    });
}

fn a_result_for_a_turn_that_failed_finds_its_call_abandoned(harness: Harness) {
    scenario("result_abandoned", &["R-FN-5", "R-FN-7", "R-EVT-7"], declaring(harness), async |rig| {
        let (session, mut events, seen, [c1]) = calls(rig).await?;
        rig.harness()?.signal(rustix::process::Signal::KILL)?;
        let seen = seen.to_the_end(&mut events).await?;
        let end = seen.end()?;
        assert_eq!(end.status(), v1::TurnStatus::Failed, "R-CAN-6: {end:?}");
        let failure = end.failure.clone().unwrap_or_default();
        assert_eq!((failure.code(), failure.exit_signal), (v1::FailureCode::HarnessExited, Some(9)));
        let refusal = refused(session.submit(vec![text_result("t-1", &c1, "x")]).await, Reason::CallAbandoned)?;
        public(&refusal, "409", "conflict_error");
        // The history is not replaced by an empty one.
        let prepared = rig.prepare(&session, rig.configuration(vec![function("lookup", SCHEMA)])).await;
        refused(prepared, Reason::NativeHistoryUnavailable)?;
        Ok(())
    });
}

/// A Harness that has functions.
fn declaring(harness: Harness) -> Setup {
    Setup::outer().of(harness).needing(v1::Capability::FunctionTools)
}

/// A Turn that has made so many calls, and waits; with their ids, which are `c1` and so on where the Harness tells them.
async fn calls<const N: usize>(rig: &Rig) -> anyhow::Result<(Session, TurnEvents, Observed, [String; N])> {
    let native: [String; N] = std::array::from_fn(|n| format!("c{}", n + 1));
    let made: Vec<_> = native.iter().map(|id| ("lookup", &**id)).collect();
    let (session, events, seen) = rig.waiting_turn(vec![function("lookup", SCHEMA)], &made).await?;
    if Harness::ALL.contains(&rig.kind()) {
        return Ok((session, events, seen, native));
    }
    let ids: Vec<_> = seen.calls().into_iter().map(|call| call.call_id.clone()).collect();
    let ids = ids.try_into().map_err(|ids| anyhow::anyhow!("other calls than {N}: {ids:?}"))?;
    Ok((session, events, seen, ids))
}

async fn submit(session: &Session, results: &[&v1::FunctionResult]) -> anyhow::Result<Vec<ResultOutcome>> {
    let outcomes = session.submit(results.iter().map(|result| (*result).clone()).collect()).await?;
    Ok(outcomes.iter().map(v1::FunctionResultOutcome::outcome).collect())
}

/// The outcome that the public API gives.
#[track_caller]
fn public(refusal: &Refusal, status: &str, code: &str) {
    let told = |key: &str| refusal.metadata.get(key).map(String::as_str);
    assert_eq!((told("http_status"), told("public_code")), (Some(status), Some(code)), "{refusal:?}");
}
