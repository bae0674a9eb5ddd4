//! Which calls a provider's answer asks for, and whether its end asks for them to be run (R-FN-10). Calls that the provider runs itself are not
//! the Harness's. Pure.

use std::{borrow::Cow, collections::HashSet};

use serde::{Deserialize, de::IgnoredAny};

use super::{Breach, Protocol, order::DONE};

/// Items of the Responses API that look like calls and are run by the provider.
const RUN_BY_PROVIDER: [&str; 5] =
    ["code_interpreter_call", "file_search_call", "image_generation_call", "mcp_call", "web_search_call"];

/// The calls of one answer, which are run together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// What the provider calls the answer, where it says so.
    pub(crate) id: Option<String>,
    /// The calls in the provider's order, the Harness's own tools included.
    pub(crate) calls: Vec<Called>,
}

/// A call of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Called {
    /// The provider's id of it.
    pub(crate) call_id: String,
    /// The tool as the provider names it, behind its namespace and a point where it has one.
    pub(crate) name: String,
}

/// What an event means for the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Nothing.
    Nothing,
    /// It asks for a call, or is a part of that.
    Call,
    /// It says how the answer ends, so the Harness needs it also without the calls.
    Rest,
    /// The end: the calls are run, or not.
    End { runs: bool },
}

/// The calls of one answer so far.
#[derive(Debug)]
pub(super) struct Calls {
    protocol: Protocol,
    id: Option<String>,
    calls: Vec<Call>,
    /// Why they are not run, whatever the end says.
    flaw: Option<&'static str>,
    /// Whether the reason that was given for the end asks for the calls.
    is_asked: bool,
}

#[derive(Debug)]
struct Call {
    place: Option<u64>,
    id: String,
    name: String,
    is_whole: bool,
}

type Text<'a> = Option<Cow<'a, str>>;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ResponsesEvent<'a> {
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    output_index: Option<u64>,
    #[serde(borrow)]
    item: Option<Item<'a>>,
    #[serde(borrow)]
    response: Option<Response<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Response<'a> {
    #[serde(borrow)]
    id: Text<'a>,
    #[serde(borrow)]
    status: Text<'a>,
    #[serde(borrow)]
    output: Option<Vec<Item<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Item<'a> {
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow)]
    call_id: Text<'a>,
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    namespace: Text<'a>,
    #[serde(borrow)]
    execution: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MessagesEvent<'a> {
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    index: Option<u64>,
    #[serde(borrow)]
    message: Option<Message<'a>>,
    #[serde(borrow)]
    content_block: Option<Block<'a>>,
    #[serde(borrow)]
    delta: Option<Message<'a>>,
}

/// A message, whole or a part of it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Message<'a> {
    #[serde(borrow)]
    id: Text<'a>,
    #[serde(borrow)]
    stop_reason: Text<'a>,
    #[serde(borrow)]
    content: Option<Vec<Block<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Block<'a> {
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow)]
    id: Text<'a>,
    #[serde(borrow)]
    name: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Chat<'a> {
    #[serde(borrow)]
    id: Text<'a>,
    #[serde(borrow)]
    choices: Option<Vec<Choice<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Choice<'a> {
    index: u64,
    /// `message` where the answer is no stream.
    #[serde(borrow, alias = "message")]
    delta: Option<Delta<'a>>,
    #[serde(borrow)]
    finish_reason: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Delta<'a> {
    #[serde(borrow)]
    tool_calls: Option<Vec<ChatCall<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChatCall<'a> {
    index: Option<u64>,
    #[serde(borrow)]
    id: Text<'a>,
    #[serde(borrow)]
    function: Option<Function<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Function<'a> {
    #[serde(borrow)]
    name: Text<'a>,
}

impl Calls {
    pub(super) fn new(protocol: Protocol) -> Self {
        Self { protocol, id: None, calls: Vec::new(), flaw: None, is_asked: false }
    }

    /// Takes the data of one event.
    ///
    /// # Errors
    /// It cannot be read, so nobody knows what it asks for.
    pub(super) fn read(&mut self, data: &[u8]) -> Result<Meaning, Breach> {
        match self.protocol {
            Protocol::Responses => {
                read(data).map(|event| event.map_or(Meaning::Nothing, |event| self.responses(event)))
            }
            Protocol::Messages => read(data).map(|event| event.map_or(Meaning::Nothing, |event| self.messages(event))),
            Protocol::Chat if data == DONE => Ok(Meaning::End { runs: self.is_asked }),
            Protocol::Chat => read(data).map(|event| event.map_or(Meaning::Nothing, |event| self.chat(event))),
        }
    }

