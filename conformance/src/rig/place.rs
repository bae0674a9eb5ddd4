//! Where a rig lives: folders below the build's own, a socket in a short private folder, and the programs it needs.

use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::{env, fs, io::Write as _};

use anyhow::Context;
use uuid::Uuid;

use crate::mcode::Faults;

/// The variable that arms failpoints.
const FAILPOINTS: &str = "RUNTIME_BRIDGE_FAILPOINTS";

/// How long the double of MiniMax Code waits for MCP servers to tell their tools.
const DISCOVERY_MS: u64 = 30_000;

/// Where every user may go, and where Codex has nothing against a home; it is not the temporary folder.
const FOR_ALL: &str = "/var/tmp";

/// The folders of one rig. They are removed when it is dropped; those in the build's folder stay where a test is failing.
#[derive(Debug)]
pub struct Place {
    root: PathBuf,
    workspace: PathBuf,
    socket_dir: PathBuf,
    socket: PathBuf,
    /// Variables of the daemon, beside `PATH` and `HOME`.
    pub(super) environment: Vec<(String, String)>,
    /// The socket, where daemons are given it and do not make it themselves.
    pub(super) listener: Option<UnixListener>,
    /// The daemon, when it is not the one beside this program.
    pub(super) daemon: Option<PathBuf>,
}

impl Place {
    /// Makes the folders.
    ///
    /// # Errors
    /// When one cannot be made.
    pub fn make() -> anyhow::Result<Self> {
        Self::make_in(&target()?.join("tmp"))
    }

    /// Makes them where another user can reach them, with a workspace that is this user's.
    ///
    /// # Errors
    /// When one cannot be made, or not be given away.
    pub fn make_for(uid: u32) -> anyhow::Result<Self> {
        let place = Self::make_in(Path::new(FOR_ALL))
            .context("what another user is to reach lies there, where programs can be executed")?;
        for folder in [place.root(), &place.workspace_root(), place.workspace()] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
        }
        chown(place.workspace(), Some(uid), Some(uid)).context("give the workspace away")?;
        Ok(place)
    }

    /// The program of a Harness, with the files beside it, where another user can reach it.
    ///
    /// # Errors
    /// When a file can neither be linked nor copied.
    pub(super) fn reachable(&self, program: &Path) -> anyhow::Result<PathBuf> {
        let program = program.canonicalize()?;
        let mut files = Vec::new();
        for entry in fs::read_dir(program.parent().context("no folder")?)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                files.push(entry.path());
            }
        }
        self.put_in_reach(&program, &files)
    }

    /// A program of the workspace (see [`program`]) where another user can reach it; the daemon with the keeper, which it has beside it.
    ///
    /// # Errors
    /// When it was not built, or can neither be linked nor copied.
    pub fn reachable_own(&self, name: &str) -> anyhow::Result<PathBuf> {
        let program = program(name)?.canonicalize()?;
        let keeper = (name == "runtime-bridge").then(|| program.with_file_name("runtime-bridge-keeper"));
        let files: Vec<_> = keeper.into_iter().chain([program.clone()]).collect();
        self.put_in_reach(&program, &files)
    }

    fn put_in_reach(&self, program: &Path, files: &[PathBuf]) -> anyhow::Result<PathBuf> {
        let (programs, name) = (self.root.join("programs"), program.file_name().context("no program")?);
        let to = programs.join(name);
        fs::create_dir_all(&to)?;
        for folder in [&programs, &to] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
        }
        for file in files {
            let there = to.join(file.file_name().context("no file")?);
            // Another file system has no links to this one's files.
            if fs::hard_link(file, &there).is_err() {
                fs::copy(file, &there).with_context(|| format!("copy {} to {FOR_ALL}", file.display()))?;
            }
        }
        Ok(to.join(name))
    }

    fn make_in(folder: &Path) -> anyhow::Result<Self> {
        // The first digits of a version 7 id are the time, the last ones are random.
        let id = Uuid::now_v7().simple().to_string();
        let name = &id[id.len() - 10..];
        let root = folder.join(format!("rig-{name}"));
        let workspace = root.join("workspaces").join("w");
        let socket_dir = env::temp_dir().join(format!("rb-{name}"));
        for dir in [&workspace, &root.join("home")] {
            fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        }
        let private = fs::DirBuilder::new().mode(0o700).create(&socket_dir);
        private.with_context(|| format!("make {}", socket_dir.display()))?;
        // The daemon resolves links, so what it tells is compared with resolved paths.
        let workspace = workspace.canonicalize().context("resolve the workspace")?;
        Ok(Self {
            root,
            workspace,
            socket: socket_dir.join("s"),
            socket_dir,
            environment: Vec::new(),
            listener: None,
            daemon: None,
        })
    }

    /// The folder that holds all others but the socket's; its name is unique, so that it marks what works in it.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where the double of a Harness is made.
    pub(super) fn double(&self) -> PathBuf {
        self.root.join("double")
    }

    /// The daemon's state directory.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    /// The configured root of workspaces.
    #[must_use]
    pub fn workspace_root(&self) -> PathBuf {
        self.root.join("workspaces")
    }

    /// A workspace below it.
    #[must_use]
    pub fn workspace(&self) -> &Path {
        &self.workspace
    }

    /// The daemon's socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The daemon's configuration file.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.root.join("config.toml")
    }

    /// The event file of the first Turn of the first Session, where there is one Session.
    ///
    /// # Errors
    /// When there is none.
    pub fn event_file(&self) -> anyhow::Result<PathBuf> {
        let session = fs::read_dir(self.state().join("sessions"))?.next().context("no Session")??;
        Ok(session.path().join("turns/1.log"))
    }

    /// Writes a shell's script of these lines that finds a program at `$REAL`, and gives its path.
    pub(super) fn put_before(&self, real: &Path, lines: &str) -> anyhow::Result<PathBuf> {
        let path = self.root.join("before");
        let real = real.to_str().filter(|path| !path.contains('\'')).context("a path that a shell cannot have")?;
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(&path)?;
        writeln!(file, "#!/bin/sh\nREAL='{real}'\n{lines}").context("write the script before the program")?;
        Ok(path)
    }

    /// Listens on the socket, as a service manager does for daemons that come and go.
    pub(super) fn listen(&mut self) -> anyhow::Result<()> {
        let listener = UnixListener::bind(&self.socket).context("listen on the socket")?;
        fs::set_permissions(&self.socket, fs::Permissions::from_mode(0o600))?;
        self.listener = Some(listener);
        Ok(())
    }

    /// The daemon trusts this authority of certificates, and no other one.
    pub(super) fn trust(&mut self, authority: &str) -> anyhow::Result<()> {
        let path = self.root.join("authority.pem");
        fs::write(&path, authority).context("write the certificate of the authority")?;
        let path = path.into_os_string().into_string().ok().context("a path that no variable can have")?;
        self.environment.push(("SSL_CERT_FILE".into(), path));
        Ok(())
    }

    pub(super) fn arm(&mut self, failpoints: String) -> anyhow::Result<()> {
        self.daemon = Some(self::failpoints()?);
        self.environment.push((FAILPOINTS.into(), failpoints));
        Ok(())
    }

    pub(super) fn disarm(&mut self) {
        self.environment.retain(|(name, _)| name != FAILPOINTS);
    }

    /// The home directory in the daemon's environment.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.root.join("home")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What is left for a look goes with the build's folder; nobody would take it away elsewhere.
        _ = fs::remove_dir_all(&self.socket_dir);
        if !std::thread::panicking() || self.root.starts_with(FOR_ALL) {
            _ = fs::remove_dir_all(&self.root);
        }
    }
}

