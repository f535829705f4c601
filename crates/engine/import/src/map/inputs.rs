//! What is in a node's sockets: values of params, and outputs of mapped nodes.

use engine_graph::PortKind;
use engine_graph::json::type_name;
use serde_json::Value as Json;

use super::{Fail, Mapper, Output, State};
use crate::workflow::{Body, Socket, Source};

/// What arrives at a socket.
enum Arrival<'a> {
    Output(crate::workflow::Link),
    Value(&'a Json),
    Nothing(Option<String>),
}

/// Every whole number below this has its own `f64`.
const EXACT: f64 = 9_007_199_254_740_992.0;

impl<'a> Mapper<'_, 'a> {
    fn arrival(&mut self, node: usize, name: &str) -> Result<Arrival<'a>, Fail> {
        let Body::Works(sockets) = &self.workflow.nodes[node].body else { return Ok(Arrival::Nothing(None)) };
        let Some(Socket { link, widget }) = sockets.get(name) else { return Ok(Arrival::Nothing(None)) };
        let widget = *widget;
        let end = match link {
            None => return Ok(widget.map_or(Arrival::Nothing(None), Arrival::Value)),
            Some(Source::Link(link)) => {
                let link = *link;
                self.workflow.follow(link)
            }
            Some(other) => other.clone(),
        };
        match end {
            Source::Link(link) => Ok(Arrival::Output(link)),
            Source::Value(value) => Ok(Arrival::Value(value)),
            Source::Nothing(reason) => Ok(widget.map_or(Arrival::Nothing(Some(reason)), Arrival::Value)),
            Source::Broken(reason) => Err(Fail::Reason(format!("input {name}: {reason}"))),
        }
    }

    /// The outputs that arrive at several sockets, each of the kind that is asked for.
    ///
    /// Asks for all of them to be mapped before it says that one can't be.
    pub(super) fn wires<const N: usize>(
        &mut self,
        node: usize,
        sockets: [(&str, PortKind); N],
    ) -> Result<[Output; N], Fail> {
        let arriving = sockets.map(|(name, kind)| self.wire(node, name, kind));
        if let Some(&Err(Fail::Needs(source))) = arriving.iter().find(|wire| matches!(wire, Err(Fail::Needs(_)))) {
            return Err(Fail::Needs(source));
        }
        let reason = arriving.iter().find_map(|wire| match wire {
            Err(Fail::Reason(reason)) => Some(reason.clone()),
            _ => None,
        });
        if let Some(reason) = reason {
            return Err(Fail::Reason(reason));
        }
        let outputs: Vec<Output> = arriving.into_iter().collect::<Result<_, _>>()?;
        outputs.try_into().map_err(|_| Fail::Blocked)
    }

    fn wire(&mut self, node: usize, name: &str, kind: PortKind) -> Result<Output, Fail> {
        let link = match self.arrival(node, name)? {
            Arrival::Output(link) => link,
            Arrival::Value(_) => return Err(Fail::Reason(format!("input {name} holds a value, not a link"))),
            Arrival::Nothing(None) => return Err(Fail::Reason(format!("input {name} isn't wired"))),
            Arrival::Nothing(Some(reason)) => return Err(Fail::Reason(format!("input {name}: {reason}"))),
        };
        match self.states[link.node] {
            State::New | State::Waiting => Err(Fail::Needs(link.node)),
            State::Failed => Err(Fail::Blocked),
            State::Mapped => match self.outputs.get(&link.node).and_then(|outputs| outputs.get(link.slot)) {
                Some(output) if output.kind == kind => Ok(output.clone()),
                _ => Err(Fail::Reason(format!(
                    "input {name} takes {kind}, which output {} of {} isn't",
                    link.slot,
                    self.workflow.nodes[link.node].label()
                ))),
            },
        }
    }

    /// The value of a param; `None` where nothing is written.
    pub(super) fn value(&mut self, node: usize, name: &str) -> Result<Option<&'a Json>, Fail> {
        match self.arrival(node, name)? {
            Arrival::Value(value) => Ok(Some(value)),
            Arrival::Nothing(None) => Ok(None),
            Arrival::Nothing(Some(reason)) => Err(Fail::Reason(format!("input {name}: {reason}"))),
            Arrival::Output(link) => match self.workflow.constant(link.node) {
                Some(value) => Ok(Some(value)),
                None => Err(Fail::Reason(format!(
                    "input {name} is computed by {}; only fixed values can be imported",
                    self.workflow.nodes[link.node].label()
                ))),
            },
        }
    }

    fn required(&mut self, node: usize, name: &str) -> Result<&'a Json, Fail> {
        self.value(node, name)?.ok_or_else(|| Fail::Reason(format!("{name} is missing")))
    }

    /// A text param.
    pub(super) fn text(&mut self, node: usize, name: &str) -> Result<&'a str, Fail> {
        let value = self.required(node, name)?;
        value.as_str().ok_or_else(|| wrong(name, "a text", value))
    }

    /// A param that is a number.
    pub(super) fn number(&mut self, node: usize, name: &str) -> Result<f64, Fail> {
        let value = self.required(node, name)?;
        value.as_f64().filter(|number| number.is_finite()).ok_or_else(|| wrong(name, "a number", value))
    }

    /// A param that is a whole number, 0 or more.
    pub(super) fn count(&mut self, node: usize, name: &str) -> Result<u64, Fail> {
        let value = self.required(node, name)?;
        let exact = |float: f64| (float.fract() == 0.0 && (0.0..EXACT).contains(&float)).then_some(float as u64);
        value
            .as_u64()
            .or_else(|| value.as_f64().and_then(exact))
            .ok_or_else(|| wrong(name, "a whole number from 0 to 18446744073709551615", value))
    }

    /// Whether a socket has a link, wherever it leads.
    pub(super) fn has_link(&self, node: usize, name: &str) -> bool {
        let Body::Works(sockets) = &self.workflow.nodes[node].body else { return false };
        sockets.get(name).is_some_and(|socket| socket.link.is_some())
    }

    /// Whether what is wired to a socket is the output of a constant text, or of any other node that makes text.
    pub(super) fn is_wired(&mut self, node: usize, name: &str) -> Result<bool, Fail> {
        Ok(matches!(self.arrival(node, name)?, Arrival::Output(_)))
    }
}

fn wrong(name: &str, wanted: &str, value: &Json) -> Fail {
    let got = match value {
        Json::Number(number) => number.to_string(),
        other => type_name(other).to_owned(),
    };
    Fail::Reason(format!("{name} must be {wanted}, not {got}"))
}
