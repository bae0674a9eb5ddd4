//! An MCP server beside what else a Session may ask for: a schema for the answer, calls that wait for the end of theirs, and functions that are found.

use conformance::for_each_harness;
use conformance::mcp::Script;
use conformance::rig::{
    Harness, Observed, Setup, answering_by, called_by, deferring, function, http_server, scenario, served_by, strict,
    text_result,
};
use proto::v1::{Capability, ToolStatus};
use serde_json::{Value, json};

for_each_harness!(a_server_is_there_beside_all_controls);

const SCHEMA: &str =
    r#"{"type":"object","required":["a"],"properties":{"a":{"type":"string"}},"additionalProperties":false}"#;
const ANSWER: &str = r#"{"a":"b"}"#;

fn call(name: &str, call_id: &str, arguments: &Value) -> Value {
    json!({"name": name, "call_id": call_id, "arguments": arguments.to_string()})
}

fn a_server_is_there_beside_all_controls(harness: Harness) {
    let setup = Setup::outer().of(harness).needing(Capability::McpHttpTools).needing(Capability::StructuredOutput);
    let setup = setup.needing(Capability::StrictCalls).beside(Script::default());
    scenario("mcp_beside", &["R-MCP-1", "R-MCP-5", "R-CTL-3", "R-FN-1", "R-FN-10"], setup, async |rig| {
        let functions = ["eager", "find"].map(|name| function(name, r#"{"type":"object"}"#));
        let configuration = served_by([http_server("tickets", &rig.mcp().url())], rig.configuration(functions.into()));
        let configuration = strict(None, answering_by(SCHEMA, configuration));
        let (configuration, before, find, answer) = match harness {
            Harness::Codex => (configuration, vec![], "find", json!({"text": {"chunks": [ANSWER]}})),
            Harness::ClaudeCode => {
                let query = json!({"query": "select:mcp__functions__find,mcp__tickets__echo"});
                let search = json!({"play": [{"calls": [call("ToolSearch", "c-search", &query)]}]});
                let answer: Value = serde_json::from_str(ANSWER)?;
                let answer = json!({"calls": [call("StructuredOutput", "c-answer", &answer)]});
                (deferring(&["find"], configuration), vec![search], "mcp__functions__find", answer)
            }
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        };
        let searches = before.len();
        let both = [call("tickets.echo", "c-echo", &json!({"text": "one"})), call(find, "c-find", &json!({}))];
        let asks = json!({"play": [{"calls": both}, {"mark": "sent"}, {"gate": "go"}]});
        let steps = [before, vec![asks, json!({"play": [answer]})]].concat();
        rig.provider.script(&json!(steps).to_string())?;

        let session = rig.session().await?;
        let mut events = rig.start_turn(&session, configuration, "t-1", "look it up").await?;
        rig.provider.wait_for_mark("sent").await?;
        assert_eq!(rig.mcp().calls(), [""; 0], "it is called before the answer is whole");
        rig.provider.open_gate("go");
        let mut seen = Observed::default();
        let asked = seen.call(&mut events).await?;
        assert_eq!(asked.name, "find");
        session.submit(vec![text_result("t-1", &asked.call_id, "found")]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert_eq!((seen.messages(), seen.end()?.output_matches_schema), (vec![ANSWER], Some(true)));
        let calls = seen.mcp_calls();
        assert_eq!(calls.len(), 1, "{calls:#?}");
        assert_eq!((calls[0].call.tool.as_str(), calls[0].status), ("echo", ToolStatus::Completed), "{calls:#?}");
        assert_eq!(rig.mcp().calls(), ["echo"]);

        let requests = rig.provider.model_requests();
        assert_eq!(requests.len(), searches + 2);
        let schema: Value = serde_json::from_str(SCHEMA)?;
        assert!(requests.iter().all(|request| request.output_schema().as_ref() == Some(&schema)));
        let request = &requests[searches];
        let offered = request.tools();
        assert!(called_by(request, "tickets").contains(&"echo".to_owned()), "{offered:?}");
        assert!(["eager", "find"].iter().all(|name| offered.iter().any(|tool| tool == name)), "{offered:?}");
        let last = requests.last().map(|request| (request.output("c-echo"), request.output("c-find")));
        assert!(matches!(last, Some((Some(_), Some(_)))), "{last:?}");
        Ok(())
    });
}
