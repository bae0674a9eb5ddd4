//! Where MCP servers may be, by the text of their addresses (R-MCP-7); what a host turns out to be is judged where it is connected to. Pure.

use adapters::harness::{McpServer, McpTransport, NotAdmitted};

use crate::gateway::Guards;

/// LIMIT: servers of one configuration. Each has a route, and connections of its own.
const MOST: usize = 128;

/// That there are not too many servers; then the first one whose requests, or whose bearer, may not go where it is.
pub(crate) fn check(servers: &[McpServer], guards: &Guards) -> Result<(), NotAdmitted> {
    if servers.len() > MOST {
        let message = format!("has {} servers; this bridge takes at most {MOST}", servers.len());
        return Err(NotAdmitted { field: "tools.mcp_servers".into(), message });
    }
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

#[cfg(test)]
mod tests {
    use adapters::harness::McpOrigin;

    use super::*;
    use crate::gateway::Guard;

    #[test]
    fn a_configuration_has_so_many_servers() {
        let server = |label: usize| McpServer {
            label: label.to_string(),
            transport: McpTransport::Http { url: "https://h.example".into(), headers: Vec::new(), bearer: false },
            origin: McpOrigin::Service,
            allowed_tools: None,
            required: false,
        };
        let guards = Guards::new(Guard::default(), false);
        let servers: Vec<_> = (0..=MOST).map(server).collect();
        assert!(check(&servers[1..], &guards).is_ok());
        let refused = check(&servers, &guards).unwrap_err();
        assert_eq!(refused.to_string(), "tools.mcp_servers: has 129 servers; this bridge takes at most 128");
    }
}
