//! Results of function calls and how every adapter renders them (R-FN-4, R-FN-9).

/// The result of a call, as Core gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionResult {
    /// Whether the function succeeded.
    pub success: bool,
    /// What went wrong.
    pub error: Presence<String>,
    /// What it returned.
    pub output: Presence<FunctionOutput>,
}

/// A member of a JSON object: absent, null and a value are three contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence<T> {
    /// Not there.
    Absent,
    /// JSON null.
    Null,
    /// A value.
    Value(T),
}

/// What a function returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FunctionOutput {
    /// One text.
    Text(String),
    /// Ordered parts.
    Parts(Vec<OutputPart>),
}

/// One part of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputPart {
    /// A text.
    Text(String),
}

/// The text that stands first in a failed result where the Harness does not show the flag to the model.
const FAILED: &str = "The function failed.";

/// The stated rendering of a result: its parts in order, then a non-null error as the last text. Where the Harness does not show the success
/// flag to the model, a failed result begins with a fixed text (R-FN-9).
pub fn render(result: &FunctionResult, shows_flag: bool) -> Vec<OutputPart> {
    let mut parts = Vec::new();
    if !result.success && !shows_flag {
        parts.push(OutputPart::Text(FAILED.into()));
    }
    match &result.output {
        Presence::Absent | Presence::Null => {}
        Presence::Value(FunctionOutput::Text(text)) => parts.push(OutputPart::Text(text.clone())),
        Presence::Value(FunctionOutput::Parts(given)) => parts.extend(given.iter().cloned()),
    }
    if let Presence::Value(error) = &result.error {
        parts.push(OutputPart::Text(error.clone()));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(result: FunctionResult, shows_flag: bool, want: &[&str]) {
        let texts: Vec<String> = render(&result, shows_flag).into_iter().map(|OutputPart::Text(text)| text).collect();
        assert_eq!(texts, want);
    }

    fn result(success: bool, error: Presence<String>, output: Presence<FunctionOutput>) -> FunctionResult {
        FunctionResult { success, error, output }
    }

    #[test]
    fn results_are_rendered_as_stated() {
        let parts = |texts: &[&str]| {
            Presence::Value(FunctionOutput::Parts(texts.iter().map(|t| OutputPart::Text((*t).into())).collect()))
        };
        let text = |text: &str| Presence::Value(FunctionOutput::Text(text.into()));
        check(result(true, Presence::Absent, text("42")), false, &["42"]);
        check(result(true, Presence::Null, Presence::Null), false, &[]);
        check(result(true, Presence::Value("odd".into()), parts(&["a", "b"])), false, &["a", "b", "odd"]);
        check(result(false, Presence::Value("boom".into()), text("half")), false, &[FAILED, "half", "boom"]);
        check(result(false, Presence::Absent, Presence::Absent), false, &[FAILED]);
        check(result(false, Presence::Value("boom".into()), text("half")), true, &["half", "boom"]);
    }
}
