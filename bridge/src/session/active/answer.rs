//! The final answer of a Turn, and its end while the answer is judged (R-CTL-3).

use std::sync::Arc;

use adapters::harness::{AbandonReason, MessagePhase, NativeEnd, Report};
use tokio::time::Instant;

use super::{Active, Ending, reason_name};
use crate::{
    clock,
    journal::EndRecord,
    turn::{
        event::{End, Event, Status},
        judge::Judge,
    },
};

/// What is known of the final answer.
#[derive(Debug)]
pub(super) struct Answer {
    /// The number of its Turn.
    number: u64,
    /// None where nothing is to be judged.
    judge: Option<Arc<Judge>>,
    state: State,
    /// The end, which waits for the judgement.
    end: Option<(End, AbandonReason)>,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// The last message that may be the answer.
    Open(Option<String>),
    /// To be judged.
    Complete(String),
    /// Being judged.
    AtJudge,
    /// Judged, as far as that was possible.
    Judged(Option<bool>),
}

impl Answer {
    pub(super) fn new(number: u64, judge: Option<Arc<Judge>>) -> Self {
        Self { number, judge, state: State::Open(None), end: None }
    }

    /// Takes notice of a report.
    pub(super) fn heard(&mut self, report: &Report) {
        let State::Open(last) = &mut self.state else { return };
        if self.judge.is_none() {
            return;
        }
        match report {
            Report::MessageCompleted { text, phase: None | Some(MessagePhase::FinalAnswer), .. } => {
                *last = Some(text.clone());
            }
            // What was said before a tool is no answer.
            Report::Call { .. } | Report::ToolStarted { .. } => *last = None,
            Report::Ended(NativeEnd::Completed { .. }) | Report::Proved(NativeEnd::Completed { .. }) => {
                if let Some(answer) = last.take() {
                    self.state = State::Complete(answer);
                }
            }
            _ => {}
        }
    }

    /// Keeps the end where it has to wait; else gives it back, with what was judged.
    fn hold(&mut self, mut end: End, abandoned: AbandonReason) -> Option<(End, AbandonReason)> {
        match self.state {
            State::Complete(_) | State::AtJudge if end.status == Status::Completed => {
                self.end = Some((end, abandoned));
                None
            }
            State::Judged(verdict) if end.status == Status::Completed => {
                end.output_matches = verdict;
                Some((end, abandoned))
            }
            State::Open(_) | State::Complete(_) | State::AtJudge | State::Judged(_) => Some((end, abandoned)),
        }
    }

    /// Takes the judgement of the Turn of this number, and gives back the end that waits for it. A Turn that was not completed does not wait,
    /// so the judgement of an earlier one may come to the next.
    fn judged(&mut self, number: u64, verdict: Option<bool>) -> Option<(End, AbandonReason)> {
        if number != self.number {
            return None;
        }
        self.state = State::Judged(verdict);
        self.end.take()
    }
}

impl Active {
    /// The answer that is to be judged now, and by whom.
    pub(in crate::session) fn take_answer(&mut self) -> Option<(Arc<Judge>, String)> {
        let judge = self.answer.judge.as_ref().filter(|_| matches!(self.answer.state, State::Complete(_)))?;
        let State::Complete(answer) = std::mem::replace(&mut self.answer.state, State::AtJudge) else { return None };
        Some((Arc::clone(judge), answer))
    }

    /// Takes the judgement of the Turn of this number; the end that waits for it follows.
    pub(in crate::session) async fn judged(&mut self, number: u64, verdict: Option<bool>) {
        if let Some((end, abandoned)) = self.answer.judged(number, verdict) {
            self.finish(end, abandoned).await;
        }
    }

