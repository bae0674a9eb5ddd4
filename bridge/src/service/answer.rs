//! Answers, domain to wire.

use adapters::harness::{
    AcceptedValues, Availability, Capability, Declaration, Isolation, JsonFidelity, Limits, ModelProtocol, Proved,
};
use prost::Message as _;
use proto::v1;

use super::{event_to, payload, tools};
use crate::{
    session::{Grant, ResultOutcome, Snapshot},
    turn::{
        event::{Large, Waiting},
        inputs::{self, InputState},
        machine::Phase,
    },
};

/// A Turn as it stands.
pub(crate) fn turn(of: Snapshot) -> v1::Turn {
    let required_actions = of
        .required
        .iter()
        .map(|Waiting { call, large }| {
            // What is held in memory fits into one answer.
            let place = match large {
                None => v1::content::Place::Text(call.arguments.clone()),
                Some(Large { size, sha256 }) => v1::content::Place::Payload(v1::PayloadRef {
                    payload_id: payload::of_call(&call.call_id),
                    size: *size,
                    sha256: sha256.to_vec(),
                }),
            };
            let call = event_to::function_call(&of.turn_id, call, Some(v1::Content { place: Some(place) }));
            v1::RequiredAction { action: Some(v1::required_action::Action::FunctionCall(call)) }
        })
        .collect();
    v1::Turn {
        phase: match of.phase {
            Phase::Starting => v1::TurnPhase::Starting,
            Phase::Running => v1::TurnPhase::Running,
            Phase::RequiresAction => v1::TurnPhase::RequiresAction,
            Phase::Settling => v1::TurnPhase::Settling,
            Phase::Ended => v1::TurnPhase::Ended,
        }
        .into(),
        inputs: of.inputs.iter().map(input).collect(),
        required_actions,
        last_sequence: of.last_sequence,
        acknowledged_sequence: of.acknowledged,
        // What we stored is what we encoded.
        usage: of.usage.and_then(|bytes| v1::Usage::decode(bytes.as_slice()).ok()),
        native: of.native.as_ref().map(event_to::native),
        ended: of.ended.and_then(|bytes| ended(&bytes)),
        cancel_requested: of.cancel_requested,
        created_at: Some(of.created_at.into()),
        turn_id: of.turn_id,
    }
}

/// An input as it stands.
pub(crate) fn input(of: &InputState) -> v1::TurnInput {
    let (phase, evidence, refusal) = match of.phase {
        inputs::Phase::Received => (v1::InputPhase::Received, None, None),
        inputs::Phase::Written => (v1::InputPhase::Written, None, None),
        inputs::Phase::Accepted(evidence) => (v1::InputPhase::Accepted, Some(evidence), None),
        inputs::Phase::Refused(reason) => (v1::InputPhase::Refused, None, Some(reason)),
        inputs::Phase::OutcomeUnknown => (v1::InputPhase::OutcomeUnknown, None, None),
    };
    v1::TurnInput {
        input_id: of.input_id.clone(),
        phase: phase.into(),
        evidence: evidence.map(|evidence| event_to::input_evidence(evidence).into()),
        refusal: refusal.map(|reason| super::status::reason(reason).into()),
    }
}

fn ended(bytes: &[u8]) -> Option<v1::TurnEnded> {
    match v1::Event::decode(bytes).ok()?.kind? {
        v1::event::Kind::TurnEnded(ended) => Some(ended),
        _ => None,
    }
}

/// What is known of a cancelled Turn.
pub(crate) fn cancelled(of: Snapshot) -> v1::CancelTurnResponse {
    let left = of.left;
    let turn = turn(of);
    let outcome = match &turn.ended {
        None => v1::CancelOutcome::Pending,
        Some(ended) if left && ended.cause == Some(v1::EndCause::Unsettled.into()) => v1::CancelOutcome::Unconfirmed,
        Some(_) => v1::CancelOutcome::Settled,
    };
    v1::CancelTurnResponse { outcome: outcome.into(), turn: Some(turn) }
}

/// A granted handle.
pub(crate) fn ready(of: Grant) -> v1::PrepareExecutionResponse {
    let ready = v1::Ready {
        executor_id: of.executor_id,
        handle: of.handle,
        revision: of.revision,
        expires_at: Some(of.expires_at.into()),
        reused: of.reused,
        harness_version: of.version,
        settings_changed: of.settings_changed,
    };
    v1::PrepareExecutionResponse { progress: Some(v1::prepare_execution_response::Progress::Ready(ready)) }
}

/// What became of a result.
pub(crate) fn outcome(of: ResultOutcome) -> v1::ResultOutcome {
    match of {
        ResultOutcome::Accepted => v1::ResultOutcome::Accepted,
        ResultOutcome::Duplicate => v1::ResultOutcome::Duplicate,
    }
}

/// A declaration.
pub(crate) fn declaration(of: Declaration) -> v1::HarnessDeclaration {
    let (available, unavailable_reason) = match of.availability {
        Availability::Available => (true, String::new()),
        Availability::Unavailable { reason } => (false, reason),
    };
    let evidence = evidence("none", &of.none).chain(evidence("workspace", &of.workspace)).collect();
    v1::HarnessDeclaration {
        kind: of.kind.to_owned(),
        version: of.version.unwrap_or_default(),
        available,
        unavailable_reason,
        qualified: of.qualified,
        none: of.none.into_iter().map(|proved| capability(proved.capability()).into()).collect(),
        workspace: of.workspace.into_iter().map(|proved| capability(proved.capability()).into()).collect(),
        limits: Some(limits(of.limits)),
        switched_off: of.switched_off.into_iter().map(str::to_owned).collect(),
        isolation: match of.isolation {
            Isolation::Outer => "outer",
            Isolation::Native => "native",
        }
        .to_owned(),
        trust_workspace: of.trust_workspace,
        evidence,
    }
}

