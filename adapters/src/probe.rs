//! Looks for the program of a Harness on this machine: which file, which version. What it starts it ends, through the keeper.

use std::{
    env,
    ffi::OsString,
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use rustix::fs::{Access, access};
use tokio::{
    io::AsyncReadExt as _,
    time::{self, Instant},
};
use uuid::Uuid;

use crate::{
    cleaner::Cleaner,
    native::{
        environment::{Environment, Mark},
        folder,
        process::{self, ExitStatus, Launch},
        user::{self, User},
    },
};

/// What a probed program has between TERM and KILL.
const GRACE: Duration = Duration::from_millis(200);
/// How much of a probed program's output is read, where it is short.
pub(crate) const OUTPUT: u64 = 4 << 10;
/// How long trouble is taken for granted: it may pass by itself (a busy machine, a setting of the system), and looking again starts programs.
const TROUBLE_HOLDS: Duration = Duration::from_secs(30);

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The native program.
    pub(crate) program: Option<PathBuf>,
    /// What it says of itself.
    pub(crate) version: Option<String>,
    /// Why it cannot be used, and what to do.
    pub(crate) trouble: Option<String>,
}

/// A file as it was when it was probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    path: PathBuf,
    modified: SystemTime,
    size: u64,
}

impl Seen {
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        Ok(Self { path: path.to_owned(), modified: metadata.modified()?, size: metadata.len() })
    }
}

/// What was found last. Probing starts programs, so it is done once for each state of the file.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// The last probe; it holds as long as the program stays the same file.
    probed: Mutex<Option<Probed>>,
    /// Held while somebody probes: who asks meanwhile waits for what is found.
    looking: tokio::sync::Mutex<()>,
}

#[derive(Clone, Debug)]
struct Probed {
    seen: Seen,
    found: Found,
    at: Instant,
}

impl Looks {
    /// What is known of the program that was found, or what a probe of it finds.
    pub(crate) async fn look<P: Future<Output = Found>>(
        &self,
        found: Result<PathBuf, String>,
        probe: impl FnOnce(PathBuf) -> P,
    ) -> Found {
        let program = match found {
            Ok(program) => program,
            Err(trouble) => return Found { program: None, version: None, trouble: Some(trouble) },
        };
        let Ok(seen) = Seen::of(&program) else {
            let trouble = format!("{} cannot be read", program.display());
            return Found { program: Some(program), version: None, trouble: Some(trouble) };
        };
        let holds = |known: &Probed| {
            known.seen == seen && (known.found.trouble.is_none() || known.at.elapsed() < TROUBLE_HOLDS)
        };
        let known = || self.probed.lock().unwrap_or_else(PoisonError::into_inner).clone().filter(holds);
        if let Some(known) = known() {
            return known.found;
        }
        let _alone = self.looking.lock().await;
        if let Some(known) = known() {
            return known.found;
        }
        let found = probe(program).await;
        let probed = Probed { seen, found: found.clone(), at: Instant::now() };
        *self.probed.lock().unwrap_or_else(PoisonError::into_inner) = Some(probed);
        found
    }
}

/// What is looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sought {
    /// Name of the program, and of the Harness for a person.
    pub(crate) name: &'static str,
    /// The npm package that brings it.
    pub(crate) package: &'static str,
    /// What npm puts on `PATH` in its place, below the package. A launcher may stay as a parent that dies without its child, so it is not run.
    pub(crate) launchers: &'static [&'static str],
    /// The native program behind a launcher, whose package's folder is given.
    pub(crate) native: fn(&Path) -> Option<PathBuf>,
}

impl Sought {
    /// Finds the program, without starting it.
    ///
    /// # Errors
    /// What is wrong and what to do, for a person.
    pub(crate) fn find(&self, configured: Option<&Path>) -> Result<PathBuf, String> {
        let Self { name, package, .. } = self;
        let given = match configured {
            Some(path) => path.to_owned(),
            None => on_path(name).ok_or_else(|| {
                format!("no program `{name}` on PATH; install {package}, or name the program in the configuration")
            })?,
        };
        let shown = given.display();
        let path = given.canonicalize().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => format!("{shown} does not exist; install {package}, or correct the path"),
            _ => format!("{shown} cannot be read: {error}"),
        })?;
        if !path.is_file() {
            return Err(format!("{shown} is not a file; name the program `{name}` itself"));
        }
        let program = match self.launcher_package(&path) {
            Some(folder) => (self.native)(folder).ok_or_else(|| {
                format!(
                    "{shown} is the launcher of an npm package without the program for this machine; install {package} again with \
                     its optional dependencies"
                )
            })?,
            None => path,
        };
        if access(&program, Access::EXEC_OK).is_err() {
            return Err(format!("{} is not executable; make it executable for the bridge's user", program.display()));
        }
        Ok(program)
    }

    /// The package's folder when the file is one of its launchers.
    fn launcher_package<'a>(&self, path: &'a Path) -> Option<&'a Path> {
        let package = Path::new(self.package);
        self.launchers.iter().find_map(|launcher| {
            let below = Path::new(launcher);
            path.ends_with(package.join(below)).then(|| path.ancestors().nth(below.components().count())).flatten()
        })
    }
}

