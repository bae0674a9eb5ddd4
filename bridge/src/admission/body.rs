//! The members of public JSON, read one by one: tools first, then `text`, `reasoning`, `service_tier` and `multi_agent`.

use std::collections::BTreeSet;

use adapters::{
    harness::{ContextSize, FunctionTool, Location, TextVerbosity, WebSearch, WebSearchMode},
    json::members,
};

use super::{
    Rejection, Texts, json, mcp,
    shape::{Findings, Object, Stage, elements, string, word},
};

/// Types of tools that are executed.
const EXECUTED: [&str; 5] = ["function", "mcp", "programmatic_tool_calling", "tool_search", "web_search"];
/// Types of the public union that no Harness executes: kept as they are, and refused for a Session. No source lists them; these are the hosted and
/// local tools of the public API that stand in no rule of ours.
const INERT: [&str; 9] = [
    "apply_patch",
    "code_interpreter",
    "computer",
    "custom",
    "file_search",
    "image_generation",
    "local_shell",
    "namespace",
    "shell",
];
/// Public efforts, summaries and tiers; what a Harness takes of them its declaration says.
const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"];
const SUMMARIES: &[&str] = &["auto", "concise", "detailed", "none"];
const TIERS: &[&str] = &["auto", "default", "flex", "priority", "scale", "fast"];
const LEVELS: &[&str] = &["low", "medium", "high"];

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Body<'a> {
    pub(super) tools: Vec<Tool<'a>>,
    pub(super) format: Option<&'a str>,
    pub(super) verbosity: Option<TextVerbosity>,
    pub(super) reasoning: Part<Reasoning>,
    pub(super) service_tier: Part<&'static str>,
    pub(super) multi_agent: Part<&'a str>,
    /// Paths that were not there, and what they are then.
    pub(super) defaulted: Vec<String>,
}

/// A member of the whole: not sent, null, or something.
#[derive(Debug, Default)]
pub(super) enum Part<T> {
    #[default]
    Absent,
    Null,
    Given(T),
}

/// Effort and summary.
#[derive(Debug, Default)]
pub(super) struct Reasoning {
    pub(super) effort: Option<&'static str>,
    pub(super) summary: Option<&'static str>,
}

/// One tool, in the order of the document.
#[derive(Debug)]
pub(super) enum Tool<'a> {
    Function(FunctionTool),
    Inert(&'a str),
    Mcp(Box<mcp::Entry>),
    Programmatic(bool),
    Search,
    WebSearch(WebSearch),
}

/// Reads everything, or tells the first finding.
pub(super) fn read<'a>(texts: &Texts<'a>) -> Result<Body<'a>, Rejection> {
    let checked = |root: &str, bytes: Option<&'a [u8]>| {
        bytes.map(|bytes| json::check(root, bytes).map(str::trim)).transpose().map_err(|flaw| {
            let json::Flaw { path, message } = flaw;
            Rejection::request(&path, &message)
        })
    };
    let tools = checked("tools", texts.tools)?;
    let text = checked("text", texts.text)?;
    let reasoning = checked("reasoning", texts.reasoning)?;
    let service_tier = checked("service_tier", texts.service_tier)?;
    let multi_agent = checked("multi_agent", texts.multi_agent)?;

    let (mut body, mut findings) = (Body::default(), Findings::default());
    if let Some(text) = tools.filter(|text| *text != "null") {
        for (index, text) in elements("tools", text, &mut findings).unwrap_or_default().into_iter().enumerate() {
            let tool = tool(format!("tools[{index}]"), text, &mut body.defaulted, &mut findings);
            body.tools.push(tool);
        }
    }
    twice(&body.tools, &mut findings);
    self::text(text.unwrap_or("null"), &mut body, &mut findings);
    body.reasoning = part(reasoning, |text| {
        let object = Object::read("reasoning".into(), text, &mut findings);
        object.only(&["effort", "summary"], &mut findings);
        Reasoning {
            effort: object.word("effort", EFFORTS, &mut findings),
            summary: object.word("summary", SUMMARIES, &mut findings),
        }
    });
    body.service_tier = part(service_tier, |text| word("service_tier", text, TIERS, &mut findings).unwrap_or_default());
    body.multi_agent = part(multi_agent, |text| {
        let object = Object::read("multi_agent".into(), text, &mut findings);
        object.only(&["enabled", "max_concurrent_subagents"], &mut findings);
        object.boolean("enabled", &mut findings);
        if let Some(number) = object.given("max_concurrent_subagents") {
            at_least_one(&object.path("max_concurrent_subagents"), number, &mut findings);
        }
        text
    });
    findings.answer()?;
    Ok(body)
}

