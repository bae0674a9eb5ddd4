//! `runtime-bridge admit`: what `Admit` says of a file, for a person. It needs no daemon and no Harness.

use std::{fmt::Write as _, fs, io, path::PathBuf};

use adapters::admission::built::{Built, KINDS};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::{
    admission::{self, Admitted, Rejection, Selection, file},
    gateway::{Guard, Guards},
};

/// Say whether a file with public JSON (`tools`, `text`, `reasoning`, `service_tier`, `multi_agent`) is admitted.
///
/// Ends with 0 when it is, with 1 when it is rejected or the file cannot be read, with 2 for a wrong command line. No daemon is asked, and none of its settings
/// is looked at: servers and credentials go where they may without the operator's `allow_origins`.
#[derive(Args, Clone, Debug)]
pub(crate) struct AdmitArgs {
    /// The file: one JSON object.
    file: PathBuf,
    /// Kind of the Harness.
    #[arg(long, value_parser = KINDS)]
    harness: String,
    /// What it is to be admitted for.
    #[arg(long, value_enum, default_value_t = Purpose::Session)]
    purpose: Purpose,
    /// The workspace of the Session; without one its Environment is `none`.
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// One JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// What to admit for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Purpose {
    /// To keep an Agent.
    Save,
    /// To begin a Session.
    Session,
}

/// What there is to tell, and whether the file is admitted.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) text: String,
    pub(crate) is_admitted: bool,
}

/// Nothing could be judged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The file.
    #[error("read {path}")]
    Read {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The workspace.
    #[error("find the workspace {path}")]
    Workspace {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Judges the file.
pub(crate) fn admit(arguments: &AdmitArgs) -> Result<Told, Error> {
    let path = &arguments.file;
    let bytes = fs::read(path).map_err(|source| Error::Read { path: path.clone(), source })?;
    let directory = arguments.workspace.as_ref().map(|path| {
        // As a binding has it: the servers of a configuration name that path.
        fs::canonicalize(path).map_err(|source| Error::Workspace { path: path.clone(), source })
    });
    let directory = directory.transpose()?;
    let selection = Built::of(&arguments.harness).filter(|_| arguments.purpose == Purpose::Session);
    let selection = selection.map(|built| Selection {
        built,
        environment: if directory.is_some() { "self_hosted" } else { "none" }.to_owned(),
        network: String::new(),
        system_packages: false,
        directory: directory.unwrap_or_default(),
        own_provider: None,
        protocol: None,
        token_limits: false,
        harness_config: String::new(),
    });
    let outcome = file::texts(&bytes)
        .and_then(|texts| admission::admit(&texts, selection.as_ref(), &Guards::new(Guard::default(), false)));
    let text = if arguments.json { json(&outcome) } else { told(&outcome, arguments) };
    Ok(Told { text, is_admitted: outcome.is_ok() })
}

fn told(outcome: &Result<Admitted, Rejection>, arguments: &AdmitArgs) -> String {
    let mut text = String::new();
    // A String can always be written to.
    match outcome {
        Ok(admitted) => {
            _ = match (arguments.purpose, &arguments.workspace) {
                (Purpose::Save, _) => writeln!(text, "Admitted to be kept."),
                (Purpose::Session, None) => {
                    writeln!(text, "Admitted for a Session of {} without an Environment.", arguments.harness)
                }
                (Purpose::Session, Some(_)) => {
                    writeln!(text, "Admitted for a Session of {} on a workspace.", arguments.harness)
                }
            };
            for defaulted in &admitted.defaulted {
                _ = writeln!(text, "  not given, so {}", defaulted.replacen(": ", " is ", 1));
            }
        }
        Err(rejection) => {
            let param = rejection.param.as_deref().unwrap_or("null");
            _ = writeln!(text, "Rejected: {}", rejection.message);
            _ = writeln!(text, "  HTTP {}, code {}, param {param}", rejection.http_status, rejection.code);
        }
    }
    text
}

/// The outcome as programs read it.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Line<'a> {
    Admitted { projection: Option<&'a serde_json::value::RawValue>, defaulted: &'a [String] },
    Rejected(&'a Rejection),
}

fn json(outcome: &Result<Admitted, Rejection>) -> String {
    let line = match outcome {
        Ok(admitted) => Line::Admitted {
            projection: serde_json::from_str(&admitted.projection).ok(),
            defaulted: &admitted.defaulted,
        },
        Err(rejection) => Line::Rejected(rejection),
    };
    let mut text = serde_json::to_string(&line).unwrap_or_default();
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(purpose: Purpose) -> AdmitArgs {
        AdmitArgs { file: PathBuf::new(), harness: "codex".into(), purpose, workspace: None, json: false }
    }

    #[test]
    fn an_admission_tells_what_was_not_given() {
        let admitted = Admitted {
            tools: None,
            projection: r#"{"tools":[]}"#.into(),
            defaulted: vec!["text.format: text".into(), "tools[0].mode: live".into()],
        };
        insta::assert_snapshot!(told(&Ok(admitted), &arguments(Purpose::Save)), @r"
        Admitted to be kept.
          not given, so text.format is text
          not given, so tools[0].mode is live
        ");
    }

    #[test]
    fn a_rejection_tells_its_words_and_its_outcome() {
        let rejection = Rejection {
            http_status: 400,
            code: "invalid_request_error",
            param: None,
            message: "tools[1]: is the second of its type; there may be one".into(),
        };
        let outcome = Err(rejection);
        insta::assert_snapshot!(told(&outcome, &arguments(Purpose::Session)), @r"
        Rejected: tools[1]: is the second of its type; there may be one
          HTTP 400, code invalid_request_error, param null
        ");
        insta::assert_snapshot!(json(&outcome), @r#"{"rejected":{"http_status":400,"code":"invalid_request_error","param":null,"message":"tools[1]: is the second of its type; there may be one"}}"#);
    }
}
