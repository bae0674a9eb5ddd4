//! How the keeper's program is told to become an MCP server (R-MCP-4): `runtime-bridge-keeper --serve`, with what the server is in variables. They are
//! written so that nobody in between finds a variable to put in place of `${…}`.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
};

/// The argument that says it.
pub const MODE: &str = "--serve";

/// The argument with which it does nothing: who got so far could execute it.
pub const NOTHING: &str = "--nothing";

/// The variable that every declared server has, with its label: what it starts is its own, and may outlive a Turn (R-CAN-2).
pub const VARIABLE: &str = "RUNTIME_BRIDGE_MCP";

/// What the names of arguments and variables of the server begin with.
const ARGUMENT: &str = "RUNTIME_BRIDGE_MCP_ARGUMENT_";
const GIVEN: &str = "RUNTIME_BRIDGE_MCP_VARIABLE_";

/// Variables that the server has from whoever starts it: the base of every native process, and what tells whose it is.
const KEPT: [&str; 7] = ["HOME", "LANG", "LC_ALL", super::environment::MARK_VARIABLE, "PATH", VARIABLE, "TMPDIR"];

/// The name of the variable with the command, which is argument 0, or with another argument.
#[must_use]
pub fn argument(index: usize) -> String {
    format!("{ARGUMENT}{index}")
}

/// The name of the variable with a variable.
#[must_use]
pub fn variable(name: &str) -> String {
    format!("{GIVEN}{name}")
}

/// A text without `$`.
#[must_use]
pub fn hidden(text: &str) -> String {
    text.replace('\\', r"\\").replace('$', r"\d")
}

fn shown(text: &OsStr) -> OsString {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.as_bytes().iter();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'\\' if bytes.next() == Some(&b'd') => b'$',
            byte => *byte,
        });
    }
    OsString::from_vec(out)
}

/// What becomes of the keeper's program.
#[derive(Debug, PartialEq, Eq)]
pub struct Server {
    /// The program.
    pub command: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// All of its variables.
    pub environment: BTreeMap<OsString, OsString>,
}

impl Server {
    /// Reads it from the variables of the keeper's program; none when they name no server.
    #[must_use]
    pub fn read(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Option<Self> {
        let all: BTreeMap<OsString, OsString> = variables.into_iter().collect();
        let mut arguments = (0..).map_while(|index| all.get(OsStr::new(&argument(index))).map(|text| shown(text)));
        let command = arguments.next()?;
        let arguments = arguments.collect();
        let given = all.iter().filter_map(|(name, value)| {
            let name = name.as_bytes().strip_prefix(GIVEN.as_bytes())?;
            Some((OsStr::from_bytes(name).to_owned(), shown(value)))
        });
        // What tells whose it is, is not to be replaced.
        let ours = [super::environment::MARK_VARIABLE, VARIABLE];
        let (last, first): (Vec<_>, Vec<_>) = KEPT.into_iter().partition(|name| ours.contains(name));
        let kept = |names: Vec<&str>| {
            let of = names.into_iter().map(OsString::from);
            of.filter_map(|name| all.get(&name).cloned().map(|value| (name, value))).collect::<Vec<_>>()
        };
        let environment = kept(first).into_iter().chain(given).chain(kept(last)).collect();
        Some(Self { command, arguments, environment })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Option<Server> {
        Server::read(variables.iter().map(|(name, value)| ((*name).into(), (*value).into())))
    }

    #[test]
    fn a_server_has_the_base_and_its_own_variables_and_nothing_else() {
        let server = read(&[
            ("PATH", "/bin"),
            ("HOME", "/h"),
            ("ANTHROPIC_API_KEY", "canary"),
            ("ANTHROPIC_BASE_URL", "canary"),
            ("RUNTIME_BRIDGE_MARK", "st.ex"),
            ("RUNTIME_BRIDGE_MCP", "tickets"),
            (&argument(0), "/srv"),
            (&argument(1), &hidden(r"a${HOME}\d$b\")),
            (&argument(2), ""),
            (&argument(4), "beyond a gap"),
            (&variable("TOKEN"), &hidden("$x")),
            (&variable("HOME"), "/other"),
            (&variable("RUNTIME_BRIDGE_MARK"), "none"),
        ])
        .unwrap();
        assert_eq!(server.command, "/srv");
        assert_eq!(server.arguments, [r"a${HOME}\d$b\", ""]);
        let environment: Vec<_> =
            server.environment.iter().map(|(name, value)| format!("{name:?}={value:?}")).collect();
        let want = r#""HOME"="/other" "PATH"="/bin" "RUNTIME_BRIDGE_MARK"="st.ex" "RUNTIME_BRIDGE_MCP"="tickets" "TOKEN"="$x""#;
        assert_eq!(environment.join(" "), want);
        assert_eq!(read(&[("PATH", "/bin")]), None);
    }

    #[test]
    fn what_is_hidden_has_no_dollar_and_comes_back_as_it_was() {
        for text in ["", "$", r"\", r"\d", r"\\d", "${A}", r"\${A:-b}\", "plain", "$$\\$"] {
            let hidden = hidden(text);
            assert!(!hidden.contains('$'), "{hidden}");
            assert_eq!(shown(OsStr::new(&hidden)), *text);
        }
    }
}
