//! Whether descriptions of tools can be used.

use crate::{Error, Result, ToolChoice};
use serde_json::Value;
use std::collections::BTreeSet;

/// Longest name of a tool, as the field's clients have it.
const MAX_NAME: usize = 64;

/// Refuses what is no description of a tool, and a choice among tools that aren't there.
pub(crate) fn check(tools: &[Value], choice: &ToolChoice) -> Result<()> {
    let mut names = BTreeSet::new();
    for (index, tool) in tools.iter().enumerate() {
        let name = check_one(tool).map_err(|problem| Error::invalid("tools", format!("tool {index} {problem}")))?;
        if !names.insert(name) {
            return Err(Error::invalid("tools", format!("two tools are called '{name}'")));
        }
    }
    match choice {
        ToolChoice::Named(name) if !names.contains(name.as_str()) => {
            Err(Error::invalid("tool_choice", format!("no tool is called '{name}'")))
        }
        ToolChoice::Required if tools.is_empty() => Err(Error::invalid("tool_choice", "there are no tools to call")),
        _ => Ok(()),
    }
}

/// The name of a tool, or what is wrong with its description.
fn check_one(tool: &Value) -> Result<&str, String> {
    let object = tool.as_object().ok_or("must be an object")?;
    if tool["type"] != "function" {
        return Err("must have the type 'function'".into());
    }
    if let Some(key) = object.keys().find(|key| !["type", "function"].contains(&key.as_str())) {
        return Err(format!("has the unknown field '{key}'"));
    }
    let function = tool["function"].as_object().ok_or("must have an object 'function'")?;
    if let Some(key) =
        function.keys().find(|key| !["name", "description", "parameters", "strict"].contains(&key.as_str()))
    {
        return Err(format!("has the unknown field 'function.{key}'"));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(plain) {
        return Err(format!("must have a 'function.name' of 1 to {MAX_NAME} letters, digits, '_', '-' and '.'"));
    }
    if function.get("description").is_some_and(|text| !text.is_string() && !text.is_null()) {
        return Err("has a 'function.description' that is no text".into());
    }
    match function.get("parameters") {
        None | Some(Value::Null) => Ok(name),
        Some(Value::Object(schema)) => match schema.get("type") {
            None => Ok(name),
            Some(kind) if kind == "object" => Ok(name),
            Some(_) => Err("must have 'function.parameters' of the type 'object'".into()),
        },
        Some(_) => Err("must have a JSON schema as 'function.parameters'".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn descriptions_that_cannot_be_used_are_refused() {
        let good = json!({"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}});
        check(std::slice::from_ref(&good), &ToolChoice::Named("get_weather".into())).unwrap();
        let function = |function: Value| json!({"type": "function", "function": function});
        for bad in [
            json!("get_weather"),
            json!({"type": "web_search"}),
            json!({"type": "function"}),
            json!({"type": "function", "function": {"name": "a"}, "extra": 1}),
            function(json!({"name": ""})),
            function(json!({"name": "a b"})),
            function(json!({"name": "x".repeat(65)})),
            function(json!({"name": "a", "description": 3})),
            function(json!({"name": "a", "parameters": []})),
            function(json!({"name": "a", "parameters": {"type": "array"}})),
            function(json!({"name": "a", "arguments": {}})),
        ] {
            let refusal = check(std::slice::from_ref(&bad), &ToolChoice::Auto);
            assert!(matches!(refusal, Err(Error::InvalidRequest { field: "tools", .. })), "{bad}");
        }
        assert!(check(&[good.clone(), good.clone()], &ToolChoice::Auto).is_err());
        for (tools, choice) in [(vec![good], ToolChoice::Named("other".into())), (vec![], ToolChoice::Required)] {
            let refusal = check(&tools, &choice);
            assert!(matches!(refusal, Err(Error::InvalidRequest { field: "tool_choice", .. })), "{choice:?}");
        }
    }
}
