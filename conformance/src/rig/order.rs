//! The order of a Turn's events (R-EVT-1, R-EVT-2), checked on whatever a scenario observes from the first event to the
//! end, and a short name for each event.

use std::collections::BTreeMap;

use proto::v1::{self, event::Kind};

use super::Observed;

/// How far an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Closed,
}

/// What an event does to an item. Items of different kinds have ids of their own.
enum Step<'a> {
    Opens(&'static str, &'a str),
    Grows(&'static str, &'a str),
    Closes(&'static str, &'a str),
    /// Closes it, where it was never opened too.
    Refuses(&'static str, &'a str),
    /// Concerns no item.
    Nothing,
}

impl Observed {
    /// The short names of the events, in order, runs of the same one once.
    #[must_use]
    pub fn story(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.kinds().map(name).collect();
        names.dedup();
        names
    }

    /// Checks sequences without holes, the Turn's id, the start first, the end last and once, and that every item is
    /// opened before it grows and closed once before the end. A Turn that never reached the Harness has its end alone.
    ///
    /// # Errors
    /// The first event that breaks the order, with the story so far.
    pub fn check_order(&self) -> anyhow::Result<()> {
        let mut items = BTreeMap::new();
        let turn = self.events.first().map(|event| event.turn_id.as_str());
        let mut before = 0;
        let mut is_lacking = false;
        for (place, event) in (1u64..).zip(&self.events) {
            let broken = |why: &str| anyhow::anyhow!("{why}: {event:?}\nin {:?}", self.story());
            // What is omitted is said at the last sequence of its range.
            let in_order = match &event.kind {
                Some(Kind::EventsOmitted(omitted)) => {
                    (omitted.first, omitted.last) == (before + 1, event.sequence) && omitted.first <= omitted.last
                }
                _ => event.sequence == before + 1,
            };
            anyhow::ensure!(in_order, broken("a sequence is out of order"));
            before = event.sequence;
            is_lacking |= matches!(&event.kind, Some(Kind::EventsOmitted(omitted)) if omitted.reason() == v1::OmissionReason::BridgeRestarted);
            anyhow::ensure!(Some(event.turn_id.as_str()) == turn, broken("an event of another Turn"));
            anyhow::ensure!(event.time.is_some(), broken("an event without a time"));
            let Some(kind) = &event.kind else { return Err(broken("an event without a kind")) };
            let first = matches!(kind, Kind::TurnStarted(_)) || (self.events.len() == 1 && ends(kind));
            anyhow::ensure!(first == (place == 1), broken("`turn_started` is first and once"));
            let last = usize::try_from(place) == Ok(self.events.len());
            anyhow::ensure!(ends(kind) == last, broken("`turn_ended` is last and once"));
            let fits = match step(kind) {
                Step::Opens(class, id) => items.insert((class, id), Phase::Open).is_none() && !id.is_empty(),
                Step::Grows(class, id) => items.get(&(class, id)) == Some(&Phase::Open),
                // The call itself, or the writing of the input, may be among what was lost.
                Step::Closes(class @ ("call" | "input"), id) if is_lacking && !items.contains_key(&(class, id)) => true,
                Step::Closes(class, id) => items.insert((class, id), Phase::Closed) == Some(Phase::Open),
                Step::Refuses(class, id) => items.insert((class, id), Phase::Closed) != Some(Phase::Closed),
                Step::Nothing => true,
            };
            anyhow::ensure!(fits, broken("an item out of order"));
        }
        let open: Vec<_> = items.iter().filter(|(_, phase)| **phase == Phase::Open).map(|(item, _)| item).collect();
        anyhow::ensure!(open.is_empty(), "never closed: {open:?}\nin {:?}", self.story());
        Ok(())
    }
}

fn ends(kind: &Kind) -> bool {
    matches!(kind, Kind::TurnEnded(_))
}

