//! MCP servers as Claude Code has them: it is told of them through its input, says which tools it found, and the bridge says which of these the model
//! may use (R-MCP-1, R-MCP-5). A server that is a process is started with the variables that are meant for it and no others (R-MCP-4).

use std::collections::BTreeMap;

use anyhow::Context;
use conformance::mcp::{Fault, Refusing, Request, Script, Server};
use conformance::rig::{
    Harness, MODEL_KEY, Observed, Rig, Setup, files_with, nowhere, program, refusal, refused, scenario,
};
use proto::client::{Session, text_input};
use proto::v1::{
    self, Capability, McpOrigin, Reason, ToolStatus, event::Kind, mcp_server::Transport, tool::Kind as Tool,
};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Why it is looked at for one Harness alone.
const OWN: &str = "how servers are named, hidden and started is Claude Code's own";

fn claude() -> Setup {
    let setup = Setup { harness: Harness::ClaudeCode, ..Setup::outer() }.only(OWN);
    setup.needing(Capability::McpHttpTools)
}

fn http(label: &str, url: &str) -> v1::McpServer {
    let transport = Transport::Http(v1::McpHttp { url: url.into(), ..Default::default() });
    v1::McpServer {
        label: label.into(),
        transport: Some(transport),
        origin: McpOrigin::Environment.into(),
        ..Default::default()
    }
}

fn allowing(names: &[&str], server: v1::McpServer) -> v1::McpServer {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    v1::McpServer { allowed_tools: Some(v1::AllowedTools { names }), ..server }
}

fn stdio(rig: &Rig, label: &str, args: &[&str]) -> anyhow::Result<v1::McpServer> {
    let command = program("runtime-bridge-conformance")?.to_str().context("a path")?.to_owned();
    let cwd = rig.workspace().to_str().context("a path")?.to_owned();
    let args = ["mcp-stdio"].iter().chain(args).map(|arg| (*arg).to_owned()).collect();
    let transport = Transport::Stdio(v1::McpStdio { command, args, cwd, env_vars: Vec::new() });
    Ok(v1::McpServer { transport: Some(transport), ..http(label, "") })
}

fn with(servers: Vec<v1::McpServer>, mut of: v1::ExecutionConfiguration) -> v1::ExecutionConfiguration {
    of.tools.get_or_insert_default().mcp_servers = servers;
    of
}

fn calls(calls: &[(&str, Value)]) -> Value {
    let call = |(index, (name, arguments)): (usize, &(&str, Value))| json!({"name": name, "call_id": format!("c{index}"), "arguments": arguments.to_string()});
    json!({"play": [{"calls": calls.iter().enumerate().map(call).collect::<Vec<_>>()}]})
}

fn says(text: &str) -> Value {
    json!({"play": [{"text": {"chunks": [text]}}]})
}

async fn turn(rig: &Rig, session: &Session, of: v1::ExecutionConfiguration, id: &str) -> anyhow::Result<Observed> {
    let mut events = rig.start_turn(session, of, id, "look it up").await?;
    let seen = Observed::default().to_the_end(&mut events).await?;
    seen.completed()?;
    Ok(seen)
}

/// The calls of MCP tools of a Turn, with how they ended.
fn called(seen: &Observed) -> Vec<(ToolStatus, &v1::McpCall)> {
    fn ended(kind: &Kind) -> Option<(ToolStatus, &v1::McpCall)> {
        let Kind::ToolCompleted(end) = kind else { return None };
        match end.tool.as_ref()?.kind.as_ref()? {
            Tool::McpCall(call) => Some((end.status(), call)),
            _ => None,
        }
    }
    seen.kinds().filter_map(ended).collect()
}

fn text(content: Option<&v1::Content>) -> &str {
    match content.and_then(|content| content.place.as_ref()) {
        Some(v1::content::Place::Text(text)) => text,
        Some(v1::content::Place::Payload(_)) | None => "",
    }
}

