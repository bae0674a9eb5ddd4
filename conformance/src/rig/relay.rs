//! A relay of a rig: the real program, a road of its own to it for the bridge, and what its operator does.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use proto::client::{Client, Error};
use proto::enrollment::{self, v1::presence_client::PresenceClient};
use proto::v1;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{self, Instant};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};

use super::Setup;
use super::link::{CORE, OTHER_CORE, config_trusting};
use super::place::program;
use super::road::Road;
use crate::authority::Certificate;

/// The Environment that the daemon of a rig enrolls as.
pub const ENVIRONMENT: &str = "env-1";

/// How long it may take until something that is on its way is there.
const READY: Duration = Duration::from_secs(20);
/// Between two looks for it.
const ATTEMPT: Duration = Duration::from_millis(10);

/// A relay with its own state. It can be killed and started again.
#[derive(Debug)]
pub struct Relay {
    child: Option<Child>,
    state: PathBuf,
    log: PathBuf,
    /// More arguments of the program.
    arguments: Vec<String>,
    /// The way of bridges to it.
    pub road: Road,
}

impl Relay {
    /// Starts a relay with these arguments beside those that it needs.
    ///
    /// # Errors
    /// When it does not come up; the message has its log.
    pub async fn start(arguments: &[&str]) -> anyhow::Result<Self> {
        // Not in the rig's own folders: what is found to work there is the daemon's.
        let folder = std::env::temp_dir().join(format!("rr-{}", uuid::Uuid::now_v7().simple()));
        fs::DirBuilder::new().mode(0o700).create(&folder).context("make the relay's folder")?;
        let (state, log) = (folder.join("state"), folder.join("relay.log"));
        let arguments = arguments.iter().map(ToString::to_string).collect();
        let mut relay = Self { child: None, state, log, arguments, road: Road::open().await? };
        relay.start_again().await?;
        Ok(relay)
    }

