//! `runtime-bridge doctor`: what of this machine the daemon can use, why not, and what to do (R-OBS-2).
//!
//! It only renders; whoever fills the report has looked.

use std::{fmt::Write as _, path::PathBuf};

/// What was found on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DoctorReport {
    /// Each Harness that the daemon knows.
    pub(crate) harnesses: Vec<HarnessFound>,
    /// Isolation and where it comes from, such as `native (default outside of a container)`.
    pub(crate) isolation: Finding,
    /// Path of the socket.
    pub(crate) socket: Finding,
    /// Path of the state.
    pub(crate) state_dir: Finding,
    /// Path of the keeper.
    pub(crate) keeper: Finding,
    /// What the peer check of the socket holds (R-SEC-1).
    pub(crate) peer_check: Finding,
    /// Whom Harnesses run under, and what they and what they run can reach so (R-SEC-1).
    pub(crate) uid: Finding,
    /// Whether the gateway keeps model keys away from Harnesses (R-SEC-3).
    pub(crate) gateway: Finding,
    /// Each listener with mutual TLS, for whom it is, and how long its certificate is good (R-SEC-1).
    pub(crate) listen: Vec<Finding>,
    /// The enrollment at a relay, where there is one (R-ENR-1).
    pub(crate) relay: Option<Finding>,
    /// The plain listener on loopback, where one is asked for.
    pub(crate) loopback: Option<Finding>,
}

/// One Harness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HarnessFound {
    /// Its kind, such as `codex`.
    pub(crate) kind: String,
    /// The program; `None` when there is none.
    pub(crate) path: Option<PathBuf>,
    /// What it says its version is.
    pub(crate) version: Option<String>,
    /// Whether the daemon was proved on exactly this version.
    pub(crate) qualified: bool,
    /// Why it cannot be used and what to do; `None` when it can.
    pub(crate) unusable: Option<String>,
    /// What an operator has to know who uses it.
    pub(crate) warnings: Vec<String>,
    /// What is declared for it: each placement with its capabilities.
    pub(crate) declared: Vec<(&'static str, Vec<String>)>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// What it is set to.
    pub(crate) value: String,
    /// What is wrong with it and what to do; `None` when nothing is.
    pub(crate) problem: Option<String>,
}

impl DoctorReport {
    /// Whether the daemon can start here and run at least one Harness.
    pub(crate) fn is_healthy(&self) -> bool {
        let findings = [&self.isolation, &self.socket, &self.state_dir, &self.keeper, &self.peer_check, &self.uid];
        self.harnesses.iter().any(|harness| harness.unusable.is_none())
            && findings.into_iter().chain(&self.listen).chain(&self.relay).all(|finding| finding.problem.is_none())
    }
}

/// The report for a person: one line for each thing, and for each Harness four, and one for each warning and each placement.
pub(crate) fn render(report: &DoctorReport) -> String {
    let mut text = String::new();
    for harness in &report.harnesses {
        let path = harness.path.as_ref().map_or_else(|| "not found".into(), |path| path.display().to_string());
        let version = match &harness.version {
            None => "unknown".into(),
            Some(version) if harness.qualified => version.clone(),
            Some(version) => format!("{version} (not proved; the nearest proved version is taken as its like)"),
        };
        let usable = harness.unusable.as_ref().map_or_else(|| "yes".into(), |why| format!("no: {why}"));
        line(&mut text, "Harness", &harness.kind);
        line(&mut text, "  path", &path);
        line(&mut text, "  version", &version);
        line(&mut text, "  usable", &usable);
        for warning in &harness.warnings {
            line(&mut text, "  warning", warning);
        }
        for (placement, capabilities) in &harness.declared {
            let declared = if capabilities.is_empty() { "nothing".into() } else { capabilities.join(" ") };
            line(&mut text, &format!("  {placement}"), &declared);
        }
    }
    let findings = [
        ("isolation", &report.isolation),
        ("socket", &report.socket),
        ("state", &report.state_dir),
        ("keeper", &report.keeper),
        ("peer check", &report.peer_check),
        ("uid", &report.uid),
        ("gateway", &report.gateway),
    ];
    let listen = report.listen.iter().map(|finding| ("listen", finding));
    let relay = report.relay.as_ref().map(|finding| ("relay", finding));
    let loopback = report.loopback.as_ref().map(|finding| ("loopback", finding));
    for (name, finding) in findings.into_iter().chain(listen).chain(relay).chain(loopback) {
        match &finding.problem {
            None => line(&mut text, name, &finding.value),
            Some(problem) => line(&mut text, name, &format!("{}: {problem}", finding.value)),
        }
    }
    line(&mut text, "all in all", if report.is_healthy() { "ready" } else { "not ready" });
    text
}

