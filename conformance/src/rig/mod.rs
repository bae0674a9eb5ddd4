//! A rig for scenarios: the real daemon with a real Harness (or a fault child in its place) and the fake provider, all
//! in folders of their own. It looks at the daemon from outside only: its socket, its logs, its processes.

mod bystander;
mod call;
mod canary;
mod config;
mod controls;
mod core;
mod daemon;
mod footprint;
mod harness;
mod held;
mod history;
mod image;
mod link;
mod mcp;
mod order;
mod place;
mod process;
mod refusal;
mod relay;
mod road;
mod scenario;
mod storage;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use proto::v1;

pub use bystander::Bystander;
pub use call::{Call, Target};
pub use canary::{Canaries, Find, Kind as Hidden, Scan, Watch, Watched, files_with};
pub use config::{Config, Isolation, Roots};
pub use controls::{answering_by, deferring, searching, strict};
pub use core::{MODEL_KEY, Observed, configuration, function, nowhere, refused, text_result, until_refused};
pub use daemon::{Daemon, Ended};
pub use footprint::Footprint;
pub use harness::Harness;
pub use held::lookup;
pub use image::{GRAY_JPEG, GRAY_JPEG_URL, RED_PNG, RED_PNG_URL, UNREADABLE_PNG};
pub use link::{CORE, Link, OTHER_CORE, Tls, client_config};
pub use mcp::{McpSeen, bearer, called_by, calling, http_server, served_by, stdio_server};
pub use order::name;
pub(crate) use place::npm_peer;
pub use place::{Place, claude, codex, failpoints, opencode, program, python};
pub use process::{Process, processes};
pub use refusal::{Refused, refusal};
pub use relay::{ENVIRONMENT, Relay, versioned};
pub use road::Road;
pub use scenario::{is_long, scenario};

use crate::authority::Certificate;
use crate::child::FaultChild;
use crate::mcode::{self, Faults};
use crate::mcp::{Script, Server};
use crate::provider::{Provider, Speaks};
use crate::script::child::Program;
use crate::script::provider::Step;

/// Which program stands at the path of the Harness that a scenario drives.
#[derive(Debug, Clone, Default)]
pub enum Stands {
    /// The pinned one (see [`Harness::program`]).
    #[default]
    Real,
    /// A fault child with this program.
    Faulty(Box<Program>),
    /// Whatever is, or is not, at this path.
    At(PathBuf),
}

/// What a rig is built of.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// The Harness that the scenario drives. The daemon has no other, unless `all` says so.
    pub harness: Harness,
    /// The scenario is written for every Harness: it runs with each, and is judged for each.
    pub for_each: bool,
    /// The daemon has all Harnesses.
    pub all: bool,
    /// What stands at the Harness's path.
    pub stands: Stands,
    /// Lines of a shell's script that stand at the Harness's path instead of the real program: they get its arguments and find it
    /// at `$REAL`.
    pub before: Option<String>,
    /// What the Harness has to declare, and for which placement; where it does not, the scenario has nothing to show.
    pub needs: Vec<(v1::Placement, v1::Capability)>,
    /// Why the scenario runs with one Harness only, where that is the Harness's own way and not the bridge's.
    pub only: Option<&'static str>,
    /// Why one Harness, or a fault child, is enough, where the rule is the bridge's own.
    pub bridge: Option<&'static str>,
    /// An MCP server beside the provider, whose origin the daemon allows.
    pub mcp: Option<Script>,
    /// How the daemon isolates it.
    pub isolation: Isolation,
    /// The first steps in the provider's queue.
    pub provider: Vec<Step>,
    /// Whether the provider is behind TLS, with an authority that the daemon trusts alone, and what it speaks there.
    pub tls: Option<Speaks>,
    /// How the rig's Core is connected; what the run was asked for when absent (see [`Link::of_run`]).
    pub link: Option<Link>,
    /// Whether the daemon is given its socket, by somebody who goes on to listen there when it has ended.
    pub given_socket: bool,
    /// More arguments of the relay, where the Core is connected by one.
    pub relay: Vec<String>,
    /// Where workspaces may lie.
    pub roots: Roots,
    /// More lines for the daemon's configuration file, in TOML; `{provider}` in them becomes the provider's address.
    pub more: String,
    /// Variables in the daemon's environment, beside `PATH` and `HOME`.
    pub environment: Vec<(String, String)>,
    /// Another user who can reach the rig's folders and the Harness's program, and has the workspace.
    pub user: Option<u32>,
    /// What the double of MiniMax Code does badly, where it stands at the Harness's path.
    pub faults: Faults,
    /// The failpoints that a daemon is armed with that was built with them; without any, the ordinary daemon runs.
    pub failpoints: Option<String>,
}

