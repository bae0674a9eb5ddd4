//! An event as one line of JSON: the fields and the kind under their protocol names, enum values in lower case without the enum's name,
//! bytes in hexadecimal, times as RFC 3339, durations in seconds with an `s`. What is unset is absent; what is empty is there.

use proto::v1::{self, content::Place, event::Kind, tool};
use serde::ser::{Serialize, SerializeMap as _, Serializer};

/// The line, with its end.
pub(super) fn line(event: &v1::Event) -> String {
    let object = Object::default()
        .with("turn_id", &event.turn_id)
        .with("sequence", event.sequence)
        .with("time", event.time.map(|time| time.to_string()));
    let object = match event.kind.as_ref().map(kind) {
        Some((name, fields)) => object.with(name, fields),
        None => object,
    };
    // Strings, numbers and truth values under string keys can always be written.
    serde_json::to_string(&object).map(|text| text + "\n").unwrap_or_default()
}

fn kind(kind: &Kind) -> (&'static str, Object) {
    match kind {
        Kind::TurnStarted(e) => ("turn_started", Object::default().with("native", e.native.as_ref().map(native))),
        Kind::MessageStarted(e) => ("message_started", item(&e.item_id).with("native_id", &e.native_id)),
        Kind::MessageDelta(e) => ("message_delta", item(&e.item_id).with("text", &e.text)),
        Kind::MessageCompleted(e) => {
            let phase = e.phase.map(|number| Value::name::<v1::MessagePhase>(number, "MESSAGE_PHASE_"));
            ("message_completed", item(&e.item_id).with("text", e.text.as_ref().map(content)).with("phase", phase))
        }
        Kind::MessageDiscarded(e) => {
            let reason = Value::name::<v1::DiscardReason>(e.reason, "DISCARD_REASON_");
            ("message_discarded", item(&e.item_id).with("reason", reason))
        }
        Kind::ReasoningStarted(e) => ("reasoning_started", item(&e.item_id).with("native_id", &e.native_id)),
        Kind::ReasoningDelta(e) => (
            "reasoning_delta",
            item(&e.item_id)
                .with("text_kind", Value::name::<v1::ReasoningText>(e.text_kind, "REASONING_TEXT_"))
                .with("index", u64::from(e.index))
                .with("text", &e.text),
        ),
        Kind::ReasoningCompleted(e) => (
            "reasoning_completed",
            item(&e.item_id)
                .with("summary", Value::list(&e.summary, content))
                .with("raw", Value::list(&e.raw, content))
                .with("incomplete", e.incomplete),
        ),
        Kind::ToolStarted(e) => {
            ("tool_started", item(&e.item_id).with("native_id", &e.native_id).with("tool", e.tool.as_ref().map(a_tool)))
        }
        Kind::ToolOutput(e) => ("tool_output", item(&e.item_id).with("text", &e.text)),
        Kind::ToolCompleted(e) => (
            "tool_completed",
            item(&e.item_id)
                .with("status", Value::name::<v1::ToolStatus>(e.status, "TOOL_STATUS_"))
                .with("tool", e.tool.as_ref().map(a_tool))
                .with("output", e.output.as_ref().map(content))
                .with("exit_code", e.exit_code.map(i64::from))
                .with("duration", e.duration.map(|duration| duration.to_string())),
        ),
        Kind::FunctionCall(e) => (
            "function_call",
            call(&e.call_id)
                .with("name", &e.name)
                .with("arguments", e.arguments.as_ref().map(content))
                .with("arguments_exact", e.arguments_exact)
                .with("call_id_origin", Value::name::<v1::CallIdOrigin>(e.call_id_origin, "CALL_ID_ORIGIN_"))
                .with("idempotency_key", &e.idempotency_key)
                .with("turn_id", &e.turn_id)
                .with("batch_id", e.batch_id.as_ref())
                .with("position", e.position.map(u64::from)),
        ),
        Kind::FunctionResultApplied(e) => {
            ("function_result_applied", call(&e.call_id).with("evidence", &e.evidence).with("success", e.success))
        }
        Kind::FunctionCallAbandoned(e) => {
            let reason = Value::name::<v1::AbandonReason>(e.reason, "ABANDON_REASON_");
            ("function_call_abandoned", call(&e.call_id).with("reason", reason))
        }
        Kind::FunctionProgress(e) => {
            ("function_progress", call(&e.call_id).with("number", e.number).with("message", &e.message))
        }
        Kind::InputWritten(e) => ("input_written", input(&e.input_id)),
        Kind::InputAccepted(e) => {
            let evidence = Value::name::<v1::InputEvidence>(e.evidence, "INPUT_EVIDENCE_");
            ("input_accepted", input(&e.input_id).with("evidence", evidence).with("native_id", &e.native_id))
        }
        Kind::InputRefused(e) => {
            let reason = Value::name::<v1::Reason>(e.reason, "REASON_");
            ("input_refused", input(&e.input_id).with("reason", reason).with("message", &e.message))
        }
        Kind::InputOutcomeUnknown(e) => ("input_outcome_unknown", input(&e.input_id)),
        Kind::ProviderRetry(e) => (
            "provider_retry",
            Object::default()
                .with("http_status", e.http_status.map(u64::from))
                .with("code", Value::name::<v1::FailureCode>(e.code, "FAILURE_CODE_"))
                .with("message", &e.message),
        ),
        Kind::Usage(e) => ("usage", usage(e)),
        Kind::Notice(e) => ("notice", Object::default().with("code", &e.code).with("message", &e.message)),
        Kind::EventsOmitted(e) => {
            let reason = Value::name::<v1::OmissionReason>(e.reason, "OMISSION_REASON_");
            ("events_omitted", Object::default().with("first", e.first).with("last", e.last).with("reason", reason))
        }
        Kind::TurnEnded(e) => ("turn_ended", turn_ended(e)),
    }
}