    /// The calls, which are run.
    ///
    /// # Errors
    /// They cannot be told apart, or are not whole.
    pub(super) fn batch(&self) -> Result<Batch, Breach> {
        let mut ids = HashSet::new();
        let flaw = self.calls.iter().find_map(|call| match call {
            Call { id, .. } if id.is_empty() => Some("a call has no id"),
            Call { name, .. } if name.is_empty() => Some("a call has no name"),
            Call { id, .. } if !ids.insert(id) => Some("two calls have one id"),
            Call { is_whole: false, .. } => Some("a call is not whole"),
            Call { .. } => None,
        });
        if let Some(flaw) = self.flaw.or(flaw) {
            return Err(Breach::Calling(flaw));
        }
        let called = |call: &Call| Called { call_id: call.id.clone(), name: call.name.clone() };
        Ok(Batch { id: self.id.clone(), calls: self.calls.iter().map(called).collect() })
    }

    /// The calls of an answer that is no stream, where it has some.
    ///
    /// # Errors
    /// They are not to be run; nothing can be left out of such an answer.
    pub(super) fn of_whole(protocol: Protocol, body: &[u8]) -> Result<Option<Batch>, Breach> {
        let mut calls = Self::new(protocol);
        match protocol {
            Protocol::Responses => {
                let Response { id, status, output } = read(body)?.unwrap_or_default();
                calls.id = owned(id);
                calls.is_asked = status.as_deref() == Some("completed");
                for (place, item) in (0..).zip(output.into_iter().flatten().filter(Item::is_call)) {
                    calls.call(Some(place), item.call_id.clone(), item.called(), true);
                }
            }
            Protocol::Messages => {
                let Message { id, stop_reason, content } = read(body)?.unwrap_or_default();
                calls.id = owned(id);
                calls.is_asked = stop_reason.as_deref() == Some("tool_use");
                for (place, block) in (0..).zip(content.into_iter().flatten().filter(Block::is_call)) {
                    calls.call(Some(place), block.id, block.name, true);
                }
            }
            Protocol::Chat => {
                let chat: Chat<'_> = read(body)?.unwrap_or_default();
                calls.chat(chat);
            }
        }
        if calls.calls.is_empty() {
            return Ok(None);
        }
        if !calls.is_asked {
            return Err(Breach::Calling(
                "the answer was not finished, and is no stream that they could be left out of",
            ));
        }
        calls.batch().map(Some)
    }

    fn responses(&mut self, event: ResponsesEvent<'_>) -> Meaning {
        let ResponsesEvent { kind, output_index, item, response } = event;
        if let Some(id) = response.as_ref().and_then(|response| response.id.as_deref()) {
            self.id.get_or_insert_with(|| id.to_owned());
        }
        match kind.as_deref().unwrap_or_default() {
            kind @ ("response.output_item.added" | "response.output_item.done") => match item.filter(Item::is_call) {
                Some(item) => {
                    self.call(output_index, item.call_id.clone(), item.called(), kind.ends_with(".done"));
                    Meaning::Call
                }
                None => Meaning::Nothing,
            },
            "response.completed" => {
                // It repeats the whole answer, or leaves that out.
                let output = response.and_then(|response| response.output).unwrap_or_default();
                let named: Vec<_> = output.iter().filter(|item| item.is_call()).collect();
                let is_same = |(call, item): (&Call, &&Item<'_>)| {
                    item.call_id.as_deref() == Some(&*call.id) && item.called().as_deref() == Some(&*call.name)
                };
                let is_whole = named.len() == self.calls.len() && self.calls.iter().zip(&named).all(is_same);
                if !named.is_empty() && !is_whole {
                    self.flaw = Some("the end of the answer names other calls than came before it");
                }
                // What is named at the end only was never streamed, so no Harness runs it.
                Meaning::End { runs: true }
            }
            "response.incomplete" | "response.failed" | "error" => Meaning::End { runs: false },
            _ => Meaning::Nothing,
        }
    }

    fn messages(&mut self, event: MessagesEvent<'_>) -> Meaning {
        let MessagesEvent { kind, index, message, content_block, delta } = event;
        if let Some(id) = message.and_then(|message| owned(message.id)) {
            self.id.get_or_insert(id);
        }
        match kind.as_deref().unwrap_or_default() {
            "content_block_start" => match content_block.filter(Block::is_call) {
                Some(block) => {
                    self.call(index, block.id, block.name, false);
                    Meaning::Call
                }
                None => Meaning::Nothing,
            },
            "content_block_stop" => {
                self.calls.iter_mut().filter(|call| call.place == index).for_each(|call| call.is_whole = true);
                Meaning::Nothing
            }
            "message_delta" => {
                if let Some(reason) = delta.and_then(|delta| delta.stop_reason) {
                    self.is_asked = reason == "tool_use";
                }
                Meaning::Rest
            }
            "message_stop" => Meaning::End { runs: self.is_asked },
            "error" => Meaning::End { runs: false },
            _ => Meaning::Nothing,
        }
    }