impl Setup {
    /// The real Codex under the isolation `outer`. The scenario scripts the provider.
    #[must_use]
    pub fn outer() -> Self {
        Self { isolation: Isolation::Outer, ..Self::default() }
    }

    /// A fault child that plays this, in Codex's place.
    #[must_use]
    pub fn faulty(program: Program) -> Self {
        Self { stands: Stands::Faulty(Box::new(program)), ..Self::default() }
    }

    /// A fault child that is well so far, in the place of this Harness, for a scenario that runs with each.
    #[must_use]
    pub fn child_of(harness: Harness) -> Self {
        Self::faulty(harness.healthy()).of(harness)
    }

    /// The same for a scenario that runs with each Harness, this time with this one (see [`for_each_harness`]).
    ///
    /// [`for_each_harness`]: crate::for_each_harness
    #[must_use]
    pub fn of(self, harness: Harness) -> Self {
        Self { harness, for_each: true, ..self }
    }

    /// The same with all Harnesses at the daemon.
    #[must_use]
    pub fn with_all(self) -> Self {
        Self { all: true, ..self }
    }

    /// The same with these lines of a shell's script before the real program (see [`Setup::before`]).
    #[must_use]
    pub fn behind(self, lines: &str) -> Self {
        Self { before: Some(lines.into()), ..self }
    }

    /// The double of MiniMax Code with these faults.
    #[must_use]
    pub fn double(faults: Faults) -> Self {
        Self { harness: Harness::MinimaxCode, faults, ..Self::default() }
    }

    /// The same for a Harness that declares this on a workspace.
    #[must_use]
    pub fn needing(self, capability: v1::Capability) -> Self {
        self.needing_under(v1::Placement::Workspace, capability)
    }

    /// The same for a Harness that declares this under a placement.
    #[must_use]
    pub fn needing_under(mut self, placement: v1::Placement, capability: v1::Capability) -> Self {
        self.needs.push((placement, capability));
        self
    }

    /// The same for a scenario that looks at what is one Harness's own.
    #[must_use]
    pub fn only(self, reason: &'static str) -> Self {
        Self { only: Some(reason), ..self }
    }

    /// The same for a scenario of MCP servers that are processes: of the agents behind ACP one takes none, so that it is the other one's own.
    #[must_use]
    pub fn serving_processes(self) -> Self {
        match self.harness {
            Harness::Opencode => {
                Self { for_each: false, ..self }.only("MiniMax Code takes no MCP server that is a process")
            }
            _ => self,
        }
    }

    /// The same without the credential gateway: the Harness holds the model key itself.
    #[must_use]
    pub fn without_gateway(self) -> Self {
        Self { more: format!("gateway = false\n{}", self.more), ..self }
    }

    /// The same where it is asked whether the Executor goes on behind an interrupt: the Harness has its time, also on a busy machine.
    #[must_use]
    pub fn patient(self) -> Self {
        Self { more: format!("limits.interrupt_ms = 12000\n{}", self.more), ..self }
    }

    /// The same with this MCP server beside the provider (see [`Rig::mcp`]).
    #[must_use]
    pub fn beside(self, script: Script) -> Self {
        Self { mcp: Some(script), ..self }
    }

    /// The same for a scenario of a rule that the bridge keeps by itself, before or beside the Harness.
    #[must_use]
    pub fn bridge(self, reason: &'static str) -> Self {
        Self { bridge: Some(reason), ..self }
    }

