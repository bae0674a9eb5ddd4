//! A model provider that sends more than an answer may have, or goes on behind its end: the answer is cut off, the Turn ends with the
//! limit named, a call of it goes with it, and the next Turn works.

use anyhow::Context;
use conformance::for_each_harness;
use conformance::rig::{Harness, Observed, Rig, Setup, function, scenario, text_result};
use proto::client::Session;
use proto::v1::event::Kind;
use proto::v1::{FailureCode, TurnStatus};
use serde_json::{Value, json};

for_each_harness!(
    an_answer_beyond_a_limit_is_cut_off_and_the_limit_is_named,
    an_answer_whose_first_byte_does_not_come_is_cut_off,
    an_answer_within_the_limits_passes
);

/// What the answers of these scenarios may have.
const LIMITS: &str = "limits.stream_bytes = 200000\nlimits.stream_events = 100\nlimits.stream_event_bytes = 20000\n\
    limits.stream_blocks = 5\nlimits.stream_calls = 3\nlimits.stream_argument_bytes = 2000";

fn calls(count: usize, text: &str) -> Value {
    let call = |n| json!({"name": "lookup", "call_id": format!("c{n}"), "arguments": json!({"q": text}).to_string()});
    json!({"calls": (0..count).map(call).collect::<Vec<_>>()})
}

/// An event that ends an answer, and one that may not come behind it.
fn behind_the_end(harness: Harness) -> Value {
    let (end, more) = match harness {
        Harness::Codex => (
            vec![json!({"type": "response.completed", "response": {"id": "r", "output": []}})],
            json!({"type": "response.output_text.delta", "delta": "late"}),
        ),
        Harness::ClaudeCode => (
            vec![
                json!({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": null}, "usage": {"output_tokens": 1}}),
                json!({"type": "message_stop"}),
            ],
            json!({"type": "ping"}),
        ),
        Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
    };
    let all: String = end.iter().chain([&more]).map(|event| format!("data: {event}\n\n")).collect();
    json!([{"text": {"chunks": ["at the end"]}}, {"raw": all}, "close"])
}

/// What the provider plays, and what the failure has to name.
fn beyond(harness: Harness) -> Vec<(&'static str, Value, &'static str)> {
    let text = |chunk: &str| json!({"text": {"chunks": [chunk]}});
    let comments = format!(": {}\n", "x".repeat(1000)).repeat(250);
    vec![
        ("case-bytes", json!([text("a"), {"raw": comments}]), "`stream_bytes`"),
        ("case-events", json!([text("a"), {"raw": "data: {\"type\":\"ping\"}\n\n".repeat(120)}]), "`stream_events`"),
        (
            "case-long",
            json!([text("a"), {"raw": format!("data: {}", "x".repeat(30_000))}, "hang"]),
            "`stream_event_bytes`",
        ),
        ("case-blocks", json!([text("a"), text("b"), text("c"), text("d"), text("e"), text("f")]), "`stream_blocks`"),
        ("case-calls", json!([calls(4, "x")]), "`stream_calls`"),
        ("case-arguments", json!([calls(1, &"x".repeat(3000))]), "`stream_argument_bytes`"),
        ("case-behind", behind_the_end(harness), "behind its end"),
        ("case-open", json!([{"text": {"chunks": ["half"], "open": true}}]), "an item is open"),
    ]
}

fn an_answer_beyond_a_limit_is_cut_off_and_the_limit_is_named(harness: Harness) {
    let setup = Setup::outer().of(harness).with(LIMITS);
    scenario("gateway_limits", &["R-SEC-5", "R-EVT-5", "R-CAN-3"], setup, async |rig| {
        let session = rig.session().await?;
        for (n, (name, play, limit)) in beyond(harness).into_iter().enumerate() {
            cut_off(rig, &session, n, name, &play, limit).await.context(name)?;
            goes_on(rig, &session, n).await.with_context(|| format!("the Turn after {name}"))?;
        }
        Ok(())
    });
}

fn an_answer_whose_first_byte_does_not_come_is_cut_off(harness: Harness) {
    let setup = Setup::outer().of(harness).with("limits.stream_first_byte_ms = 6000");
    scenario("gateway_first_byte", &["R-SEC-5", "R-EVT-5"], setup, async |rig| {
        let (one, other) = (rig.session().await?, rig.session().await?);
        let limit = "`stream_first_byte_ms`";
        let (nothing, headers) = (json!(["hang"]), json!(["headers", "hang"]));
        futures_util::try_join!(
            cut_off(rig, &one, 0, "case-nothing", &nothing, limit),
            cut_off(rig, &other, 0, "case-headers", &headers, limit),
        )?;
        goes_on(rig, &one, 0).await?;
        goes_on(rig, &other, 0).await
    });
}

fn an_answer_within_the_limits_passes(harness: Harness) {
    let setup = Setup::outer().of(harness).with(LIMITS);
    scenario("gateway_within", &["R-SEC-5", "R-SEC-3"], setup, async |rig| {
        let steps = json!([
            {"play": [{"reasoning": {"summary": ["So."]}}, {"text": {"chunks": ["a"]}}, calls(3, &"x".repeat(100))]},
            {"play": [{"text": {"chunks": ["all of it"]}}]},
        ]);
        rig.provider.script(&steps.to_string())?;
        let session = rig.session().await?;
        let configuration = rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)]);
        let mut events = rig.start_turn(&session, configuration, "t-1", "look").await?;
        let mut seen = Observed::default();
        for _ in 0..3 {
            let call = seen.call(&mut events).await?;
            session.submit(vec![text_result("t-1", &call.call_id, "found")]).await?;
        }
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!(seen.kinds().filter(|kind| matches!(kind, Kind::FunctionResultApplied(_))).count(), 3);
        assert_eq!(seen.messages().last(), Some(&"all of it"));
        Ok(())
    });
}

