//! Looks for Codex on this machine: which program, which version, whether its sandbox works here. What it starts it ends, through the keeper.

use std::{
    env,
    ffi::OsString,
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rustix::fs::{Access, access};
use tokio::{
    io::AsyncReadExt as _,
    time::{self, Instant},
};
use uuid::Uuid;

use super::Settings;
use crate::{
    cleaner::Cleaner,
    harness::Isolation,
    native::{
        environment::{Environment, Mark},
        process::{self, ExitStatus, Launch},
    },
};

/// How long `--version` may take.
const VERSION_LIMIT: Duration = Duration::from_secs(5);
/// How long a command in the sandbox may take.
const SANDBOX_LIMIT: Duration = Duration::from_secs(10);
/// What a probed program has between TERM and KILL.
const GRACE: Duration = Duration::from_millis(200);
/// How long printing the bundled catalogue may take.
const CATALOGUE_LIMIT: Duration = Duration::from_secs(10);
/// How much of a probed program's output is read.
const OUTPUT: u64 = 4 << 10;
/// How much of the bundled catalogue is read; it has about 1 MiB.
const CATALOGUE: u64 = 16 << 20;

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The native program.
    pub(super) program: Option<PathBuf>,
    /// What it says of itself.
    pub(super) version: Option<String>,
    /// Why it cannot be used, and what to do.
    pub(super) trouble: Option<String>,
}

/// A file as it was when it was probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    path: PathBuf,
    modified: SystemTime,
    size: u64,
}

impl Seen {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        Ok(Self { path: path.to_owned(), modified: metadata.modified()?, size: metadata.len() })
    }
}

