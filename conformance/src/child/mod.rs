//! A fault child: a program in the place of a Harness that does what a script says, well or badly. Every byte that it
//! receives, its arguments and its environment are kept for the test.

pub mod claude;
pub mod codex;
pub mod fault;
mod fill;
mod install;
mod keep;
mod pipes;
mod play;
mod steps;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

pub use install::FaultChild;
pub(crate) use install::starts_in;
pub(crate) use keep::Keep;
pub use keep::Start;

use crate::script::child::{Bytes, Program, Spawn, Step};

/// What `--version` answers when the script has no command for it.
pub const VERSION_LINE: &str = "codex-cli 0.171.0\n";

/// Runs a program to its end, with what it receives kept in the folder `keep`.
///
/// # Errors
/// When the script cannot be performed: an unknown `${…}`, a pipe that broke, a folder that cannot be written.
pub fn run(program: Program, args: &[String], keep: Option<&Path>) -> anyhow::Result<ExitCode> {
    let keep = Keep::open(keep, args)?;
    let mut player = play::Player::new(program.rules, program.on_eof, args, keep);
    let command = program.commands.into_iter().find(|command| args.starts_with(&command.args));
    let halt = match command {
        Some(command) => player.command(&command.steps),
        None if args == ["--version"] => {
            player.command(&[Step::Bytes(Bytes { text: Some(VERSION_LINE.into()), ..Bytes::default() })])
        }
        None => player.main(&program.steps),
    };
    match halt {
        play::Halt::Exit(code) => Ok(ExitCode::from(code)),
        play::Halt::Failed(error) => Err(error),
    }
}

/// What a descendant of a fault child does: says that it is ready on standard error, and sleeps.
///
/// # Errors
/// When the session or the signal's disposition cannot be set.
pub fn sleep_as_descendant(spawn: &Spawn) -> anyhow::Result<()> {
    if spawn.new_session {
        rustix::process::setsid().context("leave the session")?;
    }
    let _deaf = spawn.ignore_term.then(play::ignore_term).transpose()?;
    pipes::write_stderr(b"ready\n").context("say ready")?;
    std::thread::sleep(std::time::Duration::from_secs(spawn.seconds));
    Ok(())
}
