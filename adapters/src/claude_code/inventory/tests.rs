use std::path::PathBuf;

use super::*;
use crate::harness::{Controls, FunctionTool, ModelProtocol, ModelProvider, WebSearch};

/// The native tools of a workspace but for what searches the web, in the order of their names.
const PLAIN: &str = "Bash Edit EnterWorktree ExitWorktree NotebookEdit Read ReportFindings Skill TaskCreate TaskGet TaskList TaskUpdate ToolSearch Write";

struct Row {
    workspace: bool,
    functions: &'static [(&'static str, bool)],
    tool_search: bool,
    web_search: Option<WebSearchMode>,
    schema: bool,
    /// What is asked for.
    tools: &'static str,
    /// What is told, beside the plain tools of a workspace.
    told: &'static str,
}

impl Row {
    const NONE: Self = Self {
        workspace: false,
        functions: &[],
        tool_search: false,
        web_search: None,
        schema: false,
        tools: "",
        told: "",
    };

    fn inventory(&self) -> Inventory {
        let function = |(name, defer_loading): &(&str, bool)| FunctionTool {
            name: (*name).into(),
            description: String::new(),
            parameters: "{}".into(),
            defer_loading: *defer_loading,
            silence_timeout: None,
            max_duration: None,
        };
        let workspace = Placement::Workspace { environment_id: "e".into(), directory: PathBuf::from("/w") };
        Inventory::of(&Configuration {
            harness: "claude_code".into(),
            placement: if self.workspace { workspace } else { Placement::None },
            model: "m".into(),
            instructions: String::new(),
            provider: ModelProvider {
                protocol: ModelProtocol::Messages,
                base_url: "https://h".into(),
                token_limits: None,
            },
            harness_config: String::new(),
            functions: self.functions.iter().map(function).collect(),
            tool_search: self.tool_search,
            mcp_servers: Vec::new(),
            controls: Controls {
                output_schema: self.schema.then(|| r#"{"type":"object"}"#.into()),
                web_search: self.web_search.map(WebSearch::of),
                ..Controls::default()
            },
        })
    }

    fn told(&self) -> Vec<String> {
        let plain = if self.workspace { PLAIN } else { "" };
        plain.split(' ').chain(self.told.split(' ')).filter(|tool| !tool.is_empty()).map(Into::into).collect()
    }
}

/// Each row was seen on the real program: what `--tools` has, and what its first line of a turn then tells.
const PROVED: &[Row] = &[
    Row::NONE,
    Row { web_search: Some(WebSearchMode::Disabled), ..Row::NONE },
    Row { functions: &[("a", false), ("b", false)], told: "mcp__functions__a mcp__functions__b", ..Row::NONE },
    Row { functions: &[("a", false)], schema: true, told: "StructuredOutput mcp__functions__a", ..Row::NONE },
    Row {
        functions: &[("a", false), ("b", true)],
        tool_search: true,
        tools: "ToolSearch",
        told: "ToolSearch mcp__functions__a mcp__functions__b",
        ..Row::NONE
    },
    Row { web_search: Some(WebSearchMode::Live), tools: "WebSearch", told: "WebSearch", ..Row::NONE },
    Row {
        functions: &[("b", true)],
        tool_search: true,
        web_search: Some(WebSearchMode::Live),
        tools: "ToolSearch,WebSearch",
        told: "ToolSearch WebSearch mcp__functions__b",
        ..Row::NONE
    },
    Row {
        workspace: true,
        tools: "Bash,Edit,EnterWorktree,ExitWorktree,NotebookEdit,Read,ReportFindings,Skill,TaskCreate,TaskGet,TaskList,TaskUpdate,\
                ToolSearch,WebFetch,WebSearch,Write",
        told: "WebFetch WebSearch",
        ..Row::NONE
    },
    Row {
        workspace: true,
        web_search: Some(WebSearchMode::Disabled),
        tools: "Bash,Edit,EnterWorktree,ExitWorktree,NotebookEdit,Read,ReportFindings,Skill,TaskCreate,TaskGet,TaskList,TaskUpdate,\
                ToolSearch,Write",
        ..Row::NONE
    },
    Row {
        workspace: true,
        functions: &[("a", false), ("b", true)],
        tool_search: true,
        schema: true,
        tools: "Bash,Edit,EnterWorktree,ExitWorktree,NotebookEdit,Read,ReportFindings,Skill,TaskCreate,TaskGet,TaskList,TaskUpdate,\
                ToolSearch,WebFetch,WebSearch,Write",
        told: "WebFetch WebSearch StructuredOutput mcp__functions__a mcp__functions__b",
        ..Row::NONE
    },
];

#[test]
fn each_configuration_offers_what_was_proved() {
    for row in PROVED {
        let inventory = row.inventory();
        assert_eq!(inventory.tools(), row.tools);
        assert_eq!(inventory.check(&row.told()), Ok(()), "{:?}", row.told());
        let functions = if row.functions.is_empty() { None } else { Some("mcp__functions") };
        let allowed: Vec<_> = row.tools.split(',').filter(|tool| !tool.is_empty()).chain(functions).collect();
        assert_eq!(inventory.allowed(), allowed.join(","));
        assert_eq!(inventory.searches(), row.tools.contains(TOOL_SEARCH));
    }
}

#[test]
fn a_surplus_and_a_missing_tool_are_named() {
    let row = Row { functions: &[("a", false)], schema: true, ..Row::NONE };
    let told = |tools: &[&str]| {
        let tools: Vec<_> = tools.iter().map(|tool| (*tool).to_owned()).collect();
        row.inventory().check(&tools).map_err(|mismatch| mismatch.to_string())
    };
    assert_eq!(told(&["mcp__functions__a", "StructuredOutput", "StructuredOutput"]), Ok(()));
    for (tools, want) in [
        (&["mcp__functions__a"][..], "; missing: StructuredOutput"),
        (&["StructuredOutput"], "; missing: mcp__functions__a"),
        (&["Bash", "StructuredOutput", "Task", "mcp__functions__a"], "; surplus: Bash, Task"),
        (&["Ba\nsh", "mcp__functions__a"], "; surplus: Ba\\nsh; missing: StructuredOutput"),
    ] {
        assert_eq!(told(tools), Err(format!("claude code offers other tools than configured{want}")));
    }
    let many: Vec<_> = (0..20).map(|index| format!("tool_{index:02}_{}", "x".repeat(500))).collect();
    let shown = Row::NONE.inventory().check(&many).unwrap_err().to_string();
    assert!(shown.ends_with(" and 12 more") && shown.len() < 1200, "{shown}");
}