/// The build's folder, found from the running test: `<target>/<profile>/deps/<test>` or `<target>/<profile>/<program>`.
pub(super) fn target() -> anyhow::Result<PathBuf> {
    let profile = profile_dir()?;
    Ok(profile.parent().context("the build folder has no parent")?.to_owned())
}

fn profile_dir() -> anyhow::Result<PathBuf> {
    let exe = env::current_exe().context("find this program")?;
    let dir = exe.parent().context("this program has no folder")?;
    let in_deps = dir.file_name().is_some_and(|name| name == "deps");
    Ok(if in_deps { dir.parent().unwrap_or(dir) } else { dir }.to_owned())
}

/// A program of the workspace, beside the running test. For the daemon, `RUNTIME_BRIDGE_BIN` goes before.
///
/// # Errors
/// When it was not built.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let given = env::var_os("RUNTIME_BRIDGE_BIN").filter(|_| name == "runtime-bridge");
    let path = match given {
        Some(path) => PathBuf::from(path),
        None => profile_dir()?.join(name),
    };
    anyhow::ensure!(path.is_file(), "{} is not there: build it with `cargo build --workspace --bins`", path.display());
    Ok(path)
}

/// The daemon that was built with failpoints: `RUNTIME_BRIDGE_FAILPOINTS_BIN`, else where `scripts/test` builds it.
///
/// # Errors
/// When it was not built.
pub fn failpoints() -> anyhow::Result<PathBuf> {
    let path = match env::var_os("RUNTIME_BRIDGE_FAILPOINTS_BIN") {
        Some(path) => PathBuf::from(path),
        None => target()?.join("failpoints/debug/runtime-bridge"),
    };
    anyhow::ensure!(
        path.is_file(),
        "{} is not there: build it with `CARGO_TARGET_DIR=target/failpoints RUSTFLAGS=\"--cfg failpoints\" cargo build -p bridge -p adapters --bins`",
        path.display()
    );
    Ok(path)
}

