//! `runtime-bridge`.

use std::process::ExitCode;

fn main() -> ExitCode {
    // ORDER: before there are threads, since it changes the environment.
    let sockets = bridge::cli::Sockets::passed();
    started(sockets)
}

#[tokio::main]
async fn started(sockets: bridge::cli::Sockets) -> ExitCode {
    bridge::cli::main(sockets).await
}
