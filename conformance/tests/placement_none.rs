//! Sessions without a workspace: no tool touches this machine (R-CTL-4). What the model is offered is read in the provider's requests, for every
//! kind of model that Codex's catalogue knows and for one that it does not.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;
use conformance::provider::Recorded;
use conformance::rig::{
    Daemon, GRAY_JPEG, GRAY_JPEG_URL, Harness, Observed, RED_PNG, RED_PNG_URL, Rig, Setup, codex, function, is_long,
    nowhere, scenario, text_result,
};
use conformance::{for_each_harness, for_every_harness};
use futures_util::future::try_join_all;
use proto::client::{Session, text_input};
use proto::v1::{self, CancelOutcome, Capability, ReleaseOutcome, event::Kind};
use serde_json::Value;

for_every_harness!(
    the_model_is_offered_what_is_declared_and_nothing_else,
    a_model_that_asks_for_native_tools_all_the_same_touches_nothing,
    a_resumed_session_is_offered_the_same_and_still_touches_nothing,
    functions_are_answered_side_by_side,
    text_and_usage_are_observed,
    a_cancelled_turn_settles_and_the_next_one_works,
    a_release_removes_the_home_with_the_directory
);

// Agents behind ACP take no images; what one of them is told of added input is in acp_turns.
for_each_harness!(an_input_is_added_to_a_turn_that_runs, images_come_in_with_the_input_and_with_a_result);

/// Models that are offered their tools one by one, and the hosted web search with them.
const SEARCHING: [&str; 3] = ["gpt-5.5", "openai/gpt-5.5", "private-model"];
/// Tools on offer one by one; scripts only, with tools under trial; scripts only, with the older agents; an entry that is found by the beginning of
/// the name; one that is found behind the name of a provider; none.
const MODELS: [&str; 6] =
    ["gpt-5.5", "gpt-6.2-sol", "gpt-5.6-luna", "gpt-5.6-sol-2026-01-01", "openai/gpt-5.5", "private-model"];
const SCHEMA: &str = r#"{"type":"object","properties":{"q":{"type":"string"}},"required":["q"]}"#;

/// Why what is offered is looked at for one Harness alone here.
const CATALOGUE: &str = "what Codex offers follows from its catalogue of models";

fn configuration(rig: &Rig, model: &str, functions: &[&str]) -> v1::ExecutionConfiguration {
    let functions = functions.iter().map(|name| function(name, SCHEMA)).collect();
    nowhere(v1::ExecutionConfiguration { model: model.into(), ..rig.configuration(functions) })
}

/// What the newest request for this model offers, without what runs at the provider, and what MiniMax Code adds for tasks that nothing can begin.
fn offered(rig: &Rig, model: &str) -> anyhow::Result<BTreeSet<String>> {
    let requests = rig.provider.model_requests();
    let newest = requests.iter().rev().find(|request| request.json()["model"] == model);
    let tools = newest.with_context(|| format!("{model} was not asked"))?.tools();
    let is_added = |tool: &str| rig.kind() == Harness::MinimaxCode && tool.starts_with("task_");
    Ok(tools.into_iter().filter(|tool| tool != "web_search" && !is_added(tool)).collect())
}

/// Models that are offered their tools in different ways.
fn some_models(harness: Harness) -> &'static [&'static str] {
    match harness {
        Harness::Codex => &MODELS,
        Harness::ClaudeCode => &["claude-sonnet-4-5", "claude-opus-5-5", "private-model"],
        Harness::MinimaxCode => &["MiniMax-M3", "private-model"],
        // All are private ones to it.
        Harness::Opencode => &["open-model"],
    }
}

