//! Calls that wait for the end of the answer that asks for them (`strict_calls`): the gateway holds them back until the provider says that they are to be run,
//! leaves them out where the answer was not finished, and admits the calls of an answer together or not at all.

use std::collections::BTreeSet;

use anyhow::Context;
use conformance::for_each_harness;
use conformance::rig::{
    Harness, Observed, Rig, Setup, function, lookup, nowhere, refusal, scenario, strict, text_result,
};
use proto::client::{Session, TurnEvents};
use proto::v1::event::Kind;
use proto::v1::{self, Capability, FailureCode, Reason, ToolErrorCode, TurnStatus};
use serde_json::{Value, json};

for_each_harness!(
    calls_are_seen_once_their_answer_is_whole,
    under_none_calls_are_seen_once_their_answer_is_whole,
    without_it_a_call_is_one_at_once,
    an_answer_that_is_cut_runs_nothing,
    an_answer_without_an_end_runs_nothing,
    an_answer_whose_connection_breaks_runs_nothing,
    calls_that_cannot_be_told_apart_end_the_turn,
    a_call_without_an_id_ends_the_turn,
    calls_have_the_batch_and_the_place_that_the_provider_gave_them,
    a_batch_fits_into_the_limit_or_none_of_its_calls_is_shown,
    it_needs_the_gateway
);

/// What the model reads of a call that did not fit.
const REFUSED: &str = "The function was not run: the limit of function calls is reached.";

fn needing(harness: Harness) -> Setup {
    Setup::outer().of(harness).needing(Capability::StrictCalls)
}

fn text(text: &str) -> Value {
    json!({"text": {"chunks": [text]}})
}

fn call(name: &str, call_id: &str) -> Value {
    json!({"calls": [{"name": name, "call_id": call_id, "arguments": "{}"}]})
}

fn shell(call_id: &str) -> Value {
    json!({"shell": {"command": "echo run >> made.txt", "call_id": call_id, "yield_ms": 30000}})
}

