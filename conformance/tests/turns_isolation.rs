//! The Harness's own sandbox, where the machine has what it needs; where it has not, the bridge says so before anything
//! is started.

use std::path::{Path, PathBuf};

use conformance::rig::{Isolation, Observed, Rig, Setup, Stands, codex, function, refused, scenario, text_result};
use proto::client::Session;
use proto::v1;
use proto::v1::Reason;

/// Why only Codex.
const SANDBOX: &str = "Claude Code has no sandbox of its own";

#[test]
fn the_native_sandbox_holds_or_is_said_not_to_work() {
    let setup = Setup { isolation: Isolation::Native, ..Setup::default().only(SANDBOX) };
    scenario("isolation_native", &["R-PLC-1", "R-CAP-1", "R-PRE-1"], setup, async |rig| {
        let declared = rig.declaration().await?;
        assert_eq!((declared.kind.as_str(), declared.isolation.as_str()), ("codex", "native"));
        let session = rig.session().await?;
        if !declared.available {
            // This is what there is to show on a machine without user namespaces.
            eprintln!("the native sandbox was not tried: {}", declared.unavailable_reason);
            return says_so(rig, &session, &declared).await;
        }
        // Codex lets commands write below the temp folder, where a checkout may lie; this folder is outside of both.
        let name = rig.place().root().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let outside = Path::new("/var/tmp").join(format!("{name}-outside.txt"));
        let command = format!(
            "echo inside >inside.txt; echo outside >{}; (exec 3<>/dev/tcp/127.0.0.1/{}) && echo connected; echo over",
            outside.display(),
            rig.provider.address().port()
        );
        let steps = serde_json::json!([
            {"play": [{"shell": {"command": command, "yield_ms": 30000}}, {"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]},
            {"play": [{"text": {"chunks": ["Done."]}}]}]);
        rig.provider.script(&steps.to_string())?;
        let configuration = rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)]);
        let mut events = rig.start_turn(&session, configuration, "t-1", "try it").await?;
        let mut seen = Observed::default();
        seen.call(&mut events).await?;
        session.submit(vec![text_result("t-1", "c1", "found")]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        let output = seen.tool_output()?;
        assert_eq!(std::fs::read_to_string(rig.workspace().join("inside.txt"))?, "inside\n");
        assert!(std::fs::remove_file(&outside).is_err(), "the sandbox lets writes out: {output}");
        assert!(!output.contains("connected"), "the sandbox lets connections out: {output}");
        Ok(())
    });
}

#[test]
fn a_sandbox_that_does_not_work_makes_the_harness_unavailable() {
    let setup = Setup {
        isolation: Isolation::Native,
        stands: Stands::At(without_sandbox().unwrap()),
        ..Setup::default().only(SANDBOX)
    };
    scenario("isolation_native_broken", &["R-PLC-1", "R-CAP-1", "R-PRE-1"], setup, async |rig| {
        let session = rig.session().await?;
        says_so(rig, &session, &rig.declaration().await?).await
    });
    // Where the machine isolates, the same program is good enough.
    let setup = Setup { stands: Stands::At(without_sandbox().unwrap()), ..Setup::outer().only(SANDBOX) };
    scenario("isolation_outer_without_sandbox", &["R-PLC-1", "R-CAP-1"], setup, async |rig| {
        let session = rig.session().await?;
        rig.whole_turn(&session, "t-1", "hello").await?.completed()
    });
}

/// The declaration and the preparation say that the sandbox does not work, and what to do; nothing is started.
async fn says_so(rig: &Rig, session: &Session, codex: &v1::HarnessDeclaration) -> anyhow::Result<()> {
    assert!(!codex.available);
    for word in ["sandbox", "isolation"] {
        assert!(codex.unavailable_reason.contains(word), "{}", codex.unavailable_reason);
    }
    let prepared = rig.prepare(session, rig.configuration(Vec::new())).await;
    let refusal = refused(prepared, Reason::HarnessUnavailable)?;
    assert!(refusal.message.contains("isolation"), "what to do is not said: {}", refusal.message);
    assert_eq!(rig.provider.requests().len(), 0);
    let running: Vec<_> = rig.family()?.into_iter().filter(|one| one.command.contains("app-server")).collect();
    assert!(running.is_empty(), "{running:#?}");
    Ok(())
}

/// The real Codex, but that its sandbox finds no namespaces.
fn without_sandbox() -> anyhow::Result<PathBuf> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("without-sandbox-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let path = dir.join("codex");
    let text = format!(
        "#!/bin/sh\nif [ \"$1\" = sandbox ]; then echo 'no user namespaces here' >&2; exit 1; fi\nexec '{}' \"$@\"\n",
        codex()?.display()
    );
    std::fs::write(&path, text)?;
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(path)
}
