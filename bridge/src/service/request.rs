//! Requests, wire to domain. Everything is checked here once, with the path of the field that is wrong (R-API-2, R-API-9).

use std::{collections::HashSet, path::PathBuf, time::Duration};

use adapters::harness::{
    Configuration, Controls, FunctionOutput, FunctionResult, FunctionTool, InputPart, ModelProtocol, ModelProvider,
    OutputPart, Placement, Presence, render,
};
use prost::Message as _;
use proto::v1;
use secrecy::SecretString;

use crate::{
    config::Providers,
    refusal::{Reason, Refusal, excerpt},
    session::{Asked, Fence, PrepareRequest, StartRequest, Submitted},
};

type Checked<T> = Result<T, Refusal>;

/// Results that one batch may have.
const MAX_RESULTS: usize = 1024;
/// Characters of text that the input of a Turn may have.
const MAX_INPUT_CHARACTERS: usize = 1 << 20;
/// Bytes of text that one result may have: a Harness repeats it in one line, which grows up to sixfold by escapes and must stay under the
/// limit of lines.
const MAX_RESULT: usize = 8 << 20;
/// Longest native settings.
const MAX_HARNESS_CONFIG: usize = 16 << 10;
/// Longest secret.
const MAX_SECRET: usize = 16 << 10;
/// Shortest and longest limit of a Turn.
const SHORTEST_TURN: Duration = Duration::from_secs(1);
const LONGEST_TURN: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Longest wait of a cancel.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Wait of a cancel that names none.
const DEFAULT_WAIT: Duration = Duration::from_secs(15);

/// Session and fence of a request.
pub(crate) fn assignment(of: Option<v1::AssignmentRef>) -> Checked<(String, Fence)> {
    let of = of.ok_or_else(|| missing("assignment"))?;
    let session_id = id(of.session_id, "assignment.session_id")?;
    let assignment_id = id(of.assignment_id, "assignment.assignment_id")?;
    if of.epoch == 0 {
        return Err(Refusal::invalid("assignment.epoch", "an epoch is at least 1"));
    }
    if i64::try_from(of.epoch).is_err() {
        return Err(Refusal::invalid("assignment.epoch", "an epoch is at most 2^63-1"));
    }
    Ok((session_id, Fence { assignment_id, epoch: of.epoch }))
}

/// An id that Core chose (R-API-9).
pub(crate) fn id(of: String, field: &str) -> Checked<String> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"._:-".contains(&b);
    if (1..=128).contains(&of.len()) && of.bytes().all(fits) {
        Ok(of)
    } else {
        Err(Refusal::invalid(field, "an id has 1 to 128 bytes of [A-Za-z0-9._:-]"))
    }
}

/// The placement of a Bind.
pub(crate) fn placement(of: Option<v1::bind_assignment_request::Placement>) -> Checked<Asked> {
    use v1::bind_assignment_request::Placement as Wire;
    match of.ok_or_else(|| missing("placement"))? {
        Wire::None(_) => Ok(Asked::None),
        Wire::Workspace(workspace) => {
            let environment_id = id(workspace.environment_id, "workspace.environment_id")?;
            if workspace.directory.contains('\0') || workspace.directory.len() > 4096 {
                return Err(Refusal::invalid("workspace.directory", "a path has at most 4096 bytes and no NUL"));
            }
            Ok(Asked::Workspace { environment_id, directory: PathBuf::from(workspace.directory) })
        }
    }
}

