//! One line of `/proc/<pid>/stat`.

use std::{fs, str};

use super::ProcessId;

/// What we need of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) pid: u32,
    pub(super) name: String,
    pub(super) state: u8,
    pub(super) parent: u32,
    pub(super) threads: u32,
    pub(super) start: u64,
}

impl Stat {
    pub(super) fn id(&self) -> ProcessId {
        ProcessId { pid: self.pid, start: self.start }
    }

    /// A process whose first thread has ended shows as a zombie while its other threads run.
    pub(super) fn runs(&self) -> bool {
        !matches!(self.state, b'X' | b'x') && (self.state != b'Z' || self.threads > 1)
    }
}

/// All processes that can be seen.
pub(super) fn all() -> Vec<Stat> {
    pids().filter_map(read).collect()
}

pub(super) fn pids() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// `None` when the process is gone, or hidden from us.
pub(super) fn read(pid: u32) -> Option<Stat> {
    parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// True while a process that we may look into is between two programs: its new environment is not set up, so an empty one
/// proves nothing. A process that runs with an empty environment has the place of it, and a thread of the kernel has no
/// memory.
pub(super) fn changes_program(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/stat")).ok().and_then(|line| is_without_environment(&line)).unwrap_or(false)
}

fn is_without_environment(line: &[u8]) -> Option<bool> {
    let close = line.iter().rposition(|byte| *byte == b')')?;
    let rest = str::from_utf8(&line[close + 1..]).ok()?;
    // Field 23 is the size of its memory, 51 the end of its environment; the first here is field 3.
    let mut fields = rest.split_ascii_whitespace();
    let memory: u64 = fields.nth(20)?.parse().ok()?;
    let environment_end: u64 = fields.nth(27)?.parse().ok()?;
    Some(memory > 0 && environment_end == 0)
}

fn parse(line: &[u8]) -> Option<Stat> {
    // The name stands in parentheses and may hold anything, parentheses and blanks included.
    let open = line.iter().position(|byte| *byte == b'(')?;
    let close = line.iter().rposition(|byte| *byte == b')')?;
    let pid = str::from_utf8(&line[..open]).ok()?.trim().parse().ok()?;
    let name = String::from_utf8_lossy(line.get(open + 1..close)?).into_owned();
    let rest = str::from_utf8(&line[close + 1..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let parent = fields.next()?.parse().ok()?;
    // Fields 5 to 19 lie between, 21 after.
    let threads = fields.nth(15)?.parse().ok()?;
    let start = fields.nth(1)?.parse().ok()?;
    Some(Stat { pid, name, state, parent, threads, start })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, want: Option<(u32, &str, u8, u32, u32, u64)>) {
        let got =
            parse(line.as_bytes()).map(|stat| (stat.pid, stat.name, stat.state, stat.parent, stat.threads, stat.start));
        assert_eq!(
            got,
            want.map(|(pid, name, state, parent, threads, start)| (pid, name.into(), state, parent, threads, start))
        );
    }

    #[test]
    fn a_name_may_hold_blanks_parentheses_and_digits() {
        let rest = "S 7 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 123456 1000 200 18446744073709551615 1 1\n";
        check(&format!("42 (sh) {rest}"), Some((42, "sh", b'S', 7, 3, 123_456)));
        check(&format!("42 (a) Z 1 (b) {rest}"), Some((42, "a) Z 1 (b", b'S', 7, 3, 123_456)));
        check(&format!("42 () {rest}"), Some((42, "", b'S', 7, 3, 123_456)));
    }

    #[test]
    fn a_line_cut_short_is_nothing() {
        for line in ["", "42", "42 (sh", "42 (sh)", "42 (sh) S", "42 (sh) S 7 1 2", ") 42 ("] {
            check(line, None);
        }
    }

    #[test]
    fn who_is_between_two_programs_has_memory_and_no_environment() {
        let line = |memory: &str, end: &str| {
            let (before, between) = (["S"; 20].join(" "), ["1"; 27].join(" "));
            is_without_environment(format!("42 (a) b) {before} {memory} {between} {end} 0\n").as_bytes())
        };
        assert_eq!(line("4096", "0"), Some(true));
        assert_eq!(line("4096", "140737488347136"), Some(false));
        assert_eq!(line("0", "0"), Some(false));
        assert_eq!(is_without_environment(b"42 (sh) S 7"), None);
        assert!(!changes_program(std::process::id()));
    }

    #[test]
    fn we_are_among_all_and_run() {
        let own = all().into_iter().find(|stat| stat.pid == std::process::id()).unwrap();
        assert!(own.runs() && own.parent > 0 && own.start > 0);
    }
}
