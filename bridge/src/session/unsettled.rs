//! What became of the inputs of a Turn whose end nobody saw (R-STE-3, R-DUR-2): what its events have stands, then what the journal has, then what
//! native history proves. What nobody can prove is not guessed.

use adapters::harness::{InputEvidence, ProvedInput, ProvedInputs};

use super::{Shared, past::input_state};
use crate::{
    journal::{SessionRecord, TurnRecord},
    refusal::Reason,
    turn::{
        closing_input,
        event::{Event, Recovered, SeenInput},
        inputs::{InputState, Phase, client_id},
    },
};

/// What native history has of the inputs of a Turn. Its processes are gone.
pub(super) async fn proved(shared: &Shared, session: &SessionRecord, turn: &TurnRecord) -> ProvedInputs {
    if turn.inputs.is_empty() {
        return ProvedInputs::default();
    }
    let found = async {
        let history = session.history.as_ref()?;
        let harness = shared.harnesses.get(history.harness.as_str())?;
        let native_session_id = turn.native_session_id.as_ref().filter(|id| **id == history.native_session_id)?;
        let home = shared.state.join("sessions").join(&session.directory).join("home");
        harness.inputs_read(&home, native_session_id, turn.native_turn_id.as_ref()?).await
    };
    found.await.unwrap_or_default()
}

/// The inputs of a Turn at their end, and the events that are still to be told of them.
pub(super) fn close(turn: &TurnRecord, found: &Recovered, proved: &ProvedInputs) -> (Vec<InputState>, Vec<Event>) {
    let mut events = Vec::new();
    let known_end = |state: &InputState| {
        let seen = found.inputs.iter().find(|seen| seen.input_id == state.input_id);
        seen.and_then(|seen| seen.end).unwrap_or(state.phase)
    };
    let known: Vec<_> =
        turn.inputs.iter().map(input_state).map(|state| InputState { phase: known_end(&state), ..state }).collect();
    let is_over = proved.is_over && is_whole(turn, &known, proved);
    let close = |record| {
        let state = input_state(record);
        let InputState { input_id, phase, .. } = state.clone();
        let seen = found.inputs.iter().find(|seen| seen.input_id == input_id);
        if let Some(SeenInput { end: Some(end), .. }) = seen {
            return InputState { phase: *end, ..state };
        }
        let client_id = client_id(&turn.start.turn_id, &input_id);
        let read = proved.read.iter().find(|input| input.client_id == client_id);
        let end = match phase {
            closed if closed.is_closed() => closed,
            _ if read.is_some() => Phase::Accepted(InputEvidence::Consumed),
            _ if is_over => Phase::Refused(Reason::TurnEnded),
            _ => Phase::OutcomeUnknown,
        };
        // Where events are lost, the one of an end that was recorded may have been seen.
        if found.is_started && !(found.is_lacking && phase.is_closed()) {
            let is_written = matches!(phase, Phase::Written) || matches!(end, Phase::Accepted(_));
            if is_written && seen.is_none() && !found.is_lacking {
                events.push(Event::InputWritten { input_id: input_id.clone() });
            }
            events.extend(closing(&input_id, end, read));
        }
        InputState { phase: end, ..state }
    };
    let inputs = turn.inputs.iter().map(close).collect();
    (inputs, events)
}

/// Whether native history has every input that is known to be read: what lacks one is older than the Turn's end.
pub(super) fn is_whole(turn: &TurnRecord, inputs: &[InputState], proved: &ProvedInputs) -> bool {
    let is_read = |input: &&InputState| matches!(input.phase, Phase::Accepted(_));
    inputs.iter().filter(is_read).all(|input| proved.has(&client_id(&turn.start.turn_id, &input.input_id)))
}

