//! The real opencode, of which the daemon is told no more than of any agent: how it is started, and what is written into its home. What holds for an agent of which nothing is
//! known is shown with it.

use std::fs;

use anyhow::Context;
use conformance::mcp::Script;
use conformance::rig::{
    Harness, MODEL_KEY, Observed, Rig, Setup, bearer, function, http_server, program, refusal, scenario, served_by,
    stdio_server, text_result,
};
use proto::client::{Session, TurnEvents};
use proto::v1::event::Kind;
use proto::v1::{self, EndCause, Reason, TurnStatus};
use serde_json::json;

const PLAIN: &str = r#"
[harness.acp.plain]
command = ["{program}", "acp"]
[harness.acp.plain.environment]
PLAIN_KEY = "{key}"
OPENCODE_CONFIG_CONTENT = '{"model":"p/{model}","small_model":"p/{model}","enabled_providers":["p"],"autoupdate":false,"share":"disabled","permission":{"*":"allow"},"agent":{"title":{"disable":true}},"provider":{"p":{"npm":"@ai-sdk/openai-compatible","name":"P","options":{"baseURL":"{base_url}","apiKey":"{env:PLAIN_KEY}"},"models":{"{model}":{"name":"M","limit":{"context":64000,"output":4096}}}}}}'
OPENCODE_DISABLE_MODELS_FETCH = "1"
OPENCODE_DISABLE_AUTOUPDATE = "1"
OPENCODE_DISABLE_LSP_DOWNLOAD = "1"
OPENCODE_DISABLE_DEFAULT_PLUGINS = "1"
OPENCODE_DISABLE_PROJECT_CONFIG = "1"
OPENCODE_PURE = "1"
[harness.acp.plain.files]
".config/opencode/node_modules/.none" = ""
".config/opencode/package-lock.json" = '{"name":"opencode","lockfileVersion":3,"packages":{"":{"dependencies":{"@opencode-ai/plugin":"1.18.33"}}}}'
"#;

const SCHEMA: &str = r#"{"type":"object","properties":{"q":{"type":"string"}},"required":["q"]}"#;
const BEARER: &str = "mcp-canary-plain-7c1d";

/// A daemon that hosts it.
fn plain() -> Setup {
    // One that is not there is a daemon that does not host it.
    let program = conformance::rig::opencode().unwrap_or_default();
    let setup = Setup { harness: Harness::Opencode, ..Setup::outer() };
    let setup = setup.with(&PLAIN.replace("{program}", &program.to_string_lossy()));
    setup.only("any agent would do, and this one is there")
}

/// A configuration for it.
fn of_plain(configuration: v1::ExecutionConfiguration) -> v1::ExecutionConfiguration {
    v1::ExecutionConfiguration { harness: "plain".into(), ..configuration }
}

async fn start(rig: &Rig, session: &Session, configuration: v1::ExecutionConfiguration) -> anyhow::Result<TurnEvents> {
    rig.start_turn(session, of_plain(configuration), "t-1", "look it up").await
}

