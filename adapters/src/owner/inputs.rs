//! The pure state machine of the inputs that are added to one native turn (R-STE-1 to R-STE-3): which one is written next, what was written, and
//! what the Harness showed of it. That it has queued an input proves only that; what proves that the input stands in the history of the turn is
//! another native message.

use std::collections::VecDeque;

use crate::harness::{InputEvidence, InputPart, InputRefusal, ProvedInputs, Report};

/// The inputs of one native turn that have not come to an end.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    open: VecDeque<Input>,
    /// Our ids of those that the Harness has shown as read.
    shown: Vec<String>,
    /// The Harness has not answered for the one that was written last: one at a time, so that their order is kept.
    asked: bool,
    /// Nothing is written any more.
    stopped: bool,
    /// Something before the end is lost, so that the end proves nothing.
    in_doubt: bool,
}

/// An input that is written.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) input_id: String,
    pub(crate) client_id: String,
    /// Empty once the Harness has it.
    pub(crate) parts: Vec<InputPart>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not given to the writer.
    Held,
    /// Given to the writer.
    Sent { written: bool },
    /// The Harness has queued it.
    Queued,
}

/// What the Harness says to an input that was written.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It is queued.
    Queued,
    /// Not now.
    Later,
    /// Never.
    Refused(InputRefusal),
}

impl Inputs {
    /// Adds an input behind those before it.
    pub(crate) fn add(&mut self, input_id: String, client_id: String, parts: Vec<InputPart>) {
        self.open.push_back(Input { input_id, client_id, parts, phase: Phase::Held });
    }

    /// The input that is to be written now, if any.
    pub(crate) fn next(&mut self) -> Option<&Input> {
        if self.asked || self.stopped {
            return None;
        }
        let input = self.open.iter_mut().find(|input| input.phase == Phase::Held)?;
        input.phase = Phase::Sent { written: false };
        self.asked = true;
        Some(input)
    }

    /// An input was written to the end.
    pub(crate) fn written(&mut self, input_id: &str) -> Option<Report> {
        let input = self.open.iter_mut().find(|input| input.input_id == input_id)?;
        input.written()
    }

    /// An input was not given to the process, which is going.
    pub(crate) fn unwritten(&mut self, input_id: &str) {
        if let Some(input) = self.open.iter_mut().find(|input| input.input_id == input_id)
            && input.phase == (Phase::Sent { written: false })
        {
            input.phase = Phase::Held;
            self.stopped = true;
        }
    }

    /// The Harness has answered for the one that was written last.
    pub(crate) fn answered(&mut self, answer: Answer) -> Vec<Report> {
        self.asked = false;
        let Some(place) = self.open.iter().position(|input| matches!(input.phase, Phase::Sent { .. })) else {
            // Its evidence came first.
            return Vec::new();
        };
        let mut reports = Vec::new();
        match answer {
            Answer::Queued => {
                let input = &mut self.open[place];
                // The Harness has it, so it was written; the writer's own word is still on its way.
                reports.extend(input.written());
                input.phase = Phase::Queued;
                input.parts = Vec::new();
            }
            Answer::Later => self.open[place].phase = Phase::Held,
            Answer::Refused(why) => reports.extend(self.open.remove(place).map(|input| input.refused(why))),
        }
        reports
    }

    /// The Harness has answered that it has taken the one that was written last, into what runs under this native id. It proves no more than that.
    pub(crate) fn admitted(&mut self, native_id: &str) -> Vec<Report> {
        self.asked = false;
        let Some(place) = self.open.iter().position(|input| matches!(input.phase, Phase::Sent { .. })) else {
            return Vec::new();
        };
        let Some(mut input) = self.open.remove(place) else { return Vec::new() };
        let (written, evidence) = (input.written(), InputEvidence::Admitted);
        let (input_id, native_id) = (input.input_id, native_id.to_owned());
        written.into_iter().chain([Report::InputAccepted { input_id, evidence, native_id }]).collect()
    }

    /// The Harness shows that the input is read: the evidence (R-STE-1). Nothing where it is none of these.
    pub(crate) fn read(&mut self, client_id: &str, native_id: String) -> Vec<Report> {
        let Some(place) = self.open.iter().position(|input| input.client_id == client_id) else { return Vec::new() };
        let Some(mut input) = self.open.remove(place) else { return Vec::new() };
        let written = input.written();
        self.shown.push(input.client_id);
        let (input_id, evidence) = (input.input_id, InputEvidence::Consumed);
        written.into_iter().chain([Report::InputAccepted { input_id, evidence, native_id }]).collect()
    }

