//! `runtime-bridge-conformance demo`: three Turns of the real Codex through a daemon of its own, told in short lines. It
//! ends with the receipts that it saw, and fails when one is missing.

use std::env;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use proto::client::{Client, Endpoint, Session, TurnEvents, text_input};
use proto::v1;
use proto::v1::event::Kind;
use tokio::time;

use crate::provider::Provider;
use crate::rig::{Config, Daemon, Harness, Isolation, Place, Roots, configuration, function, text_result};
use crate::script::provider::steps;

/// The longest that all of it may take; a real model thinks.
const LIMIT: Duration = Duration::from_secs(300);

/// What the bundled provider answers to the prompts of the three Turns, request by request.
const ANSWERS: &str = r#"[
    {"play": [{"text": {"chunks": ["Hello ", "from ", "the ", "bundled ", "provider."], "delay_ms": 20, "phase": "final_answer"}}]},
    {"play": [{"calls": [{"name": "weather", "arguments": "{\"city\":\"Bern\"}"}]}]},
    {"play": [{"text": {"chunks": ["It ", "snows ", "in ", "Bern."], "delay_ms": 20, "phase": "final_answer"}}]},
    {"play": [{"shell": {"command": "sleep 60", "yield_ms": 30000}}]}
]"#;

/// What the demo runs.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// The daemon's program.
    #[arg(long)]
    daemon: PathBuf,
    /// The Codex program.
    #[arg(long)]
    codex: PathBuf,
    /// The Claude Code program.
    #[arg(long)]
    claude: PathBuf,
}

/// Where the model is.
struct Model {
    name: String,
    base_url: String,
    key: String,
    /// The bundled provider, where it plays the model.
    bundled: Option<Provider>,
}

/// The receipts that were seen, in the words of the last lines.
#[derive(Default)]
struct Receipts {
    applied: Option<String>,
    completed: Vec<String>,
    cancelled: Option<String>,
}

/// Runs the demo.
///
/// # Errors
/// When a Turn goes otherwise than it should, or the daemon does not start or end.
pub async fn run(args: DemoArgs) -> anyhow::Result<()> {
    time::timeout(LIMIT, demo(args)).await.with_context(|| format!("the demo is not done after {LIMIT:?}"))?
}

async fn demo(args: DemoArgs) -> anyhow::Result<()> {
    let program = |path: &PathBuf| path.canonicalize().with_context(|| format!("find {}", path.display()));
    let (daemon, codex, claude) = (program(&args.daemon)?, program(&args.codex)?, program(&args.claude)?);
    let model = Model::choose().await?;
    let place = Place::make()?;
    // What the bundled provider asks for is known and harmless; a real model is left to the daemon's own judgement.
    let isolation = model.bundled.is_some().then_some(Isolation::Outer);
    let programs = vec![(Harness::Codex, codex), (Harness::ClaudeCode, claude)];
    let config = Config { programs, isolation, roots: Roots::Workspaces, more: String::new() };
    std::fs::write(place.config(), config.text(&place, &model.base_url, None)).context("write the configuration")?;
    let mut daemon = Daemon::spawn_program(&daemon, &place)?;
    daemon.wait_until_ready().await?;
    let told = turns(&place, &model).await.with_context(|| daemon.log_tail());
    let ended = daemon.terminate().await?;
    let receipts = told?;
    anyhow::ensure!(ended == crate::rig::Ended::Code(0), "the daemon ended with {ended:?}");
    receipts.tell()
}

