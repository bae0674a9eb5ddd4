//! Events, domain to wire.

use adapters::harness::{
    AbandonReason, Disposition, Exit, Failure, FailureCode, FileEdit, FileEditKind, Finish, InputEvidence, McpCall,
    MessagePhase, ReasoningText, Tool, ToolEnd, ToolStatus, Usage, WebAction,
};
use proto::v1::{self, event::Kind};

use super::codec::Parts;
use crate::turn::{
    event::{Call, CancelCause, Discard, End, Event, Native, Omitted, Status, UnknownCause},
    tool_errors::{Code, ToolError},
};

/// The kind of an event.
pub(crate) fn kind(turn_id: &str, event: &Event, parts: &mut Parts) -> Kind {
    match event {
        Event::TurnStarted { native: ids } => Kind::TurnStarted(v1::TurnStarted { native: Some(native(ids)) }),
        Event::MessageStarted { item, native } => {
            Kind::MessageStarted(v1::MessageStarted { item_id: item.clone(), native_id: native.clone() })
        }
        Event::MessageDelta { item, text } => {
            Kind::MessageDelta(v1::MessageDelta { item_id: item.clone(), text: text.clone() })
        }
        Event::MessageCompleted { item, text, phase } => Kind::MessageCompleted(v1::MessageCompleted {
            item_id: item.clone(),
            text: Some(parts.content(text)),
            phase: phase.map(|phase| message_phase(phase).into()),
        }),
        Event::MessageDiscarded { item, reason } => Kind::MessageDiscarded(v1::MessageDiscarded {
            item_id: item.clone(),
            reason: match reason {
                Discard::Interrupted => v1::DiscardReason::Interrupted,
                Discard::Retried => v1::DiscardReason::Retried,
                Discard::Steered => v1::DiscardReason::Steered,
                Discard::TurnEnded => v1::DiscardReason::TurnEnded,
            }
            .into(),
        }),
        Event::ReasoningStarted { item, native } => {
            Kind::ReasoningStarted(v1::ReasoningStarted { item_id: item.clone(), native_id: native.clone() })
        }
        Event::ReasoningDelta { item, kind, index, text } => Kind::ReasoningDelta(v1::ReasoningDelta {
            item_id: item.clone(),
            text_kind: match kind {
                ReasoningText::Summary => v1::ReasoningText::Summary,
                ReasoningText::Raw => v1::ReasoningText::Raw,
            }
            .into(),
            index: *index,
            text: text.clone(),
        }),
        Event::ReasoningCompleted { item, summary, raw, incomplete } => {
            Kind::ReasoningCompleted(v1::ReasoningCompleted {
                item_id: item.clone(),
                summary: summary.iter().map(|text| parts.content(text)).collect(),
                raw: raw.iter().map(|text| parts.content(text)).collect(),
                incomplete: *incomplete,
            })
        }
        Event::ToolStarted { item, native, tool: what } => Kind::ToolStarted(v1::ToolStarted {
            item_id: item.clone(),
            native_id: native.clone(),
            tool: Some(tool(what, parts)),
        }),
        Event::ToolOutput { item, text } => {
            Kind::ToolOutput(v1::ToolOutput { item_id: item.clone(), text: text.clone() })
        }
        Event::ToolCompleted { item, end } => Kind::ToolCompleted(tool_completed(item, end, parts)),
        Event::FunctionCall { call } => {
            Kind::FunctionCall(function_call(turn_id, call, Some(parts.content(&call.arguments))))
        }
        Event::FunctionResultApplied { call_id, evidence, success } => {
            Kind::FunctionResultApplied(v1::FunctionResultApplied {
                call_id: call_id.clone(),
                evidence: (*evidence).to_owned(),
                success: *success,
            })
        }
        Event::FunctionCallAbandoned { call_id, reason } => Kind::FunctionCallAbandoned(v1::FunctionCallAbandoned {
            call_id: call_id.clone(),
            reason: match reason {
                AbandonReason::NativeTimeout => v1::AbandonReason::NativeTimeout,
                AbandonReason::Deadline => v1::AbandonReason::Deadline,
                AbandonReason::NativeCancelled => v1::AbandonReason::NativeCancelled,
                AbandonReason::ExecutionLost => v1::AbandonReason::ExecutionLost,
                AbandonReason::TurnEnded => v1::AbandonReason::TurnEnded,
            }
            .into(),
        }),
        Event::FunctionProgress { call_id, number, message } => Kind::FunctionProgress(v1::FunctionProgress {
            call_id: call_id.clone(),
            number: *number,
            message: message.clone(),
        }),
        Event::InputWritten { input_id } => Kind::InputWritten(v1::InputWritten { input_id: input_id.clone() }),
        Event::InputAccepted { input_id, evidence, native } => Kind::InputAccepted(v1::InputAccepted {
            input_id: input_id.clone(),
            evidence: input_evidence(*evidence).into(),
            native_id: native.clone(),
        }),
        Event::InputRefused { input_id, reason, message } => Kind::InputRefused(v1::InputRefused {
            input_id: input_id.clone(),
            reason: super::status::reason(*reason).into(),
            message: message.clone(),
        }),
        Event::InputOutcomeUnknown { input_id } => {
            Kind::InputOutcomeUnknown(v1::InputOutcomeUnknown { input_id: input_id.clone() })
        }
        Event::ProviderRetry(retry) => Kind::ProviderRetry(v1::ProviderRetry {
            http_status: retry.http_status.map(u32::from),
            code: failure_code(retry.code).into(),
            message: retry.message.clone(),
        }),
        Event::Usage(so_far) => Kind::Usage(usage(so_far)),
        Event::Notice { code, message } => {
            Kind::Notice(v1::Notice { code: (*code).to_owned(), message: message.clone() })
        }
        Event::EventsOmitted { first, last, why } => {
            let reason = match why {
                Omitted::BridgeRestarted => v1::OmissionReason::BridgeRestarted,
                Omitted::Storage => v1::OmissionReason::Storage,
                Omitted::LogLimit => v1::OmissionReason::LogLimit,
            };
            Kind::EventsOmitted(v1::EventsOmitted { first: *first, last: *last, reason: reason.into() })
        }
        Event::TurnEnded(end) => Kind::TurnEnded(turn_ended(end)),
    }
}

