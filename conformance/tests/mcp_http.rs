//! MCP servers over HTTP: their tools, headers and bearers, and what is told of a call (R-MCP-1, R-MCP-3, R-MCP-5).

use conformance::for_each_harness;
use conformance::mcp::{Fault, Script, Server};
use conformance::provider::Recorded;
use conformance::rig::{
    Daemon, Harness, MODEL_KEY, Observed, Rig, Setup, bearer, called_by, calling, files_with, http_server, nowhere,
    refusal, scenario, served_by,
};
use proto::client::{Session, text_input};
use proto::v1::{self, CredentialOutcome, Reason};
use serde_json::json;

for_each_harness!(
    the_model_has_the_allowed_tools_and_calls_them,
    a_bearer_is_put_in_by_the_gateway_and_can_be_swapped,
    without_the_gateway_the_harness_sends_the_bearer_itself,
    without_a_workspace_servers_of_the_service_are_there,
    a_resumed_session_has_the_same_servers,
);

const LABEL: &str = "tickets";
const BEARER: &str = "mcp-canary-3f9a";
const FRESH: &str = "mcp-canary-fresh-77c1";

fn credentials(bearer: &str) -> Vec<v1::Credential> {
    let of = |name: &str, value: &str| v1::Credential { name: name.into(), value: value.into() };
    vec![of("model", MODEL_KEY), of("mcp:tickets", bearer)]
}

fn echoes(text: &str) -> String {
    calling("tickets.echo", &json!({ "text": text }))
}

/// The tools of the server that the model knows of: Claude Code has it search for them.
fn known_of(harness: Harness, request: &Recorded) -> Vec<String> {
    match harness {
        Harness::Codex | Harness::MinimaxCode | Harness::Opencode => called_by(request, LABEL),
        Harness::ClaudeCode => {
            let prefix = format!("mcp__{LABEL}__");
            let announced = request.announced();
            let mut names: Vec<_> =
                announced.iter().filter_map(|tool| tool.strip_prefix(&prefix).map(str::to_owned)).collect();
            names.sort();
            names
        }
    }
}

/// A call of `echo` as it has to be seen.
fn has_echoed(seen: &Observed, text: &str) -> anyhow::Result<()> {
    let calls = seen.mcp_calls();
    anyhow::ensure!(calls.len() == 1, "{calls:#?}");
    let call = &calls[0];
    assert_eq!((call.begun.server.as_str(), call.begun.tool.as_str()), (LABEL, "echo"));
    assert_eq!(call.arguments(), json!({ "text": text }));
    assert_eq!(call.begun.result, None);
    assert_eq!((call.call.server.as_str(), call.call.tool.as_str()), (LABEL, "echo"));
    assert_eq!((call.status, call.call.error.as_str()), (v1::ToolStatus::Completed, ""), "{call:#?}");
    anyhow::ensure!(call.result().to_string().contains(text), "{call:#?}");
    seen.completed()
}

/// Prepares with these credentials, and has a Turn.
async fn turn(
    rig: &Rig,
    session: &Session,
    configuration: v1::ExecutionConfiguration,
    credentials: Vec<v1::Credential>,
    turn_id: &str,
) -> anyhow::Result<Observed> {
    let ready = session.prepare(configuration, credentials).await?;
    rig.turn_with(session, &ready, turn_id, turn_id).await
}