async fn turns(place: &Place, model: &Model) -> anyhow::Result<Receipts> {
    let client = Client::connect(Endpoint::Unix(place.socket().to_owned())).await?;
    let info = client.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
    say(&format!("{} {}, protocol {}", info.name, info.build, info.protocol_version))?;
    // MiniMax Code cannot be installed where this runs.
    let shown = Harness::ALL.map(Harness::kind);
    for harness in info.harnesses.iter().filter(|harness| shown.contains(&&*harness.kind)) {
        anyhow::ensure!(harness.available, "{} cannot be used: {}", harness.kind, harness.unavailable_reason);
        say(&format!("{} {}, isolation {}", harness.kind, harness.version, harness.isolation))?;
    }
    let whose = if model.bundled.is_some() { "of the bundled provider" } else { "of a real provider" };
    say(&format!("model {} {whose}", model.name))?;

    let assignment = v1::AssignmentRef { session_id: "demo".into(), assignment_id: "demo-a".into(), epoch: 1 };
    let directory = place.workspace().to_str().context("the workspace's path is not UTF-8")?.to_owned();
    let workspace = v1::Workspace { environment_id: "demo-env".into(), directory };
    let session =
        Session::bind(client, assignment, v1::bind_assignment_request::Placement::Workspace(workspace)).await?;

    let mut receipts = Receipts::default();
    let mut events = start(&session, model, "demo-text", "Say hello in a few words. Use no tool.").await?;
    follow(&session, &mut events, &mut receipts).await?;
    let mut events =
        start(&session, model, "demo-function", "Call the function weather for Bern, then tell me.").await?;
    follow(&session, &mut events, &mut receipts).await?;
    let mut events = start(&session, model, "demo-cancel", "Run the shell command `sleep 60` and wait for it.").await?;
    follow(&session, &mut events, &mut receipts).await?;

    let released = session.release(true).await?;
    let confirmed = released.outcome() == v1::ReleaseOutcome::Confirmed;
    anyhow::ensure!(confirmed, "the Session could not be released: {}", released.detail);
    Ok(receipts)
}

async fn start(session: &Session, model: &Model, turn_id: &str, prompt: &str) -> anyhow::Result<TurnEvents> {
    let schema = r#"{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}"#;
    let mut configuration = configuration(Harness::Codex, &model.base_url, vec![function("weather", schema)]);
    configuration.model.clone_from(&model.name);
    let key = v1::Credential { name: "model".into(), value: model.key.clone() };
    say(&format!("\n> {prompt}"))?;
    let ready = session.prepare(configuration, vec![key]).await?;
    tell("prepared", if ready.reused { "the same Executor" } else { "a new Executor" })?;
    session.start(&ready, turn_id, text_input(prompt)).await?;
    Ok(session.turn_events(turn_id))
}

/// Tells the events of a Turn, answers its calls, and cancels it when it runs a command.
async fn follow(session: &Session, events: &mut TurnEvents, receipts: &mut Receipts) -> anyhow::Result<()> {
    while let Some(event) = events.next().await? {
        let turn_id = event.turn_id;
        match event.kind {
            Some(Kind::TurnStarted(started)) => {
                let native = started.native.unwrap_or_default();
                tell("started", &format!("native turn {} of thread {}", native.turn_id, native.session_id))?;
            }
            Some(Kind::MessageCompleted(message)) => tell("message", text(message.text.as_ref()))?,
            Some(Kind::FunctionCall(call)) => {
                tell("function_call", &format!("{} {}", call.name, text(call.arguments.as_ref())))?;
                let waits = session.turn(&turn_id).await?.required_actions.len();
                tell("requires_action", &format!("{waits} call waits for its result"))?;
                let outcomes = session.submit(vec![text_result(&turn_id, &call.call_id, "Snow, -3 degrees.")]).await?;
                let outcome = outcomes.first().map_or("nothing", |one| one.outcome().as_str_name());
                tell("result", &outcome.trim_start_matches("RESULT_OUTCOME_").to_lowercase())?;
            }
            Some(Kind::FunctionResultApplied(applied)) => {
                tell("receipt", &format!("function_result_applied, proved by {}", applied.evidence))?;
                receipts.applied = Some(format!("{} in {turn_id}", applied.call_id));
            }
            Some(Kind::ToolStarted(tool)) => {
                tell("tool", &tool_text(tool.tool.as_ref()))?;
                if turn_id == "demo-cancel" {
                    let answer = session.cancel(&turn_id, None).await?;
                    let outcome = answer.outcome().as_str_name().trim_start_matches("CANCEL_OUTCOME_").to_lowercase();
                    tell("cancel", &outcome)?;
                }
            }
            Some(Kind::ProviderRetry(retry)) => tell("provider_retry", &retry.message)?,
            Some(Kind::TurnEnded(end)) => receipts.ended(&turn_id, &end)?,
            Some(Kind::ToolCompleted(tool)) => {
                let status = tool.status().as_str_name().trim_start_matches("TOOL_STATUS_").to_lowercase();
                tell("tool_completed", &status)?;
            }
            Some(Kind::Notice(notice)) => tell("notice", &notice.message)?,
            Some(_) | None => {}
        }
    }
    Ok(())
}