fn result(call: &v1::McpCall) -> anyhow::Result<Value> {
    serde_json::from_str(text(call.result.as_ref())).with_context(|| format!("no result: {call:?}"))
}

/// The text of a result that has one part.
fn only_text(call: &v1::McpCall) -> anyhow::Result<String> {
    let result = result(call)?;
    Ok(result["content"][0]["text"].as_str().with_context(|| format!("no text: {result}"))?.to_owned())
}

fn notices<'a>(seen: &'a Observed, code: &str) -> Vec<&'a str> {
    let notice = |kind: &'a Kind| match kind {
        Kind::Notice(notice) if notice.code == code => Some(notice.message.as_str()),
        _ => None,
    };
    seen.kinds().filter_map(notice).collect()
}

/// What the model was offered of servers, by one request.
fn offered(rig: &Rig, request: usize) -> Vec<String> {
    let requests = rig.provider.model_requests();
    let all = requests.get(request).map(|request| request.tools()).unwrap_or_default();
    all.into_iter().filter(|tool| tool.contains('.')).collect()
}

#[test]
fn a_server_of_the_environment_is_called_under_its_own_names() {
    let rules = ["R-MCP-1", "R-MCP-5", "R-MCP-6", "R-EVT-2"];
    scenario("claude_servers", &rules, claude(), async |rig| {
        let server = Server::start(Script { more: vec!["odd.name".into()], ..Default::default() }).await?;
        let mut tickets = http("tickets", &server.url());
        if let Some(Transport::Http(http)) = &mut tickets.transport {
            http.headers.push(v1::McpHeader { name: "X-Team".into(), value: "plums $HOME".into() });
        }
        let asks = calls(&[
            ("mcp__tickets__echo", json!({"text": "one"})),
            ("mcp__tickets__odd_name", json!({"text": "two"})),
            ("mcp__tickets__failing", json!({})),
            ("mcp__tickets__structured", json!({})),
        ]);
        rig.provider.script(&json!([asks, says("Found.")]).to_string())?;
        let session = rig.session().await?;
        let seen = turn(rig, &session, with(vec![tickets], rig.configuration(Vec::new())), "t-1").await?;
        assert_eq!(seen.messages(), ["Found."]);
        let all = called(&seen);
        let mut told: Vec<_> = all.iter().map(|(status, call)| (&*call.tool, *status)).collect();
        told.sort_unstable_by_key(|(tool, _)| *tool);
        let done = ToolStatus::Completed;
        let want = [("echo", done), ("failing", ToolStatus::Failed), ("odd.name", done), ("structured", done)];
        assert_eq!(told, want);
        assert!(all.iter().all(|(_, call)| call.server == "tickets"));
        let of = |tool: &str| all.iter().find(|(_, call)| call.tool == tool).map(|(_, call)| *call).context("no call");
        assert_eq!((text(of("echo")?.arguments.as_ref()), &*only_text(of("echo")?)?), (r#"{"text":"one"}"#, "one"));
        assert!(result(of("structured")?)?["structuredContent"].is_object());
        assert_eq!(result(of("failing")?)?["isError"], true);
        let mut at_server = server.calls();
        at_server.sort_unstable();
        assert_eq!(at_server, ["echo", "failing", "odd.name", "structured"]);
        for request in server.requests() {
            // What Claude Code sends there is for the gateway alone.
            assert_eq!((request.header("authorization"), request.header("x-team")), (None, Some("plums $HOME")));
        }
        Ok(())
    });
}

#[test]
fn a_server_without_a_bearer_gets_a_blank_one() {
    scenario("claude_blank", &["R-MCP-6"], claude().without_gateway(), async |rig| {
        let server = Server::start(Script::default()).await?;
        // Claude Code would look for a login here, were there none.
        let closed = Server::start(Script { bearer: Some("another".into()), ..Default::default() }).await?;
        rig.provider.script(&json!([says("Done.")]).to_string())?;
        let session = rig.session().await?;
        let both = vec![http("open", &server.url()), http("closed", &closed.url())];
        let seen = turn(rig, &session, with(both, rig.configuration(Vec::new())), "t-1").await?;
        assert_eq!(notices(&seen, "mcp_unavailable").len(), 1, "{seen:?}");
        for request in [server.requests(), closed.requests()].concat() {
            assert_eq!((request.header("authorization"), &*request.path), (Some(""), "/mcp"), "{request:?}");
        }
        Ok(())
    });
}

fn of_service(server: v1::McpServer) -> v1::McpServer {
    v1::McpServer { origin: McpOrigin::Service.into(), ..server }
}

fn with_bearer(mut server: v1::McpServer) -> v1::McpServer {
    if let Some(Transport::Http(http)) = &mut server.transport {
        http.bearer = true;
    }
    server
}

#[test]
fn without_a_workspace_a_server_of_the_service_offers_what_is_allowed_and_nothing_else() {
    let rules = ["R-MCP-1", "R-MCP-7", "R-CTL-4", "R-PRE-5"];
    let setup = claude().needing_under(v1::Placement::None, Capability::McpHttpRequired).beside(Script::default());
    scenario("claude_servers_nowhere", &rules, setup, async |rig| {
        let tickets =
            v1::McpServer { required: true, ..of_service(allowing(&["echo"], http("tickets", &rig.mcp().url()))) };
        let asks = calls(&[("mcp__tickets__echo", json!({"text": "one"})), ("mcp__tickets__failing", json!({}))]);
        rig.provider.script(&json!([asks, says("Found.")]).to_string())?;
        let session = rig.session_nowhere().await?;
        let of = nowhere(with(vec![tickets], rig.configuration(Vec::new())));
        rig.mcp().fail(None, Fault::Dropped);
        let failed = rig.prepare(&session, of.clone()).await;
        refusal(failed, Reason::PreparationFailed).with("step", "mcp").says("`tickets`").hides("127.0.0.1");
        rig.mcp().heal();
        let seen = turn(rig, &session, of, "t-1").await?;
        assert_eq!(rig.provider.model_requests()[0].tools(), ["tickets.echo"]);
        assert_eq!(rig.mcp().calls(), ["echo"]);
        assert_eq!(seen.messages(), ["Found."]);
        Ok(())
    });
}

/// A Turn with a server that wants a bearer: it has it, and Claude Code has none where the gateway puts it in.
async fn bearer(rig: &mut Rig, placement: v1::Placement, held: bool) -> anyhow::Result<()> {
    let tickets = v1::McpServer { required: true, ..with_bearer(http("tickets", &rig.mcp().url())) };
    let asks = calls(&[("mcp__tickets__echo", json!({"text": "one"}))]);
    rig.provider.script(&json!([asks, says("Found.")]).to_string())?;
    let of = rig.configuration(Vec::new());
    let (session, of) = match placement {
        v1::Placement::None => (rig.session_nowhere().await?, nowhere(with(vec![of_service(tickets)], of))),
        _ => (rig.session().await?, with(vec![tickets], of)),
    };
    let credential = |name: &str, value: &str| v1::Credential { name: name.into(), value: value.into() };
    let keys = vec![credential("model", MODEL_KEY), credential("mcp:tickets", BEARER)];
    let ready = session.prepare(of, keys).await?;
    session.start(&ready, "t-1", text_input("look it up")).await?;
    let seen = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
    seen.completed()?;
    assert_eq!(only_text(called(&seen)[0].1)?, "one");
    assert!(rig.mcp().requests().iter().all(|request| request.bearer() == Some(BEARER)));
    let family = rig.family()?;
    assert!(family.iter().all(|process| !process.shows(BEARER)), "an argument or a variable has the bearer");
    let files = files_with(rig.place().root(), BEARER)?;
    assert!(files.is_empty(), "{files:?}");
    let requests = rig.provider.model_requests();
    assert!(requests.iter().all(|request| !request.body.contains(BEARER)), "the model was shown the bearer");
    // What it is told it sends: with the gateway that is no bearer at all.
    let routes = rig.gateway().is_ok();
    assert_eq!(routes, !held);
    Ok(())
}

const BEARER: &str = "bearer-canary-7f3a";
const BEARER_RULES: [&str; 3] = ["R-MCP-2", "R-MCP-3", "R-SEC-3"];

fn wanting_a_bearer(placement: v1::Placement) -> Setup {
    let script = Script { bearer: Some(BEARER.into()), ..Script::default() };
    claude().needing_under(placement, Capability::McpHttpBearerAuth).beside(script)
}

#[test]
fn a_bearer_reaches_its_server_and_no_one_else() {
    let placement = v1::Placement::Workspace;
    let setup = wanting_a_bearer(placement);
    scenario("claude_bearer", &BEARER_RULES, setup, async |rig| bearer(rig, placement, false).await);
}

#[test]
fn without_a_workspace_a_bearer_reaches_its_server_and_no_one_else() {
    let placement = v1::Placement::None;
    let setup = wanting_a_bearer(placement);
    scenario("claude_bearer_nowhere", &BEARER_RULES, setup, async |rig| bearer(rig, placement, false).await);
}

#[test]
fn without_the_gateway_a_bearer_reaches_its_server_and_no_one_else() {
    let placement = v1::Placement::Workspace;
    let setup = wanting_a_bearer(placement).without_gateway();
    scenario("claude_bearer_held", &BEARER_RULES, setup, async |rig| bearer(rig, placement, true).await);
}

#[test]
fn what_is_not_allowed_is_neither_offered_nor_called() {
    scenario("claude_hidden", &["R-MCP-1", "R-CTL-2"], claude(), async |rig| {
        let server = Server::start(Script::default()).await?;
        let some = allowing(&["echo", "nothing"], http("some", &server.url()));
        let none = allowing(&[], http("none", &server.url()));
        let search = json!({"query": "select:mcp__some__echo,mcp__some__failing,mcp__none__echo"});
        let asks = calls(&[
            ("mcp__some__echo", json!({"text": "a"})),
            ("mcp__some__failing", json!({})),
            ("mcp__none__echo", json!({"text": "b"})),
        ]);
        rig.provider.script(&json!([calls(&[("ToolSearch", search)]), asks, says("Done.")]).to_string())?;
        let session = rig.session().await?;
        turn(rig, &session, with(vec![some, none], rig.configuration(Vec::new())), "t-1").await?;
        assert_eq!(server.calls(), ["echo"]);
        let announced = rig.provider.model_requests()[0].announced();
        let of_servers: Vec<_> = announced.iter().filter(|tool| tool.starts_with("mcp__")).collect();
        assert_eq!(of_servers, ["mcp__some__echo"]);
        assert_eq!(offered(rig, 1), ["some.echo"]);
        Ok(())
    });
}

#[test]
fn a_required_server_that_is_not_there_fails_the_preparation() {
    let setup = claude().needing(Capability::McpHttpRequired);
    scenario("claude_required", &["R-PRE-5", "R-MCP-3"], setup, async |rig| {
        let gone = Refusing::start()?;
        let session = rig.session().await?;
        let required = v1::McpServer { required: true, ..http("gone", &gone.url()) };
        let of = with(vec![required.clone()], rig.configuration(Vec::new()));
        let failed = refused(rig.prepare(&session, of).await, Reason::PreparationFailed)?;
        assert_eq!(failed.metadata.get("step").map(String::as_str), Some("mcp"), "{failed:?}");
        assert!(failed.message.contains("the required MCP server `gone` is not there"), "{failed:?}");
        let gateway = "the gateway says of gone: the MCP server cannot be connected to";
        assert!(failed.message.contains(gateway) && !failed.message.contains("model provider"), "{failed:?}");
        assert!(!failed.message.contains("127.0.0.1"), "{failed:?}");

        // The same one where it is there, on the same Session.
        let server = Server::start(Script::default()).await?;
        let required = v1::McpServer { required: true, ..http("gone", &server.url()) };
        rig.provider
            .script(&json!([calls(&[("mcp__gone__echo", json!({"text": "here"}))]), says("Done.")]).to_string())?;
        let seen = turn(rig, &session, with(vec![required], rig.configuration(Vec::new())), "t-1").await?;
        assert_eq!(only_text(called(&seen)[0].1)?, "here");
        Ok(())
    });
}

#[test]
fn without_an_optional_server_a_turn_works_and_says_so() {
    scenario("claude_optional", &["R-PRE-5"], claude(), async |rig| {
        let gone = Refusing::start()?;
        let server = Server::start(Script::default()).await?;
        let of = || with(vec![http("gone", &gone.url()), http("here", &server.url())], rig.configuration(Vec::new()));
        let asks = calls(&[("mcp__here__echo", json!({"text": "x"}))]);
        rig.provider.script(&json!([asks, says("Done."), says("Again.")]).to_string())?;
        let session = rig.session().await?;
        let seen = turn(rig, &session, of(), "t-1").await?;
        let told = notices(&seen, "mcp_unavailable");
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].starts_with("the MCP server `gone` is not there") && !told[0].contains("127.0.0.1"),
            "{told:?}"
        );
        assert_eq!(server.calls(), ["echo"]);
        let again = turn(rig, &session, of(), "t-2").await?;
        assert_eq!(notices(&again, "mcp_unavailable"), told);
        Ok(())
    });
}

