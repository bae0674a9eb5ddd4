//! The command line of `run`, and the plan that is left when all of it is in order.

use std::{
    env,
    ffi::OsString,
    fmt,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use proto::{
    client::{self, Endpoint},
    v1,
};
use secrecy::SecretString;

use super::{
    Isolation,
    attached::{self, Image},
    function::Functions,
    harness::{Harness, Tokens},
    kept::{self, Kept},
    key,
};

/// The settings of a daemon that count for a hosted one as well, where no option says otherwise.
const CODEX_VARIABLE: &str = "RUNTIME_BRIDGE_CODEX";
const CLAUDE_VARIABLE: &str = "RUNTIME_BRIDGE_CLAUDE";
const MINIMAX_VARIABLE: &str = "RUNTIME_BRIDGE_MINIMAX_CODE";
const ISOLATION_VARIABLE: &str = "RUNTIME_BRIDGE_ISOLATION";

/// Run one whole Turn on this machine and show it.
///
/// Hosts a daemon of its own for the Turn. Ends with 0 when the Turn completed, 1 when it failed, 2 for a wrong command line, 3 when it
/// was cancelled, 4 when nobody knows.
#[derive(Args, Clone, Debug)]
pub(crate) struct RunArgs {
    /// The Harness that does the Turn [default: codex, or that of the run that is gone on with].
    #[arg(long, value_enum, hide_possible_values = true, value_name = "codex|claude_code|minimax_code")]
    pub(super) harness: Option<Harness>,
    /// The folder that the Harness works in; without one no tool of it touches this machine.
    #[arg(long, value_name = "DIR")]
    pub(super) workspace: Option<PathBuf>,
    /// Base address of the model provider; claude_code adds /v1/messages to it, minimax_code /chat/completions
    /// [default: https://api.openai.com/v1, https://api.anthropic.com for claude_code, https://api.minimax.io/v1 for minimax_code].
    #[arg(long, value_name = "URL")]
    pub(super) provider: Option<String>,
    /// Name of the model [default: gpt-5.5, claude-opus-5-5 for claude_code, MiniMax-M3 for minimax_code].
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,
    /// How many tokens the model takes, and how many of them an answer may have [default: 128000,16000 for minimax_code, which must be told them].
    #[arg(long, value_name = "CONTEXT,OUTPUT")]
    pub(super) token_limits: Option<Tokens>,
    /// File (mode 0600) with the provider's key; without it the key is in OPENAI_API_KEY, for claude_code in ANTHROPIC_API_KEY,
    /// for minimax_code in MINIMAX_API_KEY.
    #[arg(long, value_name = "FILE")]
    pub(super) key_file: Option<PathBuf>,
    /// Use the bundled provider, which needs no key: `sleep` runs a long shell command, `call NAME` calls that function, anything else
    /// is echoed.
    #[arg(long, conflicts_with_all = ["provider", "key_file"])]
    pub(super) mock: bool,
    /// A function that the model may call: its JSON Schema, and the program that gets the arguments on stdin and writes the output to
    /// stdout. May be repeated.
    #[arg(long = "function", value_name = "NAME=SCHEMA.json:PROGRAM")]
    pub(super) functions: Vec<String>,
    /// A function like those of `--function` that the model learns of only when it searches for it. May be repeated.
    #[arg(long = "deferred-function", value_name = "NAME=SCHEMA.json:PROGRAM", requires = "tool_search")]
    pub(super) deferred_functions: Vec<String>,
    /// Let the model search for the functions of `--deferred-function`.
    #[arg(long, requires = "deferred_functions")]
    pub(super) tool_search: bool,
    /// Whether the model may search the web; without it the Harness decides.
    #[arg(long, value_enum)]
    pub(super) web_search: Option<WebSearch>,
    /// How much the model reasons, such as `low` or `high`; without it the Harness decides.
    #[arg(long, value_name = "EFFORT")]
    pub(super) effort: Option<String>,
    /// What is told of the model's reasoning, such as `concise` or `detailed`; without it the Harness decides.
    #[arg(long, value_name = "SUMMARY")]
    pub(super) reasoning_summary: Option<String>,
    /// How the provider serves the requests, such as `priority`; without it the Harness decides.
    #[arg(long, value_name = "TIER")]
    pub(super) service_tier: Option<String>,
    /// How much the model says; without it the Harness decides.
    #[arg(long, value_enum)]
    pub(super) verbosity: Option<Verbosity>,
    /// Whether the model may call tools from scripts that it writes; without it the Harness decides.
    #[arg(long, value_name = "WHETHER", action = clap::ArgAction::Set)]
    pub(super) scripts: Option<bool>,
    /// An image (PNG or JPEG) behind the prompt. May be repeated.
    #[arg(long = "image", value_name = "FILE")]
    pub(super) images: Vec<PathBuf>,
    /// The JSON Schema that the answer has to fit; the Turn's end tells whether it does.
    #[arg(long, value_name = "FILE")]
    pub(super) schema: Option<PathBuf>,
    /// Go on with the Session of an earlier run, as the end of that run named it; it is kept for seven days. Its Harness, folder, provider and model are taken over.
    #[arg(long, value_name = "SESSION", conflicts_with = "endpoint")]
    pub(super) resume: Option<String>,
    /// Add each line of stdin to the running Turn as an input. Without it, lines that are typed on a terminal are.
    #[arg(long)]
    pub(super) steer: bool,
    /// Instructions that are added to the Harness's own.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(super) instructions: String,
    /// Who keeps the Harness apart from this machine: the container or machine around (`outer`), or its own sandbox (`native`)
    /// [env: RUNTIME_BRIDGE_ISOLATION].
    #[arg(long, value_enum)]
    pub(super) isolation: Option<Isolation>,
    /// Let the Harness load the project's own configuration from the workspace.
    #[arg(long, requires = "workspace")]
    pub(super) trust_workspace: bool,
    /// The Codex program of the hosted daemon [env: RUNTIME_BRIDGE_CODEX].
    #[arg(long, value_name = "PROGRAM")]
    pub(super) codex: Option<PathBuf>,
    /// The Claude Code program of the hosted daemon [env: RUNTIME_BRIDGE_CLAUDE].
    #[arg(long = "claude", value_name = "PROGRAM")]
    pub(super) claude_code: Option<PathBuf>,
    /// The MiniMax Code program of the hosted daemon [env: RUNTIME_BRIDGE_MINIMAX_CODE].
    #[arg(long, value_name = "PROGRAM")]
    pub(super) minimax_code: Option<PathBuf>,
    /// Use a running daemon instead of hosting one.
    #[arg(long, value_name = "unix:PATH|http://ADDRESS:PORT", conflicts_with_all = ["isolation", "trust_workspace", "codex", "claude_code", "minimax_code"])]
    pub(super) endpoint: Option<Endpoint>,
    /// File with the bearer of a running daemon's loopback listener.
    #[arg(long, value_name = "FILE", requires = "endpoint")]
    pub(super) bearer_file: Option<PathBuf>,
    /// Write each event as one line of JSON.
    #[arg(long)]
    pub(super) json: bool,
    /// What the Turn is to do; `-` reads it from stdin.
    pub(super) prompt: String,
}

/// Values of `--web-search`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum WebSearch {
    /// It may not.
    Disabled,
    /// It may, in what the provider keeps of it.
    Cached,
    /// It may, in the web as it is.
    Live,
}