fn the_model_has_the_allowed_tools_and_calls_them(harness: Harness) {
    let setup = Setup::outer().of(harness).needing(v1::Capability::McpHttpTools).beside(Script::default());
    scenario("mcp_tools", &["R-MCP-1", "R-MCP-5", "R-MCP-7", "R-CAP-2", "R-PLC-1"], setup, async |rig| {
        let names = |of: &[&str]| Some(v1::AllowedTools { names: of.iter().map(|&one| one.to_owned()).collect() });
        for (turn_id, allowed, want) in [
            ("some", names(&["echo", "erase", "nothing-of-this-name"]), vec!["echo", "erase"]),
            ("none", names(&[]), vec![]),
            ("all", None, vec!["echo", "headers", "structured"]),
        ] {
            if turn_id != "none" {
                rig.provider.script(&echoes(turn_id))?;
            }
            let mut server = http_server(LABEL, &format!("{}?tenant=blue&x=", rig.mcp().url()));
            if let Some(v1::mcp_server::Transport::Http(http)) = &mut server.transport {
                http.headers = vec![v1::McpHeader { name: "X-Api-Key".into(), value: "not a secret".into() }];
            }
            server.allowed_tools = allowed.clone();
            let session = rig.session().await?;
            let configuration = served_by([server], rig.configuration(Vec::new()));
            let ready = rig.prepare(&session, configuration).await?;
            let seen = rig.turn_with(&session, &ready, turn_id, turn_id).await?;
            let request = rig.provider.model_requests().into_iter().rfind(|request| request.body.contains(turn_id));
            let offered = request.map(|request| known_of(harness, &request)).unwrap_or_default();
            match allowed {
                Some(_) => assert_eq!(offered, want),
                None => assert!(want.iter().all(|tool| offered.iter().any(|one| one == tool)), "{offered:?}"),
            }
            match turn_id {
                "none" => seen.completed()?,
                _ => has_echoed(&seen, turn_id)?,
            }
            assert_eq!(seen.notices("mcp_unavailable"), [""; 0]);
            // A server is told of where no file keeps it.
            let sessions = rig.place().state().join("sessions");
            for text in ["mcp_servers", &rig.mcp().origin()] {
                let files = files_with(&sessions, text)?;
                assert!(files.is_empty(), "{text} is in {files:?}");
            }
            session.release(true).await?;
        }
        let requests = rig.mcp().requests();
        assert_eq!(rig.mcp().calls(), ["echo", "echo"]);
        for request in &requests {
            assert_eq!(request.path, "/mcp?tenant=blue&x=", "{request:#?}");
            assert_eq!(request.header("x-api-key"), Some("not a secret"), "{request:#?}");
            assert_eq!(request.header("authorization"), None, "{request:#?}");
            assert_eq!(request.header("host"), rig.mcp().origin().strip_prefix("http://"), "{request:#?}");
        }
        Ok(())
    });
}

/// Nothing of the Harness, and no file of the daemon, has the secret.
fn is_nowhere(rig: &Rig, secret: &str) -> anyhow::Result<()> {
    let family = rig.family()?;
    anyhow::ensure!(family.len() >= 2, "{family:#?}");
    let shown: Vec<_> = family.iter().filter(|process| process.shows(secret)).collect();
    anyhow::ensure!(shown.is_empty(), "the secret is in argv or environ of {shown:#?}");
    let held = files_with(rig.place().root(), secret)?;
    anyhow::ensure!(held.is_empty(), "the secret is in {held:?}");
    Ok(())
}

