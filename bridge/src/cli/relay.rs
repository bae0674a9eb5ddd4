//! `runtime-bridge relay`: a relay, and what its operator does.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{Args, Subcommand};
use proto::{
    REASON_TRAILER,
    enrollment::{
        self, ENVIRONMENT_NAME,
        v1::{self, operator_client::OperatorClient},
    },
};
use tokio::signal::unix::{SignalKind, signal};
use tonic::{
    Request, Status,
    transport::{Channel, Endpoint},
};

use super::{CONFIGURATION, Trouble, fail, told};
use crate::{
    config::{self, LogFormat, relay_state},
    enroll::token::{self, TokenFile},
    private,
    relay::{self, AuthorityError, CertificateAuthority, Settings},
};

/// Run a relay: bridges that enrolled dial it, and Cores reach each of them at an address of its own.
///
/// It needs no Harness and no other service. Without a command it serves until SIGTERM or SIGINT.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct RelayArgs {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Args, Clone, Debug)]
struct ServeArgs {
    /// State directory of the relay [default: /var/lib/runtime-bridge-relay or $XDG_STATE_HOME/runtime-bridge-relay].
    #[arg(long, env = "RUNTIME_BRIDGE_RELAY_STATE", value_name = "DIR")]
    state: Option<PathBuf>,
    /// Where it listens.
    #[arg(long, env = "RUNTIME_BRIDGE_RELAY_LISTEN", value_name = "ADDRESS:PORT", default_value = "0.0.0.0:7443")]
    listen: SocketAddr,
    /// Where bridges and Cores reach it, such as `https://relay.example.org:7443`; its certificate is for this host.
    #[arg(long, env = "RUNTIME_BRIDGE_RELAY_URL", value_name = "URL")]
    url: Option<String>,
    /// Domain of the host names under which Cores call Environments [default: the host of the URL, or `relay.internal` where that is an address].
    #[arg(long, env = "RUNTIME_BRIDGE_RELAY_DOMAIN", value_name = "DOMAIN")]
    domain: Option<String>,
    /// URI name of a Core that may call; may be repeated.
    #[arg(long = "core", env = "RUNTIME_BRIDGE_RELAY_CORES", value_delimiter = ',', value_name = "URI")]
    cores: Vec<String>,
    /// File with certificates of authorities whose Cores are taken too, beside those of the relay's own.
    #[arg(long, env = "RUNTIME_BRIDGE_RELAY_CORE_AUTHORITY", value_name = "FILE")]
    core_authority: Option<PathBuf>,
    /// For how many seconds the certificate of an Environment is good; it renews itself after two thirds.
    #[arg(long, env = "RUNTIME_BRIDGE_RELAY_CERTIFICATE_SECONDS", value_name = "SECONDS", default_value_t = 30 * 24 * 3600,
          value_parser = clap::value_parser!(u64).range(3..=31_536_000))]
    certificate_seconds: u64,
    /// Filter of the logs.
    #[arg(long, env = "RUNTIME_BRIDGE_LOG", value_name = "FILTER", default_value = "info")]
    log: String,
    /// Form of the logs: `json` or `text` [default: `text` on a terminal].
    #[arg(long, env = "RUNTIME_BRIDGE_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<String>,
}

#[derive(Subcommand, Clone, Debug)]
enum Action {
    /// Make a one-time token for an Environment, as a file for `runtime-bridge enroll --token-file`. The relay has to run.
    Token(TokenArgs),
    /// Take an Environment's enrollment away: its connection is closed at once, and its certificate is refused. The relay has to run.
    Revoke(RevokeArgs),
    /// List Environments: which are enrolled, and which are connected. The relay has to run.
    List(StateArgs),
    /// Make a key and a certificate for a Core, signed by the relay's authority.
    Core(CoreArgs),
}

