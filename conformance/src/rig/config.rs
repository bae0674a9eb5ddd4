//! The daemon's configuration file. The only place that knows its keys.

use std::path::PathBuf;

use super::Place;

/// How the daemon isolates a Harness (R-PLC-1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Isolation {
    /// The machine around the daemon does it.
    #[default]
    Outer,
    /// The Harness's own sandbox does it.
    Native,
}

/// What differs between rigs.
#[derive(Debug, Clone)]
pub struct Config {
    /// The Codex program.
    pub codex: PathBuf,
    /// How it is isolated.
    pub isolation: Isolation,
    /// More lines, in TOML.
    pub more: String,
}

impl Config {
    /// The text of the file.
    #[must_use]
    pub fn text(&self, place: &Place) -> String {
        let isolation = match self.isolation {
            Isolation::Outer => "outer",
            Isolation::Native => "native",
        };
        // A path in the form of Rust's debug output is a basic string of TOML, as long as it has no control characters.
        format!(
            "state = {:?}\nsocket = {:?}\nworkspace_roots = [{:?}]\nisolation = {isolation:?}\ncodex.program = {:?}\n{}\n",
            place.state(),
            place.socket(),
            place.workspace_root(),
            self.codex,
            self.more
        )
    }
}
