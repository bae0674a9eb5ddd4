//! JSON-RPC over lines, tolerant: the envelope is read first, what it holds stays the text it came as, members that
//! nobody knows are skipped. It knows no method and waits for no answer; matching ids is the adapter's work.

mod build;
mod envelope;
mod writer;

use std::borrow::Cow;

use serde_json::value::RawValue;
use thiserror::Error;

pub(crate) use self::build::line;
pub use self::{
    build::{EncodeError, answer, notification, refusal, request},
    writer::{Notice, SendError, Writer},
};

/// A message of the native process, borrowed from its line.
#[derive(Debug)]
pub enum Message<'a> {
    /// The process asks and waits for [`answer`] or [`refusal`] with the same id. It has a `method` and an `id`.
    Request {
        /// Number or string, as it was written, to be echoed.
        id: &'a RawValue,
        /// What is asked for.
        method: Cow<'a, str>,
        /// Absent when missing or null.
        params: Option<&'a RawValue>,
    },
    /// The process tells something. It has a `method` and no `id`.
    Notification {
        /// What is told.
        method: Cow<'a, str>,
        /// Absent when missing or null.
        params: Option<&'a RawValue>,
    },
    /// The process answers one of our requests. It has no `method`.
    Response {
        /// The number that [`request`] was given.
        id: u64,
        /// The result's text (which may be `null`), or the error.
        outcome: Result<&'a RawValue, RpcError>,
    },
}

/// The error of a JSON-RPC answer. What the process leaves out or spells oddly is filled in: code 0, the text as it is.
#[derive(Debug, Clone, Error)]
#[error("{message} (code {code})")]
pub struct RpcError {
    /// The native code, 0 where it is missing or no integer.
    pub code: i64,
    /// The native text.
    pub message: String,
    /// The native details, untouched.
    pub data: Option<Box<RawValue>>,
}

/// A line that is no message. The excerpt is escaped, of one line, and at most 256 characters long.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Malformed {
    /// The bytes are not UTF-8.
    #[error("not UTF-8 after {valid_up_to} bytes: {excerpt}")]
    NotUtf8 {
        /// How many bytes were in order.
        valid_up_to: usize,
        /// The line's beginning.
        excerpt: String,
    },
    /// The text is not JSON, or not only JSON.
    #[error("not JSON at column {column}: {excerpt}")]
    NotJson {
        /// Where the parser gave up, in bytes, from 1.
        column: usize,
        /// The line's beginning.
        excerpt: String,
    },
    /// The text is JSON, but no object.
    #[error("not an object: {excerpt}")]
    NotAnObject {
        /// The line's beginning.
        excerpt: String,
    },
    /// The object is neither a request, nor a notification, nor a response.
    #[error("no JSON-RPC message: {excerpt}")]
    NotAMessage {
        /// The line's beginning.
        excerpt: String,
    },
    /// A response to an id that is not one of ours, which are all unsigned 64-bit numbers.
    #[error("response to a foreign id: {excerpt}")]
    ForeignId {
        /// The line's beginning.
        excerpt: String,
    },
}

/// Reads one line, without its newline, as a message. Unknown members are skipped and of a member given twice the last
/// one holds; `"jsonrpc"` is not asked for.
///
/// # Errors
/// [`Malformed`] says what is wrong with the line; the next line is not concerned.
pub fn parse(line: &[u8]) -> Result<Message<'_>, Malformed> {
    envelope::parse(line)
}

#[cfg(test)]
mod tests;
