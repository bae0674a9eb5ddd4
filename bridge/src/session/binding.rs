//! Binding a Session to an assignment and a placement (R-ASG-2, R-ASG-3).

use std::path::{Path, PathBuf};

use adapters::harness::Placement;

use super::{
    Answer, Asked, Bound, Fence, Shared,
    assignment::{Assignment, Bind},
    digest,
    owner::{Owner, Recorded},
    storage,
};
use crate::{
    journal::{self, SessionRecord},
    refusal::{Reason, Refusal, excerpt},
    turn::log::FencedBy,
};

impl Owner {
    /// Binds the Session, or takes it over.
    pub(super) async fn bind(&mut self, fence: Fence, asked: Asked) -> Answer<Bound> {
        let recorded = self.session.as_ref().map(Recorded::assignment);
        let bind = Assignment::bind(recorded.as_ref(), &fence)?;
        if self.release.is_some() && bind == Bind::New {
            return Err(Refusal::new(
                Reason::CleanupUnconfirmed,
                "the release of the earlier assignment is still at work",
            ));
        }
        let placement = match (bind, self.placement()) {
            (Bind::Same | Bind::TakeOver, Some(bound)) => {
                if !is_the_same(bound, &asked).await {
                    return Err(Refusal::new(Reason::AssignmentConflict, "the Session is bound to another placement")
                        .at("placement")
                        .with("epoch", recorded.map_or(0, |r| r.fence.epoch))
                        .with("state", "bound"));
                }
                bound.clone()
            }
            (Bind::New, _) | (Bind::Same | Bind::TakeOver, None) => resolve(&self.shared, asked).await?,
        };
        if bind != Bind::Same {
            self.record_binding(&fence, placement.clone()).await?;
        }
        if bind == Bind::New {
            // What was fenced with the earlier assignment is opened anew: epochs begin again with each.
            self.past = None;
        }
        if bind == Bind::TakeOver {
            let stale = Refusal::new(Reason::AssignmentStale, "a higher epoch has taken the Session over");
            self.void_preparations(&stale);
            self.fence_readers(fence.epoch, FencedBy::TakeOver);
        }
        Ok(Bound { epoch: fence.epoch, placement: domain(&placement), took_over: bind == Bind::TakeOver })
    }

    async fn record_binding(&mut self, fence: &Fence, placement: journal::Placement) -> Answer<()> {
        let (had_turn, next_turn_number) =
            self.session.as_ref().map_or((false, 1), |s| (s.record.had_turn, s.record.next_turn_number));
        let history = self.session.as_ref().and_then(|s| s.record.history.clone());
        let record = SessionRecord {
            principal: self.key.principal.clone(),
            session_id: self.key.session_id.clone(),
            directory: digest::directory(&self.key.principal, &self.key.session_id),
            assignment_id: fence.assignment_id.clone(),
            epoch: fence.epoch,
            released: false,
            placement,
            had_turn,
            next_turn_number,
            history,
        };
        let row = self.shared.journal.put_session(record.clone()).await.map_err(|error| storage(&error))?;
        self.session = Some(Recorded { row, record });
        Ok(())
    }
}

fn domain(placement: &journal::Placement) -> Placement {
    match placement {
        journal::Placement::None => Placement::None,
        journal::Placement::Workspace { environment_id, directory } => {
            Placement::Workspace { environment_id: environment_id.clone(), directory: directory.into() }
        }
    }
}

/// Whether a later Bind asks for what is bound. A link is resolved once, so the directory may be named either way.
async fn is_the_same(bound: &journal::Placement, asked: &Asked) -> bool {
    match (bound, asked) {
        (journal::Placement::None, Asked::None) => true,
        (
            journal::Placement::Workspace { environment_id, directory },
            Asked::Workspace { environment_id: asked_id, directory: asked_directory },
        ) => {
            let bound = Path::new(directory);
            environment_id == asked_id
                && (bound == asked_directory
                    || tokio::fs::canonicalize(asked_directory).await.is_ok_and(|canonical| canonical == bound))
        }
        (journal::Placement::None, Asked::Workspace { .. }) | (journal::Placement::Workspace { .. }, Asked::None) => {
            false
        }
    }
}

/// The placement to be recorded.
pub(super) async fn resolve(shared: &Shared, asked: Asked) -> Answer<journal::Placement> {
    let Asked::Workspace { environment_id, directory } = asked else { return Ok(journal::Placement::None) };
    if shared.workspace_roots.is_empty() {
        return Err(refused(&directory, "no workspace can be bound: the operator has set no `workspace_roots`"));
    }
    let is_inside = |path: &Path| shared.workspace_roots.iter().any(|root| path.starts_with(root));
    let outside = || refused(&directory, "the directory lies under none of the operator's `workspace_roots`");
    let canonical = match canonical(&directory).await {
        // What is there outside of the roots is nobody's business.
        Err(_) if directory.is_absolute() && !is_inside(&directory) => return Err(outside()),
        canonical => canonical?,
    };
    if !is_inside(&canonical) {
        return Err(outside());
    }
    if canonical.starts_with(&shared.state) || shared.state.starts_with(&canonical) {
        return Err(refused(&directory, "the directory contains the bridge's state or lies in it"));
    }
    let directory = canonical
        .into_os_string()
        .into_string()
        .map_err(|path| refused(Path::new(&path), "the directory's path is not UTF-8"))?;
    Ok(journal::Placement::Workspace { environment_id, directory })
}

async fn canonical(directory: &Path) -> Answer<PathBuf> {
    if !directory.is_absolute() {
        return Err(refused(directory, "the directory's path is not absolute"));
    }
    let canonical = tokio::fs::canonicalize(directory).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => refused(directory, "the directory does not exist"),
        _ => refused(directory, "the directory cannot be reached"),
    })?;
    match tokio::fs::metadata(&canonical).await {
        Ok(meta) if meta.is_dir() => Ok(canonical),
        Ok(_) => Err(refused(directory, "this is not a directory")),
        Err(_) => Err(refused(directory, "the directory cannot be reached")),
    }
}

fn refused(directory: &Path, text: &str) -> Refusal {
    Refusal::invalid("workspace.directory", format!("{text}: {}", excerpt(&directory.to_string_lossy())))
}