/// A call, as its event and as a required action have it.
pub(crate) fn function_call(turn_id: &str, call: &Call, arguments: Option<v1::Content>) -> v1::FunctionCall {
    v1::FunctionCall {
        call_id: call.call_id.clone(),
        name: call.name.clone(),
        arguments,
        arguments_exact: call.exact,
        call_id_origin: match call.named_by_bridge {
            true => v1::CallIdOrigin::Bridge,
            false => v1::CallIdOrigin::Native,
        }
        .into(),
        idempotency_key: call.idempotency_key.clone(),
        turn_id: turn_id.to_owned(),
        batch_id: call.place.as_ref().and_then(|place| place.batch_id.clone()),
        position: call.place.as_ref().map(|place| place.position),
    }
}

/// What is proved about an input.
pub(crate) fn input_evidence(of: InputEvidence) -> v1::InputEvidence {
    match of {
        InputEvidence::Consumed => v1::InputEvidence::Consumed,
        InputEvidence::Admitted => v1::InputEvidence::Admitted,
    }
}

/// Native identity.
pub(crate) fn native(ids: &Native) -> v1::NativeIdentity {
    v1::NativeIdentity { session_id: ids.session_id.clone(), turn_id: ids.turn_id.clone() }
}

/// Usage of a Turn.
pub(crate) fn usage(of: &Usage) -> v1::Usage {
    v1::Usage {
        input_tokens: of.input,
        cached_input_tokens: of.cached_input,
        output_tokens: of.output,
        reasoning_output_tokens: of.reasoning_output,
        total_tokens: of.total,
    }
}

fn message_phase(phase: MessagePhase) -> v1::MessagePhase {
    match phase {
        MessagePhase::Commentary => v1::MessagePhase::Commentary,
        MessagePhase::PartialAnswer => v1::MessagePhase::PartialAnswer,
        MessagePhase::FinalAnswer => v1::MessagePhase::FinalAnswer,
    }
}

