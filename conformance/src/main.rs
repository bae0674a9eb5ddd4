//! `runtime-bridge-conformance`: the fakes that judge a runtime bridge, as a program.

use std::process::ExitCode;

use clap::Parser;
use conformance::cli::{Cli, run};

fn main() -> anyhow::Result<ExitCode> {
    // A link to this program under the name of a Harness plays it.
    conformance::mcode::as_itself().unwrap_or_else(|| run(Cli::parse()))
}