#[test]
fn it_calls_a_function_and_says_what_it_is() {
    scenario("acp_generic", &["R-CAP-1", "R-CAP-3", "R-FN-2", "R-FN-6"], plain(), async |rig| {
        let info = rig.client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
        let declared = info.harnesses.into_iter().find(|one| one.kind == "plain").context("it is not hosted")?;
        assert!(declared.available && !declared.qualified, "{declared:?}");
        assert!(declared.none.is_empty() && !declared.workspace().any(|one| one == v1::Capability::SessionResume));
        assert!(declared.evidence.iter().all(|one| one.scenario.starts_with("acp_generic::")), "{declared:?}");
        rig.provider.script(
            r#"[{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{\"q\":\"life\"}"}]}]},
                {"play": [{"text": {"chunks": ["It is 42."]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let mut events = start(rig, &session, rig.configuration(vec![function("lookup", SCHEMA)])).await?;
        let mut seen = Observed::default();
        let call = seen.call(&mut events).await?;
        session.submit(vec![text_result("t-1", &call.call_id, "the answer is 42")]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["It is 42."]);
        let applied = seen.kinds().filter_map(|kind| match kind {
            Kind::FunctionResultApplied(applied) => Some(applied.call_id.clone()),
            _ => None,
        });
        assert_eq!(applied.collect::<Vec<_>>(), [call.call_id]);
        Ok(())
    });
}

#[test]
fn its_tools_are_told_those_of_servers_by_their_own_names() {
    let setup = plain().beside(Script::default());
    let rules = ["R-MCP-1", "R-MCP-3", "R-MCP-4", "R-MCP-5", "R-SEC-3", "R-CTL-2", "R-ASG-4"];
    scenario("acp_generic_tools", &rules, setup, async |rig| {
        let program = program("runtime-bridge-conformance")?;
        let (program, cwd) = (program.to_string_lossy(), rig.workspace().to_string_lossy());
        let local = stdio_server("local", &program, &["mcp-stdio", "--", "an argument"], &cwd, &[]);
        let servers = [bearer(http_server("tickets", &rig.mcp().url())), local];
        let mut configuration = of_plain(served_by(servers, rig.configuration(Vec::new())));
        configuration.tools.get_or_insert_default().controls = Some(v1::ExecutionControls {
            programmatic_tool_calling: Some(false),
            text_verbosity: Some(v1::TextVerbosity::Medium.into()),
            ..Default::default()
        });
        let step = |name: &str, arguments: serde_json::Value| {
            let call = json!({ "name": name, "call_id": name.replace('.', "_"), "arguments": arguments.to_string() });
            json!({ "play": [{ "calls": [call] }] })
        };
        let steps = json!([
            step("tickets.echo", json!({ "text": "heron" })),
            step("local.environment", json!({})),
            step("bash", json!({ "command": "echo made > made", "description": "makes it" })),
            { "play": [{ "text": { "chunks": ["Done."] } }] },
        ]);
        rig.provider.script(&steps.to_string())?;
        let session = rig.session().await?;
        let of = |name: &str, value: &str| v1::Credential { name: name.into(), value: value.into() };
        let ready = session.prepare(configuration, vec![of("model", MODEL_KEY), of("mcp:tickets", BEARER)]).await?;
        let seen = rig.turn_with(&session, &ready, "t-1", "work").await?;
        seen.completed()?;
        let calls = seen.mcp_calls();
        let told: Vec<_> = calls.iter().map(|one| (&*one.call.server, &*one.call.tool, one.status)).collect();
        let went_well = v1::ToolStatus::Completed;
        assert_eq!(told, [("tickets", "echo", went_well), ("local", "environment", went_well)], "{calls:#?}");
        assert_eq!(calls[0].arguments(), json!({ "text": "heron" }));
        assert!(calls[0].result().to_string().contains("heron"), "{:#?}", calls[0]);
        let environment = calls[1].result().to_string();
        for part in ["an argument", "RUNTIME_BRIDGE_MCP", &cwd] {
            assert!(environment.contains(part), "{part} is not in {environment}");
        }
        assert!(!environment.contains("runtime-bridge-placeholder"), "{environment}");
        assert!(fs::read_to_string(rig.workspace().join("made"))?.contains("made"));
        let header = format!("Bearer {BEARER}");
        assert!(rig.mcp().requests().iter().all(|request| request.header("authorization") == Some(&header)));
        let released = session.release(true).await?;
        assert_eq!((released.outcome(), released.home_removed), (v1::ReleaseOutcome::Confirmed, true));
        assert!(rig.workspace().join("made").exists());
        Ok(())
    });
}

#[test]
fn a_cancel_reaches_it_before_it_says_anything_and_its_session_is_over() {
    scenario("acp_generic_cancel", &["R-CAN-1", "R-CAN-3", "R-CAN-4", "R-PRE-4"], plain(), async |rig| {
        rig.provider.script(r#"[{"play": [{"gate": "never"}]}]"#)?;
        let session = rig.session().await?;
        let mut events = start(rig, &session, rig.configuration(Vec::new())).await?;
        // The Turn has a native id before the agent says a word.
        let mut seen = Observed::default();
        seen.until(&mut events, |kind| matches!(kind, Kind::TurnStarted(_)).then_some(())).await?;
        rig.provider.wait_for(|requests| !requests.is_empty()).await?;
        let answer = session.cancel("t-1", None).await?;
        assert_eq!(answer.outcome(), v1::CancelOutcome::Settled);
        let seen = seen.to_the_end(&mut events).await?;
        let end = seen.end()?;
        assert_eq!((end.status(), end.cause()), (TurnStatus::Cancelled, EndCause::Requested));
        let native = session.turn("t-1").await?.native.context("it has no native id")?.session_id;
        rig.executor_gone(&session).await?;
        let refused = rig.resume(&session, of_plain(rig.configuration(Vec::new())), &native).await;
        refusal(refused, Reason::NativeHistoryUnavailable);
        Ok(())
    });
}

#[test]
fn it_holds_no_key_itself() {
    let trusting = plain();
    let setup = Setup { more: format!("trust_workspace = true\n{}", trusting.more), ..trusting }.without_gateway();
    scenario("acp_generic_key", &["R-PLC-1", "R-PRE-1"], setup, async |rig| {
        let session = rig.session().await?;
        let refused = rig.prepare(&session, of_plain(rig.configuration(Vec::new()))).await;
        refusal(refused, Reason::UnsupportedConfiguration).says("use the gateway");
        Ok(())
    });
}
