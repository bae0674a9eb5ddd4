//! What of an answer was begun and is over, by the events of each protocol. What is no event of it, or cannot be read, is the
//! Harness's to judge.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use serde::Deserialize;

use super::{Breach, Limits, Protocol, length::Length};

/// What many providers send behind a stream of any protocol, and what ends one of Chat Completions.
pub(super) const DONE: &[u8] = b"[DONE]";

/// What of an answer came so far.
#[derive(Debug)]
pub(super) struct Order {
    protocol: Protocol,
    /// Items that were begun and are not over, by their place.
    open: HashSet<u64>,
    blocks: u64,
    calls: u64,
    /// Bytes of the arguments of each call, by its place, and of all.
    arguments: HashMap<u64, u64>,
    argument_bytes: u64,
    /// It was said why the answer ends.
    has_reason: bool,
    is_over: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ResponsesEvent<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    output_index: Option<u64>,
    #[serde(borrow)]
    item: ResponsesItem<'a>,
    delta: Length,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ResponsesItem<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    arguments: Length,
    input: Length,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MessagesEvent<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    index: Option<u64>,
    #[serde(borrow)]
    content_block: Typed<'a>,
    #[serde(borrow)]
    delta: MessagesDelta<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Typed<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MessagesDelta<'a> {
    partial_json: Length,
    #[serde(borrow)]
    stop_reason: Option<Cow<'a, str>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChatEvent<'a> {
    #[serde(borrow)]
    choices: Option<Vec<ChatChoice<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChatChoice<'a> {
    index: Option<u64>,
    delta: Option<ChatDelta>,
    #[serde(borrow)]
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChatDelta {
    tool_calls: Option<Vec<ChatCall>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChatCall {
    /// Some providers leave it out, where calls come one behind the other.
    index: Option<u64>,
    function: Option<ChatFunction>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChatFunction {
    arguments: Option<Length>,
}

impl Order {
    pub(super) fn new(protocol: Protocol) -> Self {
        Self {
            protocol,
            open: HashSet::new(),
            blocks: 0,
            calls: 0,
            arguments: HashMap::new(),
            argument_bytes: 0,
            has_reason: false,
            is_over: false,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Takes the data of one event.
    ///
    /// # Errors
    /// It comes when the answer is over, or ends the answer too early.
    pub(super) fn event(&mut self, data: &[u8]) -> Result<(), Breach> {
        let is_done = data == DONE;
        if self.is_over {
            let is_end = is_done && self.protocol != Protocol::Chat;
            return if is_end { Ok(()) } else { Err(Breach::BehindEnd) };
        }
        match self.protocol {
            Protocol::Responses => read(data).map_or(Ok(()), |event| self.responses(&event)),
            Protocol::Messages => read(data).map_or(Ok(()), |event| self.messages(&event)),
            Protocol::Chat if is_done => self.end(),
            Protocol::Chat => {
                read(data).into_iter().for_each(|event| self.chat(event));
                Ok(())
            }
        }
    }

    /// # Errors
    /// It is more than this.
    pub(super) fn fits(&self, limits: &Limits) -> Result<(), Breach> {
        if self.blocks > limits.blocks {
            return Err(Breach::Blocks(limits.blocks));
        }
        if self.calls > limits.calls {
            return Err(Breach::Calls(limits.calls));
        }
        if self.argument_bytes > limits.argument_bytes {
            return Err(Breach::ArgumentBytes(limits.argument_bytes));
        }
        Ok(())
    }

    fn responses(&mut self, event: &ResponsesEvent<'_>) -> Result<(), Breach> {
        let item = &event.item;
        match &*event.kind {
            "response.output_item.added" => self.begin(event.output_index, item.kind.ends_with("_call")),
            "response.output_item.done" => {
                // Some providers send whole items only.
                if event.output_index.is_none_or(|place| !self.open.remove(&place)) {
                    self.count(item.kind.ends_with("_call"));
                }
                self.argument(event.output_index, item.arguments.0.max(item.input.0), true);
            }
            "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => {
                self.argument(event.output_index, event.delta.0, false);
            }
            "response.completed" => {
                self.has_reason = true;
                return self.end();
            }
            // An answer that was cut or failed says so; what it had begun stays as it was.
            "response.incomplete" | "response.failed" | "error" => self.is_over = true,
            _ => {}
        }
        Ok(())
    }

    fn messages(&mut self, event: &MessagesEvent<'_>) -> Result<(), Breach> {
        match &*event.kind {
            "content_block_start" => self.begin(event.index, event.content_block.kind.ends_with("tool_use")),
            "content_block_delta" => self.argument(event.index, event.delta.partial_json.0, false),
            "content_block_stop" => {
                event.index.map(|place| self.open.remove(&place));
            }
            "message_delta" => self.has_reason |= event.delta.stop_reason.is_some(),
            "message_stop" => return self.end(),
            "error" => self.is_over = true,
            _ => {}
        }
        Ok(())
    }

    fn chat(&mut self, event: ChatEvent<'_>) {
        for choice in event.choices.into_iter().flatten() {
            self.has_reason |= choice.finish_reason.is_some();
            let calls = choice.delta.and_then(|delta| delta.tool_calls);
            for (position, call) in (0..).zip(calls.into_iter().flatten()) {
                // A call has no beginning of its own. Two answers in one stream have calls of the same numbers.
                let index = choice.index.unwrap_or_default();
                let place = index.wrapping_mul(1 << 32).wrapping_add(call.index.unwrap_or(position));
                if !self.arguments.contains_key(&place) {
                    self.count(true);
                }
                let arguments = call.function.and_then(|function| function.arguments);
                self.argument(Some(place), arguments.map_or(0, |length| length.0), false);
            }
        }
    }

    fn begin(&mut self, place: Option<u64>, is_call: bool) {
        self.open.extend(place);
        self.count(is_call);
    }

    fn count(&mut self, is_call: bool) {
        self.blocks += 1;
        self.calls += u64::from(is_call);
    }

    /// So many bytes of arguments more, or in all.
    fn argument(&mut self, place: Option<u64>, bytes: u64, is_whole: bool) {
        let of_call = self.arguments.entry(place.unwrap_or(u64::MAX)).or_default();
        let more = if is_whole { bytes.saturating_sub(*of_call) } else { bytes };
        *of_call = of_call.saturating_add(more);
        self.argument_bytes = self.argument_bytes.saturating_add(more);
    }

    fn end(&mut self) -> Result<(), Breach> {
        if !self.has_reason {
            return Err(Breach::Early("no reason for the end was given"));
        }
        if !self.open.is_empty() {
            return Err(Breach::Early("an item is open"));
        }
        self.is_over = true;
        Ok(())
    }
}

fn read<'a, T: Deserialize<'a>>(data: &'a [u8]) -> Option<T> {
    serde_json::from_slice(data).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of these events, and how many blocks, calls and bytes of arguments were counted.
    fn judge(protocol: Protocol, events: &[&str]) -> (Result<bool, Breach>, (u64, u64, u64)) {
        let mut order = Order::new(protocol);
        let done = events.iter().try_for_each(|event| order.event(event.as_bytes()));
        (done.map(|()| order.is_over()), (order.blocks, order.calls, order.argument_bytes))
    }

    #[test]
    fn responses_are_over_with_their_own_mark() {
        let judge = |events: &[&str]| judge(Protocol::Responses, events);
        let added = r#"{"type":"response.output_item.added","output_index":1,"item":{"type":"function_call"}}"#;
        let delta = r#"{"type":"response.function_call_arguments.delta","output_index":1,"delta":"{\"a\":"}"#;
        let done = r#"{"type":"response.output_item.done","output_index":1,"item":{"type":"function_call","arguments":"{\"a\":1}"}}"#;
        let message = r#"{"type":"response.output_item.done","output_index":0,"item":{"type":"message","content":[]}}"#;
        let completed = r#"{"type":"response.completed","response":{"output":[]}}"#;
        let incomplete = r#"{"response":{},"type":"response.incomplete"}"#;
        assert_eq!(judge(&[added, delta, done]), (Ok(false), (1, 1, 7)));
        assert_eq!(judge(&[message, added, delta, done, completed, "[DONE]"]), (Ok(true), (2, 1, 7)));
        assert_eq!(judge(&[done, completed]), (Ok(true), (1, 1, 7)), "whole items only");
        assert_eq!(judge(&[added, completed]).0, Err(Breach::Early("an item is open")));
        assert_eq!(judge(&[added, incomplete]).0, Ok(true));
        assert_eq!(judge(&[completed, message]).0, Err(Breach::BehindEnd));
        assert_eq!(judge(&["nonsense", "[]", "{\"type\":7}", completed]).0, Ok(true));
    }

    #[test]
    fn messages_are_over_when_every_block_is_and_a_reason_was_given() {
        let judge = |events: &[&str]| judge(Protocol::Messages, events);
        let start = r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"c","name":"n","input":{}}}"#;
        let delta = r#"{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\"a\":1}"}}"#;
        let stop = r#"{"type":"content_block_stop","index":0}"#;
        let reason = r#"{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{}}"#;
        let no_reason = r#"{"type":"message_delta","delta":{"stop_reason":null}}"#;
        let end = r#"{"type":"message_stop"}"#;
        let ping = r#"{"type":"ping"}"#;
        assert_eq!(judge(&[start, delta, stop, reason, end]), (Ok(true), (1, 1, 7)));
        assert_eq!(judge(&[start, delta, reason, end]).0, Err(Breach::Early("an item is open")));
        assert_eq!(
            judge(&[start, delta, stop, no_reason, end]).0,
            Err(Breach::Early("no reason for the end was given"))
        );
        assert_eq!(judge(&[reason, end, ping]).0, Err(Breach::BehindEnd));
        assert_eq!(judge(&[start, r#"{"type":"error","error":{"type":"overloaded_error"}}"#]).0, Ok(true));
    }

    #[test]
    fn chat_is_over_with_done_behind_a_reason() {
        let judge = |events: &[&str]| judge(Protocol::Chat, events);
        let text = r#"{"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}"#;
        let call = |call: u64, text: &str| {
            format!(
                r#"{{"choices":[{{"index":0,"delta":{{"tool_calls":[{{"index":{call},"function":{{"arguments":"{text}"}}}}]}}}}]}}"#
            )
        };
        let reason = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}"#;
        let usage = r#"{"choices":[],"usage":{"total_tokens":3}}"#;
        assert_eq!(
            judge(&[text, &call(0, "12"), &call(1, "3"), &call(0, "4"), reason, usage, "[DONE]"]),
            (Ok(true), (2, 2, 4))
        );
        // What is null is as what is not there, and hides nothing of the event.
        let nulls = r#"{"choices":[{"index":null,"delta":{"tool_calls":[{"index":null,"function":null},{"function":{"arguments":"12"}},{"index":2,"function":{"arguments":null}}]},"finish_reason":"tool_calls"}]}"#;
        let empty = r#"{"choices":[{"delta":null,"finish_reason":"stop"}]}"#;
        assert_eq!(judge(&[nulls, r#"{"choices":null}"#, "[DONE]"]), (Ok(true), (3, 3, 2)));
        assert_eq!(judge(&[empty, "[DONE]"]), (Ok(true), (0, 0, 0)));
        assert_eq!(judge(&[text, "[DONE]"]).0, Err(Breach::Early("no reason for the end was given")));
        assert_eq!(judge(&[reason, "[DONE]", "[DONE]"]).0, Err(Breach::BehindEnd));
        assert_eq!(judge(&[reason, "[DONE]", text]).0, Err(Breach::BehindEnd));
    }

    #[test]
    fn more_than_the_limits_is_refused_with_its_name() {
        let limits = Limits { blocks: 2, calls: 1, argument_bytes: 4, ..Limits::default() };
        let fits = |blocks, calls, argument_bytes| {
            Order { blocks, calls, argument_bytes, ..Order::new(Protocol::Chat) }.fits(&limits)
        };
        assert_eq!(fits(2, 1, 4), Ok(()));
        assert_eq!(fits(3, 1, 4), Err(Breach::Blocks(2)));
        assert_eq!(fits(2, 2, 4), Err(Breach::Calls(1)));
        assert_eq!(fits(2, 1, 5), Err(Breach::ArgumentBytes(4)));
    }
}