    /// The same where this user can reach the rig's folders and the Harness's program, and has the workspace. Only root can give it away.
    #[must_use]
    pub fn reachable_for(self, uid: u32) -> Self {
        Self { user: Some(uid), ..self }
    }

    /// The same with a provider behind TLS.
    #[must_use]
    pub fn behind_tls(self, speaks: Speaks) -> Self {
        Self { tls: Some(speaks), ..self }
    }

    /// The same with a Core that is connected so, whatever the run was asked for.
    #[must_use]
    pub fn over(self, link: Link) -> Self {
        Self { link: Some(link), ..self }
    }

    /// The same with more lines for the daemon's configuration file.
    #[must_use]
    pub fn with(self, more: &str) -> Self {
        Self { more: more.into(), ..self }
    }
}

/// A running daemon with everything around it.
#[derive(Debug)]
pub struct Rig {
    /// The provider that [`Rig::configuration`] names.
    pub provider: Provider,
    /// The MCP server beside it, where there is one.
    mcp: Option<Server>,
    /// The daemon. It can be killed and started again on the same state.
    pub daemon: Daemon,
    /// The fault child in the place of the Harness, where there is one.
    pub child: Option<FaultChild>,
    /// The daemon's listener with TLS, where the Core is connected so.
    tls: Option<Tls>,
    /// The relay that the daemon dials, where the Core is connected so, and the Core's certificate.
    relay: Option<(Relay, Certificate)>,
    harness: Harness,
    /// The placements under which Sessions were bound.
    placements: Mutex<BTreeSet<v1::Placement>>,
    place: Place,
}

impl Rig {
    /// Starts provider and daemon, and waits until the daemon's health service says that it serves.
    ///
    /// # Errors
    /// When a program is missing, or the daemon does not come up; the message has its last log lines.
    pub async fn start(setup: Setup) -> anyhow::Result<Self> {
        let mut place = setup.user.map_or_else(Place::make, Place::make_for)?;
        place.environment = setup.environment;
        if setup.given_socket {
            place.listen()?;
        }
        if let Some(armed) = setup.failpoints {
            place.arm(armed)?;
        }
        let (child, program) = match setup.stands {
            Stands::Real => {
                let program = setup.harness.program(&place.double(), &setup.faults)?;
                (None, setup.user.map_or(Ok(program.clone()), |_| place.reachable(&program))?)
            }
            Stands::At(path) => (None, path),
            Stands::Faulty(script) => {
                let dir = place.root().join("child");
                std::fs::create_dir_all(&dir).context("make the fault child's folder")?;
                let name = setup.harness.executable();
                let child = FaultChild::install(&dir, name, &program("runtime-bridge-conformance")?, *script)?;
                let path = child.path();
                (Some(child), path)
            }
        };
        let others = Harness::EVERY.into_iter().filter(|other| setup.all && *other != setup.harness);
        let others = others
            .map(|other| Ok((other, other.program(&place.double(), &setup.faults)?)))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let programs = [(setup.harness, program)].into_iter().chain(others);
        let standing = |(harness, program): (Harness, PathBuf)| match &setup.before {
            Some(lines) if harness == setup.harness => Ok((harness, place.put_before(&program, lines)?)),
            Some(_) | None => anyhow::Ok((harness, program)),
        };
        let programs = programs.map(standing).collect::<anyhow::Result<_>>()?;
        let provider = match setup.tls {
            None => Provider::start(setup.provider).await?,
            Some(speaks) => Provider::start_tls(setup.provider, speaks).await?,
        };
        if let Some(authority) = provider.authority() {
            place.trust(authority)?;
        }
        let mcp = match setup.mcp {
            Some(script) => Some(Server::start(script).await?),
            None => None,
        };
        let config = Config { programs, isolation: Some(setup.isolation), roots: setup.roots, more: setup.more };
        let base_url = provider.base_url_for(setup.harness.protocol());
        let mut text = config.text(&place, &base_url, mcp.as_ref().map(Server::origin).as_deref());
        let (mut tls, mut relay) = (None, None);
        match setup.link.map_or_else(Link::of_run, Ok)? {
            Link::Unix => {}
            Link::Mtls => tls = Some(Tls::make(place.root())?),
            Link::Relay => {
                let arguments: Vec<_> = setup.relay.iter().map(String::as_str).collect();
                let started = Relay::start(&arguments).await?;
                started.enroll(&place.state()).await?;
                let certificate = started.certificate(CORE).await?;
                relay = Some((started, certificate));
            }
        }
        text.push_str(tls.as_ref().map_or("", |_| link::LISTEN));
        std::fs::write(place.config(), text).context("write the configuration")?;
        let daemon = Daemon::start(&place).await?;
        let placements = Mutex::default();
        Ok(Self { provider, mcp, daemon, child, tls, relay, harness: setup.harness, placements, place })
    }

