//! The daemon: hosts native Harnesses behind one gRPC protocol.
//!
//! Rooms point one way: `link` and `service` to `session` and `turn`, these to `journal` and to the Harness contract of `adapters`.

#![forbid(unsafe_code)]

mod admission;
pub mod cli;
mod clock;
mod config;
mod enroll;
mod gateway;
mod journal;
mod link;
mod private;
mod refusal;
mod relay;
mod serve;
mod service;
mod session;
mod tasks;
mod turn;
