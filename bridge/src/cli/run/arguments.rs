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
    kept::{self, Kept},
    key,
};

/// Where the key comes from when no file is named.
const KEY_VARIABLE: &str = "OPENAI_API_KEY";
/// The settings of a daemon that count for a hosted one as well, where no option says otherwise.
const CODEX_VARIABLE: &str = "RUNTIME_BRIDGE_CODEX";
const ISOLATION_VARIABLE: &str = "RUNTIME_BRIDGE_ISOLATION";
/// The provider when none is named.
const PROVIDER: &str = "https://api.openai.com/v1";
/// The model when none is named: one that the pinned Codex has in its own catalogue.
const MODEL: &str = "gpt-5.5";

/// Run one whole Turn on this machine and show it.
///
/// Hosts a daemon of its own for the Turn. Ends with 0 when the Turn completed, 1 when it failed, 2 for a wrong command line, 3 when it
/// was cancelled, 4 when nobody knows.
#[derive(Args, Clone, Debug)]
pub(crate) struct RunArgs {
    /// The Harness that does the Turn.
    #[arg(long, value_enum)]
    pub(super) harness: Harness,
    /// The folder that the Harness works in; without one no tool of it touches this machine.
    #[arg(long, value_name = "DIR")]
    pub(super) workspace: Option<PathBuf>,
    /// Base address of the model provider [default: https://api.openai.com/v1].
    #[arg(long, value_name = "URL")]
    pub(super) provider: Option<String>,
    /// Name of the model [default: gpt-5.5].
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,
    /// File (mode 0600) with the provider's key; without it the key is in OPENAI_API_KEY.
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
    /// An image (PNG or JPEG) behind the prompt. May be repeated.
    #[arg(long = "image", value_name = "FILE")]
    pub(super) images: Vec<PathBuf>,
    /// The JSON Schema that the answer has to fit; the Turn's end tells whether it does.
    #[arg(long, value_name = "FILE")]
    pub(super) schema: Option<PathBuf>,
    /// Go on with the Session of an earlier run, as the end of that run named it; it is kept for seven days. Its folder, provider and model are taken over.
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
    /// Use a running daemon instead of hosting one.
    #[arg(long, value_name = "unix:PATH|http://ADDRESS:PORT", conflicts_with_all = ["isolation", "trust_workspace", "codex"])]
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

/// Harnesses that `run` knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Harness {
    /// `codex app-server`.
    Codex,
}

impl fmt::Display for Harness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Codex => "codex",
        })
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