impl WebSearch {
    fn mode(self) -> v1::WebSearchMode {
        match self {
            Self::Disabled => v1::WebSearchMode::Disabled,
            Self::Cached => v1::WebSearchMode::Cached,
            Self::Live => v1::WebSearchMode::Live,
        }
    }
}

/// A command line that cannot be run; one line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct UsageError(pub(super) String);

type Variable = dyn Fn(&str) -> Option<OsString> + Send + Sync;

/// What `run` reads of the process around it.
pub(super) struct Surroundings {
    variable: Box<Variable>,
}

impl Surroundings {
    /// The environment of this process.
    pub(super) fn of_this_process() -> Self {
        Self::of(|name| env::var_os(name))
    }

    /// An environment by name.
    pub(super) fn of(variable: impl Fn(&str) -> Option<OsString> + Send + Sync + 'static) -> Self {
        Self { variable: Box::new(variable) }
    }

    /// A variable that is set and not empty.
    pub(super) fn variable(&self, name: &str) -> Option<OsString> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    /// A variable that names an absolute path; others are ignored, as the XDG rules ask.
    pub(super) fn folder(&self, name: &str) -> Option<PathBuf> {
        self.variable(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    /// Whether colours are wanted, given a terminal.
    pub(super) fn allow_colour(&self) -> bool {
        self.variable("NO_COLOR").is_none() && self.variable("TERM").is_none_or(|terminal| terminal != "dumb")
    }
}

impl fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surroundings").finish_non_exhaustive()
    }
}

