//! Items beyond messages and commands: searches of the web that the provider makes, and what Codex does by itself. They
//! stand in their order, and usage stays that of the Turn.

use anyhow::Context;
use conformance::rig::{RED_PNG, Setup, scenario};
use proto::v1::event::Kind;
use proto::v1::{self, ToolStatus, tool::Kind as Tool, web_search::Action};
use serde_json::json;

/// Why they are looked at for one Harness alone.
const ITEMS: &str = "searches and other items of the provider are Codex's; what Claude Code does is a tool";

#[test]
fn searches_of_the_web_are_items_with_their_action() {
    scenario("web_search", &["R-EVT-2", "R-CTL-4"], Setup::outer().only(ITEMS), async |rig| {
        let search = |id: &str, action: &str| {
            format!(r#"{{"item": {{"type": "web_search_call", "id": "{id}", "status": "completed"{action}}}}}"#)
        };
        let play = [
            search("ws_1", r#", "action": {"type": "search", "query": "rust", "queries": ["rust", "ferris"]}"#),
            search("ws_2", r#", "action": {"type": "open_page", "url": "https://page.example/a"}"#),
            r#"{"text": {"chunks": ["Looking."], "phase": "commentary"}}"#.to_owned(),
            search(
                "ws_3",
                r#", "action": {"type": "find_in_page", "url": "https://page.example/a", "pattern": "crab"}"#,
            ),
            search("ws_4", r#", "action": {"type": "teleport"}"#),
            search("ws_5", r#", "action": {"type": "search"}"#),
            search("ws_6", ""),
            r#"{"text": {"chunks": ["Found."]}}"#.to_owned(),
        ];
        rig.provider.script(&format!(r#"[{{"play": [{}]}}]"#, play.join(",")))?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "search").await?;
        seen.completed()?;
        let tool = ["tool_started", "tool_completed"];
        let message = ["message_started", "message_delta", "message_completed"];
        let story = seen.story();
        let items: Vec<_> =
            story.iter().copied().filter(|name| name.starts_with("tool_") || name.starts_with("message_")).collect();
        assert_eq!(items, [&tool[..], &tool, &message, &tool, &tool, &tool, &tool, &message].concat());

        let ends: Vec<_> = seen.kinds().filter_map(completed).collect();
        let other = || Some(Action::Other(v1::WebSearchOther { name: "other".into() }));
        let queries = |all: &[&str]| {
            Some(Action::Search(v1::WebSearchQueries { queries: all.iter().map(|one| content(one)).collect() }))
        };
        let url = || Some(content("https://page.example/a"));
        let pattern = Some(content("crab"));
        let want = [
            ("ws_1", "rust", queries(&["rust", "ferris"])),
            ("ws_2", "https://page.example/a", Some(Action::OpenPage(v1::WebSearchPage { url: url() }))),
            (
                "ws_3",
                "'crab' in https://page.example/a",
                Some(Action::FindInPage(v1::WebSearchFind { url: url(), pattern })),
            ),
            ("ws_4", "", other()),
            ("ws_5", "", queries(&[])),
            ("ws_6", "", other()),
        ];
        assert_eq!(ends.len(), want.len());
        for (end, (id, query, action)) in ends.iter().zip(want) {
            assert_eq!((end.item_id.as_str(), end.status(), end.output.as_ref()), (id, ToolStatus::Completed, None));
            let search = search_of(end)?;
            assert_eq!((search.query.as_ref(), &search.action), (Some(&content(query)), &action), "{id}");
        }
        // Codex offers it by itself.
        let offered = rig.provider.model_requests()[0].json()["tools"].to_string();
        assert!(offered.contains(r#""type":"web_search""#), "{offered}");
        Ok(())
    });
}

#[test]
fn a_large_search_is_read_apart() {
    scenario("web_search_large", &["R-EVT-2", "R-API-7"], Setup::outer().only(ITEMS), async |rig| {
        // One of them has room in the event, as the search's own text; the others have not.
        let queries = ["a".repeat(600 << 10), "b".repeat(600 << 10)];
        let action = json!({"type": "search", "query": queries[0], "queries": queries});
        let item = json!({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": action});
        rig.provider.script(&json!([{"play": [{"item": item}, {"text": {"chunks": ["Found."]}}]}]).to_string())?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "search").await?;
        seen.completed()?;
        let end = seen.kinds().find_map(completed).context("no search")?;
        let Some(Action::Search(search)) = &search_of(end)?.action else { anyhow::bail!("no action: {end:?}") };
        assert_eq!(search.queries.len(), 2);
        for (told, query) in search.queries.iter().zip(queries) {
            let Some(v1::content::Place::Payload(payload)) = &told.place else { anyhow::bail!("no reference") };
            assert_eq!(payload.size, query.len() as u64);
            assert!(session.payload("t-1", payload).await? == query.into_bytes(), "the payload is not the query");
        }
        Ok(())
    });
}

#[test]
fn a_search_whose_answer_breaks_off_is_over() {
    scenario("web_search_breaks", &["R-EVT-2", "R-EVT-10"], Setup::outer().only(ITEMS), async |rig| {
        let begun = r#"{"event": {"data": "{\"type\":\"response.output_item.added\",\"output_index\":0,\"item\":{\"type\":\"web_search_call\",\"id\":\"ws_1\",\"status\":\"in_progress\"}}"}}"#;
        rig.provider.script(&format!(
            r#"[{{"play": [{begun}, "drop"]}}, {{"play": [{{"text": {{"chunks": ["Done."]}}}}]}}]"#
        ))?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "search").await?;
        seen.completed()?;
        let story = seen.story();
        assert_eq!(story[..4], ["turn_started", "tool_started", "tool_completed", "provider_retry"], "{story:?}");
        let ends: Vec<_> = seen.kinds().filter_map(completed).map(v1::ToolCompleted::status).collect();
        assert_eq!((ends, seen.messages()), (vec![ToolStatus::Incomplete], vec!["Done."]));
        Ok(())
    });
}

#[test]
fn what_codex_does_by_itself_stands_in_its_place() {
    scenario("other_items", &["R-EVT-2", "R-EVT-4"], Setup::outer().only(ITEMS), async |rig| {
        std::fs::write(rig.workspace().join("picture.png"), RED_PNG)?;
        let usage = |input: u64| {
            format!(r#"{{"complete": {{"usage": {{"input": {input}, "cached": 0, "output": 3, "reasoning": 0}}}}}}"#)
        };
        let text = |said: &str| format!(r#"{{"text": {{"chunks": ["{said}"]}}}}"#);
        let look =
            r#"{"calls": [{"name": "view_image", "call_id": "look", "arguments": "{\"path\":\"picture.png\"}"}]}"#;
        // The first answer fills the window of the model, so that the next Turn begins with a compaction.
        let steps = [
            format!(r#"{{"play": [{}, {}]}}"#, text("A long story."), usage(250_000)),
            format!(r#"{{"play": [{}, {}]}}"#, text("In short."), usage(100)),
            format!(r#"{{"play": [{look}, {}]}}"#, usage(20)),
            format!(r#"{{"play": [{}, {}]}}"#, text("It is red."), usage(30)),
        ];
        rig.provider.script(&format!("[{}]", steps.join(",")))?;
        let session = rig.session().await?;
        rig.whole_turn(&session, "t-1", "tell").await?.completed()?;
        let seen = rig.whole_turn(&session, "t-2", "look").await?;
        seen.completed()?;
        let items: Vec<_> = seen.kinds().filter_map(item).collect();
        assert_eq!(
            items,
            ["contextCompaction", "contextCompaction ended", "imageView", "imageView ended", "message"],
            "{:?}",
            seen.story()
        );
        // What the compaction took is of this Turn, and the story before is not.
        let total = seen.end()?.usage.and_then(|usage| usage.total_tokens);
        assert_eq!(total, Some(100 + 3 + 20 + 3 + 30 + 3));
        assert_eq!(seen.end()?.usage.and_then(|usage| usage.input_tokens), Some(150));
        assert_eq!(rig.provider.model_requests().len(), 4);
        Ok(())
    });
}

fn content(text: &str) -> v1::Content {
    v1::Content { place: Some(v1::content::Place::Text(text.into())) }
}

fn search_of(end: &v1::ToolCompleted) -> anyhow::Result<&v1::WebSearch> {
    match end.tool.as_ref().and_then(|tool| tool.kind.as_ref()) {
        Some(Tool::WebSearch(search)) => Ok(search),
        other => anyhow::bail!("no search: {other:?}"),
    }
}

fn completed(kind: &Kind) -> Option<&v1::ToolCompleted> {
    if let Kind::ToolCompleted(end) = kind { Some(end) } else { None }
}

fn item(kind: &Kind) -> Option<String> {
    let named = |tool: Option<&v1::Tool>| match tool.and_then(|tool| tool.kind.as_ref()) {
        Some(Tool::Other(other)) => other.name.clone(),
        other => format!("{other:?}"),
    };
    match kind {
        Kind::ToolStarted(tool) => Some(named(tool.tool.as_ref())),
        Kind::ToolCompleted(tool) => Some(format!("{} ended", named(tool.tool.as_ref()))),
        Kind::MessageStarted(_) => Some("message".into()),
        _ => None,
    }
}