/// The models above, and where there is time all of the bundled catalogue.
fn models(rig: &Rig) -> anyhow::Result<Vec<String>> {
    let mut models: Vec<_> = some_models(rig.kind()).iter().map(|&model| model.to_owned()).collect();
    if is_long() && rig.kind() == Harness::Codex {
        let home = rig.place().root().join("bundled");
        fs::create_dir_all(&home)?;
        let mut codex = Command::new(codex()?);
        let printed =
            codex.args(["debug", "models", "--bundled"]).env("CODEX_HOME", &home).env("HOME", &home).output()?;
        let bundled: Value = serde_json::from_slice(&printed.stdout).context("no catalogue")?;
        let bundled =
            bundled["models"].as_array().context("no models")?.iter().filter_map(|model| model["slug"].as_str());
        models.extend(bundled.filter(|slug| !MODELS.contains(slug)).map(str::to_owned));
        anyhow::ensure!(models.len() > MODELS.len(), "{models:?}");
    }
    Ok(models)
}

fn names(of: &[&str]) -> BTreeSet<String> {
    of.iter().map(|&name| name.to_owned()).collect()
}

/// The private directories that stand in the place of a workspace.
fn directories(rig: &Rig) -> anyhow::Result<Vec<PathBuf>> {
    let folders = fs::read_dir(rig.place().state().join("sessions"))?.flatten();
    Ok(folders.map(|folder| folder.path().join("home/empty")).filter(|empty| empty.is_dir()).collect())
}

fn nothing_is_there(rig: &Rig) -> anyhow::Result<()> {
    let directories = directories(rig)?;
    anyhow::ensure!(!directories.is_empty(), "no Session has its directory");
    for directory in directories.iter().map(PathBuf::as_path).chain([rig.workspace()]) {
        let entries: Vec<_> = fs::read_dir(directory)?.flatten().map(|entry| entry.path()).collect();
        anyhow::ensure!(entries.is_empty(), "{entries:?}");
    }
    Ok(())
}

fn the_model_is_offered_what_is_declared_and_nothing_else(harness: Harness) {
    let rules = ["R-CTL-4", "R-CTL-2", "R-FN-1", "R-PRE-6", "R-CAP-1"];
    scenario(
        "none_offers",
        &rules,
        Setup::outer().of(harness).needing_under(v1::Placement::None, Capability::EnvironmentNone),
        async |rig| {
            let declared = rig.declaration().await?;
            let declared = declared.none().collect::<Vec<_>>();
            assert!(declared.contains(&Capability::EnvironmentNone), "{declared:?}");
            assert!(!declared.contains(&Capability::LocalEnvironment), "{declared:?}");
            for name in ["AGENTS.md", "CLAUDE.md"] {
                fs::write(rig.workspace().join(name), "CANARY-OF-THE-WORKSPACE")?;
            }
            let models = models(rig)?;
            for functions in [&["lookup", "alpha"] as &[_], &[]] {
                // A Session each, and two models at a time: the machine may have room for no more.
                for models in models.chunks(2) {
                    let rig = &*rig;
                    try_join_all(models.iter().map(async |model| -> anyhow::Result<()> {
                        let session = rig.session_nowhere().await?;
                        let mut events =
                            rig.start_turn(&session, configuration(rig, model, functions), "t-1", "hello").await?;
                        let seen = Observed::default().to_the_end(&mut events).await?;
                        seen.completed().with_context(|| model.clone())?;
                        anyhow::ensure!(
                            offered(rig, model)? == names(functions),
                            "{model}: {:?}",
                            offered(rig, model)?
                        );
                        session.release(true).await?;
                        Ok(())
                    }))
                    .await?;
                }
            }
            let requests = rig.provider.model_requests();
            assert_eq!(requests.len(), 2 * models.len());
            for request in &requests {
                assert!(!request.body.contains("CANARY-OF-THE-WORKSPACE"), "{}", request.body);
                let workspace = rig.workspace().to_str().unwrap_or_default();
                assert!(!request.body.contains(workspace), "{}", request.body);
                // An absent control of the web search is native: Codex offers the hosted one where tools are offered one by one.
                let searches = request.tools().contains(&"web_search".into());
                let native = harness == Harness::Codex && SEARCHING.contains(&&*request.model());
                assert_eq!(searches, native, "{}", request.body);
            }
            Ok(())
        },
    );
}

