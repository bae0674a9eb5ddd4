//! The model key and what stands in the daemon's environment, looked for everywhere while real Sessions run, fail, are resumed and are
//! released: in command lines and environments every 5 ms, in files, logs, events, answers, refusals, and at the provider (R-SEC-6).

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use conformance::for_every_harness;
use conformance::rig::{
    Canaries, Daemon, Find, Harness, Hidden, Observed, Rig, Scan, Setup, Watch, Watched, function, scenario,
    text_result,
};
use proto::client::{Error, Session, text_input};
use proto::v1::{self, ModelProvider, execution_configuration::Provider};
use serde_json::json;

for_every_harness!(no_secret_is_anywhere_but_where_it_belongs, without_the_gateway_the_search_finds_the_key);

/// What the model's key is called.
const MODEL: &str = "the model key";

/// Variables of the daemon, some of which look like keys, and some of which programs act on.
const VARIABLES: [&str; 20] = [
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "CODEX_API_KEY",
    "OPENAI_BASE_URL",
    "AWS_SECRET_ACCESS_KEY",
    "GITHUB_TOKEN",
    "NPM_TOKEN",
    "DATABASE_URL",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "SSH_AUTH_SOCK",
    "NODE_OPTIONS",
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
    "USER",
    "KUBECONFIG",
    "EDITOR",
    "CANARY",
];

/// Keeps what the bridge writes to a process of the Harness in a file of the rig, where it is searched like all others.
const LISTENING: &str = r#"case "$*" in
*app-server*|*stream-json*|acp*) tee -a "$0.told" | "$REAL" "$@" ;;
*) exec "$REAL" "$@" ;;
esac"#;

const TOLD: &str = "before.told";

fn canaries() -> Canaries {
    Canaries::new(&[&[MODEL], &VARIABLES[..]].concat())
}

fn setup(harness: Harness, canaries: &Canaries) -> Setup {
    let environment = VARIABLES.iter().map(|name| ((*name).to_owned(), canaries.value(name))).collect();
    let needed = v1::Capability::SessionResume;
    Setup { environment, ..Setup::outer() }.of(harness).with("log = \"debug\"").behind(LISTENING).needing(needed)
}

/// A run and everything that was looked at.
struct Campaign {
    canaries: Canaries,
    scan: Scan,
    /// What of it was in files behind the release.
    after: Scan,
    watched: Watched,
    /// What the model's command said of the processes above it and of what it can read.
    tool: String,
    /// The keys that the provider got, one for each request for an answer of the model.
    keys: Vec<Option<String>>,
}

impl Campaign {
    /// One Session from its first Turn to its release; where it goes on, with another daemon and another process of the Harness in between.
    async fn run(rig: &mut Rig, canaries: Canaries, goes_on: bool) -> anyhow::Result<Self> {
        let mut run = Run { scan: Scan::new(canaries.clone()), keys: Vec::new(), canaries };
        let watch = Watch::start(rig.place(), &run.canaries);
        let session = rig.session().await?;
        let tool = run.tools_and_a_call(rig, &session).await?;
        run.refusals_of_the_provider(rig, &session).await?;
        if goes_on {
            run.resume(rig, &session).await?;
        }
        run.refused_calls(rig, &session).await?;
        run.answers(rig, &session).await?;
        // While everything still lies there, and when the Session is gone with its home.
        run.scan.files(rig.place().root())?;
        let released = session.release(true).await?;
        anyhow::ensure!(released.home_removed, "{released:?}");
        run.scan.look(Hidden::Answer, "the answer to a release", &format!("{released:?}"));
        let mut after = Scan::new(run.canaries.clone());
        after.files(rig.place().root())?;
        after.files(rig.place().socket().parent().context("a socket without a folder")?)?;
        run.scan.merge(&after);
        for line in rig.daemon.log_text().lines() {
            run.scan.look(Hidden::Log, "the daemon's log", line);
        }
        let watched = watch.stop().await?;
        run.scan.merge(&watched.scan);
        let Run { canaries, scan, keys } = run;
        Ok(Self { canaries, scan, after, watched, tool, keys })
    }

