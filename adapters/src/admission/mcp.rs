//! Checks of MCP servers (R-MCP-1): what each is by itself, what the placement decides, and what a Harness takes. Values are never repeated: an address or
//! a header may hold a secret, whatever it is said to be.

use std::{collections::BTreeMap, path::Path};

use super::{Taker, needs, refused};
use crate::harness::{Capability, Configuration, McpKind, McpOrigin, McpServer, McpTransport, NotAdmitted, Placement};

/// What is said of a process in another directory than the workspace's, where the Harness starts it there.
pub const STDIO_DIRECTORY: &str =
    "The configured engine starts MCP stdio servers in the workspace directory; set cwd to it.";
/// What is said of a process where the Harness starts none in any directory that could be declared.
pub const STDIO_NOWHERE: &str = "The configured engine cannot start MCP stdio servers in the declared cwd.";

type Checked = Result<(), NotAdmitted>;

fn at(index: usize, member: &str) -> String {
    format!("tools.mcp_servers[{index}].{member}")
}

/// Checks a server by itself.
///
/// # Errors
/// The first member that does not fit.
pub fn is_alone(index: usize, server: &McpServer) -> Checked {
    let bad = |member: &str, message: &str| Err(refused(at(index, member), message));
    if server.label.trim().is_empty() {
        return bad("label", "must not be blank");
    }
    match &server.transport {
        McpTransport::Http { url, headers, .. } => {
            address(url).or_else(|message| bad("http.url", message))?;
            headers_fit(headers).or_else(|(which, message)| bad(&format!("http.headers[{which}]"), &message))?;
        }
        McpTransport::Stdio { command, args, cwd, env_vars } => {
            if command.trim().is_empty() {
                return bad("stdio.command", "must not be empty");
            }
            if command.contains('\0') {
                return bad("stdio.command", "must not have a NUL in it");
            }
            if let Some(which) = args.iter().position(|argument| argument.contains('\0')) {
                return bad(&format!("stdio.args[{which}]"), "must not have a NUL in it");
            }
            if !Path::new(cwd).is_absolute() {
                return bad("stdio.cwd", "must be an absolute path");
            }
            if cwd.contains('\0') {
                return bad("stdio.cwd", "must not have a NUL in it");
            }
            if let Some(which) = env_vars.iter().position(|name| !is_variable(name)) {
                let message = "must be the name of a variable: letters, digits and _, and no digit first";
                return bad(&format!("stdio.env_vars[{which}]"), message);
            }
            if server.origin != McpOrigin::Environment {
                return bad("origin", "must be environment: a process is started where the Environment is");
            }
        }
    }
    let allowed = server.allowed_tools.as_deref().unwrap_or_default();
    match allowed.iter().position(|name| name.trim().is_empty()) {
        Some(which) => bad(&format!("allowed_tools[{which}]"), "must not be blank"),
        None => Ok(()),
    }
}

/// The first server with the label of an earlier one, and what is said of it.
#[must_use]
pub fn first_twin(servers: &[McpServer]) -> Option<(usize, NotAdmitted)> {
    let mut labels = BTreeMap::new();
    servers.iter().enumerate().find_map(|(index, server)| {
        let other = labels.insert(&*server.label, index)?;
        Some((index, refused(at(index, "label"), format!("is the same as tools.mcp_servers[{other}].label"))))
    })
}

/// Checks that a server can be reached from where it is to be, under a placement.
pub(super) fn is_placed(index: usize, server: &McpServer, placement: &Placement) -> Checked {
    let bad = |member: &str, message: &str| Err(refused(at(index, member), message));
    match (server.transport.kind(), server.origin, placement) {
        (McpKind::Stdio, _, Placement::None) => {
            bad("transport", "must be http: without an Environment no process starts")
        }
        (McpKind::Http, McpOrigin::Environment, Placement::None) => {
            bad("origin", "must be service: there is no Environment to connect from")
        }
        (_, McpOrigin::Service, Placement::Workspace { .. }) => bad(
            "origin",
            "must be environment: on a workspace a server is reached from there; set connection_origin, which is service where it is left out, to environment",
        ),
        (McpKind::Http | McpKind::Stdio, McpOrigin::Environment, Placement::Workspace { .. })
        | (McpKind::Http, McpOrigin::Service, Placement::None) => Ok(()),
    }
}

/// Checks all servers against what a Harness takes.
pub(crate) fn native(taker: &Taker<'_>, configuration: &Configuration) -> Checked {
    let servers = configuration.mcp_servers.iter().enumerate();
    servers.into_iter().try_for_each(|(index, server)| one(taker, configuration, index, server))
}

