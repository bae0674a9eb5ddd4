//! The bearer of an MCP server and a variable of another one, looked for everywhere while a real Session calls their tools (R-MCP-3, R-MCP-4, R-SEC-6); and
//! the bearer and the address of the bridge's own server of functions.

use std::fs;

use anyhow::Context;
use conformance::mcp::{Fault, Script};
use conformance::rig::{
    Canaries, Find, Harness, Hidden, MODEL_KEY, Observed, Rig, Scan, Setup, Watch, bearer, function, http_server,
    program, scenario, served_by, stdio_server, text_result,
};
use conformance::{for_each_acp_agent, for_every_harness};
use proto::client::text_input;
use proto::v1;
use serde_json::{Value, json};

for_every_harness!(no_secret_of_a_server_is_anywhere_but_where_it_belongs);

// Others are given their functions without a server.
for_each_acp_agent!(what_opens_the_server_of_functions_is_nowhere_but_at_the_agent);

const BEARER: &str = "the bearer";
const FRESH: &str = "the fresh bearer";
const VARIABLE: &str = "the variable";
/// The process of a server, and what starts it for Claude Code.
const SERVER: [&str; 2] = ["environ of the keeper", "environ of `runtime-bridge-conformance`"];

/// Keeps what the bridge writes to a process of the Harness in a file of the rig, where it is searched like all others.
const LISTENING: &str = r#"case "$*" in
*app-server*|*stream-json*|acp*) tee -a "$0.told" | "$REAL" "$@" ;;
*) exec "$REAL" "$@" ;;
esac"#;

/// A variable stands in the operator's file, in the environment of its server, and on the way to it.
fn is_known(find: &Find) -> bool {
    let is_file = |end: &str| find.kind == Hidden::File && find.place.ends_with(end);
    let is_server = find.kind == Hidden::Environ && SERVER.contains(&&*find.place);
    find.secret == VARIABLE && (is_file("environments/env-1.env") || is_file("before.told") || is_server)
}

/// The last words of a Turn.
fn says(turn_id: &str) -> String {
    format!("Umbra of {turn_id}.")
}

fn no_secret_of_a_server_is_anywhere_but_where_it_belongs(harness: Harness) {
    let canaries = Canaries::new(&[BEARER, FRESH, VARIABLE]);
    let setup = Setup::outer().of(harness).with("log = \"debug\"").behind(LISTENING);
    let setup = setup
        .needing(v1::Capability::McpHttpBearerAuth)
        .beside(Script { more: vec!["utter".into()], ..Script::default() });
    let rules = ["R-MCP-2", "R-MCP-3", "R-MCP-4", "R-SEC-3", "R-SEC-6"];
    scenario("canary_servers", &rules, setup, async |rig| {
        let (mut scan, watch) = (Scan::new(canaries.clone()), Watch::start(rig.place(), &canaries));
        rig.place().set_variables("env-1", &format!("TOKEN={}\n", canaries.value(VARIABLE)))?;
        let (program, cwd) = (program("runtime-bridge-conformance")?, rig.workspace().to_string_lossy().into_owned());
        let stdio =
            stdio_server("local", &program.to_string_lossy(), &["mcp-stdio", "--more", "murmur"], &cwd, &["TOKEN"]);
        let http = bearer(http_server("tickets", &rig.mcp().url()));
        // MiniMax Code is given no server that it would have to start.
        let has_stdio = rig
            .declaration()
            .await?
            .limits
            .unwrap_or_default()
            .mcp_transports()
            .any(|one| one == v1::McpTransport::Stdio);
        let servers = std::iter::once(http).chain(has_stdio.then_some(stdio));
        let configuration = served_by(servers, rig.configuration(Vec::new()));
        let of = |name: &str, value: &str| v1::Credential { name: name.into(), value: value.into() };
        let credentials = |bearer: &str| vec![of("model", MODEL_KEY), of("mcp:tickets", &canaries.value(bearer))];
        let session = rig.session().await?;
        let call = |tool: &str| json!({"name": tool, "arguments": "{\"text\":\"hello\"}"});
        for (turn_id, secret, fault) in
            [("t-1", BEARER, None), ("t-2", FRESH, None), ("t-3", FRESH, Some(Fault::Status(401)))]
        {
            if let Some(fault) = fault {
                rig.mcp().fail(Some("tools/call"), fault);
            }
            let mut steps = vec![
                json!({"after": "user", "play": [{"shell": {"command": "env; cat /proc/$PPID/environ | tr '\\0' '\\n'; echo over", "yield_ms": 30000}}]}),
                json!({"after": "outputs", "play": [{"calls": [call("tickets.utter")]}]}),
            ];
            steps.extend(has_stdio.then(|| json!({"after": "outputs", "play": [{"calls": [call("local.murmur")]}]})));
            steps.push(json!({"after": "outputs", "play": [{"text": {"chunks": [says(turn_id)]}}]}));
            rig.provider.script(&json!(steps).to_string())?;
            if turn_id == "t-2" {
                session.update_credential(credentials(FRESH).remove(1)).await?;
            }
            let ready = session.prepare(configuration.clone(), credentials(secret)).await?;
            let seen = rig.turn_with(&session, &ready, turn_id, "look around").await?;
            seen.completed()?;
            anyhow::ensure!(seen.mcp_calls().len() == 1 + usize::from(has_stdio), "{:#?}", seen.mcp_calls());
            for event in &seen.events {
                scan.look(Hidden::Event, event.kind.as_ref().map_or("", conformance::rig::name), &format!("{event:?}"));
            }
        }
        let refused = session.prepare(configuration.clone(), credentials(BEARER)[1..].to_vec()).await;
        scan.look(Hidden::Refusal, "a refusal", &format!("{refused:?}"));
        for turn_id in ["t-1", "t-2", "t-3"] {
            rig.wait_for_history(&says(turn_id)).await?;
        }
        scan.files(rig.place().root())?;
        for request in rig.provider.requests() {
            scan.look(Hidden::Request, "a request at the provider", &format!("{request:?}"));
        }
        session.release(true).await?;
        for line in rig.daemon.log_text().lines() {
            scan.look(Hidden::Log, "the daemon's log", line);
        }
        let watched = watch.stop().await?;
        scan.merge(&watched.scan);
        let found: Vec<_> = scan.found().filter(|find| !is_known(find)).collect();
        assert_eq!(found, [] as [&Find; 0]);
        // It did look, and finds what there is to be found.
        let place = if has_stdio { Hidden::Environ } else { Hidden::File };
        assert!(scan.found().any(|find| find.kind == place && find.secret == VARIABLE), "{scan:?}");
        let requests = rig.mcp().requests();
        let used = |secret: &str| requests.iter().any(|request| request.bearer() == Some(&*canaries.value(secret)));
        assert!(used(BEARER) && used(FRESH));
        Ok(())
    });
}

