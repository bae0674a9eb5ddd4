//! What a run leaves for the one that goes on with it: a file in its state folder, with what is frozen for its Session.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    arguments::{Surroundings, UsageError},
    folders,
    harness::{Harness, Tokens},
};

/// Name of the file.
const FILE: &str = "run.json";
/// What the id of a run's Session begins with.
const PREFIX: &str = "run-";
/// Version of the file.
pub(super) const VERSION: u32 = 2;

/// The content of the file. It holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kept {
    /// [`VERSION`].
    pub(super) version: u32,
    pub(super) harness: Harness,
    /// `null` for the placement `none`.
    pub(super) workspace: Option<PathBuf>,
    pub(super) provider: String,
    pub(super) model: String,
    /// Whether `provider` was the bundled one.
    pub(super) mock: bool,
    /// Absent where the model's are not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) token_limits: Option<Tokens>,
}

/// What every version of the file has.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl Kept {
    /// Leaves it in a state folder.
    pub(super) fn write(&self, state: &Path) -> io::Result<()> {
        fs::write(state.join(FILE), serde_json::to_string(self)?)
    }
}

/// An earlier run whose state is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Its Session.
    pub(super) session_id: String,
    /// Its state.
    pub(super) state: PathBuf,
    pub(super) kept: Kept,
}

impl Run {
    /// Looks for what `--resume` names.
    pub(super) fn find(session_id: &str, surroundings: &Surroundings) -> Result<Self, UsageError> {
        let refuse = |why: String| UsageError(format!("--resume {session_id}: {why}"));
        // Nothing else may become a part of a path.
        let is_one = session_id.strip_prefix(PREFIX).is_some_and(|id| Uuid::try_parse(id).is_ok());
        if !is_one {
            return Err(refuse("is not the Session of a run, which looks like run-0198…".into()));
        }
        let runs = folders::runs(surroundings).map_err(|error| refuse(error.to_string()))?;
        let state = runs.join(session_id);
        let text = fs::read_to_string(state.join(FILE)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                refuse(format!("is not in {} (any more); runs are kept for 7 days", runs.display()))
            }
            _ => refuse(format!("{}: {error}", state.join(FILE).display())),
        })?;
        let unread = |error| refuse(format!("{}: {error}", state.join(FILE).display()));
        // The version first: another one may have other members.
        let Version { version } = serde_json::from_str(&text).map_err(unread)?;
        if version != VERSION {
            return Err(refuse(format!("was left by another version (file version {version})")));
        }
        let kept = serde_json::from_str(&text).map_err(unread)?;
        Ok(Self { session_id: session_id.into(), state, kept })
    }
}

/// An id for the Session of a new run.
pub(super) fn new_session_id() -> String {
    format!("{PREFIX}{}", Uuid::now_v7())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::run::folders::tests::scratch;

    #[test]
    fn a_run_is_found_by_its_session_and_by_nothing_else() {
        let home = scratch("kept");
        let surroundings = {
            let home = home.clone();
            Surroundings::of(move |name| (name == "XDG_STATE_HOME").then(|| home.clone().into()))
        };
        let find = |id: &str| Run::find(id, &surroundings).map_err(|error| error.0);
        let id = new_session_id();
        let state = home.join("runtime-bridge/run").join(&id);
        assert!(find(&id).unwrap_err().contains("kept for 7 days"));
        fs::create_dir_all(&state).unwrap();
        assert!(find(&id).unwrap_err().contains("kept for 7 days"), "a state without a file");
        let (workspace, provider) = (Some("/w".into()), "https://p/v1".into());
        let kept = Kept {
            version: VERSION,
            harness: Harness::ClaudeCode,
            workspace,
            provider,
            model: "m".into(),
            mock: false,
            token_limits: None,
        };
        kept.write(&state).unwrap();
        assert_eq!(find(&id).unwrap(), Run { session_id: id.clone(), state: state.clone(), kept });

        let written = fs::read_to_string(state.join(FILE)).unwrap();
        assert_eq!(
            written,
            r#"{"version":2,"harness":"claude_code","workspace":"/w","provider":"https://p/v1","model":"m","mock":false}"#
        );
        fs::write(state.join(FILE), written.replace(":2,", ":3,")).unwrap();
        assert!(find(&id).unwrap_err().contains("another version"));
        fs::write(state.join(FILE), r#"{"version":1,"workspace":null}"#).unwrap();
        assert!(find(&id).unwrap_err().contains("another version (file version 1)"));
        fs::write(state.join(FILE), written.replace("\"model\"", "\"modell\"")).unwrap();
        assert!(find(&id).unwrap_err().contains("modell"));
        fs::write(state.join(FILE), "{").unwrap();
        assert!(find(&id).unwrap_err().contains(FILE));
        for odd in ["", "run-", "other", "../run-1", &format!("run-{}/..", Uuid::nil()), &format!("{id}/")] {
            assert!(find(odd).unwrap_err().contains("is not the Session of a run"), "{odd}");
        }
    }
}
