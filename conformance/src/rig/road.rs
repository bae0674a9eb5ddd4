//! A road of TCP from an address that stays to one that changes. It can be cut, and it counts who took it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A road. Dropping it ends it and everything on it.
#[derive(Debug)]
pub struct Road {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: CancellationToken,
}

#[derive(Debug)]
struct Shared {
    /// Where it leads; nowhere while it is cut.
    to: Mutex<Option<SocketAddr>>,
    /// Cancelled for all that are on it.
    cut: Mutex<CancellationToken>,
    /// Cancelled for all that are on it, which then stand still.
    held: Mutex<CancellationToken>,
    taken: watch::Sender<usize>,
}

impl Road {
    /// A road that leads nowhere yet.
    ///
    /// # Errors
    /// When there is no port.
    pub async fn open() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listen for a road")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            to: Mutex::default(),
            cut: Mutex::default(),
            held: Mutex::default(),
            taken: watch::Sender::default(),
        });
        let stop = CancellationToken::new();
        let (road, until) = (Arc::clone(&shared), stop.clone());
        let tracker = TaskTracker::new();
        let tasks = tracker.clone();
        tracker.spawn(async move {
            loop {
                let accepted = tokio::select! {
                    () = until.cancelled() => return,
                    accepted = listener.accept() => accepted,
                };
                let Ok((near, _)) = accepted else { continue };
                tasks.spawn(travel(near, Arc::clone(&road), until.clone()));
            }
        });
        Ok(Self { address, shared, stop })
    }

    /// Where it begins.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets it lead there, for those who come from now on.
    pub fn lead(&self, to: SocketAddr) {
        *self.shared.to.lock().unwrap_or_else(PoisonError::into_inner) = Some(to);
    }

    /// Cuts it: whoever is on it loses the connection, and nobody gets through until it leads somewhere again.
    pub fn cut(&self) {
        *self.shared.to.lock().unwrap_or_else(PoisonError::into_inner) = None;
        std::mem::take(&mut *self.shared.cut.lock().unwrap_or_else(PoisonError::into_inner)).cancel();
    }

    /// Lets nothing pass any more for those who are on it, and tells neither end: a path that died. Nobody gets through until it leads somewhere again.
    pub fn hold(&self) {
        *self.shared.to.lock().unwrap_or_else(PoisonError::into_inner) = None;
        std::mem::take(&mut *self.shared.held.lock().unwrap_or_else(PoisonError::into_inner)).cancel();
    }

    /// How many connections began on it, a bell for more included.
    #[must_use]
    pub fn taken(&self) -> watch::Receiver<usize> {
        self.shared.taken.subscribe()
    }
}

async fn travel(mut near: TcpStream, road: Arc<Shared>, stop: CancellationToken) {
    road.taken.send_modify(|taken| *taken += 1);
    let cut = road.cut.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let held = road.held.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let to = *road.to.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(to) = to else { return };
    let Ok(mut far) = TcpStream::connect(to).await else { return };
    // Its ends see what a proxy shows them otherwise: nothing is held back.
    _ = (near.set_nodelay(true), far.set_nodelay(true));
    let passes = async {
        tokio::select! {
            () = held.cancelled() => std::future::pending().await,
            _ended = copy_bidirectional(&mut near, &mut far) => {}
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = cut.cancelled() => {}
        () = passes => {}
    }
}

impl Drop for Road {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
