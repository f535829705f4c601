//! What a node type looks like from outside: its ports, its params and how a client shows them.
//!
//! The JSON of these types is the node descriptor of the HTTP contract. Builders keep the definition of a node
//! readable:
//!
//! ```
//! use engine_graph::{MediaKind, NodeDescriptor, ParamDescriptor, PortDescriptor, PortKind};
//!
//! let node = NodeDescriptor::new("acme/painter", "Painter")
//!     .category("image")
//!     .output_kind(MediaKind::Image)
//!     .input(PortDescriptor::required("prompt", "Prompt", PortKind::Text))
//!     .output(PortDescriptor::output("image", "Image", PortKind::Image))
//!     .param(ParamDescriptor::integer("width", "Width", 1024, 256..=2048, 64))
//!     .param(ParamDescriptor::float("strength", "Strength", 0.6, 0.0..=1.0, 0.05).advanced())
//!     .param(ParamDescriptor::seed("seed", "Seed"));
//! assert_eq!(node.params[0].key, "width");
//! ```

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

use crate::kind::{MediaKind, PortKind};

/// A node type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeDescriptor {
    /// The type's name, `vendor/model` or `group/verb`.
    #[serde(rename = "type")]
    pub node_type: String,
    /// The name that clients show.
    pub title: String,
    /// The group under which clients list it.
    pub category: String,
    /// The name of an icon.
    pub icon: String,
    /// Where the type comes from; always `builtin`.
    pub source: String,
    /// The kind of take that the node makes, if it makes any.
    pub output_kind: Option<MediaKind>,
    /// Input ports.
    pub inputs: Vec<PortDescriptor>,
    /// Output ports.
    pub outputs: Vec<PortDescriptor>,
    /// Params in display order.
    pub params: Vec<ParamDescriptor>,
    /// Served and checked, but not offered by clients.
    #[serde(default, skip_serializing_if = "is_false")]
    pub hidden: bool,
}

/// An input or output port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PortDescriptor {
    /// The port's name in edges.
    pub id: String,
    /// The name that clients show.
    pub label: String,
    /// What flows through it.
    pub kind: PortKind,
    /// Whether an input must be wired; false for outputs.
    pub required: bool,
}

/// How a client edits a param.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Widget {
    /// One line of text.
    Text,
    /// Several lines of text.
    Textarea,
    /// A number.
    Number,
    /// A switch.
    Boolean,
    /// One of the options.
    Select,
    /// A seed with a way to draw one.
    Seed,
}

/// What a param means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ParamKind {
    /// A seed: -1 (random) to 2^64-1, as a JSON number or text.
    Seed,
    /// One of a fixed set of options.
    Enum,
    /// Prose, such as a prompt.
    Text,
    /// A number.
    Number,
    /// A switch.
    Boolean,
    /// A short text, such as a name or an id.
    String,
    /// A model file.
    Model,
}

/// One choice of a select.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SelectOption {
    /// The param's value.
    pub value: String,
    /// The name that clients show.
    pub label: String,
}

/// A param of a node type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ParamDescriptor {
    /// The param's name.
    pub key: String,
    /// The name that clients show.
    pub label: String,
    /// How it is edited.
    pub widget: Widget,
    /// The value it has when left out.
    pub default: Value,
    /// The smallest number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub min: Option<Number>,
    /// The largest number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub max: Option<Number>,
    /// The increment. A whole step makes the param a whole number that must lie on it, counted from `min`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub step: Option<Number>,
    /// What a whole number must be a multiple of, where that is finer than the increment that clients use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multiple_of: Option<u32>,
    /// The choices of a select.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<Vec<SelectOption>>,
    /// The category of the models root whose files are offered too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options_from: Option<String>,
    /// Shown only on demand.
    #[serde(default, skip_serializing_if = "is_false")]
    pub advanced: bool,
    /// Names an asset or a take: an id, or an object with a `ref`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub asset: bool,
    /// What the value means.
    pub kind: ParamKind,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference
fn is_false(value: &bool) -> bool {
    !value
}

impl NodeDescriptor {
    /// A visible builtin type without ports and params.
    pub fn new(node_type: impl Into<String>, title: impl Into<String>) -> Self {
        Self {
            node_type: node_type.into(),
            title: title.into(),
            category: String::new(),
            icon: String::new(),
            source: "builtin".to_owned(),
            output_kind: None,
            inputs: Vec::new(),
            outputs: Vec::new(),
            params: Vec::new(),
            hidden: false,
        }
    }

