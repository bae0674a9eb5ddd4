//! `runtime-bridge run`: one whole Turn on this machine, for a developer without a Core.
//!
//! It is a Core of its own: it hosts a daemon (or uses a running one), binds a Session, prepares, starts, shows the events, answers the
//! function calls with commands, and ends with a code that says how the Turn ended. It reaches the daemon over its socket like any Core.

mod arguments;
mod attached;
mod daemon;
mod folders;
mod function;
mod harness;
mod interrupt;
mod kept;
mod key;
mod mock;
mod show;
mod turn;
mod typed;

use std::{
    env,
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
    time::Duration,
};

use futures_util::{Stream, StreamExt as _};
use proto::{
    client::{self, Client, Endpoint, Session},
    v1,
};
use secrecy::ExposeSecret as _;
use tokio::time;

pub(crate) use arguments::RunArgs;
use arguments::{Plan, Surroundings, UsageError};
pub(crate) use daemon::{Daemon, Host, Hosting, Isolation};
use folders::Folders;
use mock::Mock;
use show::{Screen, Style};
use turn::{Outcome, Running, Wishes};

/// How long a daemon that was interrupted twice has to stop; its keepers end what is left when this process is gone.
const HURRIED_STOP: Duration = Duration::from_secs(2);

/// Runs one Turn and tells the exit code: 0 completed, 1 failed, 2 usage, 3 cancelled, 4 unknown.
///
/// `host` starts a daemon in this process; it is not called with `--endpoint`.
pub(crate) async fn run(arguments: RunArgs, host: Host) -> ExitCode {
    let surroundings = Surroundings::of_this_process();
    let style = match (arguments.json, io::stdout().is_terminal()) {
        (true, _) => Style::Json,
        (false, true) => Style::Live { colour: surroundings.allow_colour() },
        (false, false) => Style::Plain,
    };
    let plan = match Plan::check(arguments, &surroundings) {
        Ok(plan) => plan,
        Err(error) => return complain(&error, Outcome::Usage),
    };
    let interrupts = match interrupt::signals() {
        Ok(interrupts) => interrupts,
        Err(error) => return complain(&Failure::Signals(error), Outcome::Failed),
    };
    let screen = Screen::new(style, tokio::io::stdout(), tokio::io::stderr());
    match with_provider(plan, host, &surroundings, interrupts, screen).await {
        Ok(outcome) => outcome.into(),
        Err(Failure::Interrupted) => Outcome::Cancelled.into(),
        Err(Failure::Usage(error)) => complain(&error, Outcome::Usage),
        Err(failure) => complain(&failure, Outcome::Failed),
    }
}