fn part<'a, T>(text: Option<&'a str>, read: impl FnOnce(&'a str) -> T) -> Part<T> {
    match text {
        None => Part::Absent,
        Some("null") => Part::Null,
        Some(text) => Part::Given(read(text)),
    }
}

fn at_least_one(path: &str, number: &str, findings: &mut Findings) {
    let is_one = !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit())
        && number.bytes().any(|byte| byte != b'0');
    if !is_one {
        findings.find(Stage::Value, path, || "must be an integer of at least 1".into());
    }
}

fn tool<'a>(at: String, text: &'a str, defaulted: &mut Vec<String>, findings: &mut Findings) -> Tool<'a> {
    let object = if text.starts_with('{') {
        Object::read(at.clone(), text, findings)
    } else {
        findings.find(Stage::Union, &at, || "must be an object with a type".into());
        return Tool::Inert(text);
    };
    let kind: Option<String> = object.get("type").and_then(|text| serde_json::from_str(text).ok());
    match kind.as_deref() {
        Some("function") => Tool::Function(function(&object, defaulted, findings)),
        Some("mcp") => {
            let entry = mcp::read(&object, findings);
            defaulted.extend(entry.defaulted.iter().map(|(name, value)| format!("{at}.{name}: {value}")));
            Tool::Mcp(Box::new(entry))
        }
        Some("programmatic_tool_calling") => {
            object.only(&["type", "enabled"], findings);
            let enabled = object.boolean("enabled", findings);
            if enabled.is_none() {
                defaulted.push(format!("{at}.enabled: true"));
            }
            Tool::Programmatic(enabled.unwrap_or(true))
        }
        Some("tool_search") => {
            object.only(&["type"], findings);
            Tool::Search
        }
        Some("web_search") => Tool::WebSearch(web_search(&object, defaulted, findings)),
        Some(kind) if INERT.contains(&kind) => Tool::Inert(text),
        _ => {
            let mut known = EXECUTED.to_vec();
            known.extend(INERT);
            known.sort_unstable();
            findings.find(Stage::Union, &format!("{at}.type"), || format!("must be one of {}", known.join(", ")));
            Tool::Inert(text)
        }
    }
}

fn function(object: &Object<'_>, defaulted: &mut Vec<String>, findings: &mut Findings) -> FunctionTool {
    object.only(&["type", "name", "description", "parameters", "defer_loading"], findings);
    let name = object.required_string("name", findings);
    let description = object.required_string("description", findings);
    let parameters = schema(object, "parameters", findings).unwrap_or("{}");
    let defer_loading = object.boolean("defer_loading", findings);
    if defer_loading.is_none() {
        defaulted.push(format!("{}: false", object.path("defer_loading")));
    }
    FunctionTool {
        name,
        description,
        parameters: parameters.to_owned(),
        defer_loading: defer_loading.unwrap_or(false),
        silence_timeout: None,
        max_duration: None,
    }
}

/// A schema: an object whose root, if it says so in one word, is an object.
fn schema<'a>(object: &Object<'a>, name: &str, findings: &mut Findings) -> Option<&'a str> {
    let text = object.required(name, findings)?;
    let path = object.path(name);
    if !text.starts_with('{') {
        findings.find(Stage::Value, &path, || "must be a JSON Schema that is an object".into());
        return None;
    }
    let root = members(text).ok().and_then(|members| {
        let (_, kind) = members.into_iter().find(|(name, _)| name == "type")?;
        serde_json::from_str::<String>(kind.get()).ok()
    });
    if root.is_some_and(|kind| kind != "object") {
        findings.find_whole(Stage::Root, &path, || "must have \"object\" as its type at the root".into());
    }
    Some(text)
}

