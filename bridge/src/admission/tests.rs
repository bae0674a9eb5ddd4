//! The table of admission against the judge, and any JSON whatsoever.
//!
//! The cases are a file of their own: a scenario puts some of them to a daemon too.

use std::{
    collections::BTreeMap,
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use adapters::admission::{
    STDIO_DIRECTORY,
    built::{Built, KINDS},
};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Admitted, Rejection, Selection, Texts, admit, file};
use crate::gateway::{Guard, Guards};

/// Set to write the page anew.
const WRITE: &str = "RUNTIME_BRIDGE_WRITE_ADMISSION_REPORT";
const CASES: &str = include_str!("../../../conformance/tests/admission/cases.json");
const DIRECTORY: &str = "/srv/space";

/// One row of the table, or a part of one.
#[derive(Debug, Deserialize)]
struct Case {
    section: String,
    row: String,
    /// The document; none where `raw` is the text of its tools.
    #[serde(rename = "in")]
    document: Option<Box<RawValue>>,
    raw: Option<String>,
    /// Where it applies; everywhere when it is empty.
    #[serde(default)]
    on: Vec<String>,
    save: String,
    session: String,
    codex: Option<String>,
    claude_code: Option<String>,
    minimax_code: Option<String>,
    none: Option<String>,
    workspace: Option<String>,
    #[serde(rename = "codex workspace")]
    codex_workspace: Option<String>,
    message: Option<String>,
    #[serde(default)]
    environment: Environment,
    #[serde(default)]
    provider: Provider,
    #[serde(default)]
    harness_config: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Environment {
    r#type: Option<String>,
    network: String,
    packages: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Provider {
    of_session: Option<bool>,
    protocol: Option<String>,
    token_limits: bool,
}

impl Case {
    fn applies(&self, kind: &str, placement: &str) -> bool {
        let both = format!("{kind} {placement}");
        self.on.is_empty() || self.on.iter().any(|on| [kind, placement, &both].contains(&on.as_str()))
    }

    fn expected(&self, kind: &str, placement: &str) -> &str {
        let of_kind = match kind {
            "codex" => &self.codex,
            "claude_code" => &self.claude_code,
            _ => &self.minimax_code,
        };
        let of_both = if (kind, placement) == ("codex", "workspace") { &self.codex_workspace } else { &None };
        let of_placement = if placement == "none" { &self.none } else { &self.workspace };
        [of_both, of_kind, of_placement].into_iter().flatten().next().unwrap_or(&self.session)
    }

    fn judge(&self, selection: Option<&Selection>) -> Result<Admitted, Rejection> {
        let texts = match (&self.document, &self.raw) {
            (Some(document), None) => file::texts(document.get().as_bytes()).unwrap(),
            (None, Some(raw)) => Texts { tools: Some(raw.as_bytes()), ..Texts::default() },
            _ => panic!("{}: neither a document nor a text", self.row),
        };
        admit(&texts, selection, &guards())
    }

    fn selection(&self, kind: &str, placement: &str) -> Selection {
        let usual = if placement == "none" { "none" } else { "self_hosted" };
        Selection {
            environment: self.environment.r#type.clone().unwrap_or_else(|| usual.into()),
            network: self.environment.network.clone(),
            system_packages: self.environment.packages,
            own_provider: self.provider.of_session,
            protocol: self.provider.protocol.clone(),
            token_limits: self.provider.token_limits,
            harness_config: self.harness_config.clone(),
            ..selection(kind, placement)
        }
    }

    /// What was sent, for the page.
    fn shown(&self) -> String {
        let mut shown = match (&self.document, &self.raw) {
            (Some(document), _) => document.get().to_owned(),
            (None, raw) => raw.clone().unwrap_or_default(),
        };
        let Environment { r#type, network, packages } = &self.environment;
        let Provider { of_session, protocol, .. } = &self.provider;
        let more = [
            r#type.as_ref().map(|of| format!("environment.type = {of}")),
            (!network.is_empty()).then(|| format!("environment.network = {network}")),
            packages.then(|| "environment.packages.system is not empty".into()),
            of_session.map(|of| format!("a provider of the Session = {of}")),
            protocol.as_ref().map(|of| format!("model_provider.protocol = {of}")),
            (!self.harness_config.is_empty()).then(|| format!("harness_config = {}", self.harness_config)),
        ];
        let more: Vec<_> = more.into_iter().flatten().collect();
        if !more.is_empty() {
            shown = more.join(", ");
        }
        let cut: String = shown.chars().take(120).collect();
        let cut = if cut.len() < shown.len() { format!("{cut}…") } else { cut };
        cut.replace('|', "\\|").replace('`', "'")
    }
}

/// Those of an operator without exceptions.
fn guards() -> Guards {
    Guards::new(Guard::default(), false)
}

fn selection(kind: &str, placement: &str) -> Selection {
    Selection {
        built: Built::of(kind).unwrap(),
        environment: if placement == "none" { "none" } else { "self_hosted" }.into(),
        network: String::new(),
        system_packages: false,
        directory: DIRECTORY.into(),
        own_provider: None,
        protocol: None,
        token_limits: false,
        harness_config: String::new(),
    }
}

fn cases() -> Vec<Case> {
    serde_json::from_str(CASES).unwrap()
}

/// An outcome as the table writes it.
fn told(outcome: &Result<Admitted, Rejection>) -> String {
    let Err(rejection) = outcome else { return "ok".into() };
    assert_eq!(rejection.http_status, 400);
    let code = match rejection.code {
        "invalid_request_error" => "PE",
        "unsupported_or_invalid_configuration" => "UC",
        "model_provider_required" => "MPR",
        other => panic!("{other}"),
    };
    format!("{code} {}", rejection.param.as_deref().unwrap_or("∅"))
}

/// One line of the page.
struct Line {
    where_to: String,
    expected: String,
    got: String,
    message: String,
}

/// Every case of the table, for everything that it applies to.
fn lines(case: &Case) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut line = |where_to: String, expected: &str, outcome: Result<Admitted, Rejection>| {
        let got = told(&outcome);
        let message = outcome.err().map(|rejection| rejection.message).unwrap_or_default();
        // Where the table has words of its own, they are part of what is expected.
        let has_words = case.message.is_some() && got != "ok";
        let got =
            if has_words && case.message.as_deref() != Some(&message) { format!("{got}: {message}") } else { got };
        lines.push(Line { where_to, expected: expected.to_owned(), got, message });
    };
    line("save".into(), &case.save, case.judge(None));
    for kind in KINDS {
        for placement in ["none", "workspace"] {
            if case.applies(kind, placement) {
                let outcome = case.judge(Some(&case.selection(kind, placement)));
                line(format!("{kind} {placement}"), case.expected(kind, placement), outcome);
            }
        }
    }
    lines
}

#[test]
fn every_row_has_its_outcome_and_the_page_says_so() {
    let cases = cases();
    assert!(cases.len() > 150, "{}", cases.len());
    let (mut page, mut section, mut judged, mut differences) = (String::new(), "", 0, Vec::new());
    for case in &cases {
        if case.section != section {
            section = &case.section;
            _ = write!(
                page,
                "\n## {section}\n\n| Row | Input | For | Expected | Got |\n| --- | --- | --- | --- | --- |\n"
            );
        }
        // What has one outcome everywhere stands in one line.
        let mut together: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
        for Line { where_to, expected, got, .. } in lines(case) {
            judged += 1;
            if expected != got {
                differences.push(format!("{section}: {}: {where_to}: expected {expected}, got {got}", case.row));
            }
            together.entry((expected, got)).or_default().push(where_to);
        }
        for ((expected, got), places) in together {
            let (row, shown, places) = (&case.row, case.shown(), places.join(", "));
            _ = writeln!(page, "| {row} | `{shown}` | {places} | {expected} | {got} |");
        }
    }
    let head = format!(
        "# Admission, row by row\n\nWritten by the test `every_row_has_its_outcome_and_the_page_says_so` (`{WRITE}=1` writes it anew): each row of the table of \
         admission that is the bridge's, with what was put in, what is expected and what came out.\nPE is 400 `invalid_request_error`, UC is 400 \
         `unsupported_or_invalid_configuration`, MPR is 400 `model_provider_required`; the param follows, ∅ where there is none.\n`save` is for keeping an Agent, the \
         others for a Session.\n\n{} rows, {judged} outcomes, {} differences.\n",
        cases.len(),
        differences.len()
    );
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    let tail = include_str!("tests/core.md");
    let page = format!("{head}{page}\n{tail}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/admission-report.md");
    if env::var_os(WRITE).is_some() {
        fs::write(&path, &page).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == page, "docs/admission-report.md is stale; write it with {WRITE}=1");
}

#[test]
fn every_message_is_as_reviewed() {
    let mut seen = BTreeMap::new();
    for case in cases() {
        for line in lines(&case) {
            if !line.message.is_empty() {
                assert!(!line.message.contains("secret"), "{}", line.message);
                let short: String = line.message.chars().take(300).collect();
                let place = if line.where_to == "save" { String::new() } else { format!(" ({})", line.where_to) };
                let message = format!("{short}\n");
                seen.entry((case.row.clone(), message)).or_insert(place);
            }
        }
    }
    let mut text = String::new();
    for ((row, message), place) in seen {
        _ = write!(text, "{row}{place}\n  {message}");
    }
    insta::assert_snapshot!(text);
}

#[test]
fn messages_begin_with_their_path_but_for_those_with_words_of_their_own() {
    for case in cases() {
        for placement in ["none", "workspace"] {
            let Err(rejection) = case.judge(Some(&case.selection("claude_code", placement))) else { continue };
            let has_words = case.message.as_ref() == Some(&rejection.message) || rejection.message == STDIO_DIRECTORY;
            if !has_words {
                let begins = rejection.param.as_deref().is_none_or(|param| rejection.message.starts_with(param));
                assert!(begins, "{}: {rejection:?}", case.row);
            }
        }
    }
}

#[test]
fn what_was_left_out_is_told_and_projected() {
    let given = br#"{"tools":[
        {"type":"function","name":"f","description":"","parameters":{"b":1.50, "a":1e400},"defer_loading":true},
        {"type":"tool_search"},{"type":"web_search","location":{}},{"type":"programmatic_tool_calling"},
        {"type":"mcp","server_label":"m","transport":{"type":"http","server_url":"https://h","headers":{"X":"1"}}}],
        "reasoning":{"effort":"low"},"service_tier":null}"#;
    let texts = file::texts(given).unwrap();
    let kept = admit(&texts, None, &guards()).unwrap();
    assert_eq!(kept.tools, None);
    insta::assert_snapshot!(
        kept.projection,
        @r#"{"tools":[{"type":"function","name":"f","description":"","parameters":{"b":1.50, "a":1e400},"defer_loading":true},{"type":"tool_search"},{"type":"web_search","mode":"live","context_size":"medium","allowed_domains":null,"location":{"city":null,"country":null,"region":null,"timezone":null}},{"type":"programmatic_tool_calling","enabled":true},{"type":"mcp","server_label":"m","transport":{"type":"http","server_url":"https://h","headers":{"X":"1"}},"connection_origin":"service","credential_id":null,"allowed_tools":null,"required":false}],"text":{"format":{"type":"text"},"verbosity":"medium"},"reasoning":{"effort":"low","summary":null},"service_tier":null}"#
    );
    insta::assert_snapshot!(kept.defaulted.join("\n"), @r"
    tools[2].mode: live
    tools[2].context_size: medium
    tools[2].allowed_domains: null, which searches all of them
    tools[3].enabled: true
    tools[4].connection_origin: service
    tools[4].allowed_tools: null, which allows every tool
    tools[4].required: false
    text.format: text
    text.verbosity: medium
    ");
    // What was projected is admitted as itself.
    let again = file::texts(kept.projection.as_bytes()).unwrap();
    let again = admit(&again, None, &guards()).unwrap();
    assert_eq!(again.projection, kept.projection);
    assert_eq!(
        again.defaulted,
        [
            "tools[2].allowed_domains: null, which searches all of them",
            "tools[4].allowed_tools: null, which allows every tool"
        ]
    );
}

#[test]
fn a_session_shows_no_tool_search_and_keeps_absent_what_was_absent() {
    let of = |text: &str| {
        let texts = file::texts(text.as_bytes()).unwrap();
        admit(&texts, Some(&selection("claude_code", "none")), &guards()).unwrap()
    };
    let deferred = r#"{"tools":[{"type":"tool_search"},{"type":"function","name":"f","description":"","parameters":{"type":"object"},"defer_loading":true}]}"#;
    let admitted = of(deferred);
    assert!(!admitted.projection.contains("tool_search") && admitted.tools.unwrap().tool_search);
    let nothing = of("{}").tools.unwrap().controls;
    assert_eq!(nothing, Default::default());
    let usual = of(r#"{"text":{"verbosity":"medium"},"tools":[{"type":"web_search"}]}"#).tools.unwrap().controls;
    assert!(usual.text_verbosity.is_some() && usual.web_search.is_some());
}

#[test]
fn invalid_bytes_have_their_place() {
    let texts = Texts { text: Some(b"{\"verbosity\":\"\xff\"}"), ..Texts::default() };
    let rejection = admit(&texts, None, &guards()).unwrap_err();
    assert_eq!(rejection.message, "text: is not UTF-8 at line 1, column 15");
}

#[test]
fn what_is_large_takes_no_more_than_its_length() {
    // Where anything looked at everything for each of them, this would not end.
    let server = |index: usize| {
        format!(r#"{{"type":"mcp","server_label":"s{index}","transport":{{"type":"http","server_url":"https://h"}}}}"#)
    };
    let servers: Vec<_> = (0..30_000).map(server).collect();
    let functions: Vec<_> = (0..30_000)
        .map(|index| format!(r#"{{"type":"function","name":"f{index}","description":"","parameters":{{}}}}"#))
        .collect();
    let wide: Vec<_> = (0..150_000).map(|index| format!(r#""m{index}":1"#)).collect();
    let wide = format!(r#"{{"type":"function","name":"w","description":"","parameters":{{{}}}}}"#, wide.join(","));
    let both = format!("[{},{},{wide}]", servers.join(","), functions.join(","));
    let texts = Texts { tools: Some(both.as_bytes()), ..Texts::default() };
    assert!(admit(&texts, None, &guards()).is_ok());
    for kind in KINDS {
        // More servers than a bridge takes.
        let rejection = admit(&texts, Some(&selection(kind, "none")), &guards()).unwrap_err();
        assert_eq!(rejection.param.as_deref(), Some("tools.mcp_servers"), "{kind}");
    }
    let tools = format!("[{},{wide}]", functions.join(","));
    let texts = Texts { tools: Some(tools.as_bytes()), ..Texts::default() };
    for kind in KINDS {
        let admitted = admit(&texts, Some(&selection(kind, "none")), &guards()).unwrap().tools.unwrap();
        assert_eq!(admitted.functions.len(), 30_001, "{kind}");
    }
}

#[test]
fn labels_that_begin_alike_take_no_more_than_their_length() {
    let server = |label: &str| {
        format!(
            r#"{{"type":"mcp","server_label":"{label}","transport":{{"type":"http","server_url":"https://h"}},"connection_origin":"environment"}}"#
        )
    };
    // Each begins with all those before it, and every place in one could be where another ends.
    let servers: Vec<_> = (1..128).map(|length| server(&format!("a{}", "-".repeat(length)))).collect();
    let long = server(&"_".repeat(8 << 20));
    let tools = format!("[{},{long}]", servers.join(","));
    let texts = Texts { tools: Some(tools.as_bytes()), ..Texts::default() };
    for kind in KINDS {
        let answer = admit(&texts, Some(&selection(kind, "workspace")), &guards());
        if kind == "minimax_code" {
            // It cuts a label of more than 48 bytes.
            assert_eq!(answer.unwrap_err().param.as_deref(), Some("tools[47].server_label"));
            continue;
        }
        assert_eq!(answer.unwrap().tools.unwrap().mcp_servers.len(), 128, "{kind}");
    }
}

#[test]
fn where_the_workspace_is_not_known_a_process_may_be_in_any_directory() {
    let tools = br#"[{"type":"mcp","server_label":"m","transport":{"type":"stdio","command":"c","cwd":"/anywhere"}}]"#;
    let texts = Texts { tools: Some(tools), ..Texts::default() };
    let known = selection("claude_code", "workspace");
    assert_eq!(admit(&texts, Some(&known), &guards()).unwrap_err().message, STDIO_DIRECTORY);
    let unknown = Selection { directory: PathBuf::new(), ..known };
    assert!(admit(&texts, Some(&unknown), &guards()).is_ok());
}

#[test]
fn the_members_of_a_file_have_paths_and_levels_of_their_own() {
    let refused = |file: &str| file::texts(file.as_bytes()).unwrap_err();
    let twice = refused(r#"{"tools":[{"a":1,"a":2}]}"#);
    assert_eq!(twice.param.as_deref(), Some("tools[0].a"));
    assert!(twice.message.starts_with("tools[0].a: "), "{twice:?}");
    assert_eq!(refused("{").param.as_deref(), Some("$"));
    assert_eq!(refused("[1,]").param.as_deref(), Some("$[1]"));
    let deep = |levels: usize| format!(r#"{{"tools":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
    assert!(file::texts(deep(128).as_bytes()).is_ok());
    assert!(refused(&deep(129)).message.contains("deeper than 128 levels"));
}

/// JSON that is like the documents of applications, and JSON that is like none.
fn document() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("\"function\""),
        Just("\"mcp\""),
        Just("\"web_search\""),
        Just("\"tool_search\""),
        Just("\"http\""),
        Just("\"programmatic_tool_calling\""),
        Just("\"stdio\""),
        Just("\"live\""),
        Just("\"json_schema\""),
        Just("\"object\""),
        Just("\"\""),
        Just("\"a.b\""),
        Just("\"https://h/${x}\""),
        Just("\"/srv/space\""),
        Just("null"),
        Just("true"),
        Just("false"),
        Just("0"),
        Just("1e400"),
        Just("18446744073709551616"),
        Just("{}"),
        Just("[]"),
        Just("\"\\ud800\""),
        Just("\"custom\""),
    ]
    .prop_map(str::to_owned);
    let name = prop_oneof![
        Just("type"),
        Just("name"),
        Just("description"),
        Just("parameters"),
        Just("defer_loading"),
        Just("server_label"),
        Just("transport"),
        Just("server_url"),
        Just("command"),
        Just("cwd"),
        Just("env"),
        Just("env_vars"),
        Just("headers"),
        Just("mode"),
        Just("enabled"),
        Just("schema"),
        Just("format"),
        Just("verbosity"),
        Just("allowed_tools"),
        Just("location"),
        Just("connection_origin"),
        Just("credential_id"),
        Just("required"),
        Just("Type"),
        Just("\u{1f600}"),
    ];
    word.prop_recursive(5, 64, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(|all| format!("[{}]", all.join(","))),
            prop::collection::vec((name.clone(), inner), 0..8).prop_map(|all| {
                let all: Vec<_> = all.into_iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
                format!("{{{}}}", all.join(","))
            }),
        ]
    })
}

proptest! {
    #[test]
    fn any_bytes_have_one_outcome_which_is_always_the_same(
        tools in prop_oneof![
            prop::option::of(document().prop_map(String::into_bytes)),
            prop::collection::vec(document(), 0..4).prop_map(|all| Some(format!("[{}]", all.join(",")).into_bytes())),
            prop::collection::vec(any::<u8>(), 0..64).prop_map(Some),
        ],
        text in prop::option::of(document().prop_map(String::into_bytes)),
        multi_agent in prop::option::of(document().prop_map(String::into_bytes)),
        kind in prop::sample::select(KINDS.to_vec()),
        placement in prop::sample::select(vec!["none", "workspace"]),
    ) {
        let (tools, text, multi_agent) = (tools.as_deref(), text.as_deref(), multi_agent.as_deref());
        let texts = Texts { tools, text, multi_agent, ..Texts::default() };
        let chosen = selection(kind, placement);
        let saved = admit(&texts, None, &guards());
        let begun = admit(&texts, Some(&chosen), &guards());
        prop_assert_eq!(&saved, &admit(&texts, None, &guards()));
        prop_assert_eq!(&begun, &admit(&texts, Some(&chosen), &guards()));
        // What is no request is none for either; what can be run can be kept.
        if let Err(rejection) = &saved {
            prop_assert_eq!(Some(rejection), begun.as_ref().err());
        }
        if let Ok(admitted) = &begun {
            let projection: Result<Box<RawValue>, _> = serde_json::from_str(&admitted.projection);
            prop_assert!(projection.is_ok(), "{}", admitted.projection);
        }
        for rejection in [saved.err(), begun.err()].into_iter().flatten() {
            prop_assert!(rejection.message.len() < 2000, "{:?}", rejection);
        }
    }
}

/// Documents that come near to being admitted.
fn near() -> impl Strategy<Value = String> {
    let function = (0..4u8, any::<bool>(), prop::sample::select(vec!["{}", r#"{"type":"object"}"#, r#"{"minimum":1e400}"#]))
        .prop_map(|(name, deferred, schema)| {
            format!(r#"{{"type":"function","name":"f{name}","description":"","parameters":{schema},"defer_loading":{deferred}}}"#)
        });
    let transport = prop::sample::select(vec![
        r#"{"type":"http","server_url":"https://h/x"}"#.to_owned(),
        r#"{"type":"http","server_url":"https://h/x","headers":{"X-B":"2","X-A":""}}"#.to_owned(),
        format!(r#"{{"type":"stdio","command":"c","args":["","b"],"cwd":"{DIRECTORY}","env_vars":["Z","A"]}}"#),
    ]);
    let allowed = prop::sample::select(vec!["null", "[]", r#"["b","a"]"#]);
    let credential = prop::sample::select(vec!["null", r#""credential""#]);
    let origin = prop::sample::select(vec!["service", "environment"]);
    let server = (0..4u8, transport, any::<bool>(), origin, allowed, credential).prop_map(
        |(label, transport, required, origin, allowed, credential)| {
            format!(r#"{{"type":"mcp","server_label":"s{label}","transport":{transport},"required":{required},"connection_origin":"{origin}","allowed_tools":{allowed},"credential_id":{credential}}}"#)
        },
    );
    let others = prop::sample::select(vec![
        r#"{"type":"tool_search"}"#,
        r#"{"type":"web_search","mode":"disabled"}"#,
        r#"{"type":"web_search"}"#,
        r#"{"type":"web_search","mode":"live","context_size":"high","allowed_domains":["b.c","a.b"],"location":{"city":"Bern"}}"#,
        r#"{"type":"programmatic_tool_calling","enabled":false}"#,
    ]);
    let one = prop_oneof![function, server, others.prop_map(str::to_owned)];
    let beside = prop::sample::select(vec![
        "",
        r#","text":{"verbosity":"high"},"reasoning":{"effort":"low","summary":"auto"},"service_tier":"auto""#,
        r#","text":{"format":{"type":"json_schema","schema":{"type":"object", "x":1.50}}},"reasoning":{"effort":"high"}"#,
    ]);
    (prop::collection::vec(one, 0..5), beside)
        .prop_map(|(all, beside)| format!(r#"{{"tools":[{}]{beside}}}"#, all.join(",")))
}

proptest! {
    #[test]
    fn what_is_admitted_is_what_a_preparation_takes(
        document in near(),
        kind in prop::sample::select(KINDS.to_vec()),
        placement in prop::sample::select(vec!["none", "workspace"]),
    ) {
        let texts = file::texts(document.as_bytes()).unwrap();
        let chosen = selection(kind, placement);
        if let Ok(admitted) = admit(&texts, Some(&chosen), &guards()) {
            let tools = admitted.tools.unwrap();
            let admitted = super::judge::configuration(&chosen, tools);
            // Core hands in what it was given, and a preparation reads that anew.
            let given = admit(&texts, Some(&chosen), &guards()).unwrap().tools.unwrap();
            let read = crate::service::prepared(given).unwrap();
            let read = super::judge::configuration(&chosen, read);
            prop_assert_eq!(&read, &admitted);
            prop_assert_eq!(crate::session::combination::check(&read), Ok(()));
            prop_assert_eq!(chosen.built.admit(&read), Ok(()));
        }
    }
}