fn evidence<'a>(placement: &'a str, of: &'a [Proved]) -> impl Iterator<Item = v1::CapabilityEvidence> + 'a {
    of.iter().map(move |proved| v1::CapabilityEvidence {
        capability: capability(proved.capability()).into(),
        placement: placement.to_owned(),
        scenario: proved.scenario().to_owned(),
    })
}

/// A capability.
pub(crate) fn capability(of: Capability) -> v1::Capability {
    match of {
        Capability::EnvironmentNone => v1::Capability::EnvironmentNone,
        Capability::LocalEnvironment => v1::Capability::LocalEnvironment,
        Capability::FunctionTools => v1::Capability::FunctionTools,
        Capability::ParallelFunctionCalls => v1::Capability::ParallelFunctionCalls,
        Capability::Steering => v1::Capability::Steering,
        Capability::FunctionResultImages => v1::Capability::FunctionResultImages,
        Capability::MessageImages => v1::Capability::MessageImages,
        Capability::StructuredOutput => v1::Capability::StructuredOutput,
        Capability::ToolSearch => v1::Capability::ToolSearch,
        Capability::SessionResume => v1::Capability::SessionResume,
        Capability::NativeSessionRecovery => v1::Capability::NativeSessionRecovery,
        Capability::MessageObservation => v1::Capability::MessageObservation,
        Capability::TextVerbosity => v1::Capability::TextVerbosity,
        Capability::McpHttpTools => v1::Capability::McpHttpTools,
        Capability::McpHttpRequired => v1::Capability::McpHttpRequired,
        Capability::McpHttpBearerAuth => v1::Capability::McpHttpBearerAuth,
        Capability::ExecutionControls => v1::Capability::ExecutionControls,
        Capability::StrictCalls => v1::Capability::StrictCalls,
        Capability::Usage => v1::Capability::Usage,
        Capability::HomeRemoval => v1::Capability::HomeRemoval,
    }
}

fn limits(of: Limits) -> v1::HarnessLimits {
    let names = of.function_names;
    let count = |of: usize| u32::try_from(of).unwrap_or(u32::MAX);
    let strings = |of: &[&str]| of.iter().map(|&s| s.to_owned()).collect();
    v1::HarnessLimits {
        function_name_pattern: names.pattern.to_owned(),
        function_name_bytes: count(names.max_bytes),
        reserved_function_names: strings(names.reserved),
        reserved_function_prefixes: strings(names.reserved_prefixes),
        model_protocols: of
            .model_protocols
            .into_iter()
            .map(|protocol| match protocol {
                ModelProtocol::Responses => v1::ModelProtocol::Responses.into(),
                ModelProtocol::Messages => v1::ModelProtocol::Messages.into(),
                ModelProtocol::ChatCompletions => v1::ModelProtocol::ChatCompletions.into(),
            })
            .collect(),
        needs_token_limits: of.needs_token_limits,
        argument_fidelity: fidelity(of.argument_fidelity).into(),
        schema_fidelity: fidelity(of.schema_fidelity).into(),
        integer_64: of.integer_64,
        native_call_timeout_seconds: of
            .native_call_timeout
            .map_or(0, |timeout| u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX)),
        failed_result_images: of.failed_result_images,
        binary64: of.binary64,
        function_description_characters: of.description_characters.map(count),
        web_search_modes: of.web_search.modes.iter().map(|mode| tools::search_mode_to(*mode).into()).collect(),
        refuses_blank_messages: of.refuses_blank_messages,
        function_result_characters: of.result_characters.map(count),
        input_rewrites: of.input_rewrites.into_iter().map(input_rewrite).collect(),
        web_search_context_sizes: of.web_search.context_sizes.iter().map(|size| tools::size_to(*size).into()).collect(),
        web_search_domains: of.web_search.domains,
        web_search_location: of.web_search.location,
        programmatic_tool_calling: of.programmatic_tool_calling.to_vec(),
        text_verbosities: of.text_verbosities.iter().map(|level| tools::verbosity_to(*level).into()).collect(),
        reasoning_efforts: Some(accepted(&of.reasoning_efforts)),
        reasoning_summaries: Some(accepted(&of.reasoning_summaries)),
        service_tiers: Some(accepted(&of.service_tiers)),
        mcp_transports: of.mcp.transports.iter().map(|kind| tools::transport_to(*kind).into()).collect(),
        mcp_origins: of.mcp.origins.iter().map(|origin| tools::origin_to(*origin).into()).collect(),
        mcp_allowed_tools: of.mcp.allowed_tools.iter().map(|kind| tools::transport_to(*kind).into()).collect(),
        mcp_label_pattern: of.mcp.label_pattern.to_owned(),
        reserved_mcp_labels: strings(of.mcp.reserved_labels),
        mcp_refuses_expansions: of.mcp.refuses_expansions,
        mcp_stdio_in_workspace: of.mcp.stdio_in_workspace,
    }
}

fn accepted(of: &AcceptedValues) -> v1::AcceptedValues {
    v1::AcceptedValues { values: of.values.iter().map(|&value| value.to_owned()).collect(), by_model: of.by_model }
}

fn input_rewrite((place, text): (&str, &str)) -> v1::InputRewrite {
    v1::InputRewrite { place: place.to_owned(), text: text.to_owned() }
}

fn fidelity(of: JsonFidelity) -> v1::JsonFidelity {
    match of {
        JsonFidelity::Exact => v1::JsonFidelity::Exact,
        JsonFidelity::Value => v1::JsonFidelity::Value,
        JsonFidelity::Binary64 => v1::JsonFidelity::Binary64,
        JsonFidelity::LossySchema => v1::JsonFidelity::LossySchema,
    }
}