/// A tool that appears later is not called at all, and not offered any more once Claude Code was told so.
#[test]
fn a_list_that_changes_changes_nothing() {
    scenario("claude_grown", &["R-MCP-5"], claude(), async |rig| {
        let server = Server::start(Script::default()).await?;
        let of = || with(vec![http("tickets", &server.url())], rig.configuration(Vec::new()));
        let grow = calls(&[("mcp__tickets__grow", json!({}))]);
        let grown = json!({"play": [{"gate": "listed"}, {"text": {"chunks": ["Grown."]}}]});
        let late = || calls(&[("mcp__tickets__late", json!({}))]);
        rig.provider.script(&json!([grow, grown, late(), says("Done."), late(), says("Done.")]).to_string())?;
        let session = rig.session().await?;
        let first = async {
            let is_list = |request: &Request| request.asks().as_deref() == Some("tools/list");
            server.wait_for(|requests| requests.iter().filter(|request| is_list(request)).count() > 1).await?;
            rig.provider.open_gate("listed");
            anyhow::Ok(())
        };
        let (seen, listed) = tokio::join!(turn(rig, &session, of(), "t-1"), first);
        seen?;
        listed?;
        let seen = turn(rig, &session, of(), "t-2").await?;
        let is_late = |seen: &Observed| match called(seen)[..] {
            [(status, call)] => status != ToolStatus::Completed && call.tool == "late",
            _ => false,
        };
        assert!(is_late(&seen), "{seen:?}");
        assert_eq!(notices(&seen, "mcp_tools_changed").len(), 1, "{seen:?}");
        let seen = turn(rig, &session, of(), "t-3").await?;
        assert!(is_late(&seen), "{seen:?}");
        assert_eq!(notices(&seen, "mcp_tools_changed"), [""; 0]);
        assert_eq!(server.calls(), ["grow"]);
        Ok(())
    });
}

