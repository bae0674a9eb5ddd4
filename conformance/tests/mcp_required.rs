//! MCP servers that are not there: a required one fails the preparation, the model goes on without another one (R-PRE-5).

use conformance::for_each_harness;
use conformance::mcp::{Fault, Refusing, Script};
use conformance::rig::{
    Daemon, Harness, Setup, called_by, calling, http_server, refusal, scenario, served_by, stdio_server,
};
use proto::v1::{self, Reason};
use serde_json::json;

for_each_harness!(
    a_required_server_is_there_before_ready_or_there_is_no_ready,
    without_an_optional_server_a_turn_goes_on_and_says_so,
    a_server_that_hangs_is_given_up_in_its_time,
);

fn a_required_server_is_there_before_ready_or_there_is_no_ready(harness: Harness) {
    let setup = Setup::outer().of(harness).needing(v1::Capability::McpHttpRequired);
    let setup = setup.needing(v1::Capability::SessionResume).beside(Script::default());
    scenario("mcp_required", &["R-PRE-5", "R-PRE-4", "R-MCP-1"], setup, async |rig| {
        let mut server = http_server("tickets", &rig.mcp().url());
        server.required = true;
        let configuration = served_by([server], rig.configuration(Vec::new()));
        let session = rig.session().await?;
        // Nobody is there: the gateway says so of the server, and of nothing else.
        let nobody = Refusing::start()?;
        let mut gone = http_server("gone", &nobody.url());
        gone.required = true;
        let failed = rig.prepare(&session, served_by([gone], rig.configuration(Vec::new()))).await;
        let failed = refusal(failed, Reason::PreparationFailed).with("step", "mcp");
        failed.says("gone: the MCP server cannot be connected to").hides("model provider").hides("127.0.0.1");
        rig.mcp().fail(None, Fault::Status(503));
        let failed = rig.prepare(&session, configuration.clone()).await;
        refusal(failed, Reason::PreparationFailed).with("step", "mcp").says("tickets");

        // The same with a history: it stays as it is.
        rig.mcp().heal();
        rig.provider.script(&calling("tickets.echo", &json!({"text": "one"})))?;
        let ready = rig.prepare(&session, configuration.clone()).await?;
        let seen = rig.turn_with(&session, &ready, "t-1", "first").await?;
        seen.completed()?;
        assert_eq!(seen.mcp_calls().len(), 1);
        let native = seen.native_session()?;
        rig.wait_for_history("Heard.").await?;
        let family = rig.family()?;
        rig.daemon.terminate().await?;
        rig.all_gone(&family).await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        rig.mcp().fail(None, Fault::Dropped);
        let failed = rig.resume(&session, configuration.clone(), &native).await;
        refusal(failed, Reason::PreparationFailed).with("step", "mcp").says("tickets").hides("model provider");
        rig.mcp().heal();
        rig.provider.script(&calling("tickets.echo", &json!({"text": "two"})))?;
        let ready = rig.resume(&session, configuration, &native).await?;
        let seen = rig.turn_with(&session, &ready, "t-2", "again").await?;
        seen.completed()?;
        assert_eq!(seen.native_session()?, native);
        assert_eq!(rig.mcp().calls(), ["echo", "echo"]);
        assert!(rig.provider.model_requests().last().is_some_and(|request| request.body.contains("first")));
        Ok(())
    });
}

fn without_an_optional_server_a_turn_goes_on_and_says_so(harness: Harness) {
    let setup = Setup::outer().of(harness).needing(v1::Capability::McpHttpTools).beside(Script::default());
    scenario("mcp_optional", &["R-PRE-5", "R-EVT-2"], setup, async |rig| {
        let nobody = Refusing::start()?;
        let redirecting =
            conformance::mcp::Server::start(Script::default().always(Fault::Redirected(rig.mcp().url()))).await?;
        let directory = rig.workspace().to_str().unwrap_or_default().to_owned();
        let servers = [
            http_server("nobody", &nobody.url()),
            http_server("elsewhere", &redirecting.url()),
            stdio_server("none", "/nonexistent/program", &[], &directory, &[]),
            http_server("tickets", &rig.mcp().url()),
        ];
        let configuration = served_by(servers, rig.configuration(Vec::new()));
        let session = rig.session().await?;
        for turn_id in ["t-1", "t-2"] {
            rig.provider.script(&calling("tickets.echo", &json!({ "text": turn_id })))?;
            let ready = rig.prepare(&session, configuration.clone()).await?;
            let seen = rig.turn_with(&session, &ready, turn_id, turn_id).await?;
            seen.completed()?;
            let notices = seen.notices("mcp_unavailable");
            assert_eq!(notices.len(), 3, "{notices:#?}");
            for label in ["nobody", "elsewhere", "none"] {
                assert!(notices.iter().any(|text| text.contains(&format!("`{label}`"))), "{notices:#?}");
            }
            assert!(!format!("{notices:?}").contains("127.0.0.1"), "{notices:#?}");
            let calls = seen.mcp_calls();
            assert_eq!(calls.len(), 1, "{calls:#?}");
            assert_eq!(calls[0].call.server, "tickets");
        }
        // Nobody went where a server pointed to.
        let requests = rig.mcp().requests();
        // A client of the newest version of the protocol begins with another request.
        let begins = |request: &&conformance::mcp::Request| {
            matches!(request.asks().as_deref(), Some("initialize" | "server/discover"))
        };
        assert_eq!(requests.iter().filter(begins).count(), 1);
        let offered = called_by(&rig.provider.model_requests()[0], "elsewhere");
        assert_eq!(offered, [""; 0]);
        Ok(())
    });
}

fn a_server_that_hangs_is_given_up_in_its_time(harness: Harness) {
    let setup = Setup::outer().of(harness).with("limits.mcp_start_ms = 1500").needing(v1::Capability::McpHttpRequired);
    let script = Script::default().always(Fault::Held("never"));
    scenario("mcp_hangs", &["R-PRE-5"], setup.beside(script), async |rig| {
        let mut server = http_server("tickets", &rig.mcp().url());
        let session = rig.session().await?;
        rig.provider.script(r#"[{"play": [{"text": {"chunks": ["Alone."]}}]}]"#)?;
        let ready = rig.prepare(&session, served_by([server.clone()], rig.configuration(Vec::new()))).await?;
        let seen = rig.turn_with(&session, &ready, "t-1", "hello").await?;
        seen.completed()?;
        assert_eq!(seen.notices("mcp_unavailable").len(), 1);
        server.required = true;
        let session = rig.session().await?;
        let failed = rig.prepare(&session, served_by([server], rig.configuration(Vec::new()))).await;
        refusal(failed, Reason::PreparationFailed).with("step", "mcp").says("tickets");
        Ok(())
    });
}
