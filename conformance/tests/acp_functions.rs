//! Functions of Harnesses that can only take them from an MCP server: the bridge serves them on loopback, makes the ids of the calls, and shows what the
//! agent shows of their results.

use std::collections::BTreeSet;

use anyhow::Context;
use conformance::for_each_acp_agent;
use conformance::mcode::{self, Faults};
use conformance::rig::{
    Harness, Observed, Rig, Setup, calling, function, program, refused, scenario, served_by, stdio_server, text_result,
};
use proto::client::{Session, TurnEvents};
use proto::v1::event::Kind;
use proto::v1::{self, FailureCode, Reason, ResultDisposition, TurnStatus};

for_each_acp_agent!(
    a_call_is_answered_through_core_and_the_receipt_follows_it,
    calls_side_by_side_keep_their_results_apart,
    what_failed_has_its_words_at_the_model,
    a_call_that_waits_ends_with_its_cancel
);

const SCHEMA: &str = r#"{"type":"object","properties":{"q":{"type":"string"}},"required":["q"]}"#;

fn declaring(harness: Harness) -> Setup {
    Setup::outer().of(harness).needing(v1::Capability::FunctionTools)
}

async fn start(rig: &Rig, session: &Session) -> anyhow::Result<TurnEvents> {
    rig.start_turn(session, rig.configuration(vec![function("lookup", SCHEMA)]), "t-1", "look it up").await
}

fn applied(kind: &Kind) -> Option<v1::FunctionResultApplied> {
    match kind {
        Kind::FunctionResultApplied(applied) => Some(applied.clone()),
        _ => None,
    }
}

fn abandoned(kind: &Kind) -> Option<v1::FunctionCallAbandoned> {
    match kind {
        Kind::FunctionCallAbandoned(abandoned) => Some(abandoned.clone()),
        _ => None,
    }
}

fn text(of: Option<&v1::Content>) -> &str {
    match of.and_then(|content| content.place.as_ref()) {
        Some(v1::content::Place::Text(text)) => text,
        Some(_) | None => "",
    }
}

