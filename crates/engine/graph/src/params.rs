//! Param values, checked against their descriptors.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::descriptor::{ParamDescriptor, ParamKind};
use crate::error::{GraphRule, listing, quote};
use crate::json::type_name;
use crate::runner::NodeError;

/// A seed as written: fixed, or negative for one that is drawn when the node runs.
#[derive(Clone, Copy, Debug, Eq)]
pub struct Seed {
    value: Option<u64>,
    as_text: bool,
}

impl Seed {
    /// A seed to be drawn when the node runs.
    pub const RANDOM: Self = Self { value: None, as_text: false };

    /// This very seed.
    pub const fn fixed(value: u64) -> Self {
        Self { value: Some(value), as_text: false }
    }

    /// The seed, or `None` when it is to be drawn.
    pub const fn value(self) -> Option<u64> {
        self.value
    }

    /// Reads a seed: a whole number from -1 to 2^64-1, as a JSON number or as digits in a text. Nothing is rounded.
    fn parse(value: &Value) -> Option<Self> {
        match value {
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(seed), _) => Some(Self::fixed(seed)),
                (None, Some(-1)) => Some(Self::RANDOM),
                (None, Some(_)) => None,
                // Written as 7.0 or 1e3: exact only below 2^53.
                (None, None) => match number.as_f64()? {
                    -1.0 => Some(Self::RANDOM),
                    float if (0.0..EXACT_FLOATS).contains(&float) && float.fract() == 0.0 => {
                        Some(Self::fixed(float as u64))
                    }
                    _ => None,
                },
            },
            Value::String(text) if text == "-1" => Some(Self { value: None, as_text: true }),
            Value::String(text) if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(Self { value: Some(text.parse().ok()?), as_text: true })
            }
            _ => None,
        }
    }

    fn to_value(self) -> Value {
        match (self.value, self.as_text) {
            (Some(seed), false) => json!(seed),
            (Some(seed), true) => json!(seed.to_string()),
            (None, false) => json!(-1),
            (None, true) => json!("-1"),
        }
    }
}

/// The spelling doesn't matter, the seed does.
impl PartialEq for Seed {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

/// Every whole number below this has its own `f64`.
const EXACT_FLOATS: f64 = 9_007_199_254_740_992.0;

/// What a source node reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssetRef {
    /// Nothing was chosen.
    None,
    /// An asset (`sha256-<hex>`) or a take, by id. Only letters, digits, `-` and `_`, so never a path.
    Id(String),
    /// A file of the operator's machine; whether it may be read is the caller's to decide.
    Path(String),
}

impl AssetRef {
    fn parse(value: &Value) -> Option<Self> {
        match value {
            Value::String(id) if id.is_empty() => Some(Self::None),
            Value::String(id) => Self::id(id),
            Value::Object(fields) if fields.len() == 2 => match fields.get("ref")?.as_str()? {
                "asset" => Self::id(fields.get("id")?.as_str()?),
                "path" => {
                    let path = fields.get("path")?.as_str()?;
                    (!path.is_empty() && !path.contains('\0')).then(|| Self::Path(path.to_owned()))
                }
                _ => None,
            },
            _ => None,
        }
    }

    fn id(id: &str) -> Option<Self> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        ((1..=128).contains(&id.len()) && id.bytes().all(plain)).then(|| Self::Id(id.to_owned()))
    }

    fn to_value(&self) -> Value {
        match self {
            Self::None => json!(""),
            Self::Id(id) => json!(id),
            Self::Path(path) => json!({"ref": "path", "path": path}),
        }
    }
}

/// A checked value.
#[derive(Clone, Debug, PartialEq)]
pub enum ParamValue {
    /// A text, string, select or model param.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// A finite number.
    Float(f64),
    /// A switch.
    Boolean(bool),
    /// A seed.
    Seed(Seed),
    /// A reference to an asset, take or file.
    Asset(AssetRef),
}

impl ParamValue {
    /// The value as JSON.
    pub fn to_value(&self) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Integer(number) => json!(number),
            Self::Float(number) => json!(number),
            Self::Boolean(value) => json!(value),
            Self::Seed(seed) => seed.to_value(),
            Self::Asset(asset) => asset.to_value(),
        }
    }
}

/// A node's params: every param of its type, defaults filled in, ordered by key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Params(BTreeMap<String, ParamValue>);

impl Params {
    /// The values by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &ParamValue)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// One value.
    pub fn get(&self, key: &str) -> Option<&ParamValue> {
        self.0.get(key)
    }

