//! `runtime-bridge release`: the operator's way out of a Session whose Core is gone (R-ASG-4).
//!
//! It is a Core of one call over the daemon's socket: it looks the Session up, and releases it under the next epoch.

use std::{fmt::Write as _, path::PathBuf};

use clap::Args;
use proto::{
    client::{self, Client, Endpoint},
    v1::{self, Reason},
};

use crate::config::{self, Overrides, Settings};

/// Release a Session of a running daemon: fence its Core off, end what runs, close its Executor.
///
/// Ends with 0 when all of it is proved, with 1 when it is not or there is no such Session, with 2 for a wrong command line. The same command
/// may be given again.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReleaseArgs {
    /// Id of the Session.
    #[arg(long, value_name = "ID")]
    session: String,
    /// Principal that it belongs to, such as `uid:1000`; needed where several have a Session of this id.
    #[arg(long, value_name = "NAME")]
    principal: Option<String>,
    /// Remove the native home with the Session's history too; it can then never be resumed.
    #[arg(long)]
    remove_home: bool,
    /// Where the daemon listens [default: the socket of the configuration].
    #[arg(long, value_name = "unix:PATH", conflicts_with_all = ["socket", "config"])]
    endpoint: Option<Endpoint>,
    /// Unix socket of the daemon.
    #[arg(long, env = "RUNTIME_BRIDGE_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The daemon's configuration file, for its socket.
    #[arg(long, env = "RUNTIME_BRIDGE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

/// What there is to tell, and whether all is proved.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) text: String,
    pub(crate) is_confirmed: bool,
}

/// The Session was not released.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Its socket is not known.
    #[error(transparent)]
    Settings(#[from] config::Error),
    /// The daemon did not answer, or refused.
    #[error("{step}: {source}{advice}")]
    Call {
        /// What was tried.
        step: String,
        /// What came of it.
        source: Box<client::Error>,
        /// What a person can do.
        advice: &'static str,
    },
    /// Nobody has it.
    #[error("release the Session {session}: the daemon at {endpoint} has no such Session {of}; nothing was changed")]
    Unknown {
        /// Its id.
        session: String,
        /// Where it was looked for.
        endpoint: Endpoint,
        /// Of whom.
        of: String,
    },
    /// Several have it.
    #[error(
        "release the Session {session}: several principals have one of this id ({principals}); name one with --principal"
    )]
    Several {
        /// Its id.
        session: String,
        /// Who.
        principals: String,
    },
}

/// Releases the Session.
pub(crate) async fn release(arguments: ReleaseArgs) -> Result<Told, Error> {
    let endpoint = endpoint(&arguments)?;
    let failed = |step: String, advice| move |source| Error::Call { step, source: Box::new(source), advice };
    let client = Client::connect(endpoint.clone()).await.map_err(failed(
        format!("reach the daemon at {endpoint}"),
        "; start it, or name where it listens with --socket or --endpoint",
    ))?;
    let found =
        find(&client, &arguments).await.map_err(failed(format!("look up the Session {}", arguments.session), ""))?;
    let session = match found.as_slice() {
        [session] => session,
        [] => {
            let of = arguments.principal.as_ref().map_or_else(String::new, |principal| format!("of {principal}"));
            return Err(Error::Unknown { session: arguments.session, endpoint, of });
        }
        several => {
            let principals = several.iter().map(|session| session.principal.as_str()).collect::<Vec<_>>().join(", ");
            return Err(Error::Several { session: arguments.session, principals });
        }
    };
    let request = v1::ReleaseAssignmentRequest {
        assignment: Some(v1::AssignmentRef {
            session_id: session.session_id.clone(),
            assignment_id: session.assignment_id.clone(),
            // What is released already is cleaned up again under its own epoch.
            epoch: if session.released { session.epoch } else { session.epoch.saturating_add(1) },
        }),
        remove_home: arguments.remove_home,
        principal: Some(session.principal.clone()),
    };
    let answer = client.release_assignment(request).await.map_err(|source| {
        let advice = match source.reason() {
            Some(Reason::AssignmentConflict | Reason::AssignmentStale) => {
                "; its Core was at work meanwhile: give the command again"
            }
            _ => "",
        };
        failed(format!("release the Session {}", session.session_id), advice)(source)
    })?;
    Ok(tell(session, &answer, arguments.remove_home))
}

