//! What the Harness's own tools do on the workspace: commands with output and exit code, patches, and what the model
//! reads of them.

use conformance::rig::{Harness, Observed, Setup, scenario};
use conformance::{for_each_harness, for_every_harness};
use proto::v1;
use proto::v1::event::Kind;

for_every_harness!(a_command_that_fails_has_its_exit_code, commands_side_by_side_are_items_of_their_own);

// What it looks at is different, or missing, with agents behind ACP.
for_each_harness!(a_command_runs_in_the_workspace_and_its_output_is_whole);

fn a_command_runs_in_the_workspace_and_its_output_is_whole(harness: Harness) {
    scenario("tool_command", &["R-EVT-2", "R-CTL-5"], Setup::outer().of(harness), async |rig| {
        rig.provider.script(
            r#"[{"play": [{"shell": {"command": "pwd; for n in 1 2 3; do echo line $n; sleep 0.05; done; echo done > made.txt", "call_id": "sh1", "yield_ms": 30000}}]},
                {"play": [{"text": {"chunks": ["It ran."]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "run it").await?;
        seen.completed()?;
        let story = seen.story();
        let place = |name: &str| story.iter().position(|found| *found == name);
        assert!(place("tool_started") < place("tool_completed"), "{story:?}");
        assert!(place("tool_completed") < place("message_started"), "{story:?}");

        let directory = rig.workspace().to_str().unwrap_or_default();
        let output = format!("{directory}\nline 1\nline 2\nline 3\n");
        let [end] = &tools(&seen)[..] else { anyhow::bail!("not one tool: {seen:?}") };
        // Claude Code tells neither the code of a success nor the last line break.
        let (code, output) = match harness {
            Harness::Codex => (Some(0), output),
            Harness::ClaudeCode => (end.exit_code.filter(|code| *code == 0), output.trim_end().to_owned()),
            Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
        };
        assert_eq!((end.status(), end.exit_code), (v1::ToolStatus::Completed, code));
        assert_eq!(text(end.output.as_ref()), output);
        assert_eq!(end.duration.is_some(), harness == Harness::Codex);
        let command = command(end);
        assert!(text(command.command.as_ref()).contains("for n in 1 2 3"), "{command:?}");
        assert_eq!(command.directory, if harness == Harness::Codex { directory } else { "" });
        // The deltas have gaps, and what is there is true.
        for line in seen.kinds().filter_map(output_delta).flat_map(str::lines) {
            assert!(output.contains(line), "{line:?} is not in {output:?}");
        }
        assert_eq!(std::fs::read_to_string(rig.workspace().join("made.txt"))?, "done\n");
        let requests = rig.provider.model_requests();
        assert_eq!(requests.len(), 2);
        assert!(requests[1].body.contains("line 1\\nline 2\\nline 3"), "{}", requests[1].body);
        Ok(())
    });
}

fn a_command_that_fails_has_its_exit_code(harness: Harness) {
    scenario("tool_exit_code", &["R-EVT-2"], Setup::outer().of(harness), async |rig| {
        rig.provider.script(
            r#"[{"play": [{"shell": {"command": "echo to stderr >&2; exit 3", "yield_ms": 30000}}]}, {"play": [{"text": {"chunks": ["It failed."]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "run it").await?;
        seen.completed()?;
        let [end] = &tools(&seen)[..] else { anyhow::bail!("not one tool: {seen:?}") };
        assert_eq!(end.status(), v1::ToolStatus::Failed);
        // Claude Code has no field for the code.
        assert_eq!(end.exit_code, (harness != Harness::ClaudeCode).then_some(3));
        assert!(text(end.output.as_ref()).contains("to stderr"), "{end:?}");
        assert_eq!(seen.messages(), ["It failed."], "a failed command does not fail the Turn");
        Ok(())
    });
}

fn commands_side_by_side_are_items_of_their_own(harness: Harness) {
    scenario("tool_side_by_side", &["R-EVT-2"], Setup::outer().of(harness), async |rig| {
        rig.provider.script(
            r#"[{"play": [{"shell": {"command": "echo left", "yield_ms": 30000}}, {"shell": {"command": "echo right", "yield_ms": 30000}}]},
                {"play": [{"text": {"chunks": ["Both ran."]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "run them").await?;
        seen.completed()?;
        let mut outputs: Vec<_> = tools(&seen).into_iter().map(|end| text(end.output.as_ref()).trim_end()).collect();
        outputs.sort_unstable();
        assert_eq!(outputs, ["left", "right"]);
        Ok(())
    });
}

#[test]
fn a_patch_adds_changes_and_removes_files() {
    scenario("tool_patch", &["R-EVT-2"], Setup::outer().only("Claude Code has other tools for files"), async |rig| {
        let file = |name: &str| rig.workspace().join(name);
        std::fs::write(file("old.txt"), "one\ntwo\n")?;
        std::fs::write(file("gone.txt"), "bye\n")?;
        rig.provider.script(
            r#"[{"play": [{"patch": "*** Begin Patch\n*** Add File: new.txt\n+hello\n*** Update File: old.txt\n@@\n one\n-two\n+three\n*** Delete File: gone.txt\n*** End Patch"}]},
                {"play": [{"text": {"chunks": ["Patched."]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "patch it").await?;
        seen.completed()?;
        assert!(rig.provider.model_requests()[0].tools().contains(&"apply_patch".into()));
        let [end] = &tools(&seen)[..] else { anyhow::bail!("not one tool: {seen:?}") };
        assert_eq!((end.status(), end.exit_code), (v1::ToolStatus::Completed, None));
        let Some(v1::Tool { kind: Some(v1::tool::Kind::FileChange(change)) }) = &end.tool else {
            anyhow::bail!("no file change: {end:?}")
        };
        let mut edits: Vec<_> = change.edits.iter().map(|edit| (edit.path.as_str(), edit.kind())).collect();
        edits.sort_unstable();
        let path = |name: &str| file(name).to_string_lossy().into_owned();
        let (gone, new, old) = (path("gone.txt"), path("new.txt"), path("old.txt"));
        let want = [
            (gone.as_str(), v1::FileEditKind::Delete),
            (new.as_str(), v1::FileEditKind::Add),
            (old.as_str(), v1::FileEditKind::Update),
        ];
        assert_eq!(edits, want);
        let diff = change.edits.iter().find(|edit| edit.path == old).map(|edit| text(edit.diff.as_ref()));
        let diff = diff.unwrap_or_default();
        assert!(diff.contains("-two") && diff.contains("+three"), "{diff}");
        assert_eq!(std::fs::read_to_string(file("new.txt"))?, "hello\n");
        assert_eq!(std::fs::read_to_string(file("old.txt"))?, "one\nthree\n");
        assert!(!file("gone.txt").exists());
        Ok(())
    });
}

#[test]
fn what_a_command_left_in_the_background_is_stopped_at_the_end() {
    scenario(
        "tool_background",
        &["R-EVT-9", "R-CAN-2"],
        Setup::outer().only("Claude Code waits for its commands"),
        async |rig| {
            rig.provider.script(
                r#"[{"play": [{"shell": {"command": "setsid sleep 61 & sleep 62", "yield_ms": 300}}]},
                {"play": [{"text": {"chunks": ["It runs on."]}}]}]"#,
            )?;
            let session = rig.session().await?;
            let seen = rig.whole_turn(&session, "t-1", "leave it running").await?;
            seen.completed()?;
            let [end] = &tools(&seen)[..] else { anyhow::bail!("not one tool: {seen:?}") };
            assert_eq!((end.status(), end.exit_code), (v1::ToolStatus::Incomplete, None));
            let left: Vec<_> =
                rig.family()?.into_iter().filter(|process| process.command.contains("sleep 6")).collect();
            assert!(left.is_empty(), "they outlive their Turn: {left:#?}");
            rig.whole_turn(&session, "t-2", "go on").await?.completed()
        },
    );
}

#[test]
fn a_large_output_is_whole_at_the_end_or_said_to_be_elsewhere() {
    scenario(
        "tool_large_output",
        &["R-API-7", "R-EVT-2"],
        Setup::outer().only("Claude Code cuts the output of a command before it tells it"),
        async |rig| {
            rig.provider.script(
                r#"[{"play": [{"shell": {"command": "seq 1 120000", "yield_ms": 30000}}]}, {"play": [{"text": {"chunks": ["Long."]}}]}]"#,
            )?;
            let session = rig.session().await?;
            let seen = rig.whole_turn(&session, "t-1", "run it").await?;
            seen.completed()?;
            let [end] = &tools(&seen)[..] else { anyhow::bail!("not one tool: {seen:?}") };
            let size = (1..=120_000_u32).map(|n| n.to_string().len() as u64 + 1).sum::<u64>();
            match end.output.as_ref().and_then(|output| output.place.as_ref()) {
                Some(v1::content::Place::Text(text)) => assert_eq!(text.len() as u64, size),
                Some(v1::content::Place::Payload(payload)) => {
                    assert_eq!((payload.size, payload.sha256.len()), (size, 32));
                    assert!(!payload.payload_id.is_empty());
                }
                None => anyhow::bail!("no output"),
            }
            Ok(())
        },
    );
}

fn tools(seen: &Observed) -> Vec<&v1::ToolCompleted> {
    seen.kinds().filter_map(|kind| if let Kind::ToolCompleted(end) = kind { Some(end) } else { None }).collect()
}

fn command(end: &v1::ToolCompleted) -> &v1::Command {
    match &end.tool {
        Some(v1::Tool { kind: Some(v1::tool::Kind::Command(command)) }) => command,
        other => panic!("no command: {other:?}"),
    }
}

fn output_delta(kind: &Kind) -> Option<&str> {
    if let Kind::ToolOutput(output) = kind { Some(&output.text) } else { None }
}

fn text(content: Option<&v1::Content>) -> &str {
    match content.and_then(|content| content.place.as_ref()) {
        Some(v1::content::Place::Text(text)) => text,
        other => panic!("no text: {other:?}"),
    }
}
