//! MCP servers that are processes: what they are started with, and that they go with their Executor (R-MCP-3, R-MCP-4, R-CAN-2).

use std::{fs, os::unix::fs::PermissionsExt as _};

use conformance::for_each_harness;
use conformance::rig::{
    Harness, MODEL_KEY, Observed, Rig, Setup, calling, program, refusal, scenario, served_by, stdio_server,
};
use proto::client::{Session, text_input};
use proto::v1::{self, Reason, ToolStatus};
use serde_json::{Value, json};

for_each_harness!(a_server_has_its_variables_and_no_others, variables_that_are_not_there_fail_the_start);

/// An agent behind ACP is told of the process as those are.
mod a_server_of_an_agent_has_its_variables_and_no_others {
    use conformance::rig::Harness;

    #[test]
    fn opencode() {
        super::a_server_has_its_variables_and_no_others(Harness::Opencode);
    }
}

const SECRET: &str = "variable-canary-51d0";

fn server(rig: &Rig, env_vars: &[&str]) -> anyhow::Result<v1::McpServer> {
    let program = program("runtime-bridge-conformance")?;
    let (program, cwd) = (program.to_string_lossy(), rig.workspace().to_string_lossy());
    Ok(stdio_server("local", &program, &["mcp-stdio", "--", "an argument"], &cwd, env_vars))
}

/// What a call of the tool `environment` gives.
fn environment(seen: &Observed) -> anyhow::Result<Value> {
    let calls = seen.mcp_calls();
    anyhow::ensure!(calls.len() == 1 && calls[0].status == ToolStatus::Completed, "{calls:#?}");
    assert_eq!(calls[0].call.server, "local");
    let result = calls[0].result();
    // opencode shows the text alone.
    let text = result["output"].as_str().or(result["content"][0]["text"].as_str()).unwrap_or_default();
    Ok(serde_json::from_str(text)?)
}

fn a_server_has_its_variables_and_no_others(harness: Harness) {
    let rules = ["R-MCP-3", "R-MCP-4", "R-SEC-2", "R-CAN-2", "R-CAN-4"];
    let mut setup = Setup::outer().of(harness).needing(v1::Capability::McpHttpTools).serving_processes();
    setup.environment = vec![("CANARY".into(), "of-the-daemon-canary".into())];
    scenario("mcp_stdio", &rules, setup, async |rig| {
        rig.place()
            .set_variables("env-1", &format!("# for the server\nTOKEN={SECRET}\nOTHER=other-canary\nEMPTY=\n"))?;
        let mut server = server(rig, &["TOKEN", "EMPTY"])?;
        server.required = harness != Harness::Opencode;
        let configuration = served_by([server], rig.configuration(Vec::new()));
        let session = rig.session().await?;
        let mut pids = Vec::new();
        for turn_id in ["t-1", "t-2"] {
            rig.provider.script(&calling("local.environment", &json!({})))?;
            let ready = rig.prepare(&session, configuration.clone()).await?;
            session.start(&ready, turn_id, text_input("look")).await?;
            let seen = Observed::default().to_the_end(&mut session.turn_events(turn_id)).await?;
            seen.completed()?;
            let told = environment(&seen)?;
            assert_eq!(told["cwd"].as_str(), rig.workspace().to_str());
            assert_eq!(told["argv"].as_array().and_then(|argv| argv.last()), Some(&json!("an argument")));
            assert_eq!((&told["env"]["TOKEN"], &told["env"]["EMPTY"]), (&json!(SECRET), &json!("")));
            assert!(told["env"]["PATH"].is_string() && told["env"]["HOME"].is_string(), "{told}");
            assert_eq!(told["env"]["RUNTIME_BRIDGE_MCP"], json!("local"));
            let env = told["env"].to_string();
            for other in ["other-canary", "of-the-daemon-canary", MODEL_KEY, "runtime-bridge-placeholder"] {
                assert!(!env.contains(other), "{other} is in {env}");
            }
            pids.push(told["pid"].clone());
        }
        assert_eq!(pids[0], pids[1], "the server did not outlive the Turn");
        // Its value is in the environment of nothing but the server.
        let family = rig.family()?;
        let shown: Vec<_> = family.iter().filter(|process| process.shows(SECRET)).map(|process| process.pid).collect();
        assert_eq!(json!(shown), json!([pids[0]]), "{family:#?}");
        session.release(true).await?;
        rig.only(&[]).await?;
        assert!(!rig.daemon.log_text().contains(SECRET));
        Ok(())
    });
}

async fn fails(rig: &Rig, session: &Session, env_vars: &[&str], says: &str) -> anyhow::Result<()> {
    let configuration = served_by([server(rig, env_vars)?], rig.configuration(Vec::new()));
    let failed = rig.prepare(session, configuration).await;
    refusal(failed, Reason::PreparationFailed).with("step", "variables").says(says).hides(SECRET);
    Ok(())
}

fn variables_that_are_not_there_fail_the_start(harness: Harness) {
    let setup = Setup::outer().of(harness).needing(v1::Capability::McpHttpTools);
    let setup = setup.bridge("the bridge reads the variables before any Harness starts");
    scenario("mcp_variables", &["R-MCP-3", "R-PRE-5", "R-API-9"], setup, async |rig| {
        let session = rig.session().await?;
        fails(rig, &session, &["TOKEN", "ALSO"], "does not set ALSO, TOKEN").await?;
        rig.place().set_variables("env-1", &format!("TOKEN={SECRET}\n"))?;
        fails(rig, &session, &["TOKEN", "ALSO"], "does not set ALSO;").await?;
        rig.place().set_variables("env-1", &format!("TOKEN={SECRET}\nexport ALSO={SECRET}\n"))?;
        fails(rig, &session, &["TOKEN", "ALSO"], "line 2").await?;
        rig.place().set_variables("env-1", &format!("TOKEN={SECRET}\nALSO={SECRET}\n"))?;
        let file = rig.place().state().join("environments/env-1.env");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640))?;
        fails(rig, &session, &["TOKEN"], "0600").await?;
        let other = rig.place().state().join("environments/other");
        fs::rename(&file, &other)?;
        fs::set_permissions(&other, fs::Permissions::from_mode(0o600))?;
        std::os::unix::fs::symlink(&other, &file)?;
        fails(rig, &session, &["TOKEN"], "symbolic link").await?;
        assert!(!rig.daemon.log_text().contains(SECRET));
        // Nothing of it was held against the Session.
        fs::remove_file(&file)?;
        fs::rename(&other, &file)?;
        let configuration = served_by([server(rig, &["TOKEN", "ALSO"])?], rig.configuration(Vec::new()));
        rig.prepare(&session, configuration).await?;
        Ok(())
    });
}