fn configuration(rig: &Rig) -> v1::ExecutionConfiguration {
    rig.configuration(["lookup", "alpha"].map(|name| function(name, r#"{"type":"object"}"#)).into())
}

fn calls(seen: &Observed) -> Vec<&v1::FunctionCall> {
    seen.kinds().filter_map(|kind| if let Kind::FunctionCall(call) = kind { Some(call) } else { None }).collect()
}

/// Whether the command of [`shell`] has run.
fn has_run(rig: &Rig) -> bool {
    rig.workspace().join("made.txt").exists()
}

/// Answers each call as it comes, until there were so many.
async fn answer(session: &Session, events: &mut TurnEvents, seen: &mut Observed, count: usize) -> anyhow::Result<()> {
    for _ in 0..count {
        let call = seen.call(events).await?;
        session.submit(vec![text_result(&call.turn_id, &call.call_id, "found")]).await?;
    }
    Ok(())
}

/// A Turn whose provider has sent a text, two calls of functions and, on a workspace, a command, and then waits for the gate `go`.
async fn at_the_end(
    rig: &Rig,
    session: &Session,
    configuration: v1::ExecutionConfiguration,
) -> anyhow::Result<(TurnEvents, Observed)> {
    let mut play = vec![text("before"), lookup("{}"), call("alpha", "c2")];
    if configuration.placement() == v1::Placement::Workspace {
        play.push(shell("sh1"));
    }
    play.extend([json!({"mark": "sent"}), json!({"gate": "go"})]);
    let steps = json!([{"play": play}, {"after": "outputs", "play": [text("all of it")]}]);
    rig.provider.script(&steps.to_string())?;
    let mut events = rig.start_turn(session, configuration, "t-1", "look").await?;
    let mut seen = Observed::default();
    seen.until(&mut events, |kind| matches!(kind, Kind::MessageCompleted(_)).then_some(())).await?;
    rig.provider.wait_for_mark("sent").await?;
    Ok((events, seen))
}

fn calls_are_seen_once_their_answer_is_whole(harness: Harness) {
    scenario("strict_withheld", &["R-FN-10", "R-CAP-2"], needing(harness), async |rig| {
        let session = rig.session().await?;
        let (events, seen) = at_the_end(rig, &session, strict(None, configuration(rig))).await?;
        whole(rig, &session, events, seen).await?;
        assert!(has_run(rig), "the command was not run");
        Ok(())
    });
}

fn under_none_calls_are_seen_once_their_answer_is_whole(harness: Harness) {
    let setup = Setup::outer().of(harness).needing_under(v1::Placement::None, Capability::StrictCalls);
    scenario("strict_nowhere", &["R-FN-10", "R-CAP-2"], setup, async |rig| {
        let session = rig.session_nowhere().await?;
        let (events, seen) = at_the_end(rig, &session, strict(None, nowhere(configuration(rig)))).await?;
        whole(rig, &session, events, seen).await
    });
}

/// Nothing of the calls is seen before the gate is open, and all of it behind it.
async fn whole(rig: &Rig, session: &Session, mut events: TurnEvents, mut seen: Observed) -> anyhow::Result<()> {
    let turn = session.turn("t-1").await?;
    assert_eq!((turn.phase(), turn.required_actions.len()), (v1::TurnPhase::Running, 0), "{turn:?}");
    assert!(!has_run(rig), "the command was run");
    rig.provider.open_gate("go");
    answer(session, &mut events, &mut seen, 2).await?;
    let seen = seen.to_the_end(&mut events).await?;
    seen.completed()?;
    assert_eq!(seen.messages(), ["before", "all of it"]);
    let newest = rig.provider.model_requests().pop().context("no request")?;
    for call in ["c1", "c2"] {
        assert_eq!(newest.output(call), Some("found".into()));
    }
    Ok(())
}

fn without_it_a_call_is_one_at_once(harness: Harness) {
    scenario("strict_control", &["R-FN-10"], Setup::outer().of(harness), async |rig| {
        let session = rig.session().await?;
        let (mut events, mut seen) = at_the_end(rig, &session, configuration(rig)).await?;
        let first = seen.call(&mut events).await?;
        assert_eq!((first.batch_id.as_deref(), first.position), (None, None));
        session.submit(vec![text_result("t-1", &first.call_id, "found")]).await?;
        rig.provider.open_gate("go");
        answer(&session, &mut events, &mut seen, 1).await?;
        seen.to_the_end(&mut events).await?.completed()
    });
}

fn an_answer_that_is_cut_runs_nothing(harness: Harness) {
    scenario("strict_cut", &["R-FN-10", "R-EVT-3"], needing(harness), async |rig| {
        let seen = cut(rig, json!({"incomplete": {"reason": "max_output_tokens"}})).await?;
        assert!(seen.deltas().starts_with("before"), "{:?}", seen.story());
        Ok(())
    });
}

fn an_answer_without_an_end_runs_nothing(harness: Harness) {
    scenario("strict_endless", &["R-FN-10", "R-EVT-3"], needing(harness), async |rig| {
        let seen = cut(rig, json!("close")).await?;
        assert!(seen.deltas().starts_with("before"), "{:?}", seen.story());
        Ok(())
    });
}

fn an_answer_whose_connection_breaks_runs_nothing(harness: Harness) {
    scenario("strict_broken", &["R-FN-10", "R-EVT-3"], needing(harness), async |rig| {
        // It takes with it what Claude Code has not read.
        cut(rig, json!("drop")).await?;
        Ok(())
    });
}

/// A Turn whose provider asks for calls and ends like this. What the Harness makes of it runs nothing, and leaves a history that it goes on with.
async fn cut(rig: &Rig, end: Value) -> anyhow::Result<Observed> {
    let steps = json!([
        {"match": "go on", "play": [text("before"), shell("sh1"), lookup("{}"), end]},
        {"match": "go on", "play": [text("after")]},
    ]);
    rig.provider.script(&steps.to_string())?;
    let session = rig.session().await?;
    let mut events = rig.start_turn(&session, strict(None, configuration(rig)), "t-1", "go on").await?;
    let seen = Observed::default().to_the_end(&mut events).await?;
    let status = seen.end()?.status();
    anyhow::ensure!(matches!(status, TurnStatus::Completed | TurnStatus::Failed), "it ended so: {:?}", seen.end()?);
    let tools = seen.kinds().filter(|kind| matches!(kind, Kind::ToolStarted(_))).count();
    assert_eq!((calls(&seen).len(), tools, has_run(rig)), (0, 0, false), "{:?}", seen.story());
    rig.provider.reset();
    let mut events = rig.start_turn(&session, strict(None, configuration(rig)), "t-2", "and again").await?;
    let next = Observed::default().to_the_end(&mut events).await?;
    next.completed()?;
    anyhow::ensure!(next.messages() == ["and again"], "{:?}", next.messages());
    Ok(seen)
}

fn calls_that_cannot_be_told_apart_end_the_turn(harness: Harness) {
    scenario("strict_ids", &["R-FN-10", "R-EVT-5"], needing(harness), async |rig| {
        flawed(rig, &[call("lookup", "c1"), shell("c1")]).await
    });
}

fn a_call_without_an_id_ends_the_turn(harness: Harness) {
    scenario("strict_no_id", &["R-FN-10", "R-EVT-5"], needing(harness), async |rig| {
        let nameless = match harness {
            Harness::Codex => json!({"type": "function_call", "id": "fc_1", "name": "lookup", "arguments": "{}"}),
            Harness::ClaudeCode => json!({"type": "tool_use", "name": "mcp__functions__lookup", "input": {}}),
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        };
        flawed(rig, &[call("alpha", "c1"), json!({"item": nameless})]).await
    });
}

/// A Turn whose provider asks for these calls, of which none is run.
async fn flawed(rig: &Rig, play: &[Value]) -> anyhow::Result<()> {
    // Whatever else is asked for until the interrupt is answered in the same way.
    rig.provider.script(&json!([{"match": "go on", "always": true, "play": play}]).to_string())?;
    let session = rig.session().await?;
    let mut events = rig.start_turn(&session, strict(None, configuration(rig)), "t-1", "go on").await?;
    let seen = Observed::default().to_the_end(&mut events).await?;
    let end = seen.end()?;
    let failure = end.failure.clone().unwrap_or_default();
    assert_eq!((end.status(), failure.code()), (TurnStatus::Failed, FailureCode::ServerError), "{end:?}");
    assert!(failure.message.contains("`strict_calls`"), "{}", failure.message);
    assert_eq!((calls(&seen).len(), has_run(rig)), (0, false), "{:?}", seen.story());
    Ok(())
}

fn calls_have_the_batch_and_the_place_that_the_provider_gave_them(harness: Harness) {
    scenario("strict_batches", &["R-FN-2", "R-FN-10"], needing(harness), async |rig| {
        let steps = json!([
            {"play": [call("lookup", "c1"), shell("sh1"), call("alpha", "c2"), call("lookup", "c3")]},
            {"after": "outputs", "play": [call("alpha", "c4")]},
            {"after": "outputs", "play": [text("all of it")]},
        ]);
        rig.provider.script(&steps.to_string())?;
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, strict(None, configuration(rig)), "t-1", "look").await?;
        let mut seen = Observed::default();
        answer(&session, &mut events, &mut seen, 3).await?;
        let last = seen.call(&mut events).await?;
        // A required action tells the same as the event.
        let turn = session.turn("t-1").await?;
        let actions: Vec<_> = turn.required_actions.into_iter().filter_map(|action| action.action).collect();
        assert_eq!(actions, [v1::required_action::Action::FunctionCall(last)]);
        session.submit(vec![text_result("t-1", "c4", "found")]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        let mut found = calls(&seen);
        // A Harness may ask for the calls of an answer in any order.
        found.sort_by_key(|call| &call.call_id);
        let places: Vec<_> = found.iter().map(|call| (&*call.call_id, call.position)).collect();
        assert_eq!(places, [("c1", Some(0)), ("c2", Some(2)), ("c3", Some(3)), ("c4", Some(0))]);
        let batches: Vec<_> = found.iter().map(|call| call.batch_id.clone().unwrap_or_default()).collect();
        assert!(batches[0] == batches[1] && batches[1] == batches[2] && batches[2] != batches[3], "{batches:?}");
        assert!(!batches[0].is_empty() && !batches[3].is_empty(), "{batches:?}");
        Ok(())
    });
}

fn a_batch_fits_into_the_limit_or_none_of_its_calls_is_shown(harness: Harness) {
    scenario("strict_limit", &["R-FN-10", "R-FN-9", "R-FN-4"], needing(harness), async |rig| {
        let session = rig.session().await?;
        // The second Turn has the whole limit again. A Harness may ask for the calls of an answer in any order.
        for n in ["1", "2"] {
            let id = |id: &str| format!("{id}-{n}");
            let steps = json!([
                {"play": [call("lookup", &id("a1")), call("alpha", &id("a2")), call("lookup", &id("a3"))]},
                {"after": "outputs", "play": [shell(&id("sh")), call("lookup", &id("b1")), call("alpha", &id("b2"))]},
                {"after": "outputs", "play": [call("lookup", &id("d1"))]},
                {"after": "outputs", "play": [text("all of it")]},
            ]);
            rig.provider.reset();
            rig.provider.script(&steps.to_string())?;
            let turn_id = format!("t-{n}");
            let mut events = rig.start_turn(&session, strict(Some(2), configuration(rig)), &turn_id, "look").await?;
            let mut seen = Observed::default();
            answer(&session, &mut events, &mut seen, 2).await?;
            let seen = seen.to_the_end(&mut events).await?;
            seen.completed()?;
            let shown: BTreeSet<_> = calls(&seen).iter().map(|call| call.call_id.clone()).collect();
            assert_eq!(shown, BTreeSet::from(["b1", "b2"].map(id)), "{:?}", seen.story());
            let requests = rig.provider.model_requests();
            for (request, call, output) in [
                (1, "a1", REFUSED),
                (1, "a2", REFUSED),
                (1, "a3", REFUSED),
                (2, "b1", "found"),
                (2, "b2", "found"),
                (3, "d1", REFUSED),
            ] {
                assert_eq!(requests[request].output(&id(call)), Some(output.into()), "{call}");
            }
            let mut errors: Vec<_> = seen.end()?.tool_errors.iter().map(|e| (e.call_id.clone(), &*e.name)).collect();
            errors.sort();
            let refused = [("a1", "lookup"), ("a2", "alpha"), ("a3", "lookup"), ("d1", "lookup")];
            assert_eq!(errors, refused.map(|(call, name)| (id(call), name)));
            assert!(seen.end()?.tool_errors.iter().all(|error| error.code() == ToolErrorCode::LimitExceeded));
            let applied = seen.kinds().filter(|kind| matches!(kind, Kind::FunctionResultApplied(_))).count();
            assert_eq!(applied, 2, "what the bridge itself said is no receipt");
            refusal(session.submit(vec![text_result(&turn_id, &id("a1"), "late")]).await, Reason::UnknownCall);
        }
        Ok(())
    });
}

fn it_needs_the_gateway(harness: Harness) {
    scenario("strict_gateway", &["R-FN-10", "R-CAP-6"], Setup::outer().of(harness).without_gateway(), async |rig| {
        let info = rig.client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
        for declared in &info.harnesses {
            let mut all = declared.none().chain(declared.workspace());
            assert!(!all.any(|capability| capability == Capability::StrictCalls), "{declared:?}");
        }
        let session = rig.session().await?;
        let asked = |configuration| session.prepare(configuration, Vec::new());
        refusal(asked(strict(None, configuration(rig))).await, Reason::UnsupportedConfiguration)
            .at("configuration.tools.controls.strict_calls")
            .says("gateway");
        let mut limited = strict(Some(1), configuration(rig));
        if let Some(controls) = limited.tools.as_mut().and_then(|tools| tools.controls.as_mut()) {
            controls.strict_calls = false;
        }
        refusal(asked(limited).await, Reason::UnsupportedConfiguration)
            .at("configuration.tools.controls.max_function_calls")
            .says("strict_calls");
        Ok(())
    });
}
