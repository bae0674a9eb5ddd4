//! The command line of `runtime-bridge-conformance`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use proto::client::{Client, Endpoint};
use proto::v1;
use tokio::io::AsyncReadExt;

use crate::check::{self, Subject};
use crate::demo::{self, DemoArgs};
use crate::mcode;
use crate::mcp;
use crate::provider::Provider;
use crate::rig::{Rig, Setup};
use crate::script::Script;
use crate::script::child::Spawn;
use crate::{child, evidence, reach, report};

/// The fakes that judge a runtime bridge.
#[derive(Debug, Parser)]
#[command(name = "runtime-bridge-conformance", version, about)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves a fake of the OpenAI Responses and Chat Completions APIs and of the Anthropic Messages API on loopback until standard input ends. The first line on standard
    /// output is its base URL.
    Provider(ProviderArgs),
    /// Plays a Harness by a script.
    Child(ChildArgs),
    /// Plays MiniMax Code: `mcode acp` and `mcode --version` (see MCODE.md).
    Mcode(McodeArgs),
    /// Checks any bridge on this machine, rule by rule, with the bundled provider as the model. Exits with 1 when a rule is
    /// broken.
    Check(CheckArgs),
    /// Runs three Turns of the real Codex through a daemon: a text, a function call, a cancel. The model is the bundled
    /// provider, or a real one when `OPENAI_API_KEY` is set.
    Demo(DemoArgs),
    /// Checks after a run of the scenarios that each capability which the daemon declares was proved by one of them. Prints which rules
    /// were shown by which; exits with 1 when evidence is missing.
    Evidence(EvidenceArgs),
    /// Renders what a whole run of the scenarios showed: each scenario with each Harness under each placement. Exits with 1
    /// when one failed; with `--check` it writes nothing and says whether the page is the one that is there.
    Report(ReportArgs),
    /// Serves tools of the Model Context Protocol over standard input and output until the former ends.
    McpStdio(mcp::StdioArgs),
    /// Asks the bridge behind a socket who it is: what a tool of the model may not do.
    #[command(hide = true)]
    Ask(AskArgs),
    /// Sleeps as the descendant of a fault child.
    #[command(hide = true)]
    Descendant(DescendantArgs),
    /// Tries to call a daemon, as a tool that a model runs could.
    #[command(hide = true)]
    Reach(ReachArgs),
}

