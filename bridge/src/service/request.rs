//! Requests, wire to domain. Everything is checked here once, with the path of the field that is wrong (R-API-2, R-API-9).

use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

use adapters::harness::{Configuration, Image, InputPart, ModelProtocol, ModelProvider, Placement, TokenLimits};
use proto::v1;
use secrecy::SecretString;

use crate::{
    config::Providers,
    gateway::Guard,
    refusal::{Refusal, excerpt},
    session::{Asked, Credential, Credentials, Fence, PrepareRequest, StartRequest, SteerRequest, check_credentials},
};

use super::tools;

pub(super) type Checked<T> = Result<T, Refusal>;

/// Characters of text that the input of a Turn may have.
const MAX_INPUT_CHARACTERS: usize = 1 << 20;
/// Bytes that one image of an input may have.
const MAX_IMAGE: usize = 8 << 20;
/// Bytes that the images of one input may have together: a Harness repeats them as base64 in one line, which must stay under the limit of lines.
const MAX_IMAGES: usize = 32 << 20;
/// Longest secret.
const MAX_SECRET: usize = 16 << 10;
/// Shortest and longest limit of a Turn, or of a call.
pub(super) const SHORTEST: Duration = Duration::from_secs(1);
pub(super) const LONGEST: Duration = Duration::from_secs(30 * 24 * 60 * 60);
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
pub(crate) fn prepare(
    of: v1::PrepareExecutionRequest,
    providers: &Providers,
    guard: &Guard,
) -> Checked<PrepareRequest> {
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
    let resume = of.resume.map(|resume| id(resume.native_session_id, "resume.native_session_id")).transpose()?;
    let names: Vec<_> = of.credentials.iter().map(|credential| credential.name.clone()).collect();
    let Credentials { model: core_key, mcp } = credentials(of.credentials)?;
    let (provider, key) = match wire.provider.ok_or_else(|| missing("configuration.provider"))? {
        v1::execution_configuration::Provider::ModelProvider(named) => (model_provider(named, guard)?, core_key),
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
    let tools = tools::admitted(wire.tools.unwrap_or_default())?;
    let configuration = Configuration {
        harness: wire.harness,
        placement: Placement::None,
        model: wire.model,
        instructions: wire.instructions,
        provider,
        harness_config: wire.harness_config,
        functions: tools.functions,
        tool_search: tools.tool_search,
        mcp_servers: tools.mcp_servers,
        controls: tools.controls,
    };
    check_credentials(&configuration, &names)?;
    let credentials = Credentials { model: key, mcp };
    Ok(PrepareRequest { preparation_id, configuration, on_workspace, credentials, resume })
}

/// A limit that may be absent; none when it is out of its range.
pub(super) fn within(of: Option<prost_types::Duration>, range: RangeInclusive<Duration>) -> Option<Option<Duration>> {
    let Some(wire) = of else { return Some(None) };
    let limit: Option<Duration> = wire.try_into().ok();
    limit.filter(|limit| range.contains(limit)).map(Some)
}

fn model_provider(of: v1::ModelProvider, guard: &Guard) -> Checked<ModelProvider> {
    let protocol = match v1::ModelProtocol::try_from(of.protocol) {
        Ok(v1::ModelProtocol::Responses) => ModelProtocol::Responses,
        Ok(v1::ModelProtocol::Messages) => ModelProtocol::Messages,
        Ok(v1::ModelProtocol::ChatCompletions) => ModelProtocol::ChatCompletions,
        Ok(v1::ModelProtocol::Unspecified) | Err(_) => {
            return Err(unknown_enum(
                "configuration.model_provider.protocol",
                "RESPONSES, MESSAGES or CHAT_COMPLETIONS",
            ));
        }
    };
    let refused = |text: String| Refusal::invalid("configuration.model_provider.base_url", text);
    base_url(&of.base_url).map_err(|text| refused(text.to_owned()))?;
    // What the address of its host turns out to be is judged where it is connected to (R-SEC-4).
    guard.check(&of.base_url).map_err(|refusal| refused(refusal.to_string()))?;
    let limits = of.token_limits.map(|limits| {
        TokenLimits::of(limits.context, limits.output)
            .ok_or_else(|| Refusal::invalid("configuration.model_provider.token_limits", TokenLimits::RANGE))
    });
    Ok(ModelProvider { protocol, base_url: of.base_url, token_limits: limits.transpose()? })
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

fn credentials(of: Vec<v1::Credential>) -> Checked<Credentials> {
    let mut all = Credentials::default();
    for (index, credential) in of.into_iter().enumerate() {
        let at = format!("credentials[{index}]");
        let earlier = match named(credential, &at)? {
            Credential::Model(key) => all.model.replace(key),
            Credential::Mcp(label, bearer) => all.mcp.insert(label, bearer),
        };
        if earlier.is_some() {
            return Err(Refusal::invalid(format!("{at}.name"), "the credential is given twice"));
        }
    }
    Ok(all)
}

/// The one credential of a request.
pub(crate) fn credential(of: Option<v1::Credential>) -> Checked<Credential> {
    named(of.ok_or_else(|| missing("credential"))?, "credential")
}

fn named(of: v1::Credential, at: &str) -> Checked<Credential> {
    let v1::Credential { name, value } = of;
    let value = SecretString::from(value);
    let label = name.strip_prefix("mcp:").filter(|label| !label.trim().is_empty());
    if name != "model" && label.is_none() {
        return Err(Refusal::invalid(
            format!("{at}.name"),
            "a credential is `model`, or `mcp:<label>` of an MCP server",
        ));
    }
    let text = secrecy::ExposeSecret::expose_secret(&value);
    if text.is_empty() || text.len() > MAX_SECRET || text.chars().any(char::is_control) {
        return Err(Refusal::invalid(format!("{at}.value"), "a secret has 1 to 16384 bytes and no control characters"));
    }
    Ok(match label {
        Some(label) => Credential::Mcp(label.to_owned(), value),
        None => Credential::Model(value),
    })
}

/// The start of a Turn.
pub(crate) fn start(of: v1::StartTurnRequest) -> Checked<StartRequest> {
    let turn_id = id(of.turn_id, "turn_id")?;
    let input = input(of.input)?;
    let max_duration = within(of.max_duration, SHORTEST..=LONGEST)
        .ok_or_else(|| Refusal::invalid("max_duration", "it is 1 second to 30 days"))?;
    Ok(StartRequest { handle: of.handle, turn_id, input, max_duration })
}

/// An input that is added to a Turn.
pub(crate) fn steer(of: v1::SteerTurnRequest) -> Checked<SteerRequest> {
    let turn_id = id(of.turn_id, "turn_id")?;
    let input_id = id(of.input_id, "input_id")?;
    Ok(SteerRequest { turn_id, input_id, input: input(of.input)? })
}

/// The parts of an input.
fn input(of: Vec<v1::InputPart>) -> Checked<Vec<InputPart>> {
    if of.is_empty() {
        return Err(missing("input"));
    }
    let mut input = Vec::with_capacity(of.len());
    let mut characters = 0usize;
    for (index, part) in of.into_iter().enumerate() {
        match part.part.ok_or_else(|| missing(&format!("input[{index}].part")))? {
            v1::input_part::Part::Text(text) if text.is_empty() => {
                return Err(Refusal::invalid(format!("input[{index}].text"), "the text is empty"));
            }
            v1::input_part::Part::Text(text) => {
                characters = characters.saturating_add(text.chars().count());
                input.push(InputPart::Text(text));
            }
            v1::input_part::Part::Image(given) => {
                input.push(InputPart::Image(image(given, &format!("input[{index}].image"))?));
            }
        }
    }
    image_bytes(&input)?;
    if characters > MAX_INPUT_CHARACTERS {
        return Err(Refusal::invalid("input", format!("the input has {characters} characters; 1048576 are taken")));
    }
    Ok(input)
}

/// An image of an input: bytes of a size and of a form that every Harness reads (R-STA-1).
fn image(of: v1::Image, at: &str) -> Checked<Image> {
    if of.data.len() > MAX_IMAGE {
        let found = of.data.len();
        return Err(Refusal::invalid(format!("{at}.data"), format!("the image has {found} bytes; 8388608 are taken")));
    }
    Image::check(&of.media_type, of.data.into()).map_err(|flaw| Refusal::invalid(at, flaw))
}

/// The images of an input, together.
fn image_bytes(input: &[InputPart]) -> Checked<()> {
    let bytes_of = |part: &InputPart| match part {
        InputPart::Image(image) => image.data.len(),
        InputPart::Text(_) => 0,
    };
    match input.iter().map(bytes_of).sum::<usize>() {
        ..=MAX_IMAGES => Ok(()),
        found => Err(Refusal::invalid("input", format!("the images have {found} bytes; 33554432 are taken"))),
    }
}

/// How long a cancel waits.
pub(crate) fn wait(of: Option<prost_types::Duration>) -> Checked<Duration> {
    let Some(wire) = of else { return Ok(DEFAULT_WAIT) };
    let wait: Option<Duration> = wire.try_into().ok();
    wait.filter(|wait| *wait <= MAX_WAIT).ok_or_else(|| Refusal::invalid("wait", "a wait is 0 to 60 seconds"))
}

pub(super) fn missing(field: &str) -> Refusal {
    Refusal::invalid(field, "this must be set")
}

pub(super) fn unknown_enum(field: &str, known: &str) -> Refusal {
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
    fn unset_oneofs_are_refused_with_their_path() {
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
