//! As `failpoints`, for the lines to an agent behind ACP: its pipe fails at each, and once the daemon is killed behind that the Session goes on with one end for each of
//! its Turns.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Context;
use conformance::fault::{Fault, table};
use conformance::mcode::Faults;
use conformance::rig::{Daemon, Observed, Rig, Setup, function, text_result};
use proto::client::{Session, text_input};
use proto::v1::{self, event::Kind};

const RULES: [&str; 7] = ["R-DUR-1", "R-DUR-2", "R-CAN-4", "R-EVT-1", "R-EVT-2", "R-STE-3", "R-PRE-4"];

/// What is written to an agent, with the pass that is meant: the second option is set before the first prompt.
const LINES: &[(&str, u32)] = &[
    ("initialize", 1),
    ("session/new", 1),
    ("session/set_config_option", 1),
    ("session/set_config_option", 2),
    ("session/prompt", 1),
    ("mcode/session/steer", 1),
    ("session/cancel", 1),
    ("session/resume", 1),
];

/// What no agent here is asked: each goes on by `session/resume`, and has a model to set.
const UNASKED: &[&str] = &["session/list", "session/load"];

/// What agents tell or ask.
const HEARD: &[&str] = &["session/request_permission", "session/update"];

const SCRIPT: &str = r#"[{"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]},
    {"after": "outputs", "times": 2, "play": [{"text": {"chunks": ["Found."]}}]},
    {"match": "on and on", "play": [{"text": {"chunks": ["on ", "and on"], "open": true}}, "hang"]}]"#;

fn fails(line: &str, pass: u32) -> Fault {
    Fault::at(&format!("native.{line}.before"), "error:EIO", pass)
}

#[test]
fn the_pipe_to_an_agent_fails() {
    let rows: Vec<_> = LINES.iter().map(|(name, pass)| vec![fails(name, *pass)]).collect();
    let setup = || Setup::double(Faults::default()).only("the lines are those of agents behind ACP");
    table("acp", &RULES, &rows, |fault| fault.arm(setup()), course);
}

#[test]
fn the_pipe_fails_when_an_agent_is_answered() {
    let rows = [vec![fails("answer", 1)]];
    let asking = Faults { ask_always: true, ..Faults::default() };
    let setup = || Setup::double(asking.clone()).only("the lines are those of agents behind ACP");
    table("acp_answer", &RULES, &rows, |fault| fault.arm(setup()), course);
}

#[test]
fn every_line_to_an_agent_fails_in_some_scenario() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../adapters/src");
    let mut texts = Vec::new();
    let mut open = vec![here.join("acp"), here.join("minimax_code")];
    while let Some(path) = open.pop() {
        if path.file_stem().is_some_and(|name| name == "tests") {
            continue;
        }
        if path.is_dir() {
            open.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = fs::read_to_string(path).unwrap();
            texts.push(text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned());
        }
    }
    let quoted = texts.iter().flat_map(|text| text.split('"').skip(1).step_by(2));
    let is_method = |text: &&str| *text == "initialize" || text.contains("session/") && !text.contains([' ', '{', '`']);
    let methods: BTreeSet<_> = quoted.filter(is_method).filter(|text| !text.starts_with('/')).collect();
    let known: BTreeSet<_> = LINES.iter().map(|(name, _)| *name).chain(UNASKED.iter().chain(HEARD).copied()).collect();
    assert_eq!(methods, known, "the lines to agents, and those that fail, are never asked for or are heard");
}

/// All that there is to do with a Session. Afterwards each Turn has one end, and the Session goes on.
async fn course(rig: &mut Rig, fault: &Fault) -> anyhow::Result<()> {
    rig.provider.script(SCRIPT)?;
    let session = rig.session().await?;
    let worked = work(rig, &session).await;
    fault.ended(rig).await.with_context(|| format!("it worked so: {worked:?}"))?;
    rig.set_faults(&Faults::default())?;
    rig.daemon = Daemon::start(rig.place()).await?;
    let listing = v1::ListTurnsRequest { assignment: Some(session.assignment().clone()), ..Default::default() };
    let turns = rig.client().await?.list_turns(listing).await?.turns;
    for turn in &turns {
        let seen = Observed::default().to_the_end(&mut session.turn_events(&turn.turn_id)).await?;
        seen.end().with_context(|| format!("{} has no end: {:?}", turn.turn_id, seen.story()))?;
    }
    rig.provider.reset();
    let native = turns.into_iter().find_map(|turn| turn.native);
    let configuration = rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)]);
    let ready = match &native {
        Some(native) => rig.resume(&session, configuration, &native.session_id).await?,
        None => rig.prepare(&session, configuration).await?,
    };
    rig.turn_with(&session, &ready, "t-9", "go on").await?.completed()
}

async fn work(rig: &Rig, session: &Session) -> anyhow::Result<()> {
    let configuration = || rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)]);
    let mut events = rig.start_turn(session, configuration(), "t-1", "look it up").await?;
    let mut seen = Observed::default();
    let call = seen.call(&mut events).await?;
    session.steer("t-1", "i-1", text_input("turn left")).await?;
    session.submit(vec![text_result("t-1", &call.call_id, "42")]).await?;
    let native = seen.to_the_end(&mut events).await?.native_session()?;
    let ready = rig.prepare(session, configuration()).await?;
    session.start(&ready, "t-2", text_input("on and on")).await?;
    let (mut events, mut seen) = (session.turn_events("t-2"), Observed::default());
    seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
    session.cancel("t-2", None).await?;
    let ready = rig.resume(session, configuration(), &native).await?;
    rig.turn_with(session, &ready, "t-3", "once more").await?.completed()
}