#[test]
fn a_question_of_a_server_is_declined_and_told() {
    scenario("claude_elicitation", &["R-PLC-1"], claude(), async |rig| {
        // Later versions of the protocol have no questions of this form.
        let asking = Server::start(Script { sessions: true, ..Default::default() }).await?;
        let server = http("asks", &asking.url());
        rig.provider.script(&json!([calls(&[("mcp__asks__ask", json!({}))]), says("Done.")]).to_string())?;
        let session = rig.session().await?;
        let seen = turn(rig, &session, with(vec![server], rig.configuration(Vec::new())), "t-1").await?;
        assert!(only_text(called(&seen)[0].1)?.contains("decline"), "{seen:?}");
        assert_eq!(notices(&seen, "request_declined").len(), 1);
        Ok(())
    });
}

/// What the tool `environment` of the server says.
fn environment(seen: &Observed) -> anyhow::Result<Value> {
    let (_, call) = *called(seen).first().context("no call")?;
    Ok(serde_json::from_str(&only_text(call)?)?)
}

#[test]
fn a_process_has_the_base_and_nothing_of_claude() {
    let rules = ["R-MCP-4", "R-SEC-2", "R-CAN-2"];
    scenario("claude_stdio", &rules, claude(), async |rig| {
        let server = stdio(rig, "tool-box", &["--", "a${HOME}b", "\\d", ""])?;
        let of = || with(vec![server.clone()], rig.configuration(Vec::new()));
        let asks = || calls(&[("mcp__tool-box__environment", json!({}))]);
        rig.provider.script(&json!([asks(), says("One."), asks(), says("Two.")]).to_string())?;
        let session = rig.session().await?;
        let seen = turn(rig, &session, of(), "t-1").await?;
        let told = environment(&seen)?;
        let argv: Vec<String> = serde_json::from_value(told["argv"].clone())?;
        assert_eq!(argv[1..], ["mcp-stdio", "--", "a${HOME}b", "\\d", ""]);
        assert_eq!(told["cwd"].as_str(), rig.workspace().to_str());
        let variables: BTreeMap<String, String> = serde_json::from_value(told["env"].clone())?;
        let names: Vec<_> = variables.keys().map(String::as_str).collect();
        assert_eq!(names, ["HOME", "LANG", "LC_ALL", "PATH", "RUNTIME_BRIDGE_MARK", "RUNTIME_BRIDGE_MCP", "TMPDIR"]);
        // It is declared, so the end of a Turn is not its end.
        let again = environment(&turn(rig, &session, of(), "t-2").await?)?;
        assert_eq!(again["pid"], told["pid"]);
        session.release(false).await?;
        rig.only(&[]).await
    });
}

