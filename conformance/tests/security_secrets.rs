//! The model key is seen by the provider and by nobody else, and nothing of the daemon's environment reaches what the model runs
//! (R-SEC-2, R-SEC-6).

use std::path::Path;
use std::{fs, io};

use conformance::child::codex;
use conformance::child::fault::{Fault, Place};
use conformance::rig::{MODEL_KEY, Observed, Process, Setup, Stands, function, scenario, text_result};
use proto::v1::{self, content, event::Kind};

/// What was read, or nothing where it was removed since its folder was: a Harness at work has files that come and go.
fn unless_gone<T: Default>(read: io::Result<T>) -> io::Result<T> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        read => read,
    }
}

/// Files below a folder that hold these bytes.
fn holders(folder: &Path, needle: &[u8]) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in unless_gone(fs::read_dir(folder).map(Some))?.into_iter().flatten() {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            found.extend(holders(&path, needle)?);
        } else if kind.is_file() && unless_gone(fs::read(&path))?.windows(needle.len()).any(|window| window == needle) {
            found.push(path.display().to_string());
        }
    }
    Ok(found)
}

fn outputs(observed: &Observed) -> String {
    let text = |kind: &Kind| match kind {
        Kind::ToolCompleted(v1::ToolCompleted { output: Some(output), .. }) => match output.place.as_ref()? {
            content::Place::Text(text) => Some(text.clone()),
            content::Place::Payload(_) => None,
        },
        _ => None,
    };
    observed.kinds().filter_map(text).collect()
}

