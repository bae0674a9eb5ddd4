//! Looks for MiniMax Code on this machine: which program, which version, and the Node that its script needs. What it starts it ends, through the keeper.

use std::{
    env, fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use rustix::fs::{Access, access};

use super::Settings;
use crate::probe::{Found, OUTPUT, Run, Sought};

/// The npm package.
pub(super) const PACKAGE: &str = "@minimax-ai/code";
/// MiniMax Code. Its script is what is run, so there is nothing behind a launcher.
const SOUGHT: Sought = Sought { name: "mcode", package: PACKAGE, launchers: &[], native: |_| None };
/// What runs its script.
const NODE: &str = "node";
/// The versions of Node that it takes, for a person; [`fits`] reads them.
const NODES: &str = ">=22.19 <23 || >=24.2 <27";
/// The variable that names the folder of the program's state.
pub(super) const DATA: &str = "MINIMAX_DATA_DIR";
/// How much of a file is read to see what runs it.
const FIRST_LINE: u64 = 256;

/// How the program is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Start {
    /// What was found: a script of Node, or a program that runs by itself.
    pub(super) mcode: PathBuf,
    /// The Node that runs it, where it is a script.
    pub(super) node: Option<PathBuf>,
}

impl Start {
    /// The folder of the program and of what it brings.
    pub(super) fn package(&self) -> PathBuf {
        let of = self.mcode.ancestors().find(|folder| folder.ends_with(PACKAGE));
        of.or_else(|| self.mcode.parent()).map_or_else(|| self.mcode.clone(), Path::to_owned)
    }
}

/// Finds the program and what runs it, without starting either.
///
/// # Errors
/// What is wrong and what to do, for a person.
pub(super) fn find(configured: Option<&Path>) -> Result<Start, String> {
    find_on(configured, env::var_os("PATH").as_deref())
}

fn find_on(configured: Option<&Path>, path: Option<&std::ffi::OsStr>) -> Result<Start, String> {
    let given = match configured {
        Some(given) => given.to_owned(),
        None => on(path, SOUGHT.name).ok_or_else(|| {
            format!(
                "no program `{}` on PATH; install {PACKAGE} with a Node of version {NODES}, or name the program in the configuration",
                SOUGHT.name
            )
        })?,
    };
    let is_script = |file: &Path| given_to_node(file);
    if !given.canonicalize().is_ok_and(|file| file.is_file() && is_script(&file)) {
        return Ok(Start { mcode: SOUGHT.find(Some(&given))?, node: None });
    }
    // npm puts the program beside the Node that installed it.
    let beside = given.parent().map(|folder| folder.join(NODE)).filter(|node| runs(node));
    let node = beside.or_else(|| on(path, NODE)).ok_or_else(|| {
        format!(
            "{} is a script of Node, and no program `{NODE}` is beside it or on PATH; install Node of version {NODES}",
            given.display()
        )
    })?;
    let read = |file: &Path| file.canonicalize().map_err(|error| format!("{} cannot be read: {error}", file.display()));
    Ok(Start { mcode: read(&given)?, node: Some(read(&node)?) })
}

fn on(path: Option<&std::ffi::OsStr>, name: &str) -> Option<PathBuf> {
    env::split_paths(path?)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(name))
        .find(|file| runs(file))
}

fn runs(file: &Path) -> bool {
    file.is_file() && access(file, Access::EXEC_OK).is_ok()
}

/// Whether a file is a script of Node: by its name, or by its first line.
fn given_to_node(file: &Path) -> bool {
    if file.extension().is_some_and(|kind| kind == "js" || kind == "cjs" || kind == "mjs") {
        return true;
    }
    let mut begins = Vec::new();
    let read = fs::File::open(file).and_then(|file| file.take(FIRST_LINE).read_to_end(&mut begins));
    let line = begins.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    read.is_ok()
        && line.strip_prefix("#!").is_some_and(|line| line.split([' ', '/', '\t', '\r']).any(|word| word == NODE))
}

/// Asks Node whether it is one that the script takes.
pub(super) async fn probe_node(settings: &Settings, node: PathBuf) -> Found {
    let shown = node.display().to_string();
    let asked = run(settings, &node).print(&["--version"], OUTPUT).await;
    let judged = asked.and_then(|said| {
        let version = said.trim().trim_start_matches('v').to_owned();
        match fits(&version) {
            Some(true) => Ok(version),
            Some(false) => Err(format!("is Node {version}, which is not a version that mcode takes")),
            None => Err("--version printed no version".to_owned()),
        }
    });
    match judged {
        Ok(version) => Found { program: Some(node), version: Some(version), trouble: None },
        Err(trouble) => {
            let trouble = format!("{shown}: {trouble}; install Node of version {NODES}");
            Found { program: Some(node), version: None, trouble: Some(trouble) }
        }
    }
}

