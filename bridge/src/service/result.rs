//! Results of functions, wire to domain. What is a matter of a result alone is told after what is known of its call (R-FN-5).

use std::collections::HashSet;

use adapters::harness::{Disposition, FunctionOutput, FunctionResult, Image, OutputPart, Presence, render};
use prost::Message as _;
use proto::v1;

use super::request::{Checked, id, missing, unknown_enum};
use crate::{
    refusal::{Reason, Refusal},
    session::{CallProgress, Submitted},
};

/// Results that one batch may have.
const MAX_RESULTS: usize = 1024;
/// Bytes that one result may have, its texts and images together: a Harness repeats it in one line, which grows up to sixfold by escapes and must
/// stay under the limit of lines.
const MAX_RESULT: usize = 8 << 20;

/// Longest text of a report about a call.
const MAX_PROGRESS: usize = 4096;

/// What of a result is wrong by itself, with the member at fault.
type Content<T> = Result<T, (String, &'static str)>;

/// A batch of results.
pub(crate) fn results(of: Vec<v1::FunctionResult>) -> Checked<Vec<Submitted>> {
    if of.is_empty() || of.len() > MAX_RESULTS {
        return Err(Refusal::invalid("results", "a batch has 1 to 1024 results"));
    }
    let mut seen = HashSet::new();
    let mut submitted = Vec::with_capacity(of.len());
    for (index, wire) in of.into_iter().enumerate() {
        let at = |member: &str| format!("results[{index}].{member}");
        let turn_id = id(wire.turn_id.clone(), &at("turn_id"))?;
        if wire.call_id.is_empty() {
            return Err(missing(&at("call_id")));
        }
        if !seen.insert((turn_id.clone(), wire.call_id.clone())) {
            return Err(Refusal::invalid(at("call_id"), "the same call stands twice in the batch"));
        }
        let body = wire.encode_to_vec();
        let call_id = wire.call_id.clone();
        let result = result(wire, &at)?.map_err(|(member, text)| {
            Refusal::new(Reason::InvalidResult, text)
                .at(member)
                .with("http_status", 400)
                .with("public_code", "invalid_request_error")
        });
        submitted.push(Submitted { turn_id, call_id, result, body });
    }
    Ok(submitted)
}

/// A result as it was stored.
pub(crate) fn stored(body: &[u8]) -> Option<FunctionResult> {
    let wire = v1::FunctionResult::decode(body).ok()?;
    result(wire, &str::to_owned).ok()?.ok()
}

/// A report about a call.
pub(crate) fn progress(of: v1::ReportFunctionProgressRequest) -> Checked<CallProgress> {
    let v1::ReportFunctionProgressRequest { turn_id, call_id, number, message, .. } = of;
    let turn_id = id(turn_id, "turn_id")?;
    if call_id.is_empty() {
        return Err(missing("call_id"));
    }
    if number == 0 {
        return Err(Refusal::invalid("number", "reports are counted from 1"));
    }
    if message.len() > MAX_PROGRESS {
        return Err(Refusal::invalid("message", "what a report says has at most 4096 bytes"));
    }
    Ok(CallProgress { turn_id, call_id, number, message })
}

/// The content of a result.
fn result(of: v1::FunctionResult, at: &dyn Fn(&str) -> String) -> Checked<Content<FunctionResult>> {
    let error = match of.error {
        None => Presence::Absent,
        Some(error) => match error.value.ok_or_else(|| missing(&at("error.value")))? {
            v1::nullable_text::Value::Null(_) => Presence::Null,
            v1::nullable_text::Value::Text(text) => Presence::Value(text),
        },
    };
    let output = match of.output {
        None => Ok(Presence::Absent),
        Some(output) => match output.value.ok_or_else(|| missing(&at("output.value")))? {
            v1::function_output::Value::Null(_) => Ok(Presence::Null),
            v1::function_output::Value::Text(text) => Ok(Presence::Value(FunctionOutput::Text(text))),
            v1::function_output::Value::Parts(of) => {
                parts(of.parts, at)?.map(|parts| Presence::Value(FunctionOutput::Parts(parts)))
            }
        },
    };
    let disposition = match of.disposition.map(v1::ResultDisposition::try_from) {
        None => None,
        Some(Ok(v1::ResultDisposition::NotExecuted)) => Some(Disposition::NotExecuted),
        Some(Ok(v1::ResultDisposition::OutcomeUnknown)) => Some(Disposition::OutcomeUnknown),
        Some(Ok(v1::ResultDisposition::ConnectionLost)) => Some(Disposition::ConnectionLost),
        Some(Ok(v1::ResultDisposition::NotConnected)) => Some(Disposition::NotConnected),
        Some(Ok(v1::ResultDisposition::Unspecified) | Err(_)) => {
            let known = "NOT_EXECUTED, OUTCOME_UNKNOWN, CONNECTION_LOST, NOT_CONNECTED";
            return Err(unknown_enum(&at("disposition"), known));
        }
    };
    let fault = |member: &str, text: &'static str| Err((member.to_owned(), text));
    let Some(success) = of.success else {
        return Ok(fault("success", "whether the function succeeded is not said"));
    };
    Ok(output.and_then(|output| {
        if disposition.is_some() && (success || output != Presence::Absent) {
            return fault("disposition", "it stands in a result without success and without an output only");
        }
        let result = FunctionResult { success, error, output, disposition };
        let size = |part: &OutputPart| match part {
            OutputPart::Text(text) => text.len(),
            OutputPart::Image(image) => image.data.len(),
        };
        match render(&result, true).iter().map(size).sum::<usize>() {
            ..=MAX_RESULT => Ok(result),
            _ => fault("output", "a result has at most 8 MiB of text and images"),
        }
    }))
}

fn parts(of: Vec<v1::OutputPart>, at: &dyn Fn(&str) -> String) -> Checked<Content<Vec<OutputPart>>> {
    let mut parts = Ok(Vec::with_capacity(of.len()));
    for (index, part) in of.into_iter().enumerate() {
        let part = match part.part.ok_or_else(|| missing(&at(&format!("output.parts[{index}].part"))))? {
            v1::output_part::Part::Text(text) => Ok(OutputPart::Text(text)),
            v1::output_part::Part::Image(of) => Image::check(&of.media_type, of.data.into())
                .map(OutputPart::Image)
                .map_err(|text| (format!("output.parts[{index}].image"), text)),
        };
        match (&mut parts, part) {
            (Ok(parts), Ok(part)) => parts.push(part),
            (Ok(_), Err(fault)) => parts = Err(fault),
            (Err(_), _) => {}
        }
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_without_a_success_flag_is_judged_after_its_call() {
        let wire = v1::FunctionResult { turn_id: "t".into(), call_id: "c".into(), ..Default::default() };
        let submitted = results(vec![wire.clone()]).unwrap();
        assert_eq!(submitted[0].result.as_ref().unwrap_err().reason, Reason::InvalidResult);
        assert_eq!(results(vec![wire.clone(), wire]).unwrap_err().field.as_deref(), Some("results[1].call_id"));
        assert!(results(Vec::new()).is_err());
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut v1::FunctionResult), want: Result<(), (Reason, &str)>) {
        let (turn_id, call_id, success) = ("t".into(), "c".into(), Some(false));
        let mut wire = v1::FunctionResult { turn_id, call_id, success, ..Default::default() };
        change(&mut wire);
        let judged = results(vec![wire]).map(|mut all| all.remove(0).result);
        let told = match judged {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(refusal)) | Err(refusal) => Err((refusal.reason, refusal.field.unwrap_or_default())),
        };
        assert_eq!(told, want.map_err(|(reason, field)| (reason, field.to_owned())));
    }

    fn output(value: v1::function_output::Value) -> Option<v1::FunctionOutput> {
        Some(v1::FunctionOutput { value: Some(value) })
    }

    #[test]
    fn a_disposition_stands_in_a_failed_result_without_output() {
        let lost = Some(v1::ResultDisposition::ConnectionLost.into());
        let wrong = Err((Reason::InvalidResult, "disposition"));
        check(|of| of.disposition = lost, Ok(()));
        check(|of| (of.disposition, of.success) = (lost, Some(true)), wrong);
        let null = || output(v1::function_output::Value::Null(v1::Null {}));
        check(|of| (of.disposition, of.output) = (lost, null()), wrong);
        check(|of| of.disposition = Some(0), Err((Reason::InvalidRequest, "results[0].disposition")));
        check(|of| of.disposition = Some(99), Err((Reason::InvalidRequest, "results[0].disposition")));
    }

    #[test]
    fn unset_oneofs_are_refused_with_their_path() {
        let error = Some(v1::NullableText { value: None });
        check(|of| of.error = error, Err((Reason::InvalidRequest, "results[0].error.value")));
        let none = Some(v1::FunctionOutput { value: None });
        check(|of| of.output = none, Err((Reason::InvalidRequest, "results[0].output.value")));
    }

    #[test]
    fn images_are_looked_at_and_count() {
        let image = |media_type: &str, data: &[u8]| {
            let image = v1::Image { media_type: media_type.into(), data: data.to_vec() };
            v1::OutputPart { part: Some(v1::output_part::Part::Image(image)) }
        };
        let with = |image: v1::OutputPart| {
            let text = v1::OutputPart { part: Some(v1::output_part::Part::Text("a".into())) };
            output(v1::function_output::Value::Parts(v1::OutputParts { parts: vec![text, image] }))
        };
        let png = include_bytes!("../../../adapters/src/harness/red.png");
        check(|of| of.output = with(image("image/png", png)), Ok(()));
        let wrong = Err((Reason::InvalidResult, "output.parts[1].image"));
        check(|of| of.output = with(image("image/jpeg", png)), wrong);
        check(|of| of.output = with(image("image/gif", png)), wrong);
        check(|of| of.output = with(image("image/png", &png[..40])), wrong);
        let long = [png.as_slice(), &vec![0; MAX_RESULT]].concat();
        check(|of| of.output = with(image("image/png", &long)), Err((Reason::InvalidResult, "output")));
        let none = v1::OutputPart { part: None };
        check(|of| of.output = with(none), Err((Reason::InvalidRequest, "results[0].output.parts[1].part")));
    }
}
