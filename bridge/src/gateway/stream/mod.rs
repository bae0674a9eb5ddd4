//! Judges what a model provider streams, while it goes by (R-SEC-5): how much comes, and that it ends as its protocol says.
//! Pure: it is fed bytes and says what is wrong with them. It repairs nothing, and holds nothing back but calls where that is asked for (R-FN-10).

use std::time::Duration;

use self::{calls::Calls, events::Events, order::Order, withheld::Withheld};

pub(crate) use calls::{Batch, Called};
pub(crate) use withheld::Passes;

mod calls;
mod events;
mod length;
mod order;
mod withheld;

/// How much one answer of a provider may bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes of a body, whatever it holds.
    pub(crate) bytes: u64,
    /// Events of a stream.
    pub(crate) events: u64,
    /// Bytes of one event.
    pub(crate) event_bytes: u64,
    /// Items or content blocks.
    pub(crate) blocks: u64,
    /// Calls of tools among them.
    pub(crate) calls: u64,
    /// Bytes of the arguments of all calls together.
    pub(crate) argument_bytes: u64,
    /// From the request to the first byte of its answer.
    pub(crate) first_byte: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 256 << 20,
            events: 1 << 20,
            event_bytes: 64 << 20,
            blocks: 4096,
            calls: 1024,
            argument_bytes: 64 << 20,
            first_byte: Duration::from_secs(240),
        }
    }
}

/// Which of the protocols is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// The OpenAI Responses API.
    Responses,
    /// The Anthropic Messages API.
    Messages,
    /// The OpenAI Chat Completions API.
    Chat,
}

impl Protocol {
    /// What is answered to a request for this path; none where it is something else, such as a list of models.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        let path = path.trim_end_matches('/');
        [("/chat/completions", Self::Chat), ("/responses", Self::Responses), ("/messages", Self::Messages)]
            .into_iter()
            .find_map(|(end, protocol)| path.ends_with(end).then_some(protocol))
    }
}

