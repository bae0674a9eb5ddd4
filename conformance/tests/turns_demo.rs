//! The demo that a stranger runs first ends with the receipts of the real Codex.

use std::process::Command;

use conformance::rig::{claude, codex, program};

#[test]
fn the_demo_ends_with_one_line_for_each_receipt() -> anyhow::Result<()> {
    let output = Command::new(env!("CARGO_BIN_EXE_runtime-bridge-conformance"))
        .arg("demo")
        .arg("--daemon")
        .arg(program("runtime-bridge")?)
        .arg("--codex")
        .arg(codex()?)
        .arg("--claude")
        .arg(claude()?)
        .env_remove("OPENAI_API_KEY")
        .env_remove("RUNTIME_BRIDGE_DEMO_MODEL")
        .output()?;
    let (told, trouble) = (String::from_utf8(output.stdout)?, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{:?}\n{told}\n{trouble}", output.status);
    let last: Vec<_> = told.lines().rev().take(3).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(last, ["cancelled", "completed", "function_result_applied"], "{told}");
    for part in ["Hello from the bundled provider.", "weather {\"city\":\"Bern\"}", "It snows in Bern.", "sleep 60"] {
        assert!(told.contains(part), "{part:?} is not in\n{told}");
    }
    Ok(())
}

#[test]
fn a_demo_without_its_programs_fails_and_says_why() -> anyhow::Result<()> {
    let output = Command::new(env!("CARGO_BIN_EXE_runtime-bridge-conformance"))
        .args([
            "demo",
            "--daemon",
            "/nonexistent/runtime-bridge",
            "--codex",
            "/nonexistent/codex",
            "--claude",
            "/nonexistent/claude",
        ])
        .env_remove("OPENAI_API_KEY")
        .output()?;
    assert!(!output.status.success());
    let trouble = String::from_utf8_lossy(&output.stderr);
    assert!(trouble.contains("find /nonexistent/runtime-bridge"), "{trouble}");
    Ok(())
}
