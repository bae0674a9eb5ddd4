//! Looks for Claude Code on this machine: which program, which version. What it starts it ends, through the keeper.

use std::{
    env, fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use super::Settings;
use crate::probe::{self, Found, Run, Sought};

/// Claude Code, and what npm puts on `PATH`: a place for the program, which its installation fills, and a script that starts the program.
const SOUGHT: Sought = Sought {
    name: "claude",
    package: "@anthropic-ai/claude-code",
    launchers: &["bin/claude.exe", "cli-wrapper.cjs"],
    native: native_program,
};

/// The variable that names the folder of the program's state.
pub(super) const HOME: &str = "CLAUDE_CONFIG_DIR";

/// What a program begins with.
const ELF: [u8; 4] = *b"\x7fELF";

/// Finds the program, without starting it.
///
/// # Errors
/// What is wrong and what to do, for a person.
pub(super) fn find(configured: Option<&Path>) -> Result<PathBuf, String> {
    SOUGHT.find(configured)
}

/// The program of the platform package, which lies in the package's own `node_modules` or in one above it; else the package's own place for it,
/// where the installation has put it there.
fn native_program(package: &Path) -> Option<PathBuf> {
    let (plain, musl) = match env::consts::ARCH {
        "x86_64" => ("@anthropic-ai/claude-code-linux-x64", "@anthropic-ai/claude-code-linux-x64-musl"),
        "aarch64" => ("@anthropic-ai/claude-code-linux-arm64", "@anthropic-ai/claude-code-linux-arm64-musl"),
        _ => return None,
    };
    let beside = [plain, musl].into_iter().flat_map(|platform| probe::beside(package, platform));
    let program = beside.map(|folder| folder.join("claude")).find(|program| program.is_file());
    program.or_else(|| Some(package.join("bin/claude.exe")).filter(|place| is_program(place)))
}

fn is_program(path: &Path) -> bool {
    let mut begins = [0; 4];
    fs::File::open(path).and_then(|mut file| file.read_exact(&mut begins)).is_ok() && begins == ELF
}

/// Asks the program for its version.
pub(super) async fn probe(settings: &Settings, program: PathBuf) -> Found {
    let run = Run {
        keeper: &settings.keeper,
        user: settings.user.as_ref(),
        program: &program,
        home: HOME,
        limit: settings.limits.probe,
    };
    match run.version().await {
        Ok(version) => Found { program: Some(program), version: Some(version), trouble: None },
        Err(trouble) => {
            let package = SOUGHT.package;
            let trouble = format!("{}: {trouble}; install {package} again, or name another program", program.display());
            Found { program: Some(program), version: None, trouble: Some(trouble) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    const PLATFORM: &str =
        if cfg!(target_arch = "aarch64") { "claude-code-linux-arm64" } else { "claude-code-linux-x64" };

    fn folder(name: &str) -> PathBuf {
        let folder = env::current_exe().unwrap().with_file_name(format!("claude-probe-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder.canonicalize().unwrap()
    }

    fn program(path: &Path, bytes: &[u8]) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
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
        check(&folder.join("claude"), "does not exist; install @anthropic-ai/claude-code, or correct the path");
        check(&folder, "is not a file; name the program `claude` itself");
        fs::write(folder.join("plain"), "").unwrap();
        check(&folder.join("plain"), "is not executable; make");
        for launcher in ["bin/claude.exe", "cli-wrapper.cjs"] {
            let launcher = folder.join("node_modules/@anthropic-ai/claude-code").join(launcher);
            program(&launcher, b"#!/bin/sh\n");
            check(&launcher, "without the program for this machine; install @anthropic-ai/claude-code again");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_native_program_is_run_and_not_what_npm_puts_in_its_place() {
        let folder = folder("launcher");
        let scope = folder.join("lib/node_modules/@anthropic-ai");
        let place = scope.join("claude-code/bin/claude.exe");
        program(&place, b"#!/bin/sh\n");
        program(&scope.join("claude-code/cli-wrapper.cjs"), b"#!/usr/bin/env node\n");
        fs::create_dir_all(folder.join("bin")).unwrap();
        symlink(&place, folder.join("bin/claude")).unwrap();
        let musl = scope.join(format!("{PLATFORM}-musl/claude"));
        program(&musl, b"#!/bin/sh\n");
        assert_eq!(find(Some(&folder.join("bin/claude"))), Ok(musl));
        let beside = scope.join(PLATFORM).join("claude");
        program(&beside, b"#!/bin/sh\n");
        assert_eq!(find(Some(&folder.join("bin/claude"))), Ok(beside.clone()));
        assert_eq!(find(Some(&scope.join("claude-code/cli-wrapper.cjs"))), Ok(beside));
        let below = scope.join("claude-code/node_modules/@anthropic-ai").join(PLATFORM).join("claude");
        program(&below, b"#!/bin/sh\n");
        assert_eq!(find(Some(&place)), Ok(below));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_place_of_the_program_is_taken_once_it_is_filled() {
        let folder = folder("filled");
        let place = folder.join("node_modules/@anthropic-ai/claude-code/bin/claude.exe");
        program(&place, b"\x7fELF and more");
        assert_eq!(find(Some(&place)), Ok(place));
        fs::remove_dir_all(folder).unwrap();
    }
}