/// Codex strikes this out of what its own catalogue says of one model, and not out of a catalogue that it is given, be it the same.
const STRUCK: &str = "- If you create a checklist or task list, you update item statuses incrementally as each item is completed rather \
     than marking every item done only at the end.\n";

/// The catalogue differs from the bundled one in the tools and in nothing else (R-CTL-4).
#[test]
fn everything_but_the_tools_is_as_on_a_workspace() {
    scenario("none_catalogue", &["R-CTL-4", "R-CTL-1"], Setup::outer().only(CATALOGUE), async |rig| {
        for model in ["gpt-5.5", "gpt-6.2-sol"] {
            let configuration = configuration(rig, model, &["lookup"]);
            let workspace =
                v1::ExecutionConfiguration { placement: v1::Placement::Workspace.into(), ..configuration.clone() };
            for (session, configuration) in
                [(rig.session_nowhere().await?, configuration), (rig.session().await?, workspace)]
            {
                let mut events = rig.start_turn(&session, configuration, "t-1", "hello").await?;
                Observed::default().to_the_end(&mut events).await?.completed()?;
            }
            let mut requests: Vec<_> = rig.provider.model_requests().iter().map(Recorded::json).collect();
            let (on_workspace, nowhere) =
                (requests.pop().context("no request")?, requests.pop().context("one request")?);
            let members = |of: &Value| {
                let mut members = of.as_object().cloned().unwrap_or_default();
                for of_its_own in ["client_metadata", "input", "prompt_cache_key", "tools"] {
                    members.remove(of_its_own);
                }
                members
            };
            assert_eq!(members(&nowhere), members(&on_workspace), "{model}");
            let native = instructions(&on_workspace).context("no instructions")?;
            let told = instructions(&nowhere).context("no instructions without a workspace")?;
            assert!(native.len() > 1000 && !native.contains(STRUCK), "{model}: {native}");
            assert_eq!(told.contains(STRUCK), model == "gpt-5.5");
            assert_eq!(told.replace(STRUCK, ""), native, "{model}");
        }
        Ok(())
    });
}

/// The model's own instructions: the first message in the input.
fn instructions(request: &Value) -> Option<String> {
    let first = request["input"].as_array()?.iter().find(|item| item["type"] == "message")?;
    Some(first["content"][0]["text"].as_str()?.to_owned())
}

/// A model that is known, one that is offered its tools otherwise, and one that nobody knows.
fn tried(harness: Harness) -> &'static [&'static str] {
    match harness {
        Harness::Codex => &["gpt-5.5", "gpt-6.2-sol", "private-model"],
        Harness::ClaudeCode | Harness::MinimaxCode | Harness::Opencode => some_models(harness),
    }
}

/// What a model asks for that was offered none of it.
const UNASKED: &str = r#"{"calls": [
        {"name": "exec_command", "call_id": "c1", "arguments": "{\"cmd\":\"touch WORK/exec.txt exec.txt\"}"},
        {"name": "shell_command", "call_id": "c2", "arguments": "{\"command\":\"touch WORK/shell.txt shell.txt\"}"},
        {"name": "view_image", "call_id": "c3", "arguments": "{\"path\":\"WORK/../secret.png\"}"},
        {"name": "write_stdin", "call_id": "c4", "arguments": "{\"session_id\":1,\"chars\":\"x\"}"}]},
    {"custom_call": {"name": "apply_patch", "call_id": "c5", "input": "*** Begin Patch\n*** Add File: WORK/patch.txt\n+x\n*** End Patch"}},
    {"custom_call": {"name": "exec", "call_id": "c6", "input": "await tools.exec_command({cmd: 'touch WORK/script.txt script.txt'})"}}"#;

