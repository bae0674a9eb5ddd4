//! What the Turns of an Executor may be given: the part of the declaration that the Executor was admitted with (R-CAP-4, R-CAP-6). Pure.

use adapters::harness::{
    Capability, Declaration, FunctionOutput, FunctionResult, InputPart, OutputPart, Placement, Presence,
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
        }
    }

    /// Whether a Turn may begin with this input.
    pub(super) fn start(self, input: &[InputPart]) -> Answer<()> {
        let image = input.iter().position(|part| matches!(part, InputPart::Image(_)));
        match image.filter(|_| !self.message_images) {
            None => Ok(()),
            Some(index) => {
                Err(not_declared("the Harness takes no images in messages here").at(format!("input[{index}].image")))
            }
        }
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
        let Presence::Value(FunctionOutput::Parts(parts)) = &result.output else { return Ok(()) };
        let takes_images = self.result_images && (result.success || self.failed_result_images);
        let image = parts.iter().position(|part| matches!(part, OutputPart::Image(_)));
        match image.filter(|_| !takes_images) {
            None => Ok(()),
            Some(index) => {
                let refusal = Refusal::new(Reason::InvalidResult, "the Harness takes no images in such a result here");
                let refusal = refusal.at(format!("output.parts[{index}].image"));
                Err(refusal.with("http_status", 400).with("public_code", "invalid_request_error"))
            }
        }
    }
}

fn not_declared(text: &str) -> Refusal {
    Refusal::new(Reason::UnsupportedConfiguration, text).with("http_status", 400)
}

#[cfg(test)]
mod tests {
    use adapters::harness::{Image, MediaType};
    use bytes::Bytes;

    use super::*;

    const ALL: Supports =
        Supports { steering: true, message_images: true, result_images: true, failed_result_images: true };

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
