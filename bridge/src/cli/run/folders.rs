//! Where a hosted daemon keeps its state and its socket, and what is removed of them when.

use std::{
    env,
    fs::{self, DirBuilder, File, TryLockError},
    io,
    os::unix::{ffi::OsStrExt as _, fs::DirBuilderExt as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use uuid::Uuid;

use super::arguments::Surroundings;

/// How long the state of a run is kept.
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Longest path of a socket in bytes, the system's limit without its closing zero.
const MAX_SOCKET_BYTES: usize = 107;
/// Name of the socket in its folder.
const SOCKET: &str = "bridge.sock";
/// The daemon's lock in its state: whoever holds it lives.
const LOCK: &str = "lock";

/// The folders of one run. Dropping them removes the socket's; the state is kept for seven days.
#[derive(Debug)]
pub(super) struct Folders {
    state: PathBuf,
    socket: PathBuf,
}

/// Why there is no place for a daemon.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// Neither variable names a folder.
    #[error("no place for state: neither XDG_STATE_HOME nor HOME names an absolute folder")]
    NoStateHome,
    /// A folder cannot be made.
    #[error("cannot make {}: {source}", path.display())]
    Make {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Every place for a socket has too long a path.
    #[error(
        "no place for a socket: the path of every temporary folder is longer than a socket's may be ({MAX_SOCKET_BYTES} bytes)"
    )]
    NoSocketPlace,
}

impl Folders {
    /// Makes both folders (0700) and removes what earlier runs left seven days ago.
    pub(super) fn make(session_id: &str, surroundings: &Surroundings) -> Result<Self, Error> {
        let runs = runs(surroundings)?;
        make(&runs, true)?;
        sweep(&runs, crate::clock::now());
        let state = runs.join(session_id);
        make(&state, false)?;
        Self::again(state, surroundings)
    }

    /// The state of an earlier run, and a folder (0700) for a socket of its own: the one of a run that was killed is still there.
    pub(super) fn again(state: PathBuf, surroundings: &Surroundings) -> Result<Self, Error> {
        let temporary = [surroundings.folder("XDG_RUNTIME_DIR"), Some(env::temp_dir()), Some("/tmp".into())];
        let socket = socket_folder(temporary.into_iter().flatten(), &Uuid::now_v7().to_string())?;
        Ok(Self { state, socket })
    }

    /// The daemon's state.
    pub(super) fn state(&self) -> &Path {
        &self.state
    }

    /// Path of the socket, which is not there yet.
    pub(super) fn socket(&self) -> PathBuf {
        self.socket.join(SOCKET)
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        // What cannot be removed lies in a temporary folder.
        _ = fs::remove_dir_all(&self.socket);
    }
}

/// Where the states of all runs lie; nothing is made.
pub(super) fn runs(surroundings: &Surroundings) -> Result<PathBuf, Error> {
    let home = surroundings.folder("HOME").map(|home| home.join(".local/state"));
    let state_home = surroundings.folder("XDG_STATE_HOME").or(home).ok_or(Error::NoStateHome)?;
    Ok(state_home.join("runtime-bridge/run"))
}

/// A fresh folder below the first candidate that lets us make one and has a path short enough.
fn socket_folder(candidates: impl Iterator<Item = PathBuf>, name: &str) -> Result<PathBuf, Error> {
    let mut why = Error::NoSocketPlace;
    for candidate in candidates {
        let folder = candidate.join(format!("rb-{name}"));
        if folder.join(SOCKET).as_os_str().as_bytes().len() > MAX_SOCKET_BYTES {
            continue;
        }
        match make(&folder, false) {
            Ok(()) => return Ok(folder),
            Err(error) => why = error,
        }
    }
    Err(why)
}

fn make(path: &Path, with_parents: bool) -> Result<(), Error> {
    let made = DirBuilder::new().mode(0o700).recursive(with_parents).create(path);
    made.map_err(|source| Error::Make { path: path.into(), source })
}

