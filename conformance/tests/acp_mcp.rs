//! MCP servers of agents behind ACP: reached over HTTP by the gateway, with headers and a bearer, told under their original names with the native result.

use conformance::for_each_acp_agent;
use conformance::mcp::Script;
use conformance::rig::{
    Harness, MODEL_KEY, Setup, bearer, calling, files_with, function, http_server, refusal, scenario, served_by,
};
use proto::v1::{self, Reason};
use serde_json::json;

for_each_acp_agent!(
    the_model_calls_tools_of_a_server_and_the_bearer_is_the_gateways,
    what_they_do_not_take_is_refused_with_its_field
);

const BEARER: &str = "mcp-canary-acp-91d2";

fn the_model_calls_tools_of_a_server_and_the_bearer_is_the_gateways(harness: Harness) {
    let setup = Setup::outer().of(harness).needing(v1::Capability::McpHttpTools).beside(Script::default());
    scenario("acp_mcp", &["R-MCP-1", "R-MCP-3", "R-MCP-5", "R-SEC-3"], setup, async |rig| {
        let server = bearer(http_server("tickets", &rig.mcp().url()));
        let configuration = served_by([server], rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)]));
        rig.provider.script(&calling("tickets.echo", &json!({ "text": "heron" })))?;
        let session = rig.session().await?;
        let of = |name: &str, value: &str| v1::Credential { name: name.into(), value: value.into() };
        let ready = session.prepare(configuration, vec![of("model", MODEL_KEY), of("mcp:tickets", BEARER)]).await?;
        let seen = rig.turn_with(&session, &ready, "t-1", "echo it").await?;
        seen.completed()?;
        let calls = seen.mcp_calls();
        let [call] = &calls[..] else { anyhow::bail!("not one call: {calls:#?}") };
        assert_eq!((&*call.call.server, &*call.call.tool), ("tickets", "echo"));
        assert_eq!((call.status, &*call.call.error), (v1::ToolStatus::Completed, ""), "{call:#?}");
        assert_eq!(call.arguments(), json!({ "text": "heron" }));
        assert!(call.result().to_string().contains("heron"), "{call:#?}");
        assert!(
            rig.mcp()
                .requests()
                .iter()
                .all(|request| request.header("authorization") == Some(&format!("Bearer {BEARER}")))
        );
        // The agent itself had a placeholder.
        assert_eq!(files_with(rig.place().root(), BEARER)?, Vec::<std::path::PathBuf>::new());
        Ok(())
    });
}

fn what_they_do_not_take_is_refused_with_its_field(harness: Harness) {
    let setup = Setup::outer().of(harness).needing(v1::Capability::McpHttpTools).beside(Script::default());
    scenario("acp_mcp_refused", &["R-MCP-1", "R-CAP-1", "R-PRE-5"], setup, async |rig| {
        let plain = || http_server("tickets", &rig.mcp().url());
        let some = v1::AllowedTools { names: vec!["echo".into()] };
        let cases = [
            (v1::McpServer { required: true, ..plain() }, "required"),
            (v1::McpServer { allowed_tools: Some(some), ..plain() }, "allowed_tools"),
        ];
        for (server, field) in cases {
            let session = rig.session().await?;
            let configuration = served_by([server], rig.configuration(Vec::new()));
            let refused = session.prepare(configuration, Vec::new()).await;
            let refused = refusal(refused, Reason::UnsupportedConfiguration).into_inner();
            assert!(refused.fields[0].path.ends_with(field), "{refused:?}");
        }
        Ok(())
    });
}
