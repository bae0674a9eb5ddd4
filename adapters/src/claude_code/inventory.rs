//! Which tools a configuration offers the model, and whether Claude Code offers exactly these (R-CTL-4, R-CTL-5). It tells them at the start of
//! each native turn, before it asks the provider.

use std::{collections::BTreeSet, fmt};

use super::{functions::tool_name, wire::SERVER};
use crate::harness::{Configuration, Placement, WebSearchMode};

/// The tool by which the model gives a final answer of a schema.
pub(super) const STRUCTURED_OUTPUT: &str = "StructuredOutput";
/// The tool by which the model finds what is deferred.
pub(super) const TOOL_SEARCH: &str = "ToolSearch";
const WEB_FETCH: &str = "WebFetch";
const WEB_SEARCH: &str = "WebSearch";

/// Native tools of a workspace: the native default of the qualified version less what R-CTL-5 takes away. The search for tools is part of it,
/// and Claude Code then leaves some of these for the model to find.
const WORKSPACE: &[&str] = &[
    "Bash",
    "Edit",
    "EnterWorktree",
    "ExitWorktree",
    "NotebookEdit",
    "Read",
    "ReportFindings",
    "Skill",
    "TaskCreate",
    "TaskGet",
    "TaskList",
    "TaskUpdate",
    TOOL_SEARCH,
    WEB_FETCH,
    WEB_SEARCH,
    "Write",
];

/// The tools that a configuration offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Inventory {
    /// Tools of Claude Code that are asked for.
    native: Vec<&'static str>,
    /// Whether there are functions.
    functions: bool,
    /// Everything, as Claude Code tells it.
    offered: BTreeSet<String>,
}

impl Inventory {
    /// What this configuration offers.
    pub(super) fn of(configuration: &Configuration) -> Self {
        let search = configuration.controls.web_search.as_ref().map(|search| search.mode);
        let native: Vec<_> = match configuration.placement {
            Placement::Workspace { .. } => WORKSPACE
                .iter()
                .copied()
                .filter(|tool| search != Some(WebSearchMode::Disabled) || ![WEB_FETCH, WEB_SEARCH].contains(tool))
                .collect(),
            Placement::None => {
                let found = configuration.tool_search.then_some(TOOL_SEARCH);
                let searched = (search == Some(WebSearchMode::Live)).then_some(WEB_SEARCH);
                found.into_iter().chain(searched).collect()
            }
        };
        let functions = configuration.functions.iter().map(|function| tool_name(&function.name));
        let structured = configuration.controls.output_schema.as_ref().map(|_| STRUCTURED_OUTPUT.to_owned());
        let offered = native.iter().map(|tool| (*tool).to_owned()).chain(functions).chain(structured).collect();
        Self { native, functions: !configuration.functions.is_empty(), offered }
    }

    /// The native tools, as they are asked for.
    pub(super) fn tools(&self) -> String {
        self.native.join(",")
    }

    /// What the model may use without a question under the placement `none`: every tool that is offered. The final answer of a schema needs no
    /// leave.
    pub(super) fn allowed(&self) -> String {
        let functions = self.functions.then(|| format!("mcp__{SERVER}"));
        self.native.iter().map(|tool| (*tool).to_owned()).chain(functions).collect::<Vec<_>>().join(",")
    }

    /// Whether the model searches for tools.
    pub(super) fn searches(&self) -> bool {
        self.native.contains(&TOOL_SEARCH)
    }

    /// Compares with what Claude Code tells.
    ///
    /// # Errors
    /// When it offers something else.
    pub(super) fn check(&self, told: &[String]) -> Result<(), Mismatch> {
        let told: BTreeSet<&String> = told.iter().collect();
        let surplus: Vec<_> =
            told.iter().filter(|tool| !self.offered.contains(**tool)).map(|tool| (*tool).clone()).collect();
        let missing: Vec<_> = self.offered.iter().filter(|tool| !told.contains(tool)).cloned().collect();
        if surplus.is_empty() && missing.is_empty() { Ok(()) } else { Err(Mismatch { surplus, missing }) }
    }
}

/// Claude Code offers the model other tools than it was told to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) struct Mismatch {
    /// Tools that nobody asked for.
    pub(super) surplus: Vec<String>,
    /// Tools that are not there.
    pub(super) missing: Vec<String>,
}

/// The most tools that are named.
const NAMED: usize = 8;
/// The most characters of a name.
const NAME: usize = 128;

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("claude code offers other tools than configured")?;
        for (which, tools) in [("surplus", &self.surplus), ("missing", &self.missing)] {
            if tools.is_empty() {
                continue;
            }
            let named =
                tools.iter().take(NAMED).map(|tool| tool.chars().take(NAME).flat_map(char::escape_debug).collect());
            write!(f, "; {which}: {}", named.collect::<Vec<String>>().join(", "))?;
            if let Some(more) = tools.len().checked_sub(NAMED).filter(|more| *more > 0) {
                write!(f, " and {more} more")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
