//! What Claude Code writes, opens, shows and reads stays within its Session: private folders, an environment from nothing, secrets that stand in
//! no argument, event, log or file, and no configuration of anybody else (R-SEC-2, R-SEC-6, R-PLC-1).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use anyhow::Context;
use conformance::rig::{
    Harness, Isolation, MODEL_KEY, Observed, Process, RED_PNG, Rig, Setup, function, nowhere, refusal, scenario,
    text_result,
};
use proto::client::{Session, TurnEvents, text_input};
use proto::v1::{self, Reason};
use serde_json::{Value, json};

const SCHEMA: &str = r#"{"type":"object"}"#;

fn setup() -> Setup {
    Setup { harness: Harness::ClaudeCode, ..Setup::outer() }.only("these are folders and variables of Claude Code")
}

/// A Turn `t-1` in which a command has run and a call waits.
async fn in_a_call(
    rig: &Rig,
    configuration: v1::ExecutionConfiguration,
    command: &str,
) -> anyhow::Result<(Session, TurnEvents, Observed)> {
    let call = json!({"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]});
    let script = json!([{"play": [{"shell": {"command": command}}]}, {"play": [call]}, {"play": [{"text": {"chunks": ["Done."]}}]}]);
    rig.provider.script(&script.to_string())?;
    let session = rig.session().await?;
    let ready = rig.prepare(&session, configuration).await?;
    let image = v1::Image { media_type: "image/png".into(), data: RED_PNG.into() };
    let image = v1::InputPart { part: Some(v1::input_part::Part::Image(image)) };
    session.start(&ready, "t-1", [text_input("look at it"), vec![image]].concat()).await?;
    let (mut events, mut seen) = (session.turn_events("t-1"), Observed::default());
    seen.call(&mut events).await?;
    Ok((session, events, seen))
}

fn with_lookup(rig: &Rig) -> v1::ExecutionConfiguration {
    rig.configuration(vec![function("lookup", SCHEMA)])
}

/// What the descriptors of processes refer to.
fn open_files(of: &[Process]) -> BTreeSet<String> {
    let folders = of.iter().map(|process| format!("/proc/{}/fd", process.pid));
    // A process may end while it is looked at.
    let entries = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    entries.filter_map(|entry| Some(fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned())).collect()
}

/// The addresses of local sockets among these descriptors.
fn bound(open: &BTreeSet<String>) -> anyhow::Result<Vec<String>> {
    let table = fs::read_to_string("/proc/net/unix")?;
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours = rows.filter(|row| row.get(6).is_some_and(|inode| open.contains(&format!("socket:[{inode}]"))));
    Ok(ours.filter_map(|row| row.get(7).map(|address| (*address).to_owned())).collect())
}

/// The far ends of the IP sockets among these descriptors, in the form of the system's tables; what only listens or is not connected has port 0.
fn far_ends(open: &BTreeSet<String>) -> BTreeSet<String> {
    let tables = ["tcp", "tcp6", "udp", "udp6"].map(|table| fs::read_to_string(format!("/proc/net/{table}")));
    let tables: Vec<_> = tables.into_iter().flatten().collect();
    let rows = tables.iter().flat_map(|table| table.lines().skip(1)).map(|line| line.split_whitespace().collect());
    let ours = rows.filter(|row: &Vec<_>| row.get(9).is_some_and(|inode| open.contains(&format!("socket:[{inode}]"))));
    ours.filter_map(|row| row.get(2).map(|far| (*far).to_owned())).collect()
}

/// Paths below a folder whose name holds one of these, to some depth.
fn named(folder: &Path, words: &[String], depth: u32) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if words.iter().any(|word| name.contains(word)) {
            found.push(entry.path());
        }
        if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(named(&entry.path(), words, depth - 1));
        }
    }
    found
}

