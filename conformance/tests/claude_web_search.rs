//! Searches of the web as Claude Code makes them (R-CTL-4): a tool of its own that asks the provider once more. Where the control takes it away, it is
//! not to be had, whatever the model asks for.

use anyhow::Context;
use conformance::rig::{Harness, Observed, Rig, Setup, nowhere, refusal, scenario, searching, strict};
use proto::v1::{
    self, Capability, Reason, ToolStatus, WebSearchMode, event::Kind, tool::Kind as Tool, web_search::Action,
};
use serde_json::{Value, json};

/// Why it is looked at for one Harness alone.
const OWN: &str = "the tool and the modes are Claude Code's own";

fn claude(placement: v1::Placement) -> Setup {
    let setup = Setup { harness: Harness::ClaudeCode, ..Setup::outer() }.only(OWN);
    setup.needing_under(placement, Capability::MessageObservation)
}

fn configuration(rig: &Rig, mode: WebSearchMode) -> v1::ExecutionConfiguration {
    searching(mode, rig.configuration(Vec::new()))
}

/// The native tools of a Turn, with how they ended.
fn tools(seen: &Observed) -> Vec<(&v1::ToolCompleted, &Tool)> {
    fn ended(kind: &Kind) -> Option<(&v1::ToolCompleted, &Tool)> {
        match kind {
            Kind::ToolCompleted(end) => Some((end, end.tool.as_ref()?.kind.as_ref()?)),
            _ => None,
        }
    }
    seen.kinds().filter_map(ended).collect()
}

fn text(content: Option<&v1::Content>) -> Option<&str> {
    match content?.place.as_ref()? {
        v1::content::Place::Text(text) => Some(text),
        v1::content::Place::Payload(_) => None,
    }
}

/// The search of a Turn: one tool that says what it looked for and what it found.
fn searched(seen: &Observed, query: &str) -> anyhow::Result<()> {
    let all = tools(seen);
    let searches =
        all.iter().filter_map(|(end, tool)| if let Tool::WebSearch(of) = tool { Some((end, of)) } else { None });
    let [(end, search)] = searches.collect::<Vec<_>>()[..] else { anyhow::bail!("{all:?}") };
    assert_eq!((end.status(), text(search.query.as_ref())), (ToolStatus::Completed, Some(query)));
    let Some(Action::Search(queries)) = &search.action else { anyhow::bail!("{search:?}") };
    let queries: Vec<_> = queries.queries.iter().map(|one| text(Some(one))).collect();
    assert_eq!(queries, [Some(query)]);
    let output = text(end.output.as_ref()).context("no output")?;
    assert!(output.contains("https://example.com/"), "{output}");
    Ok(())
}

/// How many requests let the provider search.
fn asked_to_search(rig: &Rig) -> usize {
    rig.provider.model_requests().iter().filter(|request| request.tools() == ["web_search"]).count()
}

fn search(call_id: &str) -> Value {
    json!({"play": [{"search": {"query": "plums", "call_id": call_id}}]})
}

fn says(text: &str) -> Value {
    json!({"play": [{"text": {"chunks": [text]}}]})
}

async fn turn(rig: &Rig, session: &proto::client::Session, of: v1::ExecutionConfiguration) -> anyhow::Result<Observed> {
    let mut events = rig.start_turn(session, of, "t-1", "find plums").await?;
    let seen = Observed::default().to_the_end(&mut events).await?;
    seen.completed()?;
    Ok(seen)
}

#[test]
fn a_live_search_without_a_workspace_is_a_tool_with_its_query() {
    let rules = ["R-CTL-2", "R-CTL-4", "R-EVT-2"];
    scenario("search_nowhere", &rules, claude(v1::Placement::None), async |rig| {
        rig.provider.script(&json!([search("s1"), says("Found.")]).to_string())?;
        let session = rig.session_nowhere().await?;
        let seen = turn(rig, &session, nowhere(configuration(rig, WebSearchMode::Live))).await?;
        assert_eq!(seen.messages(), ["Found."]);
        searched(&seen, "plums")?;
        let requests = rig.provider.model_requests();
        assert_eq!((requests.len(), asked_to_search(rig)), (3, 1));
        let read = requests[2].output("s1").context("no output")?.to_string();
        assert!(read.contains("https://example.com/"), "{read}");
        Ok(())
    });
}

