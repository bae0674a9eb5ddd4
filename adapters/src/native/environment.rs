//! The environment of a native process, built from nothing (R-SEC-2), and the mark by which our processes are known.
//! It reads one variable of the daemon, `PATH`, and hands on none of the others.

use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    fmt,
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

/// The variable that carries the [`Mark`] in every process started through the keeper, and in what it starts.
pub const MARK_VARIABLE: &str = "RUNTIME_BRIDGE_MARK";

/// What `PATH` is when the daemon has none.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The variables of one native process and no others (R-SEC-2). Its `Debug` shows names only: a value may be a secret.
#[derive(Clone, Default)]
pub struct Environment {
    entries: BTreeMap<OsString, OsString>,
}

impl Environment {
    /// No variable at all.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// What every native process gets: the daemon's `PATH` (or the usual one when it has none), `HOME` and `TMPDIR` as
    /// given, and a UTF-8 locale in the C language.
    #[must_use]
    pub fn base(home: &Path, tmp: &Path) -> Self {
        let path = env::var_os("PATH").filter(|path| !path.is_empty()).unwrap_or_else(|| DEFAULT_PATH.into());
        Self::empty()
            .set("PATH", path)
            .set("HOME", home)
            .set("TMPDIR", tmp)
            .set("LANG", "C.UTF-8")
            .set("LC_ALL", "C.UTF-8")
    }

    /// This environment with one more variable, which replaces an earlier one of the name. A name that is empty or
    /// holds `=` or NUL, and a value that holds NUL, make the spawn fail.
    #[must_use]
    pub fn set(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.entries.insert(name.as_ref().to_owned(), value.as_ref().to_owned());
        self
    }

    /// The value of a variable, if it is set here.
    #[must_use]
    pub fn value(&self, name: impl AsRef<OsStr>) -> Option<&OsStr> {
        self.entries.get(name.as_ref()).map(OsString::as_os_str)
    }

    /// Names and values, by name.
    pub fn entries(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.entries.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }

    /// The first name that no process can have in its environment.
    pub(crate) fn unusable(&self) -> Option<&OsStr> {
        let bad = |name: &OsStr, value: &OsStr| {
            name.is_empty()
                || name.as_bytes().iter().any(|byte| matches!(byte, 0 | b'='))
                || value.as_bytes().contains(&0)
        };
        self.entries().find(|(name, value)| bad(name, value)).map(|(name, _)| name)
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Environment ")?;
        f.debug_set().entries(self.entries.keys()).finish()
    }
}

/// Says whose a process is: the state of a daemon and one of its Executors, `<state id>.<executor id>`. It is the second
/// line behind the keeper: leftovers are found by it at start (R-DUR-2) and callers are refused by it (R-SEC-1).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mark(String);

impl Mark {
    /// The mark of an Executor of the daemon with this state.
    #[must_use]
    pub fn new(state_id: &str, executor_id: &str) -> Self {
        Self(format!("{state_id}.{executor_id}"))
    }

    /// What all marks of one state begin with, for [`sweep`](crate::native::tree::sweep).
    #[must_use]
    pub fn prefix(state_id: &str) -> String {
        format!("{state_id}.")
    }

    /// The value of the variable.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_holds_five_variables_and_nothing_of_the_daemon_but_path() {
        let base = Environment::base(Path::new("/h"), Path::new("/t"));
        let names: Vec<_> = base.entries().map(|(name, _)| name.to_str().unwrap()).collect();
        assert_eq!(names, ["HOME", "LANG", "LC_ALL", "PATH", "TMPDIR"]);
        assert_eq!(base.value("HOME").unwrap(), "/h");
        assert_eq!(base.value("LC_ALL").unwrap(), "C.UTF-8");
        assert!(!base.value("PATH").unwrap().is_empty());
    }

    #[test]
    fn debug_shows_names_and_no_value() {
        let shown = format!("{:?}", Environment::empty().set("MODEL_KEY", "canary"));
        assert_eq!(shown, r#"Environment {"MODEL_KEY"}"#);
    }

    #[test]
    fn a_later_value_replaces_an_earlier_one() {
        let both = Environment::empty().set("A", "1").set("A", "2");
        assert_eq!(both.value("A").unwrap(), "2");
        assert_eq!(both.value("B"), None);
    }

    #[test]
    fn names_that_no_process_can_have_are_found() {
        for (name, value) in [("", "v"), ("A=B", "v"), ("A\0", "v"), ("A", "v\0")] {
            assert_eq!(Environment::empty().set("OK", "").set(name, value).unusable(), Some(OsStr::new(name)));
        }
        assert_eq!(Environment::empty().set("A", "b=c").unusable(), None);
    }

    #[test]
    fn marks_of_one_state_share_its_prefix_only() {
        let mark = Mark::new("st_1", "ex_1");
        assert_eq!(mark.as_str(), "st_1.ex_1");
        assert!(mark.as_str().starts_with(&Mark::prefix("st_1")));
        assert!(!Mark::new("st_10", "ex_1").as_str().starts_with(&Mark::prefix("st_1")));
    }
}
