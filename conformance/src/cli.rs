//! The command line of `runtime-bridge-conformance`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use tokio::io::AsyncReadExt;

use crate::child;
use crate::provider::Provider;
use crate::script::Script;
use crate::script::child::Spawn;

/// The fakes that judge a runtime bridge.
#[derive(Debug, Parser)]
#[command(name = "runtime-bridge-conformance", version, about)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves a fake of the OpenAI Responses API on loopback until standard input ends. The first line on standard
    /// output is its base URL.
    Provider(ProviderArgs),
    /// Plays a Harness by a script.
    Child(ChildArgs),
    /// Sleeps as the descendant of a fault child.
    #[command(hide = true)]
    Descendant(DescendantArgs),
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
struct DescendantArgs {
    #[arg(long)]
    seconds: u64,
    #[arg(long)]
    new_session: bool,
    #[arg(long)]
    ignore_term: bool,
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
        Command::Descendant(args) => {
            let DescendantArgs { seconds, new_session, ignore_term } = args;
            child::sleep_as_descendant(&Spawn { seconds, new_session, ignore_term, ..Spawn::default() })?;
            Ok(ExitCode::SUCCESS)
        }
    }
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
