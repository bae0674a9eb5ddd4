//! What a Harness repeats of the model key is cut out, and a process of Codex has the variables that are meant for it (R-SEC-2, R-SEC-6).
//! That no secret is anywhere else is `security_canary`'s.

use std::path::PathBuf;

use conformance::child::codex;
use conformance::child::fault::{Fault, Place};
use conformance::rig::{MODEL_KEY, Setup, Stands, files_with, scenario};

/// Why one Harness is enough.
const CUT: &str = "the bridge cuts the key out, whoever repeats it";

#[test]
fn a_harness_that_repeats_the_key_is_cut() {
    let setup = Setup {
        stands: Stands::Faulty(Box::new(codex::healthy())),
        ..Setup::outer().bridge(CUT).with("log = \"debug\"")
    };
    scenario("key_repeated", &["R-SEC-6", "R-EVT-5"], setup, async |rig| {
        let child = rig.child.clone().ok_or_else(|| anyhow::anyhow!("no child"))?;
        // The child's own record of what it received holds the key; it is the test's and not the bridge's.
        let error = serde_json::json!({"code": -32600, "message": format!("bad token {MODEL_KEY}")});
        let refuses = conformance::script::child::Step::Error(serde_json::value::to_raw_value(&error)?);
        child.play(codex::with_steps(Place::AtThreadStart, &[refuses]))?;
        let session = rig.session().await?;
        let refused =
            rig.prepare(&session, rig.configuration(Vec::new())).await.err().map(|error| format!("{error:?}"));
        let refused = refused.unwrap_or_default();
        assert!(refused.contains("bad token") && !refused.contains(MODEL_KEY), "{refused}");
        child.play(codex::with_fault(Place::InMessage, Fault::ExitsWith1))?;
        let observed = rig.whole_turn(&session, "t-1", "hello").await?;
        assert!(!format!("{:?}", observed.events).contains(MODEL_KEY));
        assert!(!rig.daemon.log_text().contains(MODEL_KEY), "the key is in the logs");
        assert_eq!(files_with(&rig.place().state(), MODEL_KEY)?, [] as [PathBuf; 0]);
        Ok(())
    });
}

#[test]
fn codex_has_its_variables_and_no_others() {
    let setup = Setup::outer()
        .only("which variables there are is each Harness's own; claude_environment has those of Claude Code");
    scenario("codex_environment", &["R-SEC-2"], setup, async |rig| {
        let session = rig.session().await?;
        rig.prepare(&session, rig.configuration(Vec::new())).await?;
        let harness = rig.harness()?;
        let allowed = ["CODEX_HOME", "HOME", "LANG", "LC_ALL", "PATH", "RUNTIME_BRIDGE_MARK", "TMPDIR"];
        let mut variables: Vec<_> = harness.variables().collect();
        variables.sort_unstable();
        assert_eq!(variables, allowed);
        for name in ["HOME", "CODEX_HOME", "TMPDIR"] {
            let folder = harness.variable(name).unwrap_or_default();
            assert!(folder.starts_with(&*rig.place().state().to_string_lossy()), "{name} is {folder}");
        }
        Ok(())
    });
}