fn one(taker: &Taker<'_>, configuration: &Configuration, index: usize, server: &McpServer) -> Checked {
    let (kind, limits) = (taker.kind, &taker.limits.mcp);
    let bad = |member: &str, message: String| Err(refused(at(index, member), message));
    let transport = server.transport.kind();
    if !limits.transports.contains(&transport) {
        return match transport {
            McpKind::Stdio => bad("stdio", STDIO_NOWHERE.into()),
            McpKind::Http => bad("http", format!("{kind} takes no server over http")),
        };
    }
    if !limits.origins.contains(&server.origin) {
        return bad("origin", format!("{kind} connects to no server from there"));
    }
    if !taker.has(Capability::McpHttpTools) {
        return Err(needs(at(index, "transport"), kind, "CAPABILITY_MCP_HTTP_TOOLS"));
    }
    if !fits(limits.label_pattern, &server.label) {
        return bad("label", format!("must match {}", limits.label_pattern));
    }
    if limits.reserved_labels.contains(&&*server.label) {
        return bad("label", format!("is a label that {kind} keeps ({})", server.label));
    }
    match &server.transport {
        McpTransport::Http { url, headers, bearer } => {
            if limits.refuses_expansions {
                let message = || format!("must not have ${{ in it, which {kind} would replace");
                if url.contains("${") {
                    return bad("http.url", message());
                }
                if let Some(which) = headers.iter().position(|(_, value)| value.contains("${")) {
                    return bad(&format!("http.headers[{which}]"), message());
                }
            }
            if *bearer && !taker.has(Capability::McpHttpBearerAuth) {
                return Err(needs(at(index, "http.bearer"), kind, "CAPABILITY_MCP_HTTP_BEARER_AUTH"));
            }
        }
        McpTransport::Stdio { cwd, .. } => {
            if let (true, Placement::Workspace { directory, .. }) =
                (limits.stdio_in_workspace, &configuration.placement)
                // An admission may not know yet where the workspace is.
                && !directory.as_os_str().is_empty()
                && Path::new(cwd) != directory
            {
                return bad("stdio.cwd", STDIO_DIRECTORY.into());
            }
        }
    }
    if server.allowed_tools.is_some() && !limits.allowed_tools.contains(&transport) {
        let message = format!("{kind} cannot hide tools of such a server; leave it out, which allows all of them");
        return bad("allowed_tools", message);
    }
    if server.required && !taker.has(Capability::McpHttpRequired) {
        return Err(needs(at(index, "required"), kind, "CAPABILITY_MCP_HTTP_REQUIRED"));
    }
    Ok(())
}

/// Checks that no two names are one to a Harness, which spells them in its own way. `field` gives the field of a name by its number.
pub(crate) fn alike<'a>(
    kind: &str,
    names: impl Iterator<Item = &'a str>,
    spelled: impl Fn(&str) -> String,
    field: impl Fn(usize) -> String,
) -> Checked {
    let mut taken = BTreeMap::new();
    for (index, name) in names.enumerate() {
        if let Some(other) = taken.insert(spelled(name), index) {
            return Err(refused(field(index), format!("is the same to {kind} as {}", field(other))));
        }
    }
    Ok(())
}

/// Checks the address of a server.
fn address(url: &str) -> Result<(), &'static str> {
    let Some((scheme, rest)) = url.split_once("://") else { return Err("must be an absolute http or https URL") };
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return Err("must be an absolute http or https URL");
    }
    if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("must have nothing but visible ASCII characters; percent-encode the others");
    }
    if rest.contains('#') {
        return Err("must not have a fragment");
    }
    let authority = rest.split(['/', '?', '\\']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err("must not have credentials");
    }
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port),
        None => authority.find(':').map_or((authority, ""), |colon| authority.split_at(colon)),
    };
    if host.is_empty() {
        return Err("must have a host");
    }
    let port_fits = |digits: &str| digits.parse::<u16>().is_ok_and(|port| port != 0) && !digits.starts_with('+');
    if !port.is_empty() && !port.strip_prefix(':').is_some_and(port_fits) {
        return Err("must have a port from 1 to 65535, or none");
    }
    // Whoever connects reads it with this.
    url.parse::<http::Uri>().map(drop).map_err(|_| "must be a URL: percent-encode what has a meaning of its own")
}