fn a_bearer_is_put_in_by_the_gateway_and_can_be_swapped(harness: Harness) {
    let rules = ["R-MCP-2", "R-MCP-3", "R-SEC-3", "R-PRE-6", "R-SEC-6"];
    let setup = Setup::outer().of(harness).with("log = \"debug\"").needing(v1::Capability::McpHttpBearerAuth);
    let script = Script { bearer: Some(BEARER.into()), ..Script::default() };
    scenario("mcp_bearer", &rules, setup.beside(script), async |rig| {
        let server = bearer(http_server(LABEL, &rig.mcp().url()));
        let configuration = served_by([server], rig.configuration(Vec::new()));
        let session = rig.session().await?;
        // What is missing, and what nothing asked for.
        let without = session.prepare(configuration.clone(), credentials(BEARER)[..1].to_vec()).await;
        refusal(without, Reason::InvalidRequest).at("credentials").says("`mcp:tickets` is needed").hides(BEARER);
        let unasked = session.prepare(rig.configuration(Vec::new()), credentials(BEARER)).await;
        refusal(unasked, Reason::InvalidRequest).at("credentials[1].name").hides(BEARER);
        let plain = served_by([bearer(http_server(LABEL, "http://127.0.0.1:9/mcp"))], rig.configuration(Vec::new()));
        let plain = session.prepare(plain, credentials(BEARER)).await;
        refusal(plain, Reason::UnsupportedConfiguration).says("allow_origins").hides(BEARER);

        rig.provider.script(&echoes("one"))?;
        let seen = turn(rig, &session, configuration.clone(), credentials(BEARER), "t-1").await?;
        has_echoed(&seen, "one")?;
        is_nowhere(rig, BEARER)?;
        let process = rig.harness()?.pid;

        // A fresh one holds at once; one of no declared server is for nobody.
        let of = |name: &str| v1::Credential { name: name.into(), value: FRESH.into() };
        refusal(session.update_credential(of("mcp:other")).await, Reason::InvalidRequest).at("credential.name");
        let taken = rig.mcp().requests().len();
        assert_eq!(session.update_credential(of("mcp:tickets")).await?, CredentialOutcome::InUse);
        rig.provider.script(&echoes("two"))?;
        let ready = session.prepare(configuration.clone(), credentials(FRESH)).await?;
        assert!(ready.reused);
        let seen = rig.turn_with(&session, &ready, "t-2", "t-2").await?;
        assert_eq!(rig.harness()?.pid, process, "there is another process");
        // The server wants the old one.
        let calls = seen.mcp_calls();
        assert_eq!(calls.len(), 1, "{calls:#?}");
        assert_ne!(calls[0].status, v1::ToolStatus::Completed);
        assert!(!format!("{:?}", seen.events).contains(FRESH));
        let requests = rig.mcp().requests();
        assert!(requests[..taken].iter().all(|request| request.bearer() == Some(BEARER)), "{requests:#?}");
        let fresh: Vec<_> = requests[taken..].iter().filter(|request| request.method == "POST").collect();
        assert!(!fresh.is_empty() && fresh.iter().all(|request| request.bearer() == Some(FRESH)), "{requests:#?}");
        is_nowhere(rig, FRESH)?;
        for secret in [BEARER, FRESH] {
            assert!(!rig.daemon.log_text().contains(secret), "the bearer is in the logs");
        }
        Ok(())
    });
}

fn without_the_gateway_the_harness_sends_the_bearer_itself(harness: Harness) {
    let setup = Setup::outer().of(harness).without_gateway().needing(v1::Capability::McpHttpBearerAuth);
    let script = Script { bearer: Some(BEARER.into()), ..Script::default() };
    scenario("mcp_bearer_held", &["R-MCP-2", "R-MCP-3", "R-PRE-6"], setup.beside(script), async |rig| {
        let server = bearer(http_server(LABEL, &rig.mcp().url()));
        let configuration = served_by([server], rig.configuration(Vec::new()));
        let session = rig.session().await?;
        rig.provider.script(&echoes("one"))?;
        let seen = turn(rig, &session, configuration.clone(), credentials(BEARER), "t-1").await?;
        has_echoed(&seen, "one")?;
        rig.mcp().wait_for(|requests| requests.iter().any(|request| request.bearer() == Some(BEARER))).await?;
        let update =
            session.update_credential(v1::Credential { name: "mcp:tickets".into(), value: FRESH.into() }).await;
        refusal(update, Reason::Unsupported).hides(FRESH);
        assert!(!rig.daemon.log_text().contains(BEARER), "the bearer is in the logs");
        let files: Vec<_> = files_with(rig.place().root(), BEARER)?;
        assert!(files.is_empty(), "the bearer is in {files:?}");
        Ok(())
    });
}

