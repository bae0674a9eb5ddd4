//! How MiniMax Code speaks ACP: where it differs from other agents.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{KIND, names};
use crate::acp::{
    profile::{Listing, McpResult, Profile, Slash, Steer, ToolReading},
    wire::ToolCall,
};

/// Its own limit for the discovery of a server behind HTTP; later the tools are missing in the Turn, and nothing says so.
const LISTED_WITHIN: Duration = Duration::from_secs(2);

/// What is known of it.
pub(super) fn profile() -> Profile {
    Profile {
        kind: KIND,
        name: "mcode",
        slash: Slash::EmptyBlock,
        mcp_names: &[names::tool],
        tools: ToolReading { name, command, mcp_result },
        steer: Some(Steer { method: "mcode/session/steer" }),
        // That the prompt was cancelled says nothing of the processes that it has started.
        reusable_after_cancel: false,
        resumes: true,
        unknown_session: &[],
        listing: Listing::InTurn(LISTED_WITHIN),
    }
}

/// Name and title are the same, and stand in the first report only.
fn name(call: &ToolCall<'_>) -> Option<String> {
    call.name.as_ref().or(call.title.as_ref()).map(|name| name.clone().into_owned())
}

fn command(name: &str, arguments: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Bash {
        command: String,
    }
    let is_command = name == "bash";
    is_command.then(|| serde_json::from_str::<Bash>(arguments.get()).ok()).flatten().map(|bash| bash.command)
}

/// The result of the server is kept whole. That the status is `completed` does not say that it is none of an error.
fn mcp_result(call: &ToolCall<'_>) -> Option<McpResult> {
    #[derive(Deserialize)]
    struct Output<'a> {
        #[serde(borrow)]
        details: Details<'a>,
    }
    #[derive(Deserialize)]
    struct Details<'a> {
        #[serde(borrow)]
        mcp: &'a RawValue,
        #[serde(default)]
        is_error: Option<bool>,
        #[serde(default)]
        tool: Option<String>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Result {
        #[serde(default)]
        content: Vec<Content>,
        #[serde(default)]
        is_error: Option<bool>,
    }
    #[derive(Deserialize)]
    struct Content {
        #[serde(rename = "type")]
        kind: String,
        #[serde(default)]
        text: Option<String>,
    }
    let Output { details } = serde_json::from_str(call.raw_output?.get()).ok()?;
    let result: Result = serde_json::from_str(details.mcp.get()).ok()?;
    let texts = result.content.into_iter().filter(|content| content.kind == "text").filter_map(|content| content.text);
    Some(McpResult {
        json: details.mcp.get().to_owned(),
        is_error: result.is_error.or(details.is_error),
        texts: texts.collect(),
        tool: details.tool,
        for_none: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(json: &str) -> ToolCall<'_> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn the_result_of_a_server_keeps_its_bytes_and_its_verdict() {
        let told = |output: &str| {
            let text = format!(r#"{{"toolCallId":"1","status":"completed","rawOutput":{output}}}"#);
            mcp_result(&call(&text))
        };
        let mcp = r#"{"content":[{"type":"text","text":"Echo: ok"},{"type":"image","data":""},{"type":"text","text":""}],"isError":true, "structuredContent":{"n":9007199254740993}}"#;
        let whole = format!(r#"{{"content":[],"details":{{"server":"s","tool":"t","is_error":false,"mcp":{mcp}}}}}"#);
        let texts = vec!["Echo: ok".to_owned(), String::new()];
        assert_eq!(
            told(&whole),
            Some(McpResult {
                json: mcp.to_owned(),
                is_error: Some(true),
                texts,
                tool: Some("t".into()),
                for_none: false
            })
        );
        // The server says nothing of it, and MiniMax Code does.
        let told_of = told(r#"{"details":{"is_error":true,"mcp":{"content":[]}}}"#).unwrap();
        assert_eq!(told_of.is_error, Some(true));
        assert_eq!(told(r#"{"details":{"mcp":{}}}"#).unwrap().is_error, None);
        // A failure of the transport, and what a native tool gave.
        for other in [r#"{"error":"timed out after 120000ms"}"#, r#"{"details":{"execution":{}}}"#, r#""text""#, "null"]
        {
            assert_eq!(told(other), None, "{other}");
        }
        assert_eq!(mcp_result(&call(r#"{"toolCallId":"1"}"#)), None);
    }

    #[test]
    fn tools_have_names_and_commands() {
        assert_eq!(name(&call(r#"{"toolCallId":"1","title":"t","name":"n"}"#)).as_deref(), Some("n"));
        assert_eq!(name(&call(r#"{"toolCallId":"1","title":"t"}"#)).as_deref(), Some("t"));
        assert_eq!(name(&call(r#"{"toolCallId":"1"}"#)), None);
        let arguments = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let bash = arguments(r#"{"command":"ls \"a b\"","timeout":5}"#);
        assert_eq!(command("bash", &bash).as_deref(), Some("ls \"a b\""));
        assert_eq!(command("read", &bash), None);
        assert_eq!(command("bash", &arguments(r#"{"command":7}"#)), None);
    }
}