/// Which lines of stdin are added to the running Turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steering {
    /// None: stdin had the prompt.
    Never,
    /// Those that a person types.
    Typed,
    /// All.
    Always,
}

/// Values of `--verbosity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Verbosity {
    /// Less than usual.
    Low,
    /// As usual.
    Medium,
    /// More than usual.
    High,
}

impl Verbosity {
    fn value(self) -> v1::TextVerbosity {
        match self {
            Self::Low => v1::TextVerbosity::Low,
            Self::Medium => v1::TextVerbosity::Medium,
            Self::High => v1::TextVerbosity::High,
        }
    }
}

/// A run that is in order.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) harness: Harness,
    /// Canonical; none is the placement `none`.
    pub(super) workspace: Option<PathBuf>,
    pub(super) provider: String,
    pub(super) model: String,
    pub(super) token_limits: Option<Tokens>,
    pub(super) key: SecretString,
    /// Whether the bundled provider takes the place of `provider`.
    pub(super) mock: bool,
    pub(super) functions: Functions,
    /// Whether the model searches for those functions that are deferred.
    pub(super) tool_search: bool,
    /// The controls but for the form of the answer.
    pub(super) controls: v1::ExecutionControls,
    pub(super) images: Vec<Image>,
    /// A JSON Schema as its file has it.
    pub(super) schema: Option<String>,
    /// The earlier run to go on with.
    pub(super) earlier: Option<kept::Run>,
    /// Whether lines of stdin are inputs: always, or only those that are typed.
    pub(super) steering: Steering,
    pub(super) instructions: String,
    pub(super) isolation: Option<Isolation>,
    pub(super) trust_workspace: bool,
    pub(super) codex: Option<PathBuf>,
    pub(super) claude_code: Option<PathBuf>,
    pub(super) minimax_code: Option<PathBuf>,
    pub(super) endpoint: Option<Endpoint>,
    pub(super) bearer: Option<SecretString>,
    pub(super) prompt: String,
}

