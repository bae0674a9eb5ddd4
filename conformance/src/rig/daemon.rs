//! The daemon as a process: start, readiness, logs, end.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use std::{env, fs};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio::time::{self, Instant};
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::Place;
use super::place::program;

/// How long the daemon may take to serve.
const READY: Duration = Duration::from_secs(20);

/// How long it may take to end by SIGTERM: its own drain limit and some more.
const END: Duration = Duration::from_secs(40);

/// The time between two attempts to connect; there is no bell for a socket that appears.
const ATTEMPT: Duration = Duration::from_millis(5);

/// How much of the logs a failure shows.
const TAIL: usize = 60;

/// A stream of the health service.
#[derive(Debug)]
pub struct Health(Streaming<HealthCheckResponse>);

impl Health {
    /// Whether it says that the service serves; waits for what it has not said yet.
    ///
    /// # Errors
    /// When the stream ends.
    pub async fn serves(&mut self) -> anyhow::Result<bool> {
        let answer = self.0.message().await?.context("the health service has ended")?;
        Ok(answer.status() == ServingStatus::Serving)
    }
}

/// A daemon process.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    pid: u32,
    ended: Option<Ended>,
    socket: PathBuf,
    log: PathBuf,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl From<ExitStatus> for Ended {
    fn from(status: ExitStatus) -> Self {
        status.code().map_or_else(|| Self::Signal(status.signal().unwrap_or_default()), Self::Code)
    }
}

impl Daemon {
    /// Starts `runtime-bridge serve` on the configuration of a place and waits until it serves.
    ///
    /// # Errors
    /// When it ends, or does not serve within 20 s; the message has its last log lines.
    pub async fn start(place: &Place) -> anyhow::Result<Self> {
        let mut daemon = Self::spawn(place)?;
        daemon.wait_until_ready().await?;
        Ok(daemon)
    }