/// Headers of the connection, of the framing of a message and of who is asked: they are the client's to set, and would not arrive, or say something that
/// is not so.
const OF_THE_CLIENT: [&str; 10] = [
    "accept-encoding",
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// And whatever begins so.
const PROXY: &str = "proxy-";

/// Checks headers: which one does not fit, and why.
fn headers_fit(headers: &[(String, String)]) -> Result<(), (usize, String)> {
    let mut taken = BTreeMap::new();
    for (index, (name, value)) in headers.iter().enumerate() {
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err((index, "must have a name that HTTP takes".into()));
        }
        if !value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte)) || value != value.trim() {
            let message = "must have a value that HTTP takes: printable ASCII without white space at its ends";
            return Err((index, message.into()));
        }
        let small = name.to_ascii_lowercase();
        if small == "authorization" {
            return Err((index, "must not be Authorization; credentials come by credential_id".into()));
        }
        if OF_THE_CLIENT.contains(&&*small) || small.starts_with(PROXY) {
            let message = "must not be of the connection, of the framing or of a proxy, and not Host, Expect or Accept-Encoding: whoever connects sets these";
            return Err((index, message.into()));
        }
        if taken.insert(small, index).is_some() {
            return Err((index, "has the name of another one, whose case alone is different".into()));
        }
    }
    Ok(())
}

fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Whether a text matches `^[…]+$`, the one form of pattern that declarations have; an empty pattern is matched by every text.
fn fits(pattern: &str, text: &str) -> bool {
    let Some(class) = pattern.strip_prefix("^[").and_then(|rest| rest.strip_suffix("]+$")) else { return true };
    let class = class.as_bytes();
    let in_class = |byte: u8| {
        let mut left = class;
        while let Some((&first, rest)) = left.split_first() {
            match rest {
                [b'-', last, after @ ..] => {
                    if (first..=*last).contains(&byte) {
                        return true;
                    }
                    left = after;
                }
                _ => {
                    if first == byte {
                        return true;
                    }
                    left = rest;
                }
            }
        }
        false
    };
    !text.is_empty() && text.bytes().all(in_class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_labels_are_matched() {
        let codex = "^[a-zA-Z0-9_:@/.-]+$";
        for (pattern, text, want) in [
            ("^[a-zA-Z0-9_-]+$", "a-B_9", true),
            ("^[a-zA-Z0-9_-]+$", "a.b", false),
            ("^[a-zA-Z0-9_-]+$", "", false),
            ("^[a-zA-Z0-9_-]+$", "\u{e9}", false),
            (codex, "a:@/.-_Z", true),
            (codex, "a b", false),
            (codex, ",", false),
            ("", "anything at all", true),
        ] {
            assert_eq!(fits(pattern, text), want, "{pattern} {text:?}");
        }
    }

    #[test]
    fn addresses_are_absolute_and_hold_no_secret() {
        for (url, good) in [
            ("https://mcp.example.com/mcp", true),
            ("HTTP://h", true),
            ("http://127.0.0.1:8080/x?a=b&c=%20", true),
            ("https://[2001:db8::1]:8443/mcp", true),
            ("https://h?q", true),
            ("/mcp", false),
            ("mcp.example.com", false),
            ("ftp://h/x", false),
            ("https:///x", false),
            ("https://", false),
            ("https://u:p@h/x", false),
            ("https://u@h", false),
            ("https://h/x#y", false),
            ("https://h:0/", false),
            ("https://h:70000/", false),
            ("https://h:+1/", false),
            ("https://h:/", false),
            ("https://h/a b", false),
            ("https://h/\u{e9}", false),
            ("https://h\n", false),
            ("https://[::1/mcp", false),
            ("https://h/<x>", false),
            ("https://h\\x", false),
        ] {
            assert_eq!(address(url).is_ok(), good, "{url:?}");
        }
        // An @ behind the host is no credential.
        assert_eq!(address("https://h/a@b"), Ok(()));
    }

    #[test]
    fn headers_are_those_of_http() {
        let check = |headers: &[(&str, &str)]| {
            let headers: Vec<_> = headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            headers_fit(&headers).err().map(|(index, _)| index)
        };
        assert_eq!(check(&[("X-A", "v"), ("x-b", ""), ("x-c", "a\tb")]), None);
        for (headers, which) in [
            (&[("X-A", "v"), ("x-a", "w")] as &[_], 1),
            (&[("", "v")], 0),
            (&[("a b", "v")], 0),
            (&[("a:", "v")], 0),
            (&[("a", "v\n")], 0),
            (&[("a", "\u{e9}")], 0),
            (&[("a", " v")], 0),
            (&[("Host", "v")], 0),
            (&[("ok", "v"), ("transfer-Encoding", "chunked")], 1),
            (&[("Proxy-Anything", "v")], 0),
            (&[("ok", "v"), ("AUTHORIZATION", "Bearer x")], 1),
        ] {
            assert_eq!(check(headers), Some(which), "{headers:?}");
        }
    }

    #[test]
    fn variables_have_names() {
        for (name, good) in [("A", true), ("_a9", true), ("9a", false), ("", false), ("A=b", false), ("A\0", false)] {
            assert_eq!(is_variable(name), good, "{name:?}");
        }
    }
}
