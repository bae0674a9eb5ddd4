//! Native processes and their wires: the keeper's side of the daemon, process trees, JSON lines, JSON-RPC, locks, and the user and the folders that
//! they have, and the HTTP server on loopback.
//! It knows no Harness, no Session and no Turn, and decides nothing for them: it starts, reads, writes and ends.

pub mod environment;
pub mod folder;
pub mod lines;
pub mod lock;
pub mod loopback;
pub mod process;
pub mod rpc;
pub mod served;
pub(crate) mod stdio_server;
pub mod tree;
pub mod user;