#[test]
fn all_that_is_written_lies_in_folders_of_the_session() {
    scenario("claude_folders", &["R-SEC-2", "R-PLC-1", "R-CAN-4"], setup(), async |rig| {
        let command = "echo made > made.txt; echo kept > \"$TMPDIR/kept.txt\"; echo home > ~/home.txt; pwd";
        let (session, mut events, seen) = in_a_call(rig, with_lookup(rig), command).await?;
        let harness = rig.harness()?;
        let state = rig.place().state().canonicalize()?;
        for name in ["HOME", "TMPDIR", "CLAUDE_CONFIG_DIR", "CLAUDE_CODE_TMPDIR"] {
            let folder = harness.variable(name).with_context(|| format!("{name} is not set"))?;
            assert!(Path::new(folder).starts_with(&state), "{name} is {folder}");
        }
        let family = rig.family()?;
        let open = open_files(&family);
        // Claude Code listens for nobody: neither for other sessions of the user nor for editors.
        assert_eq!(bound(&open)?, [] as [String; 0]);
        let elsewhere: Vec<_> = open.iter().filter(|path| is_elsewhere(path, rig, &harness)).collect();
        assert!(elsewhere.is_empty(), "open files outside of the Session: {elsewhere:?}");
        // What it would name in the folders that all share: its process, its conversation, its directory.
        let native = seen.native_session()?;
        let rig_name = rig.place().root().file_name().context("a rig without a name")?.to_string_lossy().into_owned();
        let words = [format!("{}.sock", harness.pid), native, rig_name];
        let shared = fs::read_dir(env::temp_dir())?.flatten().filter(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name.starts_with("claude") || name.starts_with("cc-")
        });
        let strewn: Vec<_> = shared.flat_map(|entry| named(&entry.path(), &words, 3)).collect();
        assert!(strewn.is_empty(), "{strewn:?}");
        session.submit(vec![text_result("t-1", "c1", "found")]).await?;
        seen.to_the_end(&mut events).await?.completed()?;
        assert_eq!(fs::read_dir(rig.place().home())?.count(), 0, "the home of the daemon's user was written to");
        let made: Vec<_> = fs::read_dir(rig.workspace())?.flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(made, ["made.txt"], "the workspace has what the model made and nothing else");
        Ok(())
    });
}

/// A file that is neither the Session's nor the program itself.
fn is_elsewhere(path: &str, rig: &Rig, harness: &Process) -> bool {
    let program = fs::read_link(format!("/proc/{}/exe", harness.pid)).unwrap_or_default();
    let system = ["/dev/", "/proc/", "/sys/", "/usr/", "/lib", "/etc/", "/memfd:", "socket:", "pipe:", "anon_inode:"];
    let inside = Path::new(path).starts_with(rig.place().root()) || Path::new(path) == program;
    !inside && !system.iter().any(|begin| path.starts_with(begin))
}

