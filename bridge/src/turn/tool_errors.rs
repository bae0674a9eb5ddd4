//! The function calls of a completed Turn that did not succeed (R-FN-9). Pure.

use adapters::harness::{Disposition, FunctionResult, Presence};

/// Bytes that are kept of the error of a result.
const MAX_MESSAGE: usize = 4096;
/// Bytes of all that one end tells: it stands in answers beside other things, which have a limit together (R-API-7).
const MAX_TOGETHER: usize = 512 << 10;
/// What one takes beside its texts.
const OVERHEAD: usize = 32;

/// A call that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ToolError {
    /// The call.
    pub(crate) call_id: String,
    /// The function.
    pub(crate) name: String,
    /// What is known of it.
    pub(crate) code: Code,
    /// The error of its result.
    pub(crate) message: String,
}

/// What is known of a call that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// Its result says that it failed, and perhaps how.
    Failed(Option<Disposition>),
    /// It took no result.
    Abandoned,
}

/// A result that says that its call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    disposition: Option<Disposition>,
    message: String,
}

impl Failed {
    /// What a result says, where it says that.
    pub(crate) fn of(result: &FunctionResult) -> Option<Self> {
        let message = match &result.error {
            Presence::Value(text) => text[..text.floor_char_boundary(MAX_MESSAGE)].to_owned(),
            Presence::Absent | Presence::Null => String::new(),
        };
        (!result.success).then_some(Self { disposition: result.disposition, message })
    }
}

/// What is known of a call at the end of its Turn.
#[derive(Debug)]
pub(crate) struct Ended<'a> {
    pub(crate) call_id: &'a str,
    pub(crate) name: &'a str,
    pub(crate) failed: Option<Failed>,
    pub(crate) is_abandoned: bool,
}

/// Those of the calls that did not succeed, in order, as many of the first ones as there is room for.
pub(crate) fn list<'a>(calls: impl Iterator<Item = Ended<'a>>) -> Vec<ToolError> {
    let errors = calls.filter_map(|Ended { call_id, name, failed, is_abandoned }| {
        let (code, message) = match failed {
            Some(Failed { disposition, message }) => (Code::Failed(disposition), message),
            None if is_abandoned => (Code::Abandoned, String::new()),
            None => return None,
        };
        Some(ToolError { call_id: call_id.to_owned(), name: name.to_owned(), code, message })
    });
    let mut room = MAX_TOGETHER;
    let has_room = |error: &ToolError| {
        let size = error.call_id.len() + error.name.len() + error.message.len() + OVERHEAD;
        let left = room.checked_sub(size);
        room = left.unwrap_or_default();
        left.is_some()
    };
    errors.take_while(has_room).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(message: &str) -> Option<Failed> {
        let (error, output) = (Presence::Value(message.to_owned()), Presence::Absent);
        Failed::of(&FunctionResult { success: false, error, output, disposition: Some(Disposition::NotExecuted) })
    }

    fn ended(call_id: &str, failed: Option<Failed>, is_abandoned: bool) -> Ended<'_> {
        Ended { call_id, name: "f", failed, is_abandoned }
    }

    #[test]
    fn what_failed_or_took_no_result_is_listed_in_order() {
        let calls = [
            ended("a", None, true),
            ended("b", failed("boom"), false),
            ended("c", None, false),
            // The result said so before the call was given up.
            ended("d", failed(""), true),
        ];
        let told: Vec<_> = list(calls.into_iter()).into_iter().map(|e| (e.call_id, e.code, e.message)).collect();
        let failed = Code::Failed(Some(Disposition::NotExecuted));
        let want = [("a", Code::Abandoned, ""), ("b", failed, "boom"), ("d", failed, "")];
        assert_eq!(told, want.map(|(id, code, message)| (id.to_owned(), code, message.to_owned())));
    }

    #[test]
    fn a_success_is_no_failure() {
        let (error, output) = (Presence::Value("odd".to_owned()), Presence::Absent);
        assert_eq!(Failed::of(&FunctionResult { success: true, error, output, disposition: None }), None);
    }

    #[test]
    fn an_end_stays_small() {
        let long = "é".repeat(MAX_MESSAGE);
        let calls = (0..10_000).map(|_| ended("c", failed(&long), false));
        let told = list(calls);
        assert!(told.iter().all(|error| error.message.len() == MAX_MESSAGE));
        assert!((100..=MAX_TOGETHER / MAX_MESSAGE).contains(&told.len()), "{}", told.len());
    }
}
