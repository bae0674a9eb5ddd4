//! The form of the logs.

use std::io::IsTerminal as _;

use super::{Error, value};

/// The form of a line of the logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// One JSON object a line, for programs.
    Json,
    /// For a person.
    Text,
}

impl LogFormat {
    /// What standard error calls for: a person reads a terminal.
    pub(crate) fn usual() -> Self {
        if std::io::stderr().is_terminal() { Self::Text } else { Self::Json }
    }

    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        match text {
            "json" => Ok(Self::Json),
            "text" => Ok(Self::Text),
            _ => Err(value("log_format", "it is `json` or `text`")),
        }
    }
}