fn line(text: &mut String, name: &str, value: &str) {
    // A String can always be written to.
    _ = writeln!(text, "{name:<12}{value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fine(value: &str) -> Finding {
        Finding { value: value.into(), problem: None }
    }

    fn report() -> DoctorReport {
        DoctorReport {
            harnesses: vec![HarnessFound {
                kind: "codex".into(),
                path: Some("/opt/codex/bin/codex".into()),
                version: Some("0.171.0".into()),
                qualified: true,
                unusable: None,
                warnings: Vec::new(),
                declared: vec![("none", vec!["usage".into()]), ("workspace", vec!["usage".into(), "steering".into()])],
            }],
            isolation: fine("native (default outside of a container)"),
            socket: fine("/run/user/1000/runtime-bridge.sock"),
            state_dir: fine("/srv/ada/.local/state/runtime-bridge"),
            keeper: fine("/opt/bridge/runtime-bridge-keeper"),
            peer_check: fine("a process below a keeper is refused"),
            uid: fine("1000, which Harnesses have too"),
            gateway: fine("on: no Harness holds a model key"),
            listen: Vec::new(),
            relay: None,
            loopback: None,
        }
    }

    #[test]
    fn a_healthy_machine_has_fourteen_lines() {
        let report = report();
        assert!(report.is_healthy());
        insta::assert_snapshot!(render(&report), @r"
        Harness     codex
          path      /opt/codex/bin/codex
          version   0.171.0
          usable    yes
          none      usage
          workspace usage steering
        isolation   native (default outside of a container)
        socket      /run/user/1000/runtime-bridge.sock
        state       /srv/ada/.local/state/runtime-bridge
        keeper      /opt/bridge/runtime-bridge-keeper
        peer check  a process below a keeper is refused
        uid         1000, which Harnesses have too
        gateway     on: no Harness holds a model key
        all in all  ready
        ");
    }

    #[test]
    fn every_problem_stands_where_it_is() {
        let mut report = report();
        let harness = &mut report.harnesses[0];
        harness.path = None;
        harness.version = None;
        harness.unusable = Some("no program codex on the PATH; set codex.program".into());
        report.isolation.problem = Some("the sandbox cannot be made here; set isolation to outer".into());
        assert!(!report.is_healthy());
        insta::assert_snapshot!(render(&report), @r"
        Harness     codex
          path      not found
          version   unknown
          usable    no: no program codex on the PATH; set codex.program
          none      usage
          workspace usage steering
        isolation   native (default outside of a container): the sandbox cannot be made here; set isolation to outer
        socket      /run/user/1000/runtime-bridge.sock
        state       /srv/ada/.local/state/runtime-bridge
        keeper      /opt/bridge/runtime-bridge-keeper
        peer check  a process below a keeper is refused
        uid         1000, which Harnesses have too
        gateway     on: no Harness holds a model key
        all in all  not ready
        ");
    }

    #[test]
    fn a_listener_that_cannot_be_used_is_told() {
        let mut report = report();
        let listen = |problem| Finding { value: "0.0.0.0:7443 with mutual TLS for urn:core".into(), problem };
        report.listen = vec![listen(None), listen(Some("the certificate is expired since 3 days".into()))];
        assert!(!report.is_healthy());
        let text = render(&report);
        assert!(text.contains("\nlisten      0.0.0.0:7443 with mutual TLS for urn:core\n"), "{text}");
        assert!(text.contains("for urn:core: the certificate is expired since 3 days\n"), "{text}");
    }

    #[test]
    fn an_enrollment_that_cannot_be_used_is_told() {
        let mut report = report();
        let relay = |problem| Some(Finding { value: "enrolled as env-1 at https://relay.test:1".into(), problem });
        report.relay = relay(None);
        assert!(
            report.is_healthy()
                && render(&report).contains("\nrelay       enrolled as env-1 at https://relay.test:1\n")
        );
        report.relay = relay(Some("parked".into()));
        assert!(!report.is_healthy() && render(&report).contains("relay.test:1: parked\n"));
    }

    #[test]
    fn one_harness_is_enough_and_each_has_its_own_lines() {
        let mut report = report();
        let missing = HarnessFound {
            kind: "claude_code".into(),
            path: None,
            version: None,
            qualified: false,
            unusable: Some("no program claude on the PATH; set claude_code.program".into()),
            warnings: vec!["its key can be read".into()],
            declared: vec![("none", Vec::new()), ("workspace", Vec::new())],
        };
        report.harnesses.insert(0, missing);
        assert!(report.is_healthy());
        let text = render(&report);
        let first: Vec<_> = text.lines().take(8).collect();
        assert_eq!(
            first,
            [
                "Harness     claude_code",
                "  path      not found",
                "  version   unknown",
                "  usable    no: no program claude on the PATH; set claude_code.program",
                "  warning   its key can be read",
                "  none      nothing",
                "  workspace nothing",
                "Harness     codex",
            ]
        );
    }

    #[test]
    fn a_version_that_was_not_proved_says_so() {
        let mut report = report();
        report.harnesses[0].qualified = false;
        let text = render(&report);
        assert!(text.contains("0.171.0 (not proved;"), "{text}");
        assert!(report.is_healthy());
    }
}