fn without_a_workspace_servers_of_the_service_are_there(harness: Harness) {
    let setup = Setup::outer().of(harness).needing_under(v1::Placement::None, v1::Capability::McpHttpRequired);
    let script = Script { bearer: Some(BEARER.into()), ..Script::default() };
    scenario("mcp_nowhere", &["R-CTL-4", "R-MCP-1", "R-MCP-7", "R-PRE-5"], setup.beside(script), async |rig| {
        let mut server = bearer(http_server(LABEL, &rig.mcp().url()));
        server.required = true;
        let configuration = nowhere(rig.configuration(Vec::new()));
        // An address that nobody allowed is judged by its text.
        let hidden = served_by([http_server(LABEL, "https://169.254.169.254/mcp")], configuration.clone());
        let session = rig.session_nowhere().await?;
        let hidden = rig.prepare(&session, hidden).await;
        refusal(hidden, Reason::UnsupportedConfiguration).says("link-local").hides("169.254");
        let configuration = served_by([server], configuration);
        rig.mcp().fail(None, Fault::Dropped);
        let failed = session.prepare(configuration.clone(), credentials(BEARER)).await;
        refusal(failed, Reason::PreparationFailed).with("step", "mcp").says(LABEL).hides(BEARER).hides("127.0.0.1");
        rig.mcp().heal();
        rig.provider.script(&echoes("one"))?;
        let seen = turn(rig, &session, configuration, credentials(BEARER), "t-1").await?;
        has_echoed(&seen, "one")?;
        let request = &rig.provider.model_requests()[0];
        let offered = called_by(request, LABEL);
        assert!(offered.iter().any(|tool| tool == "echo"), "{offered:?}");
        // Nothing else is, but for what docs/deviations.md says of Codex.
        let mut others: Vec<_> = request.tools().into_iter().filter(|tool| !tool.starts_with("tickets.")).collect();
        others.sort();
        match harness {
            Harness::Codex => assert_eq!(
                others,
                ["list_mcp_resource_templates", "list_mcp_resources", "read_mcp_resource", "web_search"]
            ),
            Harness::ClaudeCode => assert_eq!(others, [""; 0]),
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        }
        Ok(())
    });
}

fn a_resumed_session_has_the_same_servers(harness: Harness) {
    let setup = Setup::outer().of(harness).needing(v1::Capability::McpHttpTools).needing(v1::Capability::SessionResume);
    scenario("mcp_resume", &["R-PRE-4", "R-MCP-1", "R-MCP-2"], setup.beside(Script::default()), async |rig| {
        let configuration = served_by([http_server(LABEL, &rig.mcp().url())], rig.configuration(Vec::new()));
        let session = rig.session().await?;
        rig.provider.script(&echoes("one"))?;
        let ready = rig.prepare(&session, configuration.clone()).await?;
        session.start(&ready, "t-1", text_input("first")).await?;
        let seen = Observed::default().to_the_end(&mut session.turn_events("t-1")).await?;
        has_echoed(&seen, "one")?;
        let native = seen.native_session()?;
        rig.wait_for_history("Heard.").await?;
        let family = rig.family()?;
        rig.daemon.terminate().await?;
        rig.all_gone(&family).await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        // The server is another one by then, at another address: that is another configuration.
        let other = Server::start(Script::default()).await?;
        let moved = served_by([http_server(LABEL, &other.url())], rig.configuration(Vec::new()));
        refusal(rig.resume(&session, moved, &native).await, Reason::ConfigurationConflict);
        let ready = rig.resume(&session, configuration, &native).await?;
        rig.provider.script(&echoes("two"))?;
        let seen = rig.turn_with(&session, &ready, "t-2", "again").await?;
        has_echoed(&seen, "two")?;
        assert_eq!(rig.mcp().calls(), ["echo", "echo"]);
        Ok(())
    });
}

