//! What a Session is run with (R-PRE-6), checked and past the wire.

use std::{path::PathBuf, time::Duration};

/// The frozen configuration of a Session. Credentials are not part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Kind of the Harness.
    pub harness: String,
    /// Where tools work.
    pub placement: Placement,
    /// Name of the model, not blank.
    pub model: String,
    /// Instructions that are added to the Harness's own; empty adds nothing.
    pub instructions: String,
    /// Where model requests go.
    pub provider: ModelProvider,
    /// Text of a JSON object with native settings, or empty.
    pub harness_config: String,
    /// Functions of the application, in order.
    pub functions: Vec<FunctionTool>,
    /// Whether the model finds deferred functions by searching for them.
    pub tool_search: bool,
    /// MCP servers, in order.
    pub mcp_servers: Vec<McpServer>,
    /// What the Harness is told to do or not to do.
    pub controls: Controls,
}

/// What the Harness is told to do or not to do. What is absent leaves it as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Controls {
    /// JSON Schema of every final answer, the text as Core gave it (R-API-3, R-CTL-3).
    pub output_schema: Option<String>,
    /// Where and how the model may search the web.
    pub web_search: Option<WebSearch>,
    /// Whether the model may call tools from scripts that it writes.
    pub programmatic_tool_calling: Option<bool>,
    /// How much the model says.
    pub text_verbosity: Option<TextVerbosity>,
    /// How much the model reasons.
    pub reasoning_effort: Option<String>,
    /// What is told of the reasoning.
    pub reasoning_summary: Option<String>,
    /// How the provider serves the requests.
    pub service_tier: Option<String>,
    /// Whether calls wait for the end of the answer that asks for them (R-FN-10).
    pub strict_calls: bool,
    /// The most function calls of one Turn (R-FN-10).
    pub max_function_calls: Option<u32>,
}

/// Where and how the model may search the web. What is absent is left to the Harness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSearch {
    /// Where.
    pub mode: WebSearchMode,
    /// How much of what is found the model reads.
    pub context_size: Option<ContextSize>,
    /// The domains that are searched; an empty list is not the same as none.
    pub allowed_domains: Option<Vec<String>>,
    /// Where the searches are to seem to come from.
    pub location: Option<Location>,
}

impl WebSearch {
    /// A mode with nothing else said.
    #[must_use]
    pub fn of(mode: WebSearchMode) -> Self {
        Self { mode, context_size: None, allowed_domains: None, location: None }
    }
}

/// How much of what a search finds the model reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextSize {
    /// Little.
    Low,
    /// As usual.
    Medium,
    /// Much.
    High,
}

impl ContextSize {
    /// Its name, as applications and Harnesses spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// A place on earth.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// Name of a city.
    pub city: Option<String>,
    /// Code of a country.
    pub country: Option<String>,
    /// Name of a region.
    pub region: Option<String>,
    /// Name of a time zone.
    pub timezone: Option<String>,
}

/// How much a model says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextVerbosity {
    /// Less than usual.
    Low,
    /// As usual.
    Medium,
    /// More than usual.
    High,
}

impl TextVerbosity {
    /// Its name, as applications and Harnesses spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// A server of the Model Context Protocol (R-MCP-1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpServer {
    /// Its name in the Session.
    pub label: String,
    /// How it is reached.
    pub transport: McpTransport,
    /// From where it is reached.
    pub origin: McpOrigin,
    /// The tools that the model may call; none allows all, an empty list none.
    pub allowed_tools: Option<Vec<String>>,
    /// Whether a preparation fails without it (R-PRE-5).
    pub required: bool,
}

/// How an MCP server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum McpTransport {
    /// Streamable HTTP.
    Http {
        /// Absolute address without credentials and fragment.
        url: String,
        /// Headers of every request, no secrets.
        headers: Vec<(String, String)>,
        /// Whether requests carry the Session's credential `mcp:<label>` as a bearer.
        bearer: bool,
    },
    /// A process.
    Stdio {
        /// The program.
        command: String,
        /// Its arguments.
        args: Vec<String>,
        /// Absolute path of the directory that it starts in.
        cwd: String,
        /// Names of variables that it gets from the Environment.
        env_vars: Vec<String>,
    },
}

impl McpTransport {
    /// Its kind, as declarations name it.
    #[must_use]
    pub fn kind(&self) -> McpKind {
        match self {
            Self::Http { .. } => McpKind::Http,
            Self::Stdio { .. } => McpKind::Stdio,
        }
    }
}

/// A kind of transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum McpKind {
    /// Streamable HTTP.
    Http,
    /// A process.
    Stdio,
}

/// From where an MCP server is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum McpOrigin {
    /// From the service; the outbound guard judges the address (R-MCP-7).
    Service,
    /// From the Environment.
    Environment,
}

/// Where the model may search the web.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebSearchMode {
    /// Nowhere.
    Disabled,
    /// In what the provider keeps of it.
    Cached,
    /// In the web as it is.
    Live,
}

impl WebSearchMode {
    /// Its name, as applications and Harnesses spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Cached => "cached",
            Self::Live => "live",
        }
    }
}

/// Where a Session's tools work (R-ASG-3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// No tool touches this machine.
    None,
    /// A canonical directory of this machine.
    Workspace {
        /// Core's id of the Environment.
        environment_id: String,
        /// The directory, canonical.
        directory: PathBuf,
    },
}

/// Where model requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelProvider {
    /// What the provider speaks.
    pub protocol: ModelProtocol,
    /// Base address without credentials, query and fragment.
    pub base_url: String,
    /// How many tokens the model takes and gives, where that is told.
    pub token_limits: Option<TokenLimits>,
}

/// How many tokens a model takes and gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenLimits {
    context: u64,
    output: u64,
}

impl TokenLimits {
    /// Which limits there are, for a person.
    pub const RANGE: &str = "an answer has at least 1 token, and at most as many as the context";

    /// Limits, where they are such: an answer has at least one token, and is part of the context.
    #[must_use]
    pub fn of(context: u64, output: u64) -> Option<Self> {
        (1..=context).contains(&output).then_some(Self { context, output })
    }

    /// The most tokens of a request and its answer together.
    #[must_use]
    pub fn context(self) -> u64 {
        self.context
    }

    /// The most tokens of an answer.
    #[must_use]
    pub fn output(self) -> u64 {
        self.output
    }
}

/// A protocol of model providers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelProtocol {
    /// The OpenAI Responses API.
    Responses,
    /// The Anthropic Messages API.
    Messages,
    /// The OpenAI Chat Completions API.
    ChatCompletions,
}

impl ModelProtocol {
    /// Its name, as configurations and applications spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::ChatCompletions => "chat_completions",
        }
    }
}

/// A function that the application answers (R-FN-1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionTool {
    /// Its name, not blank, unique.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON Schema of its arguments, the text as Core gave it (R-API-3).
    pub parameters: String,
    /// Whether the model learns of it by a search only.
    pub defer_loading: bool,
    /// How long a call may be without a result and without a report of progress.
    pub silence_timeout: Option<Duration>,
    /// How long a call may take in all.
    pub max_duration: Option<Duration>,
}

/// A declaration does not admit a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct NotAdmitted {
    /// Path of the field within the configuration, such as `tools.functions[2].name`.
    pub field: String,
    /// What is wrong and what is allowed.
    pub message: String,
}