/// What an answer may not do. The text names the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Breach {
    /// It is too long.
    #[error("the provider's answer is longer than {0} bytes (`stream_bytes`)")]
    Bytes(u64),
    /// It has too many events.
    #[error("the provider's answer has more than {0} events (`stream_events`)")]
    Events(u64),
    /// An event is too long.
    #[error("an event of the provider's answer is longer than {0} bytes (`stream_event_bytes`)")]
    EventBytes(u64),
    /// It has too many items or blocks.
    #[error("the provider's answer has more than {0} items (`stream_blocks`)")]
    Blocks(u64),
    /// It asks for too many calls.
    #[error("the provider's answer asks for more than {0} calls (`stream_calls`)")]
    Calls(u64),
    /// The arguments of its calls are too long.
    #[error("the arguments of the calls of the provider's answer are longer than {0} bytes (`stream_argument_bytes`)")]
    ArgumentBytes(u64),
    /// An answer of an MCP server, or an event of one that is a stream, is too long.
    #[error("the MCP server's answer is longer than {0} bytes (`mcp_bytes`)")]
    Served(u64),
    /// Nothing came.
    #[error("nothing of the provider's answer came within {0:?} (`stream_first_byte_ms`)")]
    FirstByte(Duration),
    /// Something came when it was over.
    #[error("the provider's answer goes on behind its end")]
    BehindEnd,
    /// It ended in the middle.
    #[error("the provider's answer ends before what it began: {0}")]
    Early(&'static str),
    /// Its calls are held back, and cannot be run (R-FN-10).
    #[error("the calls of the provider's answer are not run: {0} (`strict_calls`)")]
    Calling(&'static str),
}

/// One answer of a provider under way.
#[derive(Debug)]
pub(crate) struct Judge {
    limits: Limits,
    bytes: u64,
    seen: u64,
    form: Form,
}

/// What an answer is.
#[derive(Debug)]
enum Form {
    /// Nothing that asks for calls, or that has to be looked at for them.
    Other,
    /// An answer of an MCP server.
    Served(Served),
    /// A stream of events; its calls are held back where there is something for that.
    Stream(Box<Stream>),
    /// No stream, and held back as a whole.
    Whole { protocol: Protocol, body: Vec<u8> },
}

/// A stream of events under way.
#[derive(Debug)]
struct Stream {
    events: Events,
    order: Order,
    withheld: Option<Withheld>,
}

impl Judge {
    /// An answer that is a stream of events of this protocol, or whatever else. It passes as it comes.
    pub(crate) fn new(protocol: Option<Protocol>, is_stream: bool, limits: Limits) -> Self {
        let form = match protocol.filter(|_| is_stream) {
            Some(protocol) => Form::stream(protocol, None),
            None => Form::Other,
        };
        Self { limits, bytes: 0, seen: 0, form }
    }

    /// The same, but its calls are held back until it is known that they may run.
    pub(crate) fn strict(protocol: Option<Protocol>, is_stream: bool, limits: Limits) -> Self {
        let form = match (protocol, is_stream) {
            (Some(protocol), true) => Form::stream(protocol, Some(Withheld::new(protocol))),
            (Some(protocol), false) => Form::Whole { protocol, body: Vec::new() },
            (None, _) => Form::Other,
        };
        Self { limits, bytes: 0, seen: 0, form }
    }

    /// An answer of an MCP server. One that is a stream may go on for as long as it likes, so its events are counted one by one.
    pub(crate) fn of_a_server(is_stream: bool, bytes: u64) -> Self {
        let form = Form::Served(Served { is_stream, most: bytes, bytes: 0, line: 0 });
        Self { limits: Limits::default(), bytes: 0, seen: 0, form }
    }

    /// Takes the next bytes, before anybody else gets them. They go on as they came, or something else does in their place.
    ///
    /// # Errors
    /// What these bytes may not do.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<Option<Passes>, Breach> {
        if let Form::Served(served) = &mut self.form {
            return served.take(bytes).map(|()| None);
        }
        self.bytes = self.bytes.saturating_add(length(bytes));
        if self.bytes > self.limits.bytes {
            return Err(Breach::Bytes(self.limits.bytes));
        }
        let Stream { events, order, withheld } = match &mut self.form {
            Form::Served(_) => return Ok(None),
            Form::Other => return Ok(None),
            Form::Whole { body, .. } => {
                body.extend_from_slice(bytes);
                return Ok(Some(Passes::default()));
            }
            Form::Stream(stream) => &mut **stream,
        };
        let (limits, seen) = (&self.limits, &mut self.seen);
        let (mut passes, mut from) = (Passes::default(), 0);
        events.feed(bytes, limits.event_bytes, |data, to| {
            if let Some(data) = data {
                *seen += 1;
                if *seen > limits.events {
                    return Err(Breach::Events(limits.events));
                }
                order.event(data)?;
                order.fits(limits)?;
            }
            let event = &bytes[std::mem::replace(&mut from, to)..to];
            withheld.as_mut().map_or(Ok(()), |withheld| withheld.event(data, event, &mut passes))
        })?;
        Ok(withheld.as_mut().map(|withheld| {
            withheld.begin(&bytes[from..]);
            passes
        }))
    }

    /// The body is over: what still goes on. An event that is not whole is none, and calls without an end are not run.
    ///
    /// # Errors
    /// What it may not do as a whole.
    pub(crate) fn finish(&mut self) -> Result<Passes, Breach> {
        match &mut self.form {
            Form::Other | Form::Served(_) | Form::Stream(_) => Ok(Passes::default()),
            Form::Whole { protocol, body } => {
                let batch = Calls::of_whole(*protocol, body)?;
                Ok(Passes { bytes: std::mem::take(body), batch })
            }
        }
    }

    /// Whether something else may go on than what comes, so that its length is not known before.
    pub(crate) fn holds_back(&self) -> bool {
        match &self.form {
            Form::Other | Form::Served(_) => false,
            Form::Stream(stream) => stream.withheld.is_some(),
            Form::Whole { .. } => true,
        }
    }

    /// From the request to the first byte of its answer.
    pub(crate) fn first_byte(&self) -> Duration {
        self.limits.first_byte
    }

    /// Whether the mark of its end came: what is still to come is the end of the body, within a time.
    pub(crate) fn is_over(&self) -> bool {
        match &self.form {
            Form::Stream(stream) => stream.order.is_over(),
            Form::Other | Form::Served(_) | Form::Whole { .. } => false,
        }
    }
}

