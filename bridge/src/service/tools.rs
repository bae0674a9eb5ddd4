//! What the application declared, wire to domain and back (R-PRE-6, R-API-2). Values are read here; what a Harness takes of them is admission's.

use std::time::Duration;

use adapters::harness::{
    ContextSize, Controls, FunctionTool, Location, McpKind, McpOrigin, McpServer, McpTransport, TextVerbosity,
    WebSearch, WebSearchMode,
};
use proto::v1;

use super::request::{Checked, LONGEST, SHORTEST, missing, unknown_enum, within};
use crate::refusal::Refusal;

/// Longest silence of a call.
const LONGEST_SILENCE: Duration = Duration::from_secs(20 * 60);

/// Tools of a configuration.
#[derive(Debug)]
pub(super) struct Tools {
    pub(super) functions: Vec<FunctionTool>,
    pub(super) tool_search: bool,
    pub(super) mcp_servers: Vec<McpServer>,
    pub(super) controls: Controls,
}

/// Reads them.
pub(super) fn admitted(of: v1::AdmittedTools) -> Checked<Tools> {
    let v1::AdmittedTools { functions, controls, tool_search, mcp_servers } = of;
    Ok(Tools {
        functions: functions.into_iter().enumerate().map(function).collect::<Checked<_>>()?,
        tool_search: tool_search.is_some(),
        mcp_servers: mcp_servers.into_iter().enumerate().map(mcp_server).collect::<Checked<_>>()?,
        controls: self::controls(controls.unwrap_or_default())?,
    })
}

fn controls(of: v1::ExecutionControls) -> Checked<Controls> {
    const AT: &str = "configuration.tools.controls";
    let output_schema = of.output_format.map(|of| match of.format {
        Some(v1::output_format::Format::JsonSchema(of)) => Ok(of.schema),
        None => Err(missing(&format!("{AT}.output_format.format"))),
    });
    let text_verbosity = of.text_verbosity.map(|level| match v1::TextVerbosity::try_from(level) {
        Ok(v1::TextVerbosity::Low) => Ok(TextVerbosity::Low),
        Ok(v1::TextVerbosity::Medium) => Ok(TextVerbosity::Medium),
        Ok(v1::TextVerbosity::High) => Ok(TextVerbosity::High),
        Ok(v1::TextVerbosity::Unspecified) | Err(_) => {
            Err(unknown_enum(&format!("{AT}.text_verbosity"), "LOW, MEDIUM or HIGH"))
        }
    });
    Ok(Controls {
        output_schema: output_schema.transpose()?,
        web_search: of.web_search.map(web_search).transpose()?,
        programmatic_tool_calling: of.programmatic_tool_calling,
        text_verbosity: text_verbosity.transpose()?,
        reasoning_effort: of.reasoning_effort,
        reasoning_summary: of.reasoning_summary,
        service_tier: of.service_tier,
        strict_calls: of.strict_calls,
        max_function_calls: of.max_function_calls,
    })
}

fn web_search(of: v1::WebSearchControl) -> Checked<WebSearch> {
    const AT: &str = "configuration.tools.controls.web_search";
    let mode = match v1::WebSearchMode::try_from(of.mode) {
        Ok(v1::WebSearchMode::Disabled) => WebSearchMode::Disabled,
        Ok(v1::WebSearchMode::Cached) => WebSearchMode::Cached,
        Ok(v1::WebSearchMode::Live) => WebSearchMode::Live,
        Ok(v1::WebSearchMode::Unspecified) | Err(_) => {
            return Err(unknown_enum(&format!("{AT}.mode"), "DISABLED, CACHED or LIVE"));
        }
    };
    let context_size = of.context_size.map(|size| match v1::WebSearchContextSize::try_from(size) {
        Ok(v1::WebSearchContextSize::Low) => Ok(ContextSize::Low),
        Ok(v1::WebSearchContextSize::Medium) => Ok(ContextSize::Medium),
        Ok(v1::WebSearchContextSize::High) => Ok(ContextSize::High),
        Ok(v1::WebSearchContextSize::Unspecified) | Err(_) => {
            Err(unknown_enum(&format!("{AT}.context_size"), "LOW, MEDIUM or HIGH"))
        }
    });
    let location = of.location.map(|v1::SearchLocation { city, country, region, timezone }| Location {
        city,
        country,
        region,
        timezone,
    });
    Ok(WebSearch {
        mode,
        context_size: context_size.transpose()?,
        allowed_domains: of.allowed_domains.map(|of| of.domains),
        location,
    })
}