    /// What was found, without what fits.
    fn without(&self, known: impl Fn(&Find) -> bool) -> Vec<&Find> {
        self.scan.found().filter(|find| !known(find)).collect()
    }

    #[expect(clippy::print_stdout, reason = "the report is what this test is run for")]
    fn report(&self, title: &str, known: impl Fn(&Find) -> bool) {
        let count = |kind| self.scan.looked(kind);
        println!("{title}: the model key and {} variables of the daemon's environment", VARIABLES.len());
        let Watched { processes, rounds, took, .. } = &self.watched;
        println!("  looked at {processes} processes in {rounds} rounds, {:.1} s", took.as_secs_f32());
        for (what, kind) in [
            ("command lines", Hidden::Argv),
            ("environments", Hidden::Environ),
            ("files", Hidden::File),
            ("lines of the daemon's log", Hidden::Log),
            ("events", Hidden::Event),
            ("other answers to Core", Hidden::Answer),
            ("refusals", Hidden::Refusal),
            ("requests at the provider, without the header of the key", Hidden::Request),
        ] {
            println!("  {:>7} {what}", count(kind));
        }
        println!("  found where no secret may be: {}", self.without(&known).len());
        let mut places: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for find in self.scan.found().filter(|find| known(find)) {
            let folders: Vec<_> = find.place.split('/').collect();
            let rig = folders.iter().position(|folder| folder.starts_with("rig-"));
            let place = folders[rig.map_or(0, |rig| rig + 1)..].join("/");
            places.entry((find.kind, place)).or_default().insert(&*find.secret);
        }
        println!("  known, at the provider: the key in the header of {} requests", self.keys.len());
        for ((kind, place), secrets) in places {
            let secrets = if secrets.len() > 3 { format!("{} secrets", secrets.len()) } else { format!("{secrets:?}") };
            println!("  known, {kind:?}: {place}: {secrets}");
        }
    }
}

/// A campaign under way.
struct Run {
    canaries: Canaries,
    scan: Scan,
    keys: Vec<Option<String>>,
}

impl Run {
    fn key(&self) -> v1::Credential {
        v1::Credential { name: "model".into(), value: self.canaries.value(MODEL) }
    }

