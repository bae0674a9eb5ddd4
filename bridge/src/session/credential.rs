//! How an Executor comes to its model provider and its MCP servers: by itself with the key, or by a route of the gateway that puts the key in (R-SEC-3, R-PRE-6).

use std::{collections::BTreeMap, io, sync::Arc};

use adapters::harness::{Configuration, McpServer, McpTransport, ModelProvider, NativeEnd, Report, Secrets};
use secrecy::{ExposeSecret as _, SecretString};

use super::{
    Answer, Fence,
    executor::Slot,
    owner::Owner,
    variables::{self, Variables},
};
use crate::{
    gateway::{Batch, Breach, Gateway, Lease, PLACEHOLDER},
    refusal::{Reason, Refusal, excerpt},
};

/// What the requests of a Session carry.
#[derive(Clone, Debug, Default)]
pub(crate) struct Credentials {
    /// The key of the model provider.
    pub(crate) model: Option<SecretString>,
    /// The bearers of MCP servers, by their labels.
    pub(crate) mcp: BTreeMap<String, SecretString>,
}

/// A fresh credential.
#[derive(Clone, Debug)]
pub(crate) enum Credential {
    /// The key of the model provider.
    Model(SecretString),
    /// The bearer of the MCP server with this label.
    Mcp(String, SecretString),
}

impl Credentials {
    /// Whether these are the same secrets.
    fn are(&self, others: &Self) -> bool {
        let mut pairs = self.mcp.iter().zip(&others.mcp);
        self.mcp.len() == others.mcp.len()
            && same(self.model.as_ref(), others.model.as_ref())
            && pairs.all(|((label, bearer), (other, theirs))| label == other && same(Some(bearer), Some(theirs)))
    }

    fn all(&self) -> impl Iterator<Item = &SecretString> {
        self.model.iter().chain(self.mcp.values())
    }
}

/// The way of one Executor to its model provider and its MCP servers. The routes are gone when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Access {
    credentials: Credentials,
    lease: Option<Lease>,
    /// Routes to the MCP servers that are reached over HTTP, by their labels; none without a gateway.
    servers: BTreeMap<String, Lease>,
    secrets: Secrets,
}

impl Access {
    /// By routes, where there is a gateway.
    pub(super) fn open(
        gateway: Option<&Gateway>,
        configuration: &Configuration,
        credentials: Credentials,
        variables: &Variables,
    ) -> io::Result<Self> {
        let secrets = credentials.all().chain(variables::secret(variables)).collect();
        let mut access = Self { secrets, credentials, ..Self::default() };
        let Some(gateway) = gateway else { return Ok(access) };
        let key = access.credentials.model.clone();
        access.lease = Some(gateway.lease(&configuration.provider, key, configuration.controls.strict_calls)?);
        for server in &configuration.mcp_servers {
            let McpTransport::Http { url, .. } = &server.transport else { continue };
            let bearer = access.credentials.mcp.get(&server.label).cloned();
            access.servers.insert(server.label.clone(), gateway.lease_server(url, server.origin, bearer)?);
        }
        Ok(access)
    }

    /// The configuration as the Harness is told it. That of Core stays what is compared and recorded.
    pub(super) fn told(&self, configuration: &Arc<Configuration>) -> Arc<Configuration> {
        let Some(lease) = &self.lease else { return Arc::clone(configuration) };
        let base_url = lease.base_url().to_owned();
        let provider = ModelProvider { base_url, ..configuration.provider.clone() };
        let mcp_servers = configuration.mcp_servers.iter().map(|server| self.told_server(server)).collect();
        Arc::new(Configuration { provider, mcp_servers, ..(**configuration).clone() })
    }

    /// A server that is reached over HTTP, at its route and without a bearer.
    fn told_server(&self, server: &McpServer) -> McpServer {
        let mut told = server.clone();
        if let (McpTransport::Http { url, bearer, .. }, Some(lease)) =
            (&mut told.transport, self.servers.get(&server.label))
        {
            lease.base_url().clone_into(url);
            *bearer = false;
        }
        told
    }

    /// What the Harness is given for a key. By a route it always has one, so that a key may come later.
    pub(super) fn given(&self) -> Option<SecretString> {
        match self.lease {
            Some(_) => Some(PLACEHOLDER.into()),
            None => self.credentials.model.clone(),
        }
    }

    /// The bearers that the Harness is given; by a route it sends none.
    pub(super) fn given_bearers(&self) -> BTreeMap<String, SecretString> {
        match self.lease {
            Some(_) => BTreeMap::new(),
            None => self.credentials.mcp.clone(),
        }
    }