/// Removes the states that nobody has used for so long. What cannot be looked at or removed stays.
fn sweep(runs: &Path, now: SystemTime) {
    for entry in fs::read_dir(runs).into_iter().flatten().flatten() {
        let is_run = entry.file_name().as_bytes().starts_with(b"run-");
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_run && is_folder && is_old(&entry.path(), now) && !is_in_use(&entry.path()) {
            _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether neither the folder nor anything directly in it, such as the journal, was changed lately.
fn is_old(state: &Path, now: SystemTime) -> bool {
    let inside = fs::read_dir(state).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut all = inside.chain([state.to_owned()]);
    all.all(|path| {
        let changed = fs::symlink_metadata(path).and_then(|metadata| metadata.modified());
        changed.is_ok_and(|changed| now.duration_since(changed).is_ok_and(|age| age > KEPT))
    })
}

/// Whether a daemon holds the state's lock.
fn is_in_use(state: &Path) -> bool {
    match File::open(state.join(LOCK)) {
        Ok(lock) => matches!(lock.try_lock(), Err(TryLockError::WouldBlock)),
        Err(_) => false,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::{
        ffi::OsString,
        os::unix::fs::PermissionsExt as _,
        process,
        sync::atomic::{AtomicU64, Ordering},
    };

    use super::*;

    /// A fresh folder beside the tests' own program.
    pub(in crate::cli::run) fn scratch(name: &str) -> PathBuf {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let beside = env::current_exe().unwrap().parent().unwrap().join("run-tests");
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = beside.join(format!("{name}-{}-{count}", process::id()));
        _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn surroundings(state_home: Option<&Path>, home: Option<&Path>) -> Surroundings {
        let value = |path: Option<&Path>| path.map(|path| OsString::from(path.as_os_str()));
        let (state_home, home) = (value(state_home), value(home));
        Surroundings::of(move |name| match name {
            "XDG_STATE_HOME" => state_home.clone(),
            "HOME" => home.clone(),
            _ => None,
        })
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn the_socket_goes_and_the_state_stays() {
        let home = scratch("home");
        let folders = Folders::make("run-1", &surroundings(None, Some(&home))).unwrap();
        let state = home.join(".local/state/runtime-bridge/run/run-1");
        assert_eq!(folders.state(), state);
        assert_eq!(mode(&state), 0o700);
        let socket = folders.socket();
        assert_eq!(mode(socket.parent().unwrap()), 0o700);
        assert!(socket.as_os_str().len() <= MAX_SOCKET_BYTES);
        fs::write(&socket, "").unwrap();
        drop(folders);
        assert!(!socket.parent().unwrap().exists());
        assert!(state.exists());
    }

    #[test]
    fn a_relative_state_home_does_not_count() {
        let home = scratch("relative");
        let folders = Folders::make("run-2", &surroundings(Some(Path::new("here")), Some(&home))).unwrap();
        assert!(folders.state().starts_with(&home));
        assert!(matches!(Folders::make("run-3", &surroundings(None, None)), Err(Error::NoStateHome)));
    }

    #[test]
    fn a_socket_finds_the_first_place_that_is_short_enough() {
        let short = PathBuf::from("/tmp");
        let long = short.join("d".repeat(MAX_SOCKET_BYTES));
        let session_id = format!("run-test-{}", process::id());
        let folder = socket_folder([long.clone(), short.clone()].into_iter(), &session_id).unwrap();
        assert!(folder.starts_with(&short));
        assert!(socket_folder([short].into_iter(), &session_id).is_err(), "a folder that is there is never used");
        fs::remove_dir(folder).unwrap();
        assert!(matches!(socket_folder([long].into_iter(), &session_id), Err(Error::NoSocketPlace)));
    }

    #[test]
    fn only_old_states_that_nobody_holds_are_removed() {
        let runs = scratch("sweep");
        for name in ["run-old", "run-held", "other"] {
            fs::create_dir(runs.join(name)).unwrap();
            fs::write(runs.join(name).join(LOCK), "").unwrap();
        }
        let held = File::open(runs.join("run-held").join(LOCK)).unwrap();
        held.lock().unwrap();

        sweep(&runs, SystemTime::now() + KEPT - Duration::from_secs(60));
        assert!(runs.join("run-old").exists(), "not seven days old");
        sweep(&runs, SystemTime::now() + KEPT + Duration::from_secs(60));
        let mut left: Vec<_> = fs::read_dir(&runs).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["other", "run-held"]);
    }
}