    /// Starts it and does not wait. For start-ups that are to fail.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn(place: &Place) -> anyhow::Result<Self> {
        match &place.daemon {
            Some(daemon) => Self::spawn_program(daemon, place),
            None => Self::spawn_program(&program("runtime-bridge")?, place),
        }
    }

    /// The same with a daemon from elsewhere.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn_program(daemon: &Path, place: &Place) -> anyhow::Result<Self> {
        if place.listener.is_none() {
            return Self::spawn_command(Command::new(daemon), place);
        }
        // What the place listens on comes as standard input and is the first descriptor behind the three, as a service manager has it.
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(r#"export LISTEN_PID=$$ LISTEN_FDS=1; exec "$0" "$@" 3<&0 </dev/null"#).arg(daemon);
        Self::spawn_command(shell, place)
    }

    /// The same as a process that has a child already, which runs this command.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn_with_child(place: &Place, command: &str) -> anyhow::Result<Self> {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!(r#"{command} & exec "$0" "$@""#)).arg(program("runtime-bridge")?);
        Self::spawn_command(shell, place)
    }

    /// The same with the program of this command, behind the arguments that it has.
    pub(super) fn spawn_command(mut command: Command, place: &Place) -> anyhow::Result<Self> {
        let log = place.root().join("daemon.log");
        let file = File::options().create(true).append(true).open(&log).context("open the daemon's log")?;
        let stdin = match &place.listener {
            Some(listener) => OwnedFd::from(listener.try_clone().context("share the socket")?).into(),
            None => Stdio::null(),
        };
        let child = command
            .arg("serve")
            .arg("--config")
            .arg(place.config())
            .env_clear()
            .env("PATH", env::var_os("PATH").unwrap_or_default())
            .env("HOME", place.home())
            .env("RUST_BACKTRACE", "1")
            .envs(place.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(place.root())
            .stdin(stdin)
            .stdout(file.try_clone().context("share the daemon's log")?)
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .context("start the daemon")?;
        let pid = child.id().context("the daemon has no process id")?;
        Ok(Self { child, pid, ended: None, socket: place.socket().to_owned(), log })
    }

    /// Its process id, also when it has ended.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it runs.
    pub fn is_running(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten().map(Into::into);
        }
        self.ended.is_none()
    }

    /// Waits until the health service says that the daemon serves.
    ///
    /// # Errors
    /// When it ends first, or does not serve within 20 s.
    pub async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let limit = Instant::now() + READY;
        let mut last = anyhow::anyhow!("it was not asked");
        loop {
            match health(&self.socket).await {
                Ok(ServingStatus::Serving) => return Ok(()),
                Ok(status) => last = anyhow::anyhow!("its health is {status:?}"),
                Err(error) => last = error,
            }
            let running = self.is_running();
            anyhow::ensure!(running, "the daemon ended with {:?}\n{}", self.ended, self.log_tail());
            anyhow::ensure!(Instant::now() < limit, "the daemon does not serve: {last:#}\n{}", self.log_tail());
            time::sleep(ATTEMPT).await;
        }
    }

    /// What the health service says of a service, and what it says whenever that changes. The whole daemon has no name.
    ///
    /// # Errors
    /// When it cannot be asked, or knows no such service.
    pub async fn watch_health(&self, service: &str) -> anyhow::Result<Health> {
        let request = HealthCheckRequest { service: service.to_owned() };
        Ok(Health(health_client(&self.socket).await?.watch(request).await?.into_inner()))
    }

    /// Asks it to end by SIGTERM, and waits.
    ///
    /// # Errors
    /// When it has not ended after 40 s.
    pub async fn terminate(&mut self) -> anyhow::Result<Ended> {
        self.signal(Signal::TERM)?;
        self.wait(END).await
    }

    /// Kills it as a crash would, and waits until it is gone.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::KILL)?;
        self.wait(END).await.map(drop)
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it has ended.
    pub fn signal(&mut self, signal: Signal) -> anyhow::Result<()> {
        anyhow::ensure!(self.is_running(), "the daemon has ended with {:?}", self.ended);
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).context("no process id")?;
        kill_process(pid, signal).context("signal the daemon")
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it has not ended within the limit.
    pub async fn wait(&mut self, limit: Duration) -> anyhow::Result<Ended> {
        if let Some(ended) = self.ended {
            return Ok(ended);
        }
        let Ok(status) = time::timeout(limit, self.child.wait()).await else {
            anyhow::bail!("the daemon does not end\n{}", self.log_tail());
        };
        let ended = status.context("wait for the daemon")?.into();
        self.ended = Some(ended);
        Ok(ended)
    }

    /// The lines of its logs that are JSON, those of earlier daemons of the place included.
    #[must_use]
    pub fn logs(&self) -> Vec<Value> {
        self.log_text().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits for so many lines of its logs with this message, and gives them.
    ///
    /// # Errors
    /// When there are fewer after 20 s.
    pub async fn wait_for_logs(&self, message: &str, count: usize) -> anyhow::Result<Vec<Value>> {
        let limit = Instant::now() + READY;
        loop {
            let mut found = self.logs();
            found.retain(|line| line["message"].as_str().is_some_and(|text| text.contains(message)));
            if found.len() >= count {
                return Ok(found);
            }
            anyhow::ensure!(Instant::now() < limit, "the log has not {count} times {message:?}\n{}", self.log_tail());
            time::sleep(ATTEMPT).await;
        }
    }

    /// Everything it wrote, as it stands.
    #[must_use]
    pub fn log_text(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// The end of its logs, for the message of a failure.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let text = self.log_text();
        let lines: Vec<_> = text.lines().collect();
        let tail = &lines[lines.len().saturating_sub(TAIL)..];
        format!("the end of the daemon's log:\n{}", tail.join("\n"))
    }

    pub(super) fn kill_now(&mut self) {
        // It may have ended, and nothing can be done about a kill that fails.
        _ = self.child.start_kill();
    }
}

/// What the health service says of the whole daemon.
async fn health(socket: &Path) -> anyhow::Result<ServingStatus> {
    let answer = health_client(socket).await?.check(HealthCheckRequest { service: String::new() }).await?;
    Ok(answer.into_inner().status())
}

async fn health_client(socket: &Path) -> anyhow::Result<HealthClient<Channel>> {
    let address = format!("unix:{}", socket.to_str().context("the socket's path is not UTF-8")?);
    Ok(HealthClient::new(Endpoint::from_shared(address)?.timeout(READY).connect().await?))
}

/// Shows a text with the output of a failing test.
pub(super) fn show(text: &str) {
    // Without standard error there is nobody to show it to.
    _ = writeln!(std::io::stderr(), "{text}");
}