/// The same for Claude Code.
const UNASKED_OF_CLAUDE: &str = r#"{"calls": [
        {"name": "Bash", "call_id": "c1", "arguments": "{\"command\":\"touch WORK/bash.txt bash.txt\"}"},
        {"name": "Write", "call_id": "c2", "arguments": "{\"file_path\":\"WORK/write.txt\",\"content\":\"x\"}"},
        {"name": "Read", "call_id": "c3", "arguments": "{\"file_path\":\"WORK/../secret.png\"}"},
        {"name": "WebFetch", "call_id": "c4", "arguments": "{\"url\":\"https://example.com/\",\"prompt\":\"x\"}"},
        {"name": "Agent", "call_id": "c5", "arguments": "{\"description\":\"x\",\"prompt\":\"touch x\"}"},
        {"name": "NotebookEdit", "call_id": "c6", "arguments": "{\"notebook_path\":\"WORK/x.ipynb\",\"new_source\":\"x\"}"}]}"#;

/// The same for agents behind ACP, which name most of theirs alike.
const UNASKED_OF_ACP: &str = r#"{"calls": [
        {"name": "bash", "call_id": "c1", "arguments": "{\"command\":\"touch WORK/bash.txt bash.txt\",\"description\":\"x\"}"},
        {"name": "write", "call_id": "c2", "arguments": "{\"filePath\":\"WORK/write.txt\",\"path\":\"WORK/write.txt\",\"content\":\"x\"}"},
        {"name": "read", "call_id": "c3", "arguments": "{\"filePath\":\"WORK/../secret.png\",\"path\":\"WORK/../secret.png\"}"},
        {"name": "FETCH", "call_id": "c4", "arguments": "{\"url\":\"https://example.com/\",\"format\":\"text\"}"},
        {"name": "task", "call_id": "c5", "arguments": "{\"description\":\"x\",\"prompt\":\"touch x\",\"subagent_type\":\"general\"}"},
        {"name": "edit", "call_id": "c6", "arguments": "{\"filePath\":\"WORK/edit.txt\",\"path\":\"WORK/edit.txt\",\"oldString\":\"\",\"newString\":\"x\"}"}]}"#;