    fn configuration(rig: &Rig) -> v1::ExecutionConfiguration {
        rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)])
    }

    /// What the model runs: it shows its environment, counts what the processes above it show, up to the daemon, what all processes of the
    /// machine show of the key, and what it can read in its folders. `command` passes by what Claude Code puts in the place of such programs.
    fn command(&self) -> String {
        let (any, model) = (self.canaries.pattern(), self.canaries.pattern_of(MODEL));
        format!(
            r#"env; p=$$; while [ "$p" -gt 1 ]; do name=$(cat /proc/$p/comm); for f in environ cmdline; do
echo "above $name $f: $(tr '\0' '\n' </proc/$p/$f | command grep -ac '{any}') of which the key: $(tr '\0' '\n' </proc/$p/$f | command grep -ac '{model}')"; done
[ "$name" = runtime-bridge ] && break; p=$(sed -n 's/^PPid:[[:space:]]*//p' /proc/$p/status); done
echo "all: $(cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' | command grep -ac '{model}')"
echo "listed: $(command find "$HOME" "$TMPDIR" . 2>/dev/null | wc -l)"
echo "files: $(command grep -arl '{any}' "$HOME" "$TMPDIR" . "$CODEX_HOME" "$CLAUDE_CONFIG_DIR" 2>/dev/null | wc -l)"; echo over"#
        )
    }

    /// Adds the events of a Turn and how it stands.
    async fn turn(&mut self, session: &Session, turn_id: &str, seen: &Observed) -> anyhow::Result<()> {
        for event in &seen.events {
            let kind = event.kind.as_ref().map_or("", conformance::rig::name);
            self.scan.look(Hidden::Event, kind, &format!("{event:?}"));
        }
        let turn = session.turn(turn_id).await?;
        self.scan.look(Hidden::Answer, "a Turn", &format!("{turn:?}"));
        Ok(())
    }

    /// Looks at what the provider got, and lets it forget that and its script.
    fn provider(&mut self, rig: &Rig) {
        for request in rig.provider.requests() {
            let is_key = |name: &str| match rig.kind() {
                Harness::Codex | Harness::Opencode => name == "authorization",
                Harness::ClaudeCode | Harness::MinimaxCode => name == "x-api-key",
            };
            let (keys, headers): (Vec<_>, Vec<_>) = request.headers.iter().partition(|(name, _)| is_key(name));
            let rest = format!("{} {} {headers:?} {}", request.method, request.path, request.body);
            self.scan.look(Hidden::Request, "a request at the provider", &rest);
            if request.asks_the_model() {
                self.keys.push(keys.first().map(|(_, value)| value.trim_start_matches("Bearer ").to_owned()));
            }
        }
        rig.provider.reset();
    }

    async fn tools_and_a_call(&mut self, rig: &Rig, session: &Session) -> anyhow::Result<String> {
        let steps = json!([
            {"play": [{"shell": {"command": self.command(), "yield_ms": 30000}}]},
            {"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]},
            {"play": [{"text": {"chunks": ["Umbra."]}}]},
        ]);
        rig.provider.script(&steps.to_string())?;
        let ready = session.prepare(Self::configuration(rig), vec![self.key()]).await?;
        session.start(&ready, "t-1", text_input("look around")).await?;
        let (mut events, mut seen) = (session.turn_events("t-1"), Observed::default());
        let call = seen.call(&mut events).await?;
        session.submit(vec![text_result("t-1", &call.call_id, "found")]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        rig.wait_for_history("Umbra.").await?;
        self.turn(session, "t-1", &seen).await?;
        self.provider(rig);
        seen.tool_output()
    }

    /// A provider that repeats the key where it refuses: at first, so that the Harness asks again, and for good.
    async fn refusals_of_the_provider(&mut self, rig: &Rig, session: &Session) -> anyhow::Result<()> {
        let key = self.canaries.value(MODEL);
        let message =
            json!({"times": 1, "play": [{"http": {"status": 500, "message": format!("{key} is not a key")}}]});
        let body = json!({"always": true, "play": [{"http": {"status": 400, "body": key}}]});
        // The double asks once.
        let again = match rig.kind() {
            Harness::MinimaxCode => v1::TurnStatus::Failed,
            Harness::Codex | Harness::ClaudeCode | Harness::Opencode => v1::TurnStatus::Completed,
        };
        for (turn, refusal, end) in [("t-2", message, again), ("t-3", body, v1::TurnStatus::Failed)] {
            rig.provider.script(&json!([refusal]).to_string())?;
            let ready = session.prepare(Self::configuration(rig), vec![self.key()]).await?;
            let seen = rig.turn_with(session, &ready, turn, "and now").await?;
            anyhow::ensure!(seen.end()?.status() == end, "{turn} ended so: {:?}", seen.end());
            self.turn(session, turn, &seen).await?;
            self.provider(rig);
        }
        Ok(())
    }

    /// The same history with another daemon.
    async fn resume(&mut self, rig: &mut Rig, session: &Session) -> anyhow::Result<()> {
        let native = session.turn("t-1").await?.native.unwrap_or_default().session_id;
        let family = rig.family()?;
        rig.daemon.terminate().await?;
        rig.all_gone(&family).await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        let steps = json!([{"play": [{"shell": {"command": "env; echo over", "yield_ms": 30000}}]}, {"play": [{"text": {"chunks": ["Done."]}}]}]);
        rig.provider.script(&steps.to_string())?;
        let ready = session.resume(Self::configuration(rig), vec![self.key()], &native).await?;
        let seen = rig.turn_with(session, &ready, "t-4", "once more").await?;
        seen.completed()?;
        self.turn(session, "t-4", &seen).await?;
        self.provider(rig);
        Ok(())
    }

    /// Calls that carry the key and are refused.
    async fn refused_calls(&mut self, rig: &Rig, session: &Session) -> anyhow::Result<()> {
        let key = self.canaries.value(MODEL);
        let named = |name: &str, value: String| v1::Credential { name: name.into(), value };
        let configuration = Self::configuration(rig);
        let inside = ModelProvider {
            base_url: "http://10.0.0.1/v1".into(),
            protocol: rig.kind().model_protocol().into(),
            token_limits: rig.kind().token_limits(),
        };
        let with_key = format!("{{\"unknown\": \"{key}\"}}");
        let changed = [
            v1::ExecutionConfiguration { harness: "another".into(), ..configuration.clone() },
            v1::ExecutionConfiguration { provider: Some(Provider::ModelProvider(inside)), ..configuration.clone() },
            v1::ExecutionConfiguration { harness_config: with_key, ..configuration.clone() },
        ];
        let mut refused: Vec<Option<Error>> = Vec::new();
        for configuration in changed {
            refused.push(session.prepare(configuration, vec![self.key()]).await.err());
        }
        for credentials in [
            vec![named("model", format!("{key}\n{key}"))],
            vec![named(&key, key.clone())],
            vec![self.key(), self.key()],
        ] {
            refused.push(session.prepare(configuration.clone(), credentials).await.err());
        }
        for credential in [named("model", format!("{key}\n")), named("mcp:x", key.clone())] {
            refused.push(session.update_credential(credential).await.err());
        }
        for (place, error) in refused.into_iter().enumerate() {
            let error = error.with_context(|| format!("the call {place} was not refused"))?;
            self.scan.look(Hidden::Refusal, "a refusal", &format!("{error:?} {error}"));
        }
        Ok(())
    }

    /// What else a Core is told.
    async fn answers(&mut self, rig: &Rig, session: &Session) -> anyhow::Result<()> {
        let client = rig.client().await?;
        let info = client.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
        self.scan.look(Hidden::Answer, "the declaration", &format!("{info:?}"));
        let sessions = client.list_sessions(v1::ListSessionsRequest::default()).await?;
        self.scan.look(Hidden::Answer, "the list of Sessions", &format!("{sessions:?}"));
        let assignment = Some(session.assignment().clone());
        let turns = client.list_turns(v1::ListTurnsRequest { assignment, ..Default::default() }).await?;
        self.scan.look(Hidden::Answer, "the list of Turns", &format!("{turns:?}"));
        Ok(())
    }
}

/// The daemon's own environment has its variables, and a Harness's history what its provider told it.
fn is_known(find: &Find) -> bool {
    let of_the_daemon = find.kind == Hidden::Daemon && find.place == "environ of the daemon" && find.secret != MODEL;
    let folders: Vec<_> = find.place.split('/').collect();
    let in_a_home = folders.windows(4).any(|part| matches!(part, ["state", "sessions", _, "home"]));
    let of_the_provider = find.kind == Hidden::File && in_a_home;
    of_the_daemon || of_the_provider && find.secret == MODEL
}

fn no_secret_is_anywhere_but_where_it_belongs(harness: Harness) {
    let canaries = canaries();
    let setup = setup(harness, &canaries);
    let rules = ["R-SEC-2", "R-SEC-3", "R-SEC-6", "R-EVT-5", "R-PRE-6", "R-PRE-4"];
    scenario("canary", &rules, setup, async |rig| {
        // A second start of opencode would take too long on a busy machine; the other agent is told of its history in the same way.
        let campaign = Campaign::run(rig, canaries, harness != Harness::Opencode).await?;
        campaign.report(&format!("{} with the gateway", harness.title()), is_known);
        assert_eq!(campaign.without(is_known), [] as [&Find; 0]);
        assert_eq!(campaign.after.found().collect::<Vec<_>>(), [] as [&Find; 0], "behind the release");
        let asked = if Harness::ALL.contains(&harness) { 7 } else { 6 };
        assert!(campaign.keys.len() >= asked, "{:?}", campaign.keys);
        let key = campaign.canaries.value(MODEL);
        assert!(campaign.keys.iter().all(|used| used.as_ref() == Some(&key)), "{:?}", campaign.keys);
        // It did look: each kind of place was there, and the daemon's own environment was found out.
        for kind in [
            Hidden::Argv,
            Hidden::Environ,
            Hidden::Daemon,
            Hidden::File,
            Hidden::Log,
            Hidden::Event,
            Hidden::Answer,
            Hidden::Refusal,
            Hidden::Request,
        ] {
            assert!(campaign.scan.looked(kind) > 2, "{kind:?}");
        }
        let found = campaign.scan.found().filter(|find| find.kind == Hidden::Daemon).count();
        assert_eq!(found, VARIABLES.len());
        // What the model's command saw by itself: nothing above it but in the daemon, and there no key.
        let (above, rest): (Vec<_>, Vec<_>) = campaign.tool.lines().partition(|line| line.starts_with("above "));
        assert!(above.len() >= 6, "{}", campaign.tool);
        let of_the_daemon = above.iter().filter(|line| line.starts_with("above runtime-bridge environ: 20 ")).count();
        assert_eq!(of_the_daemon, 1, "{}", campaign.tool);
        for line in above {
            let is_nothing = line.ends_with(": 0 of which the key: 0");
            let is_the_daemons = line.starts_with("above runtime-bridge environ: 20 ") && line.ends_with("the key: 0");
            assert!(is_nothing || is_the_daemons, "{}", campaign.tool);
        }
        let listed = rest.iter().find_map(|line| line.strip_prefix("listed: ")?.trim().parse::<u32>().ok());
        assert!(listed > Some(0), "no file was searched: {}", campaign.tool);
        for line in ["all: 0", "files: 0", "over"] {
            assert!(rest.contains(&line), "{line:?} is not in {}", campaign.tool);
        }
        Ok(())
    });
}

/// The control: the same search finds the key where it stands when the Harness holds it itself.
fn without_the_gateway_the_search_finds_the_key(harness: Harness) {
    let canaries = canaries();
    let setup = setup(harness, &canaries).without_gateway();
    scenario("canary_without_gateway", &["R-SEC-3", "R-SEC-6"], setup, async |rig| {
        let campaign = Campaign::run(rig, canaries, false).await?;
        let is_told = |find: &Find| match harness {
            // Through its pipe.
            Harness::Codex => find.kind == Hidden::File && find.place.ends_with(TOLD),
            // In its environment, which its commands inherit; one that shows it has it in an event.
            Harness::ClaudeCode | Harness::MinimaxCode | Harness::Opencode => {
                matches!(find.kind, Hidden::Environ | Hidden::Event | Hidden::Request | Hidden::File)
            }
        };
        let is_known = |find: &Find| is_known(find) || find.secret == MODEL && is_told(find);
        campaign.report(&format!("{} without the gateway", harness.title()), is_known);
        assert_eq!(campaign.without(is_known), [] as [&Find; 0]);
        let told = |kind| campaign.scan.found().any(|find| find.kind == kind && find.secret == MODEL && is_told(find));
        match harness {
            Harness::Codex => assert!(told(Hidden::File)),
            Harness::ClaudeCode | Harness::MinimaxCode | Harness::Opencode => {
                assert!(told(Hidden::Environ));
                // The model's own command finds it, too.
                assert!(!campaign.tool.lines().any(|line| line == "all: 0"), "{}", campaign.tool);
            }
        }
        Ok(())
    });
}
