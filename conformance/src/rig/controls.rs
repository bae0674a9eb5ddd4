//! Configurations with controls, and with functions that the model finds.

use proto::v1::{self, output_format::Format};

/// The same configuration with a final answer of this schema.
#[must_use]
pub fn answering_by(schema: &str, configuration: v1::ExecutionConfiguration) -> v1::ExecutionConfiguration {
    let format = Some(Format::JsonSchema(v1::JsonSchemaFormat { schema: schema.into() }));
    controlled(configuration, |controls| controls.output_format = Some(v1::OutputFormat { format }))
}

/// The same configuration with this mode of searching the web.
#[must_use]
pub fn searching(mode: v1::WebSearchMode, configuration: v1::ExecutionConfiguration) -> v1::ExecutionConfiguration {
    controlled(configuration, |controls| {
        controls.web_search = Some(v1::WebSearchControl { mode: mode.into(), ..Default::default() })
    })
}

/// The same configuration in which calls wait for the end of the answer that asks for them, and a Turn makes at most so many of functions.
#[must_use]
pub fn strict(most: Option<u32>, configuration: v1::ExecutionConfiguration) -> v1::ExecutionConfiguration {
    controlled(configuration, |controls| {
        controls.strict_calls = true;
        controls.max_function_calls = most;
    })
}

/// The same configuration in which the model finds these of its functions by searching for them.
#[must_use]
pub fn deferring(names: &[&str], mut configuration: v1::ExecutionConfiguration) -> v1::ExecutionConfiguration {
    let tools = configuration.tools.get_or_insert_default();
    tools.tool_search = Some(v1::ToolSearch {});
    for function in tools.functions.iter_mut().filter(|function| names.contains(&&*function.name)) {
        function.defer_loading = true;
    }
    configuration
}

fn controlled(
    mut configuration: v1::ExecutionConfiguration,
    set: impl FnOnce(&mut v1::ExecutionControls),
) -> v1::ExecutionConfiguration {
    set(configuration.tools.get_or_insert_default().controls.get_or_insert_default());
    configuration
}
