//! Calls from scripts that the model writes (`programmatic_tool_calling`), which Codex has: a function that a script calls is an ordinary call, and
//! where the control is false there are no scripts, whatever the model's own way. What the machine's managed requirements force is no control.

use anyhow::Context;
use conformance::child::codex::managed;
use conformance::rig::{Observed, Rig, Setup, function, nowhere, refusal, scenario, text_result};
use proto::client::Session;
use proto::v1::{self, Capability, Placement, Reason, event::Kind};
use serde_json::{Value, json};

/// Why it is looked at for one Harness alone.
const OWN: &str = "Codex alone has scripts that call tools";
/// A model that takes its tools from scripts alone, and one that takes them one by one.
const MODELS: [&str; 2] = ["gpt-6.2-sol", "gpt-5.5"];
const SCHEMA: &str = r#"{"type":"object","properties":{"q":{"type":"string"}}}"#;

fn setup(placement: Placement) -> Setup {
    let setup = Setup::outer().only(OWN).needing_under(placement, Capability::ExecutionControls);
    setup.needing_under(placement, Capability::FunctionTools)
}

fn with_scripts(on: bool, mut configuration: v1::ExecutionConfiguration) -> v1::ExecutionConfiguration {
    let controls = configuration.tools.get_or_insert_default().controls.get_or_insert_default();
    controls.programmatic_tool_calling = Some(on);
    configuration
}

fn configuration(rig: &Rig, model: &str, on: bool) -> v1::ExecutionConfiguration {
    let functions = vec![function("lookup", SCHEMA)];
    with_scripts(on, v1::ExecutionConfiguration { model: model.into(), ..rig.configuration(functions) })
}

fn script(input: &str) -> Value {
    json!({"play": [{"custom_call": {"name": "exec", "call_id": "s1", "input": input}}]})
}

fn says(text: &str) -> Value {
    json!({"play": [{"text": {"chunks": [text]}}]})
}

fn arguments(call: &v1::FunctionCall) -> &str {
    match call.arguments.as_ref().and_then(|content| content.place.as_ref()) {
        Some(v1::content::Place::Text(text)) => text,
        other => panic!("no arguments: {other:?}"),
    }
}

