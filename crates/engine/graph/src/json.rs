//! JSON read strictly: an object that holds one key twice is an error, not a silent choice between the two.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::error::quote;

/// Why a document wasn't accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct JsonError {
    /// What is wrong and where.
    pub message: String,
    /// True for a repeated key, false for text that isn't JSON.
    pub duplicate_key: bool,
    /// The graph node that holds the repeated key, where it lies in one that has an id.
    pub node_id: Option<String>,
}

/// Reads one JSON document and refuses repeated keys at every depth.
///
/// Nesting is limited to 128 levels, so no input can exhaust the stack.
///
/// # Errors
/// [`JsonError`] with the line and column for bad syntax, or the path of the repeated key.
pub fn parse(bytes: &[u8]) -> Result<Value, JsonError> {
    let mut strict = Strict::default();
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Node(&mut strict)
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value))
        .map_err(|error| JsonError {
        message: if error.to_string().starts_with("recursion limit exceeded") {
            "the JSON is nested more than 128 levels deep; flatten it".to_owned()
        } else {
            format!("not valid JSON: {error}")
        },
        duplicate_key: false,
        node_id: None,
    })?;
    match strict.duplicate {
        None => Ok(value),
        Some(path) => Err(JsonError {
            message: format!("the key {} appears more than once; keep one of them", describe(&path)),
            duplicate_key: true,
            node_id: enclosing_node(&value, &path),
        }),
    }
}

#[derive(Clone)]
enum Segment {
    Key(String),
    Index(usize),
}

/// Where the reader is, and the first repeated key that it met.
#[derive(Default)]
struct Strict {
    path: Vec<Segment>,
    duplicate: Option<Vec<Segment>>,
}

struct Node<'a>(&'a mut Strict);

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E: de::Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            self.0.path.push(Segment::Index(list.len()));
            let item = items.next_element_seed(Node(self.0))?;
            self.0.path.pop();
            match item {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            self.0.path.push(Segment::Key(key.clone()));
            if map.contains_key(&key) && self.0.duplicate.is_none() {
                self.0.duplicate = Some(self.0.path.clone());
            }
            let value = entries.next_value_seed(Node(self.0))?;
            self.0.path.pop();
            map.entry(key).or_insert(value);
        }
        Ok(Value::Object(map))
    }
}

fn describe(path: &[Segment]) -> String {
    let mut text = String::new();
    for segment in path {
        match segment {
            Segment::Index(index) => text.push_str(&format!("[{index}]")),
            Segment::Key(key) => {
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(key);
            }
        }
    }
    quote(&text)
}

/// The id of the `nodes[i]` that the path goes through.
fn enclosing_node(document: &Value, path: &[Segment]) -> Option<String> {
    let mut value = document;
    for pair in path.windows(2) {
        let Segment::Key(key) = &pair[0] else { return None };
        value = value.get(key)?;
        if let (true, Segment::Index(index)) = (key == "nodes", &pair[1]) {
            return value.get(index)?.get("id")?.as_str().map(str::to_owned);
        }
    }
    None
}

/// What a JSON value is called in messages.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_serde_json_reads() {
        let text = r#"{"a":[1,-2,2.5,18446744073709551615,"é\u0000",true,null,{}],"b":{"c":{"d":[]}}}"#;
        assert_eq!(parse(text.as_bytes()).unwrap(), serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn refuses_repeated_keys_at_any_depth_and_names_them() {
        let error = parse(br#"{"nodes":[{"id":"a"},{"id":"b","params":{"x":1,"x":2}}]}"#).unwrap_err();
        assert!(error.duplicate_key);
        assert_eq!(error.node_id.as_deref(), Some("b"));
        assert!(error.message.contains("nodes[1].params.x"), "{}", error.message);
        let error = parse(br#"{"graph":{"nodes":[{"params":{},"params":{},"id":"m"}]}}"#).unwrap_err();
        assert_eq!(error.node_id.as_deref(), Some("m"));
        let error = parse(br#"{"a":1,"a":1}"#).unwrap_err();
        assert!(error.duplicate_key && error.node_id.is_none());
    }

    #[test]
    fn refuses_what_is_not_json() {
        for text in ["", "{", "[1,]", "NaN", "{\"a\":Infinity}", "1e999", "{} {}", "\"\u{0}\"", "{'a':1}"] {
            let error = parse(text.as_bytes()).unwrap_err();
            assert!(!error.duplicate_key, "{text}");
        }
        assert!(parse(&[0xff, 0xfe]).is_err());
    }

    #[test]
    fn deep_nesting_is_an_error_and_not_a_crash() {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let text = open.repeat(1_000_000) + &close.repeat(1_000_000);
            assert!(parse(text.as_bytes()).unwrap_err().message.contains("128 levels"));
        }
    }
}