fn function((index, of): (usize, v1::FunctionTool)) -> Checked<FunctionTool> {
    let v1::FunctionTool { name, description, parameters, silence_timeout, max_duration, defer_loading } = of;
    let at = |member: &str| format!("configuration.tools.functions[{index}].{member}");
    let silence_timeout = within(silence_timeout, SHORTEST..=LONGEST_SILENCE)
        .ok_or_else(|| Refusal::invalid(at("silence_timeout"), "it is 1 second to 20 minutes"))?;
    let max_duration = within(max_duration, SHORTEST..=LONGEST)
        .ok_or_else(|| Refusal::invalid(at("max_duration"), "it is 1 second to 30 days"))?;
    Ok(FunctionTool { name, description, parameters, defer_loading, silence_timeout, max_duration })
}

fn mcp_server((index, of): (usize, v1::McpServer)) -> Checked<McpServer> {
    let v1::McpServer { label, transport, origin, allowed_tools, required } = of;
    let at = |member: &str| format!("configuration.tools.mcp_servers[{index}].{member}");
    let transport = match transport.ok_or_else(|| missing(&at("transport")))? {
        v1::mcp_server::Transport::Http(v1::McpHttp { url, headers, bearer }) => McpTransport::Http {
            url,
            headers: headers.into_iter().map(|header| (header.name, header.value)).collect(),
            bearer,
        },
        v1::mcp_server::Transport::Stdio(v1::McpStdio { command, args, cwd, env_vars }) => {
            McpTransport::Stdio { command, args, cwd, env_vars }
        }
    };
    let origin = match v1::McpOrigin::try_from(origin) {
        Ok(v1::McpOrigin::Service) => McpOrigin::Service,
        Ok(v1::McpOrigin::Environment) => McpOrigin::Environment,
        Ok(v1::McpOrigin::Unspecified) | Err(_) => {
            return Err(unknown_enum(&at("origin"), "SERVICE or ENVIRONMENT"));
        }
    };
    Ok(McpServer { label, transport, origin, allowed_tools: allowed_tools.map(|of| of.names), required })
}

/// A mode on the wire.
pub(super) fn search_mode_to(of: WebSearchMode) -> v1::WebSearchMode {
    match of {
        WebSearchMode::Disabled => v1::WebSearchMode::Disabled,
        WebSearchMode::Cached => v1::WebSearchMode::Cached,
        WebSearchMode::Live => v1::WebSearchMode::Live,
    }
}

/// A size on the wire.
pub(super) fn size_to(of: ContextSize) -> v1::WebSearchContextSize {
    match of {
        ContextSize::Low => v1::WebSearchContextSize::Low,
        ContextSize::Medium => v1::WebSearchContextSize::Medium,
        ContextSize::High => v1::WebSearchContextSize::High,
    }
}

/// A verbosity on the wire.
pub(super) fn verbosity_to(of: TextVerbosity) -> v1::TextVerbosity {
    match of {
        TextVerbosity::Low => v1::TextVerbosity::Low,
        TextVerbosity::Medium => v1::TextVerbosity::Medium,
        TextVerbosity::High => v1::TextVerbosity::High,
    }
}

/// A transport on the wire.
pub(super) fn transport_to(of: McpKind) -> v1::McpTransport {
    match of {
        McpKind::Http => v1::McpTransport::Http,
        McpKind::Stdio => v1::McpTransport::Stdio,
    }
}

/// An origin on the wire.
pub(super) fn origin_to(of: McpOrigin) -> v1::McpOrigin {
    match of {
        McpOrigin::Service => v1::McpOrigin::Service,
        McpOrigin::Environment => v1::McpOrigin::Environment,
    }
}
