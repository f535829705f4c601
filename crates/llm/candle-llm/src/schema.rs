//! Whether any document can match a JSON schema: one that demands itself without end would have a model write for ever.

use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Schemas nested deeper than this are refused, as are documents that must be.
const MAX_DEPTH: usize = 64;

/// Refuses a schema that isn't one, is nested too deeply, refers to what isn't there, or has no finite document.
pub(crate) fn check(schema: &Value) -> Result<(), String> {
    let mut checker = Checker { root: schema, finite: BTreeMap::new() };
    let mut references = BTreeSet::new();
    checker.survey(schema, 0, &mut references)?;
    // The least fixed point: a reference is finite once its target is, given those that are known to be.
    loop {
        let before = checker.finite.len();
        for reference in &references {
            if !checker.finite.contains_key(reference) && checker.is_finite(checker.resolve(reference)?) {
                checker.finite.insert(reference.clone(), ());
            }
        }
        if checker.finite.len() == before {
            break;
        }
    }
    if !checker.is_finite(schema) {
        return Err("demands itself without end, so that no document can match it".into());
    }
    match references.iter().find(|reference| !checker.finite.contains_key(*reference)) {
        Some(reference) => Err(format!("has a cycle: '{reference}' demands itself without end")),
        None => Ok(()),
    }
}

struct Checker<'a> {
    root: &'a Value,
    /// References that some finite document matches.
    finite: BTreeMap<String, ()>,
}

/// Fields of a schema that hold schemas: in an object, in an array, or by themselves.
const IN_OBJECTS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
const IN_ARRAYS: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];
const ALONE: [&str; 3] = ["items", "additionalProperties", "not"];

impl<'a> Checker<'a> {
    /// Looks at every schema within `schema` and notes what they refer to.
    fn survey(&self, schema: &Value, depth: usize, references: &mut BTreeSet<String>) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!("is nested deeper than {MAX_DEPTH} levels"));
        }
        let object = match schema {
            Value::Bool(_) => return Ok(()),
            Value::Object(object) => object,
            other => return Err(format!("has {} where a schema must be", short(other))),
        };
        if let Some(reference) = object.get("$ref") {
            let reference = reference.as_str().ok_or("has a $ref that is no text")?;
            self.resolve(reference)?;
            references.insert(reference.to_owned());
        }
        for key in IN_OBJECTS {
            match object.get(key) {
                None => {}
                Some(Value::Object(inner)) => {
                    for schema in inner.values() {
                        self.survey(schema, depth + 1, references)?;
                    }
                }
                Some(_) => return Err(format!("has '{key}' that is no object")),
            }
        }
        for key in IN_ARRAYS {
            match object.get(key) {
                None => {}
                Some(Value::Array(inner)) if !inner.is_empty() => {
                    for schema in inner {
                        self.survey(schema, depth + 1, references)?;
                    }
                }
                Some(_) => return Err(format!("has '{key}' that is no list of schemas")),
            }
        }
        for key in ALONE {
            if let Some(schema) = object.get(key) {
                self.survey(schema, depth + 1, references)?;
            }
        }
        Ok(())
    }

    fn resolve(&self, reference: &str) -> Result<&'a Value, String> {
        let pointer = reference.strip_prefix('#').ok_or_else(|| {
            format!("refers to '{reference}'; only references within the schema, such as '#/$defs/x', can be followed")
        })?;
        let pointer = pointer.trim_end_matches('/');
        self.root.pointer(pointer).ok_or_else(|| format!("refers to '{reference}', which isn't in it"))
    }

    /// Whether a finite document matches, as far as references are known to be finite.
    fn is_finite(&self, schema: &Value) -> bool {
        let Value::Object(object) = schema else { return schema != &Value::Bool(false) };
        let all =
            |key: &str| object.get(key).and_then(Value::as_array).is_none_or(|l| l.iter().all(|s| self.is_finite(s)));
        let any =
            |key: &str| object.get(key).and_then(Value::as_array).is_none_or(|l| l.iter().any(|s| self.is_finite(s)));
        let reference = object.get("$ref").and_then(Value::as_str);
        reference.is_none_or(|reference| self.finite.contains_key(reference))
            && all("allOf")
            && any("anyOf")
            && any("oneOf")
            && self.type_is_finite(object)
    }

    /// Whether one of the types that a schema allows has a finite document.
    fn type_is_finite(&self, object: &Map<String, Value>) -> bool {
        let types: Vec<&str> = match object.get("type") {
            Some(Value::String(name)) => vec![name],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            // Without a type, what an object must have still binds the objects among the documents that come first.
            _ if object.contains_key("properties") => vec!["object"],
            _ => return true,
        };
        types.iter().any(|name| match *name {
            "object" => {
                let property = |name: &str| object.get("properties").and_then(|p| p.get(name));
                let required = object.get("required").and_then(Value::as_array).into_iter().flatten();
                required.filter_map(Value::as_str).filter_map(property).all(|schema| self.is_finite(schema))
            }
            "array" => {
                let least = object.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
                let first = object.get("prefixItems").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                let rest = object.get("items").filter(|_| least > first.len());
                first.iter().take(least).chain(rest).all(|schema| self.is_finite(schema))
            }
            _ => true,
        })
    }
}

fn short(value: &Value) -> String {
    value.to_string().chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_tree_is_fine_and_a_bottomless_pit_is_not() {
        let tree = json!({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]});
        check(&tree).unwrap();
        check(&json!({"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}, "required": ["children"]})).unwrap();
        check(&json!({"type": "object", "properties": {"next": {"$ref": "#"}}})).unwrap();
        for bad in [
            json!({"$ref": "#"}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
            json!({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}),
            json!({"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
            json!({"allOf": [{"$ref": "#"}]}),
            json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}),
        ] {
            assert!(check(&bad).unwrap_err().contains("without end"), "{bad}");
        }
    }

    #[test]
    fn what_is_no_schema_is_refused() {
        let mut deep = json!({});
        for _ in 0..100 {
            deep = json!({"items": deep});
        }
        for (bad, what) in [
            (deep, "deeper"),
            (json!([]), "where a schema must be"),
            (json!({"properties": []}), "'properties'"),
            (json!({"anyOf": []}), "'anyOf'"),
            (json!({"$ref": "#/$defs/a"}), "isn't in it"),
            (json!({"$ref": "https://example.com/schema"}), "only references within"),
            (json!({"$ref": 3}), "no text"),
            (json!({"properties": {"a": 3}}), "where a schema must be"),
        ] {
            let problem = check(&bad).unwrap_err();
            assert!(problem.contains(what), "{problem}");
        }
    }
}
