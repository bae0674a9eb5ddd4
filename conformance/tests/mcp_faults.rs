//! MCP servers that do wrong: what they do fails a call and nothing else (R-MCP-5, R-SEC-4).

use std::time::Duration;

use conformance::for_each_harness;
use conformance::mcp::{Fault, Script, Server};
use conformance::rig::{Harness, Observed, Setup, calling, http_server, scenario, served_by};
use proto::client::text_input;
use proto::v1::{self, ToolStatus};
use serde_json::json;

for_each_harness!(
    what_goes_wrong_with_a_call_is_told_and_the_turn_goes_on,
    a_call_may_be_slow,
    large_lists_and_answers_pass,
    nobody_is_asked_by_a_server,
);

fn setup(harness: Harness) -> Setup {
    Setup::outer().of(harness).needing(v1::Capability::McpHttpTools)
}

fn what_goes_wrong_with_a_call_is_told_and_the_turn_goes_on(harness: Harness) {
    scenario("mcp_faults", &["R-MCP-5", "R-SEC-4", "R-EVT-2"], setup(harness).beside(Script::default()), async |rig| {
        let elsewhere = Server::start(Script::default()).await?;
        let configuration = served_by([http_server("tickets", &rig.mcp().url())], rig.configuration(Vec::new()));
        let session = rig.session().await?;
        for (turn_id, tool, fault) in [
            ("failing", "failing", None),
            ("broken", "broken", None),
            ("redirected", "echo", Some(Fault::Redirected(elsewhere.url()))),
            ("refused", "echo", Some(Fault::Status(403))),
            ("broken-off", "echo", Some(Fault::BrokenOff)),
        ] {
            // Claude Code waits on for the answer that broke off: see `mcp_broken_off`.
            if harness == Harness::ClaudeCode && turn_id == "broken-off" {
                continue;
            }
            if let Some(fault) = fault {
                rig.mcp().fail(Some("tools/call"), fault);
            }
            rig.provider.script(&calling(&format!("tickets.{tool}"), &json!({})))?;
            let ready = rig.prepare(&session, configuration.clone()).await?;
            let seen = rig.turn_with(&session, &ready, turn_id, turn_id).await?;
            seen.completed()?;
            let calls = seen.mcp_calls();
            assert_eq!(calls.len(), 1, "{turn_id}: {calls:#?}");
            assert_eq!(calls[0].status, ToolStatus::Failed, "{turn_id}: {calls:#?}");
            // A result that tells of a failure is one; where there is none, it is said why.
            // Claude Code tells both in the same way.
            let has_result = tool == "failing" || harness == Harness::ClaudeCode;
            assert_eq!(calls[0].call.result.is_some(), has_result, "{turn_id}: {calls:#?}");
            assert_eq!(calls[0].call.error.is_empty(), has_result, "{turn_id}: {calls:#?}");
            assert!(!calls[0].call.error.contains("127.0.0.1"), "{turn_id}: {calls:#?}");
            rig.mcp().heal();
        }
        assert!(elsewhere.requests().is_empty(), "somebody went where the server pointed to");
        Ok(())
    });
}