#[test]
fn the_environment_is_made_from_nothing() {
    let names = [
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_AUTH_TOKEN",
        "ANTHROPIC_BASE_URL",
        "ANTHROPIC_MODEL",
        "ANTHROPIC_CUSTOM_HEADERS",
        "CLAUDE_CODE_EXTRA_BODY",
        "CLAUDE_CONFIG_DIR",
        "CLAUDE_CODE_USE_BEDROCK",
        "AWS_SECRET_ACCESS_KEY",
        "GITHUB_TOKEN",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "SSH_AUTH_SOCK",
        "NODE_OPTIONS",
        "NODE_EXTRA_CA_CERTS",
        "XDG_CONFIG_HOME",
        "XDG_RUNTIME_DIR",
        "USER",
        "LOGNAME",
        "SHELL",
        "KUBECONFIG",
        "CANARY",
    ];
    let value = |name: &str| format!("/nonexistent/canary-of-{}", name.to_lowercase());
    let environment = names.iter().map(|name| ((*name).to_owned(), value(name))).collect();
    scenario("claude_environment", &["R-SEC-2"], Setup { environment, ..setup() }, async |rig| {
        let (session, mut events, seen) =
            in_a_call(rig, with_lookup(rig), "env; tr '\\0' '\\n' </proc/$PPID/environ").await?;
        let told = seen.tool_output()?;
        assert!(told.contains("RUNTIME_BRIDGE_MARK="), "what the model runs is not marked: {told}");
        assert!(!told.contains("canary-of"), "{told}");
        for process in rig.family()? {
            assert!(!process.shows("canary-of"), "{process:#?}");
        }
        // Claude Code has these and no others; no timer of its own is below 24 days (R-FN-8).
        let allowed = [
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_BASE_URL",
            "BUN_ENABLE_CRASH_REPORTING",
            "CLAUDE_AGENT_SDK_DISABLE_BUILTIN_AGENTS",
            "CLAUDE_CODE_DISABLE_AUTO_MEMORY",
            "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS",
            "CLAUDE_CODE_DISABLE_CRON",
            "CLAUDE_CODE_DISABLE_FILE_MENTIONS",
            "CLAUDE_CODE_DISABLE_LEGACY_MODEL_REMAP",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
            "CLAUDE_CODE_DISABLE_WORKFLOWS",
            "CLAUDE_CODE_MAX_MCP_DESCRIPTION_LENGTH",
            "CLAUDE_CODE_MAX_RETRIES",
            "CLAUDE_CODE_MCP_AUTO_BACKGROUND_MS",
            "CLAUDE_CODE_MCP_TOOL_IDLE_TIMEOUT",
            "CLAUDE_CODE_SDK_READS_SESSION_STATE",
            "CLAUDE_CODE_SKIP_MCP_DEBUG_LOG_FILES",
            "CLAUDE_CODE_TMPDIR",
            "CLAUDE_CONFIG_DIR",
            "DISABLE_AUTOUPDATER",
            "DISABLE_TELEMETRY",
            "ENABLE_TOOL_SEARCH",
            "HOME",
            "IS_SANDBOX",
            "LANG",
            "LC_ALL",
            "MCP_TOOL_TIMEOUT",
            "PATH",
            "RUNTIME_BRIDGE_MARK",
            "TMPDIR",
            "XDG_RUNTIME_DIR",
        ];
        let harness = rig.harness()?;
        let mut variables: Vec<_> = harness.variables().collect();
        variables.sort_unstable();
        assert_eq!(variables, allowed);
        let days = 24 * 24 * 60 * 60 * 1000;
        let longest: u64 = harness.variable("MCP_TOOL_TIMEOUT").context("a limit of its own")?.parse()?;
        assert!(longest >= days, "{longest}");
        assert_eq!(harness.variable("CLAUDE_CODE_MCP_AUTO_BACKGROUND_MS"), Some("0"), "a slow call is moved away");
        session.cancel("t-1", None).await?;
        seen.to_the_end(&mut events).await?;
        Ok(())
    });
}

/// A configuration all of whose texts are marked.
fn marked(rig: &Rig) -> v1::ExecutionConfiguration {
    let schema = r#"{"type":"object","properties":{"canary-of-parameter":{"type":"string"}}}"#;
    let lookup = v1::FunctionTool { description: "canary-of-description".into(), ..function("lookup", schema) };
    v1::ExecutionConfiguration {
        instructions: "canary-of-instructions".into(),
        harness_config: r#"{"system_prompt":"canary-of-prompt"}"#.into(),
        ..rig.configuration(vec![lookup])
    }
}

#[test]
fn no_text_is_an_argument() {
    scenario("claude_command_line", &["R-SEC-6", "R-PRE-6"], setup(), async |rig| {
        let (session, mut events, seen) = in_a_call(rig, marked(rig), "true").await?;
        let body = rig.provider.model_requests()[0].body.clone();
        for text in ["instructions", "prompt", "description", "parameter"] {
            assert!(body.contains(&format!("canary-of-{text}")), "the model does not read the {text}");
        }
        let family = rig.family()?;
        for process in &family {
            for text in ["canary-of", MODEL_KEY, "look at it"] {
                assert!(!process.command.contains(text), "{text} is an argument of {process:#?}");
            }
        }
        session.submit(vec![text_result("t-1", "c1", "42")]).await?;
        seen.to_the_end(&mut events).await?.completed()
    });
}