fn endpoint(arguments: &ReleaseArgs) -> Result<Endpoint, Error> {
    if let Some(endpoint) = &arguments.endpoint {
        return Ok(endpoint.clone());
    }
    let overrides =
        Overrides { config: arguments.config.clone(), socket: arguments.socket.clone(), ..Overrides::default() };
    Ok(Endpoint::Unix(Settings::load(overrides)?.socket))
}

/// The Sessions of this id that may be meant: of all principals where this caller may see them, else its own.
async fn find(client: &Client, arguments: &ReleaseArgs) -> Result<Vec<v1::SessionSummary>, client::Error> {
    let mut request = v1::ListSessionsRequest {
        all_principals: true,
        session_id: Some(arguments.session.clone()),
        ..Default::default()
    };
    let mut found = Vec::new();
    loop {
        let page = match client.list_sessions(request.clone()).await {
            Err(error) if request.all_principals && error.reason() == Some(Reason::NotAuthorized) => {
                request.all_principals = false;
                continue;
            }
            page => page?,
        };
        let named = |session: &v1::SessionSummary| {
            arguments.principal.as_ref().is_none_or(|principal| *principal == session.principal)
        };
        found.extend(page.sessions.into_iter().filter(named));
        if page.next_page_token.is_empty() {
            return Ok(found);
        }
        request.page_token = page.next_page_token;
    }
}

fn tell(session: &v1::SessionSummary, answer: &v1::ReleaseAssignmentResponse, remove_home: bool) -> Told {
    let is_confirmed = answer.outcome() == v1::ReleaseOutcome::Confirmed;
    let v1::SessionSummary { session_id, principal, running_turn_id, .. } = session;
    let mut text = if is_confirmed {
        format!("The Session {session_id} of {principal} is released, and nothing native of it is left.\n")
    } else {
        format!(
            "The Session {session_id} of {principal} is fenced, but its cleanup is not proved: {}.\n\
             Give the same command again; what is left is tried once more each time.\n",
            answer.detail
        )
    };
    // A String can always be written to.
    if !running_turn_id.is_empty() {
        _ = writeln!(text, "Its Turn {running_turn_id} was ended.");
    }
    if remove_home && answer.home_removed {
        text.push_str("Its native home is removed.\n");
    }
    Told { text, is_confirmed }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(running_turn_id: &str) -> v1::SessionSummary {
        v1::SessionSummary {
            session_id: "s-1".into(),
            principal: "uid:1000".into(),
            running_turn_id: running_turn_id.into(),
            ..Default::default()
        }
    }

    #[test]
    fn a_confirmed_release_says_what_it_did() {
        let answer = v1::ReleaseAssignmentResponse {
            outcome: v1::ReleaseOutcome::Confirmed.into(),
            home_removed: true,
            ..Default::default()
        };
        let told = tell(&session("t-7"), &answer, true);
        assert!(told.is_confirmed);
        insta::assert_snapshot!(told.text, @r"
        The Session s-1 of uid:1000 is released, and nothing native of it is left.
        Its Turn t-7 was ended.
        Its native home is removed.
        ");
    }

    #[test]
    fn an_unconfirmed_release_says_what_to_do() {
        let answer = v1::ReleaseAssignmentResponse {
            outcome: v1::ReleaseOutcome::Unconfirmed.into(),
            detail: "native processes of the Session could not be ended".into(),
            ..Default::default()
        };
        let told = tell(&session(""), &answer, true);
        assert!(!told.is_confirmed);
        insta::assert_snapshot!(told.text, @r"
        The Session s-1 of uid:1000 is fenced, but its cleanup is not proved: native processes of the Session could not be ended.
        Give the same command again; what is left is tried once more each time.
        ");
    }
}
