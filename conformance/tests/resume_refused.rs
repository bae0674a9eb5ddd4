//! A native history that is missing, foreign, damaged, locked, or not the one that is recorded, is refused before any input, and never replaced
//! by a new one (R-PRE-4): the model provider receives nothing, and nothing stays.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Context;
use conformance::mcode::Faults;
use conformance::rig::{Daemon, Harness, Refused, Rig, Setup, function, refusal, scenario};
use conformance::{for_each_acp_agent, for_each_harness};
use proto::client::Session;
use proto::v1::{self, Reason};

for_each_harness!(
    a_damaged_history_is_not_gone_on_with,
    only_the_recorded_history_is_taken,
    a_history_that_is_not_there_any_more_is_missing,
    a_history_that_another_process_holds_is_locked,
    what_is_frozen_stays_frozen
);

// A start of opencode takes seconds, and what is refused by the bridge itself needs none: it is all in one scenario.
for_each_acp_agent!(
    what_is_not_the_history_of_an_agent_is_not_gone_on_with,
    a_history_that_the_agent_has_lost_is_missing
);

const OTHER: &str = "01a22b63-4fd1-7d92-b9c4-22060c57f91f";

fn configuration(rig: &Rig) -> v1::ExecutionConfiguration {
    rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)])
}

/// A Session with one Turn and no Executor; its native history, and the file that the bridge looks at.
async fn past_session(rig: &mut Rig) -> anyhow::Result<(Session, String, PathBuf)> {
    let session = rig.session().await?;
    let ready = rig.prepare(&session, configuration(rig)).await?;
    let seen = rig.turn_with(&session, &ready, "t-1", "first").await?;
    seen.completed()?;
    let native = seen.native_session()?;
    rig.daemon.terminate().await?;
    rig.daemon = Daemon::start(rig.place()).await?;
    let file = match rig.kind() {
        Harness::Codex | Harness::ClaudeCode => format!("{native}.jsonl"),
        // The history of an agent behind ACP is its own affair; the bridge has written down which one it is.
        Harness::MinimaxCode | Harness::Opencode => "acp-session.json".to_owned(),
    };
    let file = files(rig, &file)?.pop().with_context(|| format!("there is no {file}"))?;
    Ok((session, native, file))
}

/// The files with such an end to their names, wherever they are in the daemon's state.
fn files(rig: &Rig, end: &str) -> anyhow::Result<Vec<PathBuf>> {
    let (mut folders, mut found) = (vec![rig.place().state().join("sessions")], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(end) {
                found.push(path);
            }
        }
    }
    Ok(found)
}

/// The files of the history that an agent behind ACP keeps.
fn of_the_agent(rig: &Rig, native: &str) -> anyhow::Result<Vec<PathBuf>> {
    let ends = match rig.kind() {
        Harness::Codex | Harness::ClaudeCode => rig.kind().has_nothing_here(),
        Harness::MinimaxCode => vec![format!("{native}.jsonl")],
        Harness::Opencode => ["", "-wal", "-shm"].map(|end| format!("opencode.db{end}")).to_vec(),
    };
    let found = ends.iter().map(|end| files(rig, end)).collect::<Result<Vec<_>, _>>()?.concat();
    anyhow::ensure!(!found.is_empty(), "there is none of {ends:?}");
    Ok(found)
}

async fn unavailable(rig: &Rig, session: &Session, native: &str, why: &str) -> anyhow::Result<Refused> {
    let refused = rig.resume(session, configuration(rig), native).await;
    let refused = refusal(refused, Reason::NativeHistoryUnavailable).with("history", why);
    rig.only(&[]).await?;
    assert_eq!(rig.provider.model_requests().len(), 1, "a refused preparation asks no model");
    Ok(refused)
}

/// The history that was refused otherwise is gone on with.
async fn goes_on(rig: &Rig, session: &Session, native: &str) -> anyhow::Result<()> {
    let ready = rig.resume(session, configuration(rig), native).await?;
    rig.turn_with(session, &ready, "t-2", "second").await?.completed()
}

fn only_the_recorded_history_is_taken(harness: Harness) {
    scenario(
        "resume_foreign",
        &["R-PRE-1", "R-PRE-4", "R-API-9"],
        Setup::outer().of(harness).needing(v1::Capability::SessionResume),
        async |rig| {
            let (session, native, _) = past_session(rig).await?;
            let other = foreign(rig, &session, &native).await?;
            rig.whole_turn(&other, "t-1", "hello").await?.completed()?;
            let theirs = other.turn("t-1").await?.native.context("no native id")?.session_id;
            let refused = rig.resume(&session, configuration(rig), &theirs).await;
            refusal(refused, Reason::NativeHistoryUnavailable).with("history", "foreign");
            // An Executor that is there takes no other history either.
            let refused = rig.resume(&other, rig.configuration(Vec::new()), &native).await;
            refusal(refused, Reason::NativeHistoryUnavailable).with("history", "foreign");
            goes_on(rig, &session, &native).await
        },
    );
}

