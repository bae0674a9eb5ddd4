//! Looks at this machine as `serve` would, without starting or changing anything of it.

use std::{
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

use adapters::{
    claude_code, codex,
    harness::{Availability, Declaration, Isolation, Proved},
    minimax_code,
    native::user::User,
};

use super::{
    doctor::{DoctorReport, Finding, HarnessFound},
    enroll,
};
use crate::{
    config::{self, Listen, Settings},
    link,
    serve::{self, Harnesses},
    service,
};

/// Harnesses that keep the model key from the tools that they run, even where no gateway keeps it (R-SEC-3).
const KEY_APART: [&str; 1] = [codex::KIND];

/// What that means for an operator.
const KEY_WARNING: &str = "the model key stands in the environment of its process, and on a workspace whatever the model runs can read it; give it \
     a key that may be seen there, or switch the gateway on";

/// Harnesses that would ask a person for a login, and have no other way without a key.
const WANTS_LOGIN: [&str; 1] = [claude_code::KIND];

/// What that means: nobody is there to be asked (R-PLC-1).
const LOGIN_WARNING: &str = "without a key it would ask for a login, so a Session of it needs the credential `model`, and its preparation fails \
     without one; a login of this machine's user is not looked at";

/// Why a Harness may have no workspace where another one has, and what to do.
const NO_SANDBOX: &str = "it has no sandbox of its own, so it is not run on a workspace; set isolation to outer where the machine or the container \
     around the bridge keeps it apart";

/// The same for one whose sandbox may hold or not.
const UNPROVED_SANDBOX: &str = "whether its own sandbox holds was never shown, so it is not run on a workspace; set isolation to outer where the machine or \
     the container around the bridge keeps it apart";

/// The same for root, to whom Claude Code itself refuses it.
const ROOT_WITHOUT_SANDBOX: &str = "the bridge runs as root without a sandbox around it, where claude_code refuses to work on a workspace, and it has \
     no sandbox of its own; set isolation to outer where the machine or the container around the bridge keeps it apart";

/// What root takes upon itself with the isolation `outer`.
const ROOT_IN_SANDBOX: &str = "the bridge runs as root, where claude_code works on a workspace only within a sandbox: it is told that there is one \
     (IS_SANDBOX=1), on the word of isolation = outer; run the bridge as another user where none is";

/// Capabilities by the names of the contract.
fn names(of: &[Proved]) -> Vec<String> {
    let name = |proved: &Proved| service::capability(proved.capability()).as_str_name().to_lowercase();
    of.iter().map(|proved| name(proved).trim_start_matches("capability_").to_owned()).collect()
}

/// What `doctor` tells.
pub(super) async fn examine(settings: &Settings) -> DoctorReport {
    let keeper = serve::keeper(settings);
    let user = settings.harness_user();
    let uid = users(settings, &user, keeper.as_deref().ok()).await;
    let user = user.ok().flatten();
    let is_root = user.is_none() && rustix::process::geteuid().is_root();
    let hosted = Harnesses::new(settings, keeper.as_ref().map_or_else(|_| PathBuf::new(), Clone::clone), user);
    let mut harnesses = Vec::new();
    for harness in hosted.by_kind().values() {
        let declared = harness.declare().await;
        harnesses.push(found(declared, is_root, settings.gateway));
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
        uid,
        gateway: fine(if settings.gateway {
            "on: no Harness holds a model key"
        } else {
            "off: each Harness holds its model key itself, and addresses of providers are not checked where they are connected to"
        }),
        listen: settings.listen.iter().map(listener).collect(),
        relay: enroll::examine(&settings.state).map(|(value, problem)| Finding { value, problem }),
        // Settings with a listener that may not be are none.
        loopback: settings.loopback().ok().flatten().map(|loopback| {
            fine(format!(
                "{} for `{}`, plain TCP without a peer check: whatever can read the bearer file can call, tools that a model runs {}",
                loopback.address,
                loopback.name,
                if settings.harness_user.is_none() { "included" } else { "not included" }
            ))
        }),
    }
}

/// Whom a listener with TLS serves, and whether its files are good.
fn listener(of: &Listen) -> Finding {
    let names: Vec<_> = of.allow.iter().map(String::as_str).collect();
    let value = format!("{} with mutual TLS for {}", of.address, names.join(", "));
    match link::examine(of) {
        Ok(told) => Finding { value: format!("{value}; {told}"), problem: None },
        Err(problem) => Finding { value, problem: Some(problem) },
    }
}

/// What a declaration says of its Harness.
fn found(of: Declaration, is_root: bool, is_behind_gateway: bool) -> HarnessFound {
    let declared = vec![("none", names(&of.none)), ("workspace", names(&of.workspace))];
    let warnings = warnings(&of, is_root, is_behind_gateway).into_iter().map(str::to_owned).collect();
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

/// What its user has to know.
fn warnings(of: &Declaration, is_root: bool, is_behind_gateway: bool) -> Vec<&'static str> {
    // Behind the gateway it holds no key, and always has something that looks like one.
    let of_key = (!is_behind_gateway && !KEY_APART.contains(&of.kind)).then_some(KEY_WARNING);
    let of_login = (!is_behind_gateway && WANTS_LOGIN.contains(&of.kind)).then_some(LOGIN_WARNING);
    let isolation = match of.isolation {
        Isolation::Native if !of.workspace.is_empty() => None,
        Isolation::Native if is_root && of.kind == claude_code::KIND => Some(ROOT_WITHOUT_SANDBOX),
        Isolation::Native if of.kind == minimax_code::KIND => Some(UNPROVED_SANDBOX),
        Isolation::Native => Some(NO_SANDBOX),
        Isolation::Outer => (is_root && of.kind == claude_code::KIND).then_some(ROOT_IN_SANDBOX),
    };
    [of_key, of_login, isolation].into_iter().flatten().collect()
}

fn fine(value: impl std::fmt::Display) -> Finding {
    Finding { value: value.to_string(), problem: None }
}

/// Whom Harnesses run under, and what that keeps from them (R-SEC-1).
async fn users(settings: &Settings, user: &Result<Option<User>, config::Error>, keeper: Option<&Path>) -> Finding {
    let own = rustix::process::geteuid().as_raw();
    match user {
        Ok(None) => fine(same_uid(own, settings.isolation())),
        Ok(Some(user)) => {
            let mut finding = fine(format!(
                "{own}, and Harnesses have uid {}, gid {}: what a model runs reaches neither the daemon and the keepers nor journal, events and key \
                 files; it reaches the homes and processes of other Sessions, which have that uid too",
                user.uid, user.gid
            ));
            // The state itself is made passable at the start.
            if let (Some(keeper), Some(above)) = (keeper, settings.state.parent().filter(|above| above.is_dir())) {
                finding.problem = user.enter(keeper, above).await.err();
            }
            finding
        }
        Err(error) => Finding { value: own.to_string(), problem: Some(format!("could not {error}")) },
    }
}

/// What it means that Harnesses have the daemon's uid.
fn same_uid(uid: u32, isolation: Isolation) -> String {
    let reach = match (isolation, uid) {
        (Isolation::Native, _) => "the sandbox keeps what a model runs from writing elsewhere, and not from reading",
        // Root may read whatever it likes.
        (Isolation::Outer, 0) => {
            "what a model runs can read the state, key files, and the daemon's environment and memory; `harness_user` gives Harnesses another user"
        }
        (Isolation::Outer, _) => {
            "what a model runs can read the state and key files; a daemon that is root can give Harnesses another user (`harness_user`)"
        }
    };
    format!("{uid}, which Harnesses have too: {reach}; docs/security.md says more")
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

#[cfg(test)]
mod tests {
    use adapters::{
        claude_code::ClaudeCode,
        codex::Codex,
        harness::{self, Harness},
    };

    use super::*;

    /// What is warned of, of a Harness that is not there.
    async fn warned(harness: impl Harness, is_root: bool) -> Vec<&'static str> {
        warnings(&harness.declare().await, is_root, false)
    }

    fn settings(isolation: Isolation) -> harness::Settings {
        let nowhere = PathBuf::from("/nonexistent/program");
        harness::Settings { program: Some(nowhere), ..harness::Settings::new(PathBuf::from("/keeper"), isolation) }
    }

    #[test]
    fn what_the_same_uid_can_reach_depends_on_isolation_and_root() {
        for (uid, isolation, memory, reading) in [
            (1000, Isolation::Outer, false, true),
            (0, Isolation::Outer, true, true),
            (1000, Isolation::Native, false, false),
        ] {
            let told = same_uid(uid, isolation);
            assert!(told.starts_with(&format!("{uid}, ")), "{told}");
            assert_eq!((told.contains("memory"), told.contains("key files")), (memory, reading), "{told}");
        }
    }

    #[tokio::test]
    async fn root_and_a_missing_sandbox_are_told_apart() {
        let of_key = [KEY_WARNING, LOGIN_WARNING];
        for (isolation, is_root, want) in [
            (Isolation::Outer, false, None),
            (Isolation::Outer, true, Some(ROOT_IN_SANDBOX)),
            (Isolation::Native, false, Some(NO_SANDBOX)),
            (Isolation::Native, true, Some(ROOT_WITHOUT_SANDBOX)),
        ] {
            let claude = warned(ClaudeCode::new(settings(isolation)), is_root).await;
            assert_eq!(claude, of_key.into_iter().chain(want).collect::<Vec<_>>(), "{isolation:?} {is_root}");
        }
        assert_eq!(warned(Codex::new(settings(Isolation::Native)), true).await, [""; 0]);
        let mcode = |isolation| warned(minimax_code::harness(settings(isolation)), true);
        assert_eq!(mcode(Isolation::Outer).await, [KEY_WARNING]);
        assert_eq!(mcode(Isolation::Native).await, [KEY_WARNING, UNPROVED_SANDBOX]);
        let behind = ClaudeCode::new(settings(Isolation::Outer)).declare().await;
        assert_eq!(warnings(&behind, false, true), [""; 0]);
    }
}
