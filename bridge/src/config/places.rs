//! Where things are by default, and what kind of machine this is.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// Our uid.
pub(super) fn uid() -> u32 {
    rustix::process::getuid().as_raw()
}

/// Our configuration file, when there is a place for one.
pub(crate) fn config_file() -> Option<PathBuf> {
    let system = PathBuf::from("/etc/runtime-bridge/config.toml");
    if uid() == 0 || system.exists() {
        return Some(system);
    }
    Some(folder("XDG_CONFIG_HOME", ".config")?.join("runtime-bridge/config.toml"))
}

/// The state directory; empty when no place is known.
pub(super) fn state() -> PathBuf {
    if uid() == 0 {
        return PathBuf::from("/var/lib/runtime-bridge");
    }
    folder("XDG_STATE_HOME", ".local/state").map(|folder| folder.join("runtime-bridge")).unwrap_or_default()
}

/// The state directory of a relay; empty when no place is known.
pub(crate) fn relay_state() -> PathBuf {
    if uid() == 0 {
        return PathBuf::from("/var/lib/runtime-bridge-relay");
    }
    folder("XDG_STATE_HOME", ".local/state").map(|folder| folder.join("runtime-bridge-relay")).unwrap_or_default()
}

/// The socket; empty when no place is known.
pub(super) fn socket() -> PathBuf {
    if uid() == 0 {
        return PathBuf::from("/run/runtime-bridge/bridge.sock");
    }
    absolute("XDG_RUNTIME_DIR").map(|folder| folder.join("runtime-bridge.sock")).unwrap_or_default()
}

fn folder(variable: &str, below_home: &str) -> Option<PathBuf> {
    absolute(variable).or_else(|| Some(absolute("HOME")?.join(below_home)))
}

fn absolute(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Whether this process runs in a container, as far as the usual marks tell.
pub(super) fn is_container() -> bool {
    ["/.dockerenv", "/run/.containerenv"].iter().any(|mark| Path::new(mark).exists())
        || env::var_os("container").is_some()
        || env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

/// Memory of the machine, or of the control group when that is less; half a gigabyte when nobody tells.
pub(super) fn memory_bytes() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    });
    let group = fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    machine.into_iter().chain(group).min().unwrap_or(512 << 20)
}
