//! Admission, wire to domain and back. What is declared stays text: nothing here looks into it.

use std::{collections::BTreeMap, num::NonZero, sync::Arc, time::Duration};

use adapters::{
    admission::built::{Built, KINDS},
    harness::{Controls, FunctionTool, Harness, Location, McpServer, McpTransport, WebSearch},
};
use prost::Message as _;
use proto::v1;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    MAX_RESPONSE,
    request::{Checked, missing, unknown_enum},
    tools,
};
use crate::{
    admission::{self, Admitted, Rejection, Selection, Texts, Tools},
    gateway::Guards,
    refusal::{Reason, Refusal},
};

/// How long a request waits for its turn.
const WAIT: Duration = Duration::from_secs(5);

/// Whoever judges at once. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Judges {
    free: Arc<Semaphore>,
    wait: Duration,
}

impl Judges {
    /// As many as there are cores: judging is nothing but work.
    pub(super) fn new() -> Self {
        Self::of(std::thread::available_parallelism().map_or(1, NonZero::get), WAIT)
    }

    fn of(number: usize, wait: Duration) -> Self {
        Self { free: Arc::new(Semaphore::new(number)), wait }
    }

    /// Takes one until what is given is dropped.
    pub(super) async fn take(&self) -> Checked<OwnedSemaphorePermit> {
        let free = tokio::time::timeout(self.wait, Arc::clone(&self.free).acquire_owned()).await;
        free.ok().and_then(Result::ok).ok_or_else(|| {
            Refusal::new(Reason::Overloaded, "too many admissions are judged at once").with("retry_ms", 1000)
        })
    }
}

/// The Harnesses that the daemon hosts, by their kinds.
pub(super) type Hosted = BTreeMap<&'static str, Arc<dyn Harness>>;

/// Judges a request. It takes as long as its texts are long, so it is not for a thread that serves.
pub(super) fn judge(of: &v1::AdmitRequest, guards: &Guards, hosted: &Hosted) -> Checked<v1::AdmitResponse> {
    let selection = match v1::AdmitPurpose::try_from(of.purpose) {
        Ok(v1::AdmitPurpose::Save) => None,
        Ok(v1::AdmitPurpose::Session) => Some(selection(of, hosted)?),
        Ok(v1::AdmitPurpose::Unspecified) | Err(_) => return Err(unknown_enum("purpose", "SAVE or SESSION")),
    };
    let texts = Texts {
        tools: of.tools.as_deref(),
        text: of.text.as_deref(),
        reasoning: of.reasoning.as_deref(),
        service_tier: of.service_tier.as_deref(),
        multi_agent: of.multi_agent.as_deref(),
    };
    let outcome = match admission::admit(&texts, selection.as_ref(), guards) {
        Ok(Admitted { tools, projection, defaulted }) => {
            let admitted = v1::Admitted { tools: tools.map(tools_to), projection, defaulted };
            v1::admit_response::Outcome::Admitted(Box::new(admitted))
        }
        Err(Rejection { http_status, code, param, message }) => {
            v1::admit_response::Outcome::Rejected(v1::AdmitRejection {
                http_status: http_status.into(),
                code: code.to_owned(),
                param,
                message,
            })
        }
    };
    let answer = v1::AdmitResponse { outcome: Some(outcome) };
    if answer.encoded_len() > MAX_RESPONSE {
        let text = "the answer would be larger than the bridge sends; what is declared has to be smaller";
        return Err(Refusal::new(Reason::PayloadTooLarge, text));
    }
    Ok(answer)
}

fn selection(of: &v1::AdmitRequest, hosted: &Hosted) -> Checked<Selection> {
    let named = || {
        let agents = hosted.keys().copied().filter(|kind| !KINDS.contains(kind));
        format!(
            "this is no kind of Harness; known are {}",
            KINDS.into_iter().chain(agents).collect::<Vec<_>>().join(", ")
        )
    };
    let built = hosted.get(&*of.harness).and_then(|harness| harness.built()).or_else(|| Built::of(&of.harness));
    let built = built.ok_or_else(|| Refusal::invalid("harness", named()))?;
    let environment = of.environment.as_ref().ok_or_else(|| missing("environment"))?;
    let provider = of.model_provider.clone().unwrap_or_default();
    Ok(Selection {
        built,
        environment: environment.r#type.clone(),
        network: environment.network.clone(),
        system_packages: environment.system_packages,
        directory: environment.directory.clone().into(),
        own_provider: provider.of_session,
        protocol: provider.protocol,
        token_limits: provider.token_limits,
        harness_config: of.harness_config.clone(),
    })
}

