//! Nobody is called but the provider, and a workspace starts nothing by its configuration.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use conformance::for_each_harness;
use conformance::rig::{Harness, MODEL_KEY, Observed, Process, Rig, Setup, refused, scenario};
use proto::client::text_input;
use proto::v1;
use serde_json::json;

for_each_harness!(nobody_is_called_but_the_provider, the_configuration_of_a_workspace_starts_nothing);

fn nobody_is_called_but_the_provider(harness: Harness) {
    scenario("secret_calls_home", &["R-SEC-2", "R-CTL-4", "R-CTL-5"], Setup::outer().of(harness), async |rig| {
        rig.provider
            .script(r#"[{"play": [{"mark": "asked"}, {"gate": "go"}, {"text": {"chunks": ["Nobody else."]}}]}]"#)?;
        let session = rig.session().await?;
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        let gateway = rig.gateway()?.port();
        let mut called = remotes(rig)?;
        session.start(&ready, "t-1", text_input("who is there")).await?;
        rig.provider.wait_for_mark("asked").await?;
        called.extend(remotes(rig)?);
        rig.provider.open_gate("go");
        Observed::default().to_the_end(&mut session.turn_events("t-1")).await?.completed()?;
        called.extend(remotes(rig)?);
        assert_eq!(called, BTreeSet::from([format!("tcp 0100007F:{gateway:04X}")]), "remote ends of its sockets");
        let requests = rig.provider.requests();
        let asked: Vec<_> = requests.iter().map(|request| request.protocol()).collect();
        assert_eq!(asked, [Some(harness.protocol())], "{requests:#?}");
        // What is switched off is not offered, and what is on a workspace by nature is.
        let tools = requests[0].tools();
        let native = match harness {
            Harness::Codex => ["exec_command", "apply_patch", "web_search"],
            Harness::ClaudeCode => ["Bash", "Edit", "Read"],
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        };
        for tool in native {
            assert!(tools.iter().any(|offered| offered == tool), "{tool} is not in {tools:?}");
        }
        let off: &[&str] = match harness {
            Harness::Codex => &["spawn_agent", "goal", "memor", "request_user_input", "plugin"],
            Harness::ClaudeCode => {
                &["Agent", "Ask", "PlanMode", "Cron", "Schedule", "Workflow", "Monitor", "TaskStop", "SendMessage"]
            }
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        };
        // Nor is it left for a search, which offers a tool by its name alone.
        let offered = [tools, requests[0].announced()].concat();
        for word in off {
            assert!(!offered.iter().any(|offered| offered.contains(word)), "{word} is in {offered:?}");
        }
        Ok(())
    });
}

fn the_configuration_of_a_workspace_starts_nothing(harness: Harness) {
    let setup = Setup::outer().of(harness).with("trust_workspace = false");
    scenario("trust_workspace", &["R-PLC-1", "R-MCP-2"], setup, async |rig| {
        let mark = plant(rig)?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "hello").await?;
        seen.completed()?;
        assert_eq!(seen.messages(), ["hello"]);
        assert!(!mark.exists(), "a server of the project was started");
        let started: Vec<_> = rig.family()?.into_iter().filter(is_planted).collect();
        assert!(started.is_empty(), "{started:#?}");
        let declared = rig.declaration().await?;
        assert!(!declared.trust_workspace);
        assert_eq!(declared.isolation, "outer");
        Ok(())
    });
}

/// Leaves out what keeps Claude Code from reading a project. Nothing in the bridge does, so this is the only way to see what it would do.
const TRUSTING: &str = r#"
for one in "$@"; do
    shift
    case "$one" in
        --setting-sources=* | --strict-mcp-config) ;;
        *) set -- "$@" "$one" ;;
    esac
done
exec "$REAL" "$@"
"#;

/// The planted files are such that Claude Code would act on them, so that nothing of it elsewhere means something.
#[test]
fn without_the_bridges_arguments_claude_code_would_load_the_same_workspace() {
    let setup = Setup { harness: Harness::ClaudeCode, ..Setup::outer() }.behind(TRUSTING);
    let setup = setup.only("Codex has trust_granted, where an operator says that a workspace is trusted");
    scenario("trust_effective", &["R-PLC-1"], setup, async |rig| {
        let mark = plant(rig)?;
        let session = rig.session().await?;
        // The start waits for what it has started there, so nothing comes of the preparation.
        tokio::select! {
            prepared = rig.prepare(&session, rig.configuration(Vec::new())) => anyhow::bail!("nothing was started: {prepared:?}"),
            started = rig.wait_for_process(is_planted) => started?,
        };
        assert!(mark.exists());
        session.release(true).await?;
        Ok(())
    });
}

