//! Claude Code: the `claude` binary in bidirectional stream-json mode.

#[allow(dead_code, unused_imports)]
mod functions;
#[allow(dead_code, unused_imports)]
mod wire;