/// A run that is in order.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) harness: Harness,
    /// Canonical; none is the placement `none`.
    pub(super) workspace: Option<PathBuf>,
    pub(super) provider: String,
    pub(super) model: String,
    pub(super) key: SecretString,
    /// Whether the bundled provider takes the place of `provider`.
    pub(super) mock: bool,
    pub(super) functions: Functions,
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
        let steering = match (arguments.prompt.as_str(), arguments.steer) {
            ("-", true) => return Err(refuse("--steer: stdin has the prompt already")),
            ("-", false) => Steering::Never,
            (_, true) => Steering::Always,
            (_, false) => Steering::Typed,
        };
        let workspace = arguments.workspace.or_else(|| kept.and_then(|kept| kept.workspace.clone()));
        let workspace = workspace.as_deref().map(canonical).transpose()?;
        let functions = Functions::read(&arguments.functions)?;
        let images = arguments.images.iter().map(|path| Image::read(path)).collect::<Result<_, _>>()?;
        let schema = arguments.schema.as_deref().map(attached::schema).transpose()?;
        // Its Session was one of the bundled provider, unless another one is named now.
        let is_kept = kept.is_some_and(|kept| kept.mock) && arguments.provider.is_none();
        let mock = arguments.mock || is_kept;
        let key = match (&arguments.key_file, mock) {
            // The bundled provider asks for none, but a Harness sends one.
            (_, true) => "mock".into(),
            (Some(path), false) => key::from_file("--key-file", path)?,
            (None, false) => key_from(surroundings)?,
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
        Ok(Self {
            harness: arguments.harness,
            workspace,
            provider: or_kept(arguments.provider, kept, |kept| &kept.provider, PROVIDER),
            model: or_kept(arguments.model, kept, |kept| &kept.model, MODEL),
            key,
            mock,
            functions,
            images,
            schema,
            steering,
            instructions: arguments.instructions,
            isolation,
            trust_workspace: arguments.trust_workspace,
            codex: arguments.codex.or_else(|| surroundings.variable(CODEX_VARIABLE).map(PathBuf::from)),
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
            workspace: self.workspace.clone(),
            provider: self.provider.clone(),
            model: self.model.clone(),
            mock: self.mock,
        }
    }

    /// The configuration of the one Session.
    pub(super) fn configuration(&self) -> v1::ExecutionConfiguration {
        let controls = self.schema.clone().map(|schema| {
            let format = v1::output_format::Format::JsonSchema(v1::JsonSchemaFormat { schema });
            v1::ExecutionControls { output_format: Some(v1::OutputFormat { format: Some(format) }), web_search: None }
        });
        let provider =
            v1::ModelProvider { protocol: v1::ModelProtocol::Responses.into(), base_url: self.provider.clone() };
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
            tools: Some(v1::AdmittedTools { functions: self.functions.declared(), controls, tool_search: None }),
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

fn key_from(surroundings: &Surroundings) -> Result<SecretString, UsageError> {
    let Some(value) = surroundings.variable(KEY_VARIABLE) else {
        return Err(UsageError(format!(
            "no model key: set {KEY_VARIABLE}, name a file with --key-file, or use the bundled provider with --mock"
        )));
    };
    match value.to_str().map(str::trim) {
        Some("") | None => Err(UsageError(format!("{KEY_VARIABLE} is not a text"))),
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
mod tests {
    use clap::Parser;
    use secrecy::ExposeSecret as _;

    use super::*;
    use crate::cli::run::folders::tests::scratch;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArgs,
    }

    fn parse(line: &[&str]) -> Result<RunArgs, clap::Error> {
        Line::try_parse_from([&["run"], line].concat()).map(|line| line.run)
    }

    fn surroundings(key: Option<&'static str>) -> Surroundings {
        Surroundings::of(move |name| if name == KEY_VARIABLE { key.map(OsString::from) } else { None })
    }

    fn plan(line: &[&str], key: Option<&'static str>) -> Result<Plan, String> {
        Plan::check(parse(line).unwrap(), &surroundings(key)).map_err(|error| error.0)
    }

    fn folder(name: &str) -> String {
        scratch(name).to_str().unwrap().to_owned()
    }

    #[test]
    fn defaults_are_the_public_provider_and_a_model_of_the_catalogue() {
        let workspace = folder("defaults");
        let plan = plan(&["--harness", "codex", "--workspace", &workspace, "hi"], Some("sk-1")).unwrap();
        assert_eq!((plan.provider.as_str(), plan.model.as_str()), (PROVIDER, MODEL));
        assert_eq!(plan.key.expose_secret(), "sk-1");
        let configuration = plan.configuration();
        assert_eq!(configuration.harness, "codex");
        assert_eq!(configuration.placement(), v1::Placement::Workspace);
        assert_eq!(plan.isolation, None);
        let nowhere = self::plan(&["--harness", "codex", "hi"], Some("sk-1")).unwrap();
        assert_eq!(nowhere.configuration().placement(), v1::Placement::None);
        let refused = parse(&["--harness", "codex", "--trust-workspace", "hi"]).unwrap_err();
        assert!(refused.to_string().contains("--workspace"), "{refused}");
    }

    #[test]
    fn every_option_has_its_place() {
        let workspace = folder("options");
        let line = [
            "--harness=codex",
            "--provider=http://127.0.0.1:9/v1",
            "--model=m",
            "--instructions=be brief",
            "--isolation=native",
            "--trust-workspace",
            "--codex=/opt/codex",
            "--json",
            "--workspace",
            &workspace,
            "do it",
        ];
        let arguments = parse(&line).unwrap();
        assert!(arguments.json);
        let plan = plan(&line, Some("k")).unwrap();
        assert_eq!(plan.isolation, Some(Isolation::Native));
        assert!(plan.trust_workspace);
        assert_eq!(plan.codex.as_deref(), Some(Path::new("/opt/codex")));
        assert_eq!(plan.configuration().instructions, "be brief");
        assert_eq!(plan.prompt, "do it");
    }

    #[test]
    fn a_schema_and_images_stand_where_the_protocol_has_them() {
        let workspace = folder("attached");
        let file = |name: &str, bytes: &[u8]| {
            let path = Path::new(&workspace).join(name);
            std::fs::write(&path, bytes).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (schema, png, jpeg) =
            (file("s.json", b"{ }\n"), file("a", b"\x89PNG\r\n\x1a\n"), file("b", b"\xff\xd8\xff\xe0"));
        let line = ["--harness=codex", "--mock", "--workspace", &workspace];
        let more = ["--schema", &schema, "--image", &png, "--image", &jpeg, "look"];
        let plan = plan(&[&line as &[_], &more].concat(), None).unwrap();
        let controls = plan.configuration().tools.unwrap().controls.unwrap();
        let format = v1::output_format::Format::JsonSchema(v1::JsonSchemaFormat { schema: "{ }\n".into() });
        assert_eq!(controls.output_format.unwrap().format, Some(format));
        let kinds: Vec<_> = plan
            .input()
            .into_iter()
            .map(|part| match part.part.unwrap() {
                v1::input_part::Part::Text(text) => text,
                v1::input_part::Part::Image(image) => image.media_type,
            })
            .collect();
        assert_eq!(kinds, ["look", "image/png", "image/jpeg"]);
        let without = super::Plan::check(parse(&[&line as &[_], &["hi"]].concat()).unwrap(), &surroundings(None));
        assert_eq!(without.unwrap().configuration().tools.unwrap().controls, None);
    }

    #[test]
    fn stdin_is_read_for_one_purpose() {
        let workspace = folder("stdin");
        let line = ["--harness=codex", "--mock", "--workspace", &workspace];
        let steering = |more: &[&str]| plan(&[&line as &[_], more].concat(), None).map(|plan| plan.steering);
        assert_eq!(steering(&["hi"]), Ok(Steering::Typed));
        assert_eq!(steering(&["--steer", "hi"]), Ok(Steering::Always));
        assert_eq!(steering(&["--steer", "-"]), Err("--steer: stdin has the prompt already".into()));
    }

    #[test]
    fn a_later_run_has_what_the_earlier_one_had() {
        let home = folder("resume");
        let id = kept::new_session_id();
        let state = Path::new(&home).join("runtime-bridge/run").join(&id);
        std::fs::create_dir_all(&state).unwrap();
        let kept = Kept {
            version: kept::VERSION,
            workspace: Some(Path::new(&home).canonicalize().unwrap()),
            provider: "http://127.0.0.1:9/v1".into(),
            model: "m".into(),
            mock: true,
        };
        kept.write(&state).unwrap();
        let line = |more: &[&'static str]| {
            let arguments = parse(&[&["--harness=codex", "--resume", &id], more].concat()).unwrap();
            let home = home.clone();
            let variable = move |name: &str| match name {
                "XDG_STATE_HOME" => Some(home.clone().into()),
                KEY_VARIABLE => Some("sk".into()),
                _ => None,
            };
            Plan::check(arguments, &Surroundings::of(variable)).unwrap()
        };
        let plan = line(&["go on"]);
        assert_eq!(plan.kept(), kept);
        assert_eq!(plan.earlier.unwrap().session_id, id);
        let plan = line(&["--provider=https://p/v1", "--model=n", "go on"]);
        assert_eq!((plan.provider.as_str(), plan.model.as_str(), plan.mock), ("https://p/v1", "n", false));
    }

    #[test]
    fn a_run_without_a_key_offers_the_bundled_provider() {
        let workspace = folder("keyless");
        let line = ["--harness", "codex", "--workspace", &workspace, "hi"];
        for key in [None, Some(""), Some(" ")] {
            let refused = plan(&line, key).unwrap_err();
            assert!(refused.contains(KEY_VARIABLE), "{refused}");
        }
        assert!(plan(&line, None).unwrap_err().ends_with("or use the bundled provider with --mock"));
        assert!(plan(&[&["--mock"], &line[..]].concat(), None).unwrap().mock);
    }

    #[test]
    fn a_folder_that_is_not_there_is_told() {
        let refused = plan(&["--harness", "codex", "--mock", "--workspace", "/none", "hi"], None).unwrap_err();
        assert!(refused.starts_with("--workspace /none: No such file"), "{refused}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let workspace = folder("refused");
        assert_eq!(
            plan(&["--harness", "codex", "--mock", "--workspace", &workspace, " "], None).unwrap_err(),
            "the prompt is empty"
        );
        for line in [
            &["hi"] as &[_],
            &["--harness", "codex"],
            &["--harness", "claude_code", "hi"],
            &["--harness", "codex", "--mock", "--provider", "http://x", "hi"],
            &["--harness", "codex", "--mock", "--key-file", "k", "hi"],
            &["--harness", "codex", "--isolation", "none", "hi"],
            &["--harness", "codex", "--endpoint", "/run/b.sock", "hi"],
            &["--harness", "codex", "--endpoint", "unix:/b", "--isolation", "outer", "hi"],
            &["--harness", "codex", "--endpoint", "unix:/b", "--resume", "run-1", "hi"],
            &["--harness", "codex", "two", "prompts"],
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line:?}");
        }
    }

    #[test]
    fn a_hosted_daemon_heeds_the_environment_of_a_daemon() {
        let workspace = folder("environment");
        let check = |line: &[&str], isolation: &'static str| {
            let line = [&["--harness=codex", "--mock", "--workspace", &workspace], line, &["hi"]].concat();
            let variable = move |name: &str| match name {
                CODEX_VARIABLE => Some("/env/codex".into()),
                ISOLATION_VARIABLE => Some(isolation.into()),
                _ => None,
            };
            Plan::check(parse(&line).unwrap(), &Surroundings::of(variable)).map_err(|error| error.0)
        };
        let plan = check(&[], "native").unwrap();
        assert_eq!((plan.isolation, plan.codex), (Some(Isolation::Native), Some("/env/codex".into())));
        let plan = check(&["--codex=/opt/codex", "--isolation=outer"], "native").unwrap();
        assert_eq!((plan.isolation, plan.codex), (Some(Isolation::Outer), Some("/opt/codex".into())));
        assert_eq!(check(&[], "none").unwrap_err(), "RUNTIME_BRIDGE_ISOLATION is neither outer nor native");
    }

    #[test]
    fn colours_can_be_switched_off() {
        let with = |name: &'static str, value: &'static str| {
            Surroundings::of(move |asked| (asked == name).then(|| value.into()))
        };
        assert!(with("TERM", "xterm").allow_colour());
        assert!(with("NO_COLOR", "").allow_colour());
        assert!(!with("NO_COLOR", "1").allow_colour());
        assert!(!with("TERM", "dumb").allow_colour());
    }
}