fn tool(of: &Tool, parts: &mut Parts) -> v1::Tool {
    let kind = match of {
        Tool::Command { command, directory } => {
            v1::tool::Kind::Command(v1::Command { command: Some(parts.content(command)), directory: directory.clone() })
        }
        Tool::FileChange { edits } => v1::tool::Kind::FileChange(v1::FileChange {
            edits: edits.iter().map(|edit| file_edit(edit, parts)).collect(),
        }),
        Tool::Mcp(of) => v1::tool::Kind::McpCall(mcp_call(of, parts)),
        Tool::WebSearch { query, action } => v1::tool::Kind::WebSearch(v1::WebSearch {
            query: Some(parts.content(query)),
            action: action.as_ref().map(|action| web_action(action, parts)),
        }),
        Tool::Other { name } => v1::tool::Kind::Other(v1::OtherTool { name: name.clone() }),
    };
    v1::Tool { kind: Some(kind) }
}

fn mcp_call(of: &McpCall, parts: &mut Parts) -> v1::McpCall {
    v1::McpCall {
        server: of.server.clone(),
        tool: of.tool.clone(),
        arguments: Some(parts.content(&of.arguments)),
        result: of.result.as_deref().map(|result| parts.content(result)),
        error: of.error.clone(),
    }
}

fn web_action(of: &WebAction, parts: &mut Parts) -> v1::web_search::Action {
    use v1::web_search::Action;
    match of {
        WebAction::Search { queries } => {
            Action::Search(v1::WebSearchQueries { queries: queries.iter().map(|query| parts.content(query)).collect() })
        }
        WebAction::OpenPage { url } => Action::OpenPage(v1::WebSearchPage { url: Some(parts.content(url)) }),
        WebAction::FindInPage { url, pattern } => Action::FindInPage(v1::WebSearchFind {
            url: Some(parts.content(url)),
            pattern: Some(parts.content(pattern)),
        }),
        WebAction::Other { name } => Action::Other(v1::WebSearchOther { name: name.clone() }),
    }
}

fn file_edit(of: &FileEdit, parts: &mut Parts) -> v1::FileEdit {
    v1::FileEdit {
        path: of.path.clone(),
        kind: match of.kind {
            FileEditKind::Add => v1::FileEditKind::Add,
            FileEditKind::Delete => v1::FileEditKind::Delete,
            FileEditKind::Update => v1::FileEditKind::Update,
            FileEditKind::Other => v1::FileEditKind::Unspecified,
        }
        .into(),
        diff: Some(parts.content(&of.diff)),
        moved_to: of.moved_to.clone().unwrap_or_default(),
    }
}

fn tool_completed(item: &str, end: &ToolEnd, parts: &mut Parts) -> v1::ToolCompleted {
    v1::ToolCompleted {
        item_id: item.to_owned(),
        status: match end.status {
            ToolStatus::Completed => v1::ToolStatus::Completed,
            ToolStatus::Failed => v1::ToolStatus::Failed,
            ToolStatus::Declined => v1::ToolStatus::Declined,
            ToolStatus::Incomplete => v1::ToolStatus::Incomplete,
            ToolStatus::Other => v1::ToolStatus::Unspecified,
        }
        .into(),
        tool: Some(tool(&end.tool, parts)),
        output: end.output.as_deref().map(|output| parts.content(output)),
        exit_code: end.exit_code,
        // A duration beyond what the wire has is no duration.
        duration: end.duration.and_then(|duration| duration.try_into().ok()),
    }
}

