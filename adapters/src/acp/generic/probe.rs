//! Asks an agent what it is: one process that is told `initialize` and no more, in a folder of its own.

use std::{path::Path, time::Duration};

use tokio::{
    io::AsyncWriteExt as _,
    time::{self, Instant},
};
use uuid::Uuid;

use super::{
    Said,
    start::{Values, arguments, write},
};
use crate::{
    acp::{configured::Configured, wire},
    cleaner::Cleaner,
    harness::{Settings, TokenLimits},
    native::{
        environment::Mark,
        lines::LineReader,
        process::{self, Process},
        rpc::{self, Message},
    },
    probe::Folder,
};

/// What it has between TERM and KILL.
const GRACE: Duration = Duration::from_millis(200);
/// The longest line that it may say.
const LINE: usize = 4 << 20;

/// What it says of itself, and its version where it has one.
///
/// # Errors
/// What is wrong, for a person.
pub(super) async fn ask(
    settings: &Settings,
    configured: &Configured,
    program: &Path,
) -> Result<(Said, Option<String>), String> {
    let user = settings.user.as_ref();
    let folder = Folder::make(user).map_err(|error| format!("no folder for a probe: {error}"))?;
    let home = folder.0.to_str().ok_or("the path of the temporary folder is not UTF-8")?;
    // Nobody is asked anything at this address.
    let values =
        Values { base_url: "http://127.0.0.1:9", model: "none", limits: TokenLimits::of(2, 1), instructions: "", home };
    write(configured, &values, user)?;
    let launch = process::Launch {
        keeper: settings.keeper.clone(),
        program: program.to_owned(),
        args: arguments(configured),
        directory: folder.0.clone(),
        environment: values.environment(configured, &folder.0, None)?,
        mark: Mark::new("probe", &Uuid::now_v7().simple().to_string()),
        grace: GRACE,
        user: settings.user.clone(),
    };
    let mut process = process::spawn(launch).map_err(|error| error.to_string())?;
    let limit = settings.limits.probe;
    let asked = time::timeout_at(Instant::now() + limit, talk(&mut process)).await;
    let said = Cleaner::default().clean_tail(&process.control.stderr_tail());
    process.control.end();
    // The keeper needs its grace and no more.
    let _ = time::timeout(GRACE + Duration::from_secs(2), process.control.exited()).await;
    let asked = asked.unwrap_or_else(|_| Err(format!("initialize was not answered within {limit:?}")));
    let with_tail = |trouble: String| if said.is_empty() { trouble } else { format!("{trouble}: {said}") };
    asked.map_err(with_tail)
}

async fn talk(process: &mut Process) -> Result<(Said, Option<String>), String> {
    let request = wire::request(1, "initialize", &wire::initialize()).map_err(|error| error.to_string())?;
    let written = async {
        process.stdin.write_all(&request).await?;
        process.stdin.flush().await
    };
    // One that has ended says why on its other output.
    let _ = written.await;
    let mut lines = LineReader::new(&mut process.stdout, LINE);
    loop {
        let line = lines.next().await.map_err(|error| error.to_string())?;
        let line = line.ok_or("it closed its output before it answered initialize")?;
        let Ok(Message::Response { outcome, .. }) = rpc::parse(&line) else { continue };
        let answer = outcome.map_err(|error| format!("it refused initialize: {}", error.message))?;
        return read(answer.get());
    }
}

/// Reads the answer to `initialize`.
pub(super) fn read(answer: &str) -> Result<(Said, Option<String>), String> {
    let told: wire::Initialized =
        serde_json::from_str(answer).map_err(|_| "its answer to initialize is none".to_owned())?;
    told.fits()?;
    Ok((Said { mcp_http: told.can(wire::MCP_HTTP) }, told.version().map(str::to_owned)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_says_of_itself_is_read() {
        let opencode = r#"{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"mcpCapabilities":{"http":true,"sse":true}},"agentInfo":{"name":"OpenCode","version":"1.18.33"}}"#;
        assert_eq!(read(opencode), Ok((Said { mcp_http: true }, Some("1.18.33".to_owned()))));
        for bare in [
            r#"{"protocolVersion":1}"#,
            r#"{"protocolVersion":1,"agentCapabilities":{"mcpCapabilities":{"http":false}}}"#,
        ] {
            assert_eq!(read(bare), Ok((Said::default(), None)));
        }
        assert!(read(r#"{"protocolVersion":2}"#).unwrap_err().contains("speaks version 2 of ACP"));
        assert!(read("null").unwrap_err().contains("is none"));
    }
}