/// From its start to the end of a Turn with a command, a call and an image, looked at again and again.
#[test]
fn it_connects_to_nobody_but_its_provider() {
    scenario("claude_connections", &["R-SEC-2", "R-SEC-3"], setup(), async |rig| {
        let shown: &Rig = rig;
        let mut found = BTreeSet::new();
        let watched = async {
            let mut looks = tokio::time::interval(Duration::from_millis(20));
            // Looks that took too long are not made up for: the Harness needs the machine as well.
            looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                looks.tick().await;
                let family = shown.family()?;
                found.extend(far_ends(&open_files(&family)));
            }
        };
        let works = async {
            let (session, mut events, seen) = in_a_call(shown, with_lookup(shown), "echo hello").await?;
            session.submit(vec![text_result("t-1", "c1", "found")]).await?;
            seen.to_the_end(&mut events).await?.completed()?;
            let mut events = shown.start_turn(&session, with_lookup(shown), "t-2", "and again").await?;
            Observed::default().to_the_end(&mut events).await?.completed()
        };
        let watching: anyhow::Result<()> = tokio::select! {
            worked = works => worked,
            watched = watched => watched,
        };
        watching?;
        // The gateway, by which it has its provider; hexadecimal, the address in the machine's own order.
        let port: u16 = rig.gateway()?.port();
        let provider = format!("0100007F:{port:04X}");
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [provider]);
        Ok(())
    });
}

#[test]
fn without_a_key_it_is_said_what_to_give_and_nothing_stays() {
    scenario("claude_no_key", &["R-PRE-1", "R-PRE-6", "R-OBS-2"], setup().without_gateway(), async |rig| {
        let session = rig.session().await?;
        let refused = session.prepare(rig.configuration(Vec::new()), Vec::new()).await;
        refusal(refused, Reason::PreparationFailed).says("no key for its model provider").says("credential `model`");
        rig.only(&[]).await?;
        assert_eq!(rig.provider.model_requests().len(), 0);
        rig.whole_turn(&session, "t-1", "hello").await?.completed()
    });
}

/// Root is refused without the word for a sandbox. Who is not root sees what root is told.
const NO_SANDBOX: &str = r#"unset IS_SANDBOX
[ "$1" = --version ] || [ "$(id -u)" = 0 ] || {
    echo '--dangerously-skip-permissions cannot be used with root/sudo privileges for security reasons' >&2
    exit 1
}
exec "$REAL" "$@""#;

#[test]
fn a_refusal_to_work_as_root_is_told_with_what_to_do() {
    scenario("claude_root", &["R-PRE-1", "R-PLC-1", "R-OBS-2"], setup().behind(NO_SANDBOX), async |rig| {
        let session = rig.session().await?;
        let key = v1::Credential { name: "model".into(), value: MODEL_KEY.into() };
        let refused = session.prepare(rig.configuration(Vec::new()), vec![key]).await;
        let refused = refusal(refused, Reason::PreparationFailed);
        refused.says("refuses to work on a workspace as root").says("run the bridge as another user");
        rig.only(&[]).await?;
        // Nothing is allowed to everybody where no tool touches the machine, so root may do that.
        let session = rig.session_nowhere().await?;
        let ready = rig.prepare(&session, nowhere(rig.configuration(Vec::new()))).await?;
        rig.turn_with(&session, &ready, "t-1", "hello").await?.completed()
    });
}

/// Files of a project, and of a user, that Claude Code reads where it is let.
fn plant(folder: &Path) -> anyhow::Result<()> {
    let claude = folder.join(".claude");
    for below in ["agents", "commands", "skills/planted", "rules"] {
        fs::create_dir_all(claude.join(below))?;
    }
    let head = "---\nname: planted\ndescription: canary-of-project\n---\ncanary-of-project\n";
    for file in ["agents/planted.md", "commands/planted.md", "skills/planted/SKILL.md", "rules/planted.md", "CLAUDE.md"]
    {
        fs::write(claude.join(file), head)?;
    }
    for file in ["CLAUDE.md", "CLAUDE.local.md", "AGENTS.md"] {
        fs::write(folder.join(file), "canary-of-project\n")?;
    }
    let settings = json!({
        "env": {"PLANTED": "canary-of-project"}, "apiKeyHelper": "echo canary-of-project", "model": "claude-canary-of-project",
        "permissions": {"deny": ["Bash"]}, "outputStyle": "canary-of-project",
    });
    for file in ["settings.json", "settings.local.json"] {
        fs::write(claude.join(file), settings.to_string())?;
    }
    Ok(())
}

