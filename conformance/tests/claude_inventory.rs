//! What Claude Code offers its model, configuration by configuration, read in the provider's requests (R-CTL-4, R-CTL-5), and what becomes of a
//! process that offers something else.

use anyhow::Context;
use conformance::provider::Recorded;
use conformance::rig::{
    Daemon, Harness, Observed, Rig, Setup, answering_by, deferring, function, nowhere, scenario, searching,
};
use proto::client::Session;
use proto::v1::{self, FailureCode, TurnStatus, WebSearchMode};

/// Why it is looked at for one Harness alone.
const OWN: &str = "which tools there are, and how they are asked for, is Claude Code's own";

/// What a workspace offers without any control. What it leaves to be searched for is announced beside it.
const WORKSPACE: &str = "Bash DeferredToolPlaceholder* Edit Read ReportFindings Skill ToolSearch Write";
const TO_FIND: &str = "EnterWorktree ExitWorktree NotebookEdit TaskCreate TaskGet TaskList TaskUpdate";

const SCHEMA: &str = r#"{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}"#;

fn claude() -> Setup {
    Setup { harness: Harness::ClaudeCode, ..Setup::outer() }.only(OWN)
}

/// A configuration and what it offers.
#[derive(Clone, Copy, Default)]
struct Case {
    functions: &'static [&'static str],
    deferred: &'static [&'static str],
    search: Option<WebSearchMode>,
    schema: bool,
    /// The tools in the request, in the order of their names; `*` behind those that the model does not see.
    offers: &'static str,
    /// Tools that the model knows of by name only.
    announces: &'static str,
}