    /// Sets the group.
    #[must_use]
    pub fn category(mut self, category: impl Into<String>) -> Self {
        self.category = category.into();
        self
    }

    /// Sets the icon.
    #[must_use]
    pub fn icon(mut self, icon: impl Into<String>) -> Self {
        self.icon = icon.into();
        self
    }

    /// The node makes takes of this kind.
    #[must_use]
    pub fn output_kind(mut self, kind: MediaKind) -> Self {
        self.output_kind = Some(kind);
        self
    }

    /// Adds an input port.
    #[must_use]
    pub fn input(mut self, port: PortDescriptor) -> Self {
        self.inputs.push(port);
        self
    }

    /// Adds an output port.
    #[must_use]
    pub fn output(mut self, port: PortDescriptor) -> Self {
        self.outputs.push(port);
        self
    }

    /// Adds a param.
    #[must_use]
    pub fn param(mut self, param: ParamDescriptor) -> Self {
        self.params.push(param);
        self
    }

    /// Clients don't offer the type.
    #[must_use]
    pub fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    /// The input port of that name.
    pub fn find_input(&self, id: &str) -> Option<&PortDescriptor> {
        self.inputs.iter().find(|port| port.id == id)
    }

    /// The output port of that name.
    pub fn find_output(&self, id: &str) -> Option<&PortDescriptor> {
        self.outputs.iter().find(|port| port.id == id)
    }

    /// The param of that name.
    pub fn find_param(&self, key: &str) -> Option<&ParamDescriptor> {
        self.params.iter().find(|param| param.key == key)
    }
}

impl PortDescriptor {
    /// An input that must be wired.
    pub fn required(id: impl Into<String>, label: impl Into<String>, kind: PortKind) -> Self {
        Self { id: id.into(), label: label.into(), kind, required: true }
    }

    /// An input that may be left unwired.
    pub fn optional(id: impl Into<String>, label: impl Into<String>, kind: PortKind) -> Self {
        Self { id: id.into(), label: label.into(), kind, required: false }
    }

    /// An output.
    pub fn output(id: impl Into<String>, label: impl Into<String>, kind: PortKind) -> Self {
        Self::optional(id, label, kind)
    }
}

impl ParamDescriptor {
    fn base(key: impl Into<String>, label: impl Into<String>, widget: Widget, kind: ParamKind, default: Value) -> Self {
        Self {
            key: key.into(),
            label: label.into(),
            widget,
            default,
            min: None,
            max: None,
            step: None,
            multiple_of: None,
            options: None,
            options_from: None,
            advanced: false,
            asset: false,
            kind,
        }
    }

    /// Prose in several lines.
    pub fn textarea(key: impl Into<String>, label: impl Into<String>, default: &str) -> Self {
        Self::base(key, label, Widget::Textarea, ParamKind::Text, default.into())
    }

    /// A short text in one line.
    pub fn string(key: impl Into<String>, label: impl Into<String>, default: &str) -> Self {
        Self::base(key, label, Widget::Text, ParamKind::String, default.into())
    }

    /// A reference to an asset, a take or (where allowed) a file; empty by default.
    pub fn asset(key: impl Into<String>, label: impl Into<String>) -> Self {
        Self { asset: true, ..Self::string(key, label, "") }
    }

    /// A whole number within a range, on a step counted from its lower end.
    pub fn integer(
        key: impl Into<String>,
        label: impl Into<String>,
        default: i64,
        range: RangeInclusive<i64>,
        step: u32,
    ) -> Self {
        Self {
            min: Some(Number::from(*range.start())),
            max: Some(Number::from(*range.end())),
            step: Some(Number::from(step)),
            ..Self::base(key, label, Widget::Number, ParamKind::Number, default.into())
        }
    }

    /// A number within a range; the step is what clients increment by.
    pub fn float(
        key: impl Into<String>,
        label: impl Into<String>,
        default: f64,
        range: RangeInclusive<f64>,
        step: f64,
    ) -> Self {
        Self {
            min: Number::from_f64(*range.start()),
            max: Number::from_f64(*range.end()),
            step: Number::from_f64(step),
            ..Self::base(key, label, Widget::Number, ParamKind::Number, default.into())
        }
    }

    /// A switch.
    pub fn boolean(key: impl Into<String>, label: impl Into<String>, default: bool) -> Self {
        Self::base(key, label, Widget::Boolean, ParamKind::Boolean, default.into())
    }

