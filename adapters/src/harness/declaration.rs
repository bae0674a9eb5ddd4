//! What a Harness supports on this machine (R-CAP-1, R-CAP-2).

use super::{Placement, Settings};

/// The declaration of one Harness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// Kind of the Harness.
    pub kind: &'static str,
    /// Version that was found.
    pub version: Option<String>,
    /// Whether it can be used.
    pub availability: Availability,
    /// Whether the capabilities were proved on exactly this version (R-CAP-5).
    pub qualified: bool,
    /// Everything that works under the placement `none`; empty when that is not supported.
    pub none: Vec<Proved>,
    /// Everything that works under the placement `workspace`; empty when that is not supported.
    pub workspace: Vec<Proved>,
    /// Native limits.
    pub limits: Limits,
    /// Native features that are switched off, as stable names.
    pub switched_off: Vec<&'static str>,
    /// How the operator isolates it (R-PLC-1).
    pub isolation: Isolation,
    /// Whether it loads the project's own configuration (R-PLC-1).
    pub trust_workspace: bool,
    /// Path of the program that was found.
    pub program: Option<std::path::PathBuf>,
}

impl Declaration {
    /// Whether a capability is declared for a placement.
    #[must_use]
    pub fn has(&self, placement: &Placement, capability: Capability) -> bool {
        let declared = match placement {
            Placement::None => &self.none,
            Placement::Workspace { .. } => &self.workspace,
        };
        declared.iter().any(|proved| proved.capability == capability)
    }
}

/// A capability and what proves it: nothing else can stand in a declaration (R-CAP-3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proved {
    capability: Capability,
    scenario: &'static str,
}

impl Proved {
    /// A capability that this scenario of the conformance suite showed on the real Harness, as `file::name`.
    #[must_use]
    pub const fn by(capability: Capability, scenario: &'static str) -> Self {
        Self { capability, scenario }
    }

    /// What the rows have under the placement `none`.
    pub(crate) fn under_none(rows: &[Row], settings: &Settings) -> Vec<Self> {
        let rows = rows.iter().filter(|(capability, ..)| is_possible(*capability, settings));
        rows.filter_map(|(capability, none, _)| none.map(|scenario| Self::by(*capability, scenario))).collect()
    }

    /// What the rows have on a workspace.
    pub(crate) fn on_a_workspace(rows: &[Row], settings: &Settings) -> Vec<Self> {
        let rows = rows.iter().filter(|(capability, ..)| is_possible(*capability, settings));
        rows.filter_map(|(capability, _, there)| there.map(|scenario| Self::by(*capability, scenario))).collect()
    }

    /// What the rows have under a placement, whatever the operator's settings.
    pub(crate) fn ever(rows: &[Row], placement: &Placement) -> Vec<Capability> {
        let is_there = |(_, none, there): &&Row| match placement {
            Placement::None => none.is_some(),
            Placement::Workspace { .. } => there.is_some(),
        };
        rows.iter().filter(is_there).map(|(capability, ..)| *capability).collect()
    }

    /// The capability.
    #[must_use]
    pub const fn capability(self) -> Capability {
        self.capability
    }

    /// The scenario, as `file::name`.
    #[must_use]
    pub const fn scenario(self) -> &'static str {
        self.scenario
    }
}

/// A capability with the scenario that proved it under the placement `none` and the one that did on a workspace (R-CAP-3); where there is none, the
/// capability is not declared for that placement.
pub(crate) type Row = (Capability, Option<&'static str>, Option<&'static str>);

/// Whether the operator's settings let anything of it come about.
fn is_possible(capability: Capability, settings: &Settings) -> bool {
    capability != Capability::StrictCalls || settings.gateway
}

/// Whether a Harness can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Availability {
    /// It can.
    Available,
    /// It cannot.
    Unavailable {
        /// Why, and what to do, for a person.
        reason: String,
    },
}

/// One thing that a Harness supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Capability {
    /// A Session may run without any tool that touches this machine.
    EnvironmentNone,
    /// A Session may run on a workspace.
    LocalEnvironment,
    /// The application may declare functions.
    FunctionTools,
    /// Several calls may be open at once.
    ParallelFunctionCalls,
    /// Inputs are added to a Turn that runs.
    Steering,
    /// The result of a function may have images.
    FunctionResultImages,
    /// An input may have images.
    MessageImages,
    /// Every final answer is to be JSON of a schema.
    StructuredOutput,
    /// Functions may be left for the model to find.
    ToolSearch,
    /// A Session goes on with its native history after its Executor is gone.
    SessionResume,
    /// How a Turn ended whose end was not seen is found in native history.
    NativeSessionRecovery,
    /// Messages are observed as they are written.
    MessageObservation,
    /// Usage is reported.
    Usage,
    /// The model may be told to say less or more.
    TextVerbosity,
    /// MCP servers may be declared.
    McpHttpTools,
    /// MCP servers may be required.
    McpHttpRequired,
    /// MCP servers may be given a bearer.
    McpHttpBearerAuth,
    /// Execution controls are taken.
    ExecutionControls,
    /// Calls wait for the end of the answer that asks for them.
    StrictCalls,
    /// The native home is removed by a release that asks for it.
    HomeRemoval,
}