/// A preparation.
pub(crate) fn prepare(of: v1::PrepareExecutionRequest, providers: &Providers) -> Checked<PrepareRequest> {
    let preparation_id = id(of.preparation_id, "preparation_id")?;
    let wire = of.configuration.ok_or_else(|| missing("configuration"))?;
    let on_workspace = match v1::Placement::try_from(wire.placement) {
        Ok(v1::Placement::None) => false,
        Ok(v1::Placement::Workspace) => true,
        Ok(v1::Placement::Unspecified) | Err(_) => {
            return Err(unknown_enum("configuration.placement", "NONE, WORKSPACE"));
        }
    };
    if wire.harness.is_empty() {
        return Err(missing("configuration.harness"));
    }
    if wire.model.trim().is_empty() {
        return Err(Refusal::invalid("configuration.model", "the name of the model is blank"));
    }
    if wire.harness_config.len() > MAX_HARNESS_CONFIG {
        return Err(Refusal::invalid("configuration.harness_config", "native settings have at most 16 KiB"));
    }
    let resume = of.resume.map(|resume| id(resume.native_session_id, "resume.native_session_id")).transpose()?;
    let core_key = credentials(of.credentials)?;
    let (provider, key) = match wire.provider.ok_or_else(|| missing("configuration.provider"))? {
        v1::execution_configuration::Provider::ModelProvider(named) => (model_provider(named)?, core_key),
        v1::execution_configuration::Provider::ProviderName(name) => {
            let provider = providers.get(&name).ok_or_else(|| {
                Refusal::invalid(
                    "configuration.provider_name",
                    format!("the operator has no provider `{}`", excerpt(&name)),
                )
            })?;
            (provider.provider.clone(), core_key.or_else(|| provider.key.clone()))
        }
    };
    let v1::AdmittedTools { functions, controls } = wire.tools.unwrap_or_default();
    let configuration = Configuration {
        harness: wire.harness,
        placement: Placement::None,
        model: wire.model,
        instructions: wire.instructions,
        provider,
        harness_config: wire.harness_config,
        functions: functions.into_iter().map(function).collect(),
        controls: self::controls(controls.unwrap_or_default())?,
    };
    Ok(PrepareRequest { preparation_id, configuration, on_workspace, key, resume })
}

fn controls(of: v1::ExecutionControls) -> Checked<Controls> {
    let v1::ExecutionControls { output_format } = of;
    let output_schema = output_format.map(|of| match of.format {
        Some(v1::output_format::Format::JsonSchema(of)) => Ok(of.schema),
        None => Err(missing("configuration.tools.controls.output_format.format")),
    });
    Ok(Controls { output_schema: output_schema.transpose()? })
}

fn function(of: v1::FunctionTool) -> FunctionTool {
    FunctionTool { name: of.name, description: of.description, parameters: of.parameters }
}

fn model_provider(of: v1::ModelProvider) -> Checked<ModelProvider> {
    let protocol = match v1::ModelProtocol::try_from(of.protocol) {
        Ok(v1::ModelProtocol::Responses) => ModelProtocol::Responses,
        Ok(v1::ModelProtocol::Unspecified) | Err(_) => {
            return Err(unknown_enum("configuration.model_provider.protocol", "RESPONSES"));
        }
    };
    base_url(&of.base_url).map_err(|text| Refusal::invalid("configuration.model_provider.base_url", text))?;
    Ok(ModelProvider { protocol, base_url: of.base_url })
}

/// Checks the base address of a model provider; it may hold a secret, so nothing of it is repeated.
pub(crate) fn base_url(text: &str) -> Result<(), &'static str> {
    let url: http::Uri = text.parse().map_err(|_| "this is not a URL")?;
    if !matches!(url.scheme_str(), Some("http" | "https")) {
        return Err("the URL begins with neither https:// nor http://");
    }
    let authority = url.authority().ok_or("the URL has no host")?;
    if authority.as_str().contains('@') {
        return Err("the URL holds credentials; give them as a credential");
    }
    if url.query().is_some() || text.contains('#') {
        return Err("the URL has a query or a fragment");
    }
    Ok(())
}

