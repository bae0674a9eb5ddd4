//! Results of function calls and how every adapter renders them (R-FN-4, R-FN-9).

use super::Image;

/// The result of a call, as Core gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionResult {
    /// Whether the function succeeded.
    pub success: bool,
    /// What went wrong.
    pub error: Presence<String>,
    /// What it returned.
    pub output: Presence<FunctionOutput>,
    /// What is known of a call that its function did not answer; only without success and without an output.
    pub disposition: Option<Disposition>,
}

/// What is known of a call that its function did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The function was not run.
    NotExecuted,
    /// Nobody knows whether it took effect.
    OutcomeUnknown,
    /// The connection to its server was lost during the call.
    ConnectionLost,
    /// No server was connected for it.
    NotConnected,
    /// It did not fit into the limit of calls, and was not run. Only the bridge itself says so.
    LimitExceeded,
}

impl Disposition {
    /// The text that the model reads.
    fn text(self) -> &'static str {
        match self {
            Self::NotExecuted => "The function was not run.",
            Self::OutcomeUnknown => "The outcome is unknown: the function may or may not have taken effect.",
            Self::ConnectionLost => {
                "The connection to the function's server was lost during the call; it may or may not have taken effect."
            }
            Self::NotConnected => "No server is connected for this function; it was not run.",
            Self::LimitExceeded => "The function was not run: the limit of function calls is reached.",
        }
    }
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
    /// An image that was looked at.
    Image(Image),
}

/// The text that stands first in a failed result where the Harness does not show the flag to the model.
const FAILED: &str = "The function failed.";

/// The stated rendering of a result: its parts in order, then a non-null error as the last text. Where the Harness does not show the success
/// flag to the model, a failed result begins with a fixed text; that of a disposition stands everywhere (R-FN-9).
pub fn render(result: &FunctionResult, shows_flag: bool) -> Vec<OutputPart> {
    let mut parts = Vec::new();
    match result.disposition {
        Some(disposition) => parts.push(OutputPart::Text(disposition.text().into())),
        None if !result.success && !shows_flag => parts.push(OutputPart::Text(FAILED.into())),
        None => {}
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
        let shown = |part| match part {
            OutputPart::Text(text) => text,
            OutputPart::Image(image) => format!("<{}>", image.media_type.name()),
        };
        let parts: Vec<String> = render(&result, shows_flag).into_iter().map(shown).collect();
        assert_eq!(parts, want);
    }

    fn result(success: bool, error: Presence<String>, output: Presence<FunctionOutput>) -> FunctionResult {
        FunctionResult { success, error, output, disposition: None }
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

    #[test]
    fn an_image_stands_in_its_place() {
        let data = bytes::Bytes::from_static(b"bytes");
        let image = || OutputPart::Image(Image { media_type: crate::harness::MediaType::Png, data: data.clone() });
        let output = Presence::Value(FunctionOutput::Parts(vec![image(), OutputPart::Text("a".into()), image()]));
        let given = result(false, Presence::Value("boom".into()), output);
        check(given, false, &[FAILED, "<image/png>", "a", "<image/png>", "boom"]);
    }

    #[test]
    fn a_disposition_has_its_text_in_the_place_of_the_failure() {
        for (disposition, text) in [
            (Disposition::NotExecuted, "The function was not run."),
            (Disposition::OutcomeUnknown, "The outcome is unknown: the function may or may not have taken effect."),
            (
                Disposition::ConnectionLost,
                "The connection to the function's server was lost during the call; it may or may not have taken effect.",
            ),
            (Disposition::NotConnected, "No server is connected for this function; it was not run."),
            (Disposition::LimitExceeded, "The function was not run: the limit of function calls is reached."),
        ] {
            let given = result(false, Presence::Value("boom".into()), Presence::Absent);
            let given = FunctionResult { disposition: Some(disposition), ..given };
            check(given.clone(), false, &[text, "boom"]);
            check(given, true, &[text, "boom"]);
        }
    }
}