/// What docs/deviations.md says of it: as long as the Turn has no end of its own, the call has none.
#[test]
fn an_answer_that_breaks_off_is_waited_for() {
    let setup = Setup { harness: Harness::ClaudeCode, ..Setup::outer() }.only("Codex fails such a call at once");
    let setup = setup.needing(v1::Capability::McpHttpTools).patient();
    let script = Script::default().at("tools/call", Fault::BrokenOff);
    scenario("mcp_broken_off", &["R-MCP-5", "R-CAN-1", "R-EVT-10"], setup.beside(script), async |rig| {
        let configuration = served_by([http_server("tickets", &rig.mcp().url())], rig.configuration(Vec::new()));
        for (turn_id, most) in [("cancelled", None), ("limited", Some(Duration::from_secs(10)))] {
            let call = json!({"name": "tickets.echo", "call_id": turn_id, "arguments": "{}"});
            rig.provider.script(&json!([{"play": [{"calls": [call]}]}]).to_string())?;
            let session = rig.session().await?;
            let ready = rig.prepare(&session, configuration.clone()).await?;
            let taken = rig.mcp().requests().len();
            session.start_within(&ready, turn_id, text_input(turn_id), most).await?;
            let mut events = session.turn_events(turn_id);
            rig.mcp().wait_for(|all| all[taken..].iter().any(|one| one.tool().is_some())).await?;
            if most.is_none() {
                session.cancel(turn_id, None).await?;
            }
            let seen = Observed::default().to_the_end(&mut events).await?;
            let calls = seen.mcp_calls();
            assert_eq!((calls.len(), calls[0].status), (1, ToolStatus::Incomplete), "{calls:#?}");
            let end = seen.end()?;
            match most {
                None => assert_eq!(end.status(), v1::TurnStatus::Cancelled, "{end:?}"),
                Some(_) => {
                    let code = end.failure.as_ref().map(v1::Failure::code);
                    assert_eq!(
                        (end.status(), code),
                        (v1::TurnStatus::Failed, Some(v1::FailureCode::DeadlineExceeded)),
                        "{end:?}"
                    );
                }
            }
        }
        Ok(())
    });
}

fn a_call_may_be_slow(harness: Harness) {
    scenario("mcp_slow", &["R-MCP-5", "R-CAN-1"], setup(harness).patient().beside(Script::default()), async |rig| {
        let configuration = served_by([http_server("tickets", &rig.mcp().url())], rig.configuration(Vec::new()));
        let session = rig.session().await?;
        // It is interrupted in one Turn, and answers in another one.
        rig.provider.script(&calling("tickets.slow", &json!({})))?;
        let ready = rig.prepare(&session, configuration.clone()).await?;
        session.start(&ready, "t-1", text_input("go")).await?;
        let mut events = session.turn_events("t-1");
        rig.mcp().wait_for_mark("slow").await?;
        session.cancel("t-1", None).await?;
        let seen = Observed::default().to_the_end(&mut events).await?;
        assert_eq!(seen.end()?.status(), v1::TurnStatus::Cancelled);
        let calls = seen.mcp_calls();
        assert_eq!((calls.len(), calls[0].status), (1, ToolStatus::Incomplete), "{calls:#?}");
        rig.provider.script(&calling("tickets.slow", &json!({})))?;
        let ready = rig.prepare(&session, configuration).await?;
        session.start(&ready, "t-2", text_input("go")).await?;
        let mut events = session.turn_events("t-2");
        rig.mcp().wait_for(|all| all.iter().filter(|one| one.tool().is_some()).count() == 2).await?;
        rig.mcp().open_gate("slow");
        let seen = Observed::default().to_the_end(&mut events).await?;
        seen.completed()?;
        let calls = seen.mcp_calls();
        assert_eq!((calls.len(), calls[0].status), (1, ToolStatus::Completed), "{calls:#?}");
        Ok(())
    });
}

