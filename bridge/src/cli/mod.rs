//! The command line.

use std::{fmt, io::Write as _, process::ExitCode, time::Duration};

use adapters::harness::Isolation;
use clap::{Parser, Subcommand};
use listenfd::ListenFd;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::{
    config::{AskedLoopback, LogFormat, Overrides, Settings},
    gateway::Origin,
    serve,
};

mod admit;
mod doctor;
mod enroll;
mod examine;
mod relay;
mod release;
mod run;

/// Exit code of a wrong configuration.
const CONFIGURATION: u8 = 10;

/// Hosts coding agents behind one gRPC protocol.
#[derive(Debug, Parser)]
#[command(name = "runtime-bridge", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon. Ends with 0 after SIGTERM or SIGINT; every failure at the start has an exit code of its own.
    Serve(Overrides),
    Run(run::RunArgs),
    Release(release::ReleaseArgs),
    Admit(admit::AdmitArgs),
    Enroll(enroll::EnrollArgs),
    Enrollment(enroll::EnrollmentArgs),
    Unenroll(enroll::UnenrollArgs),
    // Its arguments are many.
    Relay(Box<relay::RelayArgs>),
    /// Say which Harness is usable on this machine, why not, and what to do. Ends with 0 when one is, with 1 when none is.
    Doctor(Overrides),
}

/// What is wrong around the daemon itself.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("use `log`")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    #[error("listen for signals")]
    Signals(#[source] std::io::Error),
    #[error("stop in order: another signal came")]
    Hurried,
}

/// Sockets that the process was started with, as systemd does it (`LISTEN_FDS`).
pub struct Sockets(ListenFd);

impl fmt::Debug for Sockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sockets").field(&self.0.len()).finish()
    }
}

impl Sockets {
    /// Takes them. They are not handed on to children, and neither are the variables that tell of them; so this comes first.
    #[must_use]
    pub fn passed() -> Self {
        Self(ListenFd::from_env())
    }
}

/// Parses the command line and does what it says. The sockets are for a daemon.
pub async fn main(sockets: Sockets) -> ExitCode {
    match Arguments::parse().command {
        Command::Serve(overrides) => serve(overrides, sockets).await,
        Command::Doctor(overrides) => doctor(overrides).await,
        Command::Release(arguments) => release(arguments).await,
        Command::Admit(arguments) => admit(&arguments),
        Command::Enroll(arguments) => outcome(enroll::enroll(arguments).await),
        Command::Enrollment(arguments) => outcome(enroll::status(arguments)),
        Command::Unenroll(arguments) => outcome(enroll::unenroll(arguments).await),
        Command::Relay(arguments) => relay::run(*arguments).await,
        Command::Run(arguments) => run::run(arguments, Box::new(|hosting| Box::pin(host(hosting)))).await,
    }
}

async fn serve(overrides: Overrides, Sockets(sockets): Sockets) -> ExitCode {
    serve::keep_memory_private();
    let settings = match Settings::load(overrides) {
        Ok(settings) => settings,
        Err(error) => return fail(&error, CONFIGURATION),
    };
    if let Err(error) = logs(&settings.log, settings.log_format) {
        return fail(&error, CONFIGURATION);
    }
    let (mut terminate, mut interrupt) = match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(terminate), Ok(interrupt)) => (terminate, interrupt),
        (Err(source), _) | (_, Err(source)) => return fail(&Trouble::Signals(source), 1),
    };
    serve::outlive_keepers();
    let running = match serve::start(settings, sockets).await {
        Ok(running) => running,
        Err(error) => return fail(&error, error.exit_code()),
    };
    let broken = tokio::select! {
        _ = terminate.recv() => false,
        _ = interrupt.recv() => false,
        () = running.broken() => true,
    };
    tracing::info!("stopping");
    let hurry = running.hurrying();
    let stopped = running.stop();
    tokio::pin!(stopped);
    loop {
        tokio::select! {
            () = &mut stopped => break,
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        // A second signal does not wait for Turns that run; one more gives up waiting for anything, and the keepers end what is left.
        if !hurry() {
            return fail(&Trouble::Hurried, 1);
        }
    }
    if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Begins to log.
fn logs(filter: &str, format: Option<LogFormat>) -> Result<(), Trouble> {
    // The library that serves functions logs whole requests and results, which are the application's.
    let quiet = "rmcp=off".parse().map_err(Trouble::Filter)?;
    let filter = EnvFilter::try_new(filter).map_err(Trouble::Filter)?.add_directive(quiet);
    // What cannot be written there, for example on a full disk, cannot be complained about there either: that would be a panic.
    let logs =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).log_internal_errors(false);
    match format.unwrap_or_else(LogFormat::usual) {
        LogFormat::Json => logs.json().flatten_event(true).init(),
        LogFormat::Text => logs.with_ansi(false).init(),
    }
    // A panic is a line of the log like any other; it ends the task that it happened in and nothing else.
    std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "a task panicked")));
    Ok(())
}

