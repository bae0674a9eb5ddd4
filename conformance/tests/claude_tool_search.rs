//! Functions that the model finds by searching for them (R-FN-1): what the provider receives before a search and after it, and the calls that follow.
//! Only Claude Code has such a search; what every Harness is asked for first is checked for each.

use anyhow::Context;
use conformance::for_each_harness;
use conformance::provider::Recorded;
use conformance::rig::{
    Daemon, Harness, MODEL_KEY, Observed, Rig, Setup, deferring, function, nowhere, refusal, scenario, text_result,
};
use proto::client::Session;
use proto::v1::{self, Capability, Reason, event::Kind, tool::Kind as Tool};
use serde_json::json;

for_each_harness!(a_search_and_what_it_could_find_need_each_other);

/// Why it is looked at for one Harness alone.
const OWN: &str = "Codex has no search for functions";

const SCHEMA: &str =
    r#"{"type":"object","properties":{"q":{"type":"string","description":"the question"}},"required":["q"]}"#;

fn claude(placement: v1::Placement) -> Setup {
    let setup = Setup { harness: Harness::ClaudeCode, ..Setup::outer() }.only(OWN);
    setup.needing_under(placement, Capability::ToolSearch)
}

/// `eager` is there from the start, `find` and `other` are to be found.
fn configuration(rig: &Rig) -> v1::ExecutionConfiguration {
    let functions = ["eager", "find", "other"].map(|name| function(name, SCHEMA));
    deferring(&["find", "other"], rig.configuration(functions.into()))
}

/// The functions in a request, with whether the model sees them by a search only.
fn functions(request: &Recorded) -> Vec<(&'static str, bool)> {
    ["eager", "find", "other"].into_iter().filter_map(|name| Some((name, request.is_deferred(name)?))).collect()
}

/// A step of the provider that searches.
fn searches(call_id: &str, query: &str) -> serde_json::Value {
    let arguments = json!({"query": query}).to_string();
    json!({"play": [{"calls": [{"name": "ToolSearch", "call_id": call_id, "arguments": arguments}]}]})
}

