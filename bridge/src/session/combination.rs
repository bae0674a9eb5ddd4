//! What parts of a configuration ask of each other, whatever the Harness: told before the Harness is asked whether it takes them (R-CAP-6). Pure.

use adapters::{
    admission,
    harness::{Configuration, NotAdmitted},
};

/// The first part that cannot be whatever the others are, that is nothing without another one, or that does not go with the placement: in the order of
/// admission.
pub(crate) fn check(of: &Configuration) -> Result<(), NotAdmitted> {
    admission::alone(of)?;
    together(of)?;
    admission::placed(of)
}

/// The first part that is nothing without another one.
pub(crate) fn together(of: &Configuration) -> Result<(), NotAdmitted> {
    if of.controls.max_function_calls.is_some() && !of.controls.strict_calls {
        let field = "tools.controls.max_function_calls".into();
        return refused(
            field,
            "calls are counted by the answer that asks for them; set tools.controls.strict_calls as well",
        );
    }
    let deferred = of.functions.iter().position(|function| function.defer_loading);
    match (of.tool_search, deferred) {
        (true, None) => {
            refused("tools.tool_search".into(), "no function has defer_loading, so there is nothing to find")
        }
        (false, Some(index)) => refused(
            format!("tools.functions[{index}].defer_loading"),
            "the model would never learn of it; set tools.tool_search as well",
        ),
        (true, Some(_)) | (false, None) => Ok(()),
    }
}

fn refused(field: String, message: &str) -> Result<(), NotAdmitted> {
    Err(NotAdmitted { field, message: message.into() })
}

#[cfg(test)]
mod tests {
    use adapters::harness::{Controls, FunctionTool, ModelProtocol, ModelProvider, Placement};

    use super::*;

    fn configuration(tool_search: bool, deferred: &[bool]) -> Configuration {
        let function = |defer_loading: &bool| FunctionTool {
            name: "f".into(),
            description: String::new(),
            parameters: "{}".into(),
            defer_loading: *defer_loading,
            silence_timeout: None,
            max_duration: None,
        };
        Configuration {
            harness: "h".into(),
            placement: Placement::None,
            model: "m".into(),
            instructions: String::new(),
            provider: ModelProvider {
                protocol: ModelProtocol::Messages,
                base_url: "https://p".into(),
                token_limits: None,
            },
            harness_config: String::new(),
            functions: deferred.iter().map(function).collect(),
            tool_search,
            mcp_servers: Vec::new(),
            controls: Controls::default(),
        }
    }

    #[test]
    fn a_limit_of_calls_needs_strict_calls() {
        for (strict_calls, max_function_calls, is_taken) in
            [(false, None, true), (true, None, true), (true, Some(0), true), (false, Some(1), false)]
        {
            let controls = Controls { strict_calls, max_function_calls, ..Controls::default() };
            let checked = check(&Configuration { controls, ..configuration(false, &[]) });
            let field = (!is_taken).then(|| "tools.controls.max_function_calls".to_owned());
            assert_eq!(checked.err().map(|refused| refused.field), field);
        }
    }

    #[test]
    fn a_search_and_what_it_finds_come_together() {
        for (tool_search, deferred, field) in [
            (false, &[] as &[bool], None),
            (false, &[false], None),
            (true, &[false, true], None),
            (true, &[], Some("tools.tool_search")),
            (true, &[false], Some("tools.tool_search")),
            (false, &[false, true, true], Some("tools.functions[1].defer_loading")),
        ] {
            let refused = check(&configuration(tool_search, deferred)).err().map(|refused| refused.field);
            assert_eq!(refused.as_deref(), field, "{tool_search} {deferred:?}");
        }
    }
}
