//! Tables for the batches of calls, and for the limit of calls.

use adapters::harness::Disposition;

use super::*;

fn batch(id: &str, calls: &[(&str, bool)]) -> Input {
    let calls = calls.iter().map(|(id, is_function)| ((*id).to_owned(), *is_function)).collect();
    Input::Batch(Batch { id: Some(id.into()), calls })
}

fn limited(most: Option<u32>) -> Turn {
    let mut turn = Turn::new("s".into(), "p".into()).limited(most);
    turn.on(started()).unwrap();
    turn
}

/// The batch and the place with which a call is shown; an error tells the result that it gets instead.
type Shown = Result<Option<(Option<String>, u32)>, Option<Disposition>>;

fn shown(turn: &mut Turn, id: &str) -> Shown {
    let effects = turn.on(call(id)).unwrap();
    match &effects[..] {
        [Effect::StoreCall(stored), Effect::Emit(Event::FunctionCall { call })] => {
            assert_eq!(stored, call);
            Ok(call.place.clone().map(|place| (place.batch_id, place.position)))
        }
        [Effect::Answer { call_id, result }] => {
            assert_eq!((&**call_id, result.success), (id, false));
            Err(result.disposition)
        }
        other => panic!("{other:?}"),
    }
}

const EXCEEDED: Shown = Err(Some(Disposition::LimitExceeded));

#[test]
fn a_call_has_the_place_that_its_batch_gives_it() {
    let mut turn = limited(None);
    turn.on(batch("r1", &[("a", true), ("sh", false), ("b", true)])).unwrap();
    turn.on(batch("r2", &[("c", true)])).unwrap();
    for (id, want) in [("b", Some(("r1", 2))), ("c", Some(("r2", 0))), ("a", Some(("r1", 0))), ("x", None)] {
        let want = want.map(|(batch, position)| (Some(batch.to_owned()), position));
        assert_eq!(shown(&mut turn, id), Ok(want), "{id}");
    }
}

#[test]
fn a_batch_fits_as_a_whole_or_not_at_all() {
    let mut turn = limited(Some(2));
    turn.on(batch("r1", &[("a", true), ("b", true), ("c", true)])).unwrap();
    turn.on(batch("r2", &[("sh", false), ("d", true), ("sh2", false)])).unwrap();
    for id in ["a", "b", "c"] {
        assert_eq!(shown(&mut turn, id), EXCEEDED, "{id}");
        assert!(turn.known(id).is_none());
    }
    assert!(shown(&mut turn, "d").is_ok());
    assert!(shown(&mut turn, "by itself").is_ok());
    assert_eq!(shown(&mut turn, "one more"), EXCEEDED);
    assert_eq!(turn.required_actions().count(), 2);
}

#[test]
fn what_the_harness_shows_of_a_refused_call_is_no_receipt() {
    let mut turn = limited(Some(0));
    assert_eq!(shown(&mut turn, "a"), EXCEEDED);
    let effects = turn.on(report(Report::AnswerWritten { call_id: "a".into() })).unwrap();
    assert_eq!(effects, [Effect::AwaitEvidence { call_id: "a".into() }]);
    let applied = Report::AnswerApplied { call_id: "a".into(), evidence: "e", success: false };
    assert_eq!(turn.on(report(applied)).unwrap(), []);
    turn.on(report(Report::Ended(NativeEnd::Completed { finish: None, at: None }))).unwrap();
    let settled = Settlement { confirmed: true, reusable: true };
    let effects = turn.on(report(Report::Settled(settled))).unwrap();
    let [Effect::Finish { end, .. }] = &effects[..] else { panic!("{effects:?}") };
    let errors: Vec<_> = end.tool_errors.iter().map(|error| (&*error.call_id, error.code)).collect();
    assert_eq!(errors, [("a", tool_errors::Code::Failed(Some(Disposition::LimitExceeded)))]);
}