    pub(crate) fn insert(&mut self, key: &str, value: ParamValue) {
        self.0.insert(key.to_owned(), value);
    }

    /// The params as a JSON object, seeds digit for digit.
    pub fn to_json(&self) -> Map<String, Value> {
        self.0.iter().map(|(key, value)| (key.clone(), value.to_value())).collect()
    }

    /// A text, string, select or model param.
    ///
    /// # Errors
    /// The type has no such param, as with every getter here: a mistake in the runner, not in the graph.
    pub fn text(&self, key: &str) -> Result<&str, NodeError> {
        match self.get(key) {
            Some(ParamValue::Text(text)) => Ok(text),
            _ => Err(absent(key, "text")),
        }
    }

    /// A whole number.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub fn integer(&self, key: &str) -> Result<i64, NodeError> {
        match self.get(key) {
            Some(ParamValue::Integer(number)) => Ok(*number),
            _ => Err(absent(key, "whole number")),
        }
    }

    /// A whole number whose minimum is 0 or more and that fits 32 bits: a size, a count.
    ///
    /// # Errors
    /// As [`Self::text`], and when the number doesn't fit.
    pub fn count(&self, key: &str) -> Result<u32, NodeError> {
        u32::try_from(self.integer(key)?).map_err(|_| absent(key, "32-bit count"))
    }

    /// A number, whole or not.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub fn float(&self, key: &str) -> Result<f64, NodeError> {
        match self.get(key) {
            Some(ParamValue::Float(number)) => Ok(*number),
            _ => Err(absent(key, "number")),
        }
    }

    /// A switch.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub fn boolean(&self, key: &str) -> Result<bool, NodeError> {
        match self.get(key) {
            Some(ParamValue::Boolean(value)) => Ok(*value),
            _ => Err(absent(key, "boolean")),
        }
    }

    /// A seed; within a runner it has been drawn already.
    ///
    /// # Errors
    /// As [`Self::text`], and when the seed is still to be drawn.
    pub fn seed(&self, key: &str) -> Result<u64, NodeError> {
        match self.get(key) {
            Some(ParamValue::Seed(Seed { value: Some(seed), .. })) => Ok(*seed),
            _ => Err(absent(key, "seed")),
        }
    }

    /// A reference to an asset, take or file.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub fn asset(&self, key: &str) -> Result<&AssetRef, NodeError> {
        match self.get(key) {
            Some(ParamValue::Asset(asset)) => Ok(asset),
            _ => Err(absent(key, "asset reference")),
        }
    }

    /// Whether a seed is still to be drawn.
    pub fn has_random_seed(&self) -> bool {
        self.0.values().any(|value| matches!(value, ParamValue::Seed(seed) if seed.value.is_none()))
    }

    /// The same params with every random seed drawn; `draw` gets the param's key.
    pub(crate) fn with_drawn_seeds(&self, mut draw: impl FnMut(&str) -> u64) -> Self {
        let mut drawn = self.clone();
        for (key, value) in &mut drawn.0 {
            if let ParamValue::Seed(seed) = value {
                seed.value = seed.value.or_else(|| Some(draw(key)));
            }
        }
        drawn
    }
}

fn absent(key: &str, what: &str) -> NodeError {
    NodeError::new(format!("internal error: this node's {what} param {} is missing", quote(key)))
}

/// Checks a value's type and range; a select's membership in its options is [`check_option`].
pub(crate) fn resolve(param: &ParamDescriptor, value: &Value) -> Result<ParamValue, (GraphRule, String)> {
    if param.asset {
        return AssetRef::parse(value).map(ParamValue::Asset).ok_or_else(|| {
            wrong_type(
                param,
                "the id of an asset or take, {\"ref\": \"asset\", \"id\": …} or {\"ref\": \"path\", \"path\": …}",
                value,
            )
        });
    }
    match param.kind {
        ParamKind::Text | ParamKind::String | ParamKind::Enum | ParamKind::Model => match value {
            Value::String(text) => Ok(ParamValue::Text(text.clone())),
            _ => Err(wrong_type(param, "a text", value)),
        },
        ParamKind::Boolean => match value {
            Value::Bool(value) => Ok(ParamValue::Boolean(*value)),
            _ => Err(wrong_type(param, "true or false", value)),
        },
        ParamKind::Seed => Seed::parse(value).map(ParamValue::Seed).ok_or_else(|| match value {
            Value::Number(number) => (
                GraphRule::ParamRange,
                format!(
                    "param {} must be a whole number from -1 (random) to 18446744073709551615, not {number}",
                    quote(&param.key)
                ),
            ),
            _ => wrong_type(param, "a whole number from -1 (random) to 18446744073709551615", value),
        }),
        ParamKind::Number => match value {
            Value::Number(number) if param.is_integer() => resolve_integer(param, number),
            Value::Number(number) => resolve_float(param, number),
            _ => Err(wrong_type(param, "a number", value)),
        },
    }
}