/// A Turn in which a script calls the function twice, one call behind the other, and hands the model what it got.
async fn calls_from_a_script(rig: &Rig, session: &Session, of: v1::ExecutionConfiguration) -> anyhow::Result<()> {
    let input = r#"const a = await tools.lookup({q: "plums"}); const b = await tools.lookup({q: "pears"}); text(JSON.stringify([a, b]));"#;
    rig.provider.script(&json!([script(input), says("Both.")]).to_string())?;
    let mut events = rig.start_turn(session, of, "t-1", "look both up").await?;
    let mut seen = Observed::default();
    for (query, answer) in [("plums", "blue ones"), ("pears", "green ones")] {
        let call = seen.call(&mut events).await?;
        assert!(!call.arguments_exact, "Codex tells the model's own text of a script alone");
        assert_eq!((call.name.as_str(), arguments(&call)), ("lookup", &*format!(r#"{{"q":"{query}"}}"#)));
        session.submit(vec![text_result("t-1", &call.call_id, answer)]).await?;
    }
    let seen = seen.to_the_end(&mut events).await?;
    seen.completed()?;
    assert_eq!(seen.messages(), ["Both."]);
    assert_eq!(seen.kinds().filter(|kind| matches!(kind, Kind::FunctionResultApplied(_))).count(), 2);
    let output = rig.provider.model_requests().pop().and_then(|request| request.output("s1")).context("no output")?;
    let output = output.to_string();
    assert!(output.contains("blue ones") && output.contains("green ones"), "{output}");
    Ok(())
}

#[test]
fn a_function_that_a_script_calls_is_an_ordinary_call() {
    scenario("scripts_workspace", &["R-CTL-2", "R-FN-2", "R-FN-6"], setup(Placement::Workspace), async |rig| {
        for model in MODELS {
            let session = rig.session().await?;
            calls_from_a_script(rig, &session, configuration(rig, model, true)).await.context(model)?;
            session.release(true).await?;
        }
        Ok(())
    });
}

#[test]
fn without_a_workspace_a_script_has_the_functions_and_nothing_of_the_machine() {
    let rules = ["R-CTL-2", "R-CTL-4", "R-FN-2"];
    scenario("scripts_none", &rules, setup(Placement::None), async |rig| {
        for model in MODELS {
            let session = rig.session_nowhere().await?;
            calls_from_a_script(rig, &session, nowhere(configuration(rig, model, true))).await.context(model)?;
            let names = "text(ALL_TOOLS.map(tool => tool.name).sort().join(' ') + ' ' + [typeof require, typeof process, typeof fetch].join(' '));";
            rig.provider.script(&json!([script(names), says("Seen.")]).to_string())?;
            let ready = rig.prepare_again(&session, nowhere(configuration(rig, model, true))).await?;
            rig.turn_with(&session, &ready, "t-2", "what is there").await?.completed()?;
            let output = rig.provider.model_requests().pop().and_then(|request| request.output("s1"));
            let output = output.context("no output")?.to_string();
            // Resources of MCP servers are those of declared servers.
            let allowed = ["list_mcp_resource_templates", "list_mcp_resources", "lookup", "read_mcp_resource"];
            assert!(output.contains("lookup") && output.contains("undefined undefined undefined"), "{output}");
            for tool in ["exec_command", "apply_patch", "view_image", "write_stdin", "clock__", "web__"] {
                assert!(!output.contains(tool), "{output} has more than {allowed:?}");
            }
            session.release(true).await?;
        }
        Ok(())
    });
}

#[test]
fn a_script_is_told_what_became_of_its_calls_in_the_same_words() {
    let rules = ["R-FN-9", "R-FN-4", "R-CTL-2"];
    scenario("scripts_results", &rules, setup(Placement::Workspace), async |rig| {
        let input =
            "const all = []; for (const q of ['a', 'b']) all.push(await tools.lookup({q})); text(JSON.stringify(all));";
        rig.provider.script(&json!([script(input), says("Neither.")]).to_string())?;
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, configuration(rig, MODELS[1], true), "t-1", "look both up").await?;
        let mut seen = Observed::default();
        let closed = v1::NullableText { value: Some(v1::nullable_text::Value::Text("it is closed".into())) };
        for (error, disposition) in [(None, Some(v1::ResultDisposition::NotExecuted)), (Some(closed), None)] {
            let call = seen.call(&mut events).await?;
            assert!(!call.idempotency_key.is_empty());
            let result = text_result("t-1", &call.call_id, "");
            let disposition = disposition.map(Into::into);
            let failed = v1::FunctionResult { success: Some(false), output: None, error, disposition, ..result };
            session.submit(vec![failed]).await?;
        }
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        let output = rig.provider.model_requests().pop().and_then(|request| request.output("s1"));
        let output = output.context("no output")?.to_string();
        for text in ["The function was not run.", "The function failed.", "it is closed"] {
            assert!(output.contains(text), "{text} is not in {output}");
        }
        let told: Vec<_> = seen.end()?.tool_errors.iter().map(|one| (one.code(), &*one.name, &*one.message)).collect();
        use v1::ToolErrorCode::{Failed, NotExecuted};
        assert_eq!(told, [(NotExecuted, "lookup", ""), (Failed, "lookup", "it is closed")]);
        Ok(())
    });
}

#[test]
fn without_scripts_a_model_that_has_nothing_else_calls_one_by_one() {
    let rules = ["R-CTL-2", "R-FN-2", "R-FN-11"];
    scenario("scripts_off", &rules, setup(Placement::Workspace), async |rig| {
        let asks = json!({"play": [
            {"custom_call": {"name": "exec", "call_id": "s1", "input": "text(await tools.lookup({q: 'plums'}))"}},
            {"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{\"q\":\"pears\"}"}]}]});
        rig.provider.script(&json!([asks, says("One.")]).to_string())?;
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, configuration(rig, MODELS[0], false), "t-1", "look it up").await?;
        let mut seen = Observed::default();
        let call = seen.call(&mut events).await?;
        assert_eq!((call.call_id.as_str(), arguments(&call)), ("c1", r#"{"q":"pears"}"#));
        session.submit(vec![text_result("t-1", "c1", "green ones")]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!(seen.kinds().filter(|kind| matches!(kind, Kind::FunctionCall(_))).count(), 1);
        let newest = rig.provider.model_requests().pop().context("no request")?;
        let refused = newest.output("s1").context("no output")?.to_string();
        assert!(refused.contains("unsupported"), "{refused}");
        Ok(())
    });
}

/// A machine whose managed configuration has one way with scripts, and lets models search in what the provider keeps only.
fn forced(scripts: bool) -> Setup {
    let requirements = json!({
        "featureRequirements": {"code_mode": scripts}, "allowedWebSearchModes": ["cached"], "modelCatalogJson": null,
    });
    let catalogue = json!({"models": [{"slug": "gpt-5.5", "tool_mode": null}]});
    let reason =
        "a requirement of the machine would be one of all tests on it; the real program's answer has this form";
    Setup::faulty(managed(&requirements, &catalogue)).bridge(reason)
}

async fn fails(rig: &Rig, controls: v1::ExecutionControls, says: &str) -> anyhow::Result<()> {
    let mut configuration = rig.configuration(Vec::new());
    configuration.tools.get_or_insert_default().controls = Some(controls);
    let session = rig.session().await?;
    refusal(session.prepare(configuration, Vec::new()).await, Reason::PreparationFailed).says(says);
    Ok(())
}

#[test]
fn scripts_that_the_machine_forces_fail_the_preparation() {
    scenario("scripts_forced", &["R-CTL-2", "R-PRE-1"], forced(true), async |rig| {
        let off = v1::ExecutionControls { programmatic_tool_calling: Some(false), ..Default::default() };
        fails(rig, off, "keep the feature code_mode on, with which programmatic_tool_calling cannot be off").await
    });
}

#[test]
fn scripts_and_searches_that_the_machine_forbids_fail_the_preparation() {
    scenario("scripts_forbidden", &["R-CTL-2", "R-PRE-1"], forced(false), async |rig| {
        let on = v1::ExecutionControls { programmatic_tool_calling: Some(true), ..Default::default() };
        fails(rig, on, "keep the feature code_mode off, without which programmatic_tool_calling cannot be on").await?;
        let live = v1::WebSearchControl { mode: v1::WebSearchMode::Live.into(), ..Default::default() };
        let live = v1::ExecutionControls { web_search: Some(live), ..Default::default() };
        fails(rig, live, "do not allow web_search to be live").await?;
        // What it allows goes on.
        let cached = v1::WebSearchControl { mode: v1::WebSearchMode::Cached.into(), ..Default::default() };
        let controls = Some(v1::ExecutionControls { web_search: Some(cached), ..Default::default() });
        let tools = Some(v1::AdmittedTools { controls, ..Default::default() });
        let session = rig.session().await?;
        rig.prepare(&session, v1::ExecutionConfiguration { tools, ..rig.configuration(Vec::new()) }).await?;
        Ok(())
    });
}