#[test]
fn without_the_gateway_a_trusted_workspace_is_never_loaded_beside_a_key() {
    let setup = Setup::outer()
        .with("trust_workspace = true")
        .without_gateway()
        .only("Claude Code is never told to read a project, so there is no trust to grant");
    scenario("trust_granted", &["R-PLC-1"], setup, async |rig| {
        let mark = plant(rig)?;
        assert!(rig.declaration().await?.trust_workspace);
        let session = rig.session().await?;
        let prepared = rig.prepare(&session, rig.configuration(Vec::new())).await;
        refused(prepared, v1::Reason::UnsupportedConfiguration)?;
        assert!(!mark.exists());
        // Without a key it is loaded: the planted server can start, so that its absence elsewhere means something.
        let ready = session.prepare(rig.configuration(Vec::new()), Vec::new()).await?;
        rig.wait_for_process(is_planted).await?;
        session.start(&ready, "t-1", text_input("hello")).await?;
        Observed::default().to_the_end(&mut session.turn_events("t-1")).await?.completed()?;
        assert!(mark.exists());
        Ok(())
    });
}

#[test]
fn with_the_gateway_a_workspace_is_trusted_where_somebody_keeps_it_apart() {
    let setup = Setup::outer().only("Claude Code is never told to read a project, so there is no trust to grant");
    scenario("trust_usual", &["R-PLC-1", "R-SEC-3"], setup, async |rig| {
        let mark = plant(rig)?;
        assert!(rig.declaration().await?.trust_workspace);
        let session = rig.session().await?;
        let ready = rig.prepare(&session, rig.configuration(Vec::new())).await?;
        rig.wait_for_process(is_planted).await?;
        assert!(rig.family()?.iter().all(|process| !process.shows(MODEL_KEY)));
        session.start(&ready, "t-1", text_input("hello")).await?;
        Observed::default().to_the_end(&mut session.turn_events("t-1")).await?.completed()?;
        assert!(mark.exists());
        Ok(())
    });
}

/// Puts a repository into the workspace whose configuration declares a server; gives the file that the server makes.
fn plant(rig: &Rig) -> anyhow::Result<PathBuf> {
    let workspace = rig.workspace();
    fs::create_dir_all(workspace.join(".git"))?;
    fs::write(workspace.join(".git/HEAD"), "ref: refs/heads/main\n")?;
    fs::create_dir_all(workspace.join(".codex"))?;
    let mark = workspace.join("started-by-the-project");
    let config = format!(
        "[mcp_servers.planted]\ncommand = \"/bin/sh\"\nargs = [\"-c\", \"touch {}; exec sleep 691\"]\n",
        mark.display()
    );
    fs::write(workspace.join(".codex/config.toml"), config)?;
    // The same for Claude Code, as a server and as a hook.
    let command = format!("touch {}; exec sleep 691", mark.display());
    let server = json!({"command": "/bin/sh", "args": ["-c", command]});
    fs::write(workspace.join(".mcp.json"), json!({"mcpServers": {"planted": server}}).to_string())?;
    fs::create_dir_all(workspace.join(".claude"))?;
    let hook = json!([{"hooks": [{"type": "command", "command": command}]}]);
    let hooks = json!({"hooks": {"SessionStart": hook, "UserPromptSubmit": hook}});
    fs::write(workspace.join(".claude/settings.json"), hooks.to_string())?;
    Ok(mark)
}

fn is_planted(process: &Process) -> bool {
    process.command == "sleep 691"
}

/// The remote ends of all internet sockets of what the daemon has started, as `/proc` writes them; sockets that only
/// listen have none.
fn remotes(rig: &Rig) -> anyhow::Result<BTreeSet<String>> {
    let mut inodes = BTreeSet::new();
    for process in rig.family()? {
        // A process may end while it is looked at.
        for entry in fs::read_dir(format!("/proc/{}/fd", process.pid)).into_iter().flatten().flatten() {
            let target = fs::read_link(entry.path()).unwrap_or_default().to_string_lossy().into_owned();
            let inode = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
            inodes.extend(inode.map(str::to_owned));
        }
    }
    let mut remotes = BTreeSet::new();
    for table in ["tcp", "tcp6", "udp", "udp6"] {
        let text = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let fields: Vec<_> = line.split_whitespace().collect();
            if let (Some(remote), Some(inode)) = (fields.get(2), fields.get(9))
                && inodes.contains(*inode)
                && !remote.ends_with(":0000")
            {
                remotes.insert(format!("{table} {remote}"));
            }
        }
    }
    Ok(remotes)
}
