//! Functions of the application for a Harness that can only take them from an MCP server: a server of the bridge's own on loopback, one for each Executor, with a
//! bearer of its own. It knows the functions and who asks for them, and nothing of Turns.

use std::time::Duration;

use secrecy::SecretString;

/// Names a request for a function among those of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RequestId(pub(crate) u64);

/// What happens at a server, in order.
#[derive(Debug)]
pub(crate) enum Happening {
    /// The functions were listed.
    Listed,
    /// A function is asked for; it waits for [`FunctionServer::answer`], as long as it takes (R-FN-8).
    Asked {
        /// Names the request.
        request: RequestId,
        /// Name of the function: one of those that are declared.
        name: String,
        /// Arguments as JSON text.
        arguments: String,
    },
    /// The answer has been handed to the connection.
    Written {
        /// The request.
        request: RequestId,
    },
    /// Who asked has given up: by `notifications/cancelled`, or by ending the request.
    GivenUp {
        /// The request.
        request: RequestId,
        /// How long it had waited.
        waited: Duration,
    },
}

/// How a Harness comes to a server.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    /// `http://127.0.0.1:PORT/PATH`, of no use without the bearer.
    pub(crate) url: String,
    /// What every request carries as `Authorization: Bearer`.
    pub(crate) bearer: SecretString,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) success: bool,
    pub(crate) parts: Vec<crate::harness::OutputPart>,
}
#[derive(Debug)]
pub(crate) struct FunctionServer {
    address: Address,
}
impl FunctionServer {
    pub(crate) async fn start(
        _: &[crate::harness::FunctionTool],
        _: &tokio_util::task::TaskTracker,
    ) -> std::io::Result<(Self, tokio::sync::mpsc::Receiver<Happening>)> {
        Err(std::io::Error::other("stub"))
    }
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }
    pub(crate) fn answer(&self, _: RequestId, _: Answer) {}
}