/// Counts an answer of an MCP server, or each event of it.
#[derive(Debug)]
struct Served {
    is_stream: bool,
    most: u64,
    bytes: u64,
    /// Bytes of the line so far, without its end: an empty one ends an event.
    line: u64,
}

impl Served {
    fn take(&mut self, bytes: &[u8]) -> Result<(), Breach> {
        // What is no stream is one piece.
        let is_stream = self.is_stream;
        for piece in bytes.split_inclusive(|byte| is_stream && *byte == b'\n') {
            self.bytes = self.bytes.saturating_add(length(piece));
            if self.bytes > self.most {
                return Err(Breach::Served(self.most));
            }
            let text = piece.strip_suffix(b"\n").filter(|_| is_stream);
            let visible = text.unwrap_or(piece).iter().filter(|byte| **byte != b'\r').count();
            self.line = self.line.saturating_add(u64::try_from(visible).unwrap_or(u64::MAX));
            if text.is_some() && std::mem::take(&mut self.line) == 0 {
                self.bytes = 0;
            }
        }
        Ok(())
    }
}

fn length(of: &[u8]) -> u64 {
    u64::try_from(of.len()).unwrap_or(u64::MAX)
}

impl Form {
    fn stream(protocol: Protocol, withheld: Option<Withheld>) -> Self {
        Self::Stream(Box::new(Stream { events: Events::default(), order: Order::new(protocol), withheld }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_a_server_is_counted_as_a_whole_or_by_its_events() {
        let taken = |is_stream, pieces: &[&str]| {
            let mut judge = Judge::of_a_server(is_stream, 20);
            let taken =
                pieces.iter().try_for_each(|piece| judge.take(piece.as_bytes()).map(|passes| assert_eq!(passes, None)));
            taken.inspect(|()| assert_eq!(judge.finish(), Ok(Passes::default())))
        };
        let event = "data: 0123456\r\n\r\n";
        assert_eq!(taken(true, &[event, event, ": x\n\n", event]), Ok(()));
        assert_eq!(taken(true, &[&event[..13], &event[13..14], &event[14..16], &event[16..], event]), Ok(()));
        assert_eq!(taken(true, &["data: 0\n", "data: 1\n", "data: 2\n"]), Err(Breach::Served(20)));
        assert_eq!(taken(false, &["{}\n\n", "0123456789abcdef"]), Ok(()));
        assert_eq!(taken(false, &["{}\n\n", "0123456789abcdefg"]), Err(Breach::Served(20)));
        assert!(Breach::Served(20).to_string().contains("`mcp_bytes`"));
    }

    #[test]
    fn an_answer_is_counted_as_it_comes() {
        let limits = Limits { bytes: 40, events: 2, event_bytes: 30, ..Limits::default() };
        let judge = |is_stream: bool, pieces: &[&str]| {
            let mut judge = Judge::new(Some(Protocol::Messages), is_stream, limits);
            pieces.iter().try_for_each(|piece| judge.take(piece.as_bytes()).map(|passes| assert_eq!(passes, None)))
        };
        let ping = "data: {}\n\n";
        assert_eq!(judge(true, &[ping, ping]), Ok(()));
        assert_eq!(judge(true, &[ping, ping, ping]), Err(Breach::Events(2)));
        assert_eq!(judge(true, &["data: {", "\"a\":\"bcdefghijklmnopqrstuvwxyz"]), Err(Breach::EventBytes(30)));
        assert_eq!(judge(false, &[ping, ping, ping, ping]), Ok(()));
        assert_eq!(judge(false, &[ping, ping, ping, ping, " "]), Err(Breach::Bytes(40)));
        assert_eq!(Protocol::of_path("/v1/chat/completions/"), Some(Protocol::Chat));
        assert_eq!(Protocol::of_path("/v1/messages/count_tokens"), None);
        assert!(Breach::Bytes(40).to_string().contains("`stream_bytes`"));
    }
}