/// A step of the provider that calls functions, by name and id.
fn calls(called: &[(&str, &str)]) -> serde_json::Value {
    // A function that was not found is called by the name that it was announced under.
    let name = |name: &str| format!("mcp__functions__{name}");
    let call = |(of, id): &(&str, &str)| json!({"name": name(of), "call_id": id, "arguments": r#"{"q":"x"}"#});
    json!({"play": [{"calls": called.iter().map(call).collect::<Vec<_>>()}]})
}

fn says(text: &str) -> serde_json::Value {
    json!({"play": [{"text": {"chunks": [text]}}]})
}

/// The Turn, in which each call is answered.
async fn answered(
    rig: &Rig,
    session: &Session,
    configuration: v1::ExecutionConfiguration,
    turn_id: &str,
    calls: &[&str],
) -> anyhow::Result<Observed> {
    let mut events = rig.start_turn(session, configuration, turn_id, turn_id).await?;
    let mut seen = Observed::default();
    for want in calls {
        let call = seen.call(&mut events).await?;
        assert_eq!((&*call.name, call.arguments_exact), (*want, true));
        session.submit(vec![text_result(turn_id, &call.call_id, &format!("of {want}"))]).await?;
    }
    let seen = seen.to_the_end(&mut events).await?;
    seen.completed()?;
    Ok(seen)
}

/// The native searches of a Turn.
fn tools(seen: &Observed) -> Vec<String> {
    let named = |kind: &Kind| match kind {
        Kind::ToolCompleted(v1::ToolCompleted { tool: Some(v1::Tool { kind: Some(Tool::Other(other)) }), .. }) => {
            Some(other.name.clone())
        }
        _ => None,
    };
    seen.kinds().filter_map(named).collect()
}

/// A function is not there before it is found, and is there and called afterwards, also in the next Turn and after a resume.
async fn found(rig: &mut Rig, session: Session, configuration: v1::ExecutionConfiguration) -> anyhow::Result<()> {
    let steps = json!([
        searches("s1", "select:mcp__functions__find"),
        calls(&[("find", "c1"), ("eager", "c2")]),
        says("Found."),
        says("Still there."),
        says("And later."),
    ]);
    rig.provider.script(&steps.to_string())?;
    let first = answered(rig, &session, configuration.clone(), "t-1", &["find", "eager"]).await?;
    assert_eq!((tools(&first), first.messages()), (vec!["ToolSearch".to_owned()], vec!["Found."]));
    answered(rig, &session, configuration.clone(), "t-2", &[]).await?;
    // Claude Code writes its history a little behind what it tells.
    rig.wait_for_history(r#""text":"Still there.""#).await?;
    rig.daemon.terminate().await?;
    rig.daemon = Daemon::start(rig.place()).await?;
    let ready = rig.resume(&session, configuration, &first.native_session()?).await?;
    assert!(!ready.reused);
    rig.turn_with(&session, &ready, "t-3", "and later").await?.completed()?;

    let requests = rig.provider.model_requests();
    let [before, after, ..] = &requests[..] else { anyhow::bail!("{} requests", requests.len()) };
    assert_eq!(requests.len(), 5);
    // Before the search the model knows two names and one function.
    assert_eq!(functions(before), [("eager", false)]);
    let announced = before.announced();
    assert!(["find", "other"].iter().all(|name| announced.contains(&(*name).to_owned())), "{announced:?}");
    assert!(!announced.contains(&"eager".to_owned()), "{announced:?}");
    assert!(!before.body.contains("The function find."), "{}", before.body);
    // The search names what it found; from then on the function is there as it was declared, for good.
    let output = after.output("s1").context("the search has no output")?;
    assert_eq!(output, json!([{"type": "tool_reference", "tool_name": "mcp__functions__find"}]));
    for later in &requests[1..] {
        assert_eq!(functions(later), [("eager", false), ("find", true)]);
        assert_eq!(later.schema("find"), Some(serde_json::from_str(SCHEMA)?));
        assert_eq!(later.description("find").as_deref(), Some("The function find."));
    }
    assert_eq!((requests[2].output("c1"), requests[2].output("c2")), (Some("of find".into()), Some("of eager".into())));
    Ok(())
}

#[test]
fn without_a_workspace_a_function_is_found_and_called() {
    let rules = ["R-CTL-2", "R-CTL-4", "R-FN-1", "R-FN-6", "R-CAP-2", "R-PRE-4"];
    scenario("tool_search_none", &rules, claude(v1::Placement::None), async |rig| {
        let session = rig.session_nowhere().await?;
        let configuration = nowhere(configuration(rig));
        found(rig, session, configuration).await
    });
}

#[test]
fn on_a_workspace_a_function_is_found_and_called() {
    let rules = ["R-CTL-2", "R-CTL-5", "R-FN-1", "R-FN-6", "R-CAP-2", "R-PRE-4"];
    scenario("tool_search_workspace", &rules, claude(v1::Placement::Workspace), async |rig| {
        let session = rig.session().await?;
        let configuration = configuration(rig);
        found(rig, session, configuration).await
    });
}

#[test]
fn words_find_a_function_and_nothing_is_found_for_others() {
    scenario("tool_search_words", &["R-CTL-2", "R-FN-1"], claude(v1::Placement::None), async |rig| {
        let steps = json!([
            searches("s1", "nobody has such a word"),
            searches("s2", "function other"),
            calls(&[("other", "c1")]),
            says("Found."),
        ]);
        rig.provider.script(&steps.to_string())?;
        let session = rig.session_nowhere().await?;
        let seen = answered(rig, &session, nowhere(configuration(rig)), "t-1", &["other"]).await?;
        assert_eq!(tools(&seen), ["ToolSearch", "ToolSearch"]);
        let requests = rig.provider.model_requests();
        assert_eq!(functions(&requests[1]), [("eager", false)]);
        assert!(functions(&requests[2]).contains(&("other", true)), "{:?}", functions(&requests[2]));
        assert_eq!(requests[3].output("c1"), Some("of other".into()));
        Ok(())
    });
}

/// Claude Code does not look at whether the model knows a function in full.
#[test]
fn a_function_that_was_not_found_can_be_called_all_the_same() {
    scenario("tool_search_unfound", &["R-FN-2", "R-FN-11"], claude(v1::Placement::None), async |rig| {
        rig.provider.script(&json!([calls(&[("other", "c1")]), says("Heard.")]).to_string())?;
        let session = rig.session_nowhere().await?;
        let seen = answered(rig, &session, nowhere(configuration(rig)), "t-1", &["other"]).await?;
        assert_eq!(tools(&seen), [""; 0]);
        let requests = rig.provider.model_requests();
        assert_eq!((requests.len(), requests[1].output("c1")), (2, Some("of other".into())));
        Ok(())
    });
}

/// Claude Code knows of this model that it cannot be told of tools in the middle of a conversation.
#[test]
fn a_model_that_cannot_search_has_all_functions_from_the_start() {
    scenario("tool_search_old_model", &["R-CTL-2", "R-CTL-4"], claude(v1::Placement::None), async |rig| {
        rig.provider.script(&json!([calls(&[("find", "c1")]), says("Heard.")]).to_string())?;
        let session = rig.session_nowhere().await?;
        let model = "claude-3-5-haiku-20241022".into();
        let configuration = nowhere(v1::ExecutionConfiguration { model, ..configuration(rig) });
        answered(rig, &session, configuration, "t-1", &["find"]).await?;
        let requests = rig.provider.model_requests();
        assert_eq!(functions(&requests[0]), [("eager", false), ("find", false), ("other", false)]);
        assert_eq!((requests[0].announced(), requests[1].output("c1")), (vec![], Some("of find".into())));
        Ok(())
    });
}

fn a_search_and_what_it_could_find_need_each_other(harness: Harness) {
    let rules = ["R-CAP-6", "R-PRE-1", "R-FN-1"];
    scenario("tool_search_combined", &rules, Setup::outer().of(harness), async |rig| {
        let session = rig.session().await?;
        let refused = async |configuration: v1::ExecutionConfiguration, field: &str, says: &str| {
            let key = v1::Credential { name: "model".into(), value: MODEL_KEY.into() };
            refusal(session.prepare(configuration, vec![key]).await, Reason::UnsupportedConfiguration)
                .at(field)
                .says(says)
                .public(400, "unsupported_or_invalid_configuration");
        };
        let all = ["eager", "find", "other"].map(|name| function(name, SCHEMA));
        let nothing_to_find = deferring(&[], rig.configuration(all.into()));
        refused(nothing_to_find, "configuration.tools.tool_search", "so there is nothing to find").await;
        let mut never_found = configuration(rig);
        never_found.tools.get_or_insert_default().tool_search = None;
        let field = "configuration.tools.functions[1].defer_loading";
        refused(never_found, field, "set tools.tool_search as well").await;
        if harness == Harness::Codex {
            refused(configuration(rig), "configuration.tools.tool_search", "codex has no search for functions").await;
        }
        assert_eq!(rig.harnesses()?.len(), 0, "a refused configuration had a native effect");
        rig.whole_turn(&session, "t-1", "hello").await?.completed()
    });
}
