//! The check finds nothing in the daemon as it is, and exactly what a proxy in front of it breaks: a check that finds
//! nothing shows nothing.

use std::collections::BTreeSet;
use std::process::Command;

use conformance::check::{Report, Subject, Verdict, check};
use conformance::proxy::{Planted, Proxy};
use conformance::rig::{Rig, Setup, scenario};
use proto::client::Endpoint;

/// Why one Harness is enough.
const OWN: &str = "the check looks at the protocol, whatever is behind it";

/// What is judged in a bridge that has this much of the protocol.
const RULES: [&str; 12] = [
    "R-API-1", "R-API-6", "R-ASG-1", "R-ASG-4", "R-CAN-1", "R-EVT-1", "R-EVT-2", "R-EVT-3", "R-FN-3", "R-FN-5",
    "R-FN-6", "R-FN-9",
];

#[test]
fn nothing_is_found_in_the_daemon_as_it_is() {
    scenario("check_plain", &RULES, Setup::outer().bridge(OWN), async |rig| {
        let port = rig.give_way().await?;
        let output = Command::new(env!("CARGO_BIN_EXE_runtime-bridge-conformance"))
            .arg("check")
            .arg("--endpoint")
            .arg(format!("unix:{}", rig.place().socket().display()))
            .arg("--workspace")
            .arg(rig.workspace())
            .args(["--provider-port", &port.to_string()])
            .output()?;
        let told = String::from_utf8(output.stdout)?;
        anyhow::ensure!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
        for rule in RULES {
            let passed = told.lines().any(|line| line.starts_with(&format!("passed    {rule}")));
            anyhow::ensure!(passed, "{rule} was not judged:\n{told}");
        }
        anyhow::ensure!(!told.contains("unjudged"), "{told}");
        anyhow::ensure!(std::fs::read_dir(rig.workspace())?.next().is_none(), "the check left something behind");
        Ok(())
    });
}

#[test]
fn nothing_is_found_through_a_proxy_that_breaks_nothing() {
    planted("check_proxy", None, &[]);
}

#[test]
fn a_dropped_event_is_found() {
    planted("check_dropped", Some(Planted::DropsAnEvent), &["R-EVT-1"]);
}

#[test]
fn a_receipt_that_comes_too_early_is_found() {
    planted("check_early", Some(Planted::AppliesEarly), &["R-FN-6"]);
}

#[test]
fn a_forgotten_conflict_is_found() {
    planted("check_forgotten", Some(Planted::ForgetsConflicts), &["R-API-6", "R-FN-5"]);
}

fn planted(name: &str, planted: Option<Planted>, want: &'static [&'static str]) {
    scenario(name, &RULES, Setup::outer().bridge(OWN), async |rig| {
        let port = rig.give_way().await?;
        let report = through(rig, port, planted).await?;
        let judged = report.judgements.iter().all(|one| !matches!(one.verdict, Verdict::Unjudged(_)));
        anyhow::ensure!(judged && report.failed() == BTreeSet::from_iter(want.iter().copied()), "{report}");
        Ok(())
    });
}

async fn through(rig: &Rig, port: u16, planted: Option<Planted>) -> anyhow::Result<Report> {
    let front = rig.place().socket().with_extension("proxy");
    let proxy = Proxy::start(&front, rig.place().socket(), planted).await?;
    let subject = Subject {
        endpoint: Endpoint::Unix(front),
        workspace: rig.workspace().to_owned(),
        harness: "codex".into(),
        model: None,
        provider_port: port,
    };
    let report = check(&subject).await?;
    proxy.stop().await;
    Ok(report)
}