fn item(id: &str) -> Object {
    Object::default().with("item_id", id)
}

fn call(id: &str) -> Object {
    Object::default().with("call_id", id)
}

fn input(id: &str) -> Object {
    Object::default().with("input_id", id)
}

fn native(native: &v1::NativeIdentity) -> Object {
    Object::default().with("session_id", &native.session_id).with("turn_id", &native.turn_id)
}

/// `{"text": …}` or `{"payload": {…}}`.
fn content(content: &v1::Content) -> Object {
    match &content.place {
        Some(Place::Text(text)) => Object::default().with("text", text),
        Some(Place::Payload(part)) => {
            let part = Object::default()
                .with("payload_id", &part.payload_id)
                .with("size", part.size)
                .with("sha256", hexadecimal(&part.sha256));
            Object::default().with("payload", part)
        }
        None => Object::default(),
    }
}

fn a_tool(tool: &v1::Tool) -> Object {
    match &tool.kind {
        Some(tool::Kind::Command(command)) => {
            let fields = Object::default()
                .with("command", command.command.as_ref().map(content))
                .with("directory", &command.directory);
            Object::default().with("command", fields)
        }
        Some(tool::Kind::FileChange(change)) => {
            let fields = Object::default().with("edits", Value::list(&change.edits, edit));
            Object::default().with("file_change", fields)
        }
        Some(tool::Kind::McpCall(call)) => Object::default().with("mcp_call", mcp_call(call)),
        Some(tool::Kind::WebSearch(search)) => Object::default().with("web_search", web_search(search)),
        Some(tool::Kind::Other(other)) => Object::default().with("other", Object::default().with("name", &other.name)),
        None => Object::default(),
    }
}

fn mcp_call(call: &v1::McpCall) -> Object {
    Object::default()
        .with("server", &call.server)
        .with("tool", &call.tool)
        .with("arguments", call.arguments.as_ref().map(content))
        .with("result", call.result.as_ref().map(content))
        .with("error", &call.error)
}

fn web_search(search: &v1::WebSearch) -> Object {
    use v1::web_search::Action;
    let fields = Object::default().with("query", search.query.as_ref().map(content));
    match &search.action {
        Some(Action::Search(search)) => {
            let queries = Value::list(&search.queries, content);
            fields.with("search", Object::default().with("queries", queries))
        }
        Some(Action::OpenPage(page)) => {
            fields.with("open_page", Object::default().with("url", page.url.as_ref().map(content)))
        }
        Some(Action::FindInPage(find)) => {
            let sought = Object::default()
                .with("url", find.url.as_ref().map(content))
                .with("pattern", find.pattern.as_ref().map(content));
            fields.with("find_in_page", sought)
        }
        Some(Action::Other(other)) => fields.with("other", Object::default().with("name", &other.name)),
        None => fields,
    }
}