    /// A seed; random by default.
    pub fn seed(key: impl Into<String>, label: impl Into<String>) -> Self {
        Self::base(key, label, Widget::Seed, ParamKind::Seed, (-1).into())
    }

    /// One of a fixed set of (value, label) pairs.
    pub fn select<V: Into<String>, L: Into<String>>(
        key: impl Into<String>,
        label: impl Into<String>,
        default: &str,
        options: impl IntoIterator<Item = (V, L)>,
    ) -> Self {
        let options =
            options.into_iter().map(|(value, label)| SelectOption { value: value.into(), label: label.into() });
        Self {
            options: Some(options.collect()),
            ..Self::base(key, label, Widget::Select, ParamKind::Enum, default.into())
        }
    }

    /// A file of a models-root category; empty by default.
    pub fn model(key: impl Into<String>, label: impl Into<String>, category: impl Into<String>) -> Self {
        Self {
            options: Some(Vec::new()),
            options_from: Some(category.into()),
            ..Self::base(key, label, Widget::Select, ParamKind::Model, "".into())
        }
    }

    /// Shown only on demand.
    #[must_use]
    pub fn advanced(mut self) -> Self {
        self.advanced = true;
        self
    }

    /// Accepts every multiple of `multiple` in the range, whatever the step that clients increment by.
    #[must_use]
    pub fn multiple_of(mut self, multiple: u32) -> Self {
        self.multiple_of = Some(multiple);
        self
    }

    /// Whether a number param holds whole numbers only.
    pub fn is_integer(&self) -> bool {
        self.step.as_ref().is_some_and(|step| step.is_i64() || step.is_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_has_the_contract_fields_in_a_stable_order() {
        let node = NodeDescriptor::new("acme/painter", "Painter")
            .category("image")
            .icon("brush")
            .output_kind(MediaKind::Image)
            .input(PortDescriptor::required("prompt", "Prompt", PortKind::Text))
            .output(PortDescriptor::output("image", "Image", PortKind::Image))
            .param(ParamDescriptor::integer("width", "Width", 1024, 256..=2048, 64).multiple_of(16))
            .param(ParamDescriptor::float("strength", "Strength", 0.6, 0.0..=1.0, 0.05).advanced())
            .param(ParamDescriptor::seed("seed", "Seed"))
            .param(ParamDescriptor::select("sampler", "Sampler", "euler", [("euler", "Euler")]))
            .param(ParamDescriptor::model("model", "Model", "diffusion_models"))
            .param(ParamDescriptor::asset("asset", "Asset"));
        let expected = concat!(
            r#"{"type":"acme/painter","title":"Painter","category":"image","icon":"brush","source":"builtin","#,
            r#""outputKind":"image","#,
            r#""inputs":[{"id":"prompt","label":"Prompt","kind":"text","required":true}],"#,
            r#""outputs":[{"id":"image","label":"Image","kind":"image","required":false}],"#,
            r#""params":[{"key":"width","label":"Width","widget":"number","default":1024,"min":256,"max":2048,"#,
            r#""step":64,"multipleOf":16,"kind":"number"},"#,
            r#"{"key":"strength","label":"Strength","widget":"number","default":0.6,"min":0.0,"max":1.0,"#,
            r#""step":0.05,"advanced":true,"kind":"number"},"#,
            r#"{"key":"seed","label":"Seed","widget":"seed","default":-1,"kind":"seed"},"#,
            r#"{"key":"sampler","label":"Sampler","widget":"select","default":"euler","#,
            r#""options":[{"value":"euler","label":"Euler"}],"kind":"enum"},"#,
            r#"{"key":"model","label":"Model","widget":"select","default":"","options":[],"#,
            r#""optionsFrom":"diffusion_models","kind":"model"},"#,
            r#"{"key":"asset","label":"Asset","widget":"text","default":"","asset":true,"kind":"string"}]}"#,
        );
        assert_eq!(serde_json::to_string(&node).unwrap(), expected);
        assert_eq!(serde_json::from_str::<NodeDescriptor>(expected).unwrap(), node);
    }

    #[test]
    fn hidden_and_null_output_kind_are_written() {
        let value = serde_json::to_value(NodeDescriptor::new("input/text", "Text").hidden()).unwrap();
        assert_eq!(value["hidden"], json!(true));
        assert_eq!(value["outputKind"], Value::Null);
    }
}