/// What an agent was told of the server of its functions, in its pipe: the path of the address, and the bearer.
fn told_of_functions(rig: &Rig) -> anyhow::Result<[String; 2]> {
    let told = fs::read_to_string(rig.place().root().join("before.told"))?;
    let lines = told.lines().map(serde_json::from_str::<Value>).collect::<Result<Vec<_>, _>>()?;
    let servers = lines.iter().find_map(|line| line["params"]["mcpServers"].as_array()).context("no servers")?;
    let server = servers.iter().find(|server| server["name"] == "functions").context("no functions")?;
    let path = server["url"].as_str().and_then(|url| url.rsplit('/').next()).context("no address")?;
    let bearer = server["headers"][0]["value"].as_str().and_then(|value| value.strip_prefix("Bearer "));
    let secrets = [path, bearer.context("no bearer")?];
    anyhow::ensure!(secrets.iter().all(|secret| secret.len() >= 32), "192 bits are longer than {secrets:?}");
    Ok(secrets.map(str::to_owned))
}

fn what_opens_the_server_of_functions_is_nowhere_but_at_the_agent(harness: Harness) {
    let setup = Setup::outer().of(harness).with("log = \"debug\"").behind(LISTENING);
    let rules = ["R-SEC-1", "R-SEC-3", "R-SEC-6", "R-FN-1"];
    scenario("canary_functions", &rules, setup.needing(v1::Capability::FunctionTools), async |rig| {
        let steps = json!([
            {"after": "user", "play": [{"shell": {"command": "env; cat /proc/$PPID/environ /proc/$PPID/cmdline | tr '\\0' '\\n'; echo over", "yield_ms": 30000}}]},
            {"after": "outputs", "play": [{"calls": [{"name": "lookup", "arguments": "{}"}]}]},
            {"after": "outputs", "play": [{"text": {"chunks": [says("t-1")]}}]},
        ]);
        rig.provider.script(&steps.to_string())?;
        let session = rig.session().await?;
        let functions = vec![function("lookup", r#"{"type":"object"}"#)];
        let ready = rig.prepare(&session, rig.configuration(functions)).await?;
        let secrets = told_of_functions(rig)?.map(|secret| Canaries::of(&secret));
        let mut searches = Vec::new();
        for secret in secrets {
            searches.push((Watch::start(rig.place(), &secret), Scan::new(secret)));
        }
        session.start(&ready, "t-1", text_input("look around")).await?;
        let (mut events, mut seen) = (session.turn_events("t-1"), Observed::default());
        let call = seen.call(&mut events).await?;
        session.submit(vec![text_result("t-1", &call.call_id, "found")]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        assert!(seen.tool_output()?.contains("over"));
        rig.wait_for_history(&says("t-1")).await?;
        let info = rig.client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
        let answers = format!("{info:?} {:?}", session.turn("t-1").await?);
        for (_, scan) in &mut searches {
            for event in &seen.events {
                scan.look(Hidden::Event, event.kind.as_ref().map_or("", conformance::rig::name), &format!("{event:?}"));
            }
            scan.look(Hidden::Answer, "an answer", &answers);
            for request in rig.provider.requests() {
                scan.look(Hidden::Request, "a request at the provider", &format!("{request:?}"));
            }
            scan.files(rig.place().root())?;
        }
        session.release(true).await?;
        let log = rig.daemon.log_text();
        for (watch, mut scan) in searches {
            log.lines().for_each(|line| scan.look(Hidden::Log, "the daemon's log", line));
            scan.merge(&watch.stop().await?.scan);
            // What listens at the pipe, and the double, keep what the agent was told.
            let is_told = |place: &str| place.ends_with("before.told") || place.contains("/double/kept/");
            let (told, found): (Vec<_>, Vec<_>) = scan.found().partition(|find| is_told(&find.place));
            assert!(!told.is_empty(), "the search finds nothing: {scan:?}");
            assert_eq!(found, [] as [&Find; 0]);
        }
        Ok(())
    });
}