fn large_lists_and_answers_pass(harness: Harness) {
    let most = match harness {
        Harness::Codex => 2000,
        Harness::ClaudeCode => 3000,
        Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
    };
    let more: Vec<String> = (0..most).map(|number| format!("tool_{number}")).collect();
    let script = Script { more, page: Some(500), json: true, ..Script::default() };
    scenario("mcp_large", &["R-MCP-5", "R-API-7", "R-EVT-12"], setup(harness).beside(script), async |rig| {
        const LENGTH: usize = 10 << 20;
        let configuration = served_by([http_server("tickets", &rig.mcp().url())], rig.configuration(Vec::new()));
        let session = rig.session().await?;
        let last = format!("tool_{}", most - 1);
        let call = |tool: &str, arguments: serde_json::Value| json!({"name": tool, "arguments": arguments.to_string()});
        let steps = json!([
            {"after": "user", "play": [{"calls": [call(&format!("tickets.{last}"), json!({"text": "the last"}))]}]},
            {"after": "outputs", "play": [{"calls": [call("tickets.large", json!({ "bytes": LENGTH }))]}]},
            {"after": "outputs", "play": [{"text": {"chunks": ["Heard."]}}]},
        ]);
        rig.provider.script(&steps.to_string())?;
        let ready = rig.prepare(&session, configuration).await?;
        let seen = rig.turn_with(&session, &ready, "t-1", "go").await?;
        seen.completed()?;
        let calls = seen.mcp_calls();
        assert_eq!(calls.len(), 2, "{calls:#?}");
        assert!(calls.iter().all(|call| call.status == ToolStatus::Completed), "{:?}", calls[0]);
        assert_eq!(calls[0].call.tool, last);
        let result = calls[1].call.result.as_ref().and_then(|content| content.place.clone());
        // Claude Code writes it to a file, and tells where.
        if harness == Harness::ClaudeCode {
            let Some(v1::content::Place::Text(text)) = result else { panic!("it is large") };
            assert!(text.contains("Output has been saved to"), "{text}");
            return Ok(());
        }
        let Some(v1::content::Place::Payload(part)) = result else { panic!("it stands in the event: {result:?}") };
        let text = session.payload("t-1", &part).await?;
        // Of a result Codex tells the first MiB or so, and the model reads less.
        assert!(text.len() > 1 << 20, "{}", text.len());
        Ok(())
    });
}

#[test]
fn a_list_beyond_what_codex_takes_is_told() {
    let setup = Setup::outer().only("Codex takes at most 2048 tools of a server");
    let setup = setup.needing(v1::Capability::McpHttpTools);
    let script = Script { more: (0..3000).map(|number| format!("tool-{number}")).collect(), ..Script::default() };
    scenario("mcp_too_many", &["R-PRE-5"], setup.beside(script), async |rig| {
        rig.provider.script(r#"[{"play": [{"text": {"chunks": ["Alone."]}}]}]"#)?;
        let session = rig.session().await?;
        let configuration = served_by([http_server("tickets", &rig.mcp().url())], rig.configuration(Vec::new()));
        let ready = rig.prepare(&session, configuration).await?;
        let seen = rig.turn_with(&session, &ready, "t-1", "go").await?;
        seen.completed()?;
        let notices = seen.notices("mcp_unavailable");
        assert!(notices.len() == 1 && notices[0].contains("2048"), "{notices:?}");
        Ok(())
    });
}

fn nobody_is_asked_by_a_server(harness: Harness) {
    // Later versions of the protocol, which Claude Code speaks, have no questions of this form.
    let script = Script { sessions: harness == Harness::ClaudeCode, ..Script::default() };
    scenario("mcp_asks", &["R-PLC-1"], setup(harness).beside(script), async |rig| {
        let configuration = served_by([http_server("tickets", &rig.mcp().url())], rig.configuration(Vec::new()));
        let session = rig.session().await?;
        rig.provider.script(&calling("tickets.ask", &json!({})))?;
        let ready = rig.prepare(&session, configuration).await?;
        let seen = rig.turn_with(&session, &ready, "t-1", "go").await?;
        seen.completed()?;
        let calls = seen.mcp_calls();
        assert_eq!(calls.len(), 1, "{calls:#?}");
        assert_eq!((calls[0].status, calls[0].call.error.as_str()), (ToolStatus::Completed, ""), "{calls:#?}");
        let said = calls[0].result().to_string();
        assert!(said.contains("decline"), "{said}");
        // Codex declines by itself where nobody is to be asked; Claude Code asks, and what it asked is told.
        let told = match harness {
            Harness::Codex => 0,
            Harness::ClaudeCode => 1,
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        };
        assert_eq!(seen.notices("request_declined").len(), told, "{:#?}", seen.events);
        Ok(())
    });
}