/// The next Turn asks for all of it, and then says a word.
fn asks_for_everything(rig: &Rig) -> anyhow::Result<()> {
    let unasked = match rig.kind() {
        Harness::Codex => UNASKED.to_owned(),
        Harness::ClaudeCode => UNASKED_OF_CLAUDE.to_owned(),
        Harness::MinimaxCode => UNASKED_OF_ACP.replace("FETCH", "web_fetch"),
        Harness::Opencode => UNASKED_OF_ACP.replace("FETCH", "webfetch"),
    };
    let unasked = unasked.replace("WORK", rig.workspace().to_str().context("a path that is no text")?);
    let play = format!(r#"[{{"play": [{unasked}]}}, {{"play": [{{"text": {{"chunks": ["Nothing."]}}}}]}}]"#);
    rig.provider.script(&play)
}

/// No output of a tool that ran: each is a refusal of the Harness, which the model reads.
fn all_refused(rig: &Rig, seen: &Observed) -> anyhow::Result<()> {
    let newest = rig.provider.model_requests().pop().context("no request")?;
    for call in ["c1", "c2", "c3", "c4", "c5", "c6"] {
        let output = newest.output(call).with_context(|| format!("{call} has no output"))?.to_string();
        let refused = match rig.kind() {
            Harness::Codex => "unsupported",
            Harness::ClaudeCode => "No such tool available",
            Harness::MinimaxCode => "not found",
            Harness::Opencode => "unavailable tool",
        };
        anyhow::ensure!(output.contains(refused), "{call}: {output}");
    }
    let tools: Vec<_> =
        seen.kinds().filter(|kind| matches!(kind, Kind::ToolStarted(_) | Kind::ToolCompleted(_))).collect();
    // The others show the calls that they refused.
    let ran = |kind: &&&Kind| matches!(kind, Kind::ToolCompleted(end) if end.status() != v1::ToolStatus::Failed);
    match rig.kind() {
        Harness::Codex => anyhow::ensure!(tools.is_empty(), "{tools:?}"),
        Harness::ClaudeCode | Harness::MinimaxCode | Harness::Opencode => {
            anyhow::ensure!(tools.iter().find(ran).is_none(), "{tools:?}");
        }
    }
    nothing_is_there(rig)
}

fn a_model_that_asks_for_native_tools_all_the_same_touches_nothing(harness: Harness) {
    scenario(
        "none_unasked",
        &["R-CTL-4", "R-FN-11"],
        Setup::outer().of(harness).needing_under(v1::Placement::None, Capability::EnvironmentNone),
        async |rig| {
            for &model in tried(harness) {
                asks_for_everything(rig)?;
                let session = rig.session_nowhere().await?;
                let mut events =
                    rig.start_turn(&session, configuration(rig, model, &["lookup"]), "t-1", "hello").await?;
                let seen = Observed::default().to_the_end(&mut events).await?;
                seen.completed()?;
                all_refused(rig, &seen).with_context(|| model.to_owned())?;
                assert_eq!(seen.messages(), ["Nothing."]);
            }
            Ok(())
        },
    );
}

fn functions_are_answered_side_by_side(harness: Harness) {
    let rules = ["R-FN-2", "R-FN-3", "R-FN-5", "R-FN-6", "R-CTL-4"];
    scenario(
        "none_functions",
        &rules,
        Setup::outer().of(harness).needing_under(v1::Placement::None, v1::Capability::ParallelFunctionCalls),
        async |rig| {
            let models: &[&str] = match harness {
                Harness::Codex => &["gpt-5.5", "gpt-6.2-sol"],
                Harness::ClaudeCode => &["claude-sonnet-4-5", "claude-opus-5-5"],
                Harness::MinimaxCode | Harness::Opencode => some_models(harness),
            };
            for &model in models {
                rig.provider.script(
                    r#"[{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{\"q\":\"a\"}"},
                                         {"name": "alpha", "call_id": "c2", "arguments": "{\"q\":\"b\"}"}]}]},
                    {"play": [{"text": {"chunks": ["Both."]}}]}]"#,
                )?;
                let session = rig.session_nowhere().await?;
                let configuration = configuration(rig, model, &["lookup", "alpha"]);
                let mut events = rig.start_turn(&session, configuration, "t-1", "look").await?;
                let mut seen = Observed::default();
                let first = seen.call(&mut events).await?;
                let second = seen.call(&mut events).await?;
                assert_eq!(session.turn("t-1").await?.required_actions.len(), 2);
                for call in [&second, &first] {
                    session.submit(vec![text_result("t-1", &call.call_id, &format!("of {}", call.name))]).await?;
                    let applied =
                        |kind: &Kind| if let Kind::FunctionResultApplied(of) = kind { Some(of.clone()) } else { None };
                    let applied = seen.until(&mut events, applied).await?;
                    assert_eq!((&applied.call_id, applied.success), (&call.call_id, true));
                }
                let seen = seen.to_the_end(&mut events).await?;
                seen.completed()?;
                assert_eq!(seen.messages(), ["Both."]);
                let newest = rig.provider.model_requests().pop().context("no request")?;
                for (call, name) in [("c1", "lookup"), ("c2", "alpha")] {
                    assert_eq!(newest.output(call), Some(format!("of {name}").into()), "{model}");
                }
            }
            nothing_is_there(rig)
        },
    );
}

fn a_resumed_session_is_offered_the_same_and_still_touches_nothing(harness: Harness) {
    let rules = ["R-CTL-4", "R-PRE-4", "R-CAP-2", "R-FN-1"];
    scenario(
        "none_resume",
        &rules,
        Setup::outer().of(harness).needing_under(v1::Placement::None, Capability::SessionResume),
        async |rig| {
            let models = tried(harness);
            let mut sessions = Vec::new();
            for &model in models {
                let session = rig.session_nowhere().await?;
                let mut events =
                    rig.start_turn(&session, configuration(rig, model, &["lookup"]), "t-1", "hello").await?;
                let seen = Observed::default().to_the_end(&mut events).await?;
                seen.completed()?;
                sessions.push((model, session, seen.native_session()?));
            }
            rig.daemon.terminate().await?;
            rig.daemon = Daemon::start(rig.place()).await?;
            for (model, session, native) in sessions {
                let ready = rig.resume(&session, configuration(rig, model, &["lookup"]), &native).await?;
                assert!(!ready.reused && !ready.settings_changed, "{ready:?}");
                asks_for_everything(rig)?;
                let seen = rig.turn_with(&session, &ready, "t-2", "and again").await?;
                seen.completed()?;
                assert_eq!(seen.native_session()?, native);
                all_refused(rig, &seen).with_context(|| model.to_owned())?;
                assert_eq!(offered(rig, model)?, names(&["lookup"]), "{model}");
                let newest = rig.provider.model_requests().pop().context("no request")?;
                assert!(newest.body.contains("hello"), "{}", newest.body);
            }
            Ok(())
        },
    );
}

