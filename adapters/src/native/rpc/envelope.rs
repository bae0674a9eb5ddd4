//! From a line to a message: the members of the envelope, each as the text it came as, and what they make together.

use std::{borrow::Cow, fmt, str};

use serde::{
    Deserialize, Deserializer as _,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{Malformed, Message, RpcError};

/// The most characters of a line that an error repeats.
const EXCERPT: usize = 256;

pub(super) fn parse(line: &[u8]) -> Result<Message<'_>, Malformed> {
    let text = str::from_utf8(line)
        .map_err(|error| Malformed::NotUtf8 { valid_up_to: error.valid_up_to(), excerpt: excerpt(line) })?;
    let envelope = Envelope::read(text).map_err(|error| {
        if serde_json::from_str::<IgnoredAny>(text).is_ok() {
            Malformed::NotAnObject { excerpt: excerpt(line) }
        } else {
            Malformed::NotJson { column: error.column(), excerpt: excerpt(line) }
        }
    })?;
    envelope.message(line)
}

#[derive(Default)]
struct Envelope<'a> {
    id: Option<&'a RawValue>,
    method: Option<&'a RawValue>,
    params: Option<&'a RawValue>,
    result: Option<&'a RawValue>,
    error: Option<&'a RawValue>,
}

impl<'a> Envelope<'a> {
    fn read(text: &'a str) -> Result<Self, serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let envelope = deserializer.deserialize_map(Members)?;
        deserializer.end()?;
        Ok(envelope)
    }

    fn message(self, line: &'a [u8]) -> Result<Message<'a>, Malformed> {
        let present = |member: Option<&'a RawValue>| member.filter(|value| value.get() != "null");
        if let Some(method) = self.method {
            let Ok(Name(method)) = serde_json::from_str(method.get()) else {
                return Err(Malformed::NotAMessage { excerpt: excerpt(line) });
            };
            let params = present(self.params);
            return match present(self.id) {
                None => Ok(Message::Notification { method, params }),
                Some(id) if id.get().starts_with(['"', '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']) => {
                    Ok(Message::Request { id, method, params })
                }
                Some(_) => Err(Malformed::NotAMessage { excerpt: excerpt(line) }),
            };
        }
        let outcome = match (present(self.error), self.result) {
            (Some(error), _) => Err(rpc_error(error)),
            (None, Some(result)) => Ok(result),
            (None, None) => return Err(Malformed::NotAMessage { excerpt: excerpt(line) }),
        };
        match self.id.map(|id| id.get().parse()) {
            Some(Ok(id)) => Ok(Message::Response { id, outcome }),
            Some(Err(_)) | None => Err(Malformed::ForeignId { excerpt: excerpt(line) }),
        }
    }
}

/// Collects the members of the envelope. A derived type would refuse a repeated member and could not tell
/// `"result": null` from none.
struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Envelope<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON-RPC message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Envelope<'de>, A::Error> {
        let mut envelope = Envelope::default();
        while let Some(Name(name)) = map.next_key()? {
            let member = match &*name {
                "id" => &mut envelope.id,
                "method" => &mut envelope.method,
                "params" => &mut envelope.params,
                "result" => &mut envelope.result,
                "error" => &mut envelope.error,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *member = Some(map.next_value()?);
        }
        Ok(envelope)
    }
}

/// A string that is borrowed unless it has escapes.
#[derive(Deserialize)]
#[serde(transparent)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

fn rpc_error(error: &RawValue) -> RpcError {
    #[derive(Deserialize)]
    struct Parts<'a> {
        #[serde(borrow)]
        code: Option<&'a RawValue>,
        #[serde(borrow)]
        message: Option<&'a RawValue>,
        data: Option<Box<RawValue>>,
    }
    let text = |raw: &RawValue| serde_json::from_str(raw.get()).unwrap_or_else(|_| raw.get().to_owned());
    match serde_json::from_str::<Parts<'_>>(error.get()) {
        Ok(Parts { code, message, data }) => RpcError {
            code: code.and_then(|code| code.get().parse().ok()).unwrap_or(0),
            message: message.map(text).unwrap_or_default(),
            data,
        },
        Err(_) => RpcError { code: 0, message: text(error), data: None },
    }
}

/// The beginning of a line, printable and on one line, at most [`EXCERPT`] characters.
fn excerpt(line: &[u8]) -> String {
    // Four bytes are the longest character, so no more of a long line is looked at.
    let head = String::from_utf8_lossy(&line[..line.len().min(4 * EXCERPT)]);
    let mut out = String::new();
    let mut length = 0;
    for character in head.chars() {
        let escaped = character.escape_debug();
        let cost = escaped.clone().count();
        if length + cost > EXCERPT - 1 {
            out.push('…');
            return out;
        }
        length += cost;
        out.extend(escaped);
    }
    if line.len() > 4 * EXCERPT {
        out.push('…');
    }
    out
}
