//! Agents that speak the Agent Client Protocol (ACP), version 1: the engine that is the same for all of them. What differs is a [`profile`].

mod configured;
mod generic;
mod opencode;
pub(crate) mod profile;
pub(crate) mod wire;

pub use configured::{Configured, Known, Misconfigured};
