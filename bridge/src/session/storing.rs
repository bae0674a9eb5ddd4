//! Whether what a Session does can be stored (R-DUR-4).

use std::{fs, io, path::Path};

use super::{Answer, owner::Owner, preparing::make_private, storage};
use crate::refusal::{Reason, Refusal};

/// Bytes that are written to see whether the disk takes them; native processes write more as soon as they start.
const TRIED_BYTES: usize = 64 << 10;

impl Owner {
    /// Refuses native work that could not be recorded: before it has any effect.
    pub(super) async fn check_storage(&self) -> Answer<()> {
        self.shared.journal.check().await.map_err(|error| storage(&error))?;
        let folder = self.folder();
        try_folder(&folder).map_err(|error| {
            tracing::error!(path = %folder.display(), %error, "the folder of a Session does not take writes");
            Refusal::new(Reason::StorageUnavailable, "the bridge's state directory does not take writes")
        })
    }
}

fn try_folder(folder: &Path) -> io::Result<()> {
    make_private(folder)?;
    let path = folder.join("try");
    let written = fs::write(&path, [0; TRIED_BYTES]);
    let removed = match fs::remove_file(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    };
    written.and(removed)
}
