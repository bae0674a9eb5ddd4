//! What the Turns of an Executor may be given: the part of the declaration that the Executor was admitted with (R-CAP-4, R-CAP-6). Pure.

use adapters::harness::{
    Capability, Declaration, FunctionOutput, FunctionResult, InputPart, OutputPart, Placement, Presence, render,
};

use super::Answer;
use crate::refusal::{Reason, Refusal};

/// What was declared for the placement of an Executor when it was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Supports {
    steering: bool,
    message_images: bool,
    result_images: bool,
    failed_result_images: bool,
    blank_messages: bool,
    result_characters: Option<usize>,
}

impl Supports {
    /// What this declaration has for the placement.
    pub(super) fn of(declaration: &Declaration, placement: &Placement) -> Self {
        let has = |capability| declaration.has(placement, capability);
        Self {
            steering: has(Capability::Steering),
            message_images: has(Capability::MessageImages),
            result_images: has(Capability::FunctionResultImages),
            failed_result_images: declaration.limits.failed_result_images,
            blank_messages: !declaration.limits.refuses_blank_messages,
            result_characters: declaration.limits.result_characters,
        }
    }

    /// Whether a Turn may begin with this input.
    pub(super) fn start(self, input: &[InputPart]) -> Answer<()> {
        let image = input.iter().position(|part| matches!(part, InputPart::Image(_)));
        if let Some(index) = image.filter(|_| !self.message_images) {
            return Err(
                not_declared("the Harness takes no images in messages here").at(format!("input[{index}].image"))
            );
        }
        if !self.blank_messages && input.iter().all(is_blank) {
            let refusal = Refusal::invalid("input", "the Harness takes no message that is only white space");
            return Err(refusal.with("http_status", 400).with("public_code", "invalid_request_error"));
        }
        Ok(())
    }

    /// Whether this input may be added to a Turn.
    pub(super) fn steer(self, input: &[InputPart]) -> Answer<()> {
        if !self.steering {
            return Err(not_declared("the Harness takes no input while a Turn runs"));
        }
        self.start(input)
    }

    /// Whether a call may have this result.
    pub(super) fn result(self, result: &FunctionResult) -> Answer<()> {
        let takes_images = self.result_images && (result.success || self.failed_result_images);
        let image = match &result.output {
            Presence::Value(FunctionOutput::Parts(parts)) => {
                parts.iter().position(|part| matches!(part, OutputPart::Image(_)))
            }
            Presence::Value(FunctionOutput::Text(_)) | Presence::Absent | Presence::Null => None,
        };
        if let Some(index) = image.filter(|_| !takes_images) {
            let field = format!("output.parts[{index}].image");
            return Err(invalid("the Harness takes no images in such a result here").at(field));
        }
        let Some(most) = self.result_characters.filter(|_| result.success) else { return Ok(()) };
        match characters(result) {
            found if found > most => {
                let text = format!("the texts of the result have {found} characters; the Harness takes {most}");
                Err(invalid(&text).at("output"))
            }
            _ => Ok(()),
        }
    }
}

/// White space of either of the two languages that look at messages on their way: what Rust has as such, and the byte order mark.
fn is_blank(part: &InputPart) -> bool {
    match part {
        InputPart::Text(text) => text.chars().all(|c| c.is_whitespace() || c == '\u{feff}'),
        InputPart::Image(_) => false,
    }
}

/// The UTF-16 code units of the texts that the model reads.
fn characters(of: &FunctionResult) -> usize {
    let texts = render(of, true).into_iter().map(|part| match part {
        OutputPart::Text(text) => text.encode_utf16().count(),
        OutputPart::Image(_) => 0,
    });
    texts.sum()
}

fn invalid(text: &str) -> Refusal {
    let refusal = Refusal::new(Reason::InvalidResult, text);
    refusal.with("http_status", 400).with("public_code", "invalid_request_error")
}

