//! MCP servers of agents behind ACP: reached over HTTP by the gateway, with headers and a bearer, told under their original names with the native result.

use conformance::for_each_acp_agent;
use conformance::mcp::{Fault, Refusing, Script, Server};
use conformance::rig::{
    Harness, MODEL_KEY, Setup, bearer, called_by, calling, files_with, function, http_server, refusal, scenario,
    served_by,
};
use proto::v1::{self, CredentialOutcome, Reason};
use serde_json::json;

for_each_acp_agent!(
    the_model_calls_tools_of_a_server_and_the_bearer_is_the_gateways,
    without_a_server_a_turn_goes_on_and_tools_keep_their_names,
    what_they_do_not_take_is_refused_with_its_field,
);

const BEARER: &str = "mcp-canary-acp-91d2";
const FRESH: &str = "mcp-canary-acp-fresh-40ce";

fn the_model_calls_tools_of_a_server_and_the_bearer_is_the_gateways(harness: Harness) {
    let setup = Setup::outer().of(harness).needing(v1::Capability::McpHttpTools).beside(Script::default());
    scenario("acp_mcp", &["R-MCP-1", "R-MCP-3", "R-MCP-5", "R-SEC-3"], setup, async |rig| {
        let mut server = bearer(http_server("tickets", &format!("{}?tenant=blue&x=", rig.mcp().url())));
        if let Some(v1::mcp_server::Transport::Http(http)) = &mut server.transport {
            http.headers = vec![v1::McpHeader { name: "X-Api-Key".into(), value: "not a secret".into() }];
        }
        let configuration = served_by([server], rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)]));
        let session = rig.session().await?;
        let of = |name: &str, value: &str| v1::Credential { name: name.into(), value: value.into() };
        let mut taken = 0;
        for (turn_id, secret) in [("t-1", BEARER), ("t-2", FRESH)] {
            if secret == FRESH {
                // A fresh one holds at once, for the same process.
                assert_eq!(session.update_credential(of("mcp:tickets", FRESH)).await?, CredentialOutcome::InUse);
                taken = rig.mcp().requests().len();
            }
            rig.provider.script(&calling("tickets.echo", &json!({ "text": turn_id })))?;
            let credentials = vec![of("model", MODEL_KEY), of("mcp:tickets", secret)];
            let ready = session.prepare(configuration.clone(), credentials).await?;
            assert_eq!(ready.reused, secret == FRESH);
            let seen = rig.turn_with(&session, &ready, turn_id, "echo it").await?;
            seen.completed()?;
            let calls = seen.mcp_calls();
            let [call] = &calls[..] else { anyhow::bail!("not one call: {calls:#?}") };
            assert_eq!((&*call.begun.server, &*call.begun.tool), ("tickets", "echo"));
            assert_eq!((&*call.call.server, &*call.call.tool), ("tickets", "echo"));
            assert_eq!((call.status, &*call.call.error), (v1::ToolStatus::Completed, ""), "{call:#?}");
            assert_eq!(call.arguments(), json!({ "text": turn_id }));
            assert!(call.result().to_string().contains(turn_id), "{call:#?}");
            let requests = rig.mcp().requests();
            assert!(requests[taken..].iter().any(|request| request.tool().is_some()), "{requests:#?}");
            for request in &requests[taken..] {
                assert_eq!(request.bearer(), Some(secret), "{request:#?}");
                assert_eq!(request.path, "/mcp?tenant=blue&x=", "{request:#?}");
                assert_eq!(request.header("x-api-key"), Some("not a secret"), "{request:#?}");
                assert_eq!(request.header("host"), rig.mcp().origin().strip_prefix("http://"), "{request:#?}");
            }
            assert!(!format!("{:?}", seen.events).contains(secret));
        }
        // The agent itself had a placeholder.
        for secret in [BEARER, FRESH] {
            assert_eq!(files_with(rig.place().root(), secret)?, Vec::<std::path::PathBuf>::new());
            assert!(rig.family()?.iter().all(|process| !process.shows(secret)), "a process shows the bearer");
        }
        Ok(())
    });
}