fn credentials(of: Vec<v1::Credential>) -> Checked<Option<SecretString>> {
    let mut key = None;
    for (index, credential) in of.into_iter().enumerate() {
        let v1::Credential { name, value } = credential;
        let value = SecretString::from(value);
        let at = |member: &str| format!("credentials[{index}].{member}");
        if name != "model" {
            return Err(Refusal::invalid(at("name"), "the only credential so far is `model`"));
        }
        let text = secrecy::ExposeSecret::expose_secret(&value);
        if text.is_empty() || text.len() > MAX_SECRET || text.chars().any(char::is_control) {
            return Err(Refusal::invalid(at("value"), "a secret has 1 to 16384 bytes and no control characters"));
        }
        if key.replace(value).is_some() {
            return Err(Refusal::invalid(at("name"), "the credential is given twice"));
        }
    }
    Ok(key)
}

/// The start of a Turn.
pub(crate) fn start(of: v1::StartTurnRequest) -> Checked<StartRequest> {
    let turn_id = id(of.turn_id, "turn_id")?;
    if of.input.is_empty() {
        return Err(missing("input"));
    }
    let mut input = Vec::with_capacity(of.input.len());
    let mut characters = 0usize;
    for (index, part) in of.input.into_iter().enumerate() {
        match part.part.ok_or_else(|| missing(&format!("input[{index}].part")))? {
            v1::input_part::Part::Text(text) if text.is_empty() => {
                return Err(Refusal::invalid(format!("input[{index}].text"), "the text is empty"));
            }
            v1::input_part::Part::Text(text) => {
                characters = characters.saturating_add(text.chars().count());
                input.push(InputPart::Text(text));
            }
            v1::input_part::Part::Image(_) => {
                return Err(Refusal::invalid(format!("input[{index}].image"), "images are not taken"));
            }
        }
    }
    if characters > MAX_INPUT_CHARACTERS {
        return Err(Refusal::invalid("input", format!("the input has {characters} characters; 1048576 are taken")));
    }
    let max_duration = of.max_duration.map(|wire| {
        let most: Option<Duration> = wire.try_into().ok();
        most.filter(|most| (SHORTEST_TURN..=LONGEST_TURN).contains(most))
            .ok_or_else(|| Refusal::invalid("max_duration", "it is 1 second to 30 days"))
    });
    Ok(StartRequest { handle: of.handle, turn_id, input, max_duration: max_duration.transpose()? })
}

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
        submitted.push(Submitted { turn_id, call_id, result: result(wire, &at)?, body });
    }
    Ok(submitted)
}

/// The content of a result; what is a matter of the result alone is told after what is known of its call (R-FN-5).
fn result(of: v1::FunctionResult, at: &dyn Fn(&str) -> String) -> Checked<Result<FunctionResult, Refusal>> {
    let error = match of.error {
        None => Presence::Absent,
        Some(error) => match error.value.ok_or_else(|| missing(&at("error.value")))? {
            v1::nullable_text::Value::Null(_) => Presence::Null,
            v1::nullable_text::Value::Text(text) => Presence::Value(text),
        },
    };
    let output = match of.output {
        None => Presence::Absent,
        Some(output) => match output.value.ok_or_else(|| missing(&at("output.value")))? {
            v1::function_output::Value::Null(_) => Presence::Null,
            v1::function_output::Value::Text(text) => Presence::Value(FunctionOutput::Text(text)),
            v1::function_output::Value::Parts(parts) => {
                let mut texts = Vec::with_capacity(parts.parts.len());
                for (index, part) in parts.parts.into_iter().enumerate() {
                    match part.part.ok_or_else(|| missing(&at(&format!("output.parts[{index}].part"))))? {
                        v1::output_part::Part::Text(text) => texts.push(OutputPart::Text(text)),
                        v1::output_part::Part::Image(_) => {
                            return Err(Refusal::invalid(
                                at(&format!("output.parts[{index}].image")),
                                "images are not taken",
                            ));
                        }
                    }
                }
                Presence::Value(FunctionOutput::Parts(texts))
            }
        },
    };
    let invalid = |member: &str, text: &str| {
        Err(Refusal::new(Reason::InvalidResult, text)
            .at(member)
            .with("http_status", 400)
            .with("public_code", "invalid_request_error"))
    };
    Ok(match of.success {
        Some(success) => {
            let result = FunctionResult { success, error, output };
            match render(&result, true).iter().map(|OutputPart::Text(text)| text.len()).sum::<usize>() {
                ..=MAX_RESULT => Ok(result),
                _ => invalid("output", "a result has at most 8 MiB of text"),
            }
        }
        None => invalid("success", "whether the function succeeded is not said"),
    })
}