    /// Appends the terminal and stores the end, once the answer is judged.
    pub(super) async fn finish(&mut self, end: End, abandoned: AbandonReason) {
        let Some((end, abandoned)) = self.answer.hold(end, abandoned) else { return };
        let status = end.status.name();
        let usage = end.usage.as_ref().map(|usage| self.shared.codec.encode_usage(usage));
        // The terminal is always kept.
        let terminal = self.recording.emit_one(&Event::TurnEnded(end)).map_or_else(Vec::new, |bytes| bytes.to_vec());
        let sequence = self.recording.last_sequence();
        self.unstored = None;
        let record = EndRecord {
            status: status.into(),
            ended: terminal,
            last_sequence: sequence,
            ended_ms: clock::millis(clock::now()),
            usage,
        };
        self.ending = Some(Ending { record, abandoned: reason_name(abandoned), next_try: Instant::now() });
        self.store_end().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str, phase: Option<MessagePhase>) -> Report {
        Report::MessageCompleted { id: "m".into(), text: text.into(), phase }
    }

    fn completed() -> Report {
        Report::Ended(NativeEnd::Completed { finish: None, at: None })
    }

    #[track_caller]
    fn check(reports: &[Report], want: Option<&str>) {
        let mut answer = Answer::new(1, Some(Arc::new(Judge::new("{}"))));
        for report in reports {
            answer.heard(report);
        }
        let got = if let State::Complete(text) = answer.state { Some(text) } else { None };
        assert_eq!(got.as_deref(), want);
    }

    #[test]
    fn the_final_answer_is_the_last_message_that_may_be_one() {
        let call = || Report::Call {
            call_id: "c".into(),
            name: "f".into(),
            arguments: "{}".into(),
            exact: false,
            named_by_bridge: false,
        };
        let (remark, last) = (Some(MessagePhase::Commentary), Some(MessagePhase::FinalAnswer));
        check(&[message("a", None), message("b", None), completed()], Some("b"));
        check(&[message("a", last), message("b", remark), completed()], Some("a"));
        check(&[message("a", None), call(), message("b", last), completed()], Some("b"));
        check(&[message("a", None), call(), completed()], None);
        check(&[message("a", remark), completed()], None);
        check(&[completed()], None);
        check(&[message("a", None), Report::Ended(NativeEnd::Interrupted { at: None })], None);
        check(&[message("a", None)], None);
        check(&[message("a", None), Report::Proved(NativeEnd::Completed { finish: None, at: None })], Some("a"));
    }

    fn end(status: Status) -> End {
        End {
            status,
            finish: None,
            native_at: None,
            usage: None,
            reconciled: false,
            tool_errors: Vec::new(),
            output_matches: None,
        }
    }

    fn in_state(state: State) -> Answer {
        Answer { state, ..Answer::new(2, Some(Arc::new(Judge::new("{}")))) }
    }

    #[test]
    fn a_judgement_of_an_earlier_turn_says_nothing_of_this_one() {
        for state in [|| State::Open(Some("b".into())), || State::Complete("b".into()), || State::AtJudge] {
            let mut answer = in_state(state());
            assert_eq!(answer.judged(1, Some(false)), None);
            assert_eq!(answer.state, state());
        }
        let mut answer = in_state(State::AtJudge);
        assert_eq!(answer.hold(end(Status::Completed), AbandonReason::TurnEnded), None);
        assert_eq!(answer.judged(1, Some(false)), None);
        let waited = Some((end(Status::Completed), AbandonReason::TurnEnded));
        assert_eq!((answer.judged(2, Some(true)), answer.state), (waited, State::Judged(Some(true))));
    }

    #[test]
    fn only_a_completed_turn_waits_and_tells_what_was_judged() {
        let unknown = || Status::Unknown(crate::turn::event::UnknownCause::Unsettled);
        let told = |state, status| {
            in_state(state).hold(end(status), AbandonReason::TurnEnded).map(|(end, _)| end.output_matches)
        };
        assert_eq!(told(State::AtJudge, Status::Completed), None);
        assert_eq!(told(State::Complete(String::new()), Status::Completed), None);
        assert_eq!(told(State::Judged(Some(true)), Status::Completed), Some(Some(true)));
        assert_eq!(told(State::Open(None), Status::Completed), Some(None));
        assert_eq!(told(State::AtJudge, unknown()), Some(None));
        assert_eq!(told(State::Judged(Some(true)), unknown()), Some(None));
    }
}
