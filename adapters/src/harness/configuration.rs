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
    /// What the Harness is told to do or not to do.
    pub controls: Controls,
}

/// What the Harness is told to do or not to do. What is absent leaves it as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Controls {
    /// JSON Schema of every final answer, the text as Core gave it (R-API-3, R-CTL-3).
    pub output_schema: Option<String>,
    /// Where the model may search the web.
    pub web_search: Option<WebSearchMode>,
    /// Whether calls wait for the end of the answer that asks for them (R-FN-10).
    pub strict_calls: bool,
    /// The most function calls of one Turn (R-FN-10).
    pub max_function_calls: Option<u32>,
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
}

/// A protocol of model providers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelProtocol {
    /// The OpenAI Responses API.
    Responses,
    /// The Anthropic Messages API.
    Messages,
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
