//! From a message to a line: one JSON object and one newline. There is no `jsonrpc` member.

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use thiserror::Error;

/// The value given cannot be written as JSON (a map with keys that are no strings, a `Serialize` that fails).
#[derive(Debug, Error)]
#[error("write JSON-RPC message")]
pub struct EncodeError(#[from] serde_json::Error);

/// A request with one of our ids. Parameters are written as they serialize; a [`RawValue`] in them keeps its text, but
/// for newlines between tokens, which become blanks.
///
/// # Errors
/// [`EncodeError`] when the parameters cannot be written.
pub fn request(id: u64, method: &str, params: &(impl Serialize + ?Sized)) -> Result<Bytes, EncodeError> {
    #[derive(Serialize)]
    struct Request<'a, P: ?Sized> {
        id: u64,
        method: &'a str,
        params: &'a P,
    }
    line(&Request { id, method, params })
}

/// A notification.
///
/// # Errors
/// As for [`request`].
pub fn notification(method: &str, params: &(impl Serialize + ?Sized)) -> Result<Bytes, EncodeError> {
    #[derive(Serialize)]
    struct Notification<'a, P: ?Sized> {
        method: &'a str,
        params: &'a P,
    }
    line(&Notification { method, params })
}

/// The answer to a request of the process, with its id as it was written.
///
/// # Errors
/// As for [`request`].
pub fn answer(id: &RawValue, result: &(impl Serialize + ?Sized)) -> Result<Bytes, EncodeError> {
    #[derive(Serialize)]
    struct Answer<'a, R: ?Sized> {
        id: &'a RawValue,
        result: &'a R,
    }
    line(&Answer { id, result })
}

/// The refusal of a request of the process, with its id as it was written. −32601 says that the method is unknown,
/// −32602 that its parameters are wrong, −32603 that we failed.
#[must_use]
pub fn refusal(id: &RawValue, code: i64, message: &str) -> Bytes {
    let message = serde_json::Value::from(message);
    let text = format!(r#"{{"id":{},"error":{{"code":{code},"message":{message}}}}}"#, id.get());
    finish(text.into_bytes())
}

/// A line of one message.
///
/// # Errors
/// As for [`request`].
pub(crate) fn line(message: &impl Serialize) -> Result<Bytes, EncodeError> {
    Ok(finish(serde_json::to_vec(message)?))
}

/// A raw newline can only stand between tokens, where a blank means the same: strings hold none, in JSON.
fn finish(mut text: Vec<u8>) -> Bytes {
    for byte in &mut text {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    text.push(b'\n');
    text.into()
}