    /// Starts it on the same state, on another port; the road leads there.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start_again(&mut self) -> anyhow::Result<()> {
        let log = File::options().create(true).append(true).open(&self.log).context("open the relay's log")?;
        let before = self.said("the relay listens").len();
        let child = Command::new(program("runtime-bridge")?)
            .arg("relay")
            .args(["--listen", "127.0.0.1:0", "--url", &format!("https://{}", self.road.address())])
            .args(["--core", CORE, "--core", OTHER_CORE])
            .args(&self.arguments)
            .env_clear()
            .env("RUNTIME_BRIDGE_RELAY_STATE", &self.state)
            .env("RUNTIME_BRIDGE_LOG_FORMAT", "json")
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("start the relay")?;
        self.child = Some(child);
        self.wait_for_logs("the relay listens", before + 1).await?;
        self.road.lead(self.address()?);
        Ok(())
    }

    /// Where it listens itself.
    ///
    /// # Errors
    /// When it says nothing of it.
    pub fn address(&self) -> anyhow::Result<SocketAddr> {
        let said = self.said("the relay listens");
        let address = said.last().and_then(|line| line["address"].as_str()).context("the relay does not listen")?;
        Ok(address.parse()?)
    }

    /// Kills it as a crash would.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.child.as_mut().context("the relay does not run")?.kill().await.context("kill the relay")?;
        self.child = None;
        Ok(())
    }

    /// What an operator does: `runtime-bridge relay` with these arguments, which has to go well. Gives what it wrote.
    ///
    /// # Errors
    /// When it does not go well.
    pub async fn operate(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.command(&[&["relay"], arguments].concat()).await?;
        let trouble = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "{}: {trouble}\n{}", output.status, self.log_text());
        Ok(String::from_utf8(output.stdout)?)
    }

    /// `runtime-bridge` with these arguments beside this relay.
    ///
    /// # Errors
    /// When it cannot be started.
    pub async fn command(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        let mut command = Command::new(program("runtime-bridge")?);
        command.args(arguments).env_clear().env("RUNTIME_BRIDGE_RELAY_STATE", &self.state);
        Ok(command.stdin(Stdio::null()).kill_on_drop(true).output().await?)
    }

    /// A fresh token for an Environment, in a file.
    ///
    /// # Errors
    /// When there is none.
    pub async fn token(&self, environment: &str) -> anyhow::Result<PathBuf> {
        self.token_for(environment, 3600).await
    }

    /// One that can be used for so many seconds.
    ///
    /// # Errors
    /// When there is none.
    pub async fn token_for(&self, environment: &str, seconds: u32) -> anyhow::Result<PathBuf> {
        let name = format!("token-{}.toml", uuid::Uuid::now_v7().simple());
        let path = self.state.with_file_name(name);
        let out = path.to_str().context("a path that is not UTF-8")?;
        let seconds = seconds.to_string();
        self.operate(&["token", "--environment", environment, "--out", out, "--life-seconds", &seconds]).await?;
        Ok(path)
    }

    /// `runtime-bridge enroll` with a fresh token, for the daemon of this state directory. It has to go well.
    ///
    /// # Errors
    /// When it does not.
    pub async fn enroll(&self, state: &Path) -> anyhow::Result<()> {
        let token = self.token(ENVIRONMENT).await?;
        let paths = (token.to_str().context("no path")?, state.to_str().context("no path")?);
        let output = self.command(&["enroll", "--token-file", paths.0, "--state", paths.1]).await?;
        let trouble = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "{}: {trouble}\n{}", output.status, self.log_text());
        Ok(())
    }

    /// What `enrollment status` says of this state directory.
    ///
    /// # Errors
    /// When it cannot be started.
    pub async fn status(&self, state: &Path) -> anyhow::Result<String> {
        let state = state.to_str().context("a path that is not UTF-8")?;
        let output = self.command(&["enrollment", "status", "--state", state]).await?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr))
    }

    /// Waits until `enrollment status` of this state directory says this.
    ///
    /// # Errors
    /// When it does not within 20 s.
    pub async fn wait_for_status(&self, state: &Path, what: &str) -> anyhow::Result<String> {
        let limit = Instant::now() + READY;
        loop {
            let status = self.status(state).await?;
            if status.contains(what) {
                return Ok(status);
            }
            anyhow::ensure!(Instant::now() < limit, "it is not {what:?} but:\n{status}\n{}", self.log_text());
            time::sleep(ATTEMPT).await;
        }
    }

    /// A certificate of its authority for a Core, which it makes itself.
    ///
    /// # Errors
    /// When it does not.
    pub async fn certificate(&self, name: &str) -> anyhow::Result<Certificate> {
        let folder = self.state.with_file_name(format!("core-{}", uuid::Uuid::now_v7().simple()));
        self.operate(&["core", "--name", name, "--out", folder.to_str().context("no path")?]).await?;
        let read = |name: &str| fs::read_to_string(folder.join(name)).context("read what was made for a Core");
        Ok(Certificate { pem: read("core.pem")?, key: read("core.key")? })
    }

    /// How a client that trusts its authority and shows this certificate sets TLS up.
    ///
    /// # Errors
    /// When the certificate is none.
    pub fn config(&self, certificate: Option<&Certificate>) -> anyhow::Result<ClientConfig> {
        config_trusting(&self.authority()?, certificate)
    }

    /// The certificate of its authority, in PEM form.
    ///
    /// # Errors
    /// When there is none.
    pub fn authority(&self) -> anyhow::Result<String> {
        fs::read_to_string(self.state.join("authority.pem")).context("read the relay's authority")
    }

    /// A connection to it with TLS, as a client of this host that is set up so; with TLS 1.3 a client that is refused learns of it when it reads.
    ///
    /// # Errors
    /// When there is none.
    pub async fn connect(&self, host: &str, config: ClientConfig) -> anyhow::Result<TlsStream<TcpStream>> {
        Ok(connect(self.address()?, host.to_owned(), Arc::new(config)).await?)
    }

    /// A Core of this certificate at the address of an Environment.
    ///
    /// # Errors
    /// When the relay is not there.
    pub async fn client(&self, environment: &str, certificate: &Certificate) -> anyhow::Result<Client> {
        Ok(self.over(environment, certificate).await?)
    }

    async fn over(&self, environment: &str, certificate: &Certificate) -> Result<Client, Error> {
        let host = format!("{environment}.relay.internal");
        let (name, log) = (host.clone(), self.log.clone());
        let config = self.config(Some(certificate)).map(Arc::new).map_err(|error| error.to_string());
        let dial = move || {
            let (name, log, config) = (name.clone(), log.clone(), config.clone());
            async move {
                let config = config.map_err(io::Error::other)?;
                // The next relay has another port.
                let lines = said(&log, "the relay listens");
                let address = lines.last().and_then(|line| line["address"].as_str()?.parse().ok());
                connect(address.ok_or(io::ErrorKind::NotConnected)?, name, config).await
            }
        };
        Client::over_named(&host, dial).await
    }

    /// The same once the Environment answers.
    ///
    /// # Errors
    /// When it does not within 20 s.
    pub async fn answering(&self, certificate: &Certificate) -> Result<Client, Error> {
        let client = self.over(ENVIRONMENT, certificate).await?;
        let limit = Instant::now() + READY;
        loop {
            match client.get_runtime_info(v1::GetRuntimeInfoRequest {}).await {
                Err(Error::Transport { .. }) if Instant::now() < limit => time::sleep(ATTEMPT).await,
                answered => return answered.map(|_info| client),
            }
        }
    }

    /// A channel for calls of whoever shows this certificate, to the relay itself or to an Environment by this host name.
    ///
    /// # Errors
    /// When there is none.
    pub async fn channel(&self, host: &str, certificate: Option<&Certificate>) -> anyhow::Result<Channel> {
        let (address, config) = (self.address()?, Arc::new(self.config(certificate)?));
        let dial = tower::service_fn(move |_: tonic::transport::Uri| {
            let config = Arc::clone(&config);
            async move { connect(address, "127.0.0.1".into(), config).await.map(hyper_util::rt::TokioIo::new) }
        });
        Ok(Endpoint::from_shared(format!("https://{host}"))?.connect_with_connector(dial).await?)
    }

    /// What a Core of this certificate learns of presence.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn presence(
        &self,
        certificate: &Certificate,
    ) -> anyhow::Result<tonic::Streaming<enrollment::v1::WatchPresenceResponse>> {
        let mut client = PresenceClient::new(self.channel("relay.internal", Some(certificate)).await?);
        Ok(client.watch_presence(versioned(enrollment::v1::WatchPresenceRequest {})).await?.into_inner())
    }

    /// Waits for so many lines of its log with this message, and gives them.
    ///
    /// # Errors
    /// When there are fewer after 20 s.
    pub async fn wait_for_logs(&self, message: &str, count: usize) -> anyhow::Result<Vec<Value>> {
        let limit = Instant::now() + READY;
        loop {
            let found = self.said(message);
            if found.len() >= count {
                return Ok(found);
            }
            anyhow::ensure!(Instant::now() < limit, "it has not said {count} times {message:?}:\n{}", self.log_text());
            time::sleep(ATTEMPT).await;
        }
    }

    /// The lines of its log with this message.
    #[must_use]
    pub fn said(&self, message: &str) -> Vec<Value> {
        said(&self.log, message)
    }

    /// Everything that it wrote.
    #[must_use]
    pub fn log_text(&self) -> String {
        fs::read(&self.log).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default()
    }
}

impl Setup {
    /// The same with more arguments of the relay.
    #[must_use]
    pub fn relaying(self, arguments: &[&str]) -> Self {
        Self { relay: arguments.iter().map(ToString::to_string).collect(), ..self }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended.
            _ = child.start_kill();
        }
        if let Some(folder) = self.state.parent().filter(|_| !std::thread::panicking()) {
            _ = fs::remove_dir_all(folder);
        }
    }
}

/// A request of the enrollment protocol's version.
pub fn versioned<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    if let Ok(version) = enrollment::CURRENT.to_string().parse() {
        request.metadata_mut().insert(enrollment::HEADER, version);
    }
    request
}

async fn connect(address: SocketAddr, host: String, config: Arc<ClientConfig>) -> io::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(address).await?;
    tcp.set_nodelay(true)?;
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    TlsConnector::from(config).connect(name, tcp).await
}

fn said(log: &Path, message: &str) -> Vec<Value> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["message"] == message).collect()
}
