//! Judges a runtime bridge from outside: a scripted model provider, scripted fault children, and a rig that runs the
//! real daemon with the real Harness. It knows the protocol and nothing of the bridge's inside.

pub mod authority;
pub mod check;
pub mod child;
pub mod cli;
pub mod demo;
pub mod evidence;
pub mod fault;
pub mod ledger;
pub mod mcode;
pub mod mcp;
pub mod provider;
pub mod proxy;
pub mod reach;
pub mod report;
pub mod rig;
pub mod script;