    /// Ends the rig's provider, whose place another one takes: gives the port, which the daemon allows.
    ///
    /// # Errors
    /// When there can be no other provider for the rig.
    pub async fn give_way(&mut self) -> anyhow::Result<u16> {
        let port = self.provider.address().port();
        let other = Provider::start(Vec::new()).await?;
        std::mem::replace(&mut self.provider, other).stop().await;
        Ok(port)
    }

    /// The MCP server beside the provider.
    ///
    /// # Panics
    /// Where the setup has none.
    #[must_use]
    pub fn mcp(&self) -> &Server {
        self.mcp.as_ref().unwrap_or_else(|| panic!("the setup has no MCP server"))
    }

    /// The folder of the double of MiniMax Code, which has what it was started with and what it read (see [`crate::mcode`]).
    #[must_use]
    pub fn double(&self) -> PathBuf {
        self.place.double()
    }

    /// Lets doubles that start from now on do this badly.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn set_faults(&self, faults: &Faults) -> anyhow::Result<()> {
        mcode::set_faults(&self.place.double(), &place::patient(faults))
    }

    /// The Harness that is driven.
    #[must_use]
    pub fn kind(&self) -> Harness {
        self.harness
    }

    /// The placements under which Sessions were bound so far.
    #[must_use]
    pub fn placements(&self) -> Vec<v1::Placement> {
        self.placements.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    /// What the daemon declares of the Harness.
    ///
    /// # Errors
    /// When the daemon cannot be asked, or does not know it.
    pub async fn declaration(&self) -> anyhow::Result<v1::HarnessDeclaration> {
        let info = self.client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
        let kind = self.harness.kind();
        let declared = info.harnesses.into_iter().find(|one| one.kind == kind);
        declared.with_context(|| format!("the daemon knows no {kind}"))
    }

    /// What the Harness does not declare of these, in words.
    ///
    /// # Errors
    /// When the daemon cannot be asked, or the Harness cannot be used at all.
    pub async fn undeclared(&self, needs: &[(v1::Placement, v1::Capability)]) -> anyhow::Result<Vec<String>> {
        if needs.is_empty() {
            return Ok(Vec::new());
        }
        let declared = self.declaration().await?;
        let (kind, why) = (self.harness.kind(), &declared.unavailable_reason);
        anyhow::ensure!(declared.available, "{kind} cannot be used: {why}");
        let has = |placement, capability| match placement {
            v1::Placement::None => declared.none.contains(&i32::from(capability)),
            v1::Placement::Workspace => declared.workspace.contains(&i32::from(capability)),
            v1::Placement::Unspecified => false,
        };
        let missing = needs.iter().filter(|&&(placement, capability)| !has(placement, capability));
        Ok(missing
            .map(|(placement, capability)| format!("{} under {}", word(*capability), under(*placement)))
            .collect())
    }

    /// The folders of this rig.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Where the daemon's gateway listens.
    ///
    /// # Errors
    /// When it says nothing of one.
    pub fn gateway(&self) -> anyhow::Result<std::net::SocketAddr> {
        let logs = self.daemon.logs();
        let said = logs.iter().rev().find(|line| line["message"] == "the gateway listens");
        let address = said.and_then(|line| line["address"].as_str()).context("the daemon has no gateway")?;
        Ok(address.parse()?)
    }

    /// The directory in which the model works.
    #[must_use]
    pub fn workspace(&self) -> &Path {
        self.place.workspace()
    }

    /// Stops the daemon by SIGTERM, and checks that it ends with 0 and leaves no process behind (R-CAN-4).
    ///
    /// # Errors
    /// When it does not end within 40 s, ends badly, or something that it started is still there.
    pub async fn finish(mut self) -> anyhow::Result<()> {
        let family = self.family()?;
        if self.daemon.is_running() {
            let ended = self.daemon.terminate().await?;
            anyhow::ensure!(ended == Ended::Code(0), "the daemon ended with {ended:?}\n{}", self.daemon.log_tail());
        }
        let left = process::left_of(&family, self.place.root()).await?;
        anyhow::ensure!(left.is_empty(), "processes are left: {left:#?}");
        Ok(())
    }

    /// The next daemon of this rig is one that was built with failpoints, and is armed with these.
    ///
    /// # Errors
    /// When it was not built.
    pub fn arm(&mut self, armed: &str) -> anyhow::Result<()> {
        self.disarm();
        self.place.arm(armed.into())
    }

    /// The next daemon of this rig is armed with no failpoints.
    pub fn disarm(&mut self) {
        self.place.disarm();
    }

    /// The daemon's descendants at this moment, and what else carries one of their marks.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn family(&self) -> anyhow::Result<Vec<Process>> {
        process::family(self.daemon.pid(), self.place.root())
    }

    /// Waits until the daemon has no descendants but these.
    ///
    /// # Errors
    /// When there are others after 20 s, which names them.
    pub async fn only(&self, family: &[Process]) -> anyhow::Result<()> {
        let others = process::others(self.daemon.pid(), self.place.root(), family).await?;
        anyhow::ensure!(others.is_empty(), "there are other processes: {others:#?}");
        Ok(())
    }

    /// Waits until one of the daemon's descendants fits, and gives it.
    ///
    /// # Errors
    /// When none does within 40 s.
    pub async fn wait_for_process(&self, fits: impl Fn(&Process) -> bool) -> anyhow::Result<Process> {
        process::appears(self.daemon.pid(), self.place.root(), fits).await
    }

    /// The process of the Harness itself.
    ///
    /// # Errors
    /// When none runs.
    pub fn harness(&self) -> anyhow::Result<Process> {
        let first = self.harnesses()?.into_iter().next();
        first.with_context(|| format!("no {} runs", self.harness.title()))
    }

    /// The processes of the Harness, one for each conversation.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn harnesses(&self) -> anyhow::Result<Vec<Process>> {
        let own = |process: &Process| self.harness.runs_as(&process.command);
        Ok(self.family()?.into_iter().filter(own).collect())
    }

    /// Waits until none of these processes, nor anything of theirs that works in the rig's folders, is there any more.
    ///
    /// # Errors
    /// When some are left after 20 s, which names them.
    pub async fn all_gone(&self, family: &[Process]) -> anyhow::Result<()> {
        let left = process::left_of(family, self.place.root()).await?;
        anyhow::ensure!(left.is_empty(), "processes are left: {left:#?}");
        Ok(())
    }
}

/// A capability in the words of the contract: `tool_search`.
#[must_use]
pub fn word(capability: v1::Capability) -> String {
    capability.as_str_name().trim_start_matches("CAPABILITY_").to_lowercase()
}

/// A placement in the words of the contract.
#[must_use]
pub fn under(placement: v1::Placement) -> &'static str {
    match placement {
        v1::Placement::None => "none",
        v1::Placement::Workspace => "workspace",
        v1::Placement::Unspecified => "no placement",
    }
}

impl Drop for Rig {
    /// Leaves nothing behind, whatever went wrong; where a test is failing, the daemon's last words are shown.
    fn drop(&mut self) {
        let family = self.family().unwrap_or_default();
        if std::thread::panicking() {
            daemon::show(&self.daemon.log_tail());
        }
        self.daemon.kill_now();
        for process in family {
            process.kill();
        }
    }
}