/// The pinned Codex: `RUNTIME_BRIDGE_CODEX`, else what `scripts/install-harnesses` put into the cache.
///
/// # Errors
/// When it is not installed.
pub fn codex() -> anyhow::Result<PathBuf> {
    let triple = format!("{}-unknown-linux-musl", env::consts::ARCH);
    let path = format!("@openai/codex-linux-{}/vendor/{triple}/bin/codex", machine());
    harness("RUNTIME_BRIDGE_CODEX", &path).context("the pinned Codex is not installed: run scripts/install-harnesses")
}

/// The pinned Claude Code: `RUNTIME_BRIDGE_CLAUDE`, else what `scripts/install-harnesses` put into the cache.
///
/// # Errors
/// When it is not installed.
pub fn claude() -> anyhow::Result<PathBuf> {
    let path = format!("@anthropic-ai/claude-code-linux-{}/claude", machine());
    harness("RUNTIME_BRIDGE_CLAUDE", &path)
        .context("the pinned Claude Code is not installed: run scripts/install-harnesses")
}

/// The pinned opencode: `RUNTIME_BRIDGE_OPENCODE`, else what `scripts/install-harnesses --acp` put into the cache.
///
/// # Errors
/// When it is not installed.
pub fn opencode() -> anyhow::Result<PathBuf> {
    let path = format!("opencode-linux-{}/bin/opencode", machine());
    harness_of("harnesses/acp", "RUNTIME_BRIDGE_OPENCODE", &path)
        .context("the pinned opencode is not installed: run scripts/install-harnesses --acp")
}

/// The same faults of the double, but that it has time for the discovery of MCP servers: its own two seconds a busy machine misses.
pub(super) fn patient(faults: &Faults) -> Faults {
    Faults { discovery_ms: faults.discovery_ms.or(Some(DISCOVERY_MS)), ..faults.clone() }
}

/// What this variable names, else the installed program at this path among the packages.
fn harness(variable: &str, path: &str) -> anyhow::Result<PathBuf> {
    harness_of("harnesses", variable, path)
}

fn harness_of(part: &str, variable: &str, path: &str) -> anyhow::Result<PathBuf> {
    if let Some(path) = env::var_os(variable) {
        return Ok(path.into());
    }
    let path = installed(part)?.join("node_modules").join(path);
    anyhow::ensure!(path.is_file(), "{} is not there", path.display());
    Ok(path)
}

/// The machine, as the packages of the Harnesses name it.
fn machine() -> &'static str {
    if env::consts::ARCH == "aarch64" { "arm64" } else { "x64" }
}

/// The Python with the pinned gRPC and MCP SDK: `RUNTIME_BRIDGE_PYTHON`, else what `scripts/install-clients` put into the cache.
///
/// # Errors
/// When it is not installed.
pub fn python() -> anyhow::Result<PathBuf> {
    if let Some(path) = env::var_os("RUNTIME_BRIDGE_PYTHON") {
        return Ok(path.into());
    }
    let installed = installed("clients").context("the Python client is not installed: run scripts/install-clients")?;
    Ok(installed.join("bin/python3"))
}

/// The folder with the pinned SDK for JavaScript: `RUNTIME_BRIDGE_NPM_PEER`, else what `scripts/install-peers` put into the
/// cache.
///
/// # Errors
/// When it is not installed.
pub(crate) fn npm_peer() -> anyhow::Result<PathBuf> {
    if let Some(path) = env::var_os("RUNTIME_BRIDGE_NPM_PEER") {
        return Ok(path.into());
    }
    installed("peers").context("the MCP SDK for JavaScript is not installed: run scripts/install-peers")
}

/// What an installer of `scripts` put into this part of the cache last.
fn installed(part: &str) -> anyhow::Result<PathBuf> {
    let dir = |name: &str| env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let cache = dir("RUNTIME_BRIDGE_CACHE")
        .or_else(|| dir("XDG_CACHE_HOME").map(|cache| cache.join("runtime-bridge")))
        .or_else(|| dir("HOME").map(|home| home.join(".cache/runtime-bridge")))
        .context("there is no cache folder")?;
    let current = cache.join(part).join("current");
    let installed = fs::read_to_string(&current).with_context(|| format!("read {}", current.display()))?;
    Ok(PathBuf::from(installed.trim_end()))
}
