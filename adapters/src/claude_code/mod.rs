//! Claude Code: the `claude` binary in bidirectional stream-json mode.

#[allow(dead_code)]
mod events;
#[allow(dead_code)]
mod failure;
#[allow(dead_code, unused_imports)]
mod functions;
#[allow(dead_code)]
mod structured;
#[cfg(test)]
mod traces;
#[allow(dead_code, unused_imports)]
mod wire;
