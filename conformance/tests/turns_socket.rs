//! What the model runs may not call the bridge: its shell has the daemon's uid, and is refused all the same.

use conformance::for_each_harness;
use conformance::rig::{Harness, Rig, Setup, program, scenario};
use proto::v1;
use serde_json::json;

for_each_harness!(a_tool_of_the_model_is_refused_at_the_socket, the_same_tool_connects_where_the_check_is_off);

fn a_tool_of_the_model_is_refused_at_the_socket(harness: Harness) {
    scenario("socket_refuses_tools", &["R-SEC-1"], Setup::outer().of(harness), async |rig| {
        let said = ask_from_the_shell(rig).await?;
        assert!(!said.contains("answered by"), "a tool was answered: {said}");
        for kind in ["plain", "hidden"] {
            assert!(said.contains(&format!("{kind} asked: 1")), "{said}");
        }
        // The daemon says so, and answers everybody else.
        rig.daemon.wait_for_logs("a peer of the socket was refused", 2).await?;
        rig.client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
        Ok(())
    });
}

fn the_same_tool_connects_where_the_check_is_off(harness: Harness) {
    let setup = Setup::outer().of(harness).with("refuse_tools = false");
    scenario("socket_check_off", &["R-SEC-1"], setup, async |rig| {
        let said = ask_from_the_shell(rig).await?;
        for kind in ["plain", "hidden"] {
            assert!(said.contains(&format!("{kind} asked: 0")), "{said}");
        }
        Ok(())
    });
}

/// The model's shell asks the bridge who it is: as a child, and as a process in a session of its own, without any of our
/// variables, whose parent is gone. Gives what it printed, each time with the exit code.
async fn ask_from_the_shell(rig: &Rig) -> anyhow::Result<String> {
    let program = program("runtime-bridge-conformance")?;
    // Whichever of them hangs is told by its code, or by none, instead of by a scenario that is not done.
    let ask = format!("timeout 12 {} ask --socket {}", program.display(), rig.place().socket().display());
    let command = format!(
        "{ask}; echo plain asked: $?; \
         mkfifo told; (env -i /bin/sh -c 'exec setsid /bin/sh -c \"({ask}; echo \\$?) >told 2>&1\"' & ); \
         echo hidden asked: $(timeout 20 cat told | tail -n 1)"
    );
    let step = json!([{"play": [{"shell": {"command": command, "yield_ms": 30000}}]}, {"play": [{"text": {"chunks": ["Asked."]}}]}]);
    rig.provider.script(&step.to_string())?;
    let session = rig.session().await?;
    let seen = rig.whole_turn(&session, "t-1", "ask the bridge").await?;
    seen.completed()?;
    seen.tool_output()
}