/// How long a cancel waits.
pub(crate) fn wait(of: Option<prost_types::Duration>) -> Checked<Duration> {
    let Some(wire) = of else { return Ok(DEFAULT_WAIT) };
    let wait: Option<Duration> = wire.try_into().ok();
    wait.filter(|wait| *wait <= MAX_WAIT).ok_or_else(|| Refusal::invalid("wait", "a wait is 0 to 60 seconds"))
}

fn missing(field: &str) -> Refusal {
    Refusal::invalid(field, "this must be set")
}

fn unknown_enum(field: &str, known: &str) -> Refusal {
    Refusal::invalid(field, format!("unknown value; known are: {known}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_core_are_checked() {
        for (given, good) in [
            ("a", true),
            ("A.b_c", true),
            ("A.b:c-9", true),
            ("", false),
            ("a/b", false),
            ("ä", false),
            (" a", false),
            ("a\n", false),
            (&"x".repeat(128), true),
            (&"x".repeat(129), false),
        ] {
            assert_eq!(id(given.into(), "f").is_ok(), good, "{given:?}");
        }
    }

    #[test]
    fn base_urls_are_checked_and_never_repeated() {
        for (given, good) in [
            ("https://api.example.com/v1", true),
            ("http://127.0.0.1:8080/v1", true),
            ("https://user:secret@example.com/", false),
            ("https://example.com/v1?key=secret", false),
            ("https://example.com/v1#secret", false),
            ("ftp://example.com", false),
            ("/v1", false),
            ("example.com", false),
            ("", false),
        ] {
            let checked = base_url(given);
            assert_eq!(checked.is_ok(), good, "{given:?}");
            assert!(!checked.err().unwrap_or_default().contains("secret"));
        }
    }

    #[test]
    fn a_result_without_a_success_flag_is_judged_after_its_call() {
        let wire = v1::FunctionResult { turn_id: "t".into(), call_id: "c".into(), ..Default::default() };
        let submitted = results(vec![wire.clone()]).unwrap();
        assert_eq!(submitted[0].result.as_ref().unwrap_err().reason, Reason::InvalidResult);
        assert_eq!(results(vec![wire.clone(), wire]).unwrap_err().field.as_deref(), Some("results[1].call_id"));
        assert!(results(Vec::new()).is_err());
    }

    #[test]
    fn unset_oneofs_are_refused_with_their_path() {
        let wire = v1::FunctionResult {
            turn_id: "t".into(),
            call_id: "c".into(),
            success: Some(true),
            error: Some(v1::NullableText { value: None }),
            ..Default::default()
        };
        assert_eq!(results(vec![wire]).unwrap_err().field.as_deref(), Some("results[0].error.value"));
        assert_eq!(placement(None).unwrap_err().field.as_deref(), Some("placement"));
        let request = v1::StartTurnRequest {
            turn_id: "t".into(),
            input: vec![v1::InputPart { part: None }],
            ..Default::default()
        };
        assert_eq!(start(request).unwrap_err().field.as_deref(), Some("input[0].part"));
    }

    #[test]
    fn waits_are_0_to_60_seconds() {
        let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
        assert_eq!(wait(None).unwrap(), DEFAULT_WAIT);
        assert_eq!(wait(seconds(0)).unwrap(), Duration::ZERO);
        assert_eq!(wait(seconds(60)).unwrap(), MAX_WAIT);
        assert!(wait(seconds(61)).is_err());
        assert!(wait(seconds(-1)).is_err());
    }
}
