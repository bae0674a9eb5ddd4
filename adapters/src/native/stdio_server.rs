//! How a Harness is told to start an MCP server that is a process: it would give it all of its own variables, the key of the model provider among them, so
//! it starts the keeper's program in its place, which takes them away and then becomes the server (R-MCP-4). What the server is, is in variables with names of
//! their own, which nobody but the keeper reads.

use std::collections::BTreeMap;

use secrecy::{ExposeSecret as _, SecretString};

use super::served;

/// The argument by which the keeper's program knows what it is to do.
pub(crate) use super::served::MODE;

/// The variables by which the keeper's program is told of a server.
///
/// # Errors
/// A text for a person when a variable is not there.
pub(crate) fn environment(
    label: &str,
    command: &str,
    args: &[String],
    env_vars: &[String],
    values: &BTreeMap<String, SecretString>,
) -> Result<BTreeMap<String, String>, String> {
    let mut environment = BTreeMap::from([(served::VARIABLE.to_owned(), label.to_owned())]);
    let arguments = [command].into_iter().chain(args.iter().map(String::as_str)).enumerate();
    environment.extend(arguments.map(|(index, text)| (served::argument(index), served::hidden(text))));
    for name in env_vars {
        let Some(value) = values.get(name) else {
            return Err(format!("the MCP server `{label}` names the variable `{name}`, which is not there"));
        };
        environment.insert(served::variable(name), served::hidden(value.expose_secret()));
    }
    Ok(environment)
}
