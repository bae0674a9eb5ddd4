//! What holds for every agent that speaks ACP, as far as it was seen of five of them.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::acp::{
    profile::{Listing, McpResult, Profile, Slash, ToolReading},
    wire::ToolCall,
};

/// How long a prompt may take to list the functions. Agents wait for a slow list, or leave its tools out and say nothing.
const LISTED_WITHIN: Duration = Duration::from_secs(30);

/// What is known of one of this kind.
pub(super) fn profile(kind: &'static str) -> Profile {
    Profile {
        kind,
        name: kind,
        // It keeps a text from being a command in each of those that were seen.
        slash: Slash::ZeroWidthSpace,
        mcp_names: &[|server, tool| format!("mcp__{server}__{tool}"), |server, tool| format!("{server}_{tool}")],
        tools: ToolReading { name, command: |_, _| None, mcp_result },
        steer: None,
        reusable_after_cancel: false,
        // Some go on with a conversation that is another one's, so that it proves nothing.
        resumes: false,
        unknown_session: &[],
        listing: Listing::InTurn(LISTED_WITHIN),
    }
}

/// The name, wherever the agent has put it.
fn name(call: &ToolCall<'_>) -> Option<String> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Meta {
        #[serde(default)]
        tool_name: Option<String>,
        #[serde(default)]
        claude_code: Option<Inner>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Inner {
        tool_name: Option<String>,
    }
    let meta: Meta = call.meta.and_then(|meta| serde_json::from_str(meta.get()).ok()).unwrap_or_default();
    let of_meta = meta.tool_name.or_else(|| meta.claude_code.and_then(|inner| inner.tool_name));
    let said = || call.name.as_ref().or(call.title.as_ref()).map(|name| name.clone().into_owned());
    of_meta.or_else(said)
}

/// What is shown of the result at the end of the call: its texts. The status says whether it was an error.
fn mcp_result(call: &ToolCall<'_>) -> Option<McpResult> {
    #[derive(Deserialize)]
    struct Shown {
        content: Option<Content>,
    }
    #[derive(Deserialize)]
    struct Content {
        text: Option<String>,
    }
    let is_error = match call.status.as_deref()? {
        "completed" => false,
        "failed" => true,
        _ => return None,
    };
    let content: &RawValue = call.content?;
    let shown: Vec<Shown> = serde_json::from_str(content.get()).ok()?;
    let texts = shown.into_iter().filter_map(|shown| shown.content?.text).collect();
    Some(McpResult { json: content.get().to_owned(), is_error: Some(is_error), texts, ..McpResult::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(json: &str) -> ToolCall<'_> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn names_are_found_where_agents_put_them() {
        for (told, want) in [
            (r#"{"toolCallId":"1","title":"functions_echo"}"#, "functions_echo"),
            (
                r#"{"toolCallId":"1","title":"Echo","_meta":{"toolName":"mcp__functions__echo"}}"#,
                "mcp__functions__echo",
            ),
            (r#"{"toolCallId":"1","title":"Terminal","_meta":{"claudeCode":{"toolName":"Bash"}}}"#, "Bash"),
            (r#"{"toolCallId":"1","title":"ls","name":"shell","_meta":{"terminal_exit":{}}}"#, "shell"),
            (r#"{"toolCallId":"1","title":"bash"}"#, "bash"),
        ] {
            assert_eq!(name(&call(told)).as_deref(), Some(want), "{told}");
        }
        assert_eq!(name(&call(r#"{"toolCallId":"1"}"#)), None);
        let names: Vec<_> = profile("x").mcp_names.iter().map(|name| name("functions", "echo")).collect();
        assert_eq!(names, ["mcp__functions__echo", "functions_echo"]);
    }

    #[test]
    fn a_result_is_what_is_shown_at_the_end() {
        let content = r#"[{"type":"content","content":{"type":"text","text":"a"}},{"type":"content","content":{"type":"image","data":"","mimeType":"image/png"}},{"type":"diff","path":"/a"}]"#;
        let told = |status: &str| {
            let text = format!(r#"{{"toolCallId":"1","status":"{status}","content":{content}}}"#);
            mcp_result(&call(&text))
        };
        let want = |is_error| {
            let json = content.to_owned();
            Some(McpResult { json, is_error: Some(is_error), texts: vec!["a".into()], ..McpResult::default() })
        };
        assert_eq!((told("completed"), told("failed"), told("in_progress")), (want(false), want(true), None));
        assert_eq!(mcp_result(&call(r#"{"toolCallId":"1","status":"completed"}"#)), None);
    }
}