    /// The Harness tells that it will not read the input.
    pub(crate) fn withdrawn(&mut self, client_id: &str) -> Vec<Report> {
        let Some(place) = self.open.iter().position(|input| input.client_id == client_id) else { return Vec::new() };
        let Some(mut input) = self.open.remove(place) else { return Vec::new() };
        self.asked &= !matches!(input.phase, Phase::Sent { .. });
        let written = input.written();
        written.into_iter().chain([input.refused(InputRefusal::TurnEnded)]).collect()
    }

    /// Whether the Harness has one, or may have one, that it has not read.
    pub(crate) fn are_unread(&self) -> bool {
        self.open.iter().any(|input| input.phase != Phase::Held)
    }

    /// Whether the word on one that was written may be lost, so that nobody can wait for it.
    pub(crate) fn are_lost(&self) -> bool {
        self.in_doubt && self.are_unread()
    }

    /// Whether one is left.
    pub(crate) fn are_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// The turn is being stopped: what is not written never will be.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Something that the Harness said is lost.
    pub(crate) fn doubt(&mut self) {
        self.in_doubt = true;
    }

    /// The Harness told the end of the turn, and all that it showed before is known: what it has not read by then it never reads.
    pub(crate) fn ended(&mut self) -> Vec<Report> {
        if self.in_doubt {
            return Vec::new();
        }
        self.open.drain(..).map(|input| input.refused(InputRefusal::TurnEnded)).collect()
    }

    /// The process is gone, and this stands in its history.
    pub(crate) fn proved(&mut self, proved: ProvedInputs) -> Vec<Report> {
        let mut reports = Vec::new();
        // An end that lacks what was read is an older one.
        let is_over = proved.is_over && self.shown.iter().all(|id| proved.has(id));
        for input in proved.read {
            reports.extend(self.read(&input.client_id, input.native_id));
        }
        if is_over {
            reports.extend(self.open.drain(..).map(|input| input.refused(InputRefusal::TurnEnded)));
        }
        reports
    }

    /// Our ids of those that the Harness has shown as read.
    pub(crate) fn shown(&self) -> &[String] {
        &self.shown
    }

    /// The last word before the end is reported: what may have been written is called so, and what was not is refused.
    pub(crate) fn leave(&mut self) -> Vec<Report> {
        self.stopped = true;
        let left = self.open.drain(..);
        let last = |mut input: Input| match input.phase {
            Phase::Held => Some(input.refused(InputRefusal::TurnEnded)),
            Phase::Sent { .. } | Phase::Queued => input.written(),
        };
        left.filter_map(last).collect()
    }
}

impl Input {
    fn written(&mut self) -> Option<Report> {
        let is_news = self.phase == (Phase::Sent { written: false });
        self.phase = if is_news { Phase::Sent { written: true } } else { self.phase };
        is_news.then(|| Report::InputWritten { input_id: self.input_id.clone() })
    }