impl Plan {
    /// Checks a command line as far as this machine can tell; the daemon judges the rest.
    pub(super) fn check(arguments: RunArgs, surroundings: &Surroundings) -> Result<Self, UsageError> {
        let refuse = |why: &str| UsageError(why.into());
        let earlier = arguments.resume.map(|id| kept::Run::find(&id, surroundings)).transpose()?;
        let kept = earlier.as_ref().map(|run| &run.kept);
        let harness = harness(arguments.harness, earlier.as_ref())?;
        let steering = match (arguments.prompt.as_str(), arguments.steer) {
            ("-", true) => return Err(refuse("--steer: stdin has the prompt already")),
            ("-", false) => Steering::Never,
            (_, true) => Steering::Always,
            (_, false) => Steering::Typed,
        };
        let workspace = arguments.workspace.or_else(|| kept.and_then(|kept| kept.workspace.clone()));
        let workspace = workspace.as_deref().map(canonical).transpose()?;
        let functions = Functions::read(&arguments.functions, &arguments.deferred_functions)?;
        let images = arguments.images.iter().map(|path| Image::read(path)).collect::<Result<_, _>>()?;
        let schema = arguments.schema.as_deref().map(attached::schema).transpose()?;
        // Its Session was one of the bundled provider, unless another one is named now.
        let is_kept = kept.is_some_and(|kept| kept.mock) && arguments.provider.is_none();
        let mock = arguments.mock || is_kept;
        let key = match (&arguments.key_file, mock) {
            // The bundled provider asks for none, but a Harness sends one.
            (_, true) => "mock".into(),
            (Some(path), false) => key::from_file("--key-file", path)?,
            (None, false) => key_from(harness, surroundings)?,
        };
        let bearer = arguments.bearer_file.map(|path| key::from_file("--bearer-file", &path)).transpose()?;
        let isolation = match arguments.isolation {
            Some(isolation) => Some(isolation),
            None => isolation_from(surroundings)?,
        };
        let prompt = match arguments.prompt.as_str() {
            "-" => from_stdin()?,
            _ => arguments.prompt,
        };
        if prompt.trim().is_empty() {
            return Err(refuse("the prompt is empty"));
        }
        let provider = or_kept(arguments.provider, kept, |kept| &kept.provider, harness.provider());
        is_whole(harness, &provider)?;
        let program =
            |given: Option<PathBuf>, variable| given.or_else(|| surroundings.variable(variable).map(PathBuf::from));
        Ok(Self {
            harness,
            workspace,
            provider,
            model: or_kept(arguments.model, kept, |kept| &kept.model, harness.model()),
            token_limits: match kept {
                // What was frozen with the Session, even that there are none.
                Some(kept) => arguments.token_limits.or(kept.token_limits),
                None => arguments.token_limits.or(harness.token_limits()),
            },
            key,
            mock,
            functions,
            tool_search: arguments.tool_search,
            controls: v1::ExecutionControls {
                web_search: arguments
                    .web_search
                    .map(|search| v1::WebSearchControl { mode: search.mode().into(), ..Default::default() }),
                programmatic_tool_calling: arguments.scripts,
                text_verbosity: arguments.verbosity.map(|verbosity| verbosity.value().into()),
                reasoning_effort: arguments.effort,
                reasoning_summary: arguments.reasoning_summary,
                service_tier: arguments.service_tier,
                ..Default::default()
            },
            images,
            schema,
            steering,
            instructions: arguments.instructions,
            isolation,
            trust_workspace: arguments.trust_workspace,
            codex: program(arguments.codex, CODEX_VARIABLE),
            claude_code: program(arguments.claude_code, CLAUDE_VARIABLE),
            minimax_code: program(arguments.minimax_code, MINIMAX_VARIABLE),
            endpoint: arguments.endpoint,
            bearer,
            prompt,
            earlier,
        })
    }

    /// The input of the Turn: the prompt, then the images.
    pub(super) fn input(&self) -> Vec<v1::InputPart> {
        let mut input = client::text_input(self.prompt.as_str());
        input.extend(self.images.iter().map(|image| v1::InputPart { part: Some(image.part()) }));
        input
    }

    /// What of it holds for a Session as long as it lives.
    pub(super) fn kept(&self) -> Kept {
        Kept {
            version: kept::VERSION,
            harness: self.harness,
            workspace: self.workspace.clone(),
            provider: self.provider.clone(),
            model: self.model.clone(),
            mock: self.mock,
            token_limits: self.token_limits,
        }
    }