fn not_declared(text: &str) -> Refusal {
    Refusal::new(Reason::UnsupportedConfiguration, text).with("http_status", 400)
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use adapters::harness::{Image, MediaType};
    use bytes::Bytes;

    use super::*;

    const ALL: Supports = Supports {
        steering: true,
        message_images: true,
        result_images: true,
        failed_result_images: true,
        blank_messages: true,
        result_characters: None,
    };

    fn image() -> Image {
        Image { media_type: MediaType::Png, data: Bytes::from_static(b"bytes") }
    }

    fn input(with_image: bool) -> Vec<InputPart> {
        let image = with_image.then(|| InputPart::Image(image()));
        [InputPart::from("look")].into_iter().chain(image).collect()
    }

    fn result(success: bool, with_image: bool) -> FunctionResult {
        let image = with_image.then(|| OutputPart::Image(image()));
        let parts = [OutputPart::Text("seen".into())].into_iter().chain(image).collect();
        let output = Presence::Value(FunctionOutput::Parts(parts));
        FunctionResult { success, error: Presence::Absent, output, disposition: None }
    }

    #[track_caller]
    fn refused(answer: Answer<()>, reason: Reason, field: Option<&str>) {
        let refusal = answer.unwrap_err();
        assert_eq!((refusal.reason, refusal.field.as_deref()), (reason, field));
    }

    #[test]
    fn what_is_declared_is_taken() {
        for with_image in [false, true] {
            assert_eq!(ALL.start(&input(with_image)), Ok(()));
            assert_eq!(ALL.steer(&input(with_image)), Ok(()));
            assert_eq!(ALL.result(&result(true, with_image)), Ok(()));
            assert_eq!(ALL.result(&result(false, with_image)), Ok(()));
        }
    }

    #[test]
    fn a_message_of_white_space_is_for_those_who_take_it() {
        let strict = Supports { blank_messages: false, ..ALL };
        for blank in ["", " ", "\t\r\n\u{b}\u{c}", "\u{85}\u{a0}\u{1680}\u{2028}\u{3000}\u{feff}"] {
            let blank = InputPart::from(blank);
            assert_eq!(ALL.start(from_ref(&blank)), Ok(()));
            refused(strict.start(from_ref(&blank)), Reason::InvalidRequest, Some("input"));
            refused(strict.steer(&[blank.clone(), blank.clone()]), Reason::InvalidRequest, Some("input"));
            for beside in [InputPart::Image(image()), InputPart::from("x"), InputPart::from("\u{200b}")] {
                assert_eq!(strict.start(&[blank.clone(), beside]), Ok(()));
            }
        }
    }

    #[test]
    fn a_result_has_as_many_characters_as_the_harness_takes() {
        let limited = Supports { result_characters: Some(4), ..ALL };
        let text = |success, output: &str, error: &str| FunctionResult {
            success,
            error: if error.is_empty() { Presence::Null } else { Presence::Value(error.into()) },
            output: Presence::Value(FunctionOutput::Text(output.into())),
            disposition: None,
        };
        for (output, error, is_taken) in [
            ("abcd", "", true),
            ("abcde", "", false),
            ("äöüß", "", true),
            ("😀😀", "", true),
            ("😀😀a", "", false),
            ("abc", "d", true),
            ("abc", "de", false),
        ] {
            let answer = limited.result(&text(true, output, error));
            assert_eq!(answer.is_ok(), is_taken, "{output} {error}");
            for unlimited in [ALL.result(&text(true, output, error)), limited.result(&text(false, output, error))] {
                assert_eq!(unlimited, Ok(()));
            }
        }
        // The texts of a part with an image beside count, the image does not.
        assert_eq!(limited.result(&result(true, true)), Ok(()));
        refused(limited.result(&text(true, "abcde", "")), Reason::InvalidResult, Some("output"));
    }

    #[test]
    fn what_is_not_declared_is_refused_where_it_is_asked_for() {
        let unsupported = Reason::UnsupportedConfiguration;
        let none = Supports { steering: false, ..ALL };
        refused(none.steer(&input(false)), unsupported, None);
        assert_eq!(none.start(&input(true)), Ok(()));
        let none = Supports { message_images: false, ..ALL };
        refused(none.start(&input(true)), unsupported, Some("input[1].image"));
        refused(none.steer(&input(true)), unsupported, Some("input[1].image"));
        assert_eq!((none.start(&input(false)), none.steer(&input(false))), (Ok(()), Ok(())));
        let image = Some("output.parts[1].image");
        let none = Supports { result_images: false, ..ALL };
        refused(none.result(&result(true, true)), Reason::InvalidResult, image);
        assert_eq!(none.result(&result(false, false)), Ok(()));
        let none = Supports { failed_result_images: false, ..ALL };
        refused(none.result(&result(false, true)), Reason::InvalidResult, image);
        assert_eq!((none.result(&result(true, true)), none.result(&result(false, false))), (Ok(()), Ok(())));
    }
}
