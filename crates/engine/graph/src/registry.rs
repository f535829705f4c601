//! The node types that an engine knows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::descriptor::{NodeDescriptor, ParamDescriptor, SelectOption};
use crate::error::quote;
use crate::params;

/// Why a set of descriptors can't be served: a mistake in the program, found at start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// Two descriptors of one type.
    #[error("node type {0:?} is registered twice")]
    DuplicateType(String),
    /// A descriptor that contradicts itself.
    #[error("descriptor of node type {node_type:?}: {problem}")]
    Malformed {
        /// The descriptor's type.
        node_type: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// Descriptors by type, in the order of their types. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct NodeRegistry(BTreeMap<String, Arc<NodeDescriptor>>);

impl NodeRegistry {
    /// Checks and collects descriptors.
    ///
    /// # Errors
    /// Two of one type, or one with repeated names, a default that its own rules refuse, or an output kind that no
    /// output has.
    pub fn new(descriptors: impl IntoIterator<Item = NodeDescriptor>) -> Result<Self, RegistryError> {
        let mut types = BTreeMap::new();
        for descriptor in descriptors {
            check(&descriptor)
                .map_err(|problem| RegistryError::Malformed { node_type: descriptor.node_type.clone(), problem })?;
            if let Some(earlier) = types.insert(descriptor.node_type.clone(), Arc::new(descriptor)) {
                return Err(RegistryError::DuplicateType(earlier.node_type.clone()));
            }
        }
        Ok(Self(types))
    }

    /// The descriptor of a type.
    pub fn get(&self, node_type: &str) -> Option<&Arc<NodeDescriptor>> {
        self.0.get(node_type)
    }

    /// Every descriptor, ordered by type.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<NodeDescriptor>> {
        self.0.values()
    }

    /// The number of types.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no types.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The registry as it is served: to every param with `optionsFrom`, the options that `files` gives for the node
    /// type and category are appended, unless already there. Call it on the registry as built, once for each scan of
    /// the models root.
    #[must_use]
    pub fn with_options(&self, mut files: impl FnMut(&NodeDescriptor, &str) -> Vec<SelectOption>) -> Self {
        let mut serve = |descriptor: &Arc<NodeDescriptor>| {
            if descriptor.params.iter().all(|param| param.options_from.is_none()) {
                return Arc::clone(descriptor);
            }
            let mut served = NodeDescriptor::clone(descriptor);
            for param in &mut served.params {
                let Some(category) = &param.options_from else { continue };
                let options = param.options.get_or_insert_default();
                for option in files(descriptor, category) {
                    if !options.iter().any(|known| known.value == option.value) {
                        options.push(option);
                    }
                }
            }
            Arc::new(served)
        };
        Self(self.0.iter().map(|(node_type, descriptor)| (node_type.clone(), serve(descriptor))).collect())
    }

    /// `r_` and 8 hex digits that change with any descriptor and with `extra`, the digest of the model files.
    pub fn registry_version(&self, extra: &[u8]) -> String {
        let mut hasher = Sha256::new();
        for descriptor in self.iter() {
            // Descriptors are plain data, so this can't fail; were it to, the type alone would still count.
            let json =
                serde_json::to_vec(descriptor.as_ref()).unwrap_or_else(|_| descriptor.node_type.clone().into_bytes());
            hasher.update((json.len() as u64).to_le_bytes());
            hasher.update(json);
        }
        hasher.update(extra);
        format!("r_{}", hex::encode(&hasher.finalize()[..4]))
    }
}

fn check(descriptor: &NodeDescriptor) -> Result<(), String> {
    let name = &descriptor.node_type;
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_./".contains(&byte);
    if name.split('/').any(str::is_empty) || !name.bytes().all(plain) {
        return Err("a type is name or group/name in lower case letters, digits, '-', '_' and '.'".to_owned());
    }
    if descriptor.title.is_empty() {
        return Err("the title is empty".to_owned());
    }
    unique("input port", descriptor.inputs.iter().map(|port| port.id.as_str()))?;
    unique("output port", descriptor.outputs.iter().map(|port| port.id.as_str()))?;
    unique("param", descriptor.params.iter().map(|param| param.key.as_str()))?;
    if let Some(kind) = descriptor.output_kind
        && !descriptor.outputs.iter().any(|port| port.kind.take_kind() == Some(kind))
    {
        return Err(format!("outputKind is {kind}, but no output port has that kind"));
    }
    descriptor.params.iter().try_for_each(check_param)
}