fn step(kind: &Kind) -> Step<'_> {
    match kind {
        Kind::MessageStarted(v1::MessageStarted { item_id, .. }) => Step::Opens("message", item_id),
        Kind::MessageDelta(v1::MessageDelta { item_id, .. }) => Step::Grows("message", item_id),
        Kind::MessageCompleted(v1::MessageCompleted { item_id, .. })
        | Kind::MessageDiscarded(v1::MessageDiscarded { item_id, .. }) => Step::Closes("message", item_id),
        Kind::ReasoningStarted(v1::ReasoningStarted { item_id, .. }) => Step::Opens("reasoning", item_id),
        Kind::ReasoningDelta(v1::ReasoningDelta { item_id, .. }) => Step::Grows("reasoning", item_id),
        Kind::ReasoningCompleted(v1::ReasoningCompleted { item_id, .. }) => Step::Closes("reasoning", item_id),
        Kind::ToolStarted(v1::ToolStarted { item_id, .. }) => Step::Opens("tool", item_id),
        Kind::ToolOutput(v1::ToolOutput { item_id, .. }) => Step::Grows("tool", item_id),
        Kind::ToolCompleted(v1::ToolCompleted { item_id, .. }) => Step::Closes("tool", item_id),
        Kind::FunctionCall(v1::FunctionCall { call_id, .. }) => Step::Opens("call", call_id),
        Kind::FunctionResultApplied(v1::FunctionResultApplied { call_id, .. })
        | Kind::FunctionCallAbandoned(v1::FunctionCallAbandoned { call_id, .. }) => Step::Closes("call", call_id),
        Kind::InputWritten(v1::InputWritten { input_id }) => Step::Opens("input", input_id),
        Kind::InputAccepted(v1::InputAccepted { input_id, .. }) => Step::Closes("input", input_id),
        // What was never written, or not for sure, has no event that says so.
        Kind::InputRefused(v1::InputRefused { input_id, .. })
        | Kind::InputOutcomeUnknown(v1::InputOutcomeUnknown { input_id }) => Step::Refuses("input", input_id),
        Kind::FunctionProgress(v1::FunctionProgress { call_id, .. }) => Step::Grows("call", call_id),
        Kind::TurnStarted(_)
        | Kind::ProviderRetry(_)
        | Kind::Usage(_)
        | Kind::Notice(_)
        | Kind::EventsOmitted(_)
        | Kind::TurnEnded(_) => Step::Nothing,
    }
}

/// The name of an event's kind, as the protocol has it.
#[must_use]
pub fn name(kind: &Kind) -> &'static str {
    match kind {
        Kind::TurnStarted(_) => "turn_started",
        Kind::MessageStarted(_) => "message_started",
        Kind::MessageDelta(_) => "message_delta",
        Kind::MessageCompleted(_) => "message_completed",
        Kind::MessageDiscarded(_) => "message_discarded",
        Kind::ReasoningStarted(_) => "reasoning_started",
        Kind::ReasoningDelta(_) => "reasoning_delta",
        Kind::ReasoningCompleted(_) => "reasoning_completed",
        Kind::ToolStarted(_) => "tool_started",
        Kind::ToolOutput(_) => "tool_output",
        Kind::ToolCompleted(_) => "tool_completed",
        Kind::FunctionCall(_) => "function_call",
        Kind::FunctionResultApplied(_) => "function_result_applied",
        Kind::FunctionCallAbandoned(_) => "function_call_abandoned",
        Kind::FunctionProgress(_) => "function_progress",
        Kind::InputWritten(_) => "input_written",
        Kind::InputAccepted(_) => "input_accepted",
        Kind::InputRefused(_) => "input_refused",
        Kind::InputOutcomeUnknown(_) => "input_outcome_unknown",
        Kind::ProviderRetry(_) => "provider_retry",
        Kind::Usage(_) => "usage",
        Kind::Notice(_) => "notice",
        Kind::EventsOmitted(_) => "events_omitted",
        Kind::TurnEnded(_) => "turn_ended",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(kinds: Vec<Kind>) -> Observed {
        let event = |(sequence, kind)| v1::Event {
            turn_id: "t".into(),
            sequence,
            time: Some(prost_types::Timestamp::default()),
            kind: Some(kind),
        };
        Observed { events: (1..).zip(kinds).map(event).collect() }
    }

    fn started() -> Kind {
        Kind::TurnStarted(v1::TurnStarted::default())
    }

    fn ended() -> Kind {
        Kind::TurnEnded(v1::TurnEnded::default())
    }

    fn opened() -> Kind {
        Kind::MessageStarted(v1::MessageStarted { item_id: "m".into(), native_id: String::new() })
    }

    fn delta() -> Kind {
        Kind::MessageDelta(v1::MessageDelta { item_id: "m".into(), text: String::new() })
    }

    fn closed() -> Kind {
        Kind::MessageDiscarded(v1::MessageDiscarded { item_id: "m".into(), ..v1::MessageDiscarded::default() })
    }

    #[test]
    fn a_whole_turn_fits_and_each_break_is_found() {
        let whole = observed(vec![started(), opened(), delta(), delta(), closed(), ended()]);
        whole.check_order().unwrap();
        assert_eq!(
            whole.story(),
            ["turn_started", "message_started", "message_delta", "message_discarded", "turn_ended"]
        );
        observed(vec![ended()]).check_order().unwrap();
        for (kinds, want) in [
            (vec![started()], "`turn_ended` is last"),
            (vec![opened(), closed(), ended()], "`turn_started` is first"),
            (vec![started(), started(), ended()], "`turn_started` is first"),
            (vec![started(), ended(), ended()], "`turn_ended` is last"),
            (vec![started(), delta(), ended()], "an item out of order"),
            (vec![started(), opened(), ended()], "never closed"),
            (vec![started(), opened(), closed(), delta(), ended()], "an item out of order"),
            (vec![started(), opened(), closed(), opened(), closed(), ended()], "an item out of order"),
        ] {
            let error = observed(kinds).check_order().unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
        let mut holed = whole;
        holed.events[2].sequence = 7;
        assert!(holed.check_order().unwrap_err().to_string().contains("a sequence is out of order"));
    }
}