fn a_call_is_answered_through_core_and_the_receipt_follows_it(harness: Harness) {
    let rules = ["R-FN-2", "R-FN-3", "R-FN-5", "R-FN-6"];
    scenario("acp_call", &rules, declaring(harness), async |rig| {
        rig.provider.script(
            r#"[{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{\"q\":\"life\"}"}]}]},
                {"play": [{"gate": "go"}, {"text": {"chunks": ["It is 42."]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let mut events = start(rig, &session).await?;
        let mut seen = Observed::default();
        let call = seen.call(&mut events).await?;
        // The agent tells no id of its own where it asks.
        assert_eq!(call.call_id_origin(), v1::CallIdOrigin::Bridge);
        assert!(!call.arguments_exact && !call.idempotency_key.is_empty());
        assert_eq!((&*call.name, text(call.arguments.as_ref())), ("lookup", r#"{"q":"life"}"#));
        let turn = session.turn("t-1").await?;
        assert_eq!((turn.phase(), turn.required_actions.len()), (v1::TurnPhase::RequiresAction, 1));

        session.submit(vec![text_result("t-1", &call.call_id, "the answer is 42")]).await?;
        let receipt = seen.until(&mut events, applied).await?;
        assert_eq!((&receipt.call_id, receipt.success), (&call.call_id, true));
        assert_eq!(receipt.evidence, harness.result_evidence());
        let requests = rig.provider.wait_for(|requests| requests.len() == 2).await?;
        assert!(requests[1].body.contains("the answer is 42"), "{}", requests[1].body);
        rig.provider.open_gate("go");
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["It is 42."]);
        // The function is a call and no tool beside it.
        assert_eq!(seen.kinds().filter(|kind| matches!(kind, Kind::ToolStarted(_))).count(), 0);
        assert_eq!(session.turn("t-1").await?.required_actions, []);
        Ok(())
    });
}

fn calls_side_by_side_keep_their_results_apart(harness: Harness) {
    let setup = declaring(harness).needing(v1::Capability::ParallelFunctionCalls);
    scenario("acp_parallel", &["R-FN-2", "R-FN-6"], setup, async |rig| {
        rig.provider.script(
            r#"[{"play": [{"calls": [
                    {"name": "lookup", "call_id": "c1", "arguments": "{\"q\":\"a\"}"},
                    {"name": "lookup", "call_id": "c2", "arguments": "{\"q\":\"b\"}"},
                    {"name": "lookup", "call_id": "c3", "arguments": "{\"q\":\"c\"}"}]}]},
                {"play": [{"text": {"chunks": ["All three."]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let mut events = start(rig, &session).await?;
        let mut seen = Observed::default();
        let mut open = Vec::new();
        while open.len() < 3 {
            open.push(seen.call(&mut events).await?);
        }
        let ids: BTreeSet<_> = open.iter().map(|call| call.call_id.clone()).collect();
        assert_eq!(ids.len(), 3);
        open.reverse();
        for call in &open {
            let asked = text(call.arguments.as_ref());
            session.submit(vec![text_result("t-1", &call.call_id, &format!("result of {asked}"))]).await?;
        }
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        let receipts: BTreeSet<_> = seen.kinds().filter_map(applied).map(|one| one.call_id).collect();
        assert_eq!(receipts, ids);
        let request = &rig.provider.model_requests()[1];
        for (native, letter) in [("c1", "a"), ("c2", "b"), ("c3", "c")] {
            let output = request.output(native).map(|output| output.to_string()).unwrap_or_default();
            assert!(
                output.contains("result of") && output.contains(&format!(r#"q\\\":\\\"{letter}"#))
                    || output.contains(&format!(r#"q\":\"{letter}"#)),
                "{native}: {output}"
            );
        }
        Ok(())
    });
}

fn what_failed_has_its_words_at_the_model(harness: Harness) {
    scenario("acp_dispositions", &["R-FN-4", "R-FN-9"], declaring(harness), async |rig| {
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
            (None, "the cellar is flooded"),
        ];
        let steps = cases.iter().enumerate().map(|(n, _)| {
            format!(r#"{{"play": [{{"calls": [{{"name": "lookup", "call_id": "c{n}", "arguments": "{{\"q\":\"{n}\"}}"}}]}}]}}"#)
        });
        let last = r#"{"play": [{"text": {"chunks": ["All failed."]}}]}"#.to_owned();
        let steps: Vec<_> = steps.chain([last]).collect();
        rig.provider.script(&format!("[{}]", steps.join(",")))?;
        let session = rig.session().await?;
        let mut events = start(rig, &session).await?;
        let mut seen = Observed::default();
        for (n, (disposition, words)) in cases.iter().enumerate() {
            let call = seen.call(&mut events).await?;
            let error = disposition
                .is_none()
                .then(|| v1::NullableText { value: Some(v1::nullable_text::Value::Text((*words).to_owned())) });
            let failed = v1::FunctionResult {
                success: Some(false),
                output: None,
                error,
                disposition: disposition.map(Into::into),
                ..text_result("t-1", &call.call_id, "")
            };
            session.submit(vec![failed]).await?;
            let receipt = seen.until(&mut events, applied).await?;
            assert_eq!((receipt.call_id, receipt.success), (call.call_id, false));
            let requests = rig.provider.wait_for(|requests| requests.len() == n + 2).await?;
            let output = requests[n + 1].output(&format!("c{n}")).map(|output| output.to_string()).unwrap_or_default();
            assert!(output.contains(words), "{n}: {output}");
        }
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!(seen.end()?.tool_errors.len(), cases.len());
        Ok(())
    });
}

fn a_call_that_waits_ends_with_its_cancel(harness: Harness) {
    scenario("acp_cancel_call", &["R-CAN-1", "R-FN-7", "R-CAN-3"], declaring(harness).patient(), async |rig| {
        rig.provider.script(
            r#"[{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{\"q\":\"x\"}"}]}]}]"#,
        )?;
        let session = rig.session().await?;
        let mut events = start(rig, &session).await?;
        let mut seen = Observed::default();
        let call = seen.call(&mut events).await?;
        let answer = session.cancel("t-1", None).await?;
        assert_eq!(answer.outcome(), v1::CancelOutcome::Settled);
        let seen = seen.to_the_end(&mut events).await?;
        assert_eq!(seen.end()?.status(), TurnStatus::Cancelled);
        assert_eq!(
            seen.kinds().filter_map(abandoned).map(|one| one.call_id).collect::<Vec<_>>(),
            std::slice::from_ref(&call.call_id)
        );
        refused(session.submit(vec![text_result("t-1", &call.call_id, "late")]).await, Reason::TurnCancelled)?;
        // Another process goes on with the same history.
        rig.provider.reset();
        let ready = rig.prepare_again(&session, rig.configuration(vec![function("lookup", SCHEMA)])).await?;
        let next = rig.turn_with(&session, &ready, "t-2", "and now").await?;
        next.completed()?;
        assert_eq!(next.native_session()?, seen.native_session()?);
        Ok(())
    });
}

#[test]
fn functions_that_are_not_listed_in_time_fail_the_turn_before_a_call() {
    let faults = Faults { discovery_ms: Some(1), discovery_delay_ms: 50, ..Faults::default() };
    let setup = Setup::double(faults).only("the double misses its own limit of discovery when it is told to");
    scenario("acp_unlisted", &["R-FN-2", "R-EVT-5"], setup, async |rig| {
        let session = rig.session().await?;
        let mut events = start(rig, &session).await?;
        let seen = Observed::default().to_the_end(&mut events).await?;
        let end = seen.end()?;
        let failure = end.failure.clone().context("it did not fail")?;
        assert_eq!((end.status(), failure.code()), (TurnStatus::Failed, FailureCode::HarnessProtocolError));
        assert!(failure.message.contains("functions"), "{failure:?}");
        assert_eq!(seen.kinds().filter(|kind| matches!(kind, Kind::FunctionCall(_))).count(), 0);
        Ok(())
    });
}

#[test]
fn functions_that_are_not_listed_within_their_limit_fail_the_turn_while_the_agent_still_looks_for_them() {
    let faults = Faults { discovery_ms: Some(120_000), discovery_delay_ms: 60_000, ..Faults::default() };
    let setup = Setup::double(faults).only("the double looks for the functions as late as it is told to");
    scenario(
        "acp_unlisted_late",
        &["R-FN-2", "R-EVT-5"],
        setup.with("limits.functions_listed_ms = 2000"),
        async |rig| {
            let session = rig.session().await?;
            let mut events = start(rig, &session).await?;
            let seen = Observed::default().to_the_end(&mut events).await?;
            let failure = seen.end()?.failure.clone().context("it did not fail")?;
            assert_eq!(failure.code(), FailureCode::HarnessProtocolError);
            assert!(failure.message.contains("functions"), "{failure:?}");
            assert_eq!(rig.provider.requests().len(), 0, "the model was asked without the functions");
            Ok(())
        },
    );
}

#[test]
fn a_call_that_the_agent_gives_up_is_abandoned_and_its_late_result_is_refused() {
    let faults = Faults { call_ms: Some(1500), ..Faults::default() };
    let setup = Setup::double(faults).only("its limit of 120 s for a call is shortened for it");
    scenario("acp_given_up", &["R-FN-5", "R-FN-7", "R-FN-8"], setup, async |rig| {
        rig.provider.script(
            r#"[{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{\"q\":\"x\"}"}]}]},
                {"play": [{"text": {"chunks": ["Too late."]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let mut events = start(rig, &session).await?;
        let mut seen = Observed::default();
        let call = seen.call(&mut events).await?;
        let given_up = seen.until(&mut events, abandoned).await?;
        assert_eq!((&given_up.call_id, given_up.reason()), (&call.call_id, v1::AbandonReason::NativeTimeout));
        refused(session.submit(vec![text_result("t-1", &call.call_id, "late")]).await, Reason::CallAbandoned)?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["Too late."]);
        Ok(())
    });
}

/// Where the double was told to find the functions, and with which header.
fn functions_of(rig: &Rig, pid: u32) -> anyhow::Result<(String, String)> {
    let read = String::from_utf8(mcode::received(&rig.double(), pid)?)?;
    for line in read.lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        let servers = message["params"]["mcpServers"].as_array().cloned().unwrap_or_default();
        if let Some(server) = servers.iter().find(|server| server["name"] == "functions") {
            let text = |value: &serde_json::Value| value.as_str().map(str::to_owned).context("it is no text");
            let headers = server["headers"].as_array().context("it has no headers")?;
            let named = |header: &&serde_json::Value| {
                header["name"].as_str().is_some_and(|name| name.eq_ignore_ascii_case("authorization"))
            };
            let bearer = headers.iter().find(named).context("it has no bearer")?;
            return Ok((text(&server["url"])?, text(&bearer["value"])?));
        }
    }
    anyhow::bail!("it was told of no functions: {read}")
}

/// Asks such a server for its functions by hand; gives the status.
async fn ask(url: &str, bearer: Option<&str>) -> anyhow::Result<u16> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let rest = url.strip_prefix("http://").context("another scheme")?;
    let (host, path) = rest.split_once('/').context("no path")?;
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
    let authorization = bearer.map(|bearer| format!("Authorization: {bearer}\r\n")).unwrap_or_default();
    let mut connection = tokio::net::TcpStream::connect(host).await?;
    let head = format!(
        "POST /{path} HTTP/1.1\r\nHost: {host}\r\nAccept: application/json, text/event-stream\r\nContent-Type: application/json\r\n{authorization}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(head.as_bytes()).await?;
    let mut answer = [0; 12];
    connection.read_exact(&mut answer).await?;
    Ok(std::str::from_utf8(&answer)?.trim_start_matches("HTTP/1.1 ").parse()?)
}

#[test]
fn no_server_of_functions_takes_the_bearer_of_another_session_or_none() {
    const SESSIONS: usize = 16;
    let setup = Setup::double(Faults::default()).with("max_executors = 16\n");
    let setup = setup.only("the double keeps what it was told, which a test can read");
    scenario("acp_bearers", &["R-SEC-1", "R-SEC-3"], setup, async |rig| {
        for _ in 0..SESSIONS {
            let session = rig.session().await?;
            rig.prepare(&session, rig.configuration(vec![function("lookup", SCHEMA)])).await?;
        }
        let served =
            rig.harnesses()?.iter().map(|one| functions_of(rig, one.pid)).collect::<anyhow::Result<Vec<_>>>()?;
        assert_eq!(served.iter().collect::<BTreeSet<_>>().len(), SESSIONS);
        for (at, (url, own)) in served.iter().enumerate() {
            assert_eq!(ask(url, Some(own)).await?, 200, "its own bearer is taken");
            assert!(matches!(ask(url, None).await?, 401 | 404));
            assert!(matches!(ask(url, Some("Bearer ")).await?, 401 | 404));
            for (other, (_, bearer)) in served.iter().enumerate() {
                let status = ask(url, Some(bearer)).await?;
                assert_eq!(status == 200, other == at, "{other} at {at}: {status}");
            }
        }
        Ok(())
    });
}

/// The real opencode, of which the daemon is told no more than of any agent: how it is started, and what is written into its home.
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

/// A daemon that hosts an agent of which nothing is known.
#[expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]
fn plain() -> Setup {
    let program = conformance::rig::opencode().unwrap();
    let setup = Setup { harness: Harness::Opencode, ..Setup::outer() };
    let setup = setup.with(&PLAIN.replace("{program}", program.to_str().unwrap()));
    setup.only("any agent would do, and this one is there")
}

#[test]
fn an_agent_of_which_nothing_is_known_starts_a_server_that_is_a_process() {
    scenario("acp_generic_stdio", &["R-MCP-3", "R-MCP-4"], plain(), async |rig| {
        rig.provider.script(&calling("local.environment", &serde_json::json!({})))?;
        let program = program("runtime-bridge-conformance")?;
        let (program, cwd) = (program.to_string_lossy(), rig.workspace().to_string_lossy());
        let server = stdio_server("local", &program, &["mcp-stdio", "--", "an argument"], &cwd, &[]);
        let plain = served_by([server], rig.configuration(Vec::new()));
        let configuration = v1::ExecutionConfiguration { harness: "plain".into(), ..plain };
        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, configuration, "t-1", "look").await?;
        Observed::default().to_the_end(&mut events).await?.completed()?;
        // What it answered is what the model reads.
        let read = rig.provider.requests().pop().context("the model was asked nothing")?.body;
        for part in ["an argument", "RUNTIME_BRIDGE_MCP", &cwd] {
            assert!(read.contains(part), "{part} is not in {read}");
        }
        assert!(!read.contains("runtime-bridge-placeholder"), "the server has the agent's variables: {read}");
        Ok(())
    });
}

#[test]
fn an_agent_of_which_nothing_is_known_calls_a_function() {
    scenario("acp_generic", &["R-CAP-1", "R-FN-2", "R-FN-6"], plain(), async |rig| {
        let info = rig.client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
        let declared = info.harnesses.into_iter().find(|one| one.kind == "plain").context("it is not hosted")?;
        assert!(declared.available && !declared.qualified, "{declared:?}");
        assert!(declared.none.is_empty() && !declared.workspace().any(|one| one == v1::Capability::SessionResume));
        rig.provider.script(
            r#"[{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{\"q\":\"life\"}"}]}]},
                {"play": [{"text": {"chunks": ["It is 42."]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let plain = rig.configuration(vec![function("lookup", SCHEMA)]);
        let configuration = v1::ExecutionConfiguration { harness: "plain".into(), ..plain };
        let mut events = rig.start_turn(&session, configuration, "t-1", "look it up").await?;
        let mut seen = Observed::default();
        let call = seen.call(&mut events).await?;
        session.submit(vec![text_result("t-1", &call.call_id, "the answer is 42")]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["It is 42."]);
        assert_eq!(seen.kinds().filter_map(applied).map(|one| one.call_id).collect::<Vec<_>>(), [call.call_id]);
        Ok(())
    });
}