fn resolve_integer(param: &ParamDescriptor, number: &serde_json::Number) -> Result<ParamValue, (GraphRule, String)> {
    let whole = number.as_i64().or_else(|| {
        let float = number.as_f64()?;
        (float.fract() == 0.0 && float.abs() < EXACT_FLOATS).then_some(float as i64)
    });
    let min = param.min.as_ref().and_then(serde_json::Number::as_i64).unwrap_or(i64::MIN);
    let max = param.max.as_ref().and_then(serde_json::Number::as_i64).unwrap_or(i64::MAX);
    let key = quote(&param.key);
    let Some(whole) = whole else {
        let (rule, number) = match number.as_f64() {
            Some(float) if float.fract() == 0.0 => (GraphRule::ParamRange, format!("from {min} to {max}")),
            _ => (GraphRule::ParamType, "without a fraction".to_owned()),
        };
        return Err((rule, format!("param {key} must be a whole number {number}")));
    };
    if !(min..=max).contains(&whole) {
        return Err((GraphRule::ParamRange, format!("param {key} must be from {min} to {max}, not {whole}")));
    }
    // Steps count from the minimum, multiples from zero.
    let (origin, grid) = match param.multiple_of {
        Some(multiple) => (0, i128::from(multiple)),
        None => (
            if param.min.is_some() { i128::from(min) } else { 0 },
            i128::from(param.step.as_ref().and_then(serde_json::Number::as_i64).unwrap_or(1)),
        ),
    };
    let offset = (i128::from(whole) - origin).rem_euclid(grid.max(1));
    if offset != 0 {
        let below = i128::from(whole) - offset;
        let nearest: Vec<_> = [below, below + grid]
            .into_iter()
            .filter(|value| (i128::from(min)..=i128::from(max)).contains(value))
            .map(|value| value.to_string())
            .collect();
        return Err((
            GraphRule::ParamRange,
            format!("param {key} can't be {whole}; the nearest values are {}", nearest.join(" and ")),
        ));
    }
    Ok(ParamValue::Integer(whole))
}

fn resolve_float(param: &ParamDescriptor, number: &serde_json::Number) -> Result<ParamValue, (GraphRule, String)> {
    let bound = |bound: &Option<serde_json::Number>| bound.as_ref().and_then(serde_json::Number::as_f64);
    let min = bound(&param.min).unwrap_or(f64::NEG_INFINITY);
    let max = bound(&param.max).unwrap_or(f64::INFINITY);
    match number.as_f64() {
        // Adding zero turns -0 into 0, so that both have one cache key.
        Some(float) if float.is_finite() && (min..=max).contains(&float) => Ok(ParamValue::Float(float + 0.0)),
        _ => Err((
            GraphRule::ParamRange,
            format!("param {} must be from {min} to {max}, not {number}", quote(&param.key)),
        )),
    }
}

/// Whether a select's value is offered. The default always is, so an empty default works without any file.
pub(crate) fn check_option(param: &ParamDescriptor, value: &ParamValue) -> Result<(), String> {
    let (Some(options), ParamValue::Text(text)) = (&param.options, value) else { return Ok(()) };
    if options.iter().any(|option| option.value == *text) || param.default == *text {
        return Ok(());
    }
    let offered = listing(options.iter().map(|option| option.value.as_str()));
    Err(match &param.options_from {
        None => format!("param {} can't be {}; choose from {offered}", quote(&param.key), quote(text)),
        Some(category) => format!(
            "param {}: no file {} in the models root's {category} folder; it offers {offered}",
            quote(&param.key),
            quote(text)
        ),
    })
}

fn wrong_type(param: &ParamDescriptor, expected: &str, value: &Value) -> (GraphRule, String) {
    let got = match value {
        Value::String(text) => format!("the text {}", quote(text)),
        Value::Number(number) => format!("the number {number}"),
        other => type_name(other).to_owned(),
    };
    (GraphRule::ParamType, format!("param {} must be {expected}, not {got}", quote(&param.key)))
}
