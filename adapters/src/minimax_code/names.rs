//! How MiniMax Code spells the tools of MCP servers.

/// The longest part that stands for a server.
pub(super) const LABEL_BYTES: usize = 48;
/// The longest name of a tool, with what stands before it.
const NAME_BYTES: usize = 80;
/// The longest name of a function that is not cut: `mcp__functions__` stands before it.
pub(super) const FUNCTION_BYTES: usize = NAME_BYTES - "mcp__functions__".len();

/// The native name of a tool. Two of one spelling get numbers natively; an admission lets no such two through.
pub(super) fn tool(server: &str, tool: &str) -> String {
    let mut name = format!("mcp__{}__{}", segment(server, LABEL_BYTES), spelled(tool));
    name.truncate(NAME_BYTES);
    name
}

/// Whether a label stands for itself in the names of its tools, and cannot be mistaken for a piece of another.
pub(super) fn is_own(label: &str) -> bool {
    segment(label, LABEL_BYTES) == label && !label.starts_with('_') && !label.ends_with('_')
}

/// A name as it is spelled: other characters are `_`, and a run of `_` is one.
pub(super) fn spelled(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for one in name.chars() {
        let one = if one.is_ascii_alphanumeric() || one == '-' { one } else { '_' };
        if one != '_' || !out.ends_with('_') {
            out.push(one);
        }
    }
    out
}

fn segment(name: &str, bytes: usize) -> String {
    let mut segment = spelled(name);
    segment.truncate(bytes);
    segment
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_spelled_as_natively() {
        for (server, name, want) in [
            ("functions", "lookup", "mcp__functions__lookup"),
            ("functions", "mcp__x", "mcp__functions__mcp_x"),
            ("raw name", "read.status", "mcp__raw_name__read_status"),
            ("a", "\u{e9}-B__9", "mcp__a___-B_9"),
        ] {
            assert_eq!(tool(server, name), want);
        }
        assert_eq!(tool("functions", &"x".repeat(FUNCTION_BYTES)).len(), NAME_BYTES);
        assert_eq!(tool(&"s".repeat(60), &"x".repeat(60)).len(), NAME_BYTES);
    }

    #[test]
    fn a_label_is_its_own_where_nothing_of_it_changes() {
        for (label, want) in [
            ("tickets", true),
            ("a-B_9", true),
            ("a.b", false),
            ("a__b", false),
            ("_a", false),
            ("a_", false),
            ("", true),
        ] {
            assert_eq!(is_own(label), want, "{label}");
        }
        assert!(is_own(&"x".repeat(LABEL_BYTES)) && !is_own(&"x".repeat(LABEL_BYTES + 1)));
    }
}