/// Ids that are not those of the history; gives another Session, which has none.
async fn foreign(rig: &Rig, session: &Session, native: &str) -> anyhow::Result<Session> {
    // Of nobody, of an odd form, and one that would be an option on a command line (B-109).
    for foreign in [OTHER, "x", "--dangerously-bypass-approvals-and-sandbox", "-p", "..", &native.to_uppercase()] {
        let refused = unavailable(rig, session, foreign, "foreign").await?;
        refused.at("resume.native_session_id").with("native_session_id", native);
    }
    for malformed in ["", "../x", "a b", "a\nb", "é", &"x".repeat(129)] {
        let refused = rig.resume(session, configuration(rig), malformed).await;
        refusal(refused, Reason::InvalidRequest).at("resume.native_session_id");
    }
    // The history of another Session of the same caller is foreign; so is this one to a Session that has none.
    let other = rig.session().await?;
    let refused = rig.resume(&other, configuration(rig), native).await;
    refusal(refused, Reason::NativeHistoryUnavailable).at("resume").with("history", "missing");
    Ok(other)
}

fn a_history_that_is_not_there_any_more_is_missing(harness: Harness) {
    scenario(
        "resume_missing",
        &["R-PRE-4"],
        Setup::outer().of(harness).needing(v1::Capability::SessionResume),
        async |rig| {
            let (session, native, file) = past_session(rig).await?;
            let aside = file.with_extension("aside");
            fs::rename(&file, &aside)?;
            unavailable(rig, &session, &native, "missing").await?;
            // A link to it is not it.
            std::os::unix::fs::symlink(&aside, &file)?;
            unavailable(rig, &session, &native, "missing").await?;
            fs::remove_file(&file)?;
            fs::rename(&aside, &file)?;
            goes_on(rig, &session, &native).await
        },
    );
}