/// Native limits and accepted values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Which function names are taken.
    pub function_names: FunctionNames,
    /// Protocols to model providers.
    pub model_protocols: Vec<super::ModelProtocol>,
    /// Whether it must be told how many tokens its model takes and gives.
    pub needs_token_limits: bool,
    /// What happens to arguments on their way to Core.
    pub argument_fidelity: JsonFidelity,
    /// What happens to schemas on their way to the model.
    pub schema_fidelity: JsonFidelity,
    /// Whether integers outside of -2^63 to 2^64-1 in a schema are refused.
    pub integer_64: bool,
    /// After how long the Harness gives up a call by itself, if ever.
    pub native_call_timeout: Option<std::time::Duration>,
    /// Whether numbers in a schema are refused that binary64 would change.
    pub binary64: bool,
    /// The most characters of a function's description, where there is a limit.
    pub description_characters: Option<usize>,
    /// Whether a failed result may have images.
    pub failed_result_images: bool,
    /// Which searches of the web may be asked for.
    pub web_search: SearchLimits,
    /// Which values for calls from scripts are taken.
    pub programmatic_tool_calling: &'static [bool],
    /// Which verbosities are taken.
    pub text_verbosities: &'static [super::TextVerbosity],
    /// Which efforts are taken.
    pub reasoning_efforts: AcceptedValues,
    /// Which summaries are taken.
    pub reasoning_summaries: AcceptedValues,
    /// Which service tiers are taken.
    pub service_tiers: AcceptedValues,
    /// Which MCP servers are taken.
    pub mcp: McpLimits,
    /// Whether a message is refused that has no image and no text but white space.
    pub refuses_blank_messages: bool,
    /// The most UTF-16 code units that the texts of a successful result may have together, where there is a limit.
    pub result_characters: Option<usize>,
    /// What an adapter must put into what goes to the Harness: where, and the bytes (R-CTL-1).
    pub input_rewrites: Vec<(&'static str, &'static str)>,
}

/// Which searches of the web a Harness takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchLimits {
    /// The modes.
    pub modes: &'static [super::WebSearchMode],
    /// The sizes of what is read.
    pub context_sizes: &'static [super::ContextSize],
    /// Whether domains may be given.
    pub domains: bool,
    /// Whether a location may be given.
    pub location: bool,
}

/// Values of a control that a Harness takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedValues {
    /// The values, sorted; none where the control is not taken.
    pub values: &'static [&'static str],
    /// Whether the model's entry in the native catalogue is asked as well, once the Harness starts.
    pub by_model: bool,
}

/// Which MCP servers a Harness takes (R-MCP-1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpLimits {
    /// The transports.
    pub transports: &'static [super::McpKind],
    /// From where servers are reached.
    pub origins: &'static [super::McpOrigin],
    /// The transports whose tools can be selected.
    pub allowed_tools: &'static [super::McpKind],
    /// A regular expression for labels, for people; empty where there is none.
    pub label_pattern: &'static str,
    /// Labels that the Harness keeps, sorted.
    pub reserved_labels: &'static [&'static str],
    /// Whether an address or a header with `${` is refused.
    pub refuses_expansions: bool,
    /// Whether a process starts in the workspace's directory only.
    pub stdio_in_workspace: bool,
}

/// Which function names a Harness takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionNames {
    /// A regular expression, for people.
    pub pattern: &'static str,
    /// Longest name in bytes.
    pub max_bytes: usize,
    /// Names of the Harness's own tools, sorted.
    pub reserved: &'static [&'static str],
    /// Prefixes that the Harness keeps.
    pub reserved_prefixes: &'static [&'static str],
}

/// How the operator isolates a Harness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// The container or machine around the bridge does it: the Harness has full access.
    Outer,
    /// The Harness's own sandbox does it.
    Native,
}

/// What a Harness does to JSON that passes through it (R-API-3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonFidelity {
    /// Bytes stay.
    Exact,
    /// Numbers and order stay, respelled.
    Value,
    /// Numbers pass through binary64.
    Binary64,
    /// Parts of a schema are dropped or rewritten.
    LossySchema,
}