/// The folders of a package that lies beside another: in the other's own `node_modules`, or in one above it.
pub(crate) fn beside(folder: &Path, package: impl AsRef<Path>) -> impl Iterator<Item = PathBuf> {
    folder.ancestors().map(move |folder| folder.join("node_modules").join(package.as_ref()))
}

/// A program on `PATH`.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let runs = |path: &PathBuf| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    env::split_paths(&path).filter(|folder| folder.is_absolute()).map(|folder| folder.join(name)).find(runs)
}

/// One run of a program to its end, in a folder of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    /// The keeper's program.
    pub(crate) keeper: &'a Path,
    /// The user that it runs under.
    pub(crate) user: Option<&'a User>,
    /// The program.
    pub(crate) program: &'a Path,
    /// The variable that names the folder of its state.
    pub(crate) home: &'static str,
    /// How long it may take.
    pub(crate) limit: Duration,
}

impl Run<'_> {
    /// The version that the program says: the first word that begins with a digit.
    ///
    /// # Errors
    /// What went wrong, for a person.
    pub(crate) async fn version(&self) -> Result<String, String> {
        let said = self.print(&["--version"], OUTPUT).await?;
        // "codex-cli 0.171.0", "2.1.332 (Claude Code)"
        let version = said.split_whitespace().find(|word| word.starts_with(|first: char| first.is_ascii_digit()));
        version.map(str::to_owned).ok_or_else(|| "--version printed no version".to_owned())
    }

    /// What the program prints.
    ///
    /// # Errors
    /// What went wrong, for a person.
    pub(crate) async fn print(&self, args: &[&str], output: u64) -> Result<String, String> {
        let folder = Folder::make(self.user).map_err(|error| format!("no folder for a probe: {error}"))?;
        let launch = Launch {
            keeper: self.keeper.to_owned(),
            program: self.program.to_owned(),
            args: args.iter().map(OsString::from).collect(),
            directory: folder.0.clone(),
            environment: Environment::base(&folder.0, &folder.0).set(self.home, &folder.0),
            mark: Mark::new("probe", &Uuid::now_v7().simple().to_string()),
            grace: GRACE,
            user: self.user.cloned(),
        };
        let mut process = process::spawn(launch).map_err(|error| error.to_string())?;
        drop(process.stdin);
        let deadline = Instant::now() + self.limit;
        let mut printed = Vec::new();
        let reading = async {
            let _ = (&mut process.stdout).take(output).read_to_end(&mut printed).await;
            process.control.exited().await
        };
        let Ok(exit) = time::timeout_at(deadline, reading).await else {
            process.control.end();
            // The keeper needs its grace and no more.
            let _ = time::timeout(GRACE + Duration::from_secs(2), process.control.exited()).await;
            return Err(format!("{} did not end within {:?}", args[0], self.limit));
        };
        match exit.status {
            ExitStatus::Code(0) => Ok(String::from_utf8_lossy(&printed).into_owned()),
            status => {
                let said = Cleaner::default().clean_tail(&process.control.stderr_tail());
                Err(format!("{} ended with {status}: {said}", args[0]))
            }
        }
    }
}

/// A private folder that is removed again.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn make(user: Option<&User>) -> io::Result<Self> {
        let path = env::temp_dir().join(format!("runtime-bridge-probe-{}", Uuid::now_v7().simple()));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        let folder = Self(path.canonicalize()?);
        user::make_own(&folder.0, user)?;
        Ok(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It may be the user's of the Harnesses, whose process may have filled it with anything.
        if let Err(error) = folder::remove_all(&self.0) {
            tracing::debug!(%error, "a probe's folder could not be removed");
        }
    }
}
