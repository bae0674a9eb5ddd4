//! `runtime-bridge enroll`, `enrollment status` and `unenroll`: this machine and its relay (R-ENR-1).

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use proto::enrollment::v1::EnrollmentReason as Reason;

use crate::{
    clock,
    config::{self, Overrides, Settings},
    enroll::{
        self, Enrollment, Proxy,
        calls::Error as CallError,
        standing::{Board, Standing, Told},
        token::{self, TokenFile},
    },
};

/// Enroll this machine at a relay: the daemon then dials it, and Cores reach this machine there.
///
/// The key is made here and stays here. The command may be given again when its answer was lost.
#[derive(Args, Clone, Debug)]
pub(crate) struct EnrollArgs {
    /// The file that the relay's operator made, mode 0600.
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// HTTP proxy on the way to the relay, `http://HOST:PORT`; it is asked with CONNECT, also by the daemon.
    #[arg(long, env = "RUNTIME_BRIDGE_PROXY", value_name = "URL")]
    proxy: Option<Proxy>,
    #[command(flatten)]
    place: PlaceArgs,
}

/// Look at the enrollment of this machine.
#[derive(Args, Clone, Debug)]
pub(crate) struct EnrollmentArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Clone, Debug)]
enum Action {
    /// Say as what this machine is enrolled, and how the daemon's connection stands. Ends with 0 when it is connected, with 1 when it is not.
    Status(PlaceArgs),
}

/// Give the enrollment of this machine up: the relay revokes it, and its files are removed.
#[derive(Args, Clone, Debug)]
pub(crate) struct UnenrollArgs {
    /// Remove the files also when the relay cannot be told; its operator has to revoke the Environment then.
    #[arg(long)]
    offline: bool,
    #[command(flatten)]
    place: PlaceArgs,
}

#[derive(Args, Clone, Debug)]
struct PlaceArgs {
    /// State directory of the daemon.
    #[arg(long, env = "RUNTIME_BRIDGE_STATE", value_name = "DIR")]
    state: Option<PathBuf>,
    /// The daemon's configuration file, for its state directory.
    #[arg(long, env = "RUNTIME_BRIDGE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

impl PlaceArgs {
    fn state(&self) -> Result<PathBuf, config::Error> {
        let overrides = Overrides { config: self.config.clone(), state: self.state.clone(), ..Overrides::default() };
        Ok(Settings::load(overrides)?.state)
    }
}

/// It was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The place is not known.
    #[error(transparent)]
    Settings(#[from] config::Error),
    /// The token file is not one.
    #[error(transparent)]
    Token(#[from] token::Error),
    /// The files of the enrollment cannot be used.
    #[error(transparent)]
    Own(#[from] enroll::Error),
    /// The relay did not do it.
    #[error("{source}{advice}")]
    Call {
        /// Why not.
        source: CallError,
        /// What a person can do.
        advice: &'static str,
    },
    /// The files of the enrollment that is given up cannot be used.
    #[error(
        "{0}; with --offline the files are removed all the same, and the relay's operator has to revoke the Environment"
    )]
    Damaged(enroll::Error),
    /// There is nothing to give up.
    #[error("unenroll: this machine is not enrolled; there is nothing in {}", folder.display())]
    NotEnrolled {
        /// Where it was looked for.
        folder: PathBuf,
    },
}

/// What there is to tell, and whether all is well.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) text: String,
    pub(crate) is_well: bool,
}

/// Enrolls.
pub(super) async fn enroll(arguments: EnrollArgs) -> Result<Outcome, Error> {
    let state = arguments.place.state()?;
    let file = TokenFile::read(&arguments.token_file)?;
    let made = enroll::enroll(&state, &file, arguments.proxy).await.map_err(|source| {
        let advice = match &source {
            CallError::Refused { reason: Reason::TokenUsed, .. } => {
                "; if it was not you who used it, have the relay's operator revoke the Environment"
            }
            CallError::Refused {
                reason: Reason::TokenExpired | Reason::TokenForeign | Reason::EnvironmentEnrolled | Reason::Revoked,
                ..
            } => "; ask the relay's operator for another token",
            _ => "",
        };
        Error::Call { source, advice }
    })?;
    let text = format!(
        "enrolled as {} at {}\n{}\nstart the daemon, or start it anew: it dials the relay by itself\n\
         the token is used up; {} can be deleted\n",
        made.environment_id(),
        made.url(),
        good(&made),
        arguments.token_file.display(),
    );
    Ok(Outcome { text, is_well: true })
}

