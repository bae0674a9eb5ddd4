//! The native history of a Session: what a preparation goes on with, and what is recorded of it (R-PRE-4, R-PRE-6).
//!
//! A Session has history once a native turn has started. From then on every Executor of it goes on with that history, and with no other.

use std::{path::PathBuf, sync::Arc};

use adapters::harness::{Configuration, Executor, Harness, HistoryFault, Resume};

use super::{
    Answer, digest,
    executor::{Live, Slot},
    owner::Owner,
    storage,
};
use crate::{
    journal::HistoryRecord,
    refusal::{Reason, Refusal},
};

/// What is recorded once a native turn of this Executor has started.
pub(super) fn of_executor(executor: &Executor, configuration: &Configuration) -> HistoryRecord {
    HistoryRecord {
        native_session_id: executor.native_session_id.clone(),
        harness: configuration.harness.clone(),
        configuration: digest::frozen(configuration),
        settings: digest::text("settings", &executor.settings).to_vec(),
        instructions: Some(instructions(configuration)),
    }
}

impl Owner {
    /// Checks what a preparation says of the history. An Executor that is there holds it; without one it must be named.
    pub(super) fn is_named(&self, asked: Option<&str>) -> Answer<()> {
        let recorded = self.history()?;
        match (recorded, asked) {
            (None, None) => Ok(()),
            (Some(history), Some(asked)) if history.native_session_id == asked => Ok(()),
            (Some(_), None) if !matches!(self.slot, Slot::Empty) => Ok(()),
            (None, Some(_)) => {
                Err(unavailable("missing", "the Session has no native history to go on with").at("resume"))
            }
            (Some(history), None) => {
                Err(unavailable("not_named", "the Session has a native history; name it in `resume`")
                    .at("resume")
                    .with("native_session_id", &history.native_session_id))
            }
            (Some(history), Some(_)) => Err(unavailable("foreign", "this is not the native history of the Session")
                .at("resume.native_session_id")
                .with("native_session_id", &history.native_session_id)),
        }
    }

    /// The history that a new Executor goes on with, once it is checked; none begins one. Nothing native happens.
    pub(super) async fn history_for(
        &mut self,
        configuration: &Configuration,
        asked: Option<&str>,
        harness: &Arc<dyn Harness>,
    ) -> Answer<Option<Resume>> {
        if self.history()?.is_none() && self.recorded()?.record.had_turn {
            self.look_for_history(configuration).await?;
        }
        let changed = match self.history()? {
            Some(history) => changed_instructions(history, configuration, harness.keeps_instructions())?,
            None => false,
        };
        self.is_named(asked)?;
        let Some(history) = self.history()? else { return Ok(None) };
        let native_session_id = history.native_session_id.clone();
        let row = self.recorded()?.row;
        let last_turn = self.shared.journal.last_native_turn(row, &native_session_id).await;
        let last_turn = last_turn.map_err(|error| storage(&error))?;
        let resume = Resume { native_session_id, last_turn, instructions_changed: changed };
        harness.check_history(&self.home(), &resume).await.map_err(|fault| refused(fault, &resume))?;
        Ok(Some(resume))
    }

    /// A Turn may have reached the Harness without a word of it: then its conversation is the history, and it is found here.
    async fn look_for_history(&mut self, configuration: &Configuration) -> Answer<()> {
        let row = self.recorded()?.row;
        let given = self.shared.journal.native_sessions(row).await.map_err(|error| storage(&error))?;
        for (native_session_id, fingerprint) in given {
            for (kind, harness) in &self.shared.harnesses {
                let native_session_id = native_session_id.clone();
                let resume = Resume { native_session_id, last_turn: None, instructions_changed: false };
                match harness.check_history(&self.home(), &resume).await {
                    Err(HistoryFault::Missing) => continue,
                    Err(fault) => return Err(refused(fault, &resume)),
                    Ok(()) => {}
                }
                if fingerprint != digest::configuration(configuration) {
                    return Err(frozen("configuration"));
                }
                let history = HistoryRecord {
                    native_session_id: resume.native_session_id,
                    harness: (*kind).to_owned(),
                    configuration: digest::frozen(configuration),
                    settings: Vec::new(),
                    instructions: Some(instructions(configuration)),
                };
                return self.record_history(history).await;
            }
        }
        Ok(())
    }