    /// Whether the Harness holds the key itself.
    pub(super) fn is_held(&self) -> bool {
        self.lease.is_none() && self.credentials.model.is_some()
    }

    pub(super) fn secrets(&self) -> Secrets {
        self.secrets.clone()
    }

    /// Whether the next requests carry these; false where the Executor holds others by itself.
    pub(super) fn take(&mut self, credentials: &Credentials) -> bool {
        if self.credentials.are(credentials) {
            return true;
        }
        let Some(lease) = &self.lease else { return false };
        // ORDER: they are cut out of texts before anybody can repeat them.
        self.secrets.set_current(credentials.all());
        lease.swap(credentials.model.clone());
        for (label, lease) in &self.servers {
            lease.swap(credentials.mcp.get(label).cloned());
        }
        self.credentials = credentials.clone();
        true
    }

    /// The same with one fresh credential.
    fn take_fresh(&mut self, fresh: Credential) -> bool {
        let mut credentials = self.credentials.clone();
        match fresh {
            Credential::Model(key) => credentials.model = Some(key),
            Credential::Mcp(label, bearer) => drop(credentials.mcp.insert(label, bearer)),
        }
        self.take(&credentials)
    }

    /// Why the gateway itself passed nothing on to MCP servers, with their labels, for a person.
    pub(super) fn server_troubles(&self) -> Option<String> {
        let troubles = self.servers.iter().filter_map(|(label, lease)| Some(format!("{label}: {}", lease.trouble()?)));
        Some(troubles.collect::<Vec<_>>().join("; ")).filter(|text| !text.is_empty())
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
    /// Gives the requests of the Executor that is there another credential; false where there is none, which gets its own with its preparation.
    pub(super) fn update_credential(&mut self, fence: &Fence, fresh: Credential) -> Answer<bool> {
        self.admit(fence)?;
        if self.shared.gateway.is_none() {
            let text =
                "without the credential gateway an Executor holds its credentials itself; prepare with the new one";
            return Err(Refusal::new(Reason::Unsupported, text));
        }
        let (configuration, access) = match &mut self.slot {
            Slot::Live(live) => (&live.configuration, &mut live.access),
            Slot::Preparing(preparing) => (&preparing.configuration, &mut preparing.access),
            Slot::Empty | Slot::Unconfirmed(_) => return Ok(false),
        };
        if let Credential::Mcp(label, _) = &fresh
            && !bearers(configuration).any(|declared| declared == label)
        {
            return Err(unwanted("credential.name"));
        }
        Ok(access.take_fresh(fresh))
    }

    /// Whether the next requests of what is there carry these, which it takes where it can (R-PRE-6).
    pub(super) fn takes(&mut self, credentials: &Credentials) -> bool {
        match &mut self.slot {
            Slot::Live(live) => live.access.take(credentials),
            Slot::Preparing(preparing) => preparing.access.take(credentials),
            Slot::Empty | Slot::Unconfirmed(_) => false,
        }
    }
}

/// Labels of the servers that take a bearer.
fn bearers(configuration: &Configuration) -> impl Iterator<Item = &str> {
    let takes = |server: &&McpServer| matches!(server.transport, McpTransport::Http { bearer: true, .. });
    configuration.mcp_servers.iter().filter(takes).map(|server| server.label.as_str())
}

/// Checks that every server that takes a bearer has one, and that nothing else is given: by the names of the credentials, in their order.
pub(crate) fn check(configuration: &Configuration, names: &[String]) -> Answer<()> {
    let label = |name: &str| name.strip_prefix("mcp:").map(str::to_owned);
    if let Some(missing) =
        bearers(configuration).find(|of| !names.iter().any(|name| label(name).as_deref() == Some(of)))
    {
        let missing = excerpt(missing);
        let text = format!(
            "the MCP server `{missing}` is declared with a bearer, so the credential `mcp:{missing}` is needed"
        );
        return Err(Refusal::invalid("credentials", text));
    }
    let is_unwanted =
        |name: &String| label(name).is_some_and(|label| !bearers(configuration).any(|declared| declared == label));
    match names.iter().position(is_unwanted) {
        Some(index) => Err(unwanted(&format!("credentials[{index}].name"))),
        None => Ok(()),
    }
}

fn unwanted(field: &str) -> Refusal {
    Refusal::invalid(
        field,
        "a credential `mcp:<label>` is for an MCP server that is declared over http with a bearer; there is none of this label",
    )
}