/// Tells how it stands.
pub(super) fn status(arguments: EnrollmentArgs) -> Result<Outcome, Error> {
    let Action::Status(place) = arguments.action;
    let state = place.state()?;
    let Some(enrollment) = Enrollment::load(&state)? else {
        return Ok(Outcome { text: "this machine is not enrolled\n".into(), is_well: false });
    };
    let mut text = format!("enrolled as {} at {}\n", enrollment.environment_id(), enrollment.url());
    if let Some(proxy) = enrollment.proxy() {
        // A String takes whatever is written.
        _ = writeln!(text, "through the proxy {proxy}");
    }
    text += &good(&enrollment);
    text.push('\n');
    let told = Board::of(&state).read().filter(Told::is_of_a_running_daemon);
    let is_well = matches!(&told, Some(Told { standing: Standing::Connected, .. }));
    text += &link(told);
    Ok(Outcome { text, is_well })
}

/// The enrollment of a state directory for `doctor`, where there is one: what it is, and what is wrong with it.
pub(super) fn examine(state: &Path) -> Option<(String, Option<String>)> {
    let enrollment = match Enrollment::load(state) {
        Ok(None) => return None,
        Ok(Some(enrollment)) => enrollment,
        Err(error) => return Some(("enrolled".into(), Some(format!("could not {error}")))),
    };
    let value = format!("enrolled as {} at {}", enrollment.environment_id(), enrollment.url());
    let told = Board::of(state).read().filter(Told::is_of_a_running_daemon);
    match (enrollment.validity().map(|validity| validity.told(clock::now())), told) {
        (Some(Err(problem)), _) => Some((value, Some(problem))),
        (_, Some(told @ Told { standing: Standing::Parked { .. }, .. })) => {
            Some((value, Some(link(Some(told)).trim_end().to_owned())))
        }
        (_, told) => Some((format!("{value}; {}; {}", good(&enrollment), link(told).trim_end()), None)),
    }
}

/// How long the certificate is good.
fn good(enrollment: &Enrollment) -> String {
    let told = enrollment.validity().map(|validity| validity.told(clock::now()));
    match told {
        Some(Ok(told) | Err(told)) => told,
        None => "the certificate's dates cannot be read".into(),
    }
}

fn link(told: Option<Told>) -> String {
    let Some(told) = told else {
        return "the daemon does not run, or was started before the machine was enrolled\n".into();
    };
    let seconds = clock::now().duration_since(told.since()).unwrap_or_default().as_secs();
    match told.standing {
        Standing::Connected => format!("connected since {seconds} s\n"),
        Standing::Dialling => "not connected yet: the relay is being dialled\n".into(),
        Standing::Waiting { why } => format!("not connected since {seconds} s: {why}; it is dialled again\n"),
        Standing::Parked { reason, why } => {
            format!(
                "parked since {seconds} s: {why} ({reason}); it is not dialled again before the daemon is started anew\n"
            )
        }
    }
}

/// Gives the enrollment up.
pub(super) async fn unenroll(arguments: UnenrollArgs) -> Result<Outcome, Error> {
    let state = arguments.place.state()?;
    let folder = Enrollment::folder(&state);
    let loaded = Enrollment::load(&state);
    let told = match (loaded, arguments.offline) {
        (Ok(None), _) if !folder.exists() => return Err(Error::NotEnrolled { folder }),
        (Ok(None), _) => "nothing was enrolled yet".into(),
        // Its own text says what to do.
        (Err(error @ enroll::Error::Record { .. }), false) => return Err(error.into()),
        (Err(error), false) => return Err(Error::Damaged(error)),
        (Err(error), true) => format!("the relay was not told: {error}"),
        (Ok(Some(enrollment)), offline) => match enrollment.give_up().await {
            Ok(()) => format!("the relay has revoked {}", enrollment.environment_id()),
            // What was asked for is so.
            Err(CallError::Refused { reason: reason @ (Reason::Revoked | Reason::NotEnrolled), .. }) => {
                format!("the relay knows the enrollment no more ({})", reason.as_str_name())
            }
            Err(source) if !offline => {
                let advice = "; with --offline the files are removed all the same, and the relay's operator has to revoke the Environment";
                return Err(Error::Call { source, advice });
            }
            Err(error) => {
                format!("the relay was not told ({error}): its operator has to revoke {}", enrollment.environment_id())
            }
        },
    };
    enroll::remove(&state)?;
    Ok(Outcome { text: format!("{told}\nthe files in {} are removed\n", folder.display()), is_well: true })
}