#[derive(Args, Clone, Debug)]
struct StateArgs {
    /// State directory of the relay.
    #[arg(long, env = "RUNTIME_BRIDGE_RELAY_STATE", value_name = "DIR")]
    state: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
struct TokenArgs {
    #[command(flatten)]
    relay: StateArgs,
    /// Id of the Environment, 1 to 128 bytes of [A-Za-z0-9._:-].
    #[arg(long, value_name = "ID")]
    environment: String,
    /// File to write, with mode 0600 [default: standard output].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// For how many seconds it can be used.
    #[arg(long, value_name = "SECONDS", default_value_t = 24 * 3600)]
    life_seconds: u32,
}

#[derive(Args, Clone, Debug)]
struct RevokeArgs {
    #[command(flatten)]
    relay: StateArgs,
    /// Id of the Environment.
    #[arg(long, value_name = "ID")]
    environment: String,
}

#[derive(Args, Clone, Debug)]
struct CoreArgs {
    #[command(flatten)]
    relay: StateArgs,
    /// URI name of the Core, such as `spiffe://example.org/core`; the relay takes it when it is started with `--core` and the same name.
    #[arg(long, value_name = "URI")]
    name: String,
    /// Folder to write `core.pem`, `core.key` and `authority.pem` to.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Something of an operator's was not done.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Settings(#[from] config::Error),
    #[error("reach the relay at {}: {text}; start it, or name its state with --state", socket.display())]
    Away { socket: PathBuf, text: String },
    #[error("{what}: {text}")]
    Refused { what: &'static str, text: String },
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error("write {}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

/// Does what the command line says.
pub(super) async fn run(arguments: RelayArgs) -> ExitCode {
    let done = match arguments.action {
        None => return serve(arguments.serve).await,
        Some(Action::Token(arguments)) => token(arguments).await,
        Some(Action::Revoke(arguments)) => revoke(arguments).await,
        Some(Action::List(arguments)) => list(arguments).await,
        Some(Action::Core(arguments)) => core(&arguments),
    };
    match done {
        Ok(text) => told(&text, true),
        Err(error) => fail(&error, 1),
    }
}

async fn serve(arguments: ServeArgs) -> ExitCode {
    crate::serve::keep_memory_private();
    let format = arguments.log_format.as_deref().map(LogFormat::parse).transpose();
    let ready = format.map_err(Error::Settings).and_then(|format| Ok((settings(&arguments)?, format)));
    let (settings, format) = match ready {
        Ok(ready) => ready,
        Err(error) => return fail(&error, CONFIGURATION),
    };
    if let Err(error) = super::logs(&arguments.log, format) {
        return fail(&error, CONFIGURATION);
    }
    let (mut terminate, mut interrupt) = match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(terminate), Ok(interrupt)) => (terminate, interrupt),
        (Err(source), _) | (_, Err(source)) => return fail(&Trouble::Signals(source), 1),
    };
    let running = match relay::start(settings).await {
        Ok(running) => running,
        Err(error) => return fail(&error, 1),
    };
    let broken = tokio::select! {
        _ = terminate.recv() => false,
        _ = interrupt.recv() => false,
        () = running.broken() => true,
    };
    running.stop().await;
    if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn settings(arguments: &ServeArgs) -> Result<Settings, Error> {
    let wrong = |key: &str, text: String| Error::Settings(config::Error::Value { key: key.into(), text });
    let url =
        arguments.url.as_deref().ok_or_else(|| wrong("--url", "a relay has to know where it is reached".into()))?;
    let url = token::url(url).map_err(|text| wrong("--url", text))?;
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_address = host.parse::<std::net::IpAddr>().is_ok();
    let domain =
        arguments.domain.clone().unwrap_or_else(|| if is_address { "relay.internal".into() } else { host.to_owned() });
    let fits = |label: &str| !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if domain.len() > 180 || !domain.split('.').all(fits) {
        return Err(wrong("--domain", "it is a host name of labels with letters, digits and `-`".into()));
    }
    for name in &arguments.cores {
        let is_name = name.contains(':') && name.bytes().all(|b| b.is_ascii_graphic()) && !name.starts_with("uid:");
        if !is_name || name.starts_with(ENVIRONMENT_NAME) {
            return Err(wrong(
                "--core",
                format!("{name:?} is not the URI name of a Core, such as spiffe://example.org/core"),
            ));
        }
    }
    Ok(Settings {
        state: state(arguments.state.as_ref())?,
        listen: arguments.listen,
        domain: domain.to_ascii_lowercase(),
        url,
        cores: arguments.cores.clone(),
        core_authority: arguments.core_authority.clone(),
        certificate_life: Duration::from_secs(arguments.certificate_seconds),
    })
}

fn state(named: Option<&PathBuf>) -> Result<PathBuf, Error> {
    let state = named.cloned().unwrap_or_else(relay_state);
    if state.as_os_str().is_empty() {
        let text = "no place for it is known: neither HOME nor XDG variables are set; name it".into();
        return Err(config::Error::Value { key: "--state".into(), text }.into());
    }
    Ok(state)
}

async fn token(arguments: TokenArgs) -> Result<String, Error> {
    let TokenArgs { relay, environment, out, life_seconds } = arguments;
    let request = v1::CreateTokenRequest { environment_id: environment.clone(), life_seconds };
    let answer = operator(&relay).await?.create_token(versioned(request)).await.map_err(refused("make the token"))?;
    let answer = answer.into_inner();
    let text = TokenFile::text(&answer.url, &environment, &answer.token, &answer.authority_sha256);
    let Some(out) = out else { return Ok(text) };
    private::put(&out, text.as_bytes(), 0o600).map_err(|source| Error::Write { path: out.clone(), source })?;
    Ok(format!(
        "a token for {environment} is in {}; it can be used once, for {life_seconds} s\non the machine: runtime-bridge enroll --token-file {}\n",
        out.display(),
        out.file_name().unwrap_or_default().to_string_lossy(),
    ))
}

async fn revoke(arguments: RevokeArgs) -> Result<String, Error> {
    let request = v1::RevokeRequest { environment_id: arguments.environment.clone() };
    let answer = operator(&arguments.relay).await?.revoke(versioned(request)).await.map_err(refused("revoke"))?;
    let v1::RevokeResponse { was_enrolled, was_connected, tokens } = answer.into_inner();
    let environment = arguments.environment;
    let enrolled = if was_enrolled { "its enrollment is revoked" } else { "it was not enrolled" };
    let connected = if was_connected { ", its connection is closed" } else { "" };
    Ok(format!("{environment}: {enrolled}{connected}; tokens made void: {tokens}\n"))
}

async fn list(arguments: StateArgs) -> Result<String, Error> {
    let request = versioned(v1::ListEnvironmentsRequest {});
    let answer = operator(&arguments).await?.list_environments(request).await.map_err(refused("list"))?;
    let lines = answer.into_inner().environments.into_iter().map(|environment| {
        let state = match environment.state() {
            v1::EnvironmentState::Invited => "invited",
            v1::EnvironmentState::Enrolled => "enrolled",
            v1::EnvironmentState::Revoked => "revoked",
            v1::EnvironmentState::Unspecified => "unknown",
        };
        let connected = if environment.connected_since.is_some() { "connected" } else { "not connected" };
        format!("{}\t{state}\t{connected}\t{}\n", environment.environment_id, environment.authority)
    });
    Ok(lines.collect())
}

fn core(arguments: &CoreArgs) -> Result<String, Error> {
    let state = state(arguments.relay.state.as_ref())?;
    // Only a relay that was started once has one: an authority that is made by accident would be nobody's.
    if !state.join("authority.key").exists() {
        let text = format!("there is no authority in {}; start the relay once", state.display());
        return Err(Error::Refused { what: "make a certificate", text });
    }
    let authority = CertificateAuthority::open(&state)?;
    let (certificate, key) = authority.make_core(&arguments.name)?;
    let out = &arguments.out;
    std::fs::create_dir_all(out).map_err(|source| Error::Write { path: out.clone(), source })?;
    relay::put(&out.join("core.key"), &key, 0o600)?;
    relay::put(&out.join("core.pem"), &certificate, 0o644)?;
    relay::put(&out.join("authority.pem"), authority.pem(), 0o644)?;
    Ok(format!("core.pem, core.key and authority.pem of {} are in {}\n", arguments.name, out.display()))
}

async fn operator(arguments: &StateArgs) -> Result<OperatorClient<Channel>, Error> {
    let socket = Settings::socket(&state(arguments.state.as_ref())?);
    let away = |text: String| Error::Away { socket: socket.clone(), text };
    let channel = async {
        let path = absolute(&socket).ok_or_else(|| "its path cannot be used".to_owned())?;
        let endpoint = Endpoint::from_shared(format!("unix:{path}")).map_err(|error| error.to_string())?;
        endpoint
            .connect()
            .await
            .map_err(|error| std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string))
    };
    channel.await.map(OperatorClient::new).map_err(away)
}

fn absolute(path: &Path) -> Option<String> {
    std::path::absolute(path).ok()?.to_str().map(str::to_owned)
}

fn versioned<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Ok(version) = enrollment::CURRENT.to_string().parse() {
        request.metadata_mut().insert(enrollment::HEADER, version);
    }
    request
}

fn refused(what: &'static str) -> impl FnOnce(Status) -> Error {
    move |status| {
        let reason = status.metadata().get(REASON_TRAILER).and_then(|reason| reason.to_str().ok());
        let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        Error::Refused { what, text: format!("{}{reason}", status.message()) }
    }
}
