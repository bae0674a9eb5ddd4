//! `runtime-bridge-conformance`: the fakes that judge a runtime bridge, as a program.

use std::process::ExitCode;

use clap::Parser;
use conformance::cli::{Cli, run};

fn main() -> anyhow::Result<ExitCode> {
    run(Cli::parse())
}