fn a_damaged_history_is_not_gone_on_with(harness: Harness) {
    scenario(
        "resume_damaged",
        &["R-PRE-4"],
        Setup::outer().of(harness).needing(v1::Capability::SessionResume),
        async |rig| {
            let (session, native, file) = past_session(rig).await?;
            let whole = fs::read_to_string(&file)?;
            let head = whole.find('\n').context("no line")? + 1;
            let of_another = whole.replace(&native, OTHER);
            // Either Harness would go on with what is left, as if the Turn had never been. The Turn begins in the middle.
            let cut = match harness {
                Harness::Codex => whole.len() / 2,
                Harness::ClaudeCode => whole.find(r#""type":"assistant""#).context("no answer")?,
                Harness::MinimaxCode | Harness::Opencode => harness.has_nothing_here(),
            };
            let mut damages = vec![
                ("", "corrupt"),
                (&whole[..head / 2], "corrupt"),
                ("\u{0}\u{1}\u{2}\n", "corrupt"),
                (&whole[..head], "corrupt"),
                (&whole[..cut], "corrupt"),
                (&of_another, "foreign"),
            ];
            // The first line of Codex says what the others are of; Claude Code's are alike.
            if harness == Harness::Codex {
                damages.push((&whole[head..], "corrupt"));
            }
            damaged(rig, &session, &native, &file, &damages).await?;
            // A torn end behind the last Turn takes nothing away.
            fs::write(&file, format!("{whole}{{\"timestamp\":\"2026"))?;
            goes_on(rig, &session, &native).await?;
            assert!(rig.provider.model_requests()[1].body.contains("first"));
            Ok(())
        },
    );
}

/// Puts each of these texts in the place of the file, and looks that it is refused so.
async fn damaged(
    rig: &Rig,
    session: &Session,
    native: &str,
    file: &Path,
    damages: &[(&str, &str)],
) -> anyhow::Result<()> {
    for (damaged, why) in damages {
        fs::write(file, damaged)?;
        unavailable(rig, session, native, why).await?.with("native_session_id", native);
        assert_eq!(fs::read_to_string(file)?, *damaged, "it was written to");
    }
    Ok(())
}

fn a_history_that_another_process_holds_is_locked(harness: Harness) {
    scenario(
        "resume_locked",
        &["R-PRE-4"],
        Setup::outer().of(harness).needing(v1::Capability::SessionResume),
        async |rig| {
            let (session, native, file) = past_session(rig).await?;
            locked(rig, &session, &native, &file).await?;
            goes_on(rig, &session, &native).await
        },
    );
}

async fn locked(rig: &Rig, session: &Session, native: &str, file: &Path) -> anyhow::Result<()> {
    let home = file.ancestors().find(|folder| folder.ends_with("home")).context("no home")?;
    let mut locks = fs::read_dir(home)?.flatten().map(|entry| entry.path());
    let lock = locks.find(|path| path.extension().is_some_and(|kind| kind == "lock")).context("no lock")?;
    let lock = File::options().write(true).open(lock)?;
    lock.lock()?;
    unavailable(rig, session, native, "locked").await?;
    Ok(lock.unlock()?)
}

fn what_is_frozen_stays_frozen(harness: Harness) {
    scenario(
        "resume_frozen",
        &["R-PRE-2", "R-PRE-6", "R-FN-1"],
        Setup::outer().of(harness).needing(v1::Capability::SessionResume),
        async |rig| {
            let (session, native, _) = past_session(rig).await?;
            frozen(rig, &session, &native).await?;
            goes_on(rig, &session, &native).await
        },
    );
}

async fn frozen(rig: &Rig, session: &Session, native: &str) -> anyhow::Result<()> {
    let good = configuration(rig);
    let named = function("other", r#"{"type":"object"}"#);
    let respelled = function("lookup", r#"{ "type":"object"}"#);
    for (changed, field) in [
        (v1::ExecutionConfiguration { model: "gpt-5.4".into(), ..good.clone() }, "model"),
        (v1::ExecutionConfiguration { harness_config: "{}".into(), ..good.clone() }, "harness_config"),
        (rig.configuration(Vec::new()), "tools.functions"),
        (rig.configuration(vec![named.clone()]), "tools.functions"),
        (rig.configuration(vec![respelled]), "tools.functions"),
        (
            rig.configuration([good.tools.clone().unwrap_or_default().functions, vec![named]].concat()),
            "tools.functions",
        ),
    ] {
        let refused = rig.resume(session, changed, native).await;
        let at = format!("configuration.{field}");
        refusal(refused, Reason::ConfigurationConflict).at(&at).with("field", field);
    }
    let elsewhere = conformance::rig::configuration(rig.kind(), "https://models.example.com/v1", Vec::new());
    let elsewhere = v1::ExecutionConfiguration { tools: good.tools, ..elsewhere };
    let refused = rig.resume(session, elsewhere, native).await;
    refusal(refused, Reason::ConfigurationConflict).with("field", "model_provider");
    rig.only(&[]).await?;
    assert_eq!(rig.provider.model_requests().len(), 1);
    Ok(())
}

fn what_is_not_the_history_of_an_agent_is_not_gone_on_with(harness: Harness) {
    let rules = ["R-PRE-1", "R-PRE-2", "R-PRE-4", "R-PRE-6", "R-FN-1", "R-API-9"];
    let setup = Setup::outer().of(harness).needing(v1::Capability::SessionResume);
    scenario("acp_resume_refused", &rules, setup, async |rig| {
        let (session, native, file) = past_session(rig).await?;
        foreign(rig, &session, &native).await?;
        frozen(rig, &session, &native).await?;
        let whole = fs::read_to_string(&file)?;
        fs::remove_file(&file)?;
        unavailable(rig, &session, &native, "missing").await?;
        let of_another = whole.replace(&native, OTHER);
        let damages = [("", "corrupt"), (&whole[..whole.len() / 2], "corrupt"), (&*of_another, "foreign")];
        damaged(rig, &session, &native, &file, &damages).await?;
        fs::write(&file, &whole)?;
        locked(rig, &session, &native, &file).await?;
        goes_on(rig, &session, &native).await?;
        assert!(rig.provider.model_requests()[1].body.contains("first"));
        Ok(())
    });
}

/// What the bridge has written down is there, and the agent itself has it no more.
fn a_history_that_the_agent_has_lost_is_missing(harness: Harness) {
    let setup = Setup::outer().of(harness).needing(v1::Capability::SessionResume);
    scenario("acp_lost_history", &["R-PRE-4"], setup, async |rig| {
        let (session, native, _) = past_session(rig).await?;
        of_the_agent(rig, &native)?.iter().try_for_each(fs::remove_file)?;
        unavailable(rig, &session, &native, "missing").await?.with("native_session_id", &native);
        Ok(())
    });
}

/// What docs/deviations.md says of it: the history of an agent behind ACP is not read.
#[test]
fn a_history_that_lost_its_last_turn_is_gone_on_with_by_an_agent() {
    let setup = Setup::double(Faults::default()).only("the history of the double is lines that can be cut");
    scenario("acp_cut_history", &["R-PRE-4"], setup, async |rig| {
        let (session, native, _) = past_session(rig).await?;
        let [file] = &of_the_agent(rig, &native)?[..] else { anyhow::bail!("not one file") };
        let whole = fs::read_to_string(file)?;
        fs::write(file, &whole[..whole.find('\n').context("no line")? + 1])?;
        goes_on(rig, &session, &native).await?;
        assert!(!rig.provider.model_requests()[1].body.contains("first"));
        Ok(())
    });
}