#[test]
fn the_model_key_is_nowhere_but_at_the_provider() {
    let rules = ["R-SEC-6", "R-SEC-2", "R-PRE-6", "R-EVT-5"];
    let setup = Setup::outer().only("Claude Code has the key in its environment; claude_key says where else it is not");
    scenario("key_canary", &rules, setup.with("log = \"debug\""), async |rig| {
        rig.provider.script(
            r#"[{"play": [{"shell": {"command": "env; tr '\\0' '\\n' < /proc/$PPID/environ; tr '\\0' ' ' < /proc/$PPID/cmdline; cat $CODEX_HOME/* 2>/dev/null; sleep 614", "yield_ms": 1000}}]},
                {"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]},
                {"play": [{"text": {"chunks": ["done"]}}]}]"#,
        )?;
        let session = rig.session().await?;
        let functions = vec![function("lookup", r#"{"type":"object"}"#)];
        let mut events = rig.start_turn(&session, rig.configuration(functions.clone()), "t-1", "look").await?;
        let mut seen = Observed::default();
        seen.call(&mut events).await?;
        // In the middle of everything: keeper, Harness, its helpers, and a command.
        rig.wait_for_process(|process| process.command == "sleep 614").await?;
        let family = rig.family()?;
        assert!(family.len() >= 3, "{family:#?}");
        let shown: Vec<_> = family.iter().filter(|process| process.shows(MODEL_KEY)).collect();
        assert!(shown.is_empty(), "the key is in argv or environ of {shown:#?}");
        assert_eq!(holders(rig.place().root(), MODEL_KEY.as_bytes())?, [] as [String; 0]);
        session.submit(vec![text_result("t-1", "c1", "42")]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert!(!format!("{:?}", seen.events).contains(MODEL_KEY));

        // A provider that repeats the key in its refusal.
        let refusal = format!(
            r#"[{{"play": [{{"http": {{"status": 401, "message": "{MODEL_KEY} is not a key"}}}}]}},
            {{"play": [{{"http": {{"status": 400, "body": "{MODEL_KEY}"}}}}]}},
            {{"play": [{{"failed": {{"code": "server_error", "message": "key {MODEL_KEY}"}}}}, "close"]}}]"#
        );
        rig.provider.script(&refusal.replace(r#", "close""#, ""))?;
        for turn in ["t-2", "t-3", "t-4"] {
            let mut events = rig.start_turn(&session, rig.configuration(functions.clone()), turn, "again").await?;
            let observed = Observed::default().to_the_end(&mut events).await?;
            let shown = format!("{:?} {:?}", observed.events, session.turn(turn).await?);
            assert!(!shown.contains(MODEL_KEY), "{turn}: {shown}");
        }
        assert!(!rig.daemon.log_text().contains(MODEL_KEY), "the key is in the logs");
        // What a provider says stands in Codex's own history, below its home; the bridge keeps nothing of it.
        let mut held = holders(rig.place().root(), MODEL_KEY.as_bytes())?;
        held.retain(|path| !Path::new(path).ancestors().any(|folder| folder.ends_with("home/codex")));
        assert_eq!(held, [] as [String; 0]);
        let used = rig.provider.model_requests();
        let bearer = format!("Bearer {MODEL_KEY}");
        assert!(used.iter().all(|request| request.header("authorization") == Some(&bearer)), "the provider has it");
        Ok(())
    });
}

/// Why one Harness is enough.
const CUT: &str = "the bridge cuts the key out, whoever repeats it";

#[test]
fn a_harness_that_repeats_the_key_is_cut() {
    let setup = Setup {
        stands: Stands::Faulty(Box::new(codex::healthy())),
        ..Setup::outer().bridge(CUT).with("log = \"debug\"")
    };
    scenario("key_repeated", &["R-SEC-6", "R-EVT-5"], setup, async |rig| {
        let child = rig.child.clone().ok_or_else(|| anyhow::anyhow!("no child"))?;
        // The child's own record of what it received holds the key; it is the test's and not the bridge's.
        let error = serde_json::json!({"code": -32600, "message": format!("bad token {MODEL_KEY}")});
        let refuses = conformance::script::child::Step::Error(serde_json::value::to_raw_value(&error)?);
        child.play(codex::with_steps(Place::AtThreadStart, &[refuses]))?;
        let session = rig.session().await?;
        let refused =
            rig.prepare(&session, rig.configuration(Vec::new())).await.err().map(|error| format!("{error:?}"));
        let refused = refused.unwrap_or_default();
        assert!(refused.contains("bad token") && !refused.contains(MODEL_KEY), "{refused}");
        child.play(codex::with_fault(Place::InMessage, Fault::ExitsWith1))?;
        let observed = rig.whole_turn(&session, "t-1", "hello").await?;
        assert!(!format!("{:?}", observed.events).contains(MODEL_KEY));
        assert!(!rig.daemon.log_text().contains(MODEL_KEY), "the key is in the logs");
        assert_eq!(holders(&rig.place().state(), MODEL_KEY.as_bytes())?, [] as [String; 0]);
        Ok(())
    });
}

#[test]
fn nothing_of_the_daemons_environment_reaches_what_the_model_runs() {
    let names = [
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "CODEX_API_KEY",
        "OPENAI_BASE_URL",
        "AWS_SECRET_ACCESS_KEY",
        "GITHUB_TOKEN",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "SSH_AUTH_SOCK",
        "LD_LIBRARY_PATH_CANARY",
        "NODE_OPTIONS_CANARY",
        "XDG_CONFIG_HOME",
        "XDG_RUNTIME_DIR",
        "USER",
        "LOGNAME",
        "SHELL",
        "EDITOR",
        "KUBECONFIG",
        "CANARY",
    ];
    let value = |name: &str| format!("/nonexistent/canary-of-{}", name.to_lowercase());
    let environment = names.iter().map(|name| ((*name).to_owned(), value(name))).collect();
    let setup = Setup { environment, ..Setup::outer() };
    let setup =
        setup.only("which variables there are is each Harness's own; claude_environment has those of Claude Code");
    scenario("environment_canary", &["R-SEC-2"], setup, async |rig| {
        rig.provider.script(
            r#"[{"play": [{"shell": {"command": "env; for p in $PPID $$; do tr '\\0' '\\n' < /proc/$p/environ; done", "yield_ms": 30000}}]},
                {"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]}]"#,
        )?;
        let session = rig.session().await?;
        let functions = vec![function("lookup", r#"{"type":"object"}"#)];
        let mut events = rig.start_turn(&session, rig.configuration(functions), "t-1", "look").await?;
        let mut seen = Observed::default();
        seen.call(&mut events).await?;
        let told = outputs(&seen);
        assert!(told.contains("PATH="), "{told}");
        assert!(told.contains("RUNTIME_BRIDGE_MARK="), "what the model runs is not marked: {told}");
        assert!(!told.contains("canary"), "{told}");
        // Nor any process on the way to it.
        let family: Vec<Process> = rig.family()?;
        for process in &family {
            assert!(!process.shows("canary"), "{process:#?}");
        }
        // The Harness itself has these and no others.
        let allowed = ["CODEX_HOME", "HOME", "LANG", "LC_ALL", "PATH", "RUNTIME_BRIDGE_MARK", "TMPDIR"];
        let harness = family.iter().find(|process| process.command.contains("app-server")).expect("no Harness");
        let mut variables: Vec<_> = harness.variables().collect();
        variables.sort_unstable();
        assert_eq!(variables, allowed);
        let home = harness.variable("HOME").unwrap_or_default();
        assert!(home.starts_with(&*rig.place().state().to_string_lossy()), "{home}");
        session.cancel("t-1", None).await?;
        Ok(())
    });
}