fn tools_to(of: Tools) -> v1::AdmittedTools {
    let Tools { functions, tool_search, mcp_servers, controls } = of;
    v1::AdmittedTools {
        functions: functions.into_iter().map(function_to).collect(),
        // Nothing that is set is the same as unset, and the smaller one.
        controls: (controls != Controls::default()).then(|| controls_to(controls)),
        tool_search: tool_search.then_some(v1::ToolSearch {}),
        mcp_servers: mcp_servers.into_iter().map(server_to).collect(),
    }
}

fn function_to(of: FunctionTool) -> v1::FunctionTool {
    let FunctionTool { name, description, parameters, defer_loading, silence_timeout: _, max_duration: _ } = of;
    v1::FunctionTool { name, description, parameters, defer_loading, ..Default::default() }
}

fn controls_to(of: Controls) -> v1::ExecutionControls {
    let output_format = of.output_schema.map(|schema| {
        let format = v1::output_format::Format::JsonSchema(v1::JsonSchemaFormat { schema });
        v1::OutputFormat { format: Some(format) }
    });
    v1::ExecutionControls {
        output_format,
        web_search: of.web_search.map(search_to),
        strict_calls: of.strict_calls,
        max_function_calls: of.max_function_calls,
        programmatic_tool_calling: of.programmatic_tool_calling,
        text_verbosity: of.text_verbosity.map(|level| tools::verbosity_to(level).into()),
        reasoning_effort: of.reasoning_effort,
        reasoning_summary: of.reasoning_summary,
        service_tier: of.service_tier,
    }
}

fn search_to(of: WebSearch) -> v1::WebSearchControl {
    let WebSearch { mode, context_size, allowed_domains, location } = of;
    v1::WebSearchControl {
        mode: tools::search_mode_to(mode).into(),
        context_size: context_size.map(|size| tools::size_to(size).into()),
        allowed_domains: allowed_domains.map(|domains| v1::SearchDomains { domains }),
        location: location.map(|Location { city, country, region, timezone }| v1::SearchLocation {
            city,
            country,
            region,
            timezone,
        }),
    }
}

fn server_to(of: McpServer) -> v1::McpServer {
    let McpServer { label, transport, origin, allowed_tools, required } = of;
    let transport = match transport {
        McpTransport::Http { url, headers, bearer } => {
            let headers = headers.into_iter().map(|(name, value)| v1::McpHeader { name, value }).collect();
            v1::mcp_server::Transport::Http(v1::McpHttp { url, headers, bearer })
        }
        McpTransport::Stdio { command, args, cwd, env_vars } => {
            v1::mcp_server::Transport::Stdio(v1::McpStdio { command, args, cwd, env_vars })
        }
    };
    v1::McpServer {
        label,
        transport: Some(transport),
        origin: tools::origin_to(origin).into(),
        allowed_tools: allowed_tools.map(|names| v1::AllowedTools { names }),
        required,
    }
}

/// What a preparation reads of what was admitted, once Core has sent it back.
#[cfg(test)]
pub(crate) fn prepared(of: Tools) -> Checked<Tools> {
    let bytes = tools_to(of).encode_to_vec();
    let wire = v1::AdmittedTools::decode(&*bytes).map_err(|error| Refusal::invalid("tools", error.to_string()))?;
    let tools::Tools { functions, tool_search, mcp_servers, controls } = tools::admitted(wire)?;
    Ok(Tools { functions, tool_search, mcp_servers, controls })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_finds_no_judge_is_told_when_to_come_again() {
        let judges = Judges::of(1, Duration::ZERO);
        let first = judges.take().await.unwrap();
        let refused = judges.take().await.unwrap_err();
        assert_eq!((refused.reason, &*refused.metadata[0].1), (Reason::Overloaded, "1000"));
        drop(first);
        assert!(judges.take().await.is_ok());
    }

    #[test]
    fn an_answer_that_is_larger_than_a_message_is_refused() {
        let of = |length: usize| {
            let text = "x".repeat(length);
            let tools = format!(
                r#"[{{"type":"function","name":"f","description":"{text}","parameters":{{"type":"object"}}}}]"#
            );
            let asked = v1::AdmitRequest {
                purpose: v1::AdmitPurpose::Save.into(),
                tools: Some(tools.into_bytes()),
                ..Default::default()
            };
            judge(&asked, &Guards::default(), &Hosted::new()).map(drop).map_err(|refused| refused.reason)
        };
        assert_eq!(of(MAX_RESPONSE - 1024), Ok(()));
        assert_eq!(of(MAX_RESPONSE), Err(Reason::PayloadTooLarge));
    }
}