    fn refused(self, why: InputRefusal) -> Report {
        Report::InputRefused { input_id: self.input_id, why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::ProvedInput;

    /// What happens to the inputs `a` and `b`, in words, and what is told of it.
    #[track_caller]
    fn check(happens: &[&str], want: &[&str]) {
        let mut inputs = Inputs::default();
        for id in ["a", "b"] {
            inputs.add(id.into(), format!("t/{id}"), vec!["text".into()]);
        }
        let mut told = Vec::new();
        for event in happens {
            let (what, id) = event.split_once(' ').unwrap_or((event, ""));
            let proved = |is_over| ProvedInputs {
                read: vec![ProvedInput { client_id: "t/a".into(), native_id: "n".into() }],
                is_over,
            };
            let reports = match what {
                "next" => {
                    told.push(inputs.next().map_or("nothing".to_owned(), |input| format!("write {}", input.input_id)));
                    Vec::new()
                }
                "written" => inputs.written(id).into_iter().collect(),
                "withdrawn" => inputs.withdrawn(&format!("t/{id}")),
                "unread" => {
                    told.push(format!("unread {}", inputs.are_unread()));
                    Vec::new()
                }
                "lost" => {
                    told.push(format!("lost {}", inputs.are_lost()));
                    Vec::new()
                }
                "unwritten" => {
                    inputs.unwritten(id);
                    Vec::new()
                }
                "queued" => inputs.answered(Answer::Queued),
                "later" => inputs.answered(Answer::Later),
                "refused" => inputs.answered(Answer::Refused(InputRefusal::TurnEnded)),
                "read" => inputs.read(&format!("t/{id}"), "n".into()),
                "stop" => {
                    inputs.stop();
                    Vec::new()
                }
                "doubt" => {
                    inputs.doubt();
                    Vec::new()
                }
                "ended" => inputs.ended(),
                "proved" => inputs.proved(proved(false)),
                "proved_over" => inputs.proved(proved(true)),
                "leave" => inputs.leave(),
                other => panic!("{other}"),
            };
            told.extend(reports.into_iter().map(|report| match report {
                Report::InputWritten { input_id } => format!("{input_id} written"),
                Report::InputAccepted { input_id, evidence: InputEvidence::Consumed, native_id } => {
                    format!("{input_id} read as {native_id}")
                }
                Report::InputRefused { input_id, why: InputRefusal::TurnEnded } => format!("{input_id} refused"),
                other => panic!("{other:?}"),
            }));
        }
        assert_eq!(told, want, "{happens:?}");
    }

    #[test]
    fn an_end_that_lacks_what_was_read_is_an_older_one() {
        let mut inputs = Inputs::default();
        for id in ["a", "b"] {
            inputs.add(id.into(), format!("t/{id}"), vec!["text".into()]);
            assert!(inputs.next().is_some());
            assert!(!inputs.answered(Answer::Queued).is_empty());
        }
        assert_eq!(inputs.read("t/a", "n".into()).len(), 1);
        let over = |read: &[&str]| ProvedInputs {
            read: read.iter().map(|id| ProvedInput { client_id: (*id).into(), native_id: "n".into() }).collect(),
            is_over: true,
        };
        assert_eq!(inputs.proved(over(&[])), []);
        assert_eq!(inputs.proved(over(&["t/a"])).len(), 1, "the other one was not read");
    }

    #[test]
    fn one_is_written_after_the_other_and_read_in_order() {
        check(
            &[
                "next",
                "next",
                "written a",
                "next",
                "queued",
                "next",
                "written b",
                "queued",
                "read a",
                "read b",
                "ended",
            ],
            &["write a", "nothing", "a written", "nothing", "write b", "b written", "a read as n", "b read as n"],
        );
    }

    #[test]
    fn evidence_and_answers_may_overtake_the_word_of_the_writer() {
        check(
            &["next", "read a", "written a", "next", "queued", "next", "queued", "written b", "read b"],
            &["write a", "a written", "a read as n", "nothing", "write b", "b written", "b read as n"],
        );
    }

    #[test]
    fn what_is_not_taken_now_is_written_again_before_the_next_one() {
        check(
            &["next", "written a", "later", "next", "written a", "queued", "next"],
            &["write a", "a written", "write a", "a written", "write b"],
        );
    }

    #[test]
    fn the_end_refuses_what_was_not_read_unless_something_is_lost() {
        check(&["next", "written a", "queued", "ended"], &["write a", "a written", "a refused", "b refused"]);
        check(&["next", "refused", "next", "read b"], &["write a", "a refused", "write b", "b written", "b read as n"]);
        check(&["next", "doubt", "ended", "leave"], &["write a", "a written", "b refused"]);
        check(
            &["doubt", "lost", "next", "lost", "read a", "lost"],
            &["lost false", "write a", "lost true", "a written", "a read as n", "lost false"],
        );
        check(&["next", "lost"], &["write a", "lost false"]);
        check(&["stop", "next", "ended"], &["nothing", "a refused", "b refused"]);
    }

    #[test]
    fn what_the_harness_gives_back_is_refused() {
        check(
            &["unread", "next", "unread", "withdrawn a", "next", "written b", "queued", "withdrawn b", "unread"],
            &[
                "unread false",
                "write a",
                "unread true",
                "a written",
                "a refused",
                "write b",
                "b written",
                "b refused",
                "unread false",
            ],
        );
    }

    #[test]
    fn a_process_that_is_gone_proves_what_its_history_has() {
        let begun = ["next", "written a", "queued", "next", "written b", "queued"];
        let told = ["write a", "a written", "write b", "b written"];
        check(&[&begun[..], &["proved", "leave"]].concat(), &[&told[..], &["a read as n"]].concat());
        check(&[&begun[..], &["proved_over", "leave"]].concat(), &[&told[..], &["a read as n", "b refused"]].concat());
        check(&["next", "unwritten a", "next", "leave"], &["write a", "nothing", "a refused", "b refused"]);
    }
}