    fn chat(&mut self, event: Chat<'_>) -> Meaning {
        if let Some(id) = owned(event.id) {
            self.id.get_or_insert(id);
        }
        let mut meaning = Meaning::Rest;
        for Choice { index, delta, finish_reason } in event.choices.into_iter().flatten() {
            for (nth, call) in (0..).zip(delta.and_then(|delta| delta.tool_calls).into_iter().flatten()) {
                meaning = Meaning::Call;
                let place = index.wrapping_mul(1 << 32).wrapping_add(call.index.unwrap_or(nth));
                self.call(Some(place), call.id, call.function.and_then(|function| function.name), true);
            }
            if let Some(reason) = finish_reason {
                self.is_asked = reason == "tool_calls";
            }
        }
        meaning
    }

    /// A call, or more about one. Whatever it says again is the same.
    fn call(&mut self, place: Option<u64>, id: Text<'_>, name: Text<'_>, is_whole: bool) {
        let (id, name) = (id.unwrap_or_default(), name.unwrap_or_default());
        let known = self.calls.iter_mut().find(|call| match (call.place, place) {
            (Some(known), Some(place)) => known == place,
            // Without a place only the end of a call that is not whole is more about it.
            _ => !call.is_whole && call.id == id,
        });
        let Some(known) = known else {
            return self.calls.push(Call { place, id: id.into_owned(), name: name.into_owned(), is_whole });
        };
        if self.protocol != Protocol::Chat && known.is_whole || self.protocol == Protocol::Messages {
            self.flaw = Some("two calls have one place");
        }
        for (known, said) in [(&mut known.id, id), (&mut known.name, name)] {
            if known.is_empty() {
                *known = said.into_owned();
            } else if !said.is_empty() && *known != said {
                self.flaw = Some("a call has two ids or two names");
            }
        }
        known.is_whole |= is_whole;
    }
}

impl<'a> Item<'a> {
    /// Whether the Harness is asked to run something.
    fn is_call(&self) -> bool {
        let kind = self.kind.as_deref().unwrap_or_default();
        kind.ends_with("_call") && !RUN_BY_PROVIDER.contains(&kind) && self.execution.as_deref() != Some("server")
    }

    /// The name of the tool. Some kinds of items have one tool each, and no name.
    fn called(&self) -> Text<'a> {
        let name = self.name.clone().or_else(|| self.kind.clone());
        match (self.namespace.as_deref(), name) {
            (Some(namespace), Some(name)) if !namespace.is_empty() => Some(format!("{namespace}.{name}").into()),
            (_, name) => name,
        }
    }
}

impl Block<'_> {
    fn is_call(&self) -> bool {
        self.kind.as_deref() == Some("tool_use")
    }
}

fn owned(text: Text<'_>) -> Option<String> {
    text.map(Cow::into_owned)
}