/// Tells what came of a command.
fn outcome(done: Result<enroll::Outcome, enroll::Error>) -> ExitCode {
    match done {
        Ok(outcome) => told(&outcome.text, outcome.is_well),
        Err(error) => fail(&error, 1),
    }
}

/// Tells a text.
fn told(text: &str, is_well: bool) -> ExitCode {
    // Where stdout is gone there is nobody to tell.
    let _told = std::io::stdout().write_all(text.as_bytes());
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn doctor(overrides: Overrides) -> ExitCode {
    let settings = match Settings::load(overrides) {
        Ok(settings) => settings,
        Err(error) => return fail(&error, CONFIGURATION),
    };
    let report = examine::examine(&settings).await;
    // Where stdout is gone there is nobody to tell.
    let _told = std::io::stdout().write_all(doctor::render(&report).as_bytes());
    if report.is_healthy() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn release(arguments: release::ReleaseArgs) -> ExitCode {
    match release::release(arguments).await {
        Ok(told) => {
            // Where stdout is gone there is nobody to tell.
            let _told = std::io::stdout().write_all(told.text.as_bytes());
            if told.is_confirmed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => fail(&error, 1),
    }
}

fn admit(arguments: &admit::AdmitArgs) -> ExitCode {
    match admit::admit(arguments) {
        Ok(told) => {
            // Where stdout is gone there is nobody to tell.
            let _told = std::io::stdout().write_all(told.text.as_bytes());
            if told.is_admitted { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => fail(&error, 1),
    }
}

/// Hosts a daemon in this process for one `run`.
async fn host(hosting: run::Hosting) -> Result<run::Daemon, String> {
    serve::keep_memory_private();
    let text = |error: &dyn std::fmt::Display| format!("could not {error}");
    let mut settings = Settings::load(Overrides {
        state: Some(hosting.state_dir),
        socket: Some(hosting.socket),
        workspace_roots: hosting.workspace_root.into_iter().collect(),
        codex: hosting.codex,
        claude_code: hosting.claude_code,
        minimax_code: hosting.minimax_code,
        ..Overrides::default()
    })
    .map_err(|error| text(&error))?;
    settings.trust_workspace = Some(hosting.trust_workspace);
    settings.allow_origins.extend(hosting.provider.parse().ok().as_ref().and_then(Origin::of));
    // Who calls `run` has its Harness run as itself; the daemon's Harnesses are another matter.
    settings.harness_user = None;
    // Listeners are those of a `serve`.
    settings.loopback = AskedLoopback::default();
    settings.listen.clear();
    // `run` itself decides about its one Turn; whatever it leaves behind nobody waits for.
    settings.limits.drain_timeout = Duration::ZERO;
    let isolation = hosting.isolation.map(|who| match who {
        run::Isolation::Outer => Isolation::Outer,
        run::Isolation::Native => Isolation::Native,
    });
    settings.isolation = isolation.or(settings.isolation);
    let socket = settings.socket.clone();
    let running = serve::start(settings, ListenFd::empty()).await.map_err(|error| text(&error))?;
    Ok(run::Daemon { socket, stop: Box::pin(running.stop()) })
}

/// One line that names the error and what it came from.
fn fail(error: &dyn std::error::Error, code: u8) -> ExitCode {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    // Where stderr is gone there is nobody to tell.
    let _told = writeln!(std::io::stderr(), "runtime-bridge: could not {}", text.replace('\n', " "));
    ExitCode::from(code)
}
