//! Values that an instance of a subgraph sets for widgets inside it.

use std::collections::HashMap;

use serde_json::Value as Json;

use super::document::{Page, UiInput, UiNode, key};

/// An instance's values, by the widgets inside that they stand for.
#[derive(Default)]
pub(super) struct Promoted<'a> {
    /// By slot of the subgraph's inputs.
    inputs: HashMap<usize, &'a Json>,
    /// Widgets by name with their values, by place of the inner node.
    widgets: HashMap<usize, Vec<(&'a str, &'a Json)>>,
    /// There are values, but not how they belong to widgets.
    pub unclear: bool,
}

impl<'a> Promoted<'a> {
    /// Reads what the instance `host` of the subgraph `page` sets.
    ///
    /// `widgets_values` has one value for each promoted widget: in the order of `properties.proxyWidgets`, a list of
    /// `[inner node, widget]` where -1 stands for the subgraph's own inputs, or, in files without it, in the order of
    /// the instance's widget inputs.
    pub fn of(host: &UiNode<'a>, page: &Page<'a>, is_subgraph: impl Fn(&str) -> bool) -> Self {
        let mut promoted = Self::default();
        let Some(Json::Array(values)) = host.fields.get("widgets_values") else { return promoted };
        let proxies = host.fields.get("properties").and_then(|properties| properties.get("proxyWidgets"));
        let proxies = proxies.and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
        let slots: Vec<_> = slots(host, page).filter(|(_, input)| input.is_widget).map(|(slot, _)| slot).collect();
        if !proxies.is_empty() && proxies.len() == values.len() {
            for (proxy, value) in proxies.iter().zip(values).filter(|(_, value)| !value.is_null()) {
                promoted.set(proxy, value, page, &is_subgraph);
            }
        } else if proxies.is_empty() && values.len() <= slots.len() {
            promoted.inputs.extend(slots.into_iter().zip(values).filter(|(_, value)| !value.is_null()));
        } else {
            promoted.unclear = !values.is_empty();
        }
        promoted
    }

    fn set(&mut self, proxy: &'a Json, value: &'a Json, page: &Page<'a>, is_subgraph: impl Fn(&str) -> bool) {
        let pair = (proxy.get(0).and_then(key), proxy.get(1).and_then(Json::as_str));
        let (Some(node), Some(name)) = pair else {
            self.unclear = true;
            return;
        };
        if node == "-1" {
            match page.input_slots.get(name) {
                Some(&slot) => _ = self.inputs.insert(slot, value),
                None => self.unclear = true,
            }
            return;
        }
        // A widget that an inner instance promotes in turn isn't followed further.
        match page.index.get(&node).filter(|place| !is_subgraph(page.nodes[**place].class)) {
            Some(&place) => self.widgets.entry(place).or_default().push((name, value)),
            None => self.unclear = true,
        }
    }

    /// The value for an input of the subgraph.
    pub fn input(&self, slot: usize) -> Option<&'a Json> {
        self.inputs.get(&slot).copied()
    }

    /// The values for widgets of an inner node.
    pub fn inside(&self, place: usize) -> &[(&'a str, &'a Json)] {
        self.widgets.get(&place).map(Vec::as_slice).unwrap_or_default()
    }
}

/// The instance's sockets with the slots of the subgraph's inputs that they feed: those of the same name, or, where a
/// name isn't the subgraph's, those in the same place.
pub(super) fn slots<'n, 'a>(
    host: &'n UiNode<'a>,
    page: &'n Page<'a>,
) -> impl Iterator<Item = (usize, &'n UiInput<'a>)> {
    host.inputs.iter().enumerate().filter_map(|(place, input)| {
        let in_place = || (place < page.input_names.len()).then_some(place);
        Some((page.input_slots.get(input.name).copied().or_else(in_place)?, input))
    })
}