/// Asks the program for its version.
pub(super) async fn probe(settings: &Settings, start: &Start) -> Found {
    let asked = match (&start.node, start.mcode.to_str()) {
        (None, _) => run(settings, &start.mcode).version().await,
        (Some(_), None) => Err("its path is not UTF-8".to_owned()),
        (Some(node), Some(script)) => {
            let printed = run(settings, node).print(&[script, "--version"], OUTPUT).await;
            printed.and_then(|said| read_version(&said).ok_or_else(|| "--version printed no version".to_owned()))
        }
    };
    let program = Some(start.mcode.clone());
    match asked {
        Ok(version) => Found { program, version: Some(version), trouble: None },
        Err(trouble) => {
            let shown = start.mcode.display();
            let trouble = format!("{shown}: {trouble}; install {PACKAGE} again, or name another program");
            Found { program, version: None, trouble: Some(trouble) }
        }
    }
}

fn run<'a>(settings: &'a Settings, program: &'a Path) -> Run<'a> {
    Run { keeper: &settings.keeper, user: settings.user.as_ref(), program, home: DATA, limit: settings.limits.probe }
}

fn read_version(said: &str) -> Option<String> {
    said.split_whitespace().find(|word| word.starts_with(|first: char| first.is_ascii_digit())).map(str::to_owned)
}

/// Whether MiniMax Code takes this version of Node; none where it is none.
fn fits(version: &str) -> Option<bool> {
    let mut numbers = version.split('.').map(str::parse::<u32>);
    let (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(matches!((major, minor), (22, 19..) | (24, 2..) | (25 | 26, _)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = env::current_exe().unwrap().with_file_name(format!("mcode-probe-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder.canonicalize().unwrap()
    }

    fn file(path: &Path, text: &str, mode: u32) -> PathBuf {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        path.to_owned()
    }

    #[track_caller]
    fn check(configured: Option<&Path>, path: &Path, want: &str) {
        let refused = find_on(configured, Some(path.as_os_str())).unwrap_err();
        assert!(refused.contains(want), "{refused}");
    }

    #[test]
    fn each_kind_of_missing_program_says_what_to_do() {
        let folder = folder("missing");
        check(None, &folder, "no program `mcode` on PATH; install @minimax-ai/code with a Node of version >=22.19 <23");
        check(Some(&folder.join("mcode")), &folder, "does not exist; install @minimax-ai/code, or correct the path");
        check(Some(&folder), &folder, "is not a file; name the program `mcode` itself");
        let plain = file(&folder.join("plain"), "", 0o644);
        check(Some(&plain), &folder, "is not executable; make");
        let script = file(&folder.join("node_modules/@minimax-ai/code/cli.js"), "", 0o644);
        check(Some(&script), &folder, "no program `node` is beside it or on PATH; install Node of version >=22.19");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_script_is_run_by_the_node_beside_it_or_on_the_path() {
        let folder = folder("script");
        let script = file(&folder.join("lib/node_modules/@minimax-ai/code/cli.js"), "#!/usr/bin/env node\n", 0o755);
        fs::create_dir_all(folder.join("bin")).unwrap();
        let given = folder.join("bin/mcode");
        symlink(&script, &given).unwrap();
        let elsewhere = file(&folder.join("elsewhere/node"), "#!/bin/sh\n", 0o755);
        let path = env::join_paths([folder.join("bin"), folder.join("elsewhere")]).unwrap();
        let found = find_on(None, Some(&path)).unwrap();
        assert_eq!(found, Start { mcode: script.clone(), node: Some(elsewhere) });
        assert_eq!(found.package(), folder.join("lib/node_modules/@minimax-ai/code"));
        let beside = file(&folder.join("bin/node"), "#!/bin/sh\n", 0o755);
        assert_eq!(find_on(None, Some(&path)).unwrap().node, Some(beside));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_no_script_of_node_needs_none() {
        let folder = folder("plain");
        for (name, text) in [("elf", "\x7fELF"), ("shell", "#!/bin/sh\nexec node\n"), ("empty", "")] {
            let program = file(&folder.join(name).join("mcode"), text, 0o755);
            let found = find_on(Some(&program), None).unwrap();
            assert_eq!(found, Start { mcode: program, node: None });
            assert_eq!(found.package(), folder.join(name));
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn versions_of_node_are_told_apart() {
        for (version, want) in [
            ("22.18.0", Some(false)),
            ("22.19.0", Some(true)),
            ("22.21.1", Some(true)),
            ("23.11.0", Some(false)),
            ("24.1.9", Some(false)),
            ("24.2.0", Some(true)),
            ("25.0.0", Some(true)),
            ("26.9.1", Some(true)),
            ("27.0.0", Some(false)),
            ("20.1.0", Some(false)),
            ("24.2.0-nightly2025", Some(true)),
            ("twenty", None),
            ("", None),
        ] {
            assert_eq!(fits(version), want, "{version}");
        }
    }
}
