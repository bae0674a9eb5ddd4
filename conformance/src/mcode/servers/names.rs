//! The names that the model sees for tools of MCP servers, and the file that tells which is which.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// The longest part of a name that stands for a server.
const SEGMENT: usize = 48;

/// The longest name.
const NAME: usize = 80;

/// The file, in the data folder.
const FILE: &str = "mcp-runtime-names.json";

/// What the file holds. Old entries are kept.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Registry {
    version: u32,
    servers: Vec<Server>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Server {
    key: String,
    raw: String,
    segment: String,
    tools: Vec<Tool>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Tool {
    raw: String,
    segment: String,
}

impl Registry {
    /// Reads the file; one that is not there, or is no registry, is empty.
    pub(super) fn read(data: &Path) -> Self {
        let read = fs::read(data.join(FILE)).ok().and_then(|text| serde_json::from_slice(&text).ok());
        read.unwrap_or(Self { version: 1, servers: Vec::new() })
    }

    /// Writes the file, at once or not at all.
    pub(super) fn write(&self, data: &Path) -> anyhow::Result<()> {
        let aside = data.join(format!("{FILE}.new"));
        fs::write(&aside, serde_json::to_vec(self)?).context("write the names of MCP tools")?;
        fs::rename(&aside, data.join(FILE)).context("write the names of MCP tools")
    }

    /// The name for a tool, which is from now on in the registry.
    pub(super) fn name(&mut self, server: &str, tool: &str) -> String {
        let key = serde_json::json!(["configured", server]).to_string();
        let place = self.servers.iter().position(|known| known.key == key).unwrap_or_else(|| {
            let taken = self.servers.iter().map(|known| known.segment.clone()).collect();
            let segment = free(&plain(server), SEGMENT, &taken);
            self.servers.push(Server { key, raw: server.to_owned(), segment, tools: Vec::new() });
            self.servers.len() - 1
        });
        let Some(known) = self.servers.get_mut(place) else { return String::new() };
        let before = format!("mcp__{}__", known.segment);
        let segment = known.tools.iter().find(|known| known.raw == tool).map(|known| known.segment.clone());
        let segment = segment.unwrap_or_else(|| {
            let taken = known.tools.iter().map(|known| known.segment.clone()).collect();
            let segment = free(&plain(tool), NAME - before.len(), &taken);
            known.tools.push(Tool { raw: tool.to_owned(), segment: segment.clone() });
            segment
        });
        before + &segment
    }
}

/// Other characters are `_`, and there is one of it at a time.
fn plain(raw: &str) -> String {
    let mut out = String::new();
    for character in raw.chars() {
        let kept = character.is_ascii_alphanumeric() || character == '-';
        if kept || !out.ends_with('_') {
            out.push(if kept { character } else { '_' });
        }
    }
    out
}

/// The name cut to its length, with a number where it is taken.
fn free(plain: &str, longest: usize, taken: &BTreeSet<String>) -> String {
    let cut = |length: usize| plain.chars().take(length).collect::<String>();
    let numbered = |number: usize| {
        let end = format!("_{number}");
        cut(longest - end.len()) + &end
    };
    let mut candidates = std::iter::once(cut(longest)).chain((2..).map(numbered));
    candidates.find(|name| !taken.contains(name)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_what_a_provider_does_not_take() {
        let mut registry = Registry::default();
        for (server, tool, want) in [
            ("functions", "lookup", "mcp__functions__lookup"),
            ("raw name", "read.status", "mcp__raw_name__read_status"),
            ("raw.name", "read.status", "mcp__raw_name_2__read_status"),
            ("raw name", "read__status", "mcp__raw_name__read_status_2"),
            ("raw name", "read.status", "mcp__raw_name__read_status"),
        ] {
            assert_eq!(registry.name(server, tool), want);
        }
        let long = registry.name(&"s".repeat(60), &"t".repeat(60));
        assert_eq!(long, format!("mcp__{}__{}", "s".repeat(48), "t".repeat(25)));
        assert_eq!(registry.servers[1].key, r#"["configured","raw name"]"#);
    }
}