fn web_search(object: &Object<'_>, defaulted: &mut Vec<String>, findings: &mut Findings) -> WebSearch {
    object.only(&["type", "mode", "context_size", "allowed_domains", "location"], findings);
    let mut usual = |name: &str, value: &str| {
        if object.given(name).is_none() {
            defaulted.push(format!("{}: {value}", object.path(name)));
        }
    };
    usual("mode", "live");
    usual("context_size", "medium");
    usual("allowed_domains", "null, which searches all of them");
    usual("location", "null");
    let mode = match object.word("mode", &["disabled", "cached", "live"], findings) {
        Some("disabled") => WebSearchMode::Disabled,
        Some("cached") => WebSearchMode::Cached,
        _ => WebSearchMode::Live,
    };
    let context_size = match object.word("context_size", LEVELS, findings) {
        Some("low") => ContextSize::Low,
        Some("high") => ContextSize::High,
        _ => ContextSize::Medium,
    };
    let location = object.given("location").map(|text| {
        let location = Object::read(object.path("location"), text, findings);
        location.only(&["city", "country", "region", "timezone"], findings);
        let mut one = |name| location.string(name, findings);
        Location { city: one("city"), country: one("country"), region: one("region"), timezone: one("timezone") }
    });
    let allowed_domains = object.strings("allowed_domains", findings);
    WebSearch { mode, context_size: Some(context_size), allowed_domains, location }
}

fn text<'a>(text: &'a str, body: &mut Body<'a>, findings: &mut Findings) {
    let object = match text {
        "null" => {
            body.defaulted.push("text.format: text".into());
            body.defaulted.push("text.verbosity: medium".into());
            return;
        }
        text => Object::read("text".into(), text, findings),
    };
    object.only(&["format", "verbosity"], findings);
    match object.given("format") {
        None => body.defaulted.push("text.format: text".into()),
        Some(text) => {
            let format = Object::read("text.format".into(), text, findings);
            let kind = format.required("type", findings);
            let kind: Option<String> = kind.and_then(|kind| string("text.format.type", kind, findings));
            match kind.as_deref() {
                Some("text") => format.only(&["type"], findings),
                Some("json_schema") => {
                    format.only(&["type", "schema"], findings);
                    body.format = schema(&format, "schema", findings);
                }
                Some(_) => findings.find(Stage::Union, "text.format.type", || "must be text or json_schema".into()),
                None => {}
            }
        }
    }
    body.verbosity = match object.word("verbosity", LEVELS, findings) {
        Some("low") => Some(TextVerbosity::Low),
        Some("high") => Some(TextVerbosity::High),
        Some(_) => Some(TextVerbosity::Medium),
        None => {
            body.defaulted.push("text.verbosity: medium".into());
            None
        }
    };
}

/// What there may be once.
fn twice(tools: &[Tool<'_>], findings: &mut Findings) {
    let (mut names, mut searches, mut finders) = (BTreeSet::new(), 0, 0);
    for (index, tool) in tools.iter().enumerate() {
        let again = match tool {
            Tool::Function(function) => !names.insert(&function.name),
            Tool::WebSearch(_) => {
                searches += 1;
                searches > 1
            }
            Tool::Search => {
                finders += 1;
                finders > 1
            }
            Tool::Inert(_) | Tool::Mcp(_) | Tool::Programmatic(_) => false,
        };
        if again {
            let what = match tool {
                Tool::Function(_) => "has the name of another function",
                _ => "is the second of its type; there may be one",
            };
            findings.find_whole(Stage::Twice, &format!("tools[{index}]"), || what.into());
        }
    }
}
