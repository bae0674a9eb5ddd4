//! The double of MiniMax Code as a program: a raw client of ACP over its pipes, the bundled provider as its model, and the bundled MCP servers.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

mod mcode_double {
    mod client;
    mod faults;
    mod prompts;
    mod servers;
    mod sessions;
}