#[test]
fn a_model_that_searches_finds_the_tools() {
    let setup = Setup::outer().needing(v1::Capability::McpHttpTools);
    let setup = setup.only("Codex hides the tools of servers from the models of its catalogue until they search");
    scenario("mcp_searched", &["R-MCP-1", "R-MCP-5", "R-CTL-1"], setup.beside(Script::default()), async |rig| {
        let search = json!({"type": "tool_search_call", "id": "ts_1", "call_id": "ts-1", "execution": "client", "status": "completed",
            "arguments": {"query": "echo", "limit": 50}});
        let call =
            json!({"name": "echo", "namespace": "mcp__tickets", "call_id": "c-1", "arguments": "{\"text\":\"found\"}"});
        let steps = json!([
            {"after": "user", "play": [{"item": search}]},
            {"after": "outputs", "play": [{"calls": [call]}]},
            {"after": "outputs", "play": [{"text": {"chunks": ["Heard."]}}]},
        ]);
        rig.provider.script(&steps.to_string())?;
        let configuration = rig.configuration(Vec::new());
        let model = configuration.model.clone();
        let mut server = http_server(LABEL, &rig.mcp().url());
        server.allowed_tools = Some(v1::AllowedTools { names: vec!["echo".into()] });
        let configuration = v1::ExecutionConfiguration { model, ..served_by([server], configuration) };
        let session = rig.session().await?;
        let seen = turn(rig, &session, configuration, credentials(BEARER)[..1].to_vec(), "t-1").await?;
        has_echoed(&seen, "found")?;
        let requests = rig.provider.model_requests();
        assert_eq!(called_by(&requests[0], LABEL), [""; 0]);
        assert!(
            requests[1].body.contains("Gives the text") || requests[1].body.contains("mcp__tickets"),
            "{requests:#?}"
        );
        assert!(!requests[1].body.contains("erase"), "a tool that is not allowed is found");
        Ok(())
    });
}

/// What docs/deviations.md says of them: each has a name of its own to the model, and its real one in events.
#[test]
fn tools_whose_names_are_spelt_alike_are_told_apart() {
    let setup = Setup::outer().only("how the names of tools are spelt for the model is Codex's own");
    let setup = setup.needing(v1::Capability::McpHttpTools);
    let script = Script { more: vec!["a.b".into(), "a_b".into()], ..Script::default() };
    scenario("mcp_collides", &["R-MCP-5"], setup.beside(script), async |rig| {
        rig.provider.script(r#"[{"play": [{"text": {"chunks": ["First."]}}]}]"#)?;
        let session = rig.session().await?;
        let configuration = served_by([http_server(LABEL, &rig.mcp().url())], rig.configuration(Vec::new()));
        let model = credentials(BEARER)[..1].to_vec();
        turn(rig, &session, configuration.clone(), model.clone(), "t-1").await?.completed()?;
        let alike: Vec<_> = called_by(&rig.provider.model_requests()[0], LABEL);
        let alike: Vec<_> = alike.iter().filter(|name| name.starts_with("a_b")).collect();
        assert!(alike.len() == 2 && alike.iter().all(|name| name.starts_with("a_b_")), "{alike:?}");
        for (index, name) in alike.iter().enumerate() {
            rig.provider.script(&calling(&format!("tickets.{name}"), &json!({"text": "x"})))?;
            let turn_id = format!("t-{}", index + 2);
            let seen = turn(rig, &session, configuration.clone(), model.clone(), &turn_id).await?;
            seen.completed()?;
            let calls = seen.mcp_calls();
            assert_eq!((calls.len(), calls[0].status), (1, v1::ToolStatus::Completed), "{calls:#?}");
            assert_eq!(rig.mcp().calls().last(), Some(&calls[0].call.tool), "{calls:#?}");
        }
        let mut called = rig.mcp().calls();
        called.sort();
        assert_eq!(called, ["a.b", "a_b"]);
        Ok(())
    });
}
