//! Where MCP servers may be, by the text of their addresses (R-MCP-7); what a host turns out to be is judged where it is connected to. Pure.

use adapters::harness::{McpServer, McpTransport, NotAdmitted};

use crate::gateway::Guards;

/// The first server whose requests, or whose bearer, may not go where it is.
pub(crate) fn check(servers: &[McpServer], guards: &Guards) -> Result<(), NotAdmitted> {
    for (index, server) in servers.iter().enumerate() {
        let McpTransport::Http { url, bearer, .. } = &server.transport else { continue };
        let guard = guards.of(server.origin);
        let goes = guard.check(url).and_then(|()| if *bearer { guard.check_bearer(url) } else { Ok(()) });
        goes.map_err(|refused| NotAdmitted {
            field: format!("tools.mcp_servers[{index}].http.url"),
            message: refused.to_string(),
        })?;
    }
    Ok(())
}
