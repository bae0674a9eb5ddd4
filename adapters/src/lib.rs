//! Adapters to native Harnesses, and the contract between them and the daemon.
//!
//! Nothing here knows of gRPC, of the journal or of the command line.

#![forbid(unsafe_code)]

pub mod acp;
pub mod admission;
mod call;
pub mod claude_code;
mod cleaner;
pub mod codex;
#[cfg(any(test, failpoints))]
pub mod failpoint;
pub(crate) mod function_server;
pub mod harness;
pub mod json;
pub mod minimax_code;
pub mod native;
mod owner;
mod probe;