/// Why there is no Turn to tell the outcome of.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Usage(#[from] UsageError),
    #[error("cannot listen for signals: {0}")]
    Signals(io::Error),
    #[error(transparent)]
    Folders(#[from] folders::Error),
    #[error("cannot read stdin: {0}")]
    Stdin(io::Error),
    #[error("cannot leave anything for a later run: {0}")]
    Keep(io::Error),
    #[error(transparent)]
    Mock(#[from] mock::Error),
    #[error("the daemon did not start: {0}")]
    Daemon(String),
    #[error("{step}: {error}")]
    Refused { step: &'static str, error: client::Error },
    #[error("interrupted")]
    Interrupted,
}

impl Failure {
    fn at(step: &'static str) -> impl FnOnce(client::Error) -> Self {
        move |error| Self::Refused { step, error }
    }
}

/// A write that fails has nobody to tell.
fn complain(error: &dyn std::error::Error, outcome: Outcome) -> ExitCode {
    _ = writeln!(io::stderr(), "runtime-bridge run: {error}");
    outcome.into()
}

/// Starts the bundled provider where it is asked for, and ends it behind the Turn.
async fn with_provider(
    mut plan: Plan,
    host: Host,
    surroundings: &Surroundings,
    interrupts: impl Stream<Item = ()> + Unpin,
    screen: Screen,
) -> Result<Outcome, Failure> {
    // The provider is frozen for the Session, so a later run has it where it was.
    let port = if plan.earlier.is_some() { mock::port(&plan.provider) } else { 0 };
    let mock = match plan.mock {
        true => Some(Mock::start(&env::current_exe().unwrap_or_default(), port).await?),
        false => None,
    };
    if let Some(mock) = &mock {
        plan.provider = mock.base_url(plan.harness.protocol());
    }
    let outcome = with_daemon(plan, host, surroundings, interrupts, screen).await;
    if let Some(mock) = mock {
        mock.stop().await;
    }
    outcome
}

/// Hosts a daemon for the Turn, or uses the one that `--endpoint` names.
async fn with_daemon(
    plan: Plan,
    host: Host,
    surroundings: &Surroundings,
    interrupts: impl Stream<Item = ()> + Unpin,
    screen: Screen,
) -> Result<Outcome, Failure> {
    let session_id = match &plan.earlier {
        Some(run) => run.session_id.clone(),
        None => kept::new_session_id(),
    };
    if let Some(endpoint) = plan.endpoint.clone() {
        let mut client = Client::connect(endpoint).await.map_err(Failure::at("connect"))?;
        if let Some(bearer) = &plan.bearer {
            client = client.with_bearer(bearer.expose_secret());
        }
        return one_turn(&plan, client, &session_id, interrupts, screen).await;
    }
    // It holds the folder of the socket and removes it at the end.
    let folders = match &plan.earlier {
        Some(run) => Folders::again(run.state.clone(), surroundings)?,
        None => {
            let folders = Folders::make(&session_id, surroundings)?;
            // Frozen with the Session, so no later run writes it.
            plan.kept().write(folders.state()).map_err(Failure::Keep)?;
            folders
        }
    };
    let hosting = Hosting {
        state_dir: folders.state().to_owned(),
        socket: folders.socket(),
        workspace_root: plan.workspace.clone(),
        isolation: plan.isolation,
        trust_workspace: plan.trust_workspace,
        provider: plan.provider.clone(),
        codex: plan.codex.clone(),
        claude_code: plan.claude_code.clone(),
        minimax_code: plan.minimax_code.clone(),
    };
    let daemon = host(hosting).await.map_err(Failure::Daemon)?;
    let outcome = match Client::connect(Endpoint::Unix(daemon.socket)).await.map_err(Failure::at("connect")) {
        Ok(client) => one_turn(&plan, client, &session_id, interrupts, screen).await,
        Err(failure) => Err(failure),
    };
    if matches!(outcome, Ok(Outcome::GivenUp)) {
        _ = time::timeout(HURRIED_STOP, daemon.stop).await;
    } else {
        daemon.stop.await;
    }
    outcome
}

/// From Bind to the end of the one Turn. On a daemon that is not ours the Session is released: nobody would ever come back to it.
async fn one_turn(
    plan: &Plan,
    client: Client,
    session_id: &str,
    mut interrupts: impl Stream<Item = ()> + Unpin,
    mut screen: Screen,
) -> Result<Outcome, Failure> {
    let assignment = v1::AssignmentRef { session_id: session_id.into(), assignment_id: session_id.into(), epoch: 1 };
    let placement = match &plan.workspace {
        None => v1::bind_assignment_request::Placement::None(v1::NoPlacement {}),
        Some(workspace) => v1::bind_assignment_request::Placement::Workspace(v1::Workspace {
            environment_id: "local".into(),
            directory: workspace.to_string_lossy().into_owned(),
        }),
    };
    let unproved = unproved(&client, plan).await;
    let bound = tokio::select! {
        bound = Session::bind(client, assignment, placement) => bound.map_err(Failure::at("bind")),
        Some(()) = interrupts.next() => Err(Failure::Interrupted),
    };
    let session = bound?;
    if let Some(unproved) = unproved {
        screen.remark(&unproved).await;
    }
    let outcome = prepared(plan, &session, interrupts, screen).await;
    if plan.endpoint.is_some() && !matches!(outcome, Ok(Outcome::GivenUp)) {
        let released = session.release(true).await;
        if let (Err(error), Ok(_)) = (released, &outcome) {
            _ = writeln!(io::stderr(), "runtime-bridge run: release: {error}");
        }
    }
    outcome
}

/// Says when the bridge was not proved on the version of the Harness that is there. Whether it is usable at all is told by the preparation.
async fn unproved(client: &Client, plan: &Plan) -> Option<String> {
    let kind = plan.harness.to_string();
    let info = client.get_runtime_info(v1::GetRuntimeInfoRequest {}).await.ok()?;
    let declared = info.harnesses.into_iter().find(|harness| harness.kind == kind)?;
    let is_unproved = declared.available && !declared.qualified;
    is_unproved.then(|| {
        let version = declared.version;
        format!("{kind} {version} is not proved; the nearest proved version is taken as its like")
    })
}

async fn prepared(
    plan: &Plan,
    session: &Session,
    mut interrupts: impl Stream<Item = ()> + Unpin,
    mut screen: Screen,
) -> Result<Outcome, Failure> {
    let credentials = vec![v1::Credential { name: "model".into(), value: plan.key.expose_secret().into() }];
    let past = match &plan.earlier {
        Some(_) => Past::of(session).await.map_err(Failure::at("look for the earlier Turns"))?,
        None => Past::default(),
    };
    let prepared = async {
        match &past.native_session_id {
            Some(native) => session.resume(plan.configuration(), credentials, native).await,
            None => session.prepare(plan.configuration(), credentials).await,
        }
    };
    // Dropping the preparation cancels nothing, but no input has been sent and the daemon ends what it started.
    let ready = tokio::select! {
        ready = prepared => ready.map_err(Failure::at("prepare")),
        Some(()) = interrupts.next() => Err(Failure::Interrupted),
    }?;
    screen.remark(&format!("{} {}, model {}", plan.harness, ready.harness_version, plan.model)).await;

    let lines = typed::lines(plan.steering).map_err(Failure::Stdin)?;
    let turn_id = format!("turn-{}", past.turns + 1);
    session.start(&ready, &turn_id, plan.input()).await.map_err(Failure::at("start"))?;
    let events = session.turn_events(&turn_id);
    let running = Running { session: session.clone(), turn_id: turn_id.into() };
    let wishes = Wishes { interrupts, lines };
    let outcome = turn::follow(running, events, plan.functions.clone(), wishes, &mut screen).await;
    if plan.endpoint.is_none() {
        screen.farewell(&session.assignment().session_id).await;
    }
    Ok(outcome)
}

/// What a Session has behind it.
#[derive(Debug, Default)]
struct Past {
    /// How many Turns it has had.
    turns: usize,
    /// Its native history, where it has one.
    native_session_id: Option<String>,
}

impl Past {
    async fn of(session: &Session) -> Result<Self, client::Error> {
        let mut past = Self::default();
        let mut token = String::new();
        loop {
            let page = session.turns(&token).await?;
            past.turns += page.turns.len();
            let native = page.turns.into_iter().find_map(|turn| turn.native).map(|native| native.session_id);
            past.native_session_id = past.native_session_id.or(native);
            if page.next_page_token.is_empty() {
                return Ok(past);
            }
            token = page.next_page_token;
        }
    }
}