/// Reads JSON; none where it is something else, in which no Harness finds a call.
fn read<'a, T: Deserialize<'a>>(data: &'a [u8]) -> Result<Option<T>, Breach> {
    match serde_json::from_slice(data) {
        Ok(read) => Ok(Some(read)),
        Err(_) if serde_json::from_slice::<IgnoredAny>(data).is_err() => Ok(None),
        Err(_) => Err(Breach::Calling("a part of the answer has members of other types than its protocol says")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The id of an answer, and its calls as `id name`.
    type Told = Result<(Option<String>, Vec<String>), Breach>;

    /// What the events mean, and the calls at the end.
    fn told(protocol: Protocol, events: &[&str]) -> (Vec<Meaning>, Told) {
        let mut calls = Calls::new(protocol);
        let meanings = events.iter().map(|event| calls.read(event.as_bytes()).unwrap()).collect();
        let shown = |batch: Batch| {
            (batch.id, batch.calls.into_iter().map(|call| format!("{} {}", call.call_id, call.name)).collect())
        };
        (meanings, calls.batch().map(shown))
    }

    const END: Meaning = Meaning::End { runs: true };
    const CUT: Meaning = Meaning::End { runs: false };

    fn item(event: &str, place: u64, rest: &str) -> String {
        format!(
            r#"{{"type":"response.output_item.{event}","output_index":{place},"item":{{"type":"function_call",{rest}}}}}"#
        )
    }

    #[test]
    fn responses_ask_for_items_and_end_with_their_own_mark() {
        use Meaning::{Call, Nothing};
        let created = r#"{"type":"response.created","response":{"id":"resp_1"}}"#;
        let a = r#""call_id":"a","name":"f","arguments":"{}""#;
        let b = r#""call_id":"b","name":"g","namespace":"mcp__s","arguments":"""#;
        let completed = |output: &str| {
            format!(r#"{{"type":"response.completed","response":{{"id":"resp_1","output":[{output}]}}}}"#)
        };
        let (added, done, other) = (item("added", 1, a), item("done", 1, a), item("done", 2, b));
        let search =
            r#"{"type":"response.output_item.done","output_index":0,"item":{"type":"web_search_call","id":"ws"}}"#;
        let server = r#"{"type":"response.output_item.done","output_index":0,"item":{"type":"tool_search_call","execution":"server","call_id":null}}"#;
        let shell = r#"{"type":"response.output_item.done","output_index":3,"item":{"type":"local_shell_call","call_id":"c","action":{}}}"#;
        let events = [created, search, server, &added, &done, &other, shell, &completed("")];
        let want = ["a f", "b mcp__s.g", "c local_shell_call"].map(str::to_owned).to_vec();
        let meanings = vec![Nothing, Nothing, Nothing, Call, Call, Call, Call, END];
        assert_eq!(told(Protocol::Responses, &events), (meanings, Ok((Some("resp_1".into()), want))));
        for cut in ["response.incomplete", "response.failed", "error"] {
            let (meanings, _) = told(Protocol::Responses, &[&added, &format!(r#"{{"type":"{cut}","response":null}}"#)]);
            assert_eq!(meanings, [Call, CUT]);
        }
        let one = |call: &str| format!(r#"{{"type":"function_call",{call}}}"#);
        let named = |output: &str| told(Protocol::Responses, &[&done, &other, &completed(output)]).1.map(|_| ());
        assert_eq!(named(&format!("{},{}", one(a), one(b))), Ok(()));
        for wrong in [one(a), format!("{},{}", one(b), one(a)), one(r#""call_id":"a","name":"g""#)] {
            assert!(matches!(named(&wrong), Err(Breach::Calling(_))), "{wrong}");
        }
    }

    #[test]
    fn messages_ask_for_blocks_and_give_a_reason() {
        use Meaning::{Call, Nothing, Rest};
        let start = r#"{"type":"message_start","message":{"id":"msg_1","content":[],"stop_reason":null}}"#;
        let call = |place: u64, id: &str| {
            format!(
                r#"{{"type":"content_block_start","index":{place},"content_block":{{"type":"tool_use","id":"{id}","name":"f","input":{{}}}}}}"#
            )
        };
        let stop = |place: u64| format!(r#"{{"type":"content_block_stop","index":{place}}}"#);
        let reason =
            |text: &str| format!(r#"{{"type":"message_delta","delta":{{"stop_reason":"{text}"}},"usage":{{}}}}"#);
        let end = r#"{"type":"message_stop"}"#;
        let search = r#"{"type":"content_block_start","index":0,"content_block":{"type":"server_tool_use","id":"s","name":"web_search"}}"#;
        let of = |reason: &str| {
            told(Protocol::Messages, &[start, search, &call(1, "a"), &stop(1), &call(2, "b"), &stop(2), reason, end])
        };
        let meanings = vec![Nothing, Nothing, Call, Nothing, Call, Nothing, Rest, END];
        let want = ["a f", "b f"].map(str::to_owned).to_vec();
        assert_eq!(of(&reason("tool_use")), (meanings, Ok((Some("msg_1".into()), want))));
        for cut in ["max_tokens", "refusal", "end_turn", "pause_turn", "what comes next"] {
            assert_eq!(of(&reason(cut)).0.last(), Some(&CUT), "{cut}");
        }
        let whole = told(Protocol::Messages, &[&call(0, "a"), &reason("tool_use"), end]).1;
        assert_eq!(whole, Err(Breach::Calling("a call is not whole")));
        let twice = told(Protocol::Messages, &[&call(0, "a"), &stop(0), &call(0, "a"), &stop(0)]).1;
        assert_eq!(twice, Err(Breach::Calling("two calls have one place")));
    }

    #[test]
    fn chat_asks_in_pieces_and_is_over_with_done() {
        use Meaning::{Call, Rest};
        let piece =
            |call: &str| format!(r#"{{"id":"chat_1","choices":[{{"index":0,"delta":{{"tool_calls":[{call}]}}}}]}}"#);
        let first = piece(r#"{"index":0,"id":"a","function":{"name":"f","arguments":""}}"#);
        let more = piece(r#"{"index":0,"function":{"arguments":"{}"}}"#);
        let reason = |text: &str| format!(r#"{{"choices":[{{"index":0,"delta":{{}},"finish_reason":"{text}"}}]}}"#);
        let of = |reason: &str| told(Protocol::Chat, &[&first, &more, reason, "[DONE]"]);
        let want = (Some("chat_1".into()), vec!["a f".to_owned()]);
        assert_eq!(of(&reason("tool_calls")), (vec![Call, Call, Rest, END], Ok(want)));
        for cut in ["length", "content_filter", "stop"] {
            assert_eq!(of(&reason(cut)).0, [Call, Call, Rest, CUT], "{cut}");
        }
    }

    #[test]
    fn calls_that_cannot_be_told_apart_are_not_run() {
        let responses = |events: &[String]| {
            let events: Vec<_> = events.iter().map(String::as_str).collect();
            told(Protocol::Responses, &events).1.unwrap_err()
        };
        let done = |place, rest| item("done", place, rest);
        for (events, want) in [
            (vec![done(0, r#""name":"f""#)], "a call has no id"),
            (vec![done(0, r#""call_id":"","name":"f""#)], "a call has no id"),
            (vec![done(0, r#""call_id":"a","name":"""#)], "a call has no name"),
            (
                vec![done(0, r#""call_id":"a","name":"f""#), done(1, r#""call_id":"a","name":"g""#)],
                "two calls have one id",
            ),
            (
                vec![done(0, r#""call_id":"a","name":"f""#), done(0, r#""call_id":"b","name":"f""#)],
                "a call has two ids or two names",
            ),
            (vec![item("added", 0, r#""call_id":"a","name":"f""#)], "a call is not whole"),
            (
                vec![item("added", 0, r#""call_id":"a","name":"f""#), done(0, r#""call_id":"b","name":"f""#)],
                "a call has two ids or two names",
            ),
        ] {
            assert_eq!(responses(&events), Breach::Calling(want), "{events:?}");
        }
    }

    #[test]
    fn what_is_no_json_asks_for_nothing_and_what_cannot_be_read_is_refused() {
        for nothing in ["", "nonsense", "{\"type\":", "{\"type\":\"ping\"}", "{}"] {
            assert_eq!(Calls::new(Protocol::Responses).read(nothing.as_bytes()), Ok(Meaning::Nothing), "{nothing}");
        }
        for odd in [
            r#"{"type":7}"#,
            r#"{"type":"response.output_item.done","output_index":"0"}"#,
            r#"{"type":"a","type":"b"}"#,
        ] {
            assert!(matches!(Calls::new(Protocol::Responses).read(odd.as_bytes()), Err(Breach::Calling(_))), "{odd}");
        }
    }

    #[test]
    fn a_whole_answer_is_judged_by_its_end() {
        let of = |protocol, body: &str| {
            Calls::of_whole(protocol, body.as_bytes()).map(|batch| batch.map(|batch| batch.calls.len()))
        };
        let message = |reason: &str| {
            format!(r#"{{"id":"m","content":[{{"type":"tool_use","id":"a","name":"f"}}],"stop_reason":"{reason}"}}"#)
        };
        let response = |status: &str| {
            format!(
                r#"{{"id":"r","status":"{status}","output":[{{"type":"function_call","call_id":"a","name":"f"}}]}}"#
            )
        };
        let chat = |reason: &str| {
            format!(
                r#"{{"choices":[{{"message":{{"tool_calls":[{{"id":"a","function":{{"name":"f"}}}}]}},"finish_reason":"{reason}"}}]}}"#
            )
        };
        assert_eq!(of(Protocol::Messages, &message("tool_use")), Ok(Some(1)));
        assert_eq!(of(Protocol::Responses, &response("completed")), Ok(Some(1)));
        assert_eq!(of(Protocol::Chat, &chat("tool_calls")), Ok(Some(1)));
        assert!(of(Protocol::Messages, &message("max_tokens")).is_err());
        assert!(of(Protocol::Responses, &response("incomplete")).is_err());
        assert!(of(Protocol::Chat, &chat("length")).is_err());
        for none in [
            r#"{"type":"error","error":{"message":"busy"}}"#,
            r#"{"content":[{"type":"text","text":"a"}],"stop_reason":"max_tokens"}"#,
            "busy",
        ] {
            assert_eq!(of(Protocol::Messages, none), Ok(None), "{none}");
        }
    }
}