fn closing(input_id: &str, end: Phase, read: Option<&ProvedInput>) -> Option<Event> {
    match end {
        Phase::Accepted(evidence) => {
            let native = read.map(|input| input.native_id.clone()).unwrap_or_default();
            Some(Event::InputAccepted { input_id: input_id.to_owned(), evidence, native })
        }
        other => closing_input(input_id.to_owned(), other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        journal::InputRecord,
        turn::event::{Event, SeenInput},
    };

    const READ: Phase = Phase::Accepted(InputEvidence::Consumed);
    const ENDED: Phase = Phase::Refused(Reason::TurnEnded);

    fn turn(phase: Phase) -> TurnRecord {
        let detail = phase.detail().map(str::to_owned);
        let input = InputRecord { input_id: "i".into(), hash: [1; 32], phase: phase.name().into(), detail };
        TurnRecord { inputs: vec![input], ..TurnRecord::of_test() }
    }

    fn found(seen: Option<Option<Phase>>) -> Recovered {
        let inputs = seen.map(|end| SeenInput { input_id: "i".into(), end }).into_iter().collect();
        Recovered { inputs, is_started: true, ..Recovered::default() }
    }

    fn history(has_it: bool, is_over: bool) -> ProvedInputs {
        let read = has_it.then(|| ProvedInput { client_id: "t/i".into(), native_id: "n".into() });
        ProvedInputs { read: read.into_iter().collect(), is_over }
    }

    #[test]
    fn a_history_without_what_was_read_is_older_than_the_end() {
        let state = |phase| InputState { phase, ..input_state(&turn(phase).inputs[0]) };
        for (phase, has_it, want) in
            [(READ, true, true), (READ, false, false), (ENDED, false, true), (Phase::Written, false, true)]
        {
            assert_eq!(is_whole(&turn(phase), &[state(phase)], &history(has_it, true)), want, "{phase:?} {has_it}");
        }
    }

    #[track_caller]
    fn check(phase: Phase, found: &Recovered, history: &ProvedInputs, end: Phase, told: &[&str]) {
        let (inputs, events) = close(&turn(phase), found, history);
        assert_eq!(inputs[0].phase, end, "{phase:?} {found:?} {history:?}");
        let events: Vec<_> = events
            .iter()
            .map(|event| match event {
                Event::InputWritten { .. } => "written",
                Event::InputAccepted { native, .. } if native == "n" => "accepted as n",
                Event::InputAccepted { .. } => "accepted",
                Event::InputRefused { reason: Reason::TurnEnded, .. } => "refused",
                Event::InputOutcomeUnknown { .. } => "unknown",
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(events, told, "{phase:?} {found:?} {history:?}");
    }

    #[test]
    fn what_was_not_told_is_proved_or_unknown() {
        let (unseen, seen) = (found(None), found(Some(None)));
        for phase in [Phase::Received, Phase::Written] {
            check(phase, &seen, &history(true, false), READ, &["accepted as n"]);
            check(phase, &unseen, &history(true, true), READ, &["written", "accepted as n"]);
            check(phase, &seen, &history(false, true), ENDED, &["refused"]);
            check(phase, &seen, &history(false, false), Phase::OutcomeUnknown, &["unknown"]);
        }
        check(Phase::Received, &unseen, &history(false, false), Phase::OutcomeUnknown, &["unknown"]);
        check(Phase::Written, &unseen, &history(false, true), ENDED, &["written", "refused"]);
    }

    #[test]
    fn what_was_told_or_recorded_stands() {
        let all = [READ, ENDED, Phase::OutcomeUnknown];
        for end in all {
            for recorded in [Phase::Received, Phase::Written, end] {
                check(recorded, &found(Some(Some(end))), &history(true, true), end, &[]);
            }
        }
        check(READ, &found(Some(None)), &history(true, false), READ, &["accepted as n"]);
        check(READ, &found(None), &history(false, false), READ, &["written", "accepted"]);
        check(ENDED, &found(Some(None)), &history(false, false), ENDED, &["refused"]);
    }

    #[test]
    fn where_events_are_lost_or_none_came_nothing_is_told_twice_or_too_early() {
        let lacking = Recovered { is_lacking: true, ..found(None) };
        check(READ, &lacking, &history(true, true), READ, &[]);
        check(Phase::Written, &lacking, &history(true, true), READ, &["accepted as n"]);
        let unstarted = Recovered { is_started: false, ..found(None) };
        check(Phase::Received, &unstarted, &history(false, false), Phase::OutcomeUnknown, &[]);
    }
}