impl Receipts {
    fn ended(&mut self, turn_id: &str, end: &v1::TurnEnded) -> anyhow::Result<()> {
        let status = end.status().as_str_name().trim_start_matches("TURN_STATUS_").to_lowercase();
        let failure = end.failure.as_ref().map(|failure| failure.message.as_str()).unwrap_or_default();
        let tokens = end.usage.and_then(|usage| usage.total_tokens).map(|total| format!(", {total} tokens"));
        tell("turn_ended", &format!("{status}{}{failure}", tokens.unwrap_or_default()))?;
        match end.status() {
            v1::TurnStatus::Completed => self.completed.push(turn_id.into()),
            v1::TurnStatus::Cancelled => self.cancelled = Some(turn_id.into()),
            v1::TurnStatus::Failed | v1::TurnStatus::Unknown | v1::TurnStatus::Unspecified => {
                anyhow::bail!("{turn_id} ended as {status}: {failure}")
            }
        }
        Ok(())
    }

    /// The last lines: one for each receipt.
    fn tell(&self) -> anyhow::Result<()> {
        let applied = self.applied.as_deref().context("no `function_result_applied` was seen")?;
        let cancelled = self.cancelled.as_deref().context("no `cancelled` was seen")?;
        anyhow::ensure!(self.completed.len() == 2, "`completed` was seen for {:?} only", self.completed);
        say("\nreceipts of the real Codex:")?;
        say(&format!("function_result_applied  {applied}"))?;
        say(&format!("completed                {}", self.completed.join(", ")))?;
        say(&format!("cancelled                {cancelled}"))
    }
}

impl Model {
    /// The real provider when there is a key for it, else the bundled one.
    async fn choose() -> anyhow::Result<Self> {
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let name = variable("RUNTIME_BRIDGE_DEMO_MODEL").unwrap_or_else(|| "gpt-5.5".into());
        if let Some(key) = variable("OPENAI_API_KEY") {
            let base_url = variable("OPENAI_BASE_URL").unwrap_or_else(|| "https://api.openai.com/v1".into());
            return Ok(Self { name, base_url, key, bundled: None });
        }
        let provider = Provider::start(steps(ANSWERS)?).await?;
        Ok(Self { name, base_url: provider.base_url(), key: "no-key-is-needed".into(), bundled: Some(provider) })
    }
}

fn tool_text(tool: Option<&v1::Tool>) -> String {
    match tool.and_then(|tool| tool.kind.as_ref()) {
        Some(v1::tool::Kind::Command(command)) => text(command.command.as_ref()).into(),
        Some(v1::tool::Kind::FileChange(change)) => format!("{} files change", change.edits.len()),
        Some(v1::tool::Kind::McpCall(call)) => format!("{} of {}", call.tool, call.server),
        Some(v1::tool::Kind::WebSearch(search)) => text(search.query.as_ref()).into(),
        Some(v1::tool::Kind::Other(other)) => other.name.clone(),
        None => String::new(),
    }
}

fn text(content: Option<&v1::Content>) -> &str {
    match content.and_then(|content| content.place.as_ref()) {
        Some(v1::content::Place::Text(text)) => text,
        Some(v1::content::Place::Payload(_)) => "(a large text)",
        None => "",
    }
}

fn tell(what: &str, text: &str) -> anyhow::Result<()> {
    say(format!("  {what:<16} {text}").trim_end())
}

fn say(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("write to standard output")
}
