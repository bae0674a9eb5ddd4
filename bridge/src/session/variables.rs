//! The variables of an Environment that MCP servers name (R-MCP-3): they stand in a file that the operator writes beside the bridge's state, and are read
//! whenever a Harness is started. Their values go to the servers and to nobody else.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Read as _},
    path::Path,
};

use adapters::harness::{Configuration, McpTransport, Placement};
use secrecy::{ExposeSecret as _, SecretString, zeroize::Zeroizing};

use crate::{
    private::{self, Unfit},
    refusal::{Reason, Refusal, excerpt},
};

/// The folder of these files within the state.
pub(crate) const FOLDER: &str = "environments";
/// The most bytes of such a file.
const MAX_FILE: u64 = 1 << 20;
/// The step of a preparation that reads them.
const STEP: &str = "variables";

/// Variables with their values, by name.
pub(crate) type Variables = BTreeMap<String, SecretString>;

/// The name of an Environment's file: letters, digits, `_` and `-` of its id as they are, anything else as `%` and two digits in base 16. So no id is a path,
/// and each has a file of its own (R-API-9).
pub(crate) fn file_name(environment_id: &str) -> String {
    use std::fmt::Write as _;
    let mut name = String::new();
    for byte in environment_id.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-') {
            name.push(char::from(byte));
        } else {
            // A String can always be written to.
            _ = write!(name, "%{byte:02X}");
        }
    }
    name + ".env"
}

/// The variables that the servers of a configuration name.
///
/// # Errors
/// A preparation that fails: its text has names, and never a value.
pub(super) fn of(configuration: &Configuration, state: &Path) -> Result<Variables, Refusal> {
    let names = configuration.mcp_servers.iter().flat_map(|server| match &server.transport {
        McpTransport::Stdio { env_vars, .. } => env_vars.as_slice(),
        McpTransport::Http { .. } => &[],
    });
    let names: BTreeSet<&str> = names.map(String::as_str).collect();
    let Placement::Workspace { environment_id, .. } = &configuration.placement else { return Ok(Variables::new()) };
    if names.is_empty() {
        return Ok(Variables::new());
    }
    let file = file_name(environment_id);
    let failed = |text: String| Refusal::new(Reason::PreparationFailed, text).with("step", STEP);
    let mut all = match read(&state.join(FOLDER).join(&file)) {
        Ok(all) => all,
        Err(Flaw::Unfit(Unfit::Io(error))) if error.kind() == io::ErrorKind::NotFound => Variables::new(),
        Err(flaw) => return Err(failed(format!("the file {FOLDER}/{file} of the bridge's state {flaw}"))),
    };
    let missing: Vec<_> = names.iter().filter(|name| !all.contains_key(**name)).copied().collect();
    if !missing.is_empty() {
        let missing = excerpt(&missing.join(", "));
        return Err(failed(format!(
            "the Environment does not set {missing}; the bridge's operator sets variables in {FOLDER}/{file} of its state"
        )));
    }
    all.retain(|name, _| names.contains(name.as_str()));
    Ok(all)
}

/// Why such a file is not read. The text goes on behind its name, and has nothing of it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Flaw {
    /// It may not be read.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// It is too long.
    #[error("has more than {MAX_FILE} bytes")]
    TooLong,
    /// It is no text.
    #[error("is not UTF-8 text")]
    NoText,
    /// A line is none of those that there are.
    #[error("has in line {0} neither NAME=value nor a comment")]
    Line(usize),
    /// A variable is set twice.
    #[error("sets {1} again in line {0}")]
    Twice(usize, String),
}

/// Reads the file of an Environment.
pub(crate) fn read(path: &Path) -> Result<Variables, Flaw> {
    let file = private::open(path)?;
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(Unfit::Io)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(Flaw::TooLong);
    }
    parse(std::str::from_utf8(&bytes).map_err(|_| Flaw::NoText)?)
}

/// One variable a line, `NAME=value`: the value is what stands behind the first `=`, with its blanks and quotes. Empty lines, and those that begin with `#`,
/// say nothing.
fn parse(text: &str) -> Result<Variables, Flaw> {
    let mut all = Variables::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let variable = line.split_once('=').filter(|(name, value)| is_name(name) && !value.contains('\0'));
        let (name, value) = variable.ok_or(Flaw::Line(index + 1))?;
        if all.insert(name.to_owned(), value.into()).is_some() {
            return Err(Flaw::Twice(index + 1, name.to_owned()));
        }
    }
    Ok(all)
}

/// Whether this is a name as a shell takes it.
fn is_name(text: &str) -> bool {
    !text.starts_with(|first: char| first.is_ascii_digit())
        && !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Those that are cut out of native texts before they leave. What has less than four bytes is no secret, and cutting it would leave nothing to read.
pub(super) fn secret(of: &Variables) -> impl Iterator<Item = &SecretString> {
    of.values().filter(|value| value.expose_secret().len() >= 4)
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _, os::unix::fs::OpenOptionsExt as _};

    use super::*;

    #[test]
    fn a_file_has_a_bound() {
        let path = std::env::temp_dir().join(format!("rb-variables-{}", uuid::Uuid::now_v7().simple()));
        let mut file = fs::File::options().create_new(true).write(true).mode(0o600).open(&path).unwrap();
        let most = usize::try_from(MAX_FILE).unwrap();
        file.write_all(format!("A={}", "x".repeat(most - 2)).as_bytes()).unwrap();
        assert_eq!(read(&path).unwrap()["A"].expose_secret().len(), most - 2);
        file.write_all(b"x").unwrap();
        assert!(matches!(read(&path), Err(Flaw::TooLong)));
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn every_id_has_a_file_of_its_own_and_none_is_a_path() {
        for (id, want) in [
            ("env_1-A", "env_1-A.env"),
            (".", "%2E.env"),
            ("..", "%2E%2E.env"),
            ("a.b:c", "a%2Eb%3Ac.env"),
            ("a%2Eb", "a%252Eb.env"),
        ] {
            assert_eq!(file_name(id), want);
        }
    }

    #[test]
    fn a_line_is_a_variable_a_comment_or_a_flaw_that_repeats_nothing() {
        let all = parse("# a comment\n\nA=1\nB_2= two = \"words\" \r\nEMPTY=\n").unwrap();
        let all: Vec<_> = all.iter().map(|(name, value)| (name.as_str(), value.expose_secret())).collect();
        assert_eq!(all, [("A", "1"), ("B_2", " two = \"words\" "), ("EMPTY", "")]);
        for (text, want) in [
            ("A=1\nexport B=canary", "line 2"),
            ("canary", "line 1"),
            ("=canary", "line 1"),
            ("1A=canary", "line 1"),
            ("A =canary", "line 1"),
            ("A=1\0canary", "line 1"),
            ("A=1\nA=canary", "sets A again in line 2"),
        ] {
            let flaw = parse(text).unwrap_err().to_string();
            assert!(flaw.contains(want) && !flaw.contains("canary"), "{flaw}");
        }
    }
}