fn turn_ended(end: &End) -> v1::TurnEnded {
    let (status, cause, failed) = match &end.status {
        Status::Completed => (v1::TurnStatus::Completed, None, None),
        Status::Failed(of) => (v1::TurnStatus::Failed, None, Some(failure(of))),
        Status::Cancelled(cause) => {
            let cause = match cause {
                CancelCause::Requested => v1::EndCause::Requested,
                CancelCause::BridgeStopped => v1::EndCause::BridgeStopped,
                CancelCause::Released => v1::EndCause::Released,
            };
            (v1::TurnStatus::Cancelled, Some(cause), None)
        }
        Status::Unknown(cause) => {
            let cause = match cause {
                UnknownCause::Stalled => v1::EndCause::Stalled,
                UnknownCause::ExecutionLost => v1::EndCause::ExecutionLost,
                UnknownCause::Unsettled => v1::EndCause::Unsettled,
            };
            (v1::TurnStatus::Unknown, Some(cause), None)
        }
    };
    v1::TurnEnded {
        status: status.into(),
        cause: cause.map(Into::into),
        failure: failed,
        finish: end.finish.map(|finish| {
            match finish {
                Finish::Stop => v1::Finish::Stop,
                Finish::Incomplete => v1::Finish::Incomplete,
                Finish::Refused => v1::Finish::Refused,
                Finish::NoOutput => v1::Finish::NoOutput,
            }
            .into()
        }),
        native_completed_at: end.native_at.map(Into::into),
        usage: end.usage.as_ref().map(usage),
        reconciled: end.reconciled,
        tool_errors: end.tool_errors.iter().map(tool_error).collect(),
        output_matches_schema: end.output_matches,
    }
}

fn tool_error(of: &ToolError) -> v1::ToolError {
    let code = match of.code {
        Code::Failed(None) => v1::ToolErrorCode::Failed,
        Code::Failed(Some(Disposition::NotExecuted)) => v1::ToolErrorCode::NotExecuted,
        Code::Failed(Some(Disposition::OutcomeUnknown)) => v1::ToolErrorCode::OutcomeUnknown,
        Code::Failed(Some(Disposition::ConnectionLost)) => v1::ToolErrorCode::ConnectionLost,
        Code::Failed(Some(Disposition::NotConnected)) => v1::ToolErrorCode::NotConnected,
        Code::Failed(Some(Disposition::LimitExceeded)) => v1::ToolErrorCode::LimitExceeded,
        Code::Abandoned => v1::ToolErrorCode::Abandoned,
    };
    let (call_id, name, message) = (of.call_id.clone(), of.name.clone(), of.message.clone());
    v1::ToolError { call_id, name, code: code.into(), message }
}

fn failure(of: &Failure) -> v1::Failure {
    let (exit_code, exit_signal) = match of.exit {
        Some(Exit::Code(code)) => (Some(code), None),
        Some(Exit::Signal(signal)) => (None, Some(signal)),
        None => (None, None),
    };
    v1::Failure {
        code: failure_code(of.code).into(),
        message: of.message.clone(),
        http_status: of.http_status.map(u32::from),
        exit_code,
        exit_signal,
    }
}

fn failure_code(code: FailureCode) -> v1::FailureCode {
    match code {
        FailureCode::AuthenticationError => v1::FailureCode::AuthenticationError,
        FailureCode::RateLimitExceeded => v1::FailureCode::RateLimitExceeded,
        FailureCode::UsageLimitExceeded => v1::FailureCode::UsageLimitExceeded,
        FailureCode::ServerOverloaded => v1::FailureCode::ServerOverloaded,
        FailureCode::ServerError => v1::FailureCode::ServerError,
        FailureCode::InvalidRequest => v1::FailureCode::InvalidRequest,
        FailureCode::ResourceNotFound => v1::FailureCode::ResourceNotFound,
        FailureCode::RequestTimeout => v1::FailureCode::RequestTimeout,
        FailureCode::ContextLengthExceeded => v1::FailureCode::ContextLengthExceeded,
        FailureCode::CyberPolicy => v1::FailureCode::CyberPolicy,
        FailureCode::ConnectionFailed => v1::FailureCode::ConnectionFailed,
        FailureCode::HarnessExited => v1::FailureCode::HarnessExited,
        FailureCode::HarnessProtocolError => v1::FailureCode::HarnessProtocolError,
        FailureCode::StructuredOutputMissing => v1::FailureCode::StructuredOutputMissing,
        FailureCode::FunctionResultUnconfirmed => v1::FailureCode::FunctionResultUnconfirmed,
        FailureCode::DeadlineExceeded => v1::FailureCode::DeadlineExceeded,
        FailureCode::LineTooLarge => v1::FailureCode::LineTooLarge,
        FailureCode::StreamLimitExceeded => v1::FailureCode::StreamLimitExceeded,
        FailureCode::StorageUnavailable => v1::FailureCode::StorageUnavailable,
    }
}