#[test]
fn nothing_that_a_project_or_a_user_says_is_read() {
    scenario("claude_project", &["R-PLC-1", "R-CTL-1", "R-SEC-2"], setup(), async |rig| {
        fs::create_dir_all(rig.workspace().join(".git"))?;
        plant(rig.workspace())?;
        plant(&rig.place().home())?;
        let (session, mut events, seen) = in_a_call(rig, with_lookup(rig), "env; echo over").await?;
        let told = seen.tool_output()?;
        assert!(told.contains("over") && !told.contains("canary-of-project"), "{told}");
        session.submit(vec![text_result("t-1", "c1", "found")]).await?;
        seen.to_the_end(&mut events).await?.completed()?;
        let requests = rig.provider.model_requests();
        assert!(requests.len() >= 3, "{}", requests.len());
        for request in requests {
            assert!(!request.body.contains("canary-of-project"), "{}", request.body);
            assert_eq!((request.key(), &*request.model()), (Some(MODEL_KEY), rig.kind().model()));
        }
        Ok(())
    });
}

/// Leaves out what keeps Claude Code from reading a project.
const READING: &str = r#"
for one in "$@"; do
    shift
    [ "$one" = --setting-sources= ] || set -- "$@" "$one"
done
exec "$REAL" "$@"
"#;

/// The planted files are such that Claude Code would act on them, so that nothing of it in the scenario above means something.
#[test]
fn without_the_bridges_arguments_it_would_be_read() {
    scenario("claude_project_read", &["R-PLC-1"], setup().behind(READING), async |rig| {
        plant(rig.workspace())?;
        // The settings forbid a tool that the bridge asks for.
        let session = rig.session().await?;
        let seen = rig.whole_turn(&session, "t-1", "hello").await?;
        let failure = seen.end()?.failure.clone().context("the settings were not read")?;
        assert!(failure.message.ends_with("missing: Bash"), "{failure:?}");
        // Without them the model is asked, and reads the rest.
        for file in ["settings.json", "settings.local.json"] {
            fs::remove_file(rig.workspace().join(".claude").join(file))?;
        }
        rig.provider.reset();
        let session = rig.session().await?;
        rig.whole_turn(&session, "t-1", "hello").await?.completed()?;
        let body = &rig.provider.model_requests()[0].body;
        assert!(body.contains("canary-of-project"), "{body}");
        Ok(())
    });
}

#[test]
fn without_an_isolation_around_it_there_is_no_workspace() {
    let setup = Setup { isolation: Isolation::Native, ..setup() };
    scenario("claude_isolation_native", &["R-PLC-1", "R-CAP-1", "R-PRE-1"], setup, async |rig| {
        let declared = rig.declaration().await?;
        assert!(declared.available && declared.workspace.is_empty() && !declared.none.is_empty(), "{declared:?}");
        assert_eq!(declared.isolation, "native");
        let session = rig.session().await?;
        let configuration = rig.configuration(Vec::new());
        let refused = session.prepare(configuration.clone(), Vec::new()).await;
        let refused = refusal(refused, Reason::UnsupportedConfiguration).at("configuration.placement");
        refused.says("no sandbox of its own").says("isolation");
        assert_eq!(rig.harnesses()?, []);
        // Where no tool touches the machine, none is needed; that the daemon is root's, where it is, changes nothing.
        let session = rig.session_nowhere().await?;
        let ready = rig.prepare(&session, nowhere(configuration)).await?;
        let harness = rig.harness()?;
        assert!(!harness.command.contains("bypassPermissions") && harness.variable("IS_SANDBOX").is_none());
        rig.turn_with(&session, &ready, "t-1", "hello").await?.completed()?;
        let offered: Value = rig.provider.model_requests()[0].tools().into();
        assert_eq!(offered, json!([]));
        Ok(())
    });
}
