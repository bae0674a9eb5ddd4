//! Looks for Codex on this machine: which program, which version, whether its sandbox works here. What it starts it ends, through the keeper.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use super::Settings;
use crate::{
    harness::Isolation,
    probe::{self, Found, OUTPUT, Run, Sought},
};

/// How much of the bundled catalogue is read; it has about 1 MiB.
const CATALOGUE: u64 = 16 << 20;

/// Codex, and the launcher that npm puts on `PATH`.
const SOUGHT: Sought =
    Sought { name: "codex", package: "@openai/codex", launchers: &["bin/codex.js"], native: native_program };

/// Finds the program, without starting it.
///
/// # Errors
/// What is wrong and what to do, for a person.
pub(super) fn find(configured: Option<&Path>) -> Result<PathBuf, String> {
    SOUGHT.find(configured)
}

/// The program in the platform package, which lies in the launcher's own `node_modules` or in one above it.
fn native_program(package: &Path) -> Option<PathBuf> {
    let platform = match env::consts::ARCH {
        "x86_64" => "@openai/codex-linux-x64",
        "aarch64" => "@openai/codex-linux-arm64",
        _ => return None,
    };
    probe::beside(package, platform).filter_map(|folder| fs::read_dir(folder.join("vendor")).ok()).find_map(|vendor| {
        let mut programs: Vec<_> = vendor.flatten().map(|entry| entry.path().join("bin/codex")).collect();
        programs.sort();
        programs.into_iter().find(|program| program.is_file())
    })
}

fn run<'a>(settings: &'a Settings, program: &'a Path) -> Run<'a> {
    Run {
        keeper: &settings.keeper,
        user: settings.user.as_ref(),
        program,
        home: "CODEX_HOME",
        limit: settings.limits.probe,
    }
}

/// Asks the program for its version and, where its sandbox is to be used, tries it.
pub(super) async fn probe(settings: &Settings, program: PathBuf) -> Found {
    let shown = program.display().to_string();
    let version = match run(settings, &program).version().await {
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

/// The bundled catalogue of models, as the program prints it.
///
/// # Errors
/// What went wrong, for a person.
pub(super) async fn catalogue(settings: &Settings, program: &Path) -> Result<String, String> {
    run(settings, program).print(&["debug", "models", "--bundled"], CATALOGUE).await
}

/// Runs a command as Codex will: with bubblewrap from its package, the workspace writable.
async fn sandbox(settings: &Settings, program: &Path) -> Result<(), String> {
    let args = ["sandbox", "-c", "sandbox_mode=\"workspace-write\"", "--", "/bin/sh", "-c", ": > written && exit 0"];
    run(settings, program).print(&args, OUTPUT).await.map(drop)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt as _, symlink},
    };

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