    /// Records which instructions the history was given last, or that this is not known.
    ///
    /// ORDER: before changed instructions are on their way into the history, and after they are in it: whatever happens in between, the next
    /// Executor gives them anew.
    pub(super) async fn note_instructions(&mut self, given: Option<Vec<u8>>) -> Answer<()> {
        match self.history()? {
            Some(history) if history.instructions != given => {
                let history = HistoryRecord { instructions: given, ..history.clone() };
                self.record_history(history).await
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Which instructions the history was given last, where that is known.
    pub(super) fn given_instructions(&self) -> Option<Vec<u8>> {
        self.history().ok().flatten().and_then(|history| history.instructions.clone())
    }

    /// Whether the native settings are others than those of the last Turn.
    pub(super) fn has_other_settings(&self, live: &Live) -> bool {
        let recorded = self.history().ok().flatten().map(|history| &history.settings);
        recorded.is_some_and(|recorded| !recorded.is_empty() && *recorded != live.history.settings)
    }

    /// What has to be recorded when the Turn that begins now has started natively.
    pub(super) fn history_to_record(&self) -> Option<HistoryRecord> {
        let Slot::Live(live) = &self.slot else { return None };
        (self.history().ok().flatten() != Some(&live.history)).then(|| live.history.clone())
    }

    /// The Turn has started natively: its conversation is the Session's history from here on. The Turn itself has recorded it.
    pub(super) fn note_history(&mut self) {
        if self.turn.as_ref().is_some_and(super::active::Active::has_started)
            && let Some(history) = self.history_to_record()
            && let Some(session) = &mut self.session
        {
            session.record.history = Some(history);
        }
    }

    fn history(&self) -> Answer<Option<&HistoryRecord>> {
        Ok(self.recorded()?.record.history.as_ref())
    }

    pub(super) fn home(&self) -> PathBuf {
        self.folder().join("home")
    }

    async fn record_history(&mut self, history: HistoryRecord) -> Answer<()> {
        let row = self.recorded()?.row;
        self.shared.journal.put_history(row, history.clone()).await.map_err(|error| storage(&error))?;
        if let Some(session) = &mut self.session {
            session.record.history = Some(history);
        }
        Ok(())
    }
}

/// The refusal for a history that is not to be had.
pub(super) fn refused(fault: HistoryFault, resume: &Resume) -> Refusal {
    unavailable(fault.name(), &fault.to_string()).with("native_session_id", &resume.native_session_id)
}

/// The refusal for a configuration that differs from the frozen one.
pub(super) fn frozen(field: &'static str) -> Refusal {
    let at = if field == "configuration" { field.to_owned() } else { format!("configuration.{field}") };
    Refusal::new(Reason::ConfigurationConflict, "the Session's configuration is frozen and this one differs")
        .at(at)
        .with("field", field)
}

/// Whether the instructions have to be given anew; all else must be as it was. Those that are kept in the history can be replaced, not taken back.
fn changed_instructions(history: &HistoryRecord, configuration: &Configuration, are_kept: bool) -> Answer<bool> {
    if let Some(field) = digest::conflict(&history.configuration, &digest::frozen(configuration)) {
        return Err(frozen(field));
    }
    let changed = history.instructions != Some(instructions(configuration));
    if changed && are_kept && configuration.instructions.is_empty() {
        let text = "instructions that stand in the native history cannot be taken back; give others instead";
        let refusal = Refusal::new(Reason::ConfigurationConflict, text);
        return Err(refusal.at("configuration.instructions").with("field", "instructions"));
    }
    Ok(changed)
}

fn instructions(of: &Configuration) -> Vec<u8> {
    digest::text("instructions", &of.instructions).to_vec()
}

fn unavailable(history: &'static str, text: &str) -> Refusal {
    Refusal::new(Reason::NativeHistoryUnavailable, text).with("history", history)
}