fn text_and_usage_are_observed(harness: Harness) {
    scenario(
        "none_text",
        &["R-EVT-2", "R-EVT-4", "R-CTL-4"],
        Setup::outer().of(harness).needing_under(v1::Placement::None, v1::Capability::EnvironmentNone),
        async |rig| {
            rig.provider.script(
                r#"[{"play": [{"text": {"chunks": ["one ", "two"]}},
                          {"complete": {"usage": {"input": 70, "cached": 30, "output": 12, "reasoning": 2}}}]}]"#,
            )?;
            let session = rig.session_nowhere().await?;
            let mut events = rig.start_turn(&session, configuration(rig, harness.model(), &[]), "t-1", "count").await?;
            let seen = Observed::default().to_the_end(&mut events).await?;
            seen.completed()?;
            assert_eq!((seen.messages(), seen.deltas().as_str()), (vec!["one two"], "one two"));
            if !rig.declaration().await?.none().any(|declared| declared == Capability::Usage) {
                assert_eq!(seen.end()?.usage, None);
                return nothing_is_there(rig);
            }
            let usage = seen.end()?.usage.context("no usage")?;
            let read =
                (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens, usage.reasoning_output_tokens);
            // Claude Code does not tell the tokens of reasoning apart.
            let reasoning = (harness == Harness::Codex).then_some(2);
            assert_eq!(read, (Some(70), Some(30), Some(12), reasoning));
            nothing_is_there(rig)
        },
    );
}