impl Case {
    fn configuration(&self, rig: &Rig) -> v1::ExecutionConfiguration {
        let functions = self.functions.iter().map(|name| function(name, r#"{"type":"object"}"#)).collect();
        let mut configuration = rig.configuration(functions);
        if !self.deferred.is_empty() {
            configuration = deferring(self.deferred, configuration);
        }
        if let Some(mode) = self.search {
            configuration = searching(mode, configuration);
        }
        if self.schema { answering_by(SCHEMA, configuration) } else { configuration }
    }

    /// A Turn of a fresh Session whose one request offers exactly this.
    async fn check(&self, rig: &Rig, placement: v1::Placement) -> anyhow::Result<()> {
        let (session, configuration) = self.bind(rig, placement).await?;
        let mut events = rig.start_turn(&session, configuration, "t-1", "hello").await?;
        Observed::default().to_the_end(&mut events).await?.completed().context(self.offers)?;
        self.offered(rig)?;
        session.release(true).await?;
        Ok(())
    }

    async fn bind(&self, rig: &Rig, placement: v1::Placement) -> anyhow::Result<(Session, v1::ExecutionConfiguration)> {
        let configuration = self.configuration(rig);
        Ok(match placement {
            v1::Placement::None => (rig.session_nowhere().await?, nowhere(configuration)),
            v1::Placement::Workspace | v1::Placement::Unspecified => (rig.session().await?, configuration),
        })
    }

    /// The newest request offers exactly this.
    fn offered(&self, rig: &Rig) -> anyhow::Result<()> {
        let request = rig.provider.model_requests().pop().context("no request")?;
        assert_eq!(offered(&request), split(self.offers));
        let mut announced = request.announced();
        announced.sort_unstable();
        announced.dedup();
        assert_eq!(announced, split(self.announces), "{}", self.offers);
        Ok(())
    }
}

/// A workspace with all that can be asked for beside it.
const FULL: Case = Case {
    functions: &["lookup", "alpha"],
    deferred: &["alpha"],
    search: None,
    schema: true,
    offers: "Bash DeferredToolPlaceholder* Edit Read ReportFindings Skill StructuredOutput ToolSearch Write lookup",
    announces: "EnterWorktree ExitWorktree NotebookEdit TaskCreate TaskGet TaskList TaskUpdate WebFetch WebSearch alpha",
};

fn split(names: &str) -> Vec<String> {
    names.split_whitespace().map(str::to_owned).collect()
}

/// The tools in a request, in the order of their names; `*` behind those that the model does not see.
fn offered(request: &Recorded) -> Vec<String> {
    let mark = |tool: String| if request.is_deferred(&tool) == Some(true) { format!("{tool}*") } else { tool };
    let mut tools: Vec<_> = request.tools().into_iter().map(mark).collect();
    tools.sort_unstable();
    tools
}

#[test]
fn without_a_workspace_the_model_has_the_functions_and_what_a_control_needs() {
    scenario("inventory_none", &["R-CTL-2", "R-CTL-4", "R-FN-1"], claude(), async |rig| {
        let some = Case { functions: &["lookup", "alpha"], ..Case::default() };
        for case in [
            Case::default(),
            Case { offers: "alpha lookup", ..some },
            Case { search: Some(WebSearchMode::Disabled), offers: "alpha lookup", ..some },
            Case { search: Some(WebSearchMode::Live), offers: "WebSearch", ..Case::default() },
            Case { schema: true, offers: "StructuredOutput", ..Case::default() },
        ] {
            case.check(rig, v1::Placement::None).await?;
        }
        Ok(())
    });
}

#[test]
fn without_a_workspace_a_search_for_tools_hides_what_it_finds() {
    scenario("inventory_found", &["R-CTL-2", "R-CTL-4", "R-FN-1"], claude(), async |rig| {
        let some = Case { functions: &["lookup", "alpha"], ..Case::default() };
        for case in [
            Case {
                deferred: &["alpha"],
                schema: true,
                offers: "DeferredToolPlaceholder* StructuredOutput ToolSearch lookup",
                announces: "alpha",
                ..some
            },
            // Beside a search for tools, the search of the web has to be found too.
            Case {
                deferred: &["alpha"],
                search: Some(WebSearchMode::Live),
                offers: "DeferredToolPlaceholder* ToolSearch lookup",
                announces: "WebSearch alpha",
                ..some
            },
        ] {
            case.check(rig, v1::Placement::None).await?;
        }
        Ok(())
    });
}

#[test]
fn a_workspace_has_the_native_set_less_what_is_taken_away() {
    scenario("inventory_workspace", &["R-CTL-2", "R-CTL-5", "R-FN-1"], claude(), async |rig| {
        let searches =
            "EnterWorktree ExitWorktree NotebookEdit TaskCreate TaskGet TaskList TaskUpdate WebFetch WebSearch";
        for case in [
            Case { offers: WORKSPACE, announces: searches, ..Case::default() },
            Case { search: Some(WebSearchMode::Live), offers: WORKSPACE, announces: searches, ..Case::default() },
            Case { search: Some(WebSearchMode::Disabled), offers: WORKSPACE, announces: TO_FIND, ..Case::default() },
            FULL,
        ] {
            case.check(rig, v1::Placement::Workspace).await?;
        }
        // What works in the background, waits for a person or starts another agent is not among the parameters either.
        for request in rig.provider.model_requests() {
            let parameters = request.schema("Bash").context("no Bash")?;
            assert!(parameters["properties"]["command"].is_object(), "{parameters}");
            assert!(parameters["properties"]["run_in_background"].is_null(), "{parameters}");
        }
        Ok(())
    });
}

/// The next Turn after the daemon's restart is offered what the first one was.
async fn resumed(rig: &mut Rig, case: Case, placement: v1::Placement) -> anyhow::Result<()> {
    let case = Case { functions: &["lookup", "alpha"], deferred: &["alpha"], schema: true, ..case };
    let (session, configuration) = case.bind(rig, placement).await?;
    let mut events = rig.start_turn(&session, configuration.clone(), "t-1", "hello").await?;
    let first = Observed::default().to_the_end(&mut events).await?;
    first.completed()?;
    case.offered(rig)?;
    // Claude Code writes its history a little behind what it tells.
    rig.wait_for_history(r#""text":"hello""#).await?;
    rig.daemon.terminate().await?;
    rig.daemon = Daemon::start(rig.place()).await?;
    let ready = rig.resume(&session, configuration, &first.native_session()?).await?;
    assert!(!ready.reused);
    rig.turn_with(&session, &ready, "t-2", "and again").await?.completed()?;
    case.offered(rig)
}

#[test]
fn a_resumed_session_without_a_workspace_has_the_same_tools() {
    scenario("inventory_resumed_none", &["R-CTL-4", "R-PRE-4", "R-FN-1"], claude(), async |rig| {
        let offers = "DeferredToolPlaceholder* StructuredOutput ToolSearch lookup";
        resumed(rig, Case { offers, announces: "alpha", ..Case::default() }, v1::Placement::None).await
    });
}

#[test]
fn a_resumed_session_on_a_workspace_has_the_same_tools() {
    scenario("inventory_resumed_workspace", &["R-CTL-5", "R-PRE-4", "R-FN-1"], claude(), async |rig| {
        resumed(rig, FULL, v1::Placement::Workspace).await
    });
}

/// Asks the real Claude Code for a tool more than the bridge does.
const ONE_MORE: &str = r#"
for one in "$@"; do
    shift
    case "$one" in
        --tools=) one=--tools=Read ;;
        --tools=*) one="$one,Glob" ;;
    esac
    set -- "$@" "$one"
done
exec "$REAL" "$@"
"#;

/// Takes a native tool and a function away.
const ONE_LESS: &str = r#"exec "$REAL" "$@" --disallowedTools=Write,mcp__functions__lookup"#;

/// Tools differ from what was asked for: the first inventory fails the Turn, before the model has done anything, and the process goes.
async fn fails_at_once(rig: &Rig, placement: v1::Placement, difference: &str) -> anyhow::Result<()> {
    let case = Case { functions: &["lookup"], ..Case::default() };
    // An answer waits until the Turn is over, so what it would do is never done.
    let call = r#"[{"gate": "over"}, {"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]"#;
    rig.provider.script(&format!(r#"[{{"play": {call}, "always": true}}]"#))?;
    let (session, configuration) = case.bind(rig, placement).await?;
    let mut native: Option<String> = None;
    for turn_id in ["t-1", "t-2"] {
        let before = rig.provider.model_requests().len();
        let configuration = configuration.clone();
        let ready = match &native {
            None => rig.prepare(&session, configuration).await?,
            Some(native) => rig.resume(&session, configuration, native).await?,
        };
        assert!(!ready.reused);
        let seen = rig.turn_with(&session, &ready, turn_id, "hello").await?;
        native = Some(seen.native_session()?);
        let end = seen.end()?;
        assert_eq!(end.status(), TurnStatus::Failed, "{end:?}");
        let failure = end.failure.clone().context("no failure")?;
        assert_eq!(failure.code(), FailureCode::HarnessProtocolError, "{failure:?}");
        assert!(failure.message.ends_with(difference), "{failure:?}");
        let story = seen.story();
        assert!(!story.contains(&"function_call") && !story.contains(&"tool_started"), "{story:?}");
        // No process is left that could offer it again.
        rig.only(&[]).await?;
        assert!(rig.provider.model_requests().len() <= before + 1);
    }
    session.release(true).await?;
    Ok(())
}

#[test]
fn a_tool_too_many_fails_the_turn_at_once() {
    scenario("inventory_surplus", &["R-CTL-4", "R-CTL-5", "R-EVT-5"], claude().behind(ONE_MORE), async |rig| {
        fails_at_once(rig, v1::Placement::None, "other tools than configured; surplus: Read").await?;
        fails_at_once(rig, v1::Placement::Workspace, "other tools than configured; surplus: Glob").await?;
        rig.provider.open_gate("over");
        Ok(())
    });
}

#[test]
fn a_tool_too_few_fails_the_turn_at_once() {
    scenario("inventory_missing", &["R-CTL-5", "R-FN-1", "R-EVT-5"], claude().behind(ONE_LESS), async |rig| {
        fails_at_once(rig, v1::Placement::None, "configured; missing: mcp__functions__lookup").await?;
        fails_at_once(rig, v1::Placement::Workspace, "configured; missing: Write, mcp__functions__lookup").await?;
        rig.provider.open_gate("over");
        Ok(())
    });
}
