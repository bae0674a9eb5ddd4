//! Looks at this machine as `serve` would, without starting or changing anything of it.

use std::{
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

use adapters::{
    claude_code,
    harness::{Availability, Declaration, Isolation, Proved},
};

use super::doctor::{DoctorReport, Finding, HarnessFound};
use crate::{
    config::Settings,
    serve::{self, Harnesses},
    service,
};

/// Harnesses that hold the model key where the tools that they run can read it, where no gateway keeps it (R-SEC-3).
const KEY_BESIDE_TOOLS: [&str; 1] = [claude_code::KIND];

/// What that means for an operator.
const KEY_WARNING: &str = "the model key stands in the environment of its process, and on a workspace whatever the model runs can read it; give it \
     a key that may be seen there, or switch the gateway on";

/// Why a Harness may have no workspace where another one has, and what to do.
const NO_SANDBOX: &str = "it has no sandbox of its own, so it is not run on a workspace; set isolation to outer where the machine or the container \
     around the bridge keeps it apart";

/// Capabilities by the names of the contract.
fn names(of: &[Proved]) -> Vec<String> {
    let name = |proved: &Proved| service::capability(proved.capability()).as_str_name().to_lowercase();
    of.iter().map(|proved| name(proved).trim_start_matches("capability_").to_owned()).collect()
}

/// What `doctor` tells.
pub(super) async fn examine(settings: &Settings) -> DoctorReport {
    let keeper = serve::keeper(settings);
    let hosted = Harnesses::new(settings, keeper.as_ref().map_or_else(|_| PathBuf::new(), Clone::clone));
    let mut harnesses = Vec::new();
    for harness in hosted.by_kind().values() {
        harnesses.push(found(harness.declare().await, settings.gateway));
    }
    hosted.drained().await;
    DoctorReport {
        harnesses,
        isolation: isolation(settings),
        socket: socket(&settings.socket),
        state_dir: state(&settings.state),
        keeper: match keeper {
            Ok(path) => fine(path.display()),
            Err(error) => Finding { value: "missing".into(), problem: Some(format!("could not {error}")) },
        },
        peer_check: if settings.refuse_tools {
            fine("a process below a keeper is refused")
        } else {
            let problem = "tools that a model runs can call the bridge; set `refuse_tools` to true";
            Finding { value: "off".into(), problem: Some(problem.into()) }
        },
        gateway: fine(if settings.gateway {
            "on: no Harness holds a model key"
        } else {
            "off: each Harness holds its model key itself, and addresses of providers are not checked where they are connected to"
        }),
        // Settings with a listener that may not be are none.
        loopback: settings.loopback().ok().flatten().map(|loopback| {
            fine(format!(
                "{} for `{}`, plain TCP without a peer check: whatever can read the bearer file can call, tools that a model runs included",
                loopback.address, loopback.name
            ))
        }),
    }
}

/// What a declaration says of its Harness.
fn found(of: Declaration, is_behind_gateway: bool) -> HarnessFound {
    let declared = vec![("none", names(&of.none)), ("workspace", names(&of.workspace))];
    let mut warnings = Vec::new();
    if !is_behind_gateway && KEY_BESIDE_TOOLS.contains(&of.kind) {
        warnings.push(KEY_WARNING.to_owned());
    }
    if of.isolation == Isolation::Native && of.workspace.is_empty() {
        warnings.push(NO_SANDBOX.to_owned());
    }
    let unusable = match of.availability {
        Availability::Available => None,
        Availability::Unavailable { reason } => Some(reason),
    };
    HarnessFound {
        kind: of.kind.to_owned(),
        path: of.program,
        version: of.version,
        qualified: of.qualified,
        unusable,
        warnings,
        declared,
    }
}

fn fine(value: impl std::fmt::Display) -> Finding {
    Finding { value: value.to_string(), problem: None }
}

fn isolation(settings: &Settings) -> Finding {
    let name = match settings.isolation() {
        Isolation::Outer => "outer",
        Isolation::Native => "native",
    };
    fine(match settings.isolation {
        Some(_) => format!("{name} (as configured)"),
        None => format!("{name} (default {} a container)", if name == "outer" { "in" } else { "outside of" }),
    })
}

fn socket(path: &Path) -> Finding {
    let mut finding = fine(path.display());
    if path.exists() {
        match UnixStream::connect(path) {
            Ok(_) => finding.value = format!("{} (a daemon answers)", path.display()),
            Err(_) => finding.value = format!("{} (nobody answers)", path.display()),
        }
    }
    finding
}

fn state(path: &Path) -> Finding {
    let mut finding = fine(path.display());
    match path.metadata() {
        Ok(meta) if !meta.is_dir() => {
            finding.problem = Some("this is not a directory; name another with `state`".into())
        }
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            finding.value = format!("{} (made at the first start)", path.display());
        }
        Err(error) => finding.problem = Some(format!("it cannot be reached: {error}")),
    }
    finding
}
