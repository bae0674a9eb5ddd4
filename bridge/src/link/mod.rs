//! Connections: where callers come from, who they are, and the one gRPC server that serves them all. Knows no Session.

mod server;
mod unix;

pub(crate) use server::{Server, serve};
pub(crate) use unix::{BindError, Gate, Listener};

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The principal that a Session belongs to (R-ASG-5).
    pub(crate) principal: String,
    /// Whether it has the role of an operator.
    pub(crate) operator: bool,
}
