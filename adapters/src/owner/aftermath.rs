//! What an owner still does once its process is gone: the last reports, and what history proves.

use super::{Event, Native, Owner, Timer, Turn};
use crate::{
    harness::{Exit, Failure, FailureCode, Report},
    native::{
        process::{self, ExitStatus},
        tree,
    },
};

impl<N: Native> Owner<N> {
    /// The last reports: whatever was running ended with the process.
    pub(super) async fn close(mut self) {
        let exit = self.life.exit.map(exit_of);
        if let (Some(seen), Some(exit)) = (self.life.exit, exit) {
            let said = self.cleaner.clean_tail(&self.control.stderr_tail());
            let foreign_signal = seen.is_foreign_signal();
            self.consult_history(foreign_signal).await;
            self.feed(Event::Exited { exit, foreign_signal, said }).await;
        } else {
            let message = format!("{} could not be ended", self.native.manner().name);
            let failure = Failure { code: FailureCode::HarnessExited, message, http_status: None, exit: None };
            self.feed(Event::Fault(failure)).await;
            self.feed(Event::Expired(Timer::Settlement)).await;
        }
        let keeper = self.control.keeper_pid();
        let survivors = match exit {
            Some(_) => 0,
            None => u32::try_from(tree::descendants(keeper).len()).unwrap_or(u32::MAX),
        };
        self.emit(Report::Closed { exit, survivors }).await;
        let passed_over = self.lines.passed_over();
        tracing::debug!(skipped = ?self.skipped, passed_over, ?exit, survivors, "an Executor is closed");
        self.writer.close();
        drop(self.control);
        self.writers.close();
        self.writers.wait().await;
        drop(self.lock);
    }

    /// The process is gone and did not tell the Turn's end: history may have it (R-EVT-7), with what the process did not live to tell.
    async fn consult_history(&mut self, foreign_signal: bool) {
        let Some(native) = self.turn.as_ref().and_then(Turn::unended).map(str::to_owned) else { return };
        self.consult_inputs(&native).await;
        let Some(proof) = self.native.ending(&native, self.inputs.shown(), &self.cleaner).await else { return };
        let end = proof.end.clone();
        if !self.turn.as_ref().is_some_and(|turn| turn.is_proved_by(&end, foreign_signal)) {
            return;
        }
        self.begun(&native).await;
        let mut missing = Vec::new();
        self.native.missed(proof, &mut missing);
        for report in missing {
            self.emit(report).await;
        }
        self.feed(Event::Proved(end)).await;
    }

    /// Which inputs the Turn has read, where nobody was told (R-STE-3).
    async fn consult_inputs(&mut self, native: &str) {
        // Before the start none was written.
        if !self.inputs.are_open() || !self.turn.as_ref().is_some_and(Turn::has_started) {
            return;
        }
        let Some(found) = self.native.inputs_read(native).await else { return };
        let reports = self.inputs.proved(found);
        if reports.iter().any(|report| matches!(report, Report::InputAccepted { .. })) {
            self.native.read_more();
        }
        for report in reports {
            self.emit(report).await;
        }
    }
}

fn exit_of(exit: process::Exit) -> Exit {
    match exit.status {
        ExitStatus::Code(code) => Exit::Code(code),
        ExitStatus::Signal(signal) => Exit::Signal(signal),
    }
}
