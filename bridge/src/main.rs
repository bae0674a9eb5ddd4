//! `runtime-bridge`.

#[tokio::main]
async fn main() -> std::process::ExitCode {
    bridge::cli::main().await
}