#[derive(Debug, Args)]
struct ProviderArgs {
    /// The port on loopback; 0 lets the system choose.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// A script whose provider part is played; without one, and when it is used up, the mock answers.
    #[arg(long)]
    script: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct ChildArgs {
    /// The script whose child part is played.
    #[arg(long)]
    script: PathBuf,
    /// A folder in which the child keeps how it was started and every byte it received.
    #[arg(long)]
    keep: Option<PathBuf>,
    /// The arguments that the Harness would get.
    #[arg(last = true)]
    args: Vec<String>,
}

#[derive(Debug, Args)]
struct McodeArgs {
    /// A folder with `faults.json`, in which it is kept how the double was started and every byte it received.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// The arguments that MiniMax Code would get.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// Where the bridge listens, `unix:PATH`.
    #[arg(long)]
    endpoint: Endpoint,
    /// A directory below one of the bridge's workspace roots; each Session gets a folder in it, which is removed again.
    #[arg(long)]
    workspace: PathBuf,
    /// The Harness that is driven.
    #[arg(long, default_value = "codex")]
    harness: String,
    /// A model that the Harness knows; the bundled provider plays it. One that speaks the Harness's API when absent.
    #[arg(long)]
    model: Option<String>,
    /// The port of the bundled provider. A bridge with an outbound guard has `http://127.0.0.1:PORT` among the origins that it allows.
    #[arg(long, default_value_t = 0)]
    provider_port: u16,
}

#[derive(Debug, Args)]
struct EvidenceArgs {
    /// The folder in which the scenarios left their outcomes.
    #[arg(long, default_value = "target/scenarios")]
    scenarios: PathBuf,
}

#[derive(Debug, Args)]
struct ReportArgs {
    /// The folder in which the scenarios left their outcomes.
    #[arg(long, default_value = "target/scenarios")]
    scenarios: PathBuf,
    /// The page.
    #[arg(long, default_value = "docs/conformance-report.md")]
    out: PathBuf,
    /// Writes nothing, and compares.
    #[arg(long)]
    check: bool,
}

#[derive(Debug, Args)]
struct AskArgs {
    #[arg(long)]
    socket: PathBuf,
}

#[derive(Debug, Args)]
struct DescendantArgs {
    #[arg(long)]
    seconds: u64,
    #[arg(long)]
    new_session: bool,
    #[arg(long)]
    ignore_term: bool,
}

#[derive(Debug, Args)]
struct ReachArgs {
    /// The daemon's socket.
    socket: PathBuf,
    /// Where a process that is left alone writes what came of it; without it, the result is printed.
    #[arg(long)]
    out: Option<PathBuf>,
    /// The process that is waited for before the call.
    #[arg(long, requires = "out")]
    orphan_of: Option<u32>,
}

/// Runs the command line to its end.
///
/// # Errors
/// When a script cannot be read or performed, or the port cannot be had.
pub fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Provider(args) => {
            let runtime = tokio::runtime::Runtime::new().context("start a runtime")?;
            runtime.block_on(serve_provider(args))?;
            // A read of standard input may still be waiting in a thread of its own; nothing depends on it.
            runtime.shutdown_background();
            Ok(ExitCode::SUCCESS)
        }
        Command::Child(args) => {
            let program = Script::read(&args.script)?.child.context("the script has no child part")?;
            child::run(program, &args.args, args.keep.as_deref())
        }
        Command::Mcode(args) => mcode::run(&args.args, args.folder.as_deref()),
        Command::Check(args) => {
            let CheckArgs { endpoint, workspace, harness, model, provider_port } = args;
            let workspace = workspace.canonicalize().with_context(|| format!("find {}", workspace.display()))?;
            let subject = Subject { endpoint, workspace, harness, model, provider_port };
            let runtime = tokio::runtime::Runtime::new().context("start a runtime")?;
            let report = runtime.block_on(check::check(&subject))?;
            writeln!(std::io::stdout(), "{report}").context("write the report")?;
            Ok(ExitCode::from(u8::from(!report.failed().is_empty())))
        }
        Command::Demo(args) => {
            let runtime = tokio::runtime::Runtime::new().context("start a runtime")?;
            runtime.block_on(demo::run(args))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Evidence(args) => {
            let outcomes = evidence::outcomes(&args.scenarios)?;
            let runtime = tokio::runtime::Runtime::new().context("start a runtime")?;
            let harnesses = runtime.block_on(declared())?;
            let mut out = std::io::stdout();
            for (rule, scenarios) in evidence::rules(&outcomes) {
                writeln!(out, "{rule:<12}{}", scenarios.join(" ")).context("tell the rules")?;
            }
            let missing = |of| [evidence::flaws(of), evidence::unproved(of, &outcomes)].concat();
            let missing: Vec<_> = harnesses.iter().flat_map(missing).collect();
            for one in &missing {
                writeln!(out, "no evidence: {one}").context("tell what is missing")?;
            }
            Ok(ExitCode::from(u8::from(!missing.is_empty())))
        }
        Command::Report(args) => {
            let outcomes = evidence::outcomes(&args.scenarios)?;
            let complaints = report::complaints(&outcomes);
            let page = report::page(&outcomes);
            if args.check {
                let there = std::fs::read_to_string(&args.out);
                let there = there.with_context(|| format!("read {}", args.out.display()))?;
                if there != page {
                    // Which scenarios a machine can run is not the change's matter; what fails is.
                    writeln!(std::io::stdout(), "{} is not what this run shows: write it again", args.out.display())
                        .context("tell of a page")?;
                }
            } else {
                std::fs::write(&args.out, page).with_context(|| format!("write {}", args.out.display()))?;
            }
            for complaint in &complaints {
                writeln!(std::io::stdout(), "{complaint}").context("tell a complaint")?;
            }
            Ok(ExitCode::from(u8::from(!complaints.is_empty())))
        }
        Command::McpStdio(args) => {
            let runtime = tokio::runtime::Runtime::new().context("start a runtime")?;
            let served = runtime.block_on(mcp::serve_stdio(args));
            // A read of standard input may still be waiting in a thread of its own; nothing depends on it.
            runtime.shutdown_background();
            served.map(|()| ExitCode::SUCCESS)
        }
        Command::Ask(args) => {
            let runtime = tokio::runtime::Runtime::new().context("start a runtime")?;
            let asked = async {
                let client = Client::connect(Endpoint::Unix(args.socket)).await?;
                client.get_runtime_info(v1::GetRuntimeInfoRequest {}).await
            };
            let info = runtime.block_on(asked).context("ask the bridge")?;
            writeln!(std::io::stdout(), "answered by {}", info.runtime_id).context("say who answered")?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Descendant(args) => {
            let DescendantArgs { seconds, new_session, ignore_term } = args;
            child::sleep_as_descendant(&Spawn { seconds, new_session, ignore_term, ..Spawn::default() })?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Reach(args) => {
            match (args.out, args.orphan_of) {
                (None, _) => writeln!(std::io::stdout(), "{}", reach::reach(&args.socket)?).context("say it")?,
                (Some(out), None) => reach::reach_detached(&args.socket, &out)?,
                (Some(out), Some(parent)) => reach::reach_as_orphan(&args.socket, parent, &out)?,
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// What the daemon of this build declares.
async fn declared() -> anyhow::Result<Vec<v1::HarnessDeclaration>> {
    let rig = Rig::start(Setup::outer().with_all()).await?;
    let info = rig.client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
    rig.finish().await?;
    Ok(info.harnesses)
}

async fn serve_provider(args: ProviderArgs) -> anyhow::Result<()> {
    let steps = args.script.map(|path| Script::read(&path)).transpose()?.map(|script| script.provider);
    let provider = Provider::start_on(args.port, steps.unwrap_or_default()).await?;
    writeln!(std::io::stdout(), "{}", provider.base_url()).context("say the address")?;
    let mut stdin = tokio::io::stdin();
    let mut nothing = [0; 1024];
    while stdin.read(&mut nothing).await.context("wait for the end of standard input")? > 0 {}
    provider.stop().await;
    Ok(())
}