#[test]
fn what_cannot_be_told_apart_or_would_be_replaced_is_refused() {
    scenario("claude_labels", &["R-MCP-1", "R-MCP-5"], claude(), async |rig| {
        let session = rig.session().await?;
        let url = "http://127.0.0.1:1/mcp";
        let try_with = async |servers| {
            let of = with(servers, rig.configuration(Vec::new()));
            let model = v1::Credential { name: "model".into(), value: "k".into() };
            session.prepare(of, vec![model]).await
        };
        let labels = vec![http("a", url), http("a__b", url)];
        refusal(try_with(labels).await, Reason::UnsupportedConfiguration).says("could not tell their tools apart");
        refusal(try_with(vec![http("functions__a", url)]).await, Reason::UnsupportedConfiguration);
        Ok(())
    });
}

#[test]
fn a_conversation_that_goes_on_has_its_servers_again() {
    let setup = claude().needing(Capability::SessionResume);
    scenario("claude_servers_resumed", &["R-MCP-1", "R-PRE-4"], setup, async |rig| {
        let server = Server::start(Script::default()).await?;
        let of = || with(vec![http("tickets", &server.url())], rig.configuration(Vec::new()));
        let asks = |text: &str| calls(&[("mcp__tickets__echo", json!({"text": text}))]);
        rig.provider.script(&json!([asks("one"), says("One."), asks("two"), says("Two.")]).to_string())?;
        let session = rig.session().await?;
        let seen = turn(rig, &session, of(), "t-1").await?;
        let native = seen.native_session()?;
        rig.wait_for_history("One.").await?;
        rig.harness()?.signal(Signal::KILL)?;
        rig.executor_gone(&session).await?;
        let ready = rig.resume(&session, of(), &native).await?;
        session.start(&ready, "t-2", text_input("again")).await?;
        let mut events = session.turn_events("t-2");
        let seen = Observed::default().to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!(only_text(called(&seen)[0].1)?, "two");
        assert_eq!(server.calls(), ["echo", "echo"]);
        Ok(())
    });
}