fn an_input_is_added_to_a_turn_that_runs(harness: Harness) {
    scenario(
        "none_steer",
        &["R-STE-1", "R-STE-2", "R-CTL-4"],
        Setup::outer().of(harness).needing_under(v1::Placement::None, Capability::Steering),
        async |rig| {
            let session = rig.session_nowhere().await?;
            let (mut events, mut seen) = match harness {
                Harness::Codex => rig.half_way(&session, configuration(rig, harness.model(), &[]), "t-1").await?,
                // Claude Code reads it behind the answer.
                Harness::ClaudeCode => {
                    rig.provider.script(r#"[{"play": [{"text": {"chunks": ["whole"]}}, {"gate": "go"}]}]"#)?;
                    let mut events =
                        rig.start_turn(&session, configuration(rig, harness.model(), &[]), "t-1", "think").await?;
                    let mut seen = Observed::default();
                    seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
                    (events, seen)
                }
                Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
            };
            rig.provider.script(r#"[{"match": "turn left", "play": [{"text": {"chunks": ["Left it is."]}}]}]"#)?;
            session.steer("t-1", "i-1", text_input("turn left")).await?;
            rig.provider.open_gate("go");
            let accepted = |kind: &Kind| if let Kind::InputAccepted(of) = kind { Some(of.clone()) } else { None };
            assert_eq!(seen.until(&mut events, accepted).await?.evidence(), v1::InputEvidence::Consumed);
            let seen = seen.to_the_end(&mut events).await?;
            seen.completed()?;
            assert_eq!(seen.messages().last(), Some(&"Left it is."));
            assert_eq!(offered(rig, harness.model())?, names(&[]));
            nothing_is_there(rig)
        },
    );
}

fn images_come_in_with_the_input_and_with_a_result(harness: Harness) {
    scenario(
        "none_images",
        &["R-STA-1", "R-FN-4", "R-CTL-4"],
        Setup::outer()
            .of(harness)
            .needing_under(v1::Placement::None, v1::Capability::FunctionResultImages)
            .needing_under(v1::Placement::None, v1::Capability::MessageImages),
        async |rig| {
            rig.provider.script(
                r#"[{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{\"q\":\"a\"}"}]}]},
                {"play": [{"text": {"chunks": ["Red, and gray."]}}]}]"#,
            )?;
            let session = rig.session_nowhere().await?;
            let ready = rig.prepare(&session, configuration(rig, harness.model(), &["lookup"])).await?;
            let image =
                |media_type: &str, data: &[u8]| v1::Image { media_type: media_type.into(), data: data.to_vec() };
            let red = v1::InputPart { part: Some(v1::input_part::Part::Image(image("image/png", RED_PNG))) };
            session.start(&ready, "t-1", [text_input("What is"), vec![red]].concat()).await?;
            let (mut events, mut seen) = (session.turn_events("t-1"), Observed::default());
            seen.call(&mut events).await?;
            let gray = v1::OutputPart { part: Some(v1::output_part::Part::Image(image("image/jpeg", GRAY_JPEG))) };
            let parts = v1::function_output::Value::Parts(v1::OutputParts { parts: vec![gray] });
            let output = Some(v1::FunctionOutput { value: Some(parts) });
            session.submit(vec![v1::FunctionResult { output, ..text_result("t-1", "c1", "") }]).await?;
            seen.to_the_end(&mut events).await?.completed()?;
            let newest = rig.provider.model_requests().pop().context("no request")?;
            assert_eq!(newest.newest_input(), ["What is", RED_PNG_URL]);
            assert!(
                newest.output("c1").is_some_and(|output| output.to_string().contains(GRAY_JPEG_URL)),
                "{}",
                newest.body
            );
            nothing_is_there(rig)
        },
    );
}

fn a_cancelled_turn_settles_and_the_next_one_works(harness: Harness) {
    scenario(
        "none_cancel",
        &["R-CAN-1", "R-CAN-3", "R-CTL-4"],
        Setup::outer().of(harness).needing_under(v1::Placement::None, v1::Capability::EnvironmentNone).patient(),
        async |rig| {
            rig.provider.script(
                r#"[{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{\"q\":\"a\"}"}]}]},
                {"play": [{"text": {"chunks": ["Here."]}}]}]"#,
            )?;
            let session = rig.session_nowhere().await?;
            let mut events =
                rig.start_turn(&session, configuration(rig, harness.model(), &["lookup"]), "t-1", "look").await?;
            let mut seen = Observed::default();
            seen.call(&mut events).await?;
            assert_eq!(session.cancel("t-1", None).await?.outcome(), CancelOutcome::Settled);
            let seen = seen.to_the_end(&mut events).await?;
            let end = seen.end()?;
            assert_eq!((end.status(), end.cause()), (v1::TurnStatus::Cancelled, v1::EndCause::Requested));
            let configuration = configuration(rig, harness.model(), &["lookup"]);
            let ready = rig.prepare_again(&session, configuration).await?;
            let next = rig.turn_with(&session, &ready, "t-2", "again").await?;
            next.completed()?;
            assert_eq!(next.messages(), ["Here."]);
            nothing_is_there(rig)
        },
    );
}

fn a_release_removes_the_home_with_the_directory(harness: Harness) {
    scenario(
        "none_release",
        &["R-ASG-4", "R-CAP-2", "R-CTL-4"],
        Setup::outer().of(harness).needing_under(v1::Placement::None, v1::Capability::HomeRemoval),
        async |rig| {
            let session: Session = rig.session_nowhere().await?;
            let mut events = rig.start_turn(&session, configuration(rig, harness.model(), &[]), "t-1", "hello").await?;
            Observed::default().to_the_end(&mut events).await?.completed()?;
            assert_eq!(directories(rig)?.len(), 1);
            let released = session.release(true).await?;
            assert_eq!((released.outcome(), released.home_removed), (ReleaseOutcome::Confirmed, true));
            assert_eq!(directories(rig)?, Vec::<PathBuf>::new());
            Ok(())
        },
    );
}
