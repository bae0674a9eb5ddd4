//! How an Executor comes to its model provider: by itself with the key, or by a route of the gateway that puts the key in (R-SEC-3, R-PRE-6).

use std::{io, sync::Arc};

use adapters::harness::{Configuration, ModelProvider, NativeEnd, Report, Secrets};
use secrecy::{ExposeSecret as _, SecretString};

use super::{Answer, Fence, executor::Slot, owner::Owner};
use crate::{
    gateway::{Batch, Breach, Gateway, Lease, PLACEHOLDER},
    refusal::{Reason, Refusal},
};

/// The way of one Executor to its model provider. The route is gone when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Access {
    key: Option<SecretString>,
    lease: Option<Lease>,
    secrets: Secrets,
}

impl Access {
    /// By a route, where there is a gateway.
    pub(super) fn open(
        gateway: Option<&Gateway>,
        provider: &ModelProvider,
        key: Option<SecretString>,
        strict_calls: bool,
    ) -> io::Result<Self> {
        let lease = gateway.map(|gateway| gateway.lease(provider, key.clone(), strict_calls)).transpose()?;
        Ok(Self { secrets: key.iter().collect(), key, lease })
    }

    /// The configuration as the Harness is told it. That of Core stays what is compared and recorded.
    pub(super) fn told(&self, configuration: &Arc<Configuration>) -> Arc<Configuration> {
        let Some(lease) = &self.lease else { return Arc::clone(configuration) };
        let base_url = lease.base_url().to_owned();
        let provider = ModelProvider { base_url, ..configuration.provider.clone() };
        Arc::new(Configuration { provider, ..(**configuration).clone() })
    }

    /// What the Harness is given for a key. By a route it always has one, so that a key may come later.
    pub(super) fn given(&self) -> Option<SecretString> {
        match self.lease {
            Some(_) => Some(PLACEHOLDER.into()),
            None => self.key.clone(),
        }
    }

    /// Whether the Harness holds the key itself.
    pub(super) fn is_held(&self) -> bool {
        self.lease.is_none() && self.key.is_some()
    }

    pub(super) fn secrets(&self) -> Secrets {
        self.secrets.clone()
    }

    /// Whether the next request has this key; false where the Executor holds another one by itself.
    pub(super) fn take(&mut self, key: Option<&SecretString>) -> bool {
        if same(self.key.as_ref(), key) {
            return true;
        }
        let Some(lease) = &self.lease else { return false };
        // ORDER: it is cut out of texts before the provider can repeat it.
        key.inspect(|key| self.secrets.add(key));
        lease.swap(key.cloned());
        self.key = key.cloned();
        true
    }

    /// What an answer of the provider did that it may not, once.
    pub(super) fn take_breach(&self) -> Option<Breach> {
        self.lease.as_ref()?.take_breach()
    }

    /// The calls of answers that went on since this was asked last; none where they are not held back.
    pub(super) fn take_batches(&self) -> Vec<Batch> {
        self.lease.as_ref().map_or_else(Vec::new, |lease| lease.take_batches().collect())
    }

    /// Waits until an answer may have done what it may not. Cancel safe.
    pub(super) async fn breached(&self) {
        match &self.lease {
            Some(lease) => lease.breached().await,
            None => std::future::pending().await,
        }
    }

    /// Says what failed where the gateway itself did not pass a request on. The Harness knows a status at most.
    pub(super) fn explain(&self, reports: &mut [Report]) {
        let Some(trouble) = self.lease.as_ref().and_then(Lease::trouble) else { return };
        for report in reports {
            if let Report::Ended(NativeEnd::Failed { failure, .. }) = report {
                failure.message.clone_from(&trouble);
            }
        }
    }
}

/// Whether two keys are the same secret.
fn same(a: Option<&SecretString>, b: Option<&SecretString>) -> bool {
    a.map(|key| key.expose_secret()) == b.map(|key| key.expose_secret())
}

impl Owner {
    /// Gives the requests of the Executor that is there another model key; false where there is none, which gets its key with its preparation.
    pub(super) fn update_credential(&mut self, fence: &Fence, key: &SecretString) -> Answer<bool> {
        self.admit(fence)?;
        if self.shared.gateway.is_none() {
            let text = "without the credential gateway an Executor holds its key itself; prepare with the new one";
            return Err(Refusal::new(Reason::Unsupported, text));
        }
        Ok(match &mut self.slot {
            Slot::Live(live) => live.access.take(Some(key)),
            Slot::Preparing(preparing) => preparing.access.take(Some(key)),
            Slot::Empty | Slot::Unconfirmed(_) => false,
        })
    }

    /// Whether the next request of what is there has this key, which it takes where it can (R-PRE-6).
    pub(super) fn takes(&mut self, key: Option<&SecretString>) -> bool {
        match &mut self.slot {
            Slot::Live(live) => live.access.take(key),
            Slot::Preparing(preparing) => preparing.access.take(key),
            Slot::Empty | Slot::Unconfirmed(_) => false,
        }
    }
}