/// Finds the program, without starting it.
///
/// # Errors
/// What is wrong and what to do, for a person.
pub(super) fn find(configured: Option<&Path>) -> Result<PathBuf, String> {
    let given = match configured {
        Some(path) => path.to_owned(),
        None => on_path("codex").ok_or_else(|| {
            "no program `codex` on PATH; install @openai/codex, or name the program in the configuration".to_owned()
        })?,
    };
    let shown = given.display();
    let path = given.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("{shown} does not exist; install @openai/codex, or correct the path"),
        _ => format!("{shown} cannot be read: {error}"),
    })?;
    if !path.is_file() {
        return Err(format!("{shown} is not a file; name the program `codex` itself"));
    }
    let program = match launcher_package(&path) {
        Some(package) => native_program(package).ok_or_else(|| {
            format!(
                "{shown} is the launcher of an npm package without the program for this machine; install @openai/codex again with \
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

fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let runs = |path: &PathBuf| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    env::split_paths(&path).filter(|folder| folder.is_absolute()).map(|folder| folder.join(name)).find(runs)
}

/// The package's folder when the file is the npm launcher. The launcher stays as a parent that dies without its child, so it is not run.
fn launcher_package(path: &Path) -> Option<&Path> {
    path.ends_with("@openai/codex/bin/codex.js").then(|| path.parent()?.parent()).flatten()
}

/// The program in the platform package, which lies in the launcher's own `node_modules` or in one above it.
fn native_program(package: &Path) -> Option<PathBuf> {
    let platform = match env::consts::ARCH {
        "x86_64" => "codex-linux-x64",
        "aarch64" => "codex-linux-arm64",
        _ => return None,
    };
    let packages = package.ancestors().map(|folder| folder.join("node_modules/@openai").join(platform));
    packages.filter_map(|folder| fs::read_dir(folder.join("vendor")).ok()).find_map(|vendor| {
        let mut programs: Vec<_> = vendor.flatten().map(|entry| entry.path().join("bin/codex")).collect();
        programs.sort();
        programs.into_iter().find(|program| program.is_file())
    })
}

/// Asks the program for its version and, where its sandbox is to be used, tries it.
pub(super) async fn probe(settings: &Settings, program: PathBuf) -> Found {
    let shown = program.display().to_string();
    let version = match version(settings, &program).await {
        Ok(version) => version,
        Err(trouble) => {
            let trouble = format!("{shown}: {trouble}; install @openai/codex again, or name another program");
            return Found { program: Some(program), version: None, trouble: Some(trouble) };
        }
    };
    let trouble = match settings.isolation {
        Isolation::Outer => None,
        Isolation::Native => sandbox(settings, &program).await.err().map(|trouble| {
            format!(
                "the sandbox of codex does not work here ({trouble}); allow unprivileged user namespaces, or set isolation = \"outer\" \
                 where the container or machine around the bridge isolates it"
            )
        }),
    };
    Found { program: Some(program), version: Some(version), trouble }
}

async fn version(settings: &Settings, program: &Path) -> Result<String, String> {
    let said = run(settings, program, &["--version"], VERSION_LIMIT, OUTPUT).await?;
    // "codex-cli 0.171.0"
    let version = said.split_whitespace().last().filter(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    version.map(str::to_owned).ok_or_else(|| "--version printed no version".to_owned())
}

/// The bundled catalogue of models, as the program prints it.
///
/// # Errors
/// What went wrong, for a person.
pub(super) async fn catalogue(settings: &Settings, program: &Path) -> Result<String, String> {
    run(settings, program, &["debug", "models", "--bundled"], CATALOGUE_LIMIT, CATALOGUE).await
}

/// Runs a command as Codex will: with bubblewrap from its package, the workspace writable.
async fn sandbox(settings: &Settings, program: &Path) -> Result<(), String> {
    let args = ["sandbox", "-c", "sandbox_mode=\"workspace-write\"", "--", "/bin/sh", "-c", ": > written && exit 0"];
    run(settings, program, &args, SANDBOX_LIMIT, OUTPUT).await.map(drop)
}

/// Runs the program to its end in a folder of its own and gives what it printed.
async fn run(
    settings: &Settings,
    program: &Path,
    args: &[&str],
    limit: Duration,
    output: u64,
) -> Result<String, String> {
    let folder = Folder::make().map_err(|error| format!("no folder for a probe: {error}"))?;
    let launch = Launch {
        keeper: settings.keeper.clone(),
        program: program.to_owned(),
        args: args.iter().map(OsString::from).collect(),
        directory: folder.0.clone(),
        environment: Environment::base(&folder.0, &folder.0).set("CODEX_HOME", &folder.0),
        mark: Mark::new("probe", &Uuid::now_v7().simple().to_string()),
        grace: GRACE,
    };
    let mut process = process::spawn(launch).map_err(|error| error.to_string())?;
    drop(process.stdin);
    let deadline = Instant::now() + limit;
    let mut printed = Vec::new();
    let reading = async {
        let _ = (&mut process.stdout).take(output).read_to_end(&mut printed).await;
        process.control.exited().await
    };
    let Ok(exit) = time::timeout_at(deadline, reading).await else {
        process.control.end();
        // The keeper needs its grace and no more.
        let _ = time::timeout(GRACE + Duration::from_secs(2), process.control.exited()).await;
        return Err(format!("{} did not end within {} s", args[0], limit.as_secs()));
    };
    match exit.status {
        ExitStatus::Code(0) => Ok(String::from_utf8_lossy(&printed).into_owned()),
        status => {
            let said = Cleaner::default().clean_tail(&process.control.stderr_tail());
            Err(format!("{} ended with {status}: {said}", args[0]))
        }
    }
}

/// A private folder that is removed again.
struct Folder(PathBuf);

impl Folder {
    fn make() -> io::Result<Self> {
        let path = env::temp_dir().join(format!("runtime-bridge-probe-{}", Uuid::now_v7().simple()));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path.canonicalize()?))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::debug!(%error, "a probe's folder could not be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = env::current_exe().unwrap().with_file_name(format!("codex-probe-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder.canonicalize().unwrap()
    }

    fn program(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[track_caller]
    fn check(configured: &Path, want: &str) {
        let refused = find(Some(configured)).unwrap_err();
        assert!(refused.contains(want), "{refused}");
    }

    #[test]
    fn each_kind_of_missing_program_says_what_to_do() {
        let folder = folder("missing");
        check(&folder.join("codex"), "does not exist; install");
        check(&folder, "is not a file; name");
        fs::write(folder.join("plain"), "").unwrap();
        check(&folder.join("plain"), "is not executable; make");
        program(&folder.join("node_modules/@openai/codex/bin/codex.js"));
        check(&folder.join("node_modules/@openai/codex/bin/codex.js"), "without the program for this machine; install");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_native_program_is_run_and_not_the_launcher() {
        let folder = folder("launcher");
        let launcher = folder.join("lib/node_modules/@openai/codex/bin/codex.js");
        program(&launcher);
        fs::create_dir_all(folder.join("bin")).unwrap();
        symlink(&launcher, folder.join("bin/codex")).unwrap();
        let platform = if env::consts::ARCH == "aarch64" { "codex-linux-arm64" } else { "codex-linux-x64" };
        let beside = folder.join("lib/node_modules/@openai").join(platform).join("vendor/some-linux/bin/codex");
        program(&beside);
        assert_eq!(find(Some(&folder.join("bin/codex"))), Ok(beside));
        let below = folder.join("lib/node_modules/@openai/codex/node_modules/@openai").join(platform);
        program(&below.join("vendor/some-linux/bin/codex"));
        assert_eq!(find(Some(&launcher)), Ok(below.join("vendor/some-linux/bin/codex")));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_given_program_is_taken_as_it_is() {
        let folder = folder("given");
        program(&folder.join("with a blank/codex"));
        assert_eq!(find(Some(&folder.join("with a blank/codex"))), Ok(folder.join("with a blank/codex")));
        fs::remove_dir_all(folder).unwrap();
    }
}
