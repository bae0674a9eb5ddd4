//! The rows of the report: each control with each value that a Harness takes, and what the provider has to see of it.

use conformance::rig::{Harness, function};
use proto::v1::{
    self, AdmittedTools, ExecutionControls, Placement, TextVerbosity, WebSearchContextSize, WebSearchMode,
};

/// One control with one value.
pub(crate) struct Row {
    pub(crate) control: &'static str,
    pub(crate) value: &'static str,
    pub(crate) model: &'static str,
    pub(crate) set: Box<dyn Fn(&mut AdmittedTools)>,
    pub(crate) want: Want,
    /// The same is to be seen once an Executor has gone on with the native history.
    pub(crate) resumed: bool,
    /// It is looked at under `none` alone: another value of the control is on a workspace too.
    once: bool,
}

/// What is to be seen, by the name of a tool or of a setting.
pub(crate) enum Want {
    /// Without a control: all of it.
    Native(Vec<(&'static str, &'static str)>),
    /// As without a control, but for these; what is none is not there.
    Changes(Vec<(&'static str, Option<&'static str>)>),
    /// The preparation fails with this text.
    Fails(&'static str),
}

impl Row {
    fn resumed(self) -> Self {
        Self { resumed: true, ..self }
    }

    fn once(self) -> Self {
        Self { once: true, ..self }
    }
}

fn row(
    control: &'static str,
    value: &'static str,
    model: &'static str,
    want: Want,
    set: impl Fn(&mut AdmittedTools) + 'static,
) -> Row {
    Row { control, value, model, set: Box::new(set), want, resumed: false, once: false }
}

fn native(model: &'static str, all: &[&[(&'static str, &'static str)]]) -> Row {
    row("none", "absent", model, Want::Native(all.concat()), |_| {})
}

fn controls(tools: &mut AdmittedTools) -> &mut ExecutionControls {
    tools.controls.get_or_insert_default()
}

fn search(mode: WebSearchMode) -> v1::WebSearchControl {
    v1::WebSearchControl { mode: mode.into(), ..Default::default() }
}

fn searching(value: &'static str, model: &'static str, of: v1::WebSearchControl, want: Want) -> Row {
    row("`web_search`", value, model, want, move |tools| controls(tools).web_search = Some(of.clone()))
}

fn scripts(on: bool, model: &'static str, want: Want) -> Row {
    let value = if on { "true" } else { "false" };
    row("`programmatic_tool_calling`", value, model, want, move |tools| {
        controls(tools).programmatic_tool_calling = Some(on);
    })
}

fn verbosity(of: TextVerbosity, model: &'static str, want: Want) -> Row {
    let value = match of {
        TextVerbosity::Low => "low",
        TextVerbosity::Medium => "medium",
        TextVerbosity::High | TextVerbosity::Unspecified => "high",
    };
    row("`text_verbosity`", value, model, want, move |tools| controls(tools).text_verbosity = Some(of.into()))
}

fn effort(value: &'static str, model: &'static str, want: Want) -> Row {
    row("`reasoning_effort`", value, model, want, move |tools| controls(tools).reasoning_effort = Some(value.into()))
}

fn summary(value: &'static str, model: &'static str, want: Want) -> Row {
    row("`reasoning_summary`", value, model, want, move |tools| controls(tools).reasoning_summary = Some(value.into()))
}

fn tier(value: &'static str, model: &'static str, want: Want) -> Row {
    row("`service_tier`", value, model, want, move |tools| controls(tools).service_tier = Some(value.into()))
}

fn answering(tools: &mut AdmittedTools) {
    const SCHEMA: &str = r#"{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}"#;
    let format = v1::output_format::Format::JsonSchema(v1::JsonSchemaFormat { schema: SCHEMA.into() });
    controls(tools).output_format = Some(v1::OutputFormat { format: Some(format) });
}

fn with_function(tools: &mut AdmittedTools, name: &str, deferred: bool) {
    let function = function(name, r#"{"type":"object","properties":{"q":{"type":"string"}}}"#);
    tools.functions.push(v1::FunctionTool { defer_loading: deferred, ..function });
}

fn changes<const N: usize>(changes: [(&'static str, Option<&'static str>); N]) -> Want {
    Want::Changes(changes.into())
}

fn same() -> Want {
    Want::Changes(Vec::new())
}

/// Which controls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The search of the web.
    Search,
    /// The others that decide which tools the model is offered, or how it answers.
    Tools,
    /// How long it answers, and what it tells of its reasoning.
    Settings,
    /// How much it reasons, and how soon.
    Efforts,
}

impl Part {
    pub(crate) const ALL: [Self; 4] = [Self::Search, Self::Tools, Self::Settings, Self::Efforts];
}

/// The rows of a Harness under a placement, those without a control first.
pub(crate) fn rows(harness: Harness, placement: Placement, part: Part) -> Vec<Row> {
    let nowhere = placement == Placement::None;
    let (mut rows, mut others) = match (harness, part) {
        (Harness::Codex, Part::Search) => (codex(nowhere), codex_search()),
        (Harness::Codex, Part::Tools) => (codex(nowhere), codex_tools(nowhere)),
        (Harness::Codex, Part::Settings) => (codex(nowhere), codex_settings()),
        (Harness::Codex, Part::Efforts) => (codex(nowhere), codex_efforts()),
        (Harness::ClaudeCode, Part::Search) => (claude(nowhere), claude_search(nowhere)),
        (Harness::ClaudeCode, Part::Tools) => (claude(nowhere), claude_tools()),
        (Harness::ClaudeCode, Part::Settings) => (claude(nowhere), claude_settings()),
        (Harness::ClaudeCode, Part::Efforts) => (claude(nowhere), claude_efforts()),
        (Harness::MinimaxCode | Harness::Opencode, Part::Search) => (acp(harness, nowhere), acp_search(harness)),
        (Harness::MinimaxCode | Harness::Opencode, Part::Tools) => {
            (acp(harness, nowhere), vec![scripts(false, harness.model(), same())])
        }
        (Harness::MinimaxCode | Harness::Opencode, Part::Settings) => {
            (acp(harness, nowhere), vec![verbosity(TextVerbosity::Medium, harness.model(), same())])
        }
        // They take none.
        (Harness::MinimaxCode | Harness::Opencode, Part::Efforts) => (Vec::new(), Vec::new()),
    };
    others.retain(|row| nowhere || !row.once);
    // Only what the others are compared with.
    rows.retain(|row| others.iter().any(|other| other.model == row.model));
    rows.extend(others);
    rows
}

const DIRECT: &str = "gpt-5.5";
/// A model that takes its tools from scripts alone.
const SCRIPTED: &str = "gpt-6.2-sol";
const UNKNOWN: &str = "private-model";

const CACHED: &str = r#"{"external_web_access":false,"search_content_types":["text","image"]}"#;
const LIVE: &str = r#"{"external_web_access":true,"search_content_types":["text","image"]}"#;

fn codex(nowhere: bool) -> Vec<Row> {
    // With full access Codex searches the web as it is.
    let by_itself = if nowhere { CACHED } else { LIVE };
    let by_itself_unknown =
        if nowhere { r#"{"external_web_access":false}"# } else { r#"{"external_web_access":true}"# };
    let none: &[(&str, &str)] = &[];
    let shell: &[(&str, &str)] = &[("exec_command", ""), ("write_stdin", ""), ("view_image", "")];
    let (tools, patch) = if nowhere { (none, none) } else { (shell, &[("apply_patch", "")] as &[_]) };
    let scripted: &[_] = &[("exec", ""), ("wait", ""), ("send_message_to_user_async", ""), ("clock.sleep", "")];
    vec![
        native(
            DIRECT,
            &[tools, patch, &[("web_search", by_itself), ("reasoning.effort", "medium"), ("text.verbosity", "low")]],
        ),
        native(
            SCRIPTED,
            &[if nowhere { none } else { scripted }, &[("reasoning.effort", "low"), ("text.verbosity", "low")]],
        ),
        native(UNKNOWN, &[tools, &[("web_search", by_itself_unknown), ("reasoning.summary", "auto")]]),
    ]
}

/// Those of [`SCRIPTED`] are not among them: whatever it is told, Codex offers that model no search, so that nothing would show (R-CTL-4).
fn codex_search() -> Vec<Row> {
    let cached = || search(WebSearchMode::Cached);
    let live = || search(WebSearchMode::Live);
    let sized = |size: WebSearchContextSize| v1::WebSearchControl { context_size: Some(size.into()), ..live() };
    let located = |location| v1::WebSearchControl { location: Some(location), ..live() };
    let among = |domains: &[&str]| {
        let domains = domains.iter().map(|&domain| domain.to_owned()).collect();
        v1::WebSearchControl { allowed_domains: Some(v1::SearchDomains { domains }), ..live() }
    };
    let found = |with: &'static str| changes([("web_search", Some(with))]);
    vec![
        searching("disabled", DIRECT, search(WebSearchMode::Disabled), changes([("web_search", None)])),
        searching("disabled", UNKNOWN, search(WebSearchMode::Disabled), changes([("web_search", None)])),
        searching("cached", DIRECT, cached(), found(CACHED)).resumed(),
        searching("cached", UNKNOWN, cached(), found(r#"{"external_web_access":false}"#)),
        searching("live", DIRECT, live(), found(LIVE)),
        searching(
            "live, `context_size` low",
            DIRECT,
            sized(WebSearchContextSize::Low),
            found(r#"{"external_web_access":true,"search_content_types":["text","image"],"search_context_size":"low"}"#),
        ),
        searching(
            "live, `context_size` medium",
            DIRECT,
            sized(WebSearchContextSize::Medium),
            found(r#"{"external_web_access":true,"search_content_types":["text","image"],"search_context_size":"medium"}"#),
        )
        .once(),
        searching(
            "live, `context_size` high",
            DIRECT,
            sized(WebSearchContextSize::High),
            found(r#"{"external_web_access":true,"search_content_types":["text","image"],"search_context_size":"high"}"#),
        )
        .once(),
        searching(
            "live, `allowed_domains` example.com",
            DIRECT,
            among(&["example.com"]),
            found(r#"{"external_web_access":true,"filters":{"allowed_domains":["example.com"]},"search_content_types":["text","image"]}"#),
        ),
        searching(
            "live, `allowed_domains` empty",
            DIRECT,
            among(&[]),
            found(r#"{"external_web_access":true,"filters":{"allowed_domains":[]},"search_content_types":["text","image"]}"#),
        )
        .once(),
        searching(
            "live, `location` of all four",
            DIRECT,
            located(ulm()),
            found(r#"{"external_web_access":true,"search_content_types":["text","image"],"user_location":{"city":"Ulm","country":"DE","region":"BW","timezone":"Europe/Berlin","type":"approximate"}}"#),
        ),
        searching(
            "live, `location` empty",
            DIRECT,
            located(v1::SearchLocation::default()),
            found(r#"{"external_web_access":true,"search_content_types":["text","image"],"user_location":{"type":"approximate"}}"#),
        )
        .once(),
    ]
}

fn ulm() -> v1::SearchLocation {
    v1::SearchLocation {
        city: Some("Ulm".into()),
        country: Some("DE".into()),
        region: Some("BW".into()),
        timezone: Some("Europe/Berlin".into()),
    }
}

fn codex_tools(nowhere: bool) -> Vec<Row> {
    let one_by_one = [
        ("exec_command", Some("")),
        ("write_stdin", Some("")),
        ("view_image", Some("")),
        ("apply_patch", Some("")),
        ("clock.curr_time", Some("")),
        ("exec", None),
        ("wait", None),
    ];
    let everything = v1::WebSearchControl {
        location: Some(ulm()),
        allowed_domains: Some(v1::SearchDomains { domains: vec!["example.com".into()] }),
        ..search(WebSearchMode::Live)
    };
    vec![
        scripts(true, DIRECT, changes([("exec", Some("")), ("wait", Some(""))])).resumed(),
        scripts(true, SCRIPTED, if nowhere { changes([("exec", Some("")), ("wait", Some(""))]) } else { same() }),
        scripts(true, UNKNOWN, changes([("exec", Some("")), ("wait", Some(""))])).once(),
        scripts(false, DIRECT, same()),
        scripts(false, SCRIPTED, if nowhere { same() } else { changes(one_by_one) }).resumed(),
        scripts(false, UNKNOWN, same()).once(),
        row("`output_format`", "json_schema", DIRECT, changes([("text.format.type", Some("json_schema"))]), answering),
        row(
            "all of them",
            "beside a function and a schema",
            DIRECT,
            changes([
                ("web_search", Some(r#"{"external_web_access":true,"filters":{"allowed_domains":["example.com"]},"search_content_types":["text","image"],"user_location":{"city":"Ulm","country":"DE","region":"BW","timezone":"Europe/Berlin","type":"approximate"}}"#)),
                ("lookup", Some("")),
                ("text.verbosity", Some("high")),
                ("text.format.type", Some("json_schema")),
                ("reasoning.effort", Some("low")),
                ("reasoning.summary", Some("detailed")),
                ("service_tier", Some("priority")),
            ]),
            move |tools| {
                with_function(tools, "lookup", false);
                answering(tools);
                let controls = controls(tools);
                controls.web_search = Some(everything.clone());
                controls.programmatic_tool_calling = Some(false);
                controls.text_verbosity = Some(TextVerbosity::High.into());
                controls.reasoning_effort = Some("low".into());
                controls.reasoning_summary = Some("detailed".into());
                controls.service_tier = Some("priority".into());
            },
        )
        .resumed(),
    ]
}

fn codex_settings() -> Vec<Row> {
    let setting = |name: &'static str, value: &'static str| changes([(name, Some(value))]);
    vec![
        verbosity(TextVerbosity::Low, DIRECT, setting("text.verbosity", "low")).once(),
        verbosity(TextVerbosity::Medium, DIRECT, setting("text.verbosity", "medium")),
        verbosity(TextVerbosity::High, DIRECT, setting("text.verbosity", "high")),
        verbosity(TextVerbosity::High, SCRIPTED, setting("text.verbosity", "high")),
        verbosity(TextVerbosity::Medium, UNKNOWN, same()),
        verbosity(
            TextVerbosity::High,
            UNKNOWN,
            Want::Fails(
                "text_verbosity cannot be high: the catalogue of codex has no model private-model, and codex tells such a model nothing of it",
            ),
        ),
        // What Codex makes of it where the model lists it.
        summary("auto", DIRECT, setting("reasoning.summary", "auto")),
        summary("concise", DIRECT, setting("reasoning.summary", "concise")).once(),
        summary("detailed", DIRECT, setting("reasoning.summary", "detailed")),
        summary("none", UNKNOWN, changes([("reasoning.summary", None)])),
    ]
}

fn codex_efforts() -> Vec<Row> {
    let setting = |name: &'static str, value: &'static str| changes([(name, Some(value))]);
    vec![
        effort("low", DIRECT, setting("reasoning.effort", "low")),
        effort("high", DIRECT, setting("reasoning.effort", "high")).once(),
        effort("xhigh", DIRECT, setting("reasoning.effort", "xhigh")),
        effort("max", SCRIPTED, setting("reasoning.effort", "max")),
        effort(
            "max",
            DIRECT,
            Want::Fails(
                "reasoning_effort cannot be max: for the model gpt-5.5 the catalogue of codex lists low, medium, high, xhigh",
            ),
        ),
        effort("minimal", UNKNOWN, setting("reasoning.effort", "minimal")),
        effort("none", UNKNOWN, setting("reasoning.effort", "none")).once(),
        tier("auto", DIRECT, same()),
        tier("priority", DIRECT, setting("service_tier", "priority")),
        tier("fast", DIRECT, setting("service_tier", "priority")).once(),
        tier(
            "flex",
            DIRECT,
            Want::Fails(
                "service_tier cannot be flex: for the model gpt-5.5 the catalogue of codex lists priority, fast",
            ),
        ),
        tier("flex", UNKNOWN, setting("service_tier", "flex")),
        tier(
            "priority",
            UNKNOWN,
            Want::Fails(
                "service_tier cannot be priority: the catalogue of codex has no model private-model, and codex asks for no tier then",
            ),
        ),
    ]
}

/// A model that has efforts.
const CLAUDE: &str = "claude-opus-5-5";
const OLDER: &str = "claude-opus-4-6";
const WITHOUT_EFFORTS: &str = "claude-sonnet-4-5";

/// The native tools of a workspace (R-CTL-5).
const WORKSPACE: [(&str, &str); 17] = [
    ("Bash", ""),
    ("DeferredToolPlaceholder", "to be found"),
    ("Edit", ""),
    ("EnterWorktree", "to be found"),
    ("ExitWorktree", "to be found"),
    ("NotebookEdit", "to be found"),
    ("Read", ""),
    ("ReportFindings", ""),
    ("Skill", ""),
    ("TaskCreate", "to be found"),
    ("TaskGet", "to be found"),
    ("TaskList", "to be found"),
    ("TaskUpdate", "to be found"),
    ("ToolSearch", ""),
    ("WebFetch", "to be found"),
    ("WebSearch", "to be found"),
    ("Write", ""),
];

fn claude(nowhere: bool) -> Vec<Row> {
    let tools: &[(&str, &str)] = if nowhere { &[] } else { &WORKSPACE };
    vec![native(CLAUDE, &[tools, &[("output_config.effort", "medium")]])]
}

fn claude_search(nowhere: bool) -> Vec<Row> {
    let medium = || v1::WebSearchControl {
        context_size: Some(WebSearchContextSize::Medium.into()),
        ..search(WebSearchMode::Live)
    };
    let found = || if nowhere { changes([("WebSearch", Some(""))]) } else { same() };
    vec![
        searching(
            "disabled",
            CLAUDE,
            search(WebSearchMode::Disabled),
            changes([("WebSearch", None), ("WebFetch", None)]),
        )
        .resumed(),
        searching("live", CLAUDE, search(WebSearchMode::Live), found()),
        searching("live, `context_size` medium", CLAUDE, medium(), found()).once(),
    ]
}

fn claude_tools() -> Vec<Row> {
    let finding = |of: &[(&'static str, &'static str)]| {
        let searched =
            [("ToolSearch", ""), ("DeferredToolPlaceholder", "to be found"), ("rare", "to be found"), ("often", "")];
        Want::Changes(searched.iter().chain(of).map(|&(name, value)| (name, Some(value))).collect())
    };
    let deferring = |tools: &mut AdmittedTools| {
        with_function(tools, "often", false);
        with_function(tools, "rare", true);
        tools.tool_search = Some(v1::ToolSearch {});
    };
    vec![
        scripts(false, CLAUDE, same()),
        row("`output_format`", "json_schema", CLAUDE, changes([("StructuredOutput", Some(""))]), answering),
        row("`tool_search`", "beside a deferred function", CLAUDE, finding(&[]), deferring),
        row(
            "all of them",
            "beside functions, a search for tools and a schema",
            CLAUDE,
            finding(&[("WebSearch", "to be found"), ("StructuredOutput", ""), ("output_config.effort", "low")]),
            move |tools| {
                deferring(tools);
                answering(tools);
                let controls = controls(tools);
                controls.web_search = Some(search(WebSearchMode::Live));
                controls.programmatic_tool_calling = Some(false);
                controls.text_verbosity = Some(TextVerbosity::Medium.into());
                controls.reasoning_effort = Some("low".into());
                controls.reasoning_summary = Some("auto".into());
                controls.service_tier = Some("auto".into());
            },
        )
        .resumed(),
    ]
}

fn claude_settings() -> Vec<Row> {
    vec![verbosity(TextVerbosity::Medium, CLAUDE, same()), summary("auto", CLAUDE, same())]
}

fn claude_efforts() -> Vec<Row> {
    let asked = |value: &'static str| changes([("output_config.effort", Some(value))]);
    vec![
        effort("low", CLAUDE, asked("low")),
        effort("medium", CLAUDE, asked("medium")).once(),
        effort("high", CLAUDE, asked("high")).once(),
        effort("xhigh", CLAUDE, asked("xhigh")).once(),
        effort("max", CLAUDE, asked("max")),
        effort(
            "xhigh",
            OLDER,
            Want::Fails(
                "claude refused: reasoning_effort cannot be xhigh for the model claude-opus-4-6: claude code takes high in its place",
            ),
        ),
        effort(
            "low",
            WITHOUT_EFFORTS,
            Want::Fails("claude refused: reasoning_effort cannot be low for the model claude-sonnet-4-5: it has none"),
        ),
        tier("auto", CLAUDE, same()),
    ]
}

/// The native tools of an agent behind ACP.
fn acp(harness: Harness, nowhere: bool) -> Vec<Row> {
    let tools: &[(&str, &str)] = match (harness, nowhere) {
        (_, true) => &[],
        (Harness::MinimaxCode, false) => &[
            ("bash", ""),
            ("edit", ""),
            ("glob", ""),
            ("grep", ""),
            ("read", ""),
            ("task_output", ""),
            ("task_query", ""),
            ("task_stop", ""),
            ("todowrite", ""),
            ("web_fetch", ""),
            ("write", ""),
        ],
        (_, false) => &[
            ("bash", ""),
            ("edit", ""),
            ("glob", ""),
            ("grep", ""),
            ("read", ""),
            ("todowrite", ""),
            ("webfetch", ""),
            ("write", ""),
        ],
    };
    vec![native(harness.model(), &[tools])]
}

fn acp_search(harness: Harness) -> Vec<Row> {
    let fetch = if harness == Harness::MinimaxCode { "web_fetch" } else { "webfetch" };
    let disabled = search(WebSearchMode::Disabled);
    vec![searching("disabled", harness.model(), disabled, changes([(fetch, None)])).resumed()]
}