fn edit(edit: &v1::FileEdit) -> Object {
    Object::default()
        .with("path", &edit.path)
        .with("kind", Value::name::<v1::FileEditKind>(edit.kind, "FILE_EDIT_KIND_"))
        .with("diff", edit.diff.as_ref().map(content))
        .with("moved_to", &edit.moved_to)
}

fn usage(usage: &v1::Usage) -> Object {
    Object::default()
        .with("input_tokens", usage.input_tokens)
        .with("cached_input_tokens", usage.cached_input_tokens)
        .with("output_tokens", usage.output_tokens)
        .with("reasoning_output_tokens", usage.reasoning_output_tokens)
        .with("total_tokens", usage.total_tokens)
}

fn turn_ended(ended: &v1::TurnEnded) -> Object {
    let failure = ended.failure.as_ref().map(|failure| {
        Object::default()
            .with("code", Value::name::<v1::FailureCode>(failure.code, "FAILURE_CODE_"))
            .with("message", &failure.message)
            .with("http_status", failure.http_status.map(u64::from))
            .with("exit_code", failure.exit_code.map(i64::from))
            .with("exit_signal", failure.exit_signal.map(i64::from))
    });
    Object::default()
        .with("status", Value::name::<v1::TurnStatus>(ended.status, "TURN_STATUS_"))
        .with("cause", ended.cause.map(|number| Value::name::<v1::EndCause>(number, "END_CAUSE_")))
        .with("failure", failure)
        .with("finish", ended.finish.map(|number| Value::name::<v1::Finish>(number, "FINISH_")))
        .with("native_completed_at", ended.native_completed_at.map(|time| time.to_string()))
        .with("usage", ended.usage.as_ref().map(usage))
        .with("reconciled", ended.reconciled)
        .with("tool_errors", Value::list(&ended.tool_errors, tool_error))
        .with("output_matches_schema", ended.output_matches_schema)
}

fn tool_error(error: &v1::ToolError) -> Object {
    call(&error.call_id)
        .with("name", &error.name)
        .with("code", Value::name::<v1::ToolErrorCode>(error.code, "TOOL_ERROR_CODE_"))
        .with("message", &error.message)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An object whose members stay in the order in which they were added.
#[derive(Debug, Default)]
struct Object(Vec<(&'static str, Value)>);

impl Object {
    /// Adds a member, unless its value is unset.
    fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        match value.into() {
            Value::Unset => {}
            value => self.0.push((name, value)),
        }
        self
    }
}

#[derive(Debug)]
enum Value {
    Unset,
    Text(String),
    Flag(bool),
    Natural(u64),
    Number(i64),
    List(Vec<Value>),
    Object(Object),
}

impl Value {
    /// The name of a value of an enum; a number that this program does not know stays one.
    fn name<E: TryFrom<i32> + Named>(number: i32, prefix: &str) -> Self {
        match E::try_from(number) {
            Ok(value) => Self::Text(super::progress::name(value.named(), prefix)),
            Err(_) => Self::Number(number.into()),
        }
    }

    fn list<T>(items: &[T], render: impl Fn(&T) -> Object) -> Self {
        Self::List(items.iter().map(|item| Self::Object(render(item))).collect())
    }
}

/// The name of an enum's value in the protocol.
trait Named {
    fn named(&self) -> &'static str;
}

macro_rules! named {
    ($($name:ident)*) => {
        $(impl Named for v1::$name {
            fn named(&self) -> &'static str {
                self.as_str_name()
            }
        })*
    };
}

named! { AbandonReason CallIdOrigin DiscardReason EndCause FailureCode FileEditKind Finish InputEvidence MessagePhase OmissionReason Reason
ReasoningText ToolErrorCode ToolStatus TurnStatus }

macro_rules! from {
    ($($type:ty => $variant:ident;)*) => {
        $(impl From<$type> for Value {
            fn from(value: $type) -> Self {
                Self::$variant(value.into())
            }
        })*
    };
}

from! { &str => Text; &String => Text; String => Text; bool => Flag; u64 => Natural; i64 => Number; Object => Object; }

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Unset, Into::into)
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Unset => serializer.serialize_none(),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Flag(flag) => serializer.serialize_bool(*flag),
            Self::Natural(number) => serializer.serialize_u64(*number),
            Self::Number(number) => serializer.serialize_i64(*number),
            Self::List(items) => serializer.collect_seq(items),
            Self::Object(object) => object.serialize(serializer),
        }
    }
}
