//! MCP servers of other hands: the official SDKs, over HTTP and over standard input and output. Their tools are called, and their results are seen
//! as they are (R-MCP-1, R-MCP-5).

use anyhow::Context;
use conformance::for_each_harness;
use conformance::mcp::{Peer, Sdk};
use conformance::rig::{Harness, Setup, http_server, scenario, served_by, stdio_server};
use proto::v1::{Capability, ToolStatus};
use serde_json::json;

// scripts/test knows `of_python` by its name: a machine without Python leaves it out.
for_each_harness!(of_javascript, of_python, of_rust);

fn of_javascript(harness: Harness) {
    both_ways(harness, Sdk::Npm);
}

fn of_python(harness: Harness) {
    both_ways(harness, Sdk::Python);
}

fn of_rust(harness: Harness) {
    both_ways(harness, Sdk::Rust);
}

/// One Turn that calls tools of one server over HTTP, `web`, and of another one over standard input and output, `pipe`.
fn both_ways(harness: Harness, sdk: Sdk) {
    let setup = Setup::outer().of(harness).needing(Capability::McpHttpTools);
    scenario(&format!("mcp_peer_{}", sdk.name()), &["R-MCP-1", "R-MCP-5", "R-CAP-2"], setup, async |rig| {
        let peer = Peer::start(sdk).await?;
        let (program, arguments) = sdk.stdio()?;
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let (program, cwd) =
            (program.to_str().context("a path")?, rig.workspace().to_str().context("a path")?.to_owned());
        let mut servers = [http_server("web", peer.url()), stdio_server("pipe", program, &arguments, &cwd, &[])];
        for server in &mut servers {
            // So that they are there at the first request, however slow the machine is.
            server.required = true;
        }
        let call = |server: &str, tool: &str| {
            let arguments = json!({"text": format!("over {server}")}).to_string();
            json!({"name": format!("{server}.{tool}"), "call_id": format!("c-{server}-{tool}"), "arguments": arguments})
        };
        let calls = [call("web", "echo"), call("pipe", "echo"), call("web", "structured"), call("pipe", "structured")];
        let steps = json!([
            {"after": "user", "play": [{"calls": calls}]},
            {"after": "outputs", "always": true, "play": [{"text": {"chunks": ["Heard."]}}]},
        ]);
        rig.provider.script(&steps.to_string())?;
        let session = rig.session().await?;
        let ready = rig.prepare(&session, served_by(servers, rig.configuration(Vec::new()))).await?;
        let seen = rig.turn_with(&session, &ready, "t-1", "ask them").await?;
        seen.completed()?;
        assert_eq!(seen.notices("mcp_unavailable"), [""; 0]);
        let ended = seen.mcp_calls();
        let last = rig.provider.model_requests().pop().context("no request")?;
        for (server, tool) in [("web", "echo"), ("pipe", "echo"), ("web", "structured"), ("pipe", "structured")] {
            let one = ended.iter().find(|one| (&*one.call.server, &*one.call.tool) == (server, tool));
            let one = one.with_context(|| format!("no call of {server}.{tool}: {ended:#?}"))?;
            assert_eq!((one.status, &*one.call.error), (ToolStatus::Completed, ""), "{one:#?}");
            let result = one.result();
            // What the model reads of it is the Harness's matter; the result that is told is the server's.
            let output = last.output(&format!("c-{server}-{tool}")).context("the model reads nothing")?.to_string();
            if tool == "echo" {
                // The SDK for Python gives its text in both ways, and Claude Code tells of the structured one alone.
                let structured = &result["structuredContent"]["result"];
                let told = if structured.is_null() { &result["content"][0]["text"] } else { structured };
                assert_eq!(told, &format!("over {server}"), "{one:#?}");
                anyhow::ensure!(output.contains(&format!("over {server}")), "{output}");
            } else {
                assert_eq!(result["structuredContent"]["degrees"], -3.5, "{one:#?}");
                anyhow::ensure!(output.contains("-3.5"), "{output}");
            }
        }
        Ok(())
    });
}
