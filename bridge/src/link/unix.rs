//! The Unix socket: 0600, uids on a list, and no peer that descends from a Harness (R-SEC-1).

use std::{
    io,
    os::unix::{
        fs::{FileTypeExt as _, MetadataExt as _},
        net::{UnixListener as StdListener, UnixStream as StdStream},
    },
    path::{Path, PathBuf},
};

use adapters::native::{environment::Mark, tree};
use futures_util::{Stream, stream};
use tokio::net::{UnixListener, UnixStream};

use super::{Connection, Limits, Peer};
use crate::session::Keepers;

/// Longest path of a socket in bytes: `sun_path` less its NUL.
const MAX_PATH: usize = 107;

/// The socket could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    /// The path is longer than the system takes.
    #[error("listen on {}: the path has {length} bytes and the system takes {MAX_PATH}", path.display())]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// Somebody listens there.
    #[error("listen on {}: somebody listens there already", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// Something that is no socket is there.
    #[error("listen on {}: there is something that is not a socket; it is left alone", path.display())]
    Occupied {
        /// The path.
        path: PathBuf,
    },
    /// An address cannot be listened on.
    #[error("listen on {address}: {source}")]
    Tcp {
        /// The address.
        address: std::net::SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// A listener's files of TLS cannot be used.
    #[error("listen on {address}: {source}")]
    Tls {
        /// The address.
        address: std::net::SocketAddr,
        /// What is wrong with them.
        source: super::tls::Error,
    },
    /// The socket that the daemon was started with is not one that it may serve.
    #[error("take the socket that the daemon was started with (LISTEN_FDS): {0}")]
    Passed(String),
    /// Anything else.
    #[error("listen on {}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// Who may connect.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    /// Uids on the list.
    pub(crate) uids: Vec<u32>,
    /// Uids of operators.
    pub(crate) operators: Vec<u32>,
    /// Whether peers that descend from a Harness are refused.
    pub(crate) refuse_tools: bool,
    /// Keepers of our Harnesses.
    pub(crate) keepers: Keepers,
    /// Begins every marker of ours.
    pub(crate) state_id: String,
}

/// A listening socket. Dropping it removes its file.
#[derive(Debug)]
pub(crate) struct Listener {
    listener: UnixListener,
    path: PathBuf,
    /// Device and number of the file that was made; none where somebody else made it.
    file: Option<(u64, u64)>,
    gate: Gate,
    limits: Limits,
}

impl Listener {
    /// Listens. The caller holds the lock of the state directory, so a socket that nobody answers on is left from an earlier run.
    pub(crate) fn bind(path: &Path, gate: Gate, limits: Limits) -> Result<Self, BindError> {
        let owned = || path.to_owned();
        let length = path.as_os_str().len();
        if length > MAX_PATH {
            return Err(BindError::TooLong { path: owned(), length });
        }
        let io = |source| BindError::Io { path: path.to_owned(), source };
        match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io(error)),
            Ok(meta) if !meta.file_type().is_socket() => return Err(BindError::Occupied { path: owned() }),
            Ok(_) => match StdStream::connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path).map_err(io)?
                }
                Ok(_) | Err(_) => return Err(BindError::InUse { path: owned() }),
            },
        }
        // The socket is never open to others, not even for a moment: its mode comes from the mask.
        let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(path);
        rustix::process::umask(before);
        let listener = bound.map_err(io)?;
        Ok(Self { listener, path: owned(), file: file_at(path), gate, limits })
    }

    /// Takes a socket that whoever started the daemon listens on, and goes on to when the daemon has ended: what connects meanwhile waits for the
    /// next one. Its file is not the daemon's to remove.
    pub(crate) fn passed(
        listener: io::Result<Option<StdListener>>,
        gate: Gate,
        limits: Limits,
    ) -> Result<Self, BindError> {
        let passed = |text: String| BindError::Passed(text);
        let listener = listener.map_err(|error| passed(error.to_string()))?;
        let listener = listener.ok_or_else(|| passed("it was taken already".into()))?;
        let address = listener.local_addr().map_err(|error| passed(error.to_string()))?;
        let path = address.as_pathname().ok_or_else(|| passed("it has no path".into()))?.to_owned();
        let shown = |error: io::Error| passed(format!("{}: {error}", path.display()));
        let meta = std::fs::symlink_metadata(&path).map_err(shown)?;
        if !meta.file_type().is_socket() || meta.mode() & 0o077 != 0 {
            return Err(passed(format!(
                "{} has to be a socket with mode 0600; set `SocketMode=0600` in the socket unit",
                path.display()
            )));
        }
        listener.set_nonblocking(true).map_err(shown)?;
        let listener = UnixListener::from_std(listener).map_err(shown)?;
        Ok(Self { listener, path, file: None, gate, limits })
    }

    /// Where it listens.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The connections that are let in, for ever.
    pub(crate) fn connections(self) -> impl Stream<Item = io::Result<Connection>> + Send {
        stream::unfold(self, |listener| async move { Some((Ok(listener.accept().await), listener)) })
    }

    async fn accept(&self) -> Connection {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => match self.gate.judge(&stream) {
                    Ok(peer) => return Connection::new(stream, peer, self.limits.opening),
                    Err(why) => tracing::warn!(why, "a peer of the socket was refused"),
                },
                Err(error) => super::refused_by_system(&error).await,
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another daemon may have taken the path over; its socket is not ours to remove.
        if self.file.is_some()
            && file_at(&self.path) == self.file
            && let Err(error) = std::fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.path.display(), %error, "the socket could not be removed");
        }
    }
}

fn file_at(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

impl Gate {
    fn judge(&self, stream: &UnixStream) -> Result<Peer, String> {
        let peer = stream.peer_cred().map_err(|error| format!("its credentials cannot be read: {error}"))?;
        if !self.uids.contains(&peer.uid()) {
            return Err(format!("uid {} is not on the list", peer.uid()));
        }
        if self.refuse_tools {
            let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
            let pid = pid.ok_or("its process cannot be told")?;
            match tree::is_descendant_or_marked(pid, &self.keepers.all(), &Mark::prefix(&self.state_id)) {
                // What a killed keeper had comes to the daemon, and may have no mark.
                Ok(false) if !tree::is_adopted_by_us(pid) => {}
                Ok(_) => return Err(format!("process {pid} belongs to a Harness")),
                Err(unexaminable) => return Err(format!("process {pid} cannot be examined: {unexaminable}")),
            }
        }
        let operator = self.operators.contains(&peer.uid());
        Ok(Peer { principal: format!("uid:{}", peer.uid()), bearer: None, operator, is_relay: false })
    }
}