    /// The configuration of the one Session.
    pub(super) fn configuration(&self) -> v1::ExecutionConfiguration {
        let output_format = self.schema.clone().map(|schema| {
            let format = v1::output_format::Format::JsonSchema(v1::JsonSchemaFormat { schema });
            v1::OutputFormat { format: Some(format) }
        });
        let controls = v1::ExecutionControls { output_format, ..self.controls.clone() };
        let tools = v1::AdmittedTools {
            functions: self.functions.declared(),
            // A Turn without any of them asks for nothing.
            controls: Some(controls).filter(|controls| *controls != v1::ExecutionControls::default()),
            tool_search: self.tool_search.then(v1::ToolSearch::default),
            mcp_servers: Vec::new(),
        };
        let protocol = self.harness.protocol();
        let provider = v1::ModelProvider {
            protocol: protocol.into(),
            base_url: self.provider.clone(),
            token_limits: self.token_limits.map(Tokens::wire),
        };
        v1::ExecutionConfiguration {
            harness: self.harness.to_string(),
            placement: match self.workspace {
                None => v1::Placement::None,
                Some(_) => v1::Placement::Workspace,
            }
            .into(),
            model: self.model.clone(),
            instructions: self.instructions.clone(),
            provider: Some(v1::execution_configuration::Provider::ModelProvider(provider)),
            harness_config: String::new(),
            tools: Some(tools),
        }
    }
}

fn or_kept(given: Option<String>, kept: Option<&Kept>, of: impl Fn(&Kept) -> &String, default: &str) -> String {
    given.or_else(|| kept.map(|kept| of(kept).clone())).unwrap_or_else(|| default.into())
}

fn canonical(workspace: &Path) -> Result<PathBuf, UsageError> {
    let refuse = |why: &str| UsageError(format!("--workspace {}: {why}", workspace.display()));
    let found = workspace.canonicalize().map_err(|error| refuse(&error.to_string()))?;
    if !found.is_dir() {
        return Err(refuse("is not a folder"));
    }
    if found.to_str().is_none() {
        return Err(refuse("its path is not UTF-8"));
    }
    Ok(found)
}

/// The Harness that is named, else that of the earlier run: a Session stays with its own.
fn harness(given: Option<Harness>, earlier: Option<&kept::Run>) -> Result<Harness, UsageError> {
    match (given, earlier) {
        (Some(given), Some(run)) if given != run.kept.harness => {
            let (id, own) = (&run.session_id, run.kept.harness);
            Err(UsageError(format!("--harness {given}: the Session of --resume {id} is one of {own}; leave it out")))
        }
        (given, earlier) => Ok(given.or_else(|| earlier.map(|run| run.kept.harness)).unwrap_or_default()),
    }
}

/// Whether the Harness makes the provider's own addresses of this one.
fn is_whole(harness: Harness, provider: &str) -> Result<(), UsageError> {
    if harness == Harness::ClaudeCode && provider.trim_end_matches('/').ends_with("/v1") {
        return Err(UsageError(format!("--provider: {harness} adds /v1/messages to the address; leave its /v1 out")));
    }
    Ok(())
}

fn key_from(harness: Harness, surroundings: &Surroundings) -> Result<SecretString, UsageError> {
    let variable = harness.key_variable();
    let Some(value) = surroundings.variable(variable) else {
        return Err(UsageError(format!(
            "no model key: set {variable}, name a file with --key-file, or use the bundled provider with --mock"
        )));
    };
    match value.to_str().map(str::trim) {
        Some("") | None => Err(UsageError(format!("{variable} is not a text"))),
        Some(key) => Ok(key.into()),
    }
}

fn isolation_from(surroundings: &Surroundings) -> Result<Option<Isolation>, UsageError> {
    let Some(value) = surroundings.variable(ISOLATION_VARIABLE) else { return Ok(None) };
    match value.to_str().and_then(|value| Isolation::from_str(value, false).ok()) {
        Some(isolation) => Ok(Some(isolation)),
        None => Err(UsageError(format!("{ISOLATION_VARIABLE} is neither outer nor native"))),
    }
}

fn from_stdin() -> Result<String, UsageError> {
    let mut text = String::new();
    let read = io::stdin().lock().read_to_string(&mut text);
    read.map_err(|error| UsageError(format!("the prompt on stdin: {error}")))?;
    Ok(text)
}

#[cfg(test)]
mod tests;