/// Plays an answer, and checks how its Turn ends.
async fn cut_off(rig: &Rig, session: &Session, n: usize, name: &str, play: &Value, limit: &str) -> anyhow::Result<()> {
    // Whatever else is asked for until the interrupt is answered in the same way.
    rig.provider.script(&json!([{"match": name, "always": true, "play": play}]).to_string())?;
    let seen = turn(rig, session, &format!("t-{n}"), name).await?;
    seen.check_order()?;
    let end = seen.end()?;
    let failure = end.failure.clone().unwrap_or_default();
    let is_so = (end.status(), failure.code()) == (TurnStatus::Failed, FailureCode::StreamLimitExceeded);
    anyhow::ensure!(is_so, "it ended so: {end:?}");
    anyhow::ensure!(failure.message.contains(limit), "{limit} is not named: {}", failure.message);
    // A Harness may ask for a call while the answer still comes (R-FN-10); it goes with the Turn.
    let count = |fits: fn(&Kind) -> bool| seen.kinds().filter(|kind| fits(kind)).count();
    let called = count(|kind| matches!(kind, Kind::FunctionCall(_)));
    let abandoned = count(|kind| matches!(kind, Kind::FunctionCallAbandoned(_)));
    anyhow::ensure!(called == abandoned, "a call is left: {:?}", seen.story());
    Ok(())
}

/// The next Turn of the Session works.
async fn goes_on(rig: &Rig, session: &Session, n: usize) -> anyhow::Result<()> {
    rig.provider.reset();
    let next = turn(rig, session, &format!("t-{n}-next"), "and again").await?;
    next.completed()?;
    anyhow::ensure!(next.messages() == ["and again"], "{:?}", next.messages());
    Ok(())
}

async fn turn(rig: &Rig, session: &Session, turn_id: &str, prompt: &str) -> anyhow::Result<Observed> {
    let configuration = rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)]);
    let mut events = rig.start_turn(session, configuration, turn_id, prompt).await?;
    Observed::default().to_the_end(&mut events).await
}