/// What docs/deviations.md says of it: no agent tells that a server is not there.
fn without_a_server_a_turn_goes_on_and_tools_keep_their_names(harness: Harness) {
    let setup = Setup::outer().of(harness).needing(v1::Capability::McpHttpTools);
    let script = Script { more: vec!["read.status".into()], ..Script::default() };
    scenario("acp_mcp_absent", &["R-PRE-5", "R-MCP-5"], setup.beside(script), async |rig| {
        let nobody = Refusing::start()?;
        let redirecting = Server::start(Script::default().always(Fault::Redirected(rig.mcp().url()))).await?;
        let servers = [
            http_server("nobody", &nobody.url()),
            http_server("elsewhere", &redirecting.url()),
            http_server("tickets", &rig.mcp().url()),
        ];
        // The provider's API has no `.` in a name either: the model calls the tool as it is offered.
        rig.provider.script(&calling("tickets.read_status", &json!({ "text": "heron" })))?;
        let session = rig.session().await?;
        let ready = rig.prepare(&session, served_by(servers, rig.configuration(Vec::new()))).await?;
        let seen = rig.turn_with(&session, &ready, "t-1", "read it").await?;
        seen.completed()?;
        assert_eq!(seen.notices("mcp_unavailable"), [""; 0]);
        assert_eq!(rig.mcp().calls(), ["read.status"]);
        let calls = seen.mcp_calls();
        let [call] = &calls[..] else { anyhow::bail!("not one call: {calls:#?}") };
        assert_eq!((call.status, &*call.call.server), (v1::ToolStatus::Completed, "tickets"), "{call:#?}");
        assert_eq!(call.begun.tool, "read_status");
        // MiniMax Code tells the server's own name with the result, and opencode never.
        let told = if harness == Harness::MinimaxCode { "read.status" } else { "read_status" };
        assert_eq!(call.call.tool, told);
        // Nobody went where a server pointed to: the one that is there was greeted once.
        let begins = |request: &&conformance::mcp::Request| request.asks().as_deref() == Some("initialize");
        assert_eq!(rig.mcp().requests().iter().filter(begins).count(), 1);
        let request = &rig.provider.model_requests()[0];
        for label in ["nobody", "elsewhere"] {
            assert_eq!(called_by(request, label), [""; 0]);
        }
        Ok(())
    });
}

fn what_they_do_not_take_is_refused_with_its_field(harness: Harness) {
    let setup = Setup::outer().of(harness).needing(v1::Capability::McpHttpTools).beside(Script::default());
    scenario("acp_mcp_refused", &["R-MCP-1", "R-MCP-5", "R-CAP-1", "R-PRE-5"], setup, async |rig| {
        let of = |label: &str| http_server(label, &rig.mcp().url());
        let some = v1::AllowedTools { names: vec!["echo".into()] };
        // Labels that the native names of their tools could not tell apart.
        let alike = match harness {
            Harness::MinimaxCode => vec![of("a__b")],
            _ => vec![of("a"), of("a_b")],
        };
        let cases = [
            (vec![v1::McpServer { required: true, ..of("tickets") }], "required"),
            (vec![v1::McpServer { allowed_tools: Some(some), ..of("tickets") }], "allowed_tools"),
            (alike, "label"),
        ];
        for (servers, field) in cases {
            let session = rig.session().await?;
            let configuration = served_by(servers, rig.configuration(Vec::new()));
            let refused = session.prepare(configuration, Vec::new()).await;
            let refused = refusal(refused, Reason::UnsupportedConfiguration).into_inner();
            assert!(refused.fields[0].path.ends_with(field), "{refused:?}");
        }
        Ok(())
    });
}
