//! The public JSON with its defaults, one object. Schemas and what is only kept go in as they came (R-API-3).

use adapters::harness::{ContextSize, McpOrigin, McpTransport, TextVerbosity, WebSearch, WebSearchMode};

use super::{
    Purpose,
    body::{Body, Part, Tool},
    mcp,
};

/// Writes it. The tools of a Session are without `tool_search`, for which the public response has no place.
pub(super) fn write(body: &Body<'_>, purpose: Purpose) -> String {
    let shown = body.tools.iter().filter(|tool| purpose == Purpose::Save || !matches!(tool, Tool::Search));
    let tools: Vec<_> = shown.map(tool).collect();
    let format = match body.format {
        None => r#"{"type":"text"}"#.to_owned(),
        Some(schema) => format!(r#"{{"type":"json_schema","schema":{schema}}}"#),
    };
    let verbosity = match body.verbosity {
        Some(TextVerbosity::Low) => "low",
        Some(TextVerbosity::High) => "high",
        Some(TextVerbosity::Medium) | None => "medium",
    };
    let mut out = format!(r#"{{"tools":[{}],"text":{{"format":{format},"verbosity":"{verbosity}"}}"#, tools.join(","));
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            out.push_str(&format!(r#","{name}":{value}"#));
        }
    };
    add(
        "reasoning",
        part(&body.reasoning, |of| format!(r#"{{"effort":{},"summary":{}}}"#, quoted(of.effort), quoted(of.summary))),
    );
    add("service_tier", part(&body.service_tier, |tier| quote(tier)));
    add("multi_agent", part(&body.multi_agent, |text| (*text).to_owned()));
    out.push('}');
    out
}

fn part<T>(of: &Part<T>, write: impl FnOnce(&T) -> String) -> Option<String> {
    match of {
        Part::Absent => None,
        Part::Null => Some("null".into()),
        Part::Given(of) => Some(write(of)),
    }
}

fn tool(of: &Tool<'_>) -> String {
    match of {
        Tool::Function(of) => format!(
            r#"{{"type":"function","name":{},"description":{},"parameters":{},"defer_loading":{}}}"#,
            quote(&of.name),
            quote(&of.description),
            of.parameters,
            of.defer_loading
        ),
        Tool::Inert(text) => (*text).to_owned(),
        Tool::Mcp(entry) => server(entry),
        Tool::Programmatic(enabled) => format!(r#"{{"type":"programmatic_tool_calling","enabled":{enabled}}}"#),
        Tool::Search => r#"{"type":"tool_search"}"#.into(),
        Tool::WebSearch(of) => web_search(of),
    }
}

fn web_search(of: &WebSearch) -> String {
    let mode = match of.mode {
        WebSearchMode::Disabled => "disabled",
        WebSearchMode::Cached => "cached",
        WebSearchMode::Live => "live",
    };
    let size = match of.context_size {
        Some(ContextSize::Low) => "low",
        Some(ContextSize::High) => "high",
        Some(ContextSize::Medium) | None => "medium",
    };
    let location = of.location.as_ref().map_or_else(
        || "null".to_owned(),
        |of| {
            let [city, country, region, timezone] =
                [&of.city, &of.country, &of.region, &of.timezone].map(|one| quoted(one.as_deref()));
            format!(r#"{{"city":{city},"country":{country},"region":{region},"timezone":{timezone}}}"#)
        },
    );
    let domains = of.allowed_domains.as_deref().map_or_else(|| "null".to_owned(), list);
    format!(
        r#"{{"type":"web_search","mode":"{mode}","context_size":"{size}","allowed_domains":{domains},"location":{location}}}"#
    )
}

fn server(of: &mcp::Entry) -> String {
    let server = &of.server;
    let (transport, headers) = match &server.transport {
        McpTransport::Http { url, headers, .. } => {
            let members: Vec<_> =
                headers.iter().map(|(name, value)| format!("{}:{}", quote(name), quote(value))).collect();
            let headers = format!(r#""headers":{{{}}}"#, members.join(","));
            let inside = of.headers_at.ends_with(".transport.headers");
            let inner = if inside { format!(",{headers}") } else { String::new() };
            let outer = if inside { String::new() } else { format!(",{headers}") };
            (format!(r#"{{"type":"http","server_url":{}{inner}}}"#, quote(url)), outer)
        }
        McpTransport::Stdio { command, args, cwd, env_vars } => {
            let [command, cwd] = [command, cwd].map(|text| quote(text));
            let [args, env_vars] = [args, env_vars].map(|of| list(of));
            let transport =
                format!(r#"{{"type":"stdio","command":{command},"args":{args},"cwd":{cwd},"env_vars":{env_vars}}}"#);
            (transport, String::new())
        }
    };
    let origin = match server.origin {
        McpOrigin::Service => "service",
        McpOrigin::Environment => "environment",
    };
    format!(
        r#"{{"type":"mcp","server_label":{},"transport":{transport},"connection_origin":"{origin}","credential_id":{},"allowed_tools":{},"required":{}{headers}}}"#,
        quote(&server.label),
        quoted(of.credential_id.as_deref()),
        server.allowed_tools.as_deref().map_or_else(|| "null".to_owned(), list),
        server.required
    )
}

fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn quoted(text: Option<&str>) -> String {
    text.map_or_else(|| "null".to_owned(), quote)
}

fn list(of: &[String]) -> String {
    let texts: Vec<_> = of.iter().map(|text| quote(text)).collect();
    format!("[{}]", texts.join(","))
}