#[test]
fn a_search_that_the_provider_runs_is_no_call_that_waits() {
    let setup = claude(v1::Placement::None).needing_under(v1::Placement::None, Capability::StrictCalls);
    scenario("search_strict", &["R-FN-10", "R-CTL-4"], setup, async |rig| {
        rig.provider.script(&json!([search("s1"), says("Found.")]).to_string())?;
        let session = rig.session_nowhere().await?;
        let of = strict(None, nowhere(configuration(rig, WebSearchMode::Live)));
        let seen = turn(rig, &session, of).await?;
        assert_eq!(seen.messages(), ["Found."]);
        searched(&seen, "plums")
    });
}

#[test]
fn a_live_search_on_a_workspace_is_found_first() {
    let rules = ["R-CTL-2", "R-CTL-5", "R-EVT-2"];
    scenario("search_workspace", &rules, claude(v1::Placement::Workspace), async |rig| {
        let find = json!({"name": "ToolSearch", "call_id": "f1", "arguments": r#"{"query":"select:WebSearch"}"#});
        let find = json!({"play": [{"calls": [find]}]});
        rig.provider.script(&json!([find, search("s1"), says("Found.")]).to_string())?;
        let session = rig.session().await?;
        let seen = turn(rig, &session, configuration(rig, WebSearchMode::Live)).await?;
        searched(&seen, "plums")?;
        assert_eq!((rig.provider.model_requests().len(), asked_to_search(rig)), (4, 1));
        let found = rig.provider.model_requests()[1].is_deferred("WebSearch");
        assert_eq!(found, Some(true), "it is there once it was found");
        Ok(())
    });
}

#[test]
fn what_is_switched_off_is_not_to_be_had() {
    let rules = ["R-CTL-2", "R-CTL-4", "R-CTL-5"];
    scenario("search_disabled", &rules, claude(v1::Placement::Workspace), async |rig| {
        let fetch = json!({"name": "WebFetch", "call_id": "w1", "arguments": r#"{"url":"https://example.com/","prompt":"read"}"#});
        let find =
            json!({"name": "ToolSearch", "call_id": "f1", "arguments": r#"{"query":"select:WebSearch,WebFetch"}"#});
        let all = json!({"play": [{"calls": [find, fetch]}, {"search": {"query": "plums", "call_id": "s1"}}]});
        rig.provider.script(&json!([all, says("Nothing.")]).to_string())?;
        let session = rig.session().await?;
        let seen = turn(rig, &session, configuration(rig, WebSearchMode::Disabled)).await?;
        assert_eq!(seen.messages(), ["Nothing."]);
        for (end, tool) in tools(&seen) {
            assert!(!matches!(tool, Tool::WebSearch(_)) || end.status() == ToolStatus::Failed, "{end:?}");
        }
        let requests = rig.provider.model_requests();
        assert_eq!((requests.len(), asked_to_search(rig)), (2, 0));
        for call_id in ["w1", "s1"] {
            assert_eq!(requests[1].output_failed(call_id), Some(true), "{}", requests[1].body);
        }
        assert_eq!(requests[1].is_deferred("WebSearch"), None);
        Ok(())
    });
}

#[test]
fn a_mode_that_claude_code_has_not_is_refused() {
    scenario("search_modes", &["R-CAP-1", "R-CAP-6", "R-PRE-1"], claude(v1::Placement::None), async |rig| {
        let declared = rig.declaration().await?.limits.context("no limits")?;
        let modes: Vec<_> = declared.web_search_modes().collect();
        assert_eq!(modes, [WebSearchMode::Disabled, WebSearchMode::Live]);
        let session = rig.session_nowhere().await?;
        let cached = nowhere(configuration(rig, WebSearchMode::Cached));
        refusal(session.prepare(cached, Vec::new()).await, Reason::UnsupportedConfiguration)
            .at("configuration.tools.controls.web_search")
            .says("it takes disabled and live")
            .public(400, "unsupported_or_invalid_configuration");
        assert_eq!(rig.harnesses()?.len(), 0, "a refused configuration had a native effect");
        Ok(())
    });
}
