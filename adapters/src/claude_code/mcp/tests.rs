use std::path::PathBuf;

use proptest::prelude::*;
use secrecy::SecretString;

use super::*;
use crate::{
    harness::{Configuration, Controls, FunctionTool, McpOrigin, ModelProtocol, ModelProvider, Placement, Secrets},
    native::environment::Mark,
};

fn http(label: &str, allowed_tools: Option<&[&str]>, required: bool) -> McpServer {
    McpServer {
        label: label.into(),
        transport: McpTransport::Http {
            url: "https://tickets.example/mcp?a=b".into(),
            headers: vec![("X-Team".into(), "a $b".into())],
            bearer: label == "secret",
        },
        origin: McpOrigin::Service,
        allowed_tools: allowed_tools.map(|tools| tools.iter().map(|tool| (*tool).to_owned()).collect()),
        required,
    }
}

fn stdio(label: &str) -> McpServer {
    let transport = McpTransport::Stdio {
        command: "/srv/tickets".into(),
        args: vec!["a${HOME}b".into(), r"\".into()],
        cwd: "/w".into(),
        env_vars: vec!["TOKEN".into()],
    };
    McpServer { transport, origin: McpOrigin::Environment, ..http(label, None, false) }
}

fn launch(mcp_servers: Vec<McpServer>) -> Launch {
    Launch {
        executor_id: "ex".into(),
        home: PathBuf::from("/s"),
        temporary: PathBuf::from("/t"),
        workspace: None,
        configuration: Arc::new(Configuration {
            harness: "claude_code".into(),
            placement: Placement::None,
            model: "m".into(),
            instructions: String::new(),
            provider: ModelProvider {
                protocol: ModelProtocol::Messages,
                base_url: "https://models.example".into(),
                token_limits: None,
            },
            harness_config: String::new(),
            functions: Vec::new(),
            tool_search: false,
            mcp_servers,
            controls: Controls::default(),
        }),
        model_key: None,
        holds_key: false,
        mcp_bearers: [("secret".to_owned(), SecretString::from("b-1"))].into(),
        mcp_variables: [("TOKEN".to_owned(), SecretString::from("$t"))].into(),
        secrets: Secrets::default(),
        mark: Mark::new("st", "ex"),
        resume: None,
    }
}

fn named(servers: Vec<McpServer>, absent: &[&str]) -> Result<String, String> {
    let absent: Vec<_> = absent.iter().map(|label| Absent { label: (*label).into(), why: String::new() }).collect();
    let launch = launch(servers);
    set_servers(&launch, Path::new("/keeper"), &absent).map(|request| serde_json::to_string(&request).unwrap())
}

#[test]
fn servers_are_named_with_their_bearer_or_a_blank_one() {
    assert_eq!(
        named(vec![http("secret", None, false), http("open", None, false), http("away", None, false)], &["away"])
            .unwrap(),
        concat!(
            r#"{"subtype":"mcp_set_servers","servers":{"#,
            r#""open":{"type":"http","url":"https://tickets.example/mcp?a=b","headers":{"Authorization":"","X-Team":"a $b"}},"#,
            r#""secret":{"type":"http","url":"https://tickets.example/mcp?a=b","headers":{"Authorization":"Bearer b-1","X-Team":"a $b"}}}}"#
        )
    );
}

#[test]
fn the_functions_are_named_again_beside_the_servers() {
    let mut launch = launch(vec![http("open", None, false)]);
    let functions = vec![FunctionTool {
        name: "f".into(),
        description: String::new(),
        parameters: "{}".into(),
        defer_loading: false,
        silence_timeout: None,
        max_duration: None,
    }];
    launch.configuration = Arc::new(Configuration { functions, ..(*launch.configuration).clone() });
    let request = set_servers(&launch, Path::new("/keeper"), &[]).unwrap();
    let request = serde_json::to_string(&request).unwrap();
    assert!(request.contains(r#"{"functions":{"type":"sdk","name":"functions"},"open":{"#), "{request}");
}

#[test]
fn a_process_is_started_by_the_keeper_and_nothing_in_it_is_replaced() {
    assert_eq!(
        named(vec![stdio("tickets")], &[]).unwrap(),
        concat!(
            r#"{"subtype":"mcp_set_servers","servers":{"tickets":{"type":"stdio","command":"/keeper","args":["--serve"],"env":{"#,
            r#""RUNTIME_BRIDGE_MCP":"tickets","RUNTIME_BRIDGE_MCP_ARGUMENT_0":"/srv/tickets","#,
            r#""RUNTIME_BRIDGE_MCP_ARGUMENT_1":"a\\d{HOME}b","RUNTIME_BRIDGE_MCP_ARGUMENT_2":"\\\\","#,
            r#""RUNTIME_BRIDGE_MCP_VARIABLE_TOKEN":"\\dt"}}}}"#
        )
    );
    let mut without = launch(vec![stdio("tickets")]);
    without.mcp_variables.clear();
    let refused = set_servers(&without, Path::new("/keeper"), &[]).map(drop).unwrap_err();
    assert_eq!(refused, "the MCP server `tickets` names the variable `TOKEN`, which is not there");
}

#[test]
fn a_bearer_that_would_be_replaced_is_not_given() {
    let mut launch = launch(vec![http("secret", None, false)]);
    launch.mcp_bearers.insert("secret".into(), "a${HOME}".into());
    let refused = set_servers(&launch, Path::new("/keeper"), &[]).map(drop).unwrap_err();
    assert!(refused.contains("the MCP server `secret` has ${") && !refused.contains("HOME"), "{refused}");
}

fn status(text: &str) -> Status {
    serde_json::from_str(text).unwrap()
}

const TOLD: &str = r#"{"mcpServers":[
    {"name":"functions","status":"connected","tools":[{"name":"f"}]},
    {"name":"a","status":"connected","config":{"headers":{"Authorization":"Bearer canary"}},"tools":[{"name":"read"},{"name":"write.é","annotations":{}}]},
    {"name":"b","status":"failed","error":"Error POSTing to endpoint: canary"},
    {"name":"c","status":"pending"}]}"#;

#[test]
fn tools_are_known_by_their_own_names_and_only_the_allowed_ones_are_used() {
    let servers = [http("a", Some(&["write.é", "more"]), true)];
    let (mut tools, absent) = Tools::of(&servers, &status(TOLD)).unwrap();
    assert_eq!(absent, []);
    assert!(tools.allows("mcp__a__write__") && !tools.allows("mcp__a__read") && !tools.allows("mcp__a__more"));
    assert!(
        tools.has("mcp__a__more") && !tools.has("mcp__functions__f") && !tools.has("Bash") && !tools.has("mcp__ab__x")
    );
    let rules = |tools: &Tools| serde_json::to_string(&tools.rules()).unwrap();
    let want = r#"{"subtype":"apply_flag_settings","settings":{"permissions":{"allow":["mcp__a__write__"],"deny":["mcp__a__read""#;
    assert_eq!(rules(&tools), format!("{want}]}}}}}}"));
    let told = ["mcp__a__write__", "mcp__a__more", "Bash"].map(str::to_owned);
    let news = tools.news(&told);
    assert_eq!(news, BTreeSet::from([told[1].clone()]));
    tools.grow(news);
    assert!(tools.news(&told).is_empty());
    // One that was there and may not be used is nothing new.
    assert!(tools.news(&["mcp__a__read".to_owned()]).is_empty());
    assert_eq!(rules(&tools), format!(r#"{want},"mcp__a__more"]}}}}}}"#));

    let arguments = RawValue::from_string(r#"{"n":1.50}"#.into()).unwrap();
    let call = tools.call("mcp__a__write__", Some(&arguments)).unwrap();
    assert_eq!((&*call.server, &*call.tool, &*call.arguments), ("a", "write.é", r#"{"n":1.50}"#));
    assert_eq!(tools.call("mcp__a__more", None).unwrap().tool, "more");
    assert_eq!(tools.call("mcp__functions__f", None), None);
}

#[test]
fn tools_that_come_later_are_noted_within_a_bound() {
    let (mut tools, _) = Tools::of(&[http("a", None, true)], &status(TOLD)).unwrap();
    let more: Vec<_> = (0..=GROWN).map(|number| format!("mcp__a__more_{number}")).collect();
    tools.grow(tools.news(&more[..2]));
    let news = tools.news(&more);
    assert_eq!(news.len(), GROWN - 2);
    tools.grow(news);
    assert!(tools.news(&more).is_empty() && !tools.allows(&more[GROWN]));
}

#[test]
fn a_server_that_is_not_there_is_told_or_refused_without_what_it_said() {
    let servers = ["a", "b", "c", "d"].map(|label| http(label, None, false));
    let (_, absent) = Tools::of(&servers, &status(TOLD)).unwrap();
    let told: Vec<_> = absent.iter().map(|absent| format!("{}: {}", absent.label, absent.why)).collect();
    assert_eq!(told, ["b: it refused the request", "c: it is pending", "d: claude does not know it"]);
    let required = Tools::of(&[http("b", None, true)], &status(TOLD)).unwrap_err();
    assert_eq!(required, "the required MCP server `b` is not there: it refused the request");
}

#[test]
fn tools_of_one_name_for_the_model_are_refused() {
    let told = r#"{"mcpServers":[{"name":"a","status":"connected","tools":[{"name":"x.y"},{"name":"x_y"}]}]}"#;
    let refused = Tools::of(&[http("a", None, false)], &status(told)).unwrap_err();
    assert_eq!(refused, r#"the tools "x.y" and "x_y" of the MCP server `a` have one name for the model, mcp__a__x_y"#);
}

#[test]
fn labels_must_not_begin_with_each_other() {
    let refused = |labels: &[&str]| {
        let servers: Vec<_> = labels.iter().map(|label| http(label, None, false)).collect();
        super::labels(&servers).err().map(|refused| refused.to_string())
    };
    assert_eq!(refused(&["a", "a_b", "ab", "b__a", "a-b"]), None);
    let message = "begins with the label a and __, so claude_code could not tell their tools apart";
    assert_eq!(refused(&["a__b", "a"]), Some(format!("tools.mcp_servers[0].label: {message}")));
    assert!(refused(&["functions__a"]).is_some());
    // Whatever comes between the two, and the first of several is told.
    assert_eq!(
        refused(&["a-", "a_", "a_b", "b", "a", "a__b", "a__c"]),
        Some(format!("tools.mcp_servers[5].label: {message}"))
    );
    assert_eq!(refused(&["a__z__b", "b", "a__c", "a"]), Some(format!("tools.mcp_servers[0].label: {message}")));
    assert_eq!(refused(&["a_", "a__", "b"]), None);
}

proptest! {
    #[test]
    fn labels_are_judged_as_if_each_were_looked_at_beside_each(labels in prop::collection::vec("[ab_]{1,6}", 0..8)) {
        let servers: Vec<_> = labels.iter().map(|label| http(label, None, false)).collect();
        let below = |label: &String| {
            labels.iter().any(|other| label.strip_prefix(other.as_str()).is_some_and(|rest| rest.starts_with(BETWEEN)))
        };
        let field = labels.iter().position(below).map(|index| format!("tools.mcp_servers[{index}].label"));
        prop_assert_eq!(super::labels(&servers).err().map(|refused| refused.field), field);
    }
}

#[test]
fn a_failure_is_told_without_secrets_and_addresses() {
    let cleaner = Cleaner::new(Some(&"b-canary".into()).into_iter().collect(), "");
    let long = "x".repeat(400);
    for (given, want) in [
        (r#"{"content":"no","isError":true}"#, None),
        (
            r#"{"content":"b-canary at http://127.0.0.1:1/route","isError":true}"#,
            Some(r#"{"content":"[key] at [address]","isError":true}"#),
        ),
        (
            r#"{"content":[{"text":"Error POSTing to endpoint: {\"a\":1}","type":"text"}],"isError":true}"#,
            Some(
                r#"{"content":[{"text":"Error POSTing to endpoint: [answer of the provider]","type":"text"}],"isError":true}"#,
            ),
        ),
        (
            r#"{"content":[{"type":"text","text":"see https://h/ and b-canary"},{"type":"text","text":"b"}],"isError":true}"#,
            Some(r#"see https://h/ and [key]"#),
        ),
        (&format!(r#"{{"content":"{long}"}}"#), None),
    ] {
        let told = cleaned(given, &cleaner);
        assert_eq!(told.is_some(), want.is_some(), "{given} {told:?}");
        assert!(told.unwrap_or_default().contains(want.unwrap_or_default()), "{given}");
    }
}

#[test]
fn a_result_is_told_as_the_harness_has_it() {
    let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
    let told = |told: &str, content: &str, is_error| result(Some(&raw(told)), Some(&raw(content)), is_error).unwrap();
    let parts = r#"[{"type":"text","text":"x"}]"#;
    assert_eq!(told(parts, parts, false), format!(r#"{{"content":{parts}}}"#));
    let structured = r#"{"content":"{}","structuredContent":{"a":1.50}}"#;
    assert_eq!(told(structured, "\"{}\"", false), structured);
    assert_eq!(told("\"Error: no\"", "\"no\"", true), r#"{"content":"no","isError":true}"#);
    assert_eq!(result(None, None, false), None);
}
