//! The daemon's configuration file. The only place that knows its keys.

use std::path::PathBuf;

use super::{Harness, Place};

/// How the daemon isolates a Harness (R-PLC-1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Isolation {
    /// The machine around the daemon does it.
    #[default]
    Outer,
    /// The Harness's own sandbox does it.
    Native,
}

/// Below which folders a workspace may lie (R-ASG-3).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Roots {
    /// The rig's folder of workspaces.
    #[default]
    Workspaces,
    /// The rig's whole folder, in which the daemon's state is too.
    Everything,
    /// None are configured.
    None,
}

/// What differs between rigs.
#[derive(Debug, Clone)]
pub struct Config {
    /// The Harnesses with their programs.
    pub programs: Vec<(Harness, PathBuf)>,
    /// How they are isolated; the daemon decides when absent.
    pub isolation: Option<Isolation>,
    /// Where workspaces may lie.
    pub roots: Roots,
    /// More lines, in TOML; `{provider}` in them becomes the address of the rig's provider, `{origin}` its origin.
    pub more: String,
}

impl Config {
    /// The text of the file, for a provider at this address and an MCP server of this origin.
    #[must_use]
    pub fn text(&self, place: &Place, provider: &str, mcp: Option<&str>) -> String {
        let isolation = match self.isolation {
            Some(Isolation::Outer) => "isolation = \"outer\"\n",
            Some(Isolation::Native) => "isolation = \"native\"\n",
            None => "",
        };
        let roots = match self.roots {
            Roots::Workspaces => vec![place.workspace_root()],
            Roots::Everything => vec![place.root().to_owned()],
            Roots::None => Vec::new(),
        };
        let more = with_limits(&self.more.replace("{provider}", provider).replace("{origin}", origin(provider)));
        // The provider is a fake on this machine, so its exact origin is the operator's exception (R-SEC-4); a scenario may have others.
        let allowed = match more.contains("allow_origins") {
            true => String::new(),
            false => {
                let origins: Vec<_> = [origin(provider)].into_iter().chain(mcp).collect();
                format!("allow_origins = {origins:?}\n")
            }
        };
        let program = |(harness, program): &(Harness, PathBuf)| harness.settings(program);
        let programs: String = self.programs.iter().map(program).collect();
        format!(
            "state = {:?}\nsocket = {:?}\nworkspace_roots = {roots:?}\n{allowed}{isolation}{programs}{more}\n",
            place.state(),
            place.socket(),
        )
    }
}

/// Scheme, host and port of a base address.
fn origin(base_url: &str) -> &str {
    let host = base_url.find("://").map_or(0, |at| at + 3);
    &base_url[..base_url[host..].find('/').map_or(base_url.len(), |at| host + at)]
}

/// What a scenario says nothing about: it does not wait for Turns that run when the daemon stops, and a Harness has its time on a busy machine.
const LIMITS: [(&str, u32); 5] = [
    ("drain_timeout_ms", 100),
    ("functions_listed_ms", 30_000),
    ("harness_probe_ms", 30_000),
    ("harness_start_ms", 45_000),
    ("mcp_start_ms", 30_000),
];

fn with_limits(more: &str) -> String {
    let unsaid = LIMITS.iter().filter(|(key, _)| !more.contains(key));
    if more.contains("[limits]") {
        let entries: String = unsaid.map(|(key, value)| format!("\n{key} = {value}")).collect();
        more.replace("[limits]", &format!("[limits]{entries}"))
    } else {
        let entries: String = unsaid.map(|(key, value)| format!("limits.{key} = {value}\n")).collect();
        format!("{entries}{more}")
    }
}
