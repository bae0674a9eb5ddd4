//! The daemon's socket and the tools that a model runs: they have the daemon's uid, and are refused all the same (R-SEC-1).

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::{fs, path::Path};

use anyhow::Context;
use conformance::rig::{Observed, Rig, Setup, program, scenario};
use proto::v1::{self, content::Place, event::Kind};

/// Why one Harness is enough.
const OWN: &str =
    "the socket judges its peers by their ancestors; `socket_refuses_tools` has the shell of each Harness";

/// Runs one command as a tool of the real Codex and gives its output.
async fn tool(rig: &Rig, turn: &str, command: &str) -> anyhow::Result<String> {
    let shell = serde_json::json!([{"play": [{"shell": {"command": command, "yield_ms": 30_000}}]}]);
    rig.provider.script(&shell.to_string())?;
    let session = rig.session().await?;
    let mut events = rig.start_turn(&session, rig.configuration(Vec::new()), turn, "try it").await?;
    let observed = Observed::default().to_the_end(&mut events).await?;
    observed.completed()?;
    let output = observed.kinds().find_map(|kind| match kind {
        Kind::ToolCompleted(v1::ToolCompleted {
            output: Some(v1::Content { place: Some(Place::Text(text)) }), ..
        }) => Some(text.clone()),
        _ => None,
    });
    output.with_context(|| format!("the command has no output: {:#?}", observed.events))
}

/// Three ways to call the daemon: as the tool itself, without the marks in the environment, and from a process that has left the session,
/// whose environment is empty and whose parent is gone.
fn ways(socket: &Path) -> anyhow::Result<[(&'static str, String); 3]> {
    let reach = format!("'{}' reach '{}'", program("runtime-bridge-conformance")?.display(), socket.display());
    let alone = format!("{reach} --out said && until [ -e said ]; do sleep 0.02; done; cat said; rm said");
    Ok([("plain", reach.clone()), ("unmarked", format!("env -i {reach}")), ("alone", alone)])
}

#[test]
fn a_tool_of_the_model_cannot_call_the_daemon() {
    scenario("peer_refused", &["R-SEC-1", "R-PLC-1"], Setup::outer().bridge(OWN), async |rig| {
        for (way, command) in ways(rig.place().socket())? {
            let said = tool(rig, way, &command).await?;
            assert!(said.contains("refused: "), "{way}: {said}");
            assert!(!said.contains("reached runtime-bridge"), "{way}: {said}");
        }
        // The log says it for each of them, with the process.
        let refused = rig.daemon.wait_for_logs("a peer of the socket was refused", 3).await?;
        assert!(
            refused.iter().all(|line| line["why"].as_str().is_some_and(|why| why.contains("process"))),
            "{refused:?}"
        );
        // We are let in as before.
        rig.client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
        Ok(())
    });
}

/// The control: the same commands do reach a daemon that does not look.
#[test]
fn without_the_check_a_tool_does_call_the_daemon() {
    let setup = Setup::outer().bridge(OWN).with("refuse_tools = false");
    scenario("peer_unchecked", &["R-SEC-1"], setup, async |rig| {
        for (way, command) in ways(rig.place().socket())? {
            let said = tool(rig, way, &command).await?;
            assert!(said.contains("reached runtime-bridge"), "{way}: {said}");
        }
        Ok(())
    });
}

#[test]
fn the_socket_and_the_state_are_for_nobody_else() {
    scenario("socket_mode", &["R-SEC-1"], Setup::outer().bridge(OWN), async |rig| {
        rig.whole_turn(&rig.session().await?, "t-1", "hello").await?.completed()?;
        let socket = fs::symlink_metadata(rig.place().socket())?;
        assert!(socket.file_type().is_socket());
        assert_eq!(socket.permissions().mode() & 0o777, 0o600);
        // Every folder that the bridge makes, and every file that holds events or results.
        let mut folders = vec![rig.place().state()];
        while let Some(folder) = folders.pop() {
            assert_eq!(fs::metadata(&folder)?.permissions().mode() & 0o077, 0, "{}", folder.display());
            for entry in fs::read_dir(&folder)? {
                let (path, kind) = {
                    let entry = entry?;
                    (entry.path(), entry.file_type()?)
                };
                // What the Harness makes in its own home is its own affair, below a folder that is closed.
                let ours = !path.components().any(|part| part.as_os_str() == "home");
                if kind.is_dir() && ours {
                    folders.push(path);
                } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "log") {
                    assert_eq!(fs::metadata(&path)?.permissions().mode() & 0o077, 0, "{}", path.display());
                }
            }
        }
        Ok(())
    });
}