fn check_param(param: &ParamDescriptor) -> Result<(), String> {
    let default = params::resolve(param, &param.default).map_err(|(_, problem)| format!("its default: {problem}"))?;
    if let (Some(options), None, params::ParamValue::Text(text)) = (&param.options, &param.options_from, &default)
        && !options.iter().any(|option| option.value == *text)
    {
        return Err(format!("the default of param {} isn't one of its options", quote(&param.key)));
    }
    unique("option", param.options.iter().flatten().map(|option| option.value.as_str()))
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for name in names {
        if name.is_empty() && what != "option" {
            return Err(format!("{what} without a name"));
        }
        if !seen.insert(name) {
            return Err(format!("{what} {} appears twice", quote(name)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MediaKind, PortDescriptor, PortKind};

    fn painter() -> NodeDescriptor {
        NodeDescriptor::new("acme/painter", "Painter")
            .output_kind(MediaKind::Image)
            .output(PortDescriptor::output("image", "Image", PortKind::Image))
            .param(ParamDescriptor::model("model", "Model", "diffusion_models"))
    }

    fn file(name: &str) -> SelectOption {
        SelectOption { value: name.to_owned(), label: name.to_owned() }
    }

    #[test]
    fn types_come_in_order() {
        let registry =
            NodeRegistry::new(["sample", "b/x", "a/y", "a/x"].map(|node_type| NodeDescriptor::new(node_type, "T")))
                .unwrap();
        let types: Vec<_> = registry.iter().map(|descriptor| descriptor.node_type.as_str()).collect();
        assert_eq!(types, ["a/x", "a/y", "b/x", "sample"]);
    }

    #[test]
    fn the_version_changes_with_descriptors_options_and_files() {
        let registry = NodeRegistry::new([painter()]).unwrap();
        let version = registry.registry_version(b"files");
        assert_eq!(version, registry.registry_version(b"files"));
        assert!(version.len() == 10 && version.starts_with("r_"), "{version}");
        assert!(version[2..].bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_ne!(version, registry.registry_version(b"other"));
        assert_ne!(version, registry.with_options(|_, _| vec![file("a")]).registry_version(b"files"));
        let renamed = NodeRegistry::new([NodeDescriptor { title: "P".into(), ..painter() }]).unwrap();
        assert_ne!(version, renamed.registry_version(b"files"));
    }

    #[test]
    fn files_are_appended_to_options_once() {
        let registry = NodeRegistry::new([painter()]).unwrap();
        let served = registry.with_options(|node, category| {
            assert_eq!((node.node_type.as_str(), category), ("acme/painter", "diffusion_models"));
            vec![file("a.safetensors"), file("b.safetensors"), file("a.safetensors")]
        });
        let options = served.get("acme/painter").unwrap().params[0].options.clone().unwrap();
        assert_eq!(options, [file("a.safetensors"), file("b.safetensors")]);
        assert_eq!(registry.get("acme/painter").unwrap().params[0].options, Some(Vec::new()));
    }

    #[test]
    fn contradictory_descriptors_are_refused() {
        let node = |node_type: &str| NodeDescriptor::new(node_type, "T");
        let port = |id: &str| PortDescriptor::optional(id, "P", PortKind::Text);
        assert_eq!(
            NodeRegistry::new([node("a/x"), node("a/x")]).unwrap_err(),
            RegistryError::DuplicateType("a/x".to_owned())
        );
        let bad = [
            node(""),
            node("a/"),
            node("A/x"),
            node("a/x y"),
            NodeDescriptor { title: String::new(), ..node("a/x") },
            node("a/x").input(port("p")).input(port("p")),
            node("a/x").output(port("p")).output(port("p")),
            node("a/x").output(port("")),
            node("a/x").output(port("p")).output_kind(MediaKind::Image),
            node("a/x").param(ParamDescriptor::boolean("k", "K", true)).param(ParamDescriptor::seed("k", "K")),
            node("a/x").param(ParamDescriptor::integer("k", "K", 0, 1..=8, 1)),
            node("a/x").param(ParamDescriptor::integer("k", "K", 3, 0..=8, 2)),
            node("a/x").param(ParamDescriptor::float("k", "K", f64::NAN, 0.0..=1.0, 0.1)),
            node("a/x").param(ParamDescriptor::select("k", "K", "c", [("a", "A"), ("b", "B")])),
            node("a/x").param(ParamDescriptor::select("k", "K", "a", [("a", "A"), ("a", "B")])),
        ];
        for descriptor in bad {
            let shown = format!("{descriptor:?}");
            let error = NodeRegistry::new([descriptor]).expect_err(&shown);
            assert!(matches!(error, RegistryError::Malformed { .. }), "{shown}");
        }
    }
}
